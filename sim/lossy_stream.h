// sim/lossy_stream.h -- the rate that one TCP connection keeps over a link that loses packets.
#pragma once

#include "base/units.h"

namespace canarynet {

// Bytes per second over a link that loses the share `loss` (above 0, below 1) of its packets at random, if nothing else
// holds the connection up. A packet takes
//   round trip x sqrt(2/3 loss)     Mathis, Semke, Mahdavi, Ott, "The macroscopic behavior of the TCP congestion
//                                   avoidance algorithm", 1997, equation 3, with every packet acknowledged
//   + 200 ms x 14 loss^3            timeouts: Linux waits 200 ms at least, and needs one rarely, since it notices most
//                                   lost retransmissions by later acknowledgements. The factor is fitted.
// Raw TCP in network namespaces with reno had 0.78 to 1.44 of this, with 1 to 10 % of loss and round trips of 2 and 20
// ms (sim_fabric_test).
BytesPerSec lossy_stream_rate(double loss, Nanos round_trip);

}  // namespace canarynet

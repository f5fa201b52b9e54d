#include "sim/lossy_stream.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace canarynet {

BytesPerSec lossy_stream_rate(double loss, Nanos round_trip) {
  CANARY_CHECK(loss > 0 && loss < 1, "a share of lost packets is above 0 and below 1");
  constexpr double kPayload = 1448;  // bytes of a packet on Ethernet
  constexpr double kTimeout = 0.2, kTimeouts = 14;
  const double seconds = round_trip.seconds() * std::sqrt(2.0 / 3 * loss) + kTimeout * kTimeouts * loss * loss * loss;
  return {std::max<std::int64_t>(1, std::llround(std::min(kPayload / seconds, 1e12)))};
}

}  // namespace canarynet

// tools/run/echo.h -- the round trip that a test bed really reaches, by UDP between two network namespaces.
#pragma once

#include <string>

#include "base/status.h"
#include "base/units.h"

namespace canarynet::run {

struct RoundTrip {
  Nanos min;
  Nanos median;
};

// Ten datagrams from one namespace to `address` in the other, after one to warm up (address resolution). `expected`
// bounds the wait for lost ones.
Result<RoundTrip> measure_round_trip(int from_network_fd, int to_network_fd, const std::string& address,
                                     Nanos expected);

}  // namespace canarynet::run

#include "base/clock.h"

#include <ctime>

namespace canarynet {

Nanos SystemClock::now() const {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return {static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec};
}

}  // namespace canarynet

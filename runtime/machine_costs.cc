#include "runtime/machine_costs.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/reduce.h"

namespace canarynet {

MachineCosts measure_machine_costs() {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kElements = 32 * 1024;  // two pieces of the usual size: no cache of one core holds much more
  constexpr auto kSpan = std::chrono::milliseconds(1);
  constexpr double kPost = 10e-6;
  std::vector<float> sum(kElements, 1), other(kElements, 2);
  const ReduceFn add = reduce_kernel(CANARY_F32, CANARY_SUM);
  const DenormalGuard guard;
  // The least of several: whatever disturbs one run makes it longer.
  double least = 0;
  for (const auto began = Clock::now(); Clock::now() - began < kSpan;) {
    const auto before = Clock::now();
    add(sum.data(), sum.data(), other.data(), kElements);
    const double took = std::chrono::duration<double>(Clock::now() - before).count();
    least = least == 0 ? took : std::min(least, took);
  }
  return {least / (kElements * sizeof(float)), kPost};
}

}  // namespace canarynet

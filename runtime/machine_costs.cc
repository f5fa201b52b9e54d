#include "runtime/machine_costs.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/check.h"
#include "compress/codec.h"
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

CodecSpeed measure_codec(const CodecSpec& spec) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kElements = 256 * 1024;
  constexpr double kBytes = kElements * sizeof(float);
  std::vector<float> values(kElements);
  // A sum of uniform numbers is normal enough; no two values are alike.
  std::uint32_t dice = 1;
  for (float& v : values) {
    std::uint32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += (dice = dice * 1664525u + 1013904223u) >> 12;
    v = (static_cast<float>(sum) - 2097152.0F) * 1e-8F;
  }
  const Coding coding{spec, {.count = kElements}};
  std::vector<std::byte> workspace(workspace_bytes(coding));
  std::vector<std::uint8_t> encoded(whole_bytes_max(coding));
  const DenormalGuard guard;
  const auto seconds = [](auto since) { return std::chrono::duration<double>(Clock::now() - since).count(); };
  CodecSpeed least;
  for (int run = 0; run < 2; ++run) {
    auto began = Clock::now();
    const auto bytes = encode_whole(coding, values.data(), workspace, {}, encoded);
    const double encode = seconds(began) / kBytes;
    CANARY_CHECK(bytes.ok(), "finite values are encoded");
    began = Clock::now();
    const Status decoded = decode_whole(coding, {encoded.data(), bytes.value()}, workspace, values.data(), false);
    const double decode = seconds(began) / kBytes;
    CANARY_CHECK(decoded.ok(), "what was encoded decodes");
    least.encode = run == 0 ? encode : std::min(least.encode, encode);
    least.decode = run == 0 ? decode : std::min(least.decode, decode);
  }
  return least;
}

}  // namespace canarynet

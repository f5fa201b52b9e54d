// canary-kernels-bench: how fast one core reduces and checks, compared with the most that the machine can do.
//
// bytes/s counts the bytes of the result (a reduction also reads two operands, memcpy one). The yardsticks are memcpy
// of the same bytes, and `a += b` as the compiler vectorises it for the baseline CPU. The table at the end has the
// ratios.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/crc32c.h"
#include "kernels/reduce.h"

namespace canarynet {
namespace {

constexpr std::size_t kLarge = std::size_t{64} << 20;    // far beyond L2
constexpr std::size_t kCached = std::size_t{256} << 10;  // two operands fit into L2
constexpr std::size_t kPiece = std::size_t{128} << 10;

std::vector<float> operand(std::size_t bytes) {
  std::vector<float> values(bytes / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000) * 1e-3F;
  return values;
}

__attribute__((noinline)) void plain_add(float* __restrict a, const float* __restrict b, std::size_t elements) {
  for (std::size_t i = 0; i < elements; ++i) a[i] += b[i];
}

void set_rate(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * static_cast<std::int64_t>(state.iterations()));
}

void bench_reduce(benchmark::State& state, ReduceFn kernel, DataType type, std::size_t bytes) {
  std::vector<float> a = operand(bytes);
  const std::vector<float> zeros(a.size());  // so that repeated sums stay where they are
  for (auto _ : state) {
    kernel(a.data(), a.data(), zeros.data(), bytes / size_of(type));
    benchmark::ClobberMemory();
  }
  set_rate(state, bytes);
}

void bench_plain(benchmark::State& state, std::size_t bytes) {
  std::vector<float> a = operand(bytes);
  const std::vector<float> zeros(a.size());
  for (auto _ : state) {
    plain_add(a.data(), zeros.data(), a.size());
    benchmark::ClobberMemory();
  }
  set_rate(state, bytes);
}

void bench_memcpy(benchmark::State& state, std::size_t bytes) {
  const std::vector<float> a = operand(bytes);
  std::vector<float> b(a.size());
  for (auto _ : state) {
    std::memcpy(b.data(), a.data(), bytes);
    benchmark::ClobberMemory();
  }
  set_rate(state, bytes);
}

void bench_crc32c(benchmark::State& state, const KernelVariant* variant, std::size_t bytes) {
  const std::vector<float> data = operand(bytes);
  std::uint32_t crc = 0;
  for (auto _ : state) benchmark::DoNotOptimize(crc = variant->crc32c(crc, data.data(), bytes));
  set_rate(state, bytes);
}

// Prints as usual and keeps the rates for the ratios.
class Reporter : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      const auto rate = run.counters.find("bytes_per_second");
      // The best repetition counts: whatever disturbs a run only slows it.
      if (rate != run.counters.end() && run.run_type == Run::RT_Iteration) {
        double& best = rates_[run.run_name.function_name];
        if (rate->second.value > best) best = rate->second.value;
      }
    }
  }
  void print_ratio(const std::string& of, const std::string& to) const {
    const auto numerator = rates_.find(of), denominator = rates_.find(to);
    if (numerator == rates_.end() || denominator == rates_.end()) return;  // filtered away
    std::printf("%-28s %7.2f GB/s  =  %5.2f x  %s (%.2f GB/s)\n", of.c_str(), numerator->second / 1e9,
                numerator->second / denominator->second, to.c_str(), denominator->second / 1e9);
  }

 private:
  std::map<std::string, double> rates_;
};

}  // namespace

int run(int argc, char** argv) {
  const std::vector<std::pair<std::string, std::size_t>> sizes = {{"64MiB", kLarge}, {"256KiB", kCached}};
  std::size_t count = 0;
  const KernelVariant* variants = kernel_variants(&count);
  for (const auto& [label, bytes] : sizes) {
    const std::size_t size = bytes;
    benchmark::RegisterBenchmark(("memcpy/" + label).c_str(),
                                 [size](benchmark::State& state) { bench_memcpy(state, size); });
    benchmark::RegisterBenchmark(("plain_f32_sum/" + label).c_str(),
                                 [size](benchmark::State& state) { bench_plain(state, size); });
    for (std::size_t v = 0; v < count; ++v) {
      for (DataType type : {CANARY_F32, CANARY_F16, CANARY_BF16}) {
        const ReduceFn kernel = variants[v].reduce(type, CANARY_SUM);
        const std::string name = std::string(variants[v].name) + "_" + std::string(name_of(type)) + "_sum/" + label;
        benchmark::RegisterBenchmark(
            name.c_str(), [kernel, type, size](benchmark::State& state) { bench_reduce(state, kernel, type, size); });
      }
    }
  }
  for (std::size_t v = 0; v < count; ++v) {
    const KernelVariant* variant = &variants[v];
    benchmark::RegisterBenchmark((std::string(variant->name) + "_crc32c/128KiB").c_str(),
                                 [variant](benchmark::State& state) { bench_crc32c(state, variant, kPiece); });
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  Reporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  benchmark::Shutdown();

  std::printf("\nin use: %s\n", kernels_name());
  const std::string name = kernels_name();
  for (const auto& size : sizes) {
    const std::string label = "/" + size.first;
    reporter.print_ratio(name + "_f32_sum" + label, "plain_f32_sum" + label);
    for (const char* what : {"_f32_sum", "_f16_sum", "_bf16_sum"})
      reporter.print_ratio(name + what + label, "memcpy" + label);
  }
  reporter.print_ratio(name + "_crc32c/128KiB", "scalar_crc32c/128KiB");
  reporter.print_ratio(name + "_crc32c/128KiB", "memcpy/256KiB");
  return 0;
}

}  // namespace canarynet

int main(int argc, char** argv) { return canarynet::run(argc, argv); }

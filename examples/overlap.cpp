// overlap.cpp -- hiding the exchange behind the computation: while one bucket travels, the next one is computed.
//
//   canary-run -n 4 -- overlap
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

#include "canarynet/canarynet.hpp"

namespace {

constexpr std::size_t kBuckets = 8;
constexpr std::size_t kBucketElements = 256 * 1024;

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Stands for the backward pass of a layer; same values in every round.
void compute(std::span<float> bucket, int rank, std::size_t index) {
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    bucket[i] = std::floor(100 * std::sin(static_cast<float>(i % 1000 + index))) + static_cast<float>(rank);
  }
}

// The sum of all buckets, so that both ways can be seen to give the same.
double sum_of(const std::vector<std::vector<float>>& buckets) {
  double sum = 0;
  for (const auto& bucket : buckets) {
    for (const float v : bucket) sum += v;
  }
  return sum;
}

int run() {
  canarynet::Context context;
  auto& world = context.world();
  std::vector<std::vector<float>> buckets(kBuckets, std::vector<float>(kBucketElements));

  world.barrier();
  double start = now_ms();
  for (std::size_t b = 0; b < kBuckets; ++b) {
    compute(buckets[b], context.rank(), b);
    world.all_reduce(buckets[b], CANARY_AVG);
  }
  const double blocking_ms = now_ms() - start, blocking_sum = sum_of(buckets);

  world.barrier();
  start = now_ms();
  std::vector<canarynet::Operation> operations;
  for (std::size_t b = 0; b < kBuckets; ++b) {
    compute(buckets[b], context.rank(), b);
    operations.push_back(world.all_reduce_async(buckets[b], CANARY_AVG));  // the bucket is borrowed until wait()
  }
  for (auto& operation : operations) operation.wait();
  const double overlapped_ms = now_ms() - start, overlapped_sum = sum_of(buckets);

  if (context.rank() == 0) {
    std::printf("%d ranks, %zu buckets of %zu KiB: %.1f ms one after the other, %.1f ms overlapped\n",
                context.world_size(), kBuckets, kBucketElements * sizeof(float) / 1024, blocking_ms, overlapped_ms);
  }
  if (blocking_sum != overlapped_sum) {
    std::fprintf(stderr, "rank %d: the two ways differ: %.17g, %.17g\n", context.rank(), blocking_sum, overlapped_sum);
    return 1;
  }
  context.finalize();
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "overlap: %s\n", error.what());
    return 1;
  }
}

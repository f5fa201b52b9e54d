// One rank of bench/priority.py: a small all-reduce on an idle network, and beside a large one, with and without
// priority.
//
//   priority_rank LARGE SMALL TIMES SEED     bytes, bytes, small operations of each kind, seed of the pauses
// Rank 0 prints one line of JSON: the seconds of each small operation from its call to its completion, and those of the
// large one. All operations belong to one group.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "canarynet/canarynet.hpp"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

class Bench {
 public:
  Bench(canarynet::Context& context, std::size_t large, std::size_t small, int times, unsigned seed)
      : world_(context.world()),
        ranks_(static_cast<float>(context.world_size())),
        times_(times),
        random_(seed),
        large_(large / sizeof(float)),
        small_(small / sizeof(float)) {}

  double small(const canarynet::OpOptions& options) {
    std::fill(small_.begin(), small_.end(), 3.0f);
    const auto began = Clock::now();
    world_.all_reduce(small_, CANARY_SUM, options);
    const double took = seconds_since(began);
    exact_ &= std::all_of(small_.begin(), small_.end(), [this](float v) { return v == 3.0f * ranks_; });
    // All ranks draw the same pause, which ends at another moment of the large operation's pieces each time.
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 20'000));
    return took;
  }
  std::vector<double> idle() {
    std::vector<double> out;
    for (int i = 0; i < times_; ++i) out.push_back(small({}));
    return out;
  }
  canarynet::Operation start_large() {
    std::fill(large_.begin(), large_.end(), 1.0f);
    world_.barrier();
    began_ = Clock::now();
    return world_.all_reduce_async(large_);
  }
  double wait(canarynet::Operation& operation) {
    operation.wait();
    const double took = seconds_since(began_);
    exact_ &= std::all_of(large_.begin(), large_.end(), [this](float v) { return v == ranks_; });
    return took;
  }
  double large_alone() {
    auto operation = start_large();
    return wait(operation);
  }
  // Seconds of the large operation with the small ones beside it; small ones that began after it do not count.
  double beside(const canarynet::OpOptions& options, std::vector<double>* small_ones) {
    auto operation = start_large();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (int i = 0; i < times_; ++i) {
      const bool beside = !operation.test();
      const double took = small(options);
      if (beside) small_ones->push_back(took);
    }
    return wait(operation);
  }
  bool exact() const { return exact_; }

 private:
  canarynet::Group& world_;
  const float ranks_;
  const int times_;
  std::minstd_rand random_;
  std::vector<float> large_, small_;
  Clock::time_point began_;
  bool exact_ = true;
};

std::string list(const std::vector<double>& values) {
  std::string out = "[";
  for (const double v : values) out += (out.size() > 1 ? ", " : "") + std::to_string(v);
  return out + "]";
}

int run(std::size_t large, std::size_t small, int times, unsigned seed) {
  canarynet::Context context;
  Bench bench(context, large, small, times, seed);
  bench.large_alone();  // measures what the NICs carry
  const auto idle = bench.idle();
  const double alone = bench.large_alone();
  std::vector<double> normal, urgent;
  const double beside_normal = bench.beside({}, &normal);
  const double beside_urgent = bench.beside({.priority = CANARY_PRIORITY_URGENT}, &urgent);
  if (context.rank() == 0) {
    std::printf(
        "{\"idle\": %s, \"normal\": %s, \"urgent\": %s, \"large_alone\": %f, \"large_beside_normal\": %f, "
        "\"large_beside_urgent\": %f}\n",
        list(idle).c_str(), list(normal).c_str(), list(urgent).c_str(), alone, beside_normal, beside_urgent);
  }
  context.finalize();
  if (!bench.exact()) std::fprintf(stderr, "priority_rank: a result is not exact\n");
  return bench.exact() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) {
    std::fprintf(stderr, "usage: priority_rank LARGE SMALL TIMES SEED\n");
    return 2;
  }
  return run(std::strtoull(argv[1], nullptr, 10), std::strtoull(argv[2], nullptr, 10), std::atoi(argv[3]),
             static_cast<unsigned>(std::strtoul(argv[4], nullptr, 10)));
} catch (const std::exception& error) {
  std::fprintf(stderr, "priority_rank: %s\n", error.what());
  return 1;
}

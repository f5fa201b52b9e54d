// One rank of bench/merging.py: iterations of a training that only sleeps, whose gradients are tensors of a bundle.
//
//   merging_rank FILE STEPS POLICY...     POLICY: wfbp, synceasgd, mgwfbp, exact
// FILE: the forward pass's seconds, then for each tensor, in backward order, its elements (f32) and the seconds of its
// backward step. Tensors lie one behind the other. Rank 0 prints a line of JSON for each policy: the seconds of each
// step from the end of the one before, the groups, what was expected, and a and b as they were measured.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "canarynet/canarynet.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Trace {
  double forward = 0;
  std::vector<std::size_t> elements;
  std::vector<double> backward;
};

Trace read(const char* path) {
  std::ifstream file(path);
  Trace trace;
  file >> trace.forward;
  std::size_t elements = 0;
  double seconds = 0;
  while (file >> elements >> seconds) {
    trace.elements.push_back(elements);
    trace.backward.push_back(seconds);
  }
  if (trace.elements.empty()) throw std::runtime_error(std::string(path) + " is no trace");
  return trace;
}

canary_merge policy_of(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames = {"exact", "mgwfbp", "wfbp", "synceasgd"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<canary_merge>(i);
  }
  throw std::runtime_error(std::string(name) + " is no policy");
}

constexpr int kWarmUp = 6;  // iterations that measure, and one by the plan

void measure(canarynet::Context& context, const Trace& trace, std::vector<float>& arena, int steps,
             const char* policy) {
  std::vector<std::span<float>> tensors;
  std::size_t at = 0;
  for (const std::size_t n : trace.elements) {
    tensors.push_back(std::span(arena).subspan(at, n));
    at += n;
  }
  for (std::size_t i = 0; i < arena.size(); ++i) arena[i] = static_cast<float>(i % 1000 + context.rank() * 2);
  canarynet::Bundle bundle(context.world(), tensors, CANARY_AVG, {.policy = policy_of(policy)});
  context.world().barrier();
  std::string seconds;
  auto end = Clock::now();
  for (int step = 0; step < kWarmUp + steps; ++step) {
    const auto began = end;
    double computed = trace.forward;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      computed += trace.backward[t];
      std::this_thread::sleep_until(
          began + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(computed)));
      bundle.submit(t);
    }
    bundle.wait();
    end = Clock::now();
    if (step >= kWarmUp)
      seconds += (seconds.empty() ? "" : ", ") + std::to_string(std::chrono::duration<double>(end - began).count());
  }
  for (std::size_t i = 0; i < arena.size(); i += 997) {
    if (arena[i] != static_cast<float>(i % 1000) + static_cast<float>(context.world_size() - 1))
      throw std::runtime_error("element " + std::to_string(i) + " is wrong");
  }
  if (context.rank() != 0) return;
  const canary_bundle_state state = bundle.state();
  std::printf(
      "{\"policy\": \"%s\", \"seconds\": [%s], \"groups\": %zu, \"expected\": %.6f, \"a\": %.9f, \"b\": %.15f}\n",
      policy, seconds.c_str(), static_cast<std::size_t>(state.groups), state.expected_seconds, state.start_seconds,
      state.byte_seconds);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 4) {
    std::fprintf(stderr, "usage: merging_rank FILE STEPS POLICY...\n");
    return 2;
  }
  const Trace trace = read(argv[1]);
  canarynet::Context context;
  std::vector<float> arena(std::accumulate(trace.elements.begin(), trace.elements.end(), std::size_t{0}));
  for (int i = 3; i < argc; ++i) measure(context, trace, arena, std::atoi(argv[2]), argv[i]);
  context.finalize();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "merging_rank: %s\n", error.what());
  return 1;
}

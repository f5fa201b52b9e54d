// One rank of bench/codecs.py: all-reduces of one gradient, by each codec in turn.
//
//   codecs_rank BYTES WARM_UP STEPS CODEC...     "dense" is no codec; power:4@4096: of a matrix of so many rows
// Rank 0 prints a line of JSON for each codec: the seconds of each step, the bytes that its host's NICs sent in a step
// by their own counters, and how far the first result is from the sum (as a share of it). WARM_UP steps of each codec
// are not counted. A codec that is chosen ("auto" in its text) first runs untimed until there was time to choose, which
// the line tells, with the reasons.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "canarynet/canarynet.hpp"

namespace {

using Clock = std::chrono::steady_clock;

// Of all interfaces of this network namespace but loopback.
double sent_bytes() {
  std::ifstream table("/proc/self/net/dev");
  double sum = 0;
  for (std::string line; std::getline(table, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::istringstream name(line.substr(0, colon)), numbers(line.substr(colon + 1));
    std::string of;
    name >> of;
    double value = 0;
    for (int field = 0; field < 9; ++field) numbers >> value;  // the ninth: sent bytes
    if (of != "lo") sum += value;
  }
  return sum;
}

// A normal distribution's values, by repeating a table: what a rank has at an index is known to all.
class Gradient {
 public:
  Gradient() : table_(kTable) {
    std::minstd_rand random(7);
    std::normal_distribution<float> normal(0, 0.01F);
    for (float& v : table_) v = normal(random);
  }
  float at(std::size_t i, int rank) const { return table_[(i + static_cast<std::size_t>(rank) * 7919) % kTable]; }

 private:
  static constexpr std::size_t kTable = 1'000'003;
  std::vector<float> table_;
};

constexpr int kSettleSteps = 12;
constexpr double kSettleSeconds = 12;

// Operations while a codec is chosen for them. Rank 0 says when it is enough. Returns what it took, as JSON.
std::string settle(canarynet::Group& world, int rank, const std::vector<float>& input, std::vector<float>& output,
                   const canarynet::OpOptions& options) {
  const auto began = Clock::now();
  const auto since = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  int steps = 0;
  for (float enough = 0; enough == 0;) {
    world.all_reduce(input, output, CANARY_SUM, options);
    ++steps;
    const float mine = rank == 0 && steps >= kSettleSteps && since() >= kSettleSeconds ? 1 : 0;
    world.all_reduce(std::vector<float>{mine}, std::span<float>(&enough, 1), CANARY_MAX);
  }
  return ", \"settled_after\": " + std::to_string(since()) + ", \"settling_steps\": " + std::to_string(steps) +
         ", \"why\": \"" + world.explain("all_reduce", input.size() * sizeof(float)) + "\"";
}

void measure(canarynet::Context& context, const Gradient& gradient, std::size_t count, int warm_up, int steps,
             const std::string& codec, std::uint64_t tensor) {
  canarynet::Group& world = context.world();
  std::vector<float> input(count), output(count);
  for (std::size_t i = 0; i < count; ++i) input[i] = gradient.at(i, context.rank());
  canarynet::OpOptions options;
  if (codec != "dense") {
    const std::size_t at = codec.find('@');
    options.codec = canarynet::codec(codec.substr(0, at).c_str());
    if (at != std::string::npos) options.rows = std::strtoull(codec.c_str() + at + 1, nullptr, 10);
    options.tensor = tensor;
  }
  std::string seconds, settled;
  double error = 0, energy = 0;
  world.all_reduce(input, output, CANARY_SUM, options);  // the first one compiles, and touches its memory
  for (std::size_t i = 0; i < count; i += 97) {
    double exact = 0;
    for (int r = 0; r < context.world_size(); ++r) exact += gradient.at(i, r);
    error += (output[i] - exact) * (output[i] - exact);
    energy += exact * exact;
  }
  if (codec.find("auto") != std::string::npos) settled = settle(world, context.rank(), input, output, options);
  double before = sent_bytes();
  for (int s = -warm_up; s < steps; ++s) {
    if (s == 0) before = sent_bytes();
    world.barrier();
    const auto began = Clock::now();
    world.all_reduce(input, output, CANARY_SUM, options);
    world.barrier();
    if (s >= 0)
      seconds += (s == 0 ? "" : ", ") + std::to_string(std::chrono::duration<double>(Clock::now() - began).count());
  }
  const double sent = (sent_bytes() - before) / steps;
  if (context.rank() != 0) return;
  std::printf("{\"codec\": \"%s\", \"seconds\": [%s], \"sent_bytes\": %.0f, \"error\": %.6f%s}\n", codec.c_str(),
              seconds.c_str(), sent, std::sqrt(error / energy), settled.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 5) {
    std::fprintf(stderr, "usage: codecs_rank BYTES WARM_UP STEPS CODEC...\n");
    return 2;
  }
  const std::size_t count = std::strtoull(argv[1], nullptr, 10) / sizeof(float);
  canarynet::Context context;
  const Gradient gradient;
  for (int i = 4; i < argc; ++i) {
    measure(context, gradient, count, std::atoi(argv[2]), std::atoi(argv[3]), argv[i], static_cast<std::uint64_t>(i));
  }
  context.finalize();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "codecs_rank: %s\n", error.what());
  return 1;
}

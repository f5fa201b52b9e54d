// priorities.cpp -- what is needed first goes first: the backward pass ends with the gradients of the first layer, and
// the next forward pass begins with them. They are urgent, the others are not.
//
//   canary-run -n 2 --hosts 2 --nics 2 --rate 200mbit -- priorities
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <vector>

#include "canarynet/canarynet.hpp"

namespace {

constexpr std::size_t kLayers = 8;
constexpr std::size_t kLayerElements = 512 * 1024;
constexpr std::size_t kFirstElements = 64 * 1024;

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Until the first layer's gradients are there, and until all are.
struct Step {
  double first_ms = 0, all_ms = 0;
  bool right = true;
};

Step step(canarynet::Context& context, const canarynet::OpOptions& options) {
  auto& world = context.world();
  std::vector<std::vector<float>> layers(kLayers, std::vector<float>(kLayerElements, 1.0f));
  std::vector<float> first(kFirstElements, 2.0f);
  world.barrier();
  std::vector<canarynet::Operation> operations;
  for (auto& layer : layers) operations.push_back(world.all_reduce_async(layer));
  const double start = now_ms();
  // Every rank says the same: one that does not would send its part late.
  world.all_reduce(first, CANARY_SUM, options);
  Step out;
  out.first_ms = now_ms() - start;
  for (auto& operation : operations) operation.wait();
  out.all_ms = now_ms() - start;
  const auto ranks = static_cast<float>(context.world_size());
  out.right = first.back() == 2 * ranks;
  for (const auto& layer : layers) out.right &= layer.back() == ranks;
  return out;
}

int run() {
  canarynet::Context context;
  bool right = step(context, {}).right;  // what the NICs carry is known from here on
  const Step normal = step(context, {});
  const Step urgent = step(context, {.priority = CANARY_PRIORITY_URGENT});
  right &= normal.right && urgent.right;
  if (context.rank() == 0) {
    std::printf("first layer after %.2f ms, all after %.2f ms\n", normal.first_ms, normal.all_ms);
    std::printf("urgent:     after %.2f ms, all after %.2f ms\n", urgent.first_ms, urgent.all_ms);
  }
  context.finalize();
  return right ? 0 : 1;
}

}  // namespace

int main() try { return run(); } catch (const std::exception& error) {
  std::fprintf(stderr, "priorities: %s\n", error.what());
  return 1;
}

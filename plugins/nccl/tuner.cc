// The objects that NCCL looks for: ncclTunerPlugin_v2 to _v6. Costs stay NCCL's own unless the user has given a cost
// model. Then the costs of algorithms that the model knows are replaced, so that NCCL takes the cheapest by it.
//
// Threads: one context per communicator. Failures: none, since NCCL would pass them on to the application.
#include <cstdlib>
#include <new>

#include "plugins/nccl/cost_model.h"
#include "plugins/nccl/net.h"
#include "plugins/nccl/report.h"

namespace canarynet::nccl {
namespace {

using namespace abi;

struct Tuner {
  CostModel model;
  std::size_t ranks;
  std::size_t nodes;
};

Result start(void** context, std::size_t ranks, std::size_t nodes, Logger logger) {
  set_logger(logger);
  *context = new (std::nothrow) Tuner{read_model(), ranks, nodes};
  if (const auto* t = static_cast<const Tuner*>(*context); t != nullptr && t->model.set()) {
    info(here(), kLogInit | kLogTuning, "tuner: %zu ranks on %zu hosts, start-up %u ns, %llu bytes/s per host", ranks,
         nodes, static_cast<unsigned>(t->model.alpha_ns), static_cast<unsigned long long>(t->model.bytes_per_second));
  }
  return Result::kSuccess;
}

Result init_v4(std::size_t ranks, std::size_t nodes, Logger logger, void** context) {
  return start(context, ranks, nodes, logger);
}

Result init(void** context, std::uint64_t, std::size_t ranks, std::size_t nodes, Logger logger, NvlDomains*,
            TunerConstants*) {
  return start(context, ranks, nodes, logger);
}

// Called for every collective. If the model knows one algorithm of a collective and NCCL offers another that it does
// not know (those that need special hardware), their costs would not compare, so all stay as they are.
Result get_collective(void* context, int function, std::size_t bytes, int, float** costs, int algorithms, int protocols,
                      int, int*) {
  const auto* t = static_cast<const Tuner*>(context);
  if (t == nullptr || costs == nullptr || !t->model.set()) return Result::kSuccess;
  float* const table = reinterpret_cast<float*>(costs);
  for (const bool edit : {false, true}) {
    for (int a = 0; a < algorithms; ++a) {
      for (int p = 0; p < protocols; ++p) {
        float& cost = table[a * protocols + p];
        if (cost < 0) continue;
        const auto ours = cost_us(t->model, static_cast<Function>(function), bytes, t->ranks, t->nodes, a, p);
        if (!ours) return Result::kSuccess;
        if (edit) cost = *ours;
      }
    }
  }
  return Result::kSuccess;
}

Result get_collective_v3(void* context, int function, std::size_t bytes, int pipelined, float** costs, int algorithms,
                         int protocols, int* channels) {
  return get_collective(context, function, bytes, pipelined, costs, algorithms, protocols, 0, channels);
}

bool given(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

// This version shows neither what NCCL can run nor what the user has forbidden, and believes whatever it is told. So
// the tuner says nothing if the user or special hardware has a say, and otherwise chooses only among what runs
// anywhere: ring and, for all-reduce, tree, by LL and Simple.
Result get_collective_v2(void* context, int function, std::size_t bytes, int collnet, int nvls, int, int* algorithm,
                         int* protocol, int*) {
  const auto* t = static_cast<const Tuner*>(context);
  if (t == nullptr || algorithm == nullptr || protocol == nullptr || !t->model.set() || collnet != 0 || nvls != 0)
    return Result::kSuccess;
  if (given("NCCL_ALGO") || given("NCCL_PROTO")) return Result::kSuccess;
  std::optional<float> least;
  for (const int a : {kRing, kTree}) {
    for (const int p : {kLl, kSimple}) {
      const auto cost = cost_us(t->model, static_cast<Function>(function), bytes, t->ranks, t->nodes, a, p);
      if (!cost || (least && *cost >= *least)) continue;
      least = cost;
      *algorithm = a;
      *protocol = p;
    }
  }
  return Result::kSuccess;
}

Result finish(void* context) {
  delete static_cast<Tuner*>(context);
  return Result::kSuccess;
}

}  // namespace
}  // namespace canarynet::nccl

#define CANARY_NCCL_EXPORT extern "C" __attribute__((visibility("default")))
namespace nccl = canarynet::nccl;
CANARY_NCCL_EXPORT const nccl::abi::TunerV2 ncclTunerPlugin_v2;
CANARY_NCCL_EXPORT const nccl::abi::TunerV3 ncclTunerPlugin_v3;
CANARY_NCCL_EXPORT const nccl::abi::TunerV4 ncclTunerPlugin_v4;
CANARY_NCCL_EXPORT const nccl::abi::TunerV5 ncclTunerPlugin_v5;
CANARY_NCCL_EXPORT const nccl::abi::TunerV6 ncclTunerPlugin_v6;

const nccl::abi::TunerV2 ncclTunerPlugin_v2 = {nccl::kName, nccl::init_v4, nccl::get_collective_v2, nccl::finish};
const nccl::abi::TunerV3 ncclTunerPlugin_v3 = {nccl::kName, nccl::init_v4, nccl::get_collective_v3, nccl::finish};
const nccl::abi::TunerV4 ncclTunerPlugin_v4 = {nccl::kName, nccl::init_v4, nccl::get_collective, nccl::finish};
const nccl::abi::TunerV5 ncclTunerPlugin_v5 = {nccl::kName, nccl::init, nccl::get_collective, nccl::finish};
const nccl::abi::TunerV6 ncclTunerPlugin_v6 = {nccl::kName, nccl::init, nccl::get_collective, nccl::finish, nullptr};

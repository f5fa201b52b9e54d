// plugins/nccl/abi/tuner.h -- the objects ncclTunerPlugin_v2 to _v6 and the model that NCCL shows them.
#pragma once

#include "plugins/nccl/abi/types.h"

namespace canarynet::nccl::abi {

enum class Function : int {
  kBroadcast = 0,
  kReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kAllReduce = 4,
};

inline constexpr int kTree = 0, kRing = 1, kCollNetDirect = 2, kCollNetChain = 3, kNvls = 4, kNvlsTree = 5, kPat = 6;
inline constexpr int kLl = 0, kLl128 = 1, kSimple = 2;
inline constexpr int kAlgorithms = 7, kProtocols = 3;
inline constexpr float kImpossible = -1.0f;  // in a cost table: NCCL can't run it, or the user has forbidden it

struct NvlDomains {
  int count;
  int ranks_min;
  int ranks_max;
};
static_assert(sizeof(NvlDomains) == 12);

// Latencies in us, bandwidths in GB/s; [hardware: NVLink, PCI, network], [compute capability], [1, 2, 4 or more nodes].
struct TunerConstants {
  double base_latencies[kAlgorithms][kProtocols];
  double hardware_latencies[3][kAlgorithms][kProtocols];
  double ll_bandwidths[4][3];
  double ring_ll128_bandwidths[4][3];
  double tree_ll128_bandwidths[4][3];
  double tree_bandwidths[4][3];
  double nvls_tree_bandwidths[4][3];
};
static_assert(sizeof(TunerConstants) == 1152);
static_assert(offsetof(TunerConstants, hardware_latencies) == 168 && offsetof(TunerConstants, ll_bandwidths) == 672);
static_assert(offsetof(TunerConstants, ring_ll128_bandwidths) == 768);
static_assert(offsetof(TunerConstants, tree_ll128_bandwidths) == 864);
static_assert(offsetof(TunerConstants, tree_bandwidths) == 960);
static_assert(offsetof(TunerConstants, nvls_tree_bandwidths) == 1056);

// `costs` is declared so, but is one float[algorithms][protocols] of microseconds.
using CollectiveFn = Result (*)(void* context, int function, std::size_t bytes, int pipelined, float** costs,
                                int algorithms, int protocols, int registered, int* channels);
using TunerInitFn = Result (*)(void** context, std::uint64_t comm, std::size_t ranks, std::size_t nodes, Logger,
                               NvlDomains*, TunerConstants*);

// Version 2 is NCCL 2.21's. It has no costs: the tuner names one algorithm and protocol, or leaves the choice to NCCL.
struct TunerV2 {
  const char* name;
  Result (*init)(std::size_t ranks, std::size_t nodes, Logger, void** context);
  Result (*get_collective)(void* context, int function, std::size_t bytes, int collnet, int nvls, int pipelined,
                           int* algorithm, int* protocol, int* channels);
  Result (*destroy)(void* context);
};
static_assert(sizeof(TunerV2) == 32 && offsetof(TunerV2, get_collective) == 16 && offsetof(TunerV2, destroy) == 24);

// Version 3 is that of NCCL 2.22 and 2.23. It has the table of costs, and says nothing of registered buffers.
struct TunerV3 {
  const char* name;
  Result (*init)(std::size_t ranks, std::size_t nodes, Logger, void** context);
  Result (*get_collective)(void* context, int function, std::size_t bytes, int pipelined, float** costs, int algorithms,
                           int protocols, int* channels);
  Result (*destroy)(void* context);
};
static_assert(sizeof(TunerV3) == 32 && offsetof(TunerV3, get_collective) == 16 && offsetof(TunerV3, destroy) == 24);

struct TunerV4 {
  const char* name;
  Result (*init)(std::size_t ranks, std::size_t nodes, Logger, void** context);
  CollectiveFn get_collective;
  Result (*destroy)(void* context);
};
static_assert(sizeof(TunerV4) == 32 && offsetof(TunerV4, get_collective) == 16 && offsetof(TunerV4, destroy) == 24);

struct TunerV5 {
  const char* name;
  TunerInitFn init;
  CollectiveFn get_collective;
  Result (*finalize)(void* context);
};
static_assert(sizeof(TunerV5) == 32 && offsetof(TunerV5, get_collective) == 16 && offsetof(TunerV5, finalize) == 24);

struct TunerV6 {
  const char* name;
  TunerInitFn init;
  CollectiveFn get_collective;
  Result (*finalize)(void* context);
  Result (*get_chunk_size)(void* context, int function, std::size_t bytes, int algorithm, int protocol, int channels,
                           std::size_t* chunk);
};
static_assert(sizeof(TunerV6) == 40 && offsetof(TunerV6, finalize) == 24 && offsetof(TunerV6, get_chunk_size) == 32);

}  // namespace canarynet::nccl::abi

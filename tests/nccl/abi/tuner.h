// tests/nccl/abi/tuner.h -- the tuner plugin ABI, versions 4 to 6, written down for the harness (net.h says why it is
// not the plugin's own).
#pragma once

#include "tests/nccl/abi/net.h"

namespace nccltest {

inline constexpr int kAlgorithms = 7;  // TREE RING COLLNET_DIRECT COLLNET_CHAIN NVLS NVLS_TREE PAT
inline constexpr int kProtocols = 3;   // LL LL128 SIMPLE
inline constexpr int kTree = 0, kRing = 1, kPat = 6;
inline constexpr int kFunctions =
    5;  // Broadcast Reduce AllGather ReduceScatter AllReduce: the tuner is asked about these
inline constexpr int kAllGather = 2, kReduceScatter = 3, kAllReduce = 4;

struct NvlDomainInfo {
  int domains;
  int min_ranks_per_domain;
  int max_ranks_per_domain;
};
static_assert(sizeof(NvlDomainInfo) == 12);

struct TunerConstants {  // latencies in us, bandwidths in GB/s
  double base_latencies[kAlgorithms][kProtocols];
  double hw_latencies[3][kAlgorithms][kProtocols];  // NVLINK PCI NET
  double ll_max_bws[4][3];
  double per_channel_max_ring_ll128_bws[4][3];
  double per_channel_max_tree_ll128_bws[4][3];
  double per_channel_max_tree_bws[4][3];
  double per_channel_max_nvls_tree_bws[4][3];
};
static_assert(sizeof(TunerConstants) == 1152 && offsetof(TunerConstants, hw_latencies) == 168 &&
              offsetof(TunerConstants, ll_max_bws) == 672 &&
              offsetof(TunerConstants, per_channel_max_ring_ll128_bws) == 768 &&
              offsetof(TunerConstants, per_channel_max_tree_ll128_bws) == 864 &&
              offsetof(TunerConstants, per_channel_max_tree_bws) == 960 &&
              offsetof(TunerConstants, per_channel_max_nvls_tree_bws) == 1056);

struct TunerV4 {
  const char* name;
  Result (*init)(std::size_t ranks, std::size_t nodes, Logger log, void** context);
  Result (*get_coll_info)(void* context, int function, std::size_t bytes, int pipe_ops, float** costs, int algorithms,
                          int protocols, int registered, int* channels);
  Result (*destroy)(void* context);
};
static_assert(sizeof(TunerV4) == 32);

struct TunerV5 {
  const char* name;
  Result (*init)(void** context, std::uint64_t comm_id, std::size_t ranks, std::size_t nodes, Logger log,
                 NvlDomainInfo* nvl, TunerConstants* constants);
  Result (*get_coll_info)(void* context, int function, std::size_t bytes, int pipe_ops, float** costs, int algorithms,
                          int protocols, int registered, int* channels);
  Result (*finalize)(void* context);
};
static_assert(sizeof(TunerV5) == 32);

struct TunerV6 {
  const char* name;
  Result (*init)(void** context, std::uint64_t comm_id, std::size_t ranks, std::size_t nodes, Logger log,
                 NvlDomainInfo* nvl, TunerConstants* constants);
  Result (*get_coll_info)(void* context, int function, std::size_t bytes, int pipe_ops, float** costs, int algorithms,
                          int protocols, int registered, int* channels);
  Result (*finalize)(void* context);
  Result (*get_chunk_size)(void* context, int function, std::size_t bytes, int algorithm, int protocol, int channels,
                           std::size_t* chunk_size);
};
static_assert(sizeof(TunerV6) == 40);

}  // namespace nccltest

// collectives/topk_cost.h -- how long the exchange of top-k compressed gradients takes by the α-β model, and which
// exchange is the cheapest.
//
// Source: Tyagi, Swany, "Flexible communication for optimal distributed learning over unpredictable networks" (2023,
// "FlexComm"), section 3-D and equations 4a and 4b. n ranks hold M bytes each, of which the share c (the ratio) is
// sent; α and β are those of a link between any two of them, lg is the logarithm to base 2:
//   all-gather     α·lg n + 2Mcβ(n-1)                         every rank's indices and values go to everybody
//   AR-Topk, ring  α[2(n-1) + lg n] + Mcβ[2(n-1)/n + lg n]    one rank's indices are broadcast, then all ranks' values
//   AR-Topk, tree  3α·lg n + 3Mcβ·lg n                        at these are all-reduced
// Units: seconds, bytes. Pure, allocates nothing.
#pragma once

#include <cstdint>
#include <string_view>

#include "collectives/link_costs.h"

namespace canarynet {

enum class TopkExchange : std::uint8_t { kAllGather, kRing, kTree };
constexpr int kTopkExchangeCount = 3;
// "ag", "art_ring", "art_tree".
std::string_view name_of(TopkExchange exchange);

// How AR-Topk chooses the rank whose indices are broadcast.
enum class TopkRoot : std::uint8_t {
  kStaleness,  // STAR: ranks take turns, which costs nothing
  kVariance    // VAR: the one with the largest values, found by an all-gather of a float each: α·lg n + 4(n-1)β
};

struct TopkRequest {
  int ranks = 1;
  double bytes = 0;  // M, of the dense gradient
  double ratio = 1;  // c, in (0, 1]
  LinkCost link;
  TopkRoot root = TopkRoot::kStaleness;
};

// Seconds of one exchange; 0 for one rank.
double topk_cost(TopkExchange exchange, const TopkRequest& request);
// The first of the cheapest, in the order of the enumeration.
TopkExchange cheapest_topk(const TopkRequest& request);

// Seconds of a ring all-reduce of all M bytes: 2(n-1)α + 2(n-1)/n·Mβ. The paper's dense exchange; adding takes no time.
double dense_ring_cost(const TopkRequest& request);
// The paper's equation 3: whether the cheapest exchange and the compression together take less than that ring.
bool compression_pays(const TopkRequest& request, double compress_seconds);

}  // namespace canarynet

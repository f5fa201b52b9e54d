#include "collectives/topk_cost.h"

#include <cmath>

namespace canarynet {

std::string_view name_of(TopkExchange exchange) {
  switch (exchange) {
    case TopkExchange::kAllGather:
      return "ag";
    case TopkExchange::kRing:
      return "art_ring";
    case TopkExchange::kTree:
      return "art_tree";
  }
  return "";
}

double topk_cost(TopkExchange exchange, const TopkRequest& request) {
  if (request.ranks <= 1) return 0;
  const double n = request.ranks, lg = std::log2(n);
  const double alpha = request.link.alpha, beta = request.link.beta;
  const double sent = request.bytes * request.ratio * beta;
  const double root = request.root == TopkRoot::kVariance ? alpha * lg + 4 * (n - 1) * beta : 0;
  switch (exchange) {
    case TopkExchange::kAllGather:
      return alpha * lg + 2 * sent * (n - 1);
    case TopkExchange::kRing:
      return alpha * (2 * (n - 1) + lg) + sent * (2 * (n - 1) / n + lg) + root;
    case TopkExchange::kTree:
      break;
  }
  return 3 * alpha * lg + 3 * sent * lg + root;
}

TopkExchange cheapest_topk(const TopkRequest& request) {
  auto best = TopkExchange::kAllGather;
  for (const auto other : {TopkExchange::kRing, TopkExchange::kTree}) {
    if (topk_cost(other, request) < topk_cost(best, request)) best = other;
  }
  return best;
}

double dense_ring_cost(const TopkRequest& request) {
  if (request.ranks <= 1) return 0;
  const double n = request.ranks;
  return 2 * (n - 1) * request.link.alpha + 2 * (n - 1) / n * request.bytes * request.link.beta;
}

bool compression_pays(const TopkRequest& request, double compress_seconds) {
  return topk_cost(cheapest_topk(request), request) + compress_seconds < dense_ring_cost(request);
}

}  // namespace canarynet

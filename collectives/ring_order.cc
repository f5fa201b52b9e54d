#include "collectives/ring_order.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/random.h"

namespace canarynet {
namespace {

using Order = std::vector<std::uint16_t>;

constexpr int kExactNodesMax = 10;
// An edge that must not be used costs more than any sum of message times.
constexpr std::int64_t kBad = std::int64_t{1} << 50;
constexpr std::int64_t kAlphaMax = std::int64_t{1} << 36;  // about a minute

std::size_t at(const RingEdges& e, int from, int to) {
  return static_cast<std::size_t>(from) * static_cast<std::size_t>(e.n) + static_cast<std::size_t>(to);
}

std::uint32_t slowest_of(const RingEdges& e, const Order& order) {
  std::uint32_t least = ~std::uint32_t{0};
  for (std::size_t i = 0; i < order.size(); ++i)
    least = std::min(least, e.level[at(e, order[i], order[(i + 1) % order.size()])]);
  return least;
}
std::int64_t alpha_of(const RingEdges& e, const Order& order) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) sum += e.alpha[at(e, order[i], order[(i + 1) % order.size()])];
  return sum;
}

Order in_rank_order(int n) {
  Order order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  return order;
}

// No node can do better than its best edge out and its best one in.
std::uint32_t level_bound(const RingEdges& e) {
  std::uint32_t bound = ~std::uint32_t{0};
  for (int a = 0; a < e.n; ++a) {
    std::uint32_t out = 0, in = 0;
    for (int b = 0; b < e.n; ++b) {
      if (a == b) continue;
      out = std::max(out, e.level[at(e, a, b)]);
      in = std::max(in, e.level[at(e, b, a)]);
    }
    bound = std::min({bound, out, in});
  }
  return bound;
}

// Held and Karp: over all sets of nodes that a path from 0 has visited.
Order exact_cycle(const RingEdges& e) {
  const auto n = static_cast<std::size_t>(e.n), sets = std::size_t{1} << n;
  std::vector<std::uint32_t> level(sets * n, 0);
  level[n] = ~std::uint32_t{0};  // {0}, ending at 0
  for (std::size_t set = 1; set < sets; set += 2) {
    for (std::size_t last = 0; last < n; ++last) {
      const std::uint32_t here = level[set * n + last];
      if (here == 0) continue;
      for (std::size_t next = 1; next < n; ++next) {
        if ((set >> next & 1) != 0) continue;
        std::uint32_t& there = level[(set | std::size_t{1} << next) * n + next];
        there = std::max(there, std::min(here, e.level[last * n + next]));
      }
    }
  }
  std::uint32_t best = 0;
  for (std::size_t last = 1; last < n; ++last)
    best = std::max(best, std::min(level[(sets - 1) * n + last], e.level[last * n]));
  if (best == 0) return {};
  // Again with the edges that are fast enough, for the least sum of message times.
  std::vector<std::int64_t> sum(sets * n, kBad);
  std::vector<std::uint8_t> before(sets * n, 0);
  sum[n] = 0;
  for (std::size_t set = 1; set < sets; set += 2) {
    for (std::size_t last = 0; last < n; ++last) {
      const std::int64_t here = sum[set * n + last];
      if (here >= kBad) continue;
      for (std::size_t next = 1; next < n; ++next) {
        if ((set >> next & 1) != 0 || e.level[last * n + next] < best) continue;
        const std::size_t there = (set | std::size_t{1} << next) * n + next;
        if (here + e.alpha[last * n + next] >= sum[there]) continue;
        sum[there] = here + e.alpha[last * n + next];
        before[there] = static_cast<std::uint8_t>(last);
      }
    }
  }
  std::size_t last = 0;
  std::int64_t least = kBad;
  for (std::size_t l = 1; l < n; ++l) {
    if (e.level[l * n] < best || sum[(sets - 1) * n + l] + e.alpha[l * n] >= least) continue;
    least = sum[(sets - 1) * n + l] + e.alpha[l * n];
    last = l;
  }
  Order order;
  for (std::size_t set = sets - 1; order.size() < n;) {
    order.push_back(static_cast<std::uint16_t>(last));
    const std::size_t previous = before[set * n + last];
    set &= ~(std::size_t{1} << last);
    last = previous;
  }
  std::reverse(order.begin(), order.end());
  return order;
}

// Improves cycles with 2-opt and Or-opt moves; edges below a level cost kBad.
class Search {
 public:
  explicit Search(const RingEdges& edges) : e_(edges), cost_(edges.level.size()), order_(in_rank_order(edges.n)) {}

  // Whether a cycle over edges of at least this level was found, which order() then is.
  bool reach(std::uint32_t level, int tries) {
    for (std::size_t i = 0; i < cost_.size(); ++i) cost_[i] = e_.level[i] < level ? kBad : e_.alpha[i];
    Order best = order_;
    std::int64_t least = improve(&best);
    for (int t = 0; t < tries && least >= kBad; ++t) least = again(&best, least);
    order_ = best;
    return least < kBad;
  }
  void start(const Order& order, std::uint32_t level) {
    order_ = order;
    reach(level, 0);
  }
  // More tries at the last level, for message times.
  void polish(int tries) {
    std::int64_t least = cost_of(order_);
    for (int t = 0; t < tries; ++t) least = again(&order_, least);
  }
  const Order& order() const { return order_; }

 private:
  std::int64_t cost(int from, int to) const { return cost_[at(e_, from, to)]; }
  std::int64_t cost_of(const Order& order) const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < order.size(); ++i) sum += cost(order[i], order[(i + 1) % order.size()]);
    return sum;
  }
  // Exchanges two neighbouring stretches ("double bridge"), sometimes shuffles all, and improves again.
  std::int64_t again(Order* best, std::int64_t least) {
    const std::size_t n = best->size();
    std::size_t cut[3];
    for (std::size_t& c : cut) c = 1 + random_.below(n - 1);
    std::sort(std::begin(cut), std::end(cut));
    Order order = *best;
    const auto begin = order.begin();
    if (n <= kShuffledMax && random_.below(6) == 0) {
      for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    }
    std::rotate(begin + static_cast<std::ptrdiff_t>(cut[0]), begin + static_cast<std::ptrdiff_t>(cut[1]),
                begin + static_cast<std::ptrdiff_t>(cut[2]));
    const std::int64_t sum = improve(&order);
    if (sum <= least) *best = order;
    return std::min(least, sum);
  }
  std::int64_t improve(Order* order) {
    while (turn_round(order) || move_stretch(order)) {
    }
    return cost_of(*order);
  }
  // 2-opt: turns [i, j] round if that is cheaper. Edges have a direction, so those inside count as well.
  bool turn_round(Order* order) const {
    Order& o = *order;
    const std::size_t n = o.size();
    for (std::size_t i = 1; i + 1 < n; ++i) {
      std::int64_t inside = 0;
      for (std::size_t j = i + 1; j < n; ++j) {
        inside += cost(o[j], o[j - 1]) - cost(o[j - 1], o[j]);
        const int before = o[i - 1], after = o[(j + 1) % n];
        if (inside + cost(before, o[j]) + cost(o[i], after) - cost(before, o[i]) - cost(o[j], after) >= 0) continue;
        std::reverse(o.begin() + static_cast<std::ptrdiff_t>(i), o.begin() + static_cast<std::ptrdiff_t>(j + 1));
        return true;
      }
    }
    return false;
  }
  // Or-opt: moves a stretch [i, j] of any length to stand behind k > j, which also moves [j + 1, k] forward.
  bool move_stretch(Order* order) const {
    Order& o = *order;
    const std::size_t n = o.size();
    for (std::size_t i = 1; i < n; ++i) {
      for (std::size_t j = i; j + 1 < n; ++j) {
        // One of the two stretches is short: long ones are what again() exchanges.
        const std::size_t most = j - i < kShort ? n - 1 : std::min(n - 1, j + kShort);
        for (std::size_t k = j + 1; k <= most; ++k) {
          const int before = o[i - 1], after = o[(k + 1) % n];
          const std::int64_t now = cost(before, o[i]) + cost(o[j], o[j + 1]) + cost(o[k], after);
          if (cost(before, o[j + 1]) + cost(o[k], o[i]) + cost(o[j], after) >= now) continue;
          std::rotate(o.begin() + static_cast<std::ptrdiff_t>(i), o.begin() + static_cast<std::ptrdiff_t>(j + 1),
                      o.begin() + static_cast<std::ptrdiff_t>(k + 1));
          return true;
        }
      }
    }
    return false;
  }

  static constexpr std::size_t kShort = 3;
  static constexpr std::size_t kShuffledMax = 16;  // to start anew costs more than it finds in larger groups
  const RingEdges& e_;
  std::vector<std::int64_t> cost_;
  Order order_;
  Random random_{1};
};

// If the order of ranks is as good, it is the one that people expect.
Order preferred(const RingEdges& e, Order order) {
  Order plain = in_rank_order(e.n);
  if (order.empty()) return order;
  const std::uint32_t slowest = slowest_of(e, plain), found = slowest_of(e, order);
  if (slowest > found || (slowest == found && alpha_of(e, plain) <= alpha_of(e, order))) return plain;
  std::rotate(order.begin(), std::find(order.begin(), order.end(), 0), order.end());
  return order;
}

bool share_host(const PlanRequest& request, int a, int b) {
  if ((request.reach->rails(a, b) & (Reachability::kLocalBit | Reachability::kHostBit)) != 0) return true;
  return !request.host_of.empty() &&
         request.host_of[static_cast<std::size_t>(a)] == request.host_of[static_cast<std::size_t>(b)];
}

// The ranks of each host, ascending.
std::vector<std::vector<int>> hosts_of(const PlanRequest& request) {
  std::vector<std::vector<int>> hosts;
  for (int r = 0; r < request.ranks; ++r) {
    const auto same = [&](const std::vector<int>& host) { return share_host(request, host.front(), r); };
    const auto host = std::find_if(hosts.begin(), hosts.end(), same);
    (host != hosts.end() ? *host : hosts.emplace_back()).push_back(r);
  }
  return hosts;
}

// An edge of a ring, or what can be said of a whole one: its slowest edge, and the sum of its message times.
struct Quality {
  double rate = 0;   // bytes a second; 0: no such edge
  double alpha = 0;  // seconds
};

double rate_of_rails(const PlanRequest& request, int rank, std::uint32_t rails) {
  double rate = 0;
  for (std::uint32_t left = rails; left != 0; left &= left - 1) {
    const auto rail = static_cast<std::size_t>(std::countr_zero(left));
    rate += request.rail_rates.empty() ? 1 : request.rail_rates[static_cast<std::size_t>(rank) * kRailsMax + rail];
  }
  return rate;
}

// From the last rank of host `a` to the first one of `b`.
Quality edge_between(const PlanRequest& request, const std::vector<int>& a, const std::vector<int>& b,
                     const LinkCosts* links) {
  const int from = a.back(), to = b.front();
  const std::uint32_t out = request.reach->rails(from, to);
  if (links == nullptr || out == 0) {
    return {std::min(rate_of_rails(request, from, out), rate_of_rails(request, to, request.reach->rails(to, from))), 0};
  }
  Quality edge{0, 1e9};
  for (std::uint32_t left = out; left != 0; left &= left - 1) {
    const LinkCost link = links->of(a.front(), b.front(), std::countr_zero(left));
    edge.rate += link.beta > 0 ? 1 / link.beta : 1e18;
    edge.alpha = std::min(edge.alpha, link.alpha);
  }
  return edge;
}

// Of all edges between hosts: [from * hosts + to].
std::vector<Quality> all_edges(const PlanRequest& request, const std::vector<std::vector<int>>& hosts,
                               const LinkCosts* links) {
  std::vector<Quality> edges;
  for (const std::vector<int>& a : hosts) {
    for (const std::vector<int>& b : hosts) edges.push_back(&a == &b ? Quality{} : edge_between(request, a, b, links));
  }
  return edges;
}

// Rates within an eighth of the power of two below them are alike to a search over what was measured.
double coarse(double rate) {
  if (rate < 16) return rate;
  const auto whole = static_cast<std::uint64_t>(std::min(rate, 1e18));
  const int low = std::max(0, static_cast<int>(std::bit_width(whole)) - 4);
  return static_cast<double>(whole >> low << low);
}

std::vector<std::uint16_t> search_order(const std::vector<std::vector<int>>& hosts, const std::vector<Quality>& edges) {
  RingEdges nodes{.n = static_cast<int>(hosts.size()), .level = {}, .alpha = {}};
  std::vector<double> steps;
  for (const Quality& edge : edges) steps.push_back(edge.rate);
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  const bool none = steps.front() == 0;
  for (const Quality& edge : edges) {
    const auto level = std::lower_bound(steps.begin(), steps.end(), edge.rate) - steps.begin();
    nodes.level.push_back(static_cast<std::uint32_t>(level) + (none ? 0 : 1));
    nodes.alpha.push_back(std::min(kAlphaMax, static_cast<std::int64_t>(std::min(edge.alpha, 1e3) * 1e9)));
  }
  std::vector<std::uint16_t> order;
  for (const std::uint16_t host : best_cycle(nodes)) {
    for (const int r : hosts[host]) order.push_back(static_cast<std::uint16_t>(r));
  }
  return order;
}

// `order` empty: by the order of ranks.
Quality quality_of(const PlanRequest& request, const std::vector<std::vector<int>>& hosts,
                   const std::vector<Quality>& edges, std::span<const std::uint16_t> order) {
  std::vector<std::size_t> host(static_cast<std::size_t>(request.ranks));
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    for (const int r : hosts[h]) host[static_cast<std::size_t>(r)] = h;
  }
  Quality all{1e300, 0};
  for (std::size_t i = 0; i < host.size(); ++i) {
    const std::size_t next = (i + 1) % host.size();
    const std::size_t a = host[order.empty() ? i : order[i]], b = host[order.empty() ? next : order[next]];
    if (a == b) continue;
    all.rate = std::min(all.rate, edges[a * hosts.size() + b].rate);
    all.alpha += edges[a * hosts.size() + b].alpha;
  }
  return all;
}

// No order can be better than each host's best edge out and its best one in.
Quality bound_of(const std::vector<Quality>& edges, std::size_t hosts) {
  Quality bound{1e300, 0};
  for (std::size_t a = 0; a < hosts; ++a) {
    double out = 0, in = 0, alpha = 1e300;
    for (std::size_t b = 0; b < hosts; ++b) {
      if (a == b) continue;
      out = std::max(out, edges[a * hosts + b].rate);
      in = std::max(in, edges[b * hosts + a].rate);
      if (edges[a * hosts + b].rate > 0) alpha = std::min(alpha, edges[a * hosts + b].alpha);
    }
    bound.rate = std::min({bound.rate, out, in});
    bound.alpha += alpha;
  }
  return bound;
}

bool better_by(double factor, const Quality& a, const Quality& b) {
  constexpr double kAlike = 0.9;
  return a.rate > 0 && (a.rate >= factor * b.rate || (a.rate >= kAlike * b.rate && a.alpha * factor <= b.alpha));
}

}  // namespace

std::vector<std::uint16_t> search_cycle(const RingEdges& edges) {
  const int n = edges.n;
  if (n < 3) return slowest_of(edges, in_rank_order(n)) == 0 && n > 1 ? Order() : in_rank_order(n);
  // Work that a group of 64 does in some ten milliseconds.
  const int tries = std::max(8, 1200 / n);
  Search search(edges);
  if (!search.reach(1, 4 * tries)) return {};
  std::vector<std::uint32_t> levels;
  const std::uint32_t bound = level_bound(edges);
  Order best = search.order();
  for (const std::uint32_t level : edges.level) {
    if (level > slowest_of(edges, best) && level <= bound) levels.push_back(level);
  }
  std::sort(levels.begin(), levels.end());
  levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
  for (auto low = levels.begin(), high = levels.end(); low != high;) {
    const auto middle = low + (high - low) / 2;
    if (search.reach(*middle, tries)) {
      best = search.order();
      low = std::upper_bound(middle, high, slowest_of(edges, best));
    } else {
      high = middle;
    }
  }
  Search last(edges);
  last.start(best, slowest_of(edges, best));
  last.polish(tries);
  return preferred(edges, last.order());
}

std::vector<std::uint16_t> best_cycle(const RingEdges& edges) {
  if (edges.n < 3 || edges.n > kExactNodesMax) return search_cycle(edges);
  return preferred(edges, exact_cycle(edges));
}

std::vector<std::uint16_t> best_ring_order(const PlanRequest& request, const LinkCosts* links) {
  const std::vector<std::vector<int>> hosts = hosts_of(request);
  return search_order(hosts, all_edges(request, hosts, links));
}

std::vector<std::uint16_t> order_by_links(const PlanRequest& request, const LinkCosts& links,
                                          std::span<const std::uint16_t> present) {
  constexpr double kClearly = 1.25, kStill = 1.1;
  const std::vector<std::vector<int>> hosts = hosts_of(request);
  if (hosts.size() < 3) return {};
  std::vector<Quality> edges = all_edges(request, hosts, &links);
  const Quality plain = quality_of(request, hosts, edges, request.ring_order);
  Quality now = plain;
  Order kept;
  if (!present.empty() && better_by(kStill, quality_of(request, hosts, edges, present), plain)) {
    kept.assign(present.begin(), present.end());
    now = quality_of(request, hosts, edges, present);
  }
  if (!better_by(kClearly, bound_of(edges, hosts.size()), now)) return kept;
  std::vector<Quality> alike = edges;
  for (Quality& edge : alike) edge.rate = coarse(edge.rate);
  Order found = search_order(hosts, alike);
  if (found.empty() || !better_by(kClearly, quality_of(request, hosts, edges, found), now)) return kept;
  return found;
}

bool needs_order(const PlanRequest& request) {
  std::size_t crossings = 0;
  for (int a = 0; a < request.ranks; ++a) {
    const int b = (a + 1) % request.ranks;
    if (a == b) continue;
    if (!request.reach->meets(a, b)) return true;
    crossings += share_host(request, a, b) ? 0 : 1;
  }
  const std::size_t hosts = hosts_of(request).size();
  return crossings > (hosts > 1 ? hosts : 0);
}

}  // namespace canarynet

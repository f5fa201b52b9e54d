// How it works: a step waits only for the same leaf of other steps, so each leaf is proven alone. Each leaf has an
// event graph with two nodes for each step that covers it, *begin* (its dependencies are done and, for a receive, the
// were sent) and *done*. The graph gives
//  - the order of events (a cycle is a deadlock). Here an ack counts as late as it can come, when the receiver has used
//    the bytes: a plan that passes needs no parking of early arrivals;
//  - the steps that are certainly done before another begins (one bitset per step). Here an ack says nothing about the
//    receiver's steps, and receiving says nothing about the sender's ack: only a dependency on the kSend itself does;
//  - the values: the check walks the events in order and notes which ranks have contributed to each buffer's content.
#include "collectives/checker.h"

#include <algorithm>
#include <array>
#include <bit>
#include <tuple>
#include <utility>

namespace canarynet {
namespace {

constexpr int kRanksMax = 64;
constexpr std::uint32_t kNone = 0xffffffff;

// The content of one rank's buffer in one leaf.
struct Value {
  std::uint64_t contributions = 0;  // bit r: rank r's elements are in it, once
  bool written = false;
  bool finished = false;
};

struct Site {
  int rank = 0;
  std::uint32_t step = 0;
};

class Proof {
 public:
  Proof(const Schedule& schedule, const std::vector<Plan>& plans, const Reachability& reach)
      : schedule_(schedule),
        plans_(plans),
        reach_(reach),
        request_(schedule.request),
        n_(request_.ranks),
        leaf_count_(static_cast<std::uint32_t>(schedule.leaves.empty() ? 0 : schedule.leaves.size() - 1)) {}

  Status run() {
    if (Status s = check_frame(); !s.ok()) return s;
    for (int r = 0; r < n_; ++r) {
      for (std::uint32_t i = 0; i < plans_[r].steps.size(); ++i) {
        if (Status s = check_step({r, i}); !s.ok()) return s;
      }
    }
    if (Status s = match_messages(); !s.ok()) return s;
    sort_by_leaf();
    for (std::uint32_t leaf = 0; leaf < leaf_count_; ++leaf) {
      if (schedule_.leaves[leaf] == schedule_.leaves[leaf + 1]) continue;  // no elements, no pieces, no messages
      if (Status s = check_leaf(leaf); !s.ok()) return s;
    }
    return {};
  }

 private:
  const Step& at(Site s) const { return plans_[s.rank].steps[s.step]; }
  static bool covers(const Step& step, std::uint32_t leaf) { return step.leaf_begin <= leaf && leaf < step.leaf_end; }
  static bool is_local(const Step& s) { return s.kind == StepKind::kCopy || s.kind == StepKind::kReduce; }
  static bool receives(const Step& s) { return s.kind == StepKind::kReceive || s.kind == StepKind::kReceiveReduce; }
  static bool reads(const Step& s) { return s.kind != StepKind::kReceive; }
  static bool writes(const Step& s) { return s.kind != StepKind::kSend; }

  Status broken(const std::string& text) const {
    return {CANARY_INTERNAL, std::string(name_of(schedule_.planner)) + " " + std::string(name_of(request_.collective)) +
                                 " of " + std::to_string(n_) + " ranks: " + text};
  }
  static std::string text_of(Site s) { return "rank " + std::to_string(s.rank) + " step " + std::to_string(s.step); }
  Status broken(Site s, const std::string& text) const { return broken(text_of(s) + " " + text); }
  Status broken(Site s, std::uint32_t leaf, const std::string& text) const {
    return broken(text_of(s) + " leaf " + std::to_string(leaf) + " " + text);
  }

  // Checks the group and its leaves.
  Status check_frame() {
    if (n_ < 1 || n_ > kRanksMax) return {CANARY_INVALID_ARGUMENT, "the checker takes 1 to 64 ranks"};
    if (static_cast<int>(plans_.size()) != n_ || reach_.ranks() != n_)
      return broken("not one plan and one row of the matrix per rank");
    const auto& leaves = schedule_.leaves;
    if (leaves.size() < 2 || leaves.front() != 0 || leaves.back() != request_.total() ||
        !std::is_sorted(leaves.begin(), leaves.end())) {
      return broken("the leaves do not cut [0, total) in ascending order");
    }
    if (!in_blocks(request_.collective)) return {};
    if (!request_.counts.empty() && is_pairwise(request_.collective))
      return broken("counts of one rank; the proof takes blocks of `count`");
    for (std::uint32_t leaf = 0; leaf < leaf_count_; ++leaf) {
      const std::uint64_t begin = leaves[leaf], end = leaves[leaf + 1];
      if (begin != end && block_of(begin) != block_of(end - 1)) {
        return broken("leaf " + std::to_string(leaf) + " crosses the border of two ranks' blocks");
      }
    }
    return {};
  }

  std::uint64_t block_of(std::uint64_t element) const {
    return is_pairwise(request_.collective) ? element / request_.count
                                            : static_cast<std::uint64_t>(request_.owner_of(element));
  }

  // Checks a step by itself.
  Status check_step(Site site) const {
    const Plan& plan = plans_[site.rank];
    const Step& step = at(site);
    if (step.leaf_begin >= step.leaf_end || step.leaf_end > leaf_count_)
      return broken(site, "covers no leaves of the schedule");
    if (writes(step) && step.dst == Buffer::kInput) return broken(site, "writes the caller's input");
    if (step.finish && (step.kind == StepKind::kSend || step.kind == StepKind::kReceive))
      return broken(site, "has finish but reduces nothing");
    if (step.finish && !reduces(request_.collective))
      return broken(site, "has finish in a collective without reduction");
    if (step.deps_begin > step.deps_end || step.deps_end > plan.deps.size())
      return broken(site, "has dependencies outside of the list");
    for (const std::uint32_t dep : plan.deps_of(step)) {
      if (dep >= site.step) return broken(site, "depends on step " + std::to_string(dep) + ", which is not before it");
      const Step& other = plan.steps[dep];
      if (other.leaf_end <= step.leaf_begin || step.leaf_end <= other.leaf_begin) {
        return broken(site, "depends on step " + std::to_string(dep) + ", which shares no leaf with it");
      }
    }
    if (is_local(step)) return {};
    if (step.peer < 0 || step.peer >= n_ || step.peer == site.rank) return broken(site, "has no peer");
    if (!reach_.meets(site.rank, step.peer))
      return broken(site, "needs rank " + std::to_string(step.peer) + ", but they share no rail");
    if (step.rail >= 0 && (step.rail > kRailsMax || (reach_.rails(site.rank, step.peer) >> step.rail & 1u) == 0)) {
      return broken(site, "prefers rail " + std::to_string(step.rail) + ", which does not reach rank " +
                              std::to_string(step.peer));
    }
    return {};
  }

  // Fills mate_ with the other end of each message.
  Status match_messages() {
    mate_.resize(n_);
    for (int r = 0; r < n_; ++r) mate_[r].assign(plans_[r].steps.size(), kNone);
    using Key = std::tuple<int, int, std::uint16_t>;  // source, destination, tag
    std::vector<std::pair<Key, Site>> sends, arrivals;
    for (int r = 0; r < n_; ++r) {
      for (std::uint32_t i = 0; i < plans_[r].steps.size(); ++i) {
        const Step& step = plans_[r].steps[i];
        if (step.kind == StepKind::kSend) sends.push_back({{r, step.peer, step.tag}, {r, i}});
        if (receives(step)) arrivals.push_back({{step.peer, r, step.tag}, {r, i}});
      }
    }
    const auto by_key = [](const auto& a, const auto& b) { return a.first < b.first; };
    const auto same_key = [](const auto& a, const auto& b) { return a.first == b.first; };
    for (auto* list : {&sends, &arrivals}) {
      std::stable_sort(list->begin(), list->end(), by_key);
      const auto twin = std::adjacent_find(list->begin(), list->end(), same_key);
      if (twin != list->end())
        return broken((twin + 1)->second, "uses tag " + std::to_string(std::get<2>(twin->first)) + " a second time");
    }
    for (std::size_t i = 0; i < std::max(sends.size(), arrivals.size()); ++i) {
      if (i == arrivals.size() || (i < sends.size() && sends[i].first < arrivals[i].first))
        return broken(sends[i].second, "sends what nobody receives");
      if (i == sends.size() || arrivals[i].first < sends[i].first)
        return broken(arrivals[i].second, "receives what nobody sends");
      const Site from = sends[i].second, to = arrivals[i].second;
      if (at(from).leaf_begin != at(to).leaf_begin || at(from).leaf_end != at(to).leaf_end) {
        return broken(to, "receives other leaves than " + text_of(from) + " sends");
      }
      mate_[from.rank][from.step] = to.step;
      mate_[to.rank][to.step] = from.step;
    }
    return {};
  }

  void sort_by_leaf() {
    sites_.resize(leaf_count_);
    local_.resize(n_);
    for (int r = 0; r < n_; ++r) {
      local_[r].assign(plans_[r].steps.size(), kNone);
      for (std::uint32_t i = 0; i < plans_[r].steps.size(); ++i) {
        const Step& step = plans_[r].steps[i];
        for (std::uint32_t leaf = step.leaf_begin; leaf < step.leaf_end; ++leaf) sites_[leaf].push_back({r, i});
      }
    }
  }

  Status check_leaf(std::uint32_t leaf) {
    const std::vector<Site>& sites = sites_[leaf];
    for (std::uint32_t i = 0; i < sites.size(); ++i) local_[sites[i].rank][sites[i].step] = i;
    if (Status s = order_events(leaf); !s.ok()) return s;
    find_done_before(leaf);
    const bool barrier = request_.collective == Collective::kBarrier;
    for (const bool in_place : {false, true}) {
      if (in_place && (barrier || is_pairwise(request_.collective))) break;  // one memory anyway, or not offered
      memory_ = barrier    ? std::array<int, 3>{2, 2, 2}
                : in_place ? std::array<int, 3>{1, 1, 2}
                           : std::array<int, 3>{0, 1, 2};
      const char* call = in_place ? " (in place)" : "";
      if (Status s = check_conflicts(leaf, call); !s.ok()) return s;
      if (Status s = check_values(leaf, call); !s.ok()) return s;
    }
    return {};
  }

  // Indices within the leaf of step i's dependencies that cover it.
  template <typename Visit>
  void each_dep(std::uint32_t leaf, Site site, Visit visit) const {
    const Plan& plan = plans_[site.rank];
    for (const std::uint32_t dep : plan.deps_of(at(site))) {
      if (covers(plan.steps[dep], leaf)) visit(local_[site.rank][dep]);
    }
  }
  std::uint32_t mate_of(Site site) const { return local_[at(site).peer][mate_[site.rank][site.step]]; }

  // Node 2i: step i begins; 2i+1: it is done. Fills events_ with a topological order.
  Status order_events(std::uint32_t leaf) {
    const std::vector<Site>& sites = sites_[leaf];
    const auto count = static_cast<std::uint32_t>(sites.size());
    edges_.clear();
    for (std::uint32_t i = 0; i < count; ++i) {
      edges_.push_back({2 * i, 2 * i + 1});
      each_dep(leaf, sites[i], [&](std::uint32_t dep) { edges_.push_back({2 * dep + 1, 2 * i}); });
      if (!receives(at(sites[i]))) continue;
      const std::uint32_t send = mate_of(sites[i]);
      edges_.push_back({2 * send, 2 * i});
      edges_.push_back({2 * i + 1, 2 * send + 1});
    }
    first_.assign(2 * count + 1, 0);
    waiting_.assign(2 * count, 0);
    for (const auto& [from, to] : edges_) {
      ++first_[from + 1];
      ++waiting_[to];
    }
    for (std::uint32_t v = 0; v < 2 * count; ++v) first_[v + 1] += first_[v];
    successors_.resize(edges_.size());
    cursor_.assign(first_.begin(), first_.end() - 1);
    for (const auto& [from, to] : edges_) successors_[cursor_[from]++] = to;
    events_.clear();
    for (std::uint32_t v = 0; v < 2 * count; ++v) {
      if (waiting_[v] == 0) events_.push_back(v);
    }
    for (std::size_t k = 0; k < events_.size(); ++k) {
      const std::uint32_t v = events_[k];
      for (std::uint32_t e = first_[v]; e < first_[v + 1]; ++e) {
        if (--waiting_[successors_[e]] == 0) events_.push_back(successors_[e]);
      }
    }
    if (events_.size() == 2 * count) return {};
    std::uint32_t stuck = 0;
    while (waiting_[stuck] == 0) ++stuck;
    return broken(sites[stuck / 2], leaf, "is never done: it waits for itself around a cycle (deadlock)");
  }

  // Row i of done_: the steps that are done before step i begins, whatever the timing.
  void find_done_before(std::uint32_t leaf) {
    const std::vector<Site>& sites = sites_[leaf];
    words_ = (sites.size() + 63) / 64;
    done_.assign(sites.size() * words_, 0);
    for (const std::uint32_t event : events_) {
      if (event % 2 != 0) continue;
      const std::uint32_t i = event / 2;
      std::uint64_t* row = &done_[i * words_];
      const auto join = [&](std::uint32_t other) {
        for (std::size_t w = 0; w < words_; ++w) row[w] |= done_[other * words_ + w];
      };
      each_dep(leaf, sites[i], [&](std::uint32_t dep) {
        join(dep);
        row[dep / 64] |= 1ull << (dep % 64);
      });
      if (receives(at(sites[i]))) join(mate_of(sites[i]));
    }
  }
  bool done_before(std::uint32_t earlier, std::uint32_t later) const {
    return (done_[later * words_ + earlier / 64] >> (earlier % 64) & 1u) != 0;
  }

  int memory_of(Buffer b) const { return memory_[static_cast<std::size_t>(b)]; }
  // A copy onto itself moves nothing; with `finish` set it divides.
  bool touches_nothing(const Step& s) const {
    return s.kind == StepKind::kCopy && memory_of(s.src) == memory_of(s.dst) && !s.finish;
  }

  Status check_conflicts(std::uint32_t leaf, const char* call) const {
    const std::vector<Site>& sites = sites_[leaf];
    for (std::uint32_t i = 0; i < sites.size(); ++i) {
      const Step& a = at(sites[i]);
      if (touches_nothing(a)) continue;
      for (std::uint32_t k = i + 1; k < sites.size() && sites[k].rank == sites[i].rank; ++k) {
        const Step& b = at(sites[k]);
        if (touches_nothing(b)) continue;
        const bool both = writes(a) && writes(b) && memory_of(a.dst) == memory_of(b.dst);
        const bool one = (writes(a) && reads(b) && memory_of(a.dst) == memory_of(b.src)) ||
                         (reads(a) && writes(b) && memory_of(a.src) == memory_of(b.dst));
        if ((!both && !one) || done_before(i, k) || done_before(k, i)) continue;
        return broken(sites[k], leaf,
                      (both ? "writes what step " : "and step ") + std::to_string(sites[i].step) +
                          (both ? " writes too, in no order" : " read and write one range in no order") + call);
      }
    }
    return {};
  }

  int owner_of(std::uint32_t leaf) const { return request_.owner_of(schedule_.leaves[leaf]); }

  // Whether the caller's memory (at a barrier, the operation's) holds rank r's contribution at the start.
  bool has_input(int rank, std::uint32_t leaf) const {
    const Collective c = request_.collective;
    if (!reads_input(c, rank == request_.root)) return false;
    return !in_blocks(c) || (input_in_blocks(c) && !is_pairwise(c)) || rank == owner_of(leaf);
  }
  bool has_output(int rank, std::uint32_t leaf) const {
    const Collective c = request_.collective;
    if (!writes_output(c, rank == request_.root)) return false;
    if (is_pairwise(c)) return rank == request_.target_of(schedule_.leaves[leaf]);
    return !in_blocks(c) || output_in_blocks(c) || rank == owner_of(leaf);
  }
  // The ranks whose contributions make up a result.
  std::uint64_t wanted(std::uint32_t leaf, std::uint64_t everybody) const {
    switch (request_.collective) {
      case Collective::kBroadcast:
      case Collective::kScatter:
        return 1ull << request_.root;
      case Collective::kAllGather:
      case Collective::kGather:
      case Collective::kAllGatherV:
      case Collective::kAllToAll:
      case Collective::kAllToAllV:
        return 1ull << owner_of(leaf);
      default:
        return everybody;
    }
  }

  Status check_values(std::uint32_t leaf, const char* call) {
    const std::vector<Site>& sites = sites_[leaf];
    const std::uint64_t everybody = n_ == 64 ? ~0ull : (1ull << n_) - 1;
    values_.assign(static_cast<std::size_t>(n_) * 3, {});
    message_.assign(sites.size(), {});
    const auto value = [&](int rank, Buffer b) -> Value& {
      return values_[static_cast<std::size_t>(rank * 3 + memory_of(b))];
    };
    for (int r = 0; r < n_; ++r) {
      if (has_input(r, leaf)) value(r, Buffer::kInput) = {1ull << r, true, false};
    }
    for (const std::uint32_t event : events_) {
      const std::uint32_t i = event / 2;
      const Site site = sites[i];
      const Step& step = at(site);
      const bool begins = event % 2 == 0;
      if (begins != (step.kind == StepKind::kSend))
        continue;  // a send takes its bytes first; other steps write theirs last
      if (touches_nothing(step)) continue;
      for (const Buffer b : {step.src, step.kind == StepKind::kReduce ? step.dst : step.src}) {
        if (reads(step) && !value(site.rank, b).written)
          return broken(site, leaf, "reads " + std::string(name_of(b)) + " before it is written" + call);
      }
      if (step.kind == StepKind::kSend) {
        message_[i] = value(site.rank, step.src);
        continue;
      }
      if (step.dst == Buffer::kOutput && !has_output(site.rank, leaf))
        return broken(site, leaf, "writes outside of the output");
      Value result = is_local(step) ? value(site.rank, step.src) : message_[mate_of(site)];
      if (step.kind == StepKind::kReceiveReduce || step.kind == StepKind::kReduce) {
        const Value& own = value(site.rank, step.kind == StepKind::kReduce ? step.dst : step.src);
        if (const std::uint64_t twice = own.contributions & result.contributions; twice != 0) {
          return broken(
              site, leaf,
              "adds the contribution of rank " + std::to_string(std::countr_zero(twice)) + " a second time" + call);
        }
        if (own.finished || result.finished) return broken(site, leaf, std::string("adds to a finished sum") + call);
        result.contributions |= own.contributions;
      }
      if (step.finish) {
        if (result.finished) return broken(site, leaf, std::string("finishes a finished sum") + call);
        if (result.contributions != everybody) {
          const int missing = std::countr_zero(everybody & ~result.contributions);
          return broken(site, leaf,
                        "finishes a sum without the contribution of rank " + std::to_string(missing) + call);
        }
        result.finished = true;
      }
      value(site.rank, step.dst) = result;
    }
    return check_result(leaf, everybody, call);
  }

  Status check_result(std::uint32_t leaf, std::uint64_t everybody, const char* call) const {
    for (int r = 0; r < n_; ++r) {
      if (!has_output(r, leaf)) continue;
      const Value& end = values_[static_cast<std::size_t>(r * 3 + memory_of(Buffer::kOutput))];
      const std::string where = "rank " + std::to_string(r) + " leaf " + std::to_string(leaf) + " ends ";
      const std::uint64_t wanted = this->wanted(leaf, everybody);
      if (!end.written) return broken(where + "unwritten" + call);
      if (const std::uint64_t missing = wanted & ~end.contributions; missing != 0) {
        return broken(where + "without the contribution of rank " + std::to_string(std::countr_zero(missing)) + call);
      }
      if (const std::uint64_t extra = end.contributions & ~wanted; extra != 0) {
        return broken(where + "with the contribution of rank " + std::to_string(std::countr_zero(extra)) + call);
      }
      if (reduces(request_.collective) && !end.finished)
        return broken(where + "with a sum that no step finished" + call);
    }
    return {};
  }

  const Schedule& schedule_;
  const std::vector<Plan>& plans_;
  const Reachability& reach_;
  const PlanRequest& request_;
  const int n_;
  const std::uint32_t leaf_count_;

  std::vector<std::vector<std::uint32_t>> mate_;   // [rank][step]: step at the peer
  std::vector<std::vector<Site>> sites_;           // [leaf]: the steps that cover it, by rank and step
  std::vector<std::vector<std::uint32_t>> local_;  // [rank][step]: index in sites_ of the leaf being proven

  // These belong to the leaf being proven; they are members to reuse their memory.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_;
  std::vector<std::uint32_t> first_, waiting_, successors_, cursor_, events_;
  std::vector<std::uint64_t> done_;
  std::size_t words_ = 0;
  std::array<int, 3> memory_{};  // [Buffer]: which memory it is
  std::vector<Value> values_;    // [rank][memory]
  std::vector<Value> message_;   // [index in sites_]: what a send carries
};

}  // namespace

Status check_schedule(const Schedule& schedule, const std::vector<Plan>& plans, const Reachability& reach) {
  return Proof(schedule, plans, reach).run();
}

Status check_planner(PlannerId id, const PlanRequest& request) {
  const Planner& made_by = planner(id);
  if (Status status = made_by.check(request); !status.ok()) return status;
  Schedule schedule{.planner = id, .request = request, .leaves = {}};
  schedule.request.reach = nullptr;
  schedule.request.host_of = {};
  schedule.request.rail_rates = {};
  schedule.request.ring_order = {};
  made_by.leaves(request, &schedule.leaves);
  std::vector<Plan> plans(static_cast<std::size_t>(request.ranks));
  for (int r = 0; r < request.ranks; ++r) made_by.plan(request, r, &plans[r]);
  return check_schedule(schedule, plans, *request.reach);
}

}  // namespace canarynet

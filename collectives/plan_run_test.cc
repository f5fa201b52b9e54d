// Runs plans on numbers, one step at a time in random order, with acks that may come late: independent of the checker's
// reasoning.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <map>
#include <tuple>

#include "base/random.h"
#include "collectives/schedule.h"

namespace canarynet {
namespace {

// One element per leaf. A contribution is a digit in base 4, so that a double or missing one shows; so does a wrong
// order of writes.
class Run {
 public:
  Run(PlannerId id, const PlanRequest& request, bool in_place, std::uint64_t seed)
      : request_(request),
        in_place_(in_place),
        random_(seed),
        plans_(request.ranks),
        state_(request.ranks),
        memory_(request.ranks) {
    std::vector<std::uint64_t> leaves;
    planner(id).leaves(request, &leaves);
    leaves_ = leaves.size() - 1;
    leaf_of_ = leaves;
    for (int r = 0; r < request.ranks; ++r) {
      planner(id).plan(request, r, &plans_[r]);
      state_[r].assign(plans_[r].steps.size(), State::kWaiting);
      for (int b = 0; b < 3; ++b) memory_[r][b].assign(leaves_, kGarbage);
      for (std::size_t leaf = 0; leaf < leaves_; ++leaf) {
        if (has_input(r, leaf)) at(r, Buffer::kInput, leaf) = input(r);
      }
    }
  }

  // Replaces the sum by one whose result depends on the order of additions, as rounding does, but not on the order of
  // two operands.
  void add_in_order_only() { rounds_ = true; }
  // Whether all ranks' outputs are one and the same.
  bool alike() {
    for (int r = 1; r < request_.ranks; ++r) {
      for (std::size_t leaf = 0; leaf < leaves_; ++leaf) {
        if (at(r, Buffer::kOutput, leaf) != at(0, Buffer::kOutput, leaf)) return false;
      }
    }
    return true;
  }

  // Returns false if nothing can move any more before everything is done.
  bool finish() {
    std::size_t left = 0;
    std::vector<std::vector<std::uint32_t>> ready(static_cast<std::size_t>(request_.ranks));
    const auto look_at = [&](int rank) {
      ready[rank].clear();
      for (std::uint32_t i = 0; i < state_[rank].size(); ++i) {
        if (state_[rank][i] != State::kDone && can_move(rank, i)) ready[rank].push_back(i);
      }
    };
    for (int r = 0; r < request_.ranks; ++r) {
      left += state_[r].size();
      look_at(r);
    }
    while (left != 0) {
      std::size_t movable = 0;
      for (const auto& of_rank : ready) movable += of_rank.size();
      if (movable == 0) return false;
      std::size_t chosen = random_.below(movable);
      int r = 0;
      for (; chosen >= ready[r].size(); ++r) chosen -= ready[r].size();
      const std::uint32_t i = ready[r][chosen];
      move(r, i);
      left -= state_[r][i] == State::kDone;
      // A step concerns its own rank and the one at the other end, nobody else.
      look_at(r);
      if (const int peer = plans_[r].steps[i].peer; peer >= 0 && peer != r) look_at(peer);
    }
    return true;
  }

  bool right() {
    if (!sources_kept_) return false;
    for (int r = 0; r < request_.ranks; ++r) {
      for (std::size_t leaf = 0; leaf < leaves_; ++leaf) {
        const Collective c = request_.collective;
        if ((c == Collective::kReduceScatter || c == Collective::kScatter) && block_of(leaf) != r) continue;
        if (is_pairwise(c) && block_of(leaf) % request_.ranks != r) continue;
        if ((c == Collective::kReduce || c == Collective::kGather) && request_.root != r) continue;
        std::uint64_t wanted = 0;
        if (c == Collective::kAllGather || c == Collective::kGather || c == Collective::kAllGatherV)
          wanted = input(block_of(leaf));
        if (is_pairwise(c)) wanted = input(block_of(leaf) / request_.ranks);
        if (c == Collective::kBroadcast || c == Collective::kScatter) wanted = input(request_.root);
        if (wanted == 0) {
          for (int q = 0; q < request_.ranks; ++q) wanted += input(q);
        }
        if (at(r, request_.collective == Collective::kBarrier ? Buffer::kScratch : Buffer::kOutput, leaf) != wanted)
          return false;
      }
    }
    return true;
  }

 private:
  enum class State { kWaiting, kSent, kDone };  // kSent: on its way, not acked
  static constexpr std::uint64_t kGarbage = 0xdead'dead'dead'dead;

  static std::uint64_t input(int rank) { return 1ull << (2 * rank); }
  int block_of(std::size_t leaf) const { return static_cast<int>(leaf_of_[leaf] / request_.count); }
  bool has_input(int r, std::size_t leaf) const {
    const Collective c = request_.collective;
    if (c == Collective::kBroadcast || c == Collective::kScatter) return r == request_.root;
    if (is_pairwise(c)) return block_of(leaf) / request_.ranks == r;
    return (c != Collective::kAllGather && c != Collective::kGather && c != Collective::kAllGatherV) ||
           block_of(leaf) == r;
  }
  std::uint64_t& at(int r, Buffer b, std::size_t leaf) {
    if (request_.collective == Collective::kBarrier) b = Buffer::kScratch;
    if (in_place_ && b == Buffer::kInput) b = Buffer::kOutput;
    return memory_[r][static_cast<std::size_t>(b)][leaf];
  }

  bool can_move(int r, std::uint32_t i) const {
    const Step& step = plans_[r].steps[i];
    if (state_[r][i] == State::kSent) return flying_.at({r, step.peer, step.tag}).taken;  // the ack
    for (const std::uint32_t dep : plans_[r].deps_of(step)) {
      if (state_[r][dep] != State::kDone) return false;
    }
    if (step.kind == StepKind::kSend || step.peer < 0) return true;
    const auto message = flying_.find({step.peer, r, step.tag});
    return message != flying_.end();
  }

  void move(int r, std::uint32_t i) {
    const Step& step = plans_[r].steps[i];
    State& state = state_[r][i];
    if (state == State::kSent) {
      // Until the ack the piece may be resent, so the same bytes must still be there.
      const Message& message = flying_.at({r, step.peer, step.tag});
      for (std::size_t leaf = step.leaf_begin; leaf < step.leaf_end; ++leaf) {
        sources_kept_ = sources_kept_ && at(r, step.src, leaf) == message.bytes[leaf - step.leaf_begin];
      }
      state = State::kDone;
      return;
    }
    if (step.kind == StepKind::kSend) {
      Message& message = flying_[{r, step.peer, step.tag}];
      for (std::size_t leaf = step.leaf_begin; leaf < step.leaf_end; ++leaf)
        message.bytes.push_back(at(r, step.src, leaf));
      state = State::kSent;
      return;
    }
    Message* message = step.peer < 0 ? nullptr : &flying_.at({step.peer, r, step.tag});
    for (std::size_t leaf = step.leaf_begin; leaf < step.leaf_end; ++leaf) {
      const std::uint64_t bytes = message == nullptr ? at(r, step.src, leaf) : message->bytes[leaf - step.leaf_begin];
      const bool adds = step.kind == StepKind::kReceiveReduce || step.kind == StepKind::kReduce;
      const std::uint64_t own = !adds ? 0 : at(r, step.kind == StepKind::kReduce ? step.dst : step.src, leaf);
      at(r, step.dst, leaf) = adds && rounds_ ? (own + bytes) * 0x9e3779b97f4a7c15 : own + bytes;
    }
    if (message != nullptr) message->taken = true;
    state = State::kDone;
  }

  struct Message {
    std::vector<std::uint64_t> bytes;  // per leaf
    bool taken = false;
  };

  const PlanRequest request_;
  const bool in_place_;
  Random random_;
  bool sources_kept_ = true;
  bool rounds_ = false;
  std::size_t leaves_ = 0;
  std::vector<std::uint64_t> leaf_of_;
  std::vector<Plan> plans_;
  std::vector<std::vector<State>> state_;
  std::vector<std::array<std::vector<std::uint64_t>, 3>> memory_;
  std::map<std::tuple<int, int, std::uint16_t>, Message> flying_;
};

void expect_right(PlannerId id, const PlanRequest& request) {
  for (const bool in_place : {false, true}) {
    if (in_place && is_pairwise(request.collective)) break;  // not offered
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      Run run(id, request, in_place, seed);
      const std::string what = std::string(name_of(id)) + " " + std::string(name_of(request.collective)) + " n " +
                               std::to_string(request.ranks) + " seed " + std::to_string(seed);
      ASSERT_TRUE(run.finish()) << what;
      ASSERT_TRUE(run.right()) << what;
    }
  }
}

constexpr Collective kAll[] = {Collective::kAllReduce,  Collective::kReduceScatter, Collective::kAllGather,
                               Collective::kBroadcast,  Collective::kBarrier,       Collective::kReduce,
                               Collective::kGather,     Collective::kScatter,       Collective::kAllToAll,
                               Collective::kAllGatherV, Collective::kAllToAllV};

TEST(PlanRun, AnyOrderOfArrivalsGivesTheSum) {
  const bool quick = std::getenv("CANARY_TEST_QUICK") != nullptr;  // a step costs the square of the plan's length
  for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16}) {
    if (quick && n > 9) break;
    for (const Collective collective : kAll) {
      if (collective == Collective::kAllToAllV && n > 5) continue;  // the plan of all-to-all
      for (const Planner& one : planners()) {
        for (const int root : {0, n - 1}) {
          if (root != 0 && !has_root(collective)) continue;
          const auto reach = Reachability::full(n, 4);
          const PlanRequest request{.collective = collective,
                                    .ranks = n,
                                    .count = 10'000,
                                    .root = root,
                                    .reach = &reach,
                                    .bcube = find_bcube(reach, 4)};
          if (!one.defines(collective, n)) continue;
          ASSERT_TRUE(one.check(request).ok());
          ASSERT_NO_FATAL_FAILURE(expect_right(one.id, request));
        }
      }
    }
  }
}

bool adds_alike(PlannerId id, const PlanRequest& request) {
  Run run(id, request, false, 1);
  run.add_in_order_only();
  return run.finish() && run.alike();
}

TEST(PlanRun, AllRanksAddInTheSameOrder) {
  for (const int n : {2, 3, 4, 5, 8, 9, 16}) {
    const auto reach = Reachability::full(n, 4);
    for (int r = 2; r <= n; ++r) {
      int levels = 0, product = 1;
      for (; product < n; product *= r) ++levels;
      if (product != n) continue;
      for (const Planner& one : planners()) {
        const PlanRequest request{.ranks = n, .count = 10'000, .reach = &reach, .bcube = {r, levels}};
        ASSERT_TRUE(one.check(request).ok());
        EXPECT_TRUE(adds_alike(one.id, request)) << name_of(one.id) << " n " << n << " r " << r;
      }
    }
  }
}

TEST(PlanRun, HierarchicalPlansGiveTheSumWhateverTheHosts) {
  const bool quick = std::getenv("CANARY_TEST_QUICK") != nullptr;
  const std::vector<std::vector<int>> shapes = {{0, 0},
                                                {0, 0, 0, 0},
                                                {0, 0, 1, 1},
                                                {0, 1, 0, 1, 0},
                                                {0, 1, 1, 1, 2},
                                                {2, 2, 1, 1, 0, 0},
                                                {0, 0, 0, 1, 2, 2},
                                                {0, 0, 0, 0, 1, 1, 1, 1},
                                                {0, 1, 2, 3, 0, 1, 2, 3, 0, 1}};
  for (const std::vector<int>& host_of : shapes) {
    const int n = static_cast<int>(host_of.size());
    if (quick && n > 6) break;
    const auto reach = Reachability::full(n, 1);
    for (const Collective collective : kAll) {
      if (!planner(PlannerId::kHierarchical).defines(collective, n)) continue;
      for (const std::uint64_t count : {std::uint64_t{1000}, std::uint64_t{1'000'000}}) {  // straight, around the ring
        const PlanRequest request{
            .collective = collective, .ranks = n, .count = count, .root = n / 2, .reach = &reach, .host_of = host_of};
        ASSERT_NO_FATAL_FAILURE(expect_right(PlannerId::kHierarchical, request));
      }
    }
  }
}

}  // namespace
}  // namespace canarynet

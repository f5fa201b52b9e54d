// The checker must be able to fail: the tests put every kind of fault into a proven plan, and it finds and names each.
#include "collectives/checker.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

constexpr Collective kAll[] = {Collective::kAllReduce,  Collective::kReduceScatter, Collective::kAllGather,
                               Collective::kBroadcast,  Collective::kBarrier,       Collective::kReduce,
                               Collective::kGather,     Collective::kScatter,       Collective::kAllToAll,
                               Collective::kAllGatherV, Collective::kAllToAllV};

// A proven set of plans to spoil.
struct Bench {
  Reachability reach;
  Schedule schedule;
  std::vector<Plan> plans;

  Bench(PlannerId id, Collective collective, int n, BCubeShape shape = {}, int root = 0, int per_host = 1)
      : reach(shape.levels > 0 ? Reachability::bcube(shape.r, shape.levels) : Reachability::full(n, 2)) {
    PlanRequest request{
        .collective = collective, .ranks = n, .count = 100'000, .root = root, .reach = &reach, .bcube = shape};
    schedule.planner = id;
    std::vector<int> host_of;
    for (int r = 0; r < n; ++r) host_of.push_back(r / per_host);
    request.host_of = host_of;
    planner(id).leaves(request, &schedule.leaves);
    for (int r = 0; r < n; ++r) planner(id).plan(request, r, &plans.emplace_back());
    schedule.request = request;
    schedule.request.reach = nullptr;
    schedule.request.host_of = {};
  }
  Bench(const Bench&) = delete;

  Status check() const { return check_schedule(schedule, plans, reach); }
  Step& step(int rank, std::size_t i) { return plans[rank].steps[i]; }
  // The index of the k-th step of a kind.
  std::size_t find(int rank, StepKind kind, int k = 0) const {
    const auto& steps = plans[rank].steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].kind == kind && k-- == 0) return i;
    }
    ADD_FAILURE() << "no such step";
    return 0;
  }
};

void expect_found(const Status& status, const char* words) {
  EXPECT_EQ(status.code(), CANARY_INTERNAL) << status.to_string();
  EXPECT_NE(status.text().find(words), std::string::npos) << status.to_string();
}

struct Setup {
  PlannerId id;
  int n;
  BCubeShape shape;
  int per_host = 1;
};
constexpr Setup kSetups[] = {{PlannerId::kRing, 4, {}},
                             {PlannerId::kMesh, 4, {}},
                             {PlannerId::kBCube, 4, {2, 2}},
                             {PlannerId::kBCube, 9, {3, 2}},
                             {PlannerId::kBCube, 8, {2, 3}},
                             {PlannerId::kBCubeX, 4, {2, 2}},
                             {PlannerId::kBCubeX, 9, {3, 2}},
                             {PlannerId::kHalvingDoubling, 8, {}},
                             {PlannerId::kHalvingDoubling, 7, {}},
                             {PlannerId::kHalvingDoubling, 3, {}},
                             {PlannerId::kMesh, 5, {}},
                             {PlannerId::kTree, 7, {}},
                             {PlannerId::kHierarchical, 6, {}, 2},   // around the ring of hosts
                             {PlannerId::kHierarchical, 5, {}, 3},   // uneven
                             {PlannerId::kHierarchical, 8, {}, 2}};  // straight between hosts

template <typename Visit>
void each_bench(Visit visit) {
  for (const Setup& setup : kSetups) {
    for (const Collective collective : kAll) {
      if (!planner(setup.id).defines(collective, setup.n)) continue;
      Bench bench(setup.id, collective, setup.n, setup.shape, 1, setup.per_host);
      ASSERT_TRUE(bench.check().ok()) << bench.check().to_string();
      visit(bench);
    }
  }
}

// Nothing in a plan is superfluous: each single dependency, taken away, breaks something that the checker sees.
TEST(Checker, FindsEveryDroppedDependency) {
  int dropped = 0;
  each_bench([&](Bench& bench) {
    for (std::size_t r = 0; r < bench.plans.size(); ++r) {
      for (std::size_t i = 0; i < bench.plans[r].steps.size(); ++i) {
        const Step whole = bench.plans[r].steps[i];
        for (std::uint32_t d = whole.deps_begin; d < whole.deps_end; ++d) {
          // Moves the dropped dependency to the end of the step's range and shortens the range.
          auto& deps = bench.plans[r].deps;
          std::swap(deps[d], deps[whole.deps_end - 1]);
          --bench.plans[r].steps[i].deps_end;
          EXPECT_FALSE(bench.check().ok())
              << name_of(bench.schedule.planner) << " " << name_of(bench.schedule.request.collective) << " rank " << r
              << " step " << i << " without " << deps[whole.deps_end - 1] << "\n"
              << to_string(bench.plans[r], static_cast<int>(r));
          bench.plans[r].steps[i] = whole;
          std::swap(deps[d], deps[whole.deps_end - 1]);
          ++dropped;
        }
      }
    }
  });
  EXPECT_GT(dropped, 1000);
}

TEST(Checker, FindsEveryDroppedStepOfOneSide) {
  each_bench([](Bench& bench) {
    for (Plan& plan : bench.plans) {
      for (Step& step : plan.steps) {
        if (step.kind != StepKind::kSend) continue;
        const Step whole = step;
        step.tag = 40'000;
        EXPECT_FALSE(bench.check().ok());
        step = whole;
      }
    }
  });
}

TEST(Checker, FindsEveryMissingAndEverySuperfluousFinish) {
  each_bench([](Bench& bench) {
    for (Plan& plan : bench.plans) {
      for (Step& step : plan.steps) {
        if (step.kind == StepKind::kCopy && !step.finish) continue;  // its own kind of error, tested below
        step.finish = !step.finish;
        EXPECT_FALSE(bench.check().ok()) << to_string(plan, 0);
        step.finish = !step.finish;
      }
    }
  });
}

TEST(Checker, FindsAReceiveInPlaceOfAReduction) {
  each_bench([](Bench& bench) {
    for (Plan& plan : bench.plans) {
      for (Step& step : plan.steps) {
        if (step.kind != StepKind::kReceiveReduce) continue;
        step.kind = StepKind::kReceive;
        EXPECT_FALSE(bench.check().ok());
        step.kind = StepKind::kReceiveReduce;
      }
    }
  });
}

TEST(Checker, FindsASwappedPeer) {
  Bench bench(PlannerId::kMesh, Collective::kAllReduce, 4);
  std::swap(bench.step(0, 0).peer, bench.step(0, 1).peer);
  expect_found(bench.check(), "receives other leaves than rank 0 step");
}

TEST(Checker, FindsTheWrongLeaf) {
  Bench bench(PlannerId::kRing, Collective::kAllReduce, 4);
  Step& send = bench.step(2, bench.find(2, StepKind::kSend));
  send.leaf_begin = (send.leaf_begin + 1) % 4;
  send.leaf_end = send.leaf_begin + 1;
  EXPECT_FALSE(bench.check().ok());
  send.leaf_begin = 4;
  send.leaf_end = 5;
  expect_found(bench.check(), "covers no leaves");
  Bench longer(PlannerId::kRing, Collective::kAllReduce, 4);
  Step& receive = longer.step(1, longer.find(1, StepKind::kReceive));
  ASSERT_LT(receive.leaf_end, 4u);
  ++receive.leaf_end;
  expect_found(longer.check(), "receives other leaves");
}

TEST(Checker, FindsAContributionAddedTwice) {
  // Both ends agree on the message, so only the values give it away.
  Bench bench(PlannerId::kMesh, Collective::kReduceScatter, 3);
  const std::size_t send = bench.find(2, StepKind::kSend);
  ASSERT_EQ(bench.step(2, send).peer, 1);
  // Rank 1 receives twice from rank 2.
  Step again = bench.step(2, send);
  again.tag = 7;
  bench.plans[2].add(again);
  const auto last = static_cast<std::uint32_t>(bench.plans[1].steps.size() - 1);
  ASSERT_TRUE(bench.step(1, last).finish);
  bench.step(1, last).finish = false;
  Step reduce = bench.step(1, last);
  reduce.peer = 2;
  reduce.tag = 7;
  reduce.finish = true;
  bench.plans[1].add(reduce, std::vector<std::uint32_t>{last});
  expect_found(bench.check(), "adds the contribution of rank 2 a second time");
}

TEST(Checker, FindsACycleOfMessages) {
  // Both ranks of a mesh pair wait for the other's bytes before they send their own.
  Bench bench(PlannerId::kMesh, Collective::kAllGather, 2);
  for (int r = 0; r < 2; ++r) {
    Plan spoiled;
    spoiled.add({.kind = StepKind::kReceive, .peer = 1 - r, .leaf_begin = 0, .leaf_end = 2});
    spoiled.add({.kind = StepKind::kSend, .src = Buffer::kOutput, .peer = 1 - r, .leaf_begin = 0, .leaf_end = 2},
                std::vector<std::uint32_t>{0});
    bench.plans[r] = spoiled;
  }
  expect_found(bench.check(), "deadlock");
}

TEST(Checker, FindsAnOverwriteBeforeTheAckInPlaceOnly) {
  // The result can only come back after rank 0 had rank 1's bytes, but that is no ack: rank 1 may be resending them
  // from the place where the result lands. The plan is wrong in place, harmless out of place.
  Bench bench(PlannerId::kMesh, Collective::kAllReduce, 2);
  Step& receive = bench.step(1, bench.find(1, StepKind::kReceive));
  receive.deps_end = receive.deps_begin;
  expect_found(bench.check(), "read and write one range in no order (in place)");
}

TEST(Checker, FindsEdgesAndRailsThatAreNotThere) {
  Bench bench(PlannerId::kBCube, Collective::kAllReduce, 9, {3, 2});
  bench.step(0, 0).rail = 5;
  expect_found(bench.check(), "prefers rail 5");
  bench.step(0, 0).rail = -1;
  EXPECT_TRUE(bench.check().ok());
  bench.reach.set(3, 4, 0, 0);
  expect_found(bench.check(), "share no rail");
}

TEST(Checker, FindsWritesToTheInputAndOutsideOfTheOutput) {
  Bench all(PlannerId::kRing, Collective::kAllReduce, 3);
  all.step(0, all.find(0, StepKind::kReceive)).dst = Buffer::kInput;
  expect_found(all.check(), "writes the caller's input");
  Bench blocks(PlannerId::kRing, Collective::kReduceScatter, 3);
  blocks.step(0, blocks.find(0, StepKind::kReceiveReduce)).dst = Buffer::kOutput;
  EXPECT_FALSE(blocks.check().ok());
}

TEST(Checker, FindsAResultAtAnotherRankThanTheRoot) {
  for (const Collective collective : {Collective::kReduce, Collective::kGather}) {
    Bench bench(PlannerId::kRing, collective, 4, {}, 1);
    ASSERT_TRUE(bench.check().ok());
    bench.step(3, bench.find(3, StepKind::kSend, collective == Collective::kReduce ? 0 : 1)).src = Buffer::kOutput;
    const std::size_t arrival =
        bench.find(3, collective == Collective::kReduce ? StepKind::kReceiveReduce : StepKind::kReceive);
    bench.step(3, arrival).dst = Buffer::kOutput;
    expect_found(bench.check(), "writes outside of the output");
    bench.schedule.request.root = 2;
    EXPECT_FALSE(bench.check().ok());
  }
  Bench scatter(PlannerId::kMesh, Collective::kScatter, 4, {}, 1);
  scatter.schedule.request.root = 2;
  expect_found(scatter.check(), "reads input before it is written");
}

TEST(Checker, FindsFinishWithoutAReduction) {
  Bench bench(PlannerId::kRing, Collective::kAllGather, 3);
  bench.step(0, bench.find(0, StepKind::kCopy)).finish = true;
  expect_found(bench.check(), "without reduction");
}

TEST(Checker, FindsLeavesThatDoNotFit) {
  Bench bench(PlannerId::kRing, Collective::kReduceScatter, 3);
  bench.schedule.leaves[1] += 1;
  expect_found(bench.check(), "crosses the border");
  bench.schedule.leaves[1] = bench.schedule.leaves[2] + 5;
  expect_found(bench.check(), "ascending");
  Bench short_one(PlannerId::kMesh, Collective::kAllReduce, 3);
  short_one.schedule.leaves.back() -= 1;
  EXPECT_FALSE(short_one.check().ok());
}

TEST(Checker, FindsABarrierThatLetsARankThroughTooEarly) {
  // Rank 0 answers rank 1 before it has heard from rank 2.
  Bench bench(PlannerId::kMesh, Collective::kBarrier, 3);
  Plan early;
  early.add(
      {.kind = StepKind::kReceiveReduce, .src = Buffer::kScratch, .dst = Buffer::kScratch, .peer = 1, .leaf_end = 1});
  early.add({.kind = StepKind::kSend, .src = Buffer::kScratch, .peer = 1, .leaf_end = 1},
            std::vector<std::uint32_t>{0});
  early.add(
      {.kind = StepKind::kReceiveReduce, .src = Buffer::kScratch, .dst = Buffer::kScratch, .peer = 2, .leaf_end = 1},
      std::vector<std::uint32_t>{1});
  early.add({.kind = StepKind::kSend, .src = Buffer::kScratch, .peer = 2, .leaf_end = 1},
            std::vector<std::uint32_t>{2});
  bench.plans[0] = early;
  expect_found(bench.check(), "rank 1 leaf 0 ends without the contribution of rank 2");
}

TEST(Checker, TakesNoMoreThan64Ranks) {
  const auto reach = Reachability::full(65, 1);
  EXPECT_EQ(check_planner(PlannerId::kRing, {.ranks = 65, .count = 1, .reach = &reach}).code(),
            CANARY_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace canarynet

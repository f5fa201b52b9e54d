// Every operation x planner x type x reduction x ranks x size, through engines, channels and lanes, compared bit by
// bit.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/random.h"
#include "collectives/schedule.h"
#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

struct Case {
  PlannerId planner;
  int ranks;
  int per_host;
};

class Matrix : public testing::TestWithParam<Case> {};

ClusterOptions options_for(const Case& param) {
  const auto [planner_id, ranks, per_host] = param;
  ClusterOptions options;
  options.hosts = ranks / per_host;
  options.ranks_per_host = per_host;
  const bool cube = (planner_id == PlannerId::kBCube || planner_id == PlannerId::kBCubeX) && per_host == 1;
  options.wiring = cube && ranks == 4   ? Wiring::bcube(2, 2)
                   : cube && ranks == 8 ? Wiring::bcube(2, 3)
                   : cube && ranks == 9 ? Wiring::bcube(3, 2)
                                        : Wiring::flat(options.hosts, 2);
  options.settings.algo = std::string(name_of(planner_id));
  // A small piece size makes many pieces of few bytes; the large size keeps its own number of pieces bounded.
  options.settings.piece_bytes = Bytes{16384};
  return options;
}

TEST_P(Matrix, EveryTypeAndReductionIsExact) {
  const auto [planner_id, ranks, per_host] = GetParam();
  Cluster cluster(options_for(GetParam()));
  ASSERT_TRUE(cluster.join()) << cluster.engine(0).join_status().to_string();

  const bool quick = std::getenv("CANARY_TEST_QUICK") != nullptr;
  const std::uint64_t sizes[] = {0, 1, 1001, (1 << 18) + 3};
  int ran = 0;
  for (int c = 0; c < kCollectiveCount; ++c) {
    const auto collective = static_cast<Collective>(c);
    if (!planner(planner_id).defines(collective, ranks)) continue;
    for (int t = 0; t < kDataTypeCount; ++t) {
      for (int o = 0; o < kReduceOpCount; ++o) {
        if (!reduces(collective) && o != 0) continue;
        if (collective == Collective::kBarrier && t != 0) continue;
        for (const std::uint64_t size : sizes) {
          // At the large size every type and every reduction runs once, not their product (the small sizes do that).
          if (size > 2000 && (quick || (t != 0 && o != (t % kReduceOpCount)))) continue;
          oracle::Shape shape;
          shape.collective = collective;
          shape.ranks = ranks;
          // On blocks the size is that of the whole.
          shape.count = collective == Collective::kBarrier     ? 0
                        : in_blocks(collective) && size > 2000 ? size / static_cast<std::uint64_t>(ranks)
                                                               : size;
          shape.type = static_cast<DataType>(t);
          shape.redop = static_cast<ReduceOp>(o);
          shape.root = (ranks - 1 + t) % ranks;
          shape.salt = static_cast<std::uint64_t>(c * 1000 + t * 10 + o);
          oracle::draw_counts(&shape,
                              is_pairwise(collective) ? shape.count / static_cast<std::uint64_t>(ranks) : shape.count);
          if (has_counts(collective)) shape.count = 0;
          AllRanks op(cluster, shape, (t + o) % 2 == 1);
          op.submit_all();
          op.expect_exact();
          if (HasFatalFailure()) return;
          ++ran;
        }
      }
    }
  }
  EXPECT_GT(ran, 0);
}

// Sums of fractions are rounded at each step, so their bits tell in which order the ranks' contributions were added.
// The schedule alone decides that order: the result must not show who calls first, which piece overtakes which or comes
// twice, or that the run is another one.
TEST_P(Matrix, TheOrderOfReductionIsTheSchedulesWhateverArrivesFirst) {
  const auto [planner_id, ranks, per_host] = GetParam();
  const bool quick = std::getenv("CANARY_TEST_QUICK") != nullptr;
  std::vector<std::vector<std::uint64_t>> first;  // by operation: digests of all ranks
  for (std::uint64_t run = 0; run < 3; ++run) {
    ClusterOptions options = options_for(GetParam());
    options.fabric.seed = 1 + run;
    options.fabric.stream = run % 2 == 0;
    options.fabric.bad_header_resets = options.fabric.stream;
    options.fabric.retransmit_delay = 5_ms;
    options.fabric.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(run == 0 ? 10'000 : 500));
    if (run != 0) {
      auto& out = options.fabric.nic.out;
      out.jitter = 200_us;
      out.reorder_ppm = 300'000;
      out.duplicate_ppm = 100'000;
      out.loss_ppm = options.fabric.stream ? 2'000 : 20'000;
    }
    options.settings.piece_bytes = Bytes{4096};
    Cluster cluster(options);
    ASSERT_TRUE(cluster.join()) << cluster.engine(0).join_status().to_string();
    Random random(100 + run);
    std::size_t at = 0;
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce}) {
      if (!planner(planner_id).defines(collective, ranks)) continue;
      for (const DataType type : {CANARY_F32, CANARY_F64, CANARY_F16, CANARY_BF16}) {
        for (const ReduceOp op : {CANARY_SUM, CANARY_AVG, CANARY_PROD}) {
          if (type != CANARY_F32 && (quick || op != CANARY_SUM)) continue;
          oracle::Shape shape;
          shape.collective = collective;
          shape.ranks = ranks;
          shape.count = 12'001 / (in_blocks(collective) ? static_cast<std::uint64_t>(ranks) : 1);
          shape.type = type;
          shape.redop = op;
          shape.root = ranks - 1;
          shape.salt = at + 1;
          shape.rounds = true;
          AllRanks all(cluster, shape, (run + at) % 2 == 1);
          const auto turn = static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
          for (int i = 0; i < ranks; ++i) {
            all.submit((i + turn) % ranks);
            if (run != 0) cluster.run_for(Nanos{static_cast<std::int64_t>(random.below(300'000))});
          }
          all.expect_exact();
          if (HasFatalFailure()) return;
          std::vector<std::uint64_t> bits;
          for (int r = 0; r < ranks; ++r) bits.push_back(all.digest(r));
          if (run == 0) {
            first.push_back(bits);
          } else {
            EXPECT_EQ(bits, first[at]) << oracle::to_string(shape) << " gave other bits in run " << run;
          }
          ++at;
        }
      }
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Planner& one : planners()) {
    const PlannerId id = one.id;
    if (id == PlannerId::kBCube || id == PlannerId::kBCubeX) continue;
    for (const int n : {1, 2, 3, 4, 5, 7, 8, 9}) out.push_back({id, n, 1});
    out.push_back({id, 8, 4});
  }
  for (const auto& [n, per_host] : {std::pair{4, 4}, {4, 2}, {6, 3}, {6, 2}, {12, 4}})
    out.push_back({PlannerId::kHierarchical, n, per_host});
  for (const PlannerId id : {PlannerId::kBCube, PlannerId::kBCubeX}) {
    for (const int n : {4, 8, 9}) out.push_back({id, n, 1});
    out.push_back({id, 4, 4});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, Matrix, testing::ValuesIn(cases()), [](const auto& param_info) {
  return std::string(name_of(param_info.param.planner)) + "_n" + std::to_string(param_info.param.ranks) + "_k" +
         std::to_string(param_info.param.per_host);
});

TEST(HugeBuffers, TwoToThe26AndThreeBytesOfI8OnceEach) {
  if (quick()) GTEST_SKIP() << "CANARY_TEST_QUICK is set";
  Cluster cluster(flat_cluster(3));
  ASSERT_TRUE(cluster.join());
  for (int c = 0; c < kCollectiveCount; ++c) {
    oracle::Shape shape;
    shape.collective = static_cast<Collective>(c);
    if (shape.collective == Collective::kBarrier) continue;
    shape.ranks = 3;
    shape.type = CANARY_I8;
    const std::uint64_t total = (1 << 26) + 3;
    shape.count = in_blocks(shape.collective) ? total / 3 : total;
    if (shape.collective == Collective::kAllGatherV) {
      shape.counts = {total / 2, 0, total - total / 2};
    } else if (shape.collective == Collective::kAllToAllV) {
      shape.counts = {total / 3, total / 3 + 1, total - total / 3 * 2 - 1, 0, 5, total - 5, total - 7, 7, 0};
    }
    if (has_counts(shape.collective)) shape.count = 0;
    AllRanks op(cluster, shape);
    op.submit_all();
    op.expect_exact(60_s);
  }
}

}  // namespace
}  // namespace canarynet

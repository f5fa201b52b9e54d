#include "tools/perf/measure.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tools/perf/report.h"
#include "tools/perf/series.h"

namespace canarynet::perf {
namespace {

NicRow nic(const std::string& device, std::uint64_t ours, std::uint64_t kernels) {
  NicRow row;
  row.device = device;
  row.tx_bytes = ours;
  row.kernel_tx_bytes = kernels;
  return row;
}

TEST(JudgeNic, TakesTheKernelsWordWithinATenth) {
  EXPECT_EQ(judge_nic(nic("nic0", 1'000'000, 1'030'000)), "");
  EXPECT_EQ(judge_nic(nic("nic0", 1'000'000, 900'000)), "");
  EXPECT_NE(judge_nic(nic("nic0", 1'000'000, 890'000)), "");
  EXPECT_NE(judge_nic(nic("nic1", 1'000'000, 0)).find("nic1"), std::string::npos);
}

TEST(JudgeNic, ForgivesSmallChangeAndLoopback) {
  EXPECT_EQ(judge_nic(nic("nic0", 2000, 0)), "");
  EXPECT_EQ(judge_nic(nic("lo", 1'000'000, 0)), "");
}

// A job of one rank needs no network; the loop, the buffers and the checks are the same.
class OneRank : public testing::Test {
 protected:
  static PerfOptions options() {
    PerfOptions o;
    o.iterations = 7;
    o.warmup = 2;
    return o;
  }
  Context context_{JoinOptions{.rank = 0, .world_size = 1}};
};

TEST_F(OneRank, SizesThatTakeTurnsHaveARowEachWithTheirOwnOperations) {
  for (const Order order : {Order::kSweep, Order::kRandom}) {
    PerfOptions o = options();
    o.order = order;
    o.bytes_min = 4096;
    o.bytes_max = 4 << 20;
    o.factor = 32;
    o.check = Check::kEvery;
    const auto rows = measure_mixed(context_, o, Op::kAllReduce, nullptr);
    ASSERT_EQ(rows.size(), 3u);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].bytes, std::uint64_t{4096} << (5 * i));
      EXPECT_EQ(rows[i].iterations, 7u);
      EXPECT_EQ(rows[i].checked, 9u) << "of warm-up and timed operations";
      EXPECT_EQ(rows[i].wrong, 0);
      EXPECT_FALSE(rows[i].failed);
      EXPECT_GT(rows[i].p50_us, 0);
    }
    EXPECT_GT(rows[2].p50_us, rows[0].p50_us) << "a copy of 4 MiB takes longer than one of 4 KiB";
  }
}

TEST_F(OneRank, MeasuresAndChecksEveryOperationInEveryManner) {
  for (const Op op : {Op::kAllReduce, Op::kReduceScatter, Op::kAllGather, Op::kBroadcast, Op::kBarrier, Op::kReduce,
                      Op::kGather, Op::kScatter, Op::kAllToAll, Op::kAllGatherV, Op::kAllToAllV, Op::kSendRecv}) {
    for (const bool in_place : {false, true}) {
      if (in_place && is_pairwise(op)) continue;
      for (const int in_flight : {1, 3}) {
        for (const Check check : {Check::kNone, Check::kEnds, Check::kEvery}) {
          PerfOptions o = options();
          o.in_place = in_place;
          o.arena = in_flight == 3;
          o.in_flight = in_flight;
          o.check = check;
          o.type = CANARY_F16;
          const Row row = measure(context_, o, op, 10'000, nullptr);
          SCOPED_TRACE(std::string(name_of(op)) + " in flight " + std::to_string(in_flight));
          EXPECT_EQ(row.iterations, 7u);
          EXPECT_EQ(row.wrong, 0);
          EXPECT_FALSE(row.failed);
          EXPECT_TRUE(row.faults.empty());
          EXPECT_EQ(row.bytes, op == Op::kBarrier ? 0u : 10'000u);
          const auto expected = op == Op::kBarrier || check == Check::kNone ? 0
                                : check == Check::kEvery                    ? 9
                                                                            : 2 + in_flight;
          EXPECT_EQ(row.checked, static_cast<std::uint64_t>(expected));
        }
      }
    }
  }
}

TEST_F(OneRank, ADurationRunsUntilItIsOver) {
  PerfOptions o = options();
  o.duration_s = 0.05;
  const Row row = measure(context_, o, Op::kAllReduce, 1 << 20, nullptr);
  EXPECT_GT(row.iterations, 3u);
  EXPECT_GE(static_cast<double>(row.iterations) * row.mean_us * 1e-6, 0.01);
}

TEST_F(OneRank, SeriesHasALinePerBinAndDevice) {
  const std::string path = testing::TempDir() + "perf_series_" + std::to_string(getpid()) + ".csv";
  {
    PerfOptions o = options();
    o.duration_s = 0.1;
    Series series(path);
    measure(context_, o, Op::kAllReduce, 1 << 20, &series);
  }
  std::ifstream file(path);
  std::string head;
  ASSERT_TRUE(std::getline(file, head));
  EXPECT_EQ(head, "op,bytes,time_s,monotonic_ns,device,tx_bytes,rx_bytes,kernel_tx_bytes,lanes_up");
  std::filesystem::remove(path);
  EXPECT_THROW(Series("/nonexistent/file.csv"), std::runtime_error);
}

TEST(Report, JsonHasTheFieldsThatBenchesRead) {
  PerfOptions o;
  Row row;
  row.bytes = 4096;
  row.count = 1024;
  row.algorithm = "ring";
  row.nics = {nic("nic0", 10, 11), nic("nic1", 20, 21)};
  row.nics[1].rank = 1;
  const auto json = json_row(row, o);
  for (const char* field : {"op", "bytes", "count", "type", "redop", "algo", "why", "time_us", "p50_us", "p99_us",
                            "algbw_GBps", "busbw_GBps", "wrong", "cpu_s_per_GB", "nics"}) {
    EXPECT_TRUE(json.contains(field)) << field;
  }
  EXPECT_EQ(json["op"], "all_reduce");
  EXPECT_EQ(json["redop"], "sum");
  ASSERT_EQ(json["nics"].size(), 1u);  // rank 0's
  EXPECT_EQ(json["nics"][0]["device"], "nic0");
  EXPECT_EQ(json["nics"][0]["kernel_tx_bytes"], 11);
  EXPECT_EQ(json["all_nics"].size(), 2u);
}

TEST(Report, AFailedRowSaysSo) {
  Row row;
  EXPECT_EQ(table_row(row, {}).find("FAILED"), std::string::npos);
  row.failed = true;
  EXPECT_NE(table_row(row, {}).find("FAILED"), std::string::npos);
}

}  // namespace
}  // namespace canarynet::perf

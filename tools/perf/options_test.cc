#include "tools/perf/options.h"

#include <gtest/gtest.h>

namespace canarynet::perf {
namespace {

PerfOptions good(const std::vector<std::string>& arguments) {
  const auto parsed = parse_perf_options(arguments);
  EXPECT_EQ(parsed.exit_status, -1) << parsed.text;
  return parsed.options;
}

std::string bad(const std::vector<std::string>& arguments) {
  const auto parsed = parse_perf_options(arguments);
  EXPECT_EQ(parsed.exit_status, 2) << parsed.text;
  return parsed.text;
}

TEST(Sizes, AreInPowersOf1024) {
  std::uint64_t bytes = 0;
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::uint64_t>>{
           {"0", 0}, {"100", 100}, {"4K", 4096}, {"1M", 1 << 20}, {"64MiB", 64 << 20}, {"2G", 2ull << 30}, {"7B", 7}}) {
    EXPECT_TRUE(parse_size(text, &bytes)) << text;
    EXPECT_EQ(bytes, expected) << text;
  }
}

TEST(Sizes, RefuseWhatIsNone) {
  std::uint64_t bytes = 77;
  for (const char* text :
       {"", "K", "-1", "4X", "4KB", "1.5M", "4 K", "99999999999999999999", "1025G", "17179869184G"}) {
    EXPECT_FALSE(parse_size(text, &bytes)) << text;
  }
  EXPECT_EQ(bytes, 77u);
}

TEST(Options, DefaultsAreASweepOfF32Sums) {
  const auto o = good({"all_reduce"});
  EXPECT_EQ(o.ops, std::vector{Op::kAllReduce});
  EXPECT_EQ(o.type, CANARY_F32);
  EXPECT_EQ(o.redop, CANARY_SUM);
  EXPECT_EQ(o.check, Check::kEnds);
  EXPECT_EQ(o.in_flight, 1);
  EXPECT_EQ(sizes_of(o), (std::vector<std::uint64_t>{4096, 16384, 65536, 262144, 1048576, 4194304, 16777216}));
}

TEST(Options, TakeThoseOfNcclTests) {
  const auto o =
      good({"reduce_scatter", "-b", "1M", "-e", "8M", "-f", "2", "-n", "7", "-w", "0", "-d", "half", "-o", "max"});
  EXPECT_EQ(o.ops, std::vector{Op::kReduceScatter});
  EXPECT_EQ(o.iterations, 7);
  EXPECT_EQ(o.warmup, 0);
  EXPECT_EQ(o.type, CANARY_F16);
  EXPECT_EQ(o.redop, CANARY_MAX);
  EXPECT_EQ(sizes_of(o), (std::vector<std::uint64_t>{1 << 20, 2 << 20, 4 << 20, 8 << 20}));
}

TEST(Options, SizesTakeTurnsOneOperationAtATime) {
  EXPECT_EQ(good({"all_reduce"}).order, Order::kBlocks);
  EXPECT_EQ(good({"all_reduce", "--order", "sweep"}).order, Order::kSweep);
  const auto o = good({"all_reduce", "--order", "random", "--seed", "9"});
  EXPECT_EQ(o.order, Order::kRandom);
  EXPECT_EQ(o.seed, 9u);
  EXPECT_NE(bad({"all_reduce", "--order", "down"}).find("--order down: takes blocks, sweep, random"),
            std::string::npos);
  EXPECT_NE(bad({"all_reduce", "--order", "sweep", "--async", "2"}).find("--async 2"), std::string::npos);
  EXPECT_NE(bad({"all_reduce", "--order", "sweep", "--duration", "2"}).find("--duration 2"), std::string::npos);
  EXPECT_NE(bad({"all_reduce", "--seed", "x"}).find("--seed x"), std::string::npos);
}

TEST(Options, ThreadsAreRanksOfOneProcess) {
  EXPECT_EQ(good({"all_reduce"}).threads, 1);
  EXPECT_EQ(good({"all_reduce", "-t", "8"}).threads, 8);
  EXPECT_EQ(good({"all_reduce", "--nthreads", "2"}).threads, 2);
  EXPECT_NE(bad({"all_reduce", "-t", "0"}).find("-t 0: takes a whole number from 1"), std::string::npos);
}

TEST(Options, MinimumAloneIsTheOnlySize) {
  EXPECT_EQ(sizes_of(good({"all_reduce", "-b", "3M"})), (std::vector<std::uint64_t>{3 << 20}));
}

TEST(Options, AllMeansEveryOperation) { EXPECT_EQ(good({"all"}).ops.size(), 12u); }

TEST(Options, AllToAllHasNcclTestsNameAsWellAndIsNeverInPlace) {
  EXPECT_EQ(good({"alltoall"}).ops, std::vector{Op::kAllToAll});
  EXPECT_NE(bad({"all_to_all", "--in-place"}).find("--in-place all_to_all"), std::string::npos);
  EXPECT_EQ(good({"all", "--in-place"}).ops.size(), 10u);
}

TEST(Options, JsonTakesAFileOnlyBehindAnEqualsSign) {
  EXPECT_EQ(good({"--json", "broadcast"}).json_path, "-");
  EXPECT_EQ(good({"broadcast", "--json=out.json"}).json_path, "out.json");
  EXPECT_EQ(good({"broadcast"}).json_path, "");
}

TEST(Options, ChecksAreChosen) {
  EXPECT_EQ(good({"all_reduce", "--no-check"}).check, Check::kNone);
  EXPECT_EQ(good({"all_reduce", "--check"}).check, Check::kEnds);
  EXPECT_EQ(good({"all_reduce", "--check-every"}).check, Check::kEvery);
  bad({"all_reduce", "--check", "--no-check"});
}

TEST(Options, DurationAndFlightsAndSettings) {
  const auto o =
      good({"all_reduce", "--duration", "2.5s", "--async", "4", "--algo", "ring", "--set", "lanes_per_rail=2", "--set",
            "piece_bytes=64K", "--in-place", "--arena", "--series", "s%r.csv", "--root", "3"});
  EXPECT_DOUBLE_EQ(o.duration_s, 2.5);
  EXPECT_EQ(o.in_flight, 4);
  EXPECT_EQ(o.algo, "ring");
  EXPECT_EQ(o.settings, (std::vector<std::string>{"lanes_per_rail=2", "piece_bytes=64K"}));
  EXPECT_TRUE(o.in_place);
  EXPECT_TRUE(o.arena);
  EXPECT_FALSE(good({"all_reduce"}).arena);
  EXPECT_EQ(o.series_path, "s%r.csv");
  EXPECT_EQ(o.root, 3);
  bad({"all_reduce", "--async", "4", "--blocking"});
}

TEST(Options, ErrorsNameTheOptionAndWhatItTakes) {
  EXPECT_NE(bad({}).find("OP"), std::string::npos);
  EXPECT_NE(bad({"all_to_one"}).find("reduce_scatter"), std::string::npos);
  EXPECT_NE(bad({"all_reduce", "-b", "4Q"}).find("-b 4Q"), std::string::npos);
  EXPECT_NE(bad({"all_reduce", "-d", "f8"}).find("bf16"), std::string::npos);
  EXPECT_NE(bad({"all_reduce", "-o", "xor"}).find("prod"), std::string::npos);
  EXPECT_NE(bad({"all_reduce", "-n", "0"}).find("-n 0"), std::string::npos);
  EXPECT_NE(bad({"all_reduce", "-f", "1"}).find("-f 1"), std::string::npos);
  EXPECT_NE(bad({"all_reduce", "-b", "2M", "-e", "1M"}).find("-b 2M"), std::string::npos);
  EXPECT_NE(bad({"all_reduce", "--duration", "0"}).find("--duration"), std::string::npos);
  EXPECT_NE(bad({"all_reduce", "--set", "x"}).find("--set x"), std::string::npos);
  bad({"all_reduce", "--nonsense"});
  bad({"all_reduce", "extra"});
}

TEST(Options, HelpIsNoError) {
  const auto parsed = parse_perf_options({"--help"});
  EXPECT_EQ(parsed.exit_status, 0);
  EXPECT_NE(parsed.text.find("busbw"), std::string::npos);
}

}  // namespace
}  // namespace canarynet::perf

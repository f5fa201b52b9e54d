// The tuner through its exported objects: costs as NCCL hands them in, and afterwards.
#include <cmath>
#include <cstdlib>
#include <type_traits>

#include "plugins/nccl/plugin_test_util.h"

namespace canarynet::nccl::test {
namespace {

using Table = std::array<float, abi::kAlgorithms * abi::kProtocols>;
constexpr float kNo = abi::kImpossible;

std::size_t at(int algorithm, int protocol) { return static_cast<std::size_t>(algorithm * abi::kProtocols + protocol); }

// NCCL offers this for an all-reduce on two hosts without special hardware: tree and ring by each protocol.
Table offered() {
  Table t;
  t.fill(kNo);
  for (int p = 0; p < abi::kProtocols; ++p) {
    t[at(abi::kTree, p)] = 100.0f + static_cast<float>(p);
    t[at(abi::kRing, p)] = 200.0f + static_cast<float>(p);
  }
  return t;
}

std::size_t cheapest(const Table& t) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < t.size(); ++i) {
    if (t[i] >= 0 && (t[best] < 0 || t[i] < t[best])) best = i;
  }
  return best;
}

class EveryTuner : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    Log::clear();
    forget();  // clears the environment that the tests are run with
  }
  void TearDown() override { forget(); }
  static void forget() {
    unsetenv("CANARY_NCCL_ALPHA");
    unsetenv("CANARY_NCCL_BANDWIDTH");
  }
  static void set(const char* alpha, const char* bandwidth) {
    if (alpha != nullptr) setenv("CANARY_NCCL_ALPHA", alpha, 1);
    if (bandwidth != nullptr) setenv("CANARY_NCCL_BANDWIDTH", bandwidth, 1);
  }
  // One communicator's life; *channels must stay 0.
  Table tune(abi::Function function, std::size_t bytes, std::size_t ranks, std::size_t nodes, Table table) const {
    void* context = nullptr;
    int channels = 0;
    float** const costs = reinterpret_cast<float**>(table.data());
    const int f = static_cast<int>(function);
    const auto run = [&](const auto& tuner, auto start, auto finish) {
      EXPECT_STREQ(tuner.name, "Canary");
      EXPECT_EQ(start(tuner), Result::kSuccess);
      if constexpr (std::is_same_v<decltype(tuner), const abi::TunerV3&>) {
        EXPECT_EQ(tuner.get_collective(context, f, bytes, 1, costs, abi::kAlgorithms, abi::kProtocols, &channels),
                  Result::kSuccess);
      } else {
        EXPECT_EQ(tuner.get_collective(context, f, bytes, 1, costs, abi::kAlgorithms, abi::kProtocols, 0, &channels),
                  Result::kSuccess);
      }
      EXPECT_EQ(finish(tuner), Result::kSuccess);
    };
    if (GetParam() == 3) {
      run(
          exported<abi::TunerV3>("ncclTunerPlugin_v3"),
          [&](const auto& t) { return t.init(ranks, nodes, Log::line, &context); },
          [&](const auto& t) { return t.destroy(context); });
    } else if (GetParam() == 4) {
      run(
          exported<abi::TunerV4>("ncclTunerPlugin_v4"),
          [&](const auto& t) { return t.init(ranks, nodes, Log::line, &context); },
          [&](const auto& t) { return t.destroy(context); });
    } else {
      abi::NvlDomains domains{1, 1, 1};
      abi::TunerConstants constants{};
      const auto start = [&](const auto& t) {
        return t.init(&context, 42, ranks, nodes, Log::line, &domains, &constants);
      };
      const auto finish = [&](const auto& t) { return t.finalize(context); };
      if (GetParam() == 5) run(exported<abi::TunerV5>("ncclTunerPlugin_v5"), start, finish);
      if (GetParam() == 6) run(exported<abi::TunerV6>("ncclTunerPlugin_v6"), start, finish);
      const abi::TunerConstants untouched{};
      EXPECT_EQ(std::memcmp(&constants, &untouched, sizeof constants), 0);
    }
    EXPECT_EQ(channels, 0);
    return table;
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, EveryTuner, testing::Values(3, 4, 5, 6),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

TEST_P(EveryTuner, LeavesCostsAloneWithoutAModel) {
  EXPECT_EQ(tune(abi::Function::kAllReduce, 1 << 20, 16, 4, offered()), offered());
  EXPECT_EQ(Log::text(), "");
}

TEST_P(EveryTuner, WrongValuesAreToldAndIgnored) {
  const std::pair<const char*, const char*> wrong[] = {
      {"25us", nullptr}, {nullptr, "10gbit"}, {"25", "10gbit"},     {"25us", "10"},      {"-1us", "10gbit"},
      {"5s", "10gbit"},  {"25us", "0gbit"},   {"25us", "10Gbit/s"}, {"nanus", "10gbit"}, {"25us", "infgbit"}};
  for (const auto& [alpha, bandwidth] : wrong) {
    forget();
    Log::clear();
    set(alpha, bandwidth);
    EXPECT_EQ(tune(abi::Function::kAllReduce, 1 << 20, 16, 4, offered()), offered());
    EXPECT_TRUE(has(Log::text(), "CANARY_NCCL_")) << (alpha ? alpha : "-") << " " << (bandwidth ? bandwidth : "-");
  }
}

TEST_P(EveryTuner, CostsOfRingAndTreeAreThoseOfTheModel) {
  set("50us", "8gbit");  // 1 byte per nanosecond
  const std::size_t bytes = 1 << 20, ranks = 8, nodes = 8;
  const Table t = tune(abi::Function::kAllReduce, bytes, ranks, nodes, offered());
  const double us = static_cast<double>(bytes) / 1000;
  EXPECT_NEAR(t[at(abi::kRing, abi::kLl128)], 2 * 7 * 75 + 2 * 7.0 / 8 * us * 128 / 120, 1);
  EXPECT_NEAR(t[at(abi::kTree, abi::kLl128)], 2 * 3 * 75 + 2 * us * 128 / 120, 1);
  EXPECT_NEAR(t[at(abi::kRing, abi::kSimple)], 2 * 7 * 100 + 2 * 7.0 / 8 * us, 1);
  EXPECT_NEAR(t[at(abi::kRing, abi::kLl)], 2 * 7 * 50 + 2 * 7.0 / 8 * us * 2, 1);
}

TEST_P(EveryTuner, ShortOnesGoByTreeAndLongOnesByRing) {
  set("1ms", "10gbit");
  const Table small = tune(abi::Function::kAllReduce, 1024, 16, 16, offered());
  EXPECT_EQ(cheapest(small), at(abi::kTree, abi::kLl));
  const Table large = tune(abi::Function::kAllReduce, std::size_t{1} << 32, 16, 16, offered());
  EXPECT_EQ(cheapest(large), at(abi::kRing, abi::kSimple));
  EXPECT_EQ(tune(abi::Function::kAllReduce, std::size_t{1} << 32, 16, 16, offered()), large) << "not the same twice";
}

TEST_P(EveryTuner, WhatNcclCanNotOrMayNotRunStaysImpossible) {
  set("1ms", "10gbit");
  Table only_ring = offered();
  for (int p = 0; p < abi::kProtocols; ++p) only_ring[at(abi::kTree, p)] = kNo;  // NCCL_ALGO=Ring
  const Table t = tune(abi::Function::kAllReduce, 1024, 16, 16, only_ring);
  for (std::size_t i = 0; i < t.size(); ++i) EXPECT_EQ(t[i] == kNo, only_ring[i] == kNo) << i;
  EXPECT_NE(t, only_ring);
}

TEST_P(EveryTuner, NothingIsComparedWithWhatTheModelDoesNotKnow) {
  set("1ms", "10gbit");
  Table with_nvls = offered();
  with_nvls[at(abi::kNvls, abi::kSimple)] = 50;
  EXPECT_EQ(tune(abi::Function::kAllReduce, 1024, 16, 4, with_nvls), with_nvls);
  EXPECT_EQ(tune(abi::Function::kAllReduce, 1024, 8, 1, offered()), offered()) << "one host: no network";
  EXPECT_EQ(tune(static_cast<abi::Function>(99), 1024, 16, 4, offered()), offered());
}

TEST_P(EveryTuner, KnowsEveryCollective) {
  set("100us", "10gbit");
  Table ring;
  ring.fill(kNo);
  for (int p = 0; p < abi::kProtocols; ++p) ring[at(abi::kRing, p)] = 1;
  for (const auto f : {abi::Function::kBroadcast, abi::Function::kReduce, abi::Function::kAllGather,
                       abi::Function::kReduceScatter, abi::Function::kAllReduce}) {
    const Table t = tune(f, 1 << 20, 8, 4, ring);
    EXPECT_GT(t[at(abi::kRing, abi::kSimple)], 300) << static_cast<int>(f);
  }
  Table pat = ring;
  pat[at(abi::kPat, abi::kSimple)] = 1;
  const Table t = tune(abi::Function::kAllGather, 1024, 64, 64, pat);
  EXPECT_LT(t[at(abi::kPat, abi::kSimple)], t[at(abi::kRing, abi::kSimple)]);
}

// NCCL 2.21 takes one algorithm and protocol instead of costs.
class TunerOfV2 : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) unsetenv(name);
    setenv("CANARY_NCCL_ALPHA", "1ms", 1);
    setenv("CANARY_NCCL_BANDWIDTH", "10gbit", 1);
  }
  void TearDown() override {
    for (const char* name : kNames) unsetenv(name);
  }
  // {-1, -1}: NCCL chooses.
  static std::pair<int, int> choice(abi::Function function, std::size_t bytes, std::size_t nodes = 16, int collnet = 0,
                                    int nvls = 0) {
    const auto& tuner = exported<abi::TunerV2>("ncclTunerPlugin_v2");
    EXPECT_STREQ(tuner.name, "Canary");
    void* context = nullptr;
    int algorithm = -1, protocol = -1, channels = 0;
    EXPECT_EQ(tuner.init(16, nodes, Log::line, &context), Result::kSuccess);
    EXPECT_EQ(tuner.get_collective(context, static_cast<int>(function), bytes, collnet, nvls, 1, &algorithm, &protocol,
                                   &channels),
              Result::kSuccess);
    EXPECT_EQ(tuner.destroy(context), Result::kSuccess);
    EXPECT_EQ(channels, 0);
    return {algorithm, protocol};
  }
  static constexpr const char* kNames[] = {"CANARY_NCCL_ALPHA", "CANARY_NCCL_BANDWIDTH", "NCCL_ALGO", "NCCL_PROTO"};
  static constexpr std::pair<int, int> kNcclChooses{-1, -1};
};

TEST_F(TunerOfV2, NamesTheCheapestOfWhatRunsAnywhere) {
  EXPECT_EQ(choice(abi::Function::kAllReduce, 1024), (std::pair{abi::kTree, abi::kLl}));
  EXPECT_EQ(choice(abi::Function::kAllReduce, std::size_t{1} << 32), (std::pair{abi::kRing, abi::kSimple}));
  EXPECT_EQ(choice(abi::Function::kAllGather, 1024), (std::pair{abi::kRing, abi::kLl}));
  EXPECT_EQ(choice(abi::Function::kBroadcast, std::size_t{1} << 32), (std::pair{abi::kRing, abi::kSimple}));
}

TEST_F(TunerOfV2, LeavesTheChoiceToNcclWhereItCanNotKnow) {
  EXPECT_EQ(choice(abi::Function::kAllReduce, 1024, 1), kNcclChooses) << "one host";
  EXPECT_EQ(choice(static_cast<abi::Function>(99), 1024), kNcclChooses);
  EXPECT_EQ(choice(abi::Function::kAllReduce, 1024, 16, 1), kNcclChooses) << "in-network reduction";
  EXPECT_EQ(choice(abi::Function::kAllReduce, 1024, 16, 0, 1), kNcclChooses) << "NVLink SHARP";
  for (const char* name : {"NCCL_ALGO", "NCCL_PROTO"}) {
    setenv(name, "Ring", 1);
    EXPECT_EQ(choice(abi::Function::kAllReduce, 1024), kNcclChooses) << name << " is the user's word";
    unsetenv(name);
  }
  unsetenv("CANARY_NCCL_ALPHA");
  unsetenv("CANARY_NCCL_BANDWIDTH");
  EXPECT_EQ(choice(abi::Function::kAllReduce, 1024), kNcclChooses) << "no model";
}

TEST(Tuner, NeverFails) {
  const auto& tuner = exported<abi::TunerV5>("ncclTunerPlugin_v5");
  setenv("CANARY_NCCL_ALPHA", "25us", 1);
  setenv("CANARY_NCCL_BANDWIDTH", "100gbit", 1);
  void* context = nullptr;
  ASSERT_EQ(tuner.init(&context, 1, 0, 0, Log::line, nullptr, nullptr), Result::kSuccess);
  Table t = offered();
  int channels = 0;
  float** const costs = reinterpret_cast<float**>(t.data());
  EXPECT_EQ(
      tuner.get_collective(context, 4, ~std::size_t{0}, 1, costs, abi::kAlgorithms, abi::kProtocols, 0, &channels),
      Result::kSuccess);
  EXPECT_EQ(tuner.get_collective(context, -1, 0, 0, costs, 0, 0, 0, &channels), Result::kSuccess);
  EXPECT_EQ(tuner.get_collective(nullptr, 4, 0, 0, nullptr, 0, 0, 0, nullptr), Result::kSuccess);
  EXPECT_EQ(tuner.finalize(context), Result::kSuccess);
  EXPECT_EQ(tuner.finalize(nullptr), Result::kSuccess);
  unsetenv("CANARY_NCCL_ALPHA");
  unsetenv("CANARY_NCCL_BANDWIDTH");
}

}  // namespace
}  // namespace canarynet::nccl::test

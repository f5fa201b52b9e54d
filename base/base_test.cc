#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/quantity.h"
#include "base/random.h"
#include "base/status.h"
#include "base/text.h"
#include "base/types.h"
#include "base/units.h"

namespace canarynet {
namespace {

TEST(Units, RateTimesTimeIsBytesAndSaturates) {
  EXPECT_EQ(BytesPerSec::from_mbit(8).bytes_in(1_s), Bytes{1'000'000});
  EXPECT_EQ(BytesPerSec{1'000'000}.time_for(Bytes{1000}), 1_ms);
  EXPECT_EQ(BytesPerSec{0}.time_for(Bytes{1}), Nanos::max());
  EXPECT_EQ(BytesPerSec{1}.time_for(Bytes{std::numeric_limits<std::int64_t>::max()}), Nanos::max());
  // The intermediate product has more than 64 bits.
  EXPECT_EQ(BytesPerSec{4'000'000'000}.time_for(Bytes{20'000'000'000}), 5_s);
  EXPECT_EQ(BytesPerSec{10'000'000'000}.bytes_in(2_s), Bytes{20'000'000'000});
  EXPECT_EQ(BytesPerSec::of(Bytes{20'000'000'000}, 2_s), BytesPerSec{10'000'000'000});
}

TEST(Split, KeepsEmptyParts) {
  using Parts = std::vector<std::string_view>;
  EXPECT_EQ(split("a,b,,c"), (Parts{"a", "b", "", "c"}));
  EXPECT_EQ(split(",a,"), (Parts{"", "a", ""}));
  EXPECT_EQ(split(""), Parts{""});
  EXPECT_EQ(split("a,b c", ' '), (Parts{"a,b", "c"}));
}

TEST(Random, SameSeedSameSequenceOnEveryCompiler) {
  Random r(42);
  EXPECT_EQ(r.next(), 1546998764402558742ull);
  EXPECT_EQ(r.next(), 6990951692964543102ull);
  Random a(7), b(7);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a.below(10), b.below(10));
}

TEST(Random, BelowStaysBelowAndReachesAll) {
  Random r(1);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const auto v = r.below(7);
    ASSERT_LT(v, 7u);
    seen.insert(v);
  }
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(r.below(0), 0u);
}

TEST(Quantity, NumbersComeWithTheirUnits) {
  EXPECT_DOUBLE_EQ(bits_per_second("2.5gbit").value(), 2.5e9);
  EXPECT_DOUBLE_EQ(bits_per_second("100kbit").value(), 1e5);
  EXPECT_DOUBLE_EQ(seconds_of("1.5ms").value(), 1.5e-3);
  EXPECT_DOUBLE_EQ(seconds_of("20ns").value(), 2e-8);
  EXPECT_DOUBLE_EQ(seconds_of("2e-10").value(), 2e-10);
  EXPECT_DOUBLE_EQ(seconds_of("0").value(), 0);
  for (const char* bad : {"", "gbit", "1e3mbit", "-1mbit", "inf", "5", "5 mbit", "5Mbit"})
    EXPECT_FALSE(bits_per_second(bad)) << bad;
  for (const char* bad : {"", "ms", "-1ms", "inf", "nan", "1 ms", "1e3ms", "1h"}) EXPECT_FALSE(seconds_of(bad)) << bad;
}

TEST(Status, CarriesCodeTextAndDetailThroughWrap) {
  ErrorDetail d;
  d.rank = 3;
  const Status inner(CANARY_PEER_DIED, "rank 3 died", d);
  const Status outer = inner.wrap("all_reduce #7");
  EXPECT_EQ(outer.code(), CANARY_PEER_DIED);
  EXPECT_EQ(outer.detail().rank, 3);
  EXPECT_EQ(outer.to_string(), "PEER_DIED: all_reduce #7: rank 3 died");
  EXPECT_TRUE(Status().wrap("x").ok());
}

TEST(Types, NamesRoundTrip) {
  for (int t = 0; t < kDataTypeCount; ++t) {
    DataType back{};
    ASSERT_TRUE(parse(name_of(static_cast<DataType>(t)), &back));
    EXPECT_EQ(static_cast<int>(back), t);
    EXPECT_GT(size_of(back), 0u);
  }
  DataType none{};
  EXPECT_FALSE(parse("f8", &none));
}

TEST(Log, GoesToTheSinkUpToTheLevel) {
  static std::string got;
  got.clear();
  set_log_sink([](void*, LogLevel, std::string_view line) { got += line; }, nullptr, LogLevel::kWarn);
  log(LogLevel::kInfo, "quiet");
  log(LogLevel::kError, "rank %d", 3);
  set_log_sink(nullptr, nullptr, LogLevel::kError);
  log(LogLevel::kError, "nobody hears");
  EXPECT_EQ(got, "rank 3");
}

// Each context belongs to its sink, and ends when the next sink is set.
TEST(Log, SinksChangeWhileOthersLog) {
  struct Place {
    std::atomic<int> lives{0};
    std::atomic<int> heard{0};
  };
  static Place one, two;
  const auto hear = [](Place& mine, void* context) {
    EXPECT_EQ(context, &mine);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    EXPECT_EQ(mine.lives, 1);
    ++mine.heard;
  };
  static const auto heard = hear;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop) log(LogLevel::kWarn, "a line");
    });
  }
  for (int i = 0; i < 200 || one.heard < 50 || two.heard < 50; ++i) {
    Place& now = i % 2 == 0 ? one : two;
    now.lives = 1;
    set_log_sink(
        i % 2 == 0 ? [](void* c, LogLevel, std::string_view) { heard(one, c); }
                   : [](void* c, LogLevel, std::string_view) { heard(two, c); },
        &now, LogLevel::kWarn);
    (i % 2 == 0 ? two : one).lives = 0;
  }
  set_log_sink(nullptr, nullptr, LogLevel::kError);
  stop = true;
  for (auto& t : threads) t.join();
}

TEST(SystemClock, NeverGoesBack) {
  SystemClock clock;
  const Nanos a = clock.now();
  EXPECT_GE(clock.now(), a);
}

}  // namespace
}  // namespace canarynet

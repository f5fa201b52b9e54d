#include "base/settings.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace canarynet {
namespace {

TEST(Settings, DefaultsAreThoseOfTheTable) {
  const Settings s = Settings::defaults();
  EXPECT_EQ(s.piece_bytes, Bytes{128 * 1024});
  EXPECT_EQ(s.silence_limit, 60_s);
  EXPECT_EQ(s.silence_warning, 2_s);
  EXPECT_EQ(s.entry_limit, 600_s);
  EXPECT_FALSE(s.insecure);
}

TEST(Settings, ErrorNamesVariableValueAndWhatItTakes) {
  Settings s = Settings::defaults();
  const Status bad = s.set("CANARY_PIECE_BYTES", "lots");
  EXPECT_EQ(bad.code(), CANARY_INVALID_SETTING);
  EXPECT_NE(bad.text().find("CANARY_PIECE_BYTES=\"lots\""), std::string::npos) << bad.text();
  EXPECT_NE(bad.text().find("128KiB"), std::string::npos) << bad.text();
  EXPECT_EQ(s.piece_bytes, Bytes{128 * 1024});
}

TEST(Settings, RefusesValuesOutOfRangeAndOddPieces) {
  Settings s = Settings::defaults();
  EXPECT_FALSE(s.set("piece_bytes", "16MiB").ok());
  EXPECT_FALSE(s.set("piece_bytes", "1025").ok());
  EXPECT_FALSE(s.set("piece_bytes", "65600").ok()) << "a multiple of 64, not of 128";
  EXPECT_FALSE(s.set("lanes_per_rail", "0").ok());
  EXPECT_FALSE(s.set("insecure", "yes").ok());
  EXPECT_FALSE(s.set("no_such_thing", "1").ok());
  EXPECT_TRUE(s.set("piece_bytes", "64KiB").ok());
  EXPECT_EQ(s.piece_bytes, Bytes{65536});
}

TEST(Settings, TransportsAreAListOfThoseThatExist) {
  Settings s = Settings::defaults();
  EXPECT_TRUE(s.uses("tcp"));
  EXPECT_TRUE(s.uses("shm"));
  for (const char* text : {"tcp", "shm", "shm,tcp", "tcp,tcp"}) {
    EXPECT_TRUE(s.set("transports", text).ok()) << text;
  }
  ASSERT_TRUE(s.set("transports", "shm").ok());
  EXPECT_FALSE(s.uses("tcp"));
  EXPECT_TRUE(s.uses("shm"));
  for (const char* text : {"", ",", "tcp,", ",tcp", "udp", "tcp, shm", "tcp;shm"}) {
    const Status status = s.set("transports", text);
    EXPECT_EQ(status.code(), CANARY_INVALID_SETTING) << text;
    EXPECT_NE(status.text().find("tcp and shm"), std::string::npos) << status.text();
  }
}

TEST(Settings, EnvironmentOverridesDefaults) {
  setenv("CANARY_EXCHANGE_LIMIT", "5s", 1);
  auto s = Settings::from_environment();
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s.value().exchange_limit, 5_s);
  setenv("CANARY_EXCHANGE_LIMIT", "5", 1);
  EXPECT_FALSE(Settings::from_environment().ok());
  unsetenv("CANARY_EXCHANGE_LIMIT");
}

TEST(Settings, RangesAreToldAsPeopleWriteThem) {
  const struct {
    const char *name, *value, *takes;
  } cases[] = {
      {"piece_bytes", "16MiB", "CANARY_PIECE_BYTES=\"16MiB\": must lie between 1KiB and 1MiB"},
      {"eager_bytes", "1", "CANARY_EAGER_BYTES=\"1\": must lie between 16KiB and 64MiB"},
      {"silence_limit", "2h", "CANARY_SILENCE_LIMIT=\"2h\": must lie between 10ms and 1h"},
      {"heartbeat_interval", "1us", "CANARY_HEARTBEAT_INTERVAL=\"1us\": must lie between 1ms and 1min"},
      {"entry_limit", "25h", "CANARY_ENTRY_LIMIT=\"25h\": must lie between 10ms and 24h"},
      {"spin_budget", "11s", "CANARY_SPIN=\"11s\": must lie between 0 and 10s"},
      {"lanes_per_rail", "17", "CANARY_LANES_PER_RAIL=\"17\": must lie between 1 and 16"},
  };
  for (const auto& c : cases) {
    Settings s = Settings::defaults();
    EXPECT_EQ(s.set(c.name, c.value).text(), c.takes);
  }
}

TEST(Settings, NoErrorOfTheTableHasALongNumber) {
  for (const SettingInfo& info : setting_table()) {
    if (info.kind == SettingKind::kText || info.kind == SettingKind::kBool) continue;
    Settings s = Settings::defaults();
    const std::string high = info.kind == SettingKind::kDuration ? "99h"
                             : info.kind == SettingKind::kBytes  ? "99GiB"
                                                                 : "99999";
    const std::string text = s.set(info.name, high).text();
    EXPECT_NE(text.find("must lie between"), std::string::npos) << info.name;
    EXPECT_EQ(text.find("000000"), std::string::npos) << text;
  }
}

TEST(Settings, DefaultsGoTogether) { EXPECT_TRUE(Settings::defaults().check().ok()); }

TEST(Settings, LimitsThatContradictEachOtherAreRefusedWithBothNamesAndValues) {
  const struct {
    std::vector<std::pair<const char*, const char*>> set;
    std::vector<const char*> told;  // empty: they go together
  } cases[] = {
      {{{"silence_limit", "599ms"}}, {"CANARY_SILENCE_LIMIT=599ms", "CANARY_HEARTBEAT_INTERVAL=200ms", "600ms"}},
      {{{"silence_limit", "600ms"}}, {}},
      {{{"heartbeat_interval", "500ms"}, {"silence_limit", "1s"}},
       {"CANARY_SILENCE_LIMIT=1s", "CANARY_HEARTBEAT_INTERVAL=500ms", "1500ms"}},
      {{{"heartbeat_interval", "21s"}}, {"CANARY_SILENCE_LIMIT=1min", "CANARY_HEARTBEAT_INTERVAL=21s", "63s"}},
      {{{"heartbeat_interval", "500ms"}, {"silence_limit", "2s"}}, {}},
      {{{"entry_limit", "100ms"}}, {"CANARY_ENTRY_LIMIT=100ms", "CANARY_HEARTBEAT_INTERVAL=200ms"}},
      {{{"entry_limit", "200ms"}}, {}},
      {{{"entry_limit", "100ms"}, {"heartbeat_interval", "50ms"}}, {}},
  };
  for (const auto& c : cases) {
    Settings s = Settings::defaults();
    for (const auto& [name, value] : c.set) ASSERT_TRUE(s.set(name, value).ok()) << name;
    const Status status = s.check();
    EXPECT_EQ(status.code(), c.told.empty() ? CANARY_OK : CANARY_INVALID_SETTING)
        << c.set[0].first << "=" << c.set[0].second;
    for (const char* part : c.told) EXPECT_NE(status.text().find(part), std::string::npos) << status.text();
  }
}

TEST(AsWritten, IsShortAndReadBackAsTheSame) {
  for (const std::int64_t n : {0L, 1L, 1000L, 1023L, 1024L, 65536L, 65537L, 1048576L, 3L << 30}) {
    EXPECT_EQ(parse_bytes(as_written(Bytes{n})).value(), Bytes{n}) << as_written(Bytes{n});
    EXPECT_EQ(parse_duration(as_written(Nanos{n})).value(), Nanos{n}) << as_written(Nanos{n});
  }
  EXPECT_EQ(as_written(1500_ms), "1500ms");
  EXPECT_EQ(as_written(600_s), "10min");
  EXPECT_EQ(as_written(Bytes{64 * 1024}), "64KiB");
  EXPECT_EQ(as_written(Bytes{1000}), "1000B");
}

TEST(Settings, MustAgreeListsValuesInTableOrder) {
  Settings s = Settings::defaults();
  ASSERT_TRUE(s.set("algo", "mesh").ok());
  const auto list = s.must_agree();
  EXPECT_NE(std::find(list.begin(), list.end(), "algo=mesh"), list.end());
  EXPECT_NE(std::find(list.begin(), list.end(), "piece_bytes=128KiB"), list.end());
}

TEST(ParseDuration, TakesUnitsAndNothingElse) {
  EXPECT_EQ(parse_duration("250ms").value(), 250_ms);
  EXPECT_EQ(parse_duration("10min").value(), 600_s);
  EXPECT_EQ(parse_duration("0").value(), Nanos{}) << "as the settings' descriptions have it";
  EXPECT_FALSE(parse_duration("10").ok());
  EXPECT_FALSE(parse_duration("-1s").ok());
  EXPECT_FALSE(parse_duration("99999999999h").ok());
}

}  // namespace
}  // namespace canarynet

#include "base/settings.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace canarynet {
namespace {

TEST(Settings, DefaultsAreThoseOfTheTable) {
  const Settings s = Settings::defaults();
  EXPECT_EQ(s.piece_bytes, Bytes{128 * 1024});
  EXPECT_EQ(s.silence_limit, 1_s);
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

TEST(Settings, MustAgreeListsValuesInTableOrder) {
  Settings s = Settings::defaults();
  ASSERT_TRUE(s.set("algo", "mesh").ok());
  const auto list = s.must_agree();
  EXPECT_NE(std::find(list.begin(), list.end(), "algo=mesh"), list.end());
  EXPECT_NE(std::find(list.begin(), list.end(), "piece_bytes=131072"), list.end());
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

#include "discovery/interfaces.h"

#include <gtest/gtest.h>

#include "discovery/host.h"

namespace canarynet {
namespace {

std::vector<Interface> sample() {
  return {{"lo", Address::ipv4(127, 0, 0, 1, 8), {}},
          {"eth0", Address::ipv4(10, 0, 0, 1, 24), {}},
          {"eth1", Address::ipv4(10, 0, 1, 1, 24), {}},
          {"docker0", Address::ipv4(172, 17, 0, 1, 16), {}}};
}

std::string chosen(const Settings& s, bool loopback = false) {
  const auto r = choose_rails(s, sample(), loopback);
  if (!r.ok()) return r.status().to_string();
  std::string out;
  for (const Rail& rail : r.value()) out += rail.device + " ";
  return out;
}

TEST(MatchesIfname, FollowsNcclsGrammar) {
  EXPECT_TRUE(matches_ifname("eth,ib", "eth0"));
  EXPECT_FALSE(matches_ifname("eth,ib", "lo"));
  EXPECT_FALSE(matches_ifname("^eth,lo", "eth0"));
  EXPECT_TRUE(matches_ifname("^eth,lo", "ib0"));
  EXPECT_TRUE(matches_ifname("=eth1", "eth1"));
  EXPECT_FALSE(matches_ifname("=eth1", "eth10"));
  EXPECT_TRUE(matches_ifname("^=eth1", "eth10"));
}

TEST(ChooseRails, TakesRealNicsByDefaultAndLoopbackForALoopbackJoin) {
  EXPECT_EQ(chosen(Settings::defaults()), "eth0 eth1 ");
  EXPECT_EQ(chosen(Settings::defaults(), true), "lo ");
}

TEST(ChooseRails, RailsSettingGivesTheOrder) {
  Settings s = Settings::defaults();
  s.rails = "eth1,10.0.0.1";
  EXPECT_EQ(chosen(s), "eth1 eth0 ");
  s.rails = "eth9";
  const std::string error = chosen(s);
  EXPECT_NE(error.find("eth9"), std::string::npos) << error;
  EXPECT_NE(error.find("eth0 (10.0.0.1)"), std::string::npos) << error;
}

TEST(ChooseRails, AddressesOfTheLoopbackNetworkStandInForNics) {
  Settings s = Settings::defaults();
  s.rails = "127.1.0.2/24,127.2.0.2/24,127.0.0.1";
  const auto rails = choose_rails(s, sample(), true);
  ASSERT_TRUE(rails.ok()) << rails.status().text();
  ASSERT_EQ(rails.value().size(), 3u);
  EXPECT_EQ(rails.value()[0].device, "lo:0");
  EXPECT_EQ(rails.value()[0].address, Address::ipv4(127, 1, 0, 2, 24));
  EXPECT_EQ(rails.value()[1].device, "lo:1");
  EXPECT_EQ(rails.value()[2].device, "lo") << "the interface itself";
  s.rails = "127.1.0.2";
  EXPECT_EQ(choose_rails(s, sample(), true).value()[0].address.prefix_bits, 8) << "as the interface's";
  for (const char* none : {"10.9.9.9", "127.1.0.2:80", "127.1.0", "127.1.0.2/33"}) {
    s.rails = none;
    EXPECT_NE(chosen(s, true).find(none), std::string::npos) << none;
  }
}

TEST(PacingOf, TakesOneRateOrOnePerRail) {
  Settings s = Settings::defaults();
  EXPECT_TRUE(pacing_of(s, 2).value().empty());
  s.pacing_rate = "80mbit";
  EXPECT_EQ(pacing_of(s, 2).value(), (std::vector<BytesPerSec>{BytesPerSec{10'000'000}, BytesPerSec{10'000'000}}));
  s.pacing_rate = "none,1gbit";
  EXPECT_EQ(pacing_of(s, 2).value(), (std::vector<BytesPerSec>{BytesPerSec{0}, BytesPerSec{125'000'000}}));
  EXPECT_NE(pacing_of(s, 3).status().text().find("each of the 3 rails"), std::string::npos);
  for (const char* wrong : {"fast", "1mbit,", "1bit", "500gbit", "10"}) {
    s.pacing_rate = wrong;
    const auto r = pacing_of(s, 2);
    ASSERT_FALSE(r.ok()) << wrong;
    EXPECT_NE(r.status().text().find(std::string("CANARY_PACING_RATE=\"") + wrong), std::string::npos);
  }
}

TEST(ChooseRails, NamesWhatIsThereWhenNothingMatches) {
  Settings s = Settings::defaults();
  s.socket_ifname = "ib";
  EXPECT_NE(chosen(s).find("CANARY_SOCKET_IFNAME=\"ib\""), std::string::npos);
}

TEST(ListInterfaces, KnowsLoopback) {
  const auto r = list_interfaces();
  ASSERT_TRUE(r.ok());
  bool found = false;
  for (const Interface& i : r.value()) found |= i.address.loopback();
  EXPECT_TRUE(found);
}

TEST(ResolveJoin, SaysWhatIsWrong) {
  EXPECT_EQ(resolve_join("tcp://127.0.0.1:4000").value().to_string(), "127.0.0.1:4000");
  EXPECT_EQ(resolve_join("tcp://[::1]:4000").value().to_string(), "[::1]:4000");
  for (const char* bad :
       {"udp://x:1", "tcp://127.0.0.1", "tcp://127.0.0.1:0", "tcp://127.0.0.1:70000", "tcp://:4000", ""}) {
    const auto r = resolve_join(bad);
    ASSERT_FALSE(r.ok()) << bad;
    EXPECT_NE(r.status().text().find("tcp://host:port"), std::string::npos) << r.status().text();
  }
}

}  // namespace
}  // namespace canarynet

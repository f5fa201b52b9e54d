// Tables of hosts show which of their NICs meet.
#include <gtest/gtest.h>

#include <sstream>

#include "topology/rails.h"

namespace canarynet {
namespace {

Address at(const std::string& text) {
  const auto parsed = Address::parse(text);
  EXPECT_TRUE(parsed.ok()) << text;
  return parsed.value();
}

Network net(const std::string& text) {
  return text == "0/0"    ? Network::everything(Address::Family::kIPv4)
         : text == "::/0" ? Network::everything(Address::Family::kIPv6)
                          : Network::of(at(text));
}

// Reads "10.60.0.2/24>0/0 10.60.1.2/24": each entry is a rail, with the networks that it leads to after ">".
std::vector<Rail> host(const std::string& text) {
  std::vector<Rail> out;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    std::istringstream parts(word);
    std::string part;
    std::getline(parts, part, '>');
    Rail rail{"nic" + std::to_string(out.size()), at(part), {}};
    while (std::getline(parts, part, '>')) rail.beyond.push_back(net(part));
    out.push_back(rail);
  }
  return out;
}

struct Case {
  const char* what;
  RailPairing pairing;
  const char *local, *remote;
  std::vector<RailPair> pairs;
};

constexpr auto kAuto = RailPairing::kAuto;

TEST(PairRails, MeetBySubnetAndElseByRoute) {
  const std::vector<RailPair> none, first = {{0, 0}}, both = {{0, 0}, {1, 1}};
  const std::vector<Case> cases = {
      {"one subnet each", kAuto, "10.1.0.1/24 10.2.0.1/24", "10.1.0.2/24 10.2.0.2/24", both},
      {"a subnet in common: no route is followed", kAuto, "10.1.0.1/24>0/0 10.60.0.2/24>0/0",
       "10.1.0.2/24>0/0 10.61.0.2/24>0/0", first},
      {"... unless asked", RailPairing::kRoute, "10.1.0.1/24>0/0 10.60.0.2/24>0/0", "10.1.0.2/24>0/0 10.61.0.2/24>0/0",
       both},
      {"routed", kAuto, "10.60.0.2/24>0/0 10.60.1.2/24>0/0", "10.61.0.2/24>0/0 10.61.1.2/24>0/0", both},
      {"routed, and the setting says no", RailPairing::kSubnet, "10.60.0.2/24>0/0", "10.61.0.2/24>0/0", none},
      {"routed by name, crosswise",
       kAuto,
       "10.60.0.2/24>10.61.1.0/24 10.60.1.2/24>10.61.0.0/24",
       "10.61.0.2/24>10.60.1.0/24 10.61.1.2/24>10.60.0.0/24",
       {{0, 1}, {1, 0}}},
      {"a way out but none back", kAuto, "10.60.0.2/24>0/0", "10.61.0.2/24", none},
      {"a route to somewhere else", kAuto, "10.60.0.2/24>10.62.0.0/16", "10.61.0.2/24>10.60.0.0/16", none},
      {"only the second NIC has a gateway",
       kAuto,
       "10.60.0.2/24 10.60.1.2/24>0/0",
       "10.61.0.2/24 10.61.1.2/24>0/0",
       {{1, 1}}},
      {"three NICs and two, routed",
       kAuto,
       "10.60.0.2/24>0/0 10.60.1.2/24>0/0 10.60.2.2/24>0/0",
       "10.61.0.2/24>0/0 10.61.1.2/24>0/0",
       {{0, 0}, {1, 1}, {2, 0}}},
      {"/32 behind a gateway", kAuto, "10.128.0.2/32>0/0", "10.128.0.3/32>0/0", first},
      {"/32 without routes", kAuto, "10.128.0.2/32", "10.128.0.3/32", none},
      {"IPv6, one subnet", kAuto, "fd00:1::1/64 fd00:2::1/64", "fd00:1::2/64 fd00:2::2/64", both},
      {"IPv6, routed", kAuto, "fd00:60::2/64>::/0 fd00:60:1::2/64>::/0", "fd00:61::2/64>::/0 fd00:61:1::2/64>::/0",
       both},
      {"IPv6, /128", kAuto, "fd00::2/128>::/0", "fd00::3/128>::/0", first},
      {"a route of the other family", kAuto, "10.60.0.2/24>::/0", "10.61.0.2/24>0/0", none},
      {"two families", kAuto, "10.60.0.2/24>0/0", "fd00:61::2/64>::/0", none},
      {"mesh: a link of its own for the pair, and gateways beside", kAuto, "10.1.2.1/24>0/0 10.1.3.1/24",
       "10.1.2.2/24>0/0 10.2.3.2/24", first},
      {"loopback is no network between hosts", kAuto, "127.1.0.1/24>0/0", "127.2.0.1/24>0/0", none},
      {"by index", RailPairing::kIndex, "10.60.0.2/24 10.60.1.2/24", "10.61.1.2/24 10.61.0.2/24", both},
      {"by index, and the subnets say otherwise", RailPairing::kIndex, "10.1.0.1/24 10.2.0.1/24",
       "10.2.0.2/24 10.1.0.2/24", both},
      {"two NICs each in one subnet", kAuto, "10.70.0.10/24>0/0 10.70.0.11/24>0/0",
       "10.70.0.20/24>0/0 10.70.0.21/24>0/0", both},
  };
  for (const Case& c : cases) {
    const auto here = host(c.local), there = host(c.remote);
    EXPECT_EQ(pair_rails(here, there, c.pairing), c.pairs) << c.what;
    std::vector<RailPair> mirrored;
    for (const RailPair& p : pair_rails(there, here, c.pairing)) mirrored.push_back({p.remote, p.local});
    std::sort(mirrored.begin(), mirrored.end());
    EXPECT_EQ(mirrored, c.pairs) << c.what << ", seen from the other host";
  }
}

TEST(PairRails, ByIndexProcessesOfOneHostStillMeetInItsMemory) {
  Rail memory{"shm", {}, {}};
  memory.address.family = Address::Family::kSharedMemory;
  memory.address.prefix_bits = 64;
  auto a = host("10.1.0.1/24"), b = a;
  a.push_back(memory);
  memory.address.bytes[15] = 1;
  b.push_back(memory);
  EXPECT_EQ(pair_rails(a, b, RailPairing::kIndex), (std::vector<RailPair>{{1, 1}}));
}

// BCube(2, 2): hosts that differ in both digits share no subnet.
std::vector<std::vector<Rail>> bcube_hosts(const std::string& beyond) {
  std::vector<std::vector<Rail>> hosts;
  for (int i = 0; i < 4; ++i) {
    const std::string a = std::to_string(i / 2), b = std::to_string(i % 2), octet = std::to_string(i + 1);
    std::ostringstream rails;
    rails << "10.1." << a << '.' << octet << "/24" << beyond << " 10.2." << b << '.' << octet << "/24";
    hosts.push_back(host(rails.str()));
  }
  return hosts;
}

TEST(SettledPairing, DefaultRoutesDoNotHideABCube) {
  const std::vector<int> engines = {0, 1, 2, 3};
  for (const char* beyond : {"", ">0/0"}) {
    const auto hosts = bcube_hosts(beyond);
    const RailPairing settled = settled_pairing(kAuto, hosts, engines);
    const auto reach = Reachability::from_rails(hosts, engines, settled);
    EXPECT_FALSE(reach.meets(0, 3)) << beyond;
    EXPECT_FALSE(reach.meets(1, 2)) << beyond;
    EXPECT_EQ(find_bcube(reach, 8).levels, 2) << beyond;
  }
  EXPECT_TRUE(Reachability::from_rails(bcube_hosts(">0/0"), engines, RailPairing::kRoute).meets(0, 3))
      << "asked for by name, routes are followed";
}

TEST(SettledPairing, HostsBehindRoutersAllMeet) {
  std::vector<std::vector<Rail>> hosts;
  std::vector<int> engines;
  for (int i = 0; i < 4; ++i) {
    hosts.push_back(host("10.6" + std::to_string(i) + ".0.2/24>0/0 10.6" + std::to_string(i) + ".1.2/24>0/0"));
    engines.push_back(i);
  }
  const RailPairing settled = settled_pairing(kAuto, hosts, engines);
  EXPECT_EQ(settled, kAuto);
  const auto reach = Reachability::from_rails(hosts, engines, settled);
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < a; ++b) EXPECT_EQ(reach.rails(a, b), 3u) << a << " " << b;
  }
}

TEST(RailPairing, NamesAreWhatTheSettingTakes) {
  for (const auto pairing : {kAuto, RailPairing::kSubnet, RailPairing::kRoute, RailPairing::kIndex})
    EXPECT_EQ(parse_rail_pairing(name_of(pairing)), pairing);
  EXPECT_EQ(parse_rail_pairing("both"), std::nullopt);
}

}  // namespace
}  // namespace canarynet

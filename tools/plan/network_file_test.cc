// Networks described in a file: their meaning, and the errors for wrong ones.
#include "tools/plan/network_file.h"

#include <gtest/gtest.h>

namespace canarynet::plan {
namespace {

NetworkFile network_of(const std::string& text) {
  auto network = parse_network_file(text, "net.toml");
  EXPECT_TRUE(network.ok()) << network.status().text();
  return network.ok() ? std::move(network.value()) : NetworkFile();
}

constexpr double kMbit = 1e6 / 8;  // bytes a second

TEST(NetworkFile, HostsNicsAndLinksThatDiffer) {
  const NetworkFile network = network_of(R"(
hosts = 4
nics = ["500mbit", "125mbit"]
alpha = "50us"
gamma = "0.1ns"

[[host]]
index = 3
nics = ["100mbit", "1gbit"]
alpha = "2ms"

[[link]]
from = 0
to = 2
nic = 1
alpha = "5ms"
bandwidth = "50mbit"

[[link]]
from = 1
to = 2
bandwidth = "10mbit"
one_way = true
)");
  EXPECT_EQ(network.ranks(), 4);
  EXPECT_EQ(network.rails, 2);
  EXPECT_DOUBLE_EQ(network.model.gamma, 1e-10);
  const auto expect = [&](int from, int to, int nic, double alpha, double rate) {
    const LinkCost cost = network.links.of(from, to, nic);
    EXPECT_DOUBLE_EQ(cost.alpha, alpha) << from << " to " << to << " over " << nic;
    EXPECT_DOUBLE_EQ(1 / cost.beta, rate) << from << " to " << to << " over " << nic;
  };
  expect(0, 1, 0, 50e-6, 500 * kMbit);
  expect(0, 1, 1, 50e-6, 125 * kMbit);
  expect(0, 3, 0, 2e-3, 100 * kMbit);
  expect(3, 0, 1, 2e-3, 125 * kMbit);  // the slower of the two NICs
  expect(0, 2, 1, 5e-3, 50 * kMbit);
  expect(2, 0, 1, 5e-3, 50 * kMbit);
  expect(0, 2, 0, 50e-6, 500 * kMbit);
  expect(1, 2, 0, 50e-6, 10 * kMbit);
  expect(1, 2, 1, 50e-6, 10 * kMbit);
  expect(2, 1, 0, 50e-6, 500 * kMbit);
}

TEST(NetworkFile, MissingLinksAreNoWay) {
  const NetworkFile network = network_of(R"(
hosts = 3
nics = ["1gbit", "1gbit"]
alpha = "50us"
link = [{from = 0, to = 1, nic = 0, missing = true}, {from = 1, to = 2, missing = true}]
)");
  EXPECT_EQ(network.reach.rails(0, 1), 0b10U);
  EXPECT_EQ(network.reach.rails(1, 0), 0b10U);
  EXPECT_FALSE(network.reach.meets(1, 2));
  EXPECT_EQ(network.reach.rails(0, 2), 0b11U);
}

TEST(NetworkFile, BCubeWiringJoinsHostsThatDifferInOneDigit) {
  const NetworkFile network = network_of("hosts = 9\nnics = ['1gbit', '1gbit']\nalpha = '1ms'\nwiring = 'bcube:3,2'\n");
  EXPECT_EQ(network.bcube.levels, 2);
  EXPECT_EQ(network.reach.rails(0, 2), 0b01U);
  EXPECT_EQ(network.reach.rails(0, 6), 0b10U);
  EXPECT_FALSE(network.reach.meets(0, 4));
}

TEST(NetworkFile, RanksOfOneHostMeetThroughItsMemory) {
  const NetworkFile network = network_of("hosts = 2\nranks_per_host = 2\nnics = ['1gbit']\nalpha = '1ms'\n");
  EXPECT_EQ(network.ranks(), 4);
  EXPECT_EQ(network.host_of, (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(network.reach.rails(0, 1), Reachability::kHostBit);
  EXPECT_EQ(network.reach.rails(1, 2), 1U);
}

TEST(NetworkFile, WhatIsWrongIsNamedWithItsLine) {
  const std::string good = "hosts = 4\nnics = ['1gbit', '1gbit']\nalpha = '1ms'\n";  // three lines
  const struct {
    std::string text;
    std::vector<const char*> says;
  } cases[] = {
      {"hosts = ", {"net.toml:1: "}},
      {"nics = ['1gbit']\nalpha = '1ms'\n", {"\"hosts\" is missing"}},
      {"hosts = 4\nalpha = '1ms'\n", {"\"nics\" is missing"}},
      {"hosts = 0\nnics = ['1gbit']\nalpha = '1ms'\n", {"net.toml:1: hosts: takes a whole number from 1 to 1024"}},
      {"hosts = 4.0\nnics = ['1gbit']\nalpha = '1ms'\n", {"net.toml:1: hosts: "}},
      {"hosts = 4\nnics = []\nalpha = '1ms'\n", {"net.toml:2: nics: takes a list of 1 to 16 rates"}},
      {"hosts = 4\nnics = ['1gbit', '0bit']\nalpha = '1ms'\n", {"net.toml:2: nics: takes a rate in quotes"}},
      {"hosts = 4\nnics = '1gbit'\nalpha = '1ms'\n", {"net.toml:2: nics: takes a list"}},
      {"hosts = 4\nnics = ['1gbit']\nalpha = 1\n", {"net.toml:3: alpha: takes a time in quotes"}},
      {"hosts = 4\nnics = ['1gbit']\nalpha = '1s'\nranks_per_host = 300\n",
       {"net.toml:4: ", "1200 ranks", "at most 1024"}},
      {good + "speed = 3\n", {"net.toml:4: there is no \"speed\"; it takes hosts, "}},
      {good + "wiring = 'ring'\n", {"net.toml:4: wiring: takes \"flat\" or \"bcube:R,L\""}},
      {good + "wiring = 'bcube:3,2'\n", {"joins 9 hosts of 2 NICs", "says 4 of 2"}},
      {good + "[host]\nindex = 1\n", {"net.toml:4: host: write [[host]]"}},
      {good + "[[host]]\nindex = 4\n", {"net.toml:5: host: index: there is no host 4; hosts are 0 to 3"}},
      {good + "[[host]]\nindex = 1\nnics = ['1gbit']\n", {"net.toml:6: host: nics: every host has 2"}},
      {good + "[[link]]\nfrom = 0\nto = 9\nmissing = true\n", {"net.toml:6: link: to: there is no host 9"}},
      {good + "[[link]]\nfrom = 2\nto = 2\nmissing = true\n", {"net.toml:6: link: to: a host has no link to itself"}},
      {good + "[[link]]\nfrom = 0\nto = 1\n", {"net.toml:4: link: it says nothing"}},
      {good + "[[link]]\nfrom = 0\nto = 1\nnic = 2\nalpha = '1s'\n", {"net.toml:7: link: nic: takes a whole number"}},
      {good + "[[link]]\nfrom = 0\nto = 1\nmissing = 1\n", {"net.toml:7: link: missing: takes true or false"}},
      {good + "[[link]]\nfrom = 0\nto = 1\nmissing = true\none_way = true\n", {"net.toml:8: link: one_way: "}},
      {good + "wiring = 'bcube:2,2'\n[[link]]\nfrom = 0\nto = 3\nmissing = true\n",
       {"no such NIC joins hosts 0 and 3"}},
  };
  for (const auto& one : cases) {
    const auto network = parse_network_file(one.text, "net.toml");
    ASSERT_FALSE(network.ok()) << one.text;
    EXPECT_EQ(network.status().code(), CANARY_INVALID_ARGUMENT);
    for (const char* part : one.says)
      EXPECT_NE(network.status().text().find(part), std::string::npos) << one.text << network.status().text();
  }
  EXPECT_NE(read_network_file("/nowhere/net.toml").status().text().find("/nowhere/net.toml: can't be read"),
            std::string::npos);
}

}  // namespace
}  // namespace canarynet::plan

#include "topology/network.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

Address at(const char* text) {
  const auto parsed = Address::parse(text);
  EXPECT_TRUE(parsed.ok()) << text;
  return parsed.value();
}

Network net(const char* text) { return Network::of(at(text)); }

TEST(Network, HoldsTheAddressesOfItsPrefix) {
  EXPECT_TRUE(net("10.61.0.0/24").contains(at("10.61.0.2")));
  EXPECT_FALSE(net("10.61.0.0/24").contains(at("10.61.1.2")));
  EXPECT_TRUE(net("10.61.0.128/25").contains(at("10.61.0.130")));
  EXPECT_FALSE(net("10.61.0.128/25").contains(at("10.61.0.127")));
  EXPECT_TRUE(net("10.128.0.1").contains(at("10.128.0.1/32"))) << "an address without a prefix is itself alone";
  EXPECT_FALSE(net("10.128.0.1").contains(at("10.128.0.2")));
  EXPECT_TRUE(net("fd00:61::/64").contains(at("fd00:61::2")));
  EXPECT_FALSE(net("fd00:61::/64").contains(at("fd00:62::2")));
}

TEST(Network, EverythingIsOneFamily) {
  const Network v4 = Network::everything(Address::Family::kIPv4);
  EXPECT_TRUE(v4.contains(at("192.168.7.1")));
  EXPECT_FALSE(v4.contains(at("fd00::1")));
  EXPECT_TRUE(Network::everything(Address::Family::kIPv6).contains(at("fd00::1")));
  EXPECT_EQ(v4.to_string(), "0.0.0.0/0");
}

TEST(Network, OfAnAddressIsItsSubnet) {
  EXPECT_EQ(net("10.60.0.2/24").to_string(), "10.60.0.0/24");
  EXPECT_EQ(net("fd00:60::2/64").to_string(), "fd00:60::/64");
}

TEST(SummaryOf, LeavesOutWhatOthersHold) {
  EXPECT_EQ(summary_of({net("10.61.0.0/24"), net("10.0.0.0/8"), net("10.61.0.0/24"), net("172.16.0.0/12")}, 16),
            (std::vector<Network>{net("10.0.0.0/8"), net("172.16.0.0/12")}));
  const Network all = Network::everything(Address::Family::kIPv4);
  EXPECT_EQ(summary_of({net("10.61.0.0/24"), all, net("10.128.0.1")}, 16), std::vector<Network>{all});
}

TEST(SummaryOf, SaysEverythingWhereThereAreTooMany) {
  std::vector<Network> many;
  for (int i = 0; i < 17; ++i) many.push_back(net(("10." + std::to_string(i) + ".0.0/16").c_str()));
  EXPECT_EQ(summary_of(many, 17).size(), 17u);
  EXPECT_EQ(summary_of(many, 16), std::vector<Network>{Network::everything(Address::Family::kIPv4)});
}

}  // namespace
}  // namespace canarynet

#include "topology/shared_subnet.h"

#include <gtest/gtest.h>

#include "base/log.h"

namespace canarynet {
namespace {

std::vector<Rail> rails_of(std::initializer_list<std::pair<const char*, const char*>> list) {
  std::vector<Rail> out;
  for (const auto& [device, address] : list) out.push_back({device, Address::parse(address).value(), {}});
  return out;
}

TEST(SharedSubnet, IsWhereTwoDevicesHaveAddressesOfOneIpv4Subnet) {
  struct Case {
    const char* what;
    std::vector<Rail> rails;
    std::vector<bool> shares;
  };
  const Case cases[] = {
      {"a subnet each", rails_of({{"nic0", "10.1.0.1/24"}, {"nic1", "10.2.0.1/24"}}), {false, false}},
      {"one for both", rails_of({{"nic0", "10.1.0.1/16"}, {"nic1", "10.1.1.1/16"}}), {true, true}},
      {"two of three",
       rails_of({{"nic0", "10.1.0.1/24"}, {"nic1", "10.2.0.1/24"}, {"nic2", "10.1.0.2/24"}}),
       {true, false, true}},
      {"two addresses of one NIC", rails_of({{"nic0", "10.1.0.1/24"}, {"nic0", "10.1.0.2/24"}}), {false, false}},
      {"a NIC of its own subnet alone", rails_of({{"nic0", "10.1.0.1/32"}, {"nic1", "10.1.0.2/32"}}), {false, false}},
      {"subnets that nobody knows", rails_of({{"nic0", "10.1.0.1"}, {"nic1", "10.1.0.2"}}), {false, false}},
      {"loopback", rails_of({{"lo:0", "127.0.0.1/8"}, {"lo:1", "127.0.0.2/8"}}), {false, false}},
      {"IPv6 asks per NIC", rails_of({{"nic0", "fd00:1::1/64"}, {"nic1", "fd00:1::2/64"}}), {false, false}},
  };
  for (const Case& c : cases) {
    for (std::size_t i = 0; i < c.rails.size(); ++i) EXPECT_EQ(shares_subnet(c.rails, i), c.shares[i]) << c.what << i;
  }
}

TEST(SharedSubnet, TheWarningIsSaidOnceAndNamesNicsAddressesAndSysctls) {
  std::vector<std::string> lines;
  set_log_sink(
      [](void* to, LogLevel level, std::string_view line) {
        if (level == LogLevel::kWarn) static_cast<std::vector<std::string>*>(to)->emplace_back(line);
      },
      &lines, LogLevel::kWarn);
  auto rails = rails_of({{"nic0", "10.1.0.1/16"}, {"nic1", "10.1.1.1/16"}});
  rails[1].address.port = 4000;
  warn_of_shared_subnet(describe_shared_subnet(rails, 1));
  warn_of_shared_subnet(describe_shared_subnet(rails, 0));
  set_log_sink(nullptr, nullptr, LogLevel::kError);
  ASSERT_EQ(lines.size(), 1u);
  for (const char* part : {"nic1 (10.1.1.1) shares 10.1.0.0/16 with nic0 (10.1.0.1)", "net.ipv4.conf.all.rp_filter=2",
                           "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2", "CANARY_RAILS"}) {
    EXPECT_NE(lines[0].find(part), std::string::npos) << part << " is missing: " << lines[0];
  }
}

}  // namespace
}  // namespace canarynet

#include "discovery/reverse_path.h"

#include <gtest/gtest.h>

#include "discovery/routes.h"

namespace canarynet {
namespace {

// The kernel's answers in a test.
struct Kernel {
  std::vector<std::pair<std::string, int>> filters;
  std::string way_of_all;                     // the device over which everything leaves; "": the sender's own
  std::vector<std::string> own_besides = {};  // addresses of this host that are no rails
};
Kernel kernel;

int filter_of(const std::string& device) {
  for (const auto& [name, value] : kernel.filters) {
    if (name == device) return value;
  }
  return -1;
}

std::string way_towards(const Address& from, const Address& to) {
  for (const std::string& own : kernel.own_besides) {
    if (Address::parse(own).value().bytes == to.bytes) return "";
  }
  if (!kernel.way_of_all.empty()) return kernel.way_of_all;
  return "nic" + std::to_string(from.bytes[2]);
}

std::string deaf(const std::vector<Rail>& rails) { return deaf_rail(rails, {filter_of, way_towards}); }

const std::vector<Rail>& pair_in_one_subnet() {
  static const std::vector<Rail> rails = {{"nic0", Address::ipv4(10, 1, 0, 1, 16), {}},
                                          {"nic1", Address::ipv4(10, 1, 1, 1, 16), {}}};
  return rails;
}

TEST(ReversePath, AStrictFilterMakesTheNicDeafThatIsNotOnTheWayBack) {
  kernel = {.filters = {{"nic0", 1}, {"nic1", 1}}, .way_of_all = "nic0"};
  const std::string said = deaf(pair_in_one_subnet());
  for (const char* part :
       {"nic1 (10.1.1.1) shares 10.1.0.0/16 with nic0 (10.1.0.1)", "rp_filter is 1", "leads over nic0"}) {
    EXPECT_NE(said.find(part), std::string::npos) << part << " is missing: " << said;
  }
  kernel.way_of_all = "nic1";
  EXPECT_EQ(deaf(pair_in_one_subnet()).find("nic0 (10.1.0.1) shares"), 0u) << deaf(pair_in_one_subnet());
}

TEST(ReversePath, LooseFiltersNoneAndWaysOfTheirOwnLeaveEveryNicItsEars) {
  for (const int filter : {0, 2, -1}) {
    kernel = {.filters = {{"nic0", filter}, {"nic1", filter}}, .way_of_all = "nic0"};
    EXPECT_EQ(deaf(pair_in_one_subnet()), "") << "rp_filter " << filter;
  }
  // A rule per source address sends each NIC's answers by that NIC.
  kernel = {.filters = {{"nic0", 1}, {"nic1", 1}}, .way_of_all = ""};
  EXPECT_EQ(deaf(pair_in_one_subnet()), "");
  kernel = {.filters = {{"nic0", 1}, {"nic1", 1}}, .way_of_all = "nic0"};
  EXPECT_EQ(deaf({{"nic0", Address::ipv4(10, 1, 0, 1, 24), {}}, {"nic1", Address::ipv4(10, 1, 1, 1, 24), {}}}), "")
      << "a subnet each";
}

TEST(ReversePath, AnAddressOfThisHostIsNoNeighbourToAskTheWayTo) {
  kernel = {.filters = {{"nic0", 1}, {"nic1", 1}}, .way_of_all = "nic0", .own_besides = {"10.1.0.2", "10.1.0.3"}};
  EXPECT_NE(deaf(pair_in_one_subnet()), "");
  // 10.1.0.0/30 holds only this host.
  kernel.own_besides = {"10.1.0.1", "10.1.0.2", "10.1.0.3"};
  EXPECT_EQ(deaf({{"nic0", Address::ipv4(10, 1, 0, 1, 30), {}}, {"nic1", Address::ipv4(10, 1, 0, 2, 30), {}}}), "");
}

TEST(ReversePath, TheKernelSaysNoDeviceTowardsItself) {
  const Address self = Address::ipv4(127, 0, 0, 1);
  EXPECT_EQ(device_towards(self, Address::ipv4(127, 0, 0, 9)), "");
  EXPECT_EQ(device_towards(self, Address::parse("::1").value()), "") << "IPv4 only";
}

}  // namespace
}  // namespace canarynet

#include "discovery/routes.h"

#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <cstring>

namespace canarynet {
namespace {

std::string device(unsigned number) { return number < 10 ? "nic" + std::to_string(number) : ""; }

Network net(const char* text) { return Network::of(Address::parse(text).value()); }

// One RTM_NEWROUTE message as the kernel writes it.
class Message {
 public:
  Message(unsigned char family, unsigned char bits, unsigned char table = RT_TABLE_MAIN,
          unsigned char type = RTN_UNICAST) {
    rtmsg route{};
    route.rtm_family = family;
    route.rtm_dst_len = bits;
    route.rtm_table = table;
    route.rtm_type = type;
    put(&route, sizeof route);
  }
  Message& with(unsigned short type, const std::vector<unsigned char>& value) {
    rtattr head{};
    head.rta_len = static_cast<unsigned short>(sizeof head + value.size());
    head.rta_type = type;
    put(&head, sizeof head);
    put(value.data(), value.size());
    return *this;
  }
  Message& out_of(unsigned char number) { return with(RTA_OIF, {number, 0, 0, 0}); }
  std::vector<std::byte> bytes(unsigned short type = RTM_NEWROUTE) const {
    nlmsghdr head{};
    head.nlmsg_len = static_cast<unsigned>(sizeof head + body_.size());
    head.nlmsg_type = type;
    std::vector<std::byte> out(sizeof head);
    std::memcpy(out.data(), &head, sizeof head);
    out.insert(out.end(), body_.begin(), body_.end());
    return out;
  }

 private:
  void put(const void* data, std::size_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    body_.insert(body_.end(), from, from + size);
    body_.resize((body_.size() + 3) & ~std::size_t{3});
  }
  std::vector<std::byte> body_;
};

std::vector<Network> read(const std::vector<std::byte>& bytes, const std::string& of) {
  std::vector<DeviceRoute> routes;
  EXPECT_TRUE(read_routes(bytes, device, &routes));
  std::vector<Network> out;
  for (const DeviceRoute& r : routes) {
    if (r.device == of) out.push_back(r.network);
  }
  return out;
}

TEST(ReadRoutes, TellsNetworkAndDevice) {
  EXPECT_EQ(read(Message(AF_INET, 24).with(RTA_DST, {10, 61, 0, 0}).out_of(2).bytes(), "nic2"),
            std::vector<Network>{net("10.61.0.0/24")});
  EXPECT_EQ(read(Message(AF_INET, 0).out_of(1).bytes(), "nic1"),
            std::vector<Network>{Network::everything(Address::Family::kIPv4)});
  EXPECT_EQ(
      read(Message(AF_INET6, 16).with(RTA_DST, {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}).out_of(3).bytes(),
           "nic3"),
      std::vector<Network>{net("fd00::/16")});
}

TEST(ReadRoutes, TakesEveryNextHop) {
  std::vector<unsigned char> hops(2 * sizeof(rtnexthop));
  for (int i = 0; i < 2; ++i) {
    rtnexthop hop{};
    hop.rtnh_len = sizeof hop;
    hop.rtnh_ifindex = 4 + i;
    std::memcpy(hops.data() + i * sizeof hop, &hop, sizeof hop);
  }
  const auto bytes = Message(AF_INET, 8).with(RTA_DST, {10, 0, 0, 0}).with(RTA_MULTIPATH, hops).bytes();
  EXPECT_EQ(read(bytes, "nic4"), std::vector<Network>{net("10.0.0.0/8")});
  EXPECT_EQ(read(bytes, "nic5"), std::vector<Network>{net("10.0.0.0/8")});
}

TEST(ReadRoutes, LeavesOutWhatLeadsNowhere) {
  const std::vector<unsigned char> ten = {10, 61, 0, 0};
  for (const Message& m :
       {Message(AF_INET, 24, RT_TABLE_LOCAL).with(RTA_DST, ten).out_of(2),
        Message(AF_INET, 24, RT_TABLE_UNSPEC).with(RTA_DST, ten).out_of(2).with(RTA_TABLE, {255, 0, 0, 0}),
        Message(AF_INET, 24, RT_TABLE_MAIN, RTN_UNREACHABLE).with(RTA_DST, ten).out_of(2),
        Message(AF_INET, 16).with(RTA_DST, {169, 254, 0, 0}).out_of(2),
        Message(AF_INET, 40).with(RTA_DST, ten).out_of(2)})
    EXPECT_TRUE(read(m.bytes(), "nic2").empty());
}

TEST(ReadRoutes, StopsAtTheEndAndAtWhatIsMalformed) {
  std::vector<DeviceRoute> routes;
  EXPECT_FALSE(read_routes(Message(AF_INET, 0).bytes(NLMSG_DONE), device, &routes));
  auto bytes = Message(AF_INET, 0).out_of(1).bytes();
  bytes.resize(bytes.size() - 1);
  EXPECT_FALSE(read_routes(bytes, device, &routes));
  EXPECT_TRUE(routes.empty());
  bytes = Message(AF_INET, 0).out_of(1).bytes();
  bytes[sizeof(nlmsghdr) + sizeof(rtmsg)] = std::byte{0xff};  // the attribute's length: longer than its message
  EXPECT_TRUE(read_routes(bytes, device, &routes));
  EXPECT_TRUE(routes.empty());
}

TEST(Beyond, IsWhatLiesOutsideOfTheSubnet) {
  const std::vector<DeviceRoute> routes = {{"nic0", net("10.60.0.0/24")},
                                           {"nic0", net("10.61.0.0/24")},
                                           {"nic1", net("10.62.0.0/24")},
                                           {"nic0", net("fd00::/16")}};
  const Address own = Address::parse("10.60.0.2/24").value();
  EXPECT_EQ(beyond(routes, "nic0", own), std::vector<Network>{net("10.61.0.0/24")});
  EXPECT_TRUE(beyond(routes, "nic2", own).empty());
  EXPECT_TRUE(beyond(routes, "nic0", Address::ipv4(127, 0, 0, 1, 8)).empty());
}

TEST(ListRoutes, TheKernelAnswers) { EXPECT_TRUE(list_routes().ok()) << list_routes().status().text(); }

}  // namespace
}  // namespace canarynet

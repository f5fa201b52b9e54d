// embed/rail_bed_test_util.h -- for tests: two hosts of two NICs each, made of network namespaces and virtual Ethernet
// devices, behind a router, behind a gateway with addresses of /32, or with all four NICs in one subnet on one switch
// and the kernel's own sysctls. Needs root; the namespaces hang on descriptors of this process and vanish with it.
#pragma once

#include <fcntl.h>
#include <sched.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "embed/connections_test_util.h"

namespace canarynet::test {

enum class Wires { kRouted, kRoutedIPv6, kPointToPoint, kOneSubnet, kOneSubnetIPv6 };

inline bool ipv6(Wires wires) { return wires == Wires::kRoutedIPv6 || wires == Wires::kOneSubnetIPv6; }
inline bool one_subnet(Wires wires) { return wires == Wires::kOneSubnet || wires == Wires::kOneSubnetIPv6; }

inline std::string name_of(Wires wires) {
  constexpr const char* kNames[] = {"Routed", "RoutedIPv6", "PointToPoint", "OneSubnet", "OneSubnetIPv6"};
  return kNames[static_cast<std::size_t>(wires)];
}

// Hosts 0 and 1, and the router or switch (2) between them.
class Bed {
 public:
  ~Bed() {
    if (home_ >= 0) enter(home_);
    for (const int fd : {home_, spaces_[0], spaces_[1], spaces_[2]}) {
      if (fd >= 0) ::close(fd);
    }
  }
  // Says what can't be had here; "" when the bed stands.
  std::string build(Wires wires) {
    home_ = own_space();
    for (int& space : spaces_) {
      if (::unshare(CLONE_NEWNET) != 0) return "making a network namespace needs root";
      space = own_space();
      // As Linux and most distributions have it, whatever this machine has.
      for (const char* name : {"arp_ignore=0", "arp_announce=0", "rp_filter=2"}) {
        shell(std::string("for scope in all default; do sysctl -qw net.ipv4.conf.$scope.").append(name) + "; done");
      }
      shell("ip link set lo up");
    }
    const std::string bridge = "ip link add name sw type bridge stp_state 0 forward_delay 0 && ip link set sw up";
    if (one_subnet(wires) && !in(spaces_[2], bridge)) return "bridges are missing here";
    for (int host : {0, 1}) {
      for (int nic : {0, 1}) {
        if (!plug_in(wires, host, nic)) return "the ip tool or veth devices are missing here";
      }
    }
    enter(home_);
    return "";
  }
  void enter_host(int host) const { enter(spaces_[host]); }
  // A command in a host's namespace; whether it went well.
  bool at_host(int host, const std::string& command) const {
    const bool done = in(spaces_[host], command);
    enter(home_);
    return done;
  }
  static std::string hardware_address(int host, int nic) {
    return "02:00:00:00:0" + std::to_string(host) + ":0" + std::to_string(nic);
  }
  static bool shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }
  static std::string address_of(Wires wires, int host, int nic) {
    const std::string h = std::to_string(host), k = std::to_string(nic);
    if (wires == Wires::kRoutedIPv6) return "fd00:" + k + ":" + h + "::2";
    if (wires == Wires::kPointToPoint) return "10.128." + k + "." + std::to_string(2 + host);
    if (wires == Wires::kOneSubnetIPv6) return "fd00::" + k + ":" + std::to_string(1 + host);
    if (wires == Wires::kOneSubnet) return "10.140." + k + "." + std::to_string(1 + host);
    return "10." + std::to_string(60 + 10 * nic + host) + ".0.2";
  }

 private:
  static int own_space() { return ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC); }
  static void enter(int space) { ASSERT_EQ(::setns(space, CLONE_NEWNET), 0); }
  static bool in(int space, const std::string& command) {
    enter(space);
    return shell(command);
  }
  bool plug_in(Wires wires, int host, int nic) const {
    const std::string k = std::to_string(nic), port = "p" + std::to_string(host) + k, dev = " dev nic" + k;
    const std::string address = address_of(wires, host, nic);
    const std::string prefix = ipv6(wires)                     ? "/64 nodad"
                               : wires == Wires::kRouted       ? "/24"
                               : wires == Wires::kPointToPoint ? "/32"
                                                               : "/16";
    std::string gateway = wires == Wires::kPointToPoint ? "10.128." + k + ".1" : address;
    gateway.back() = '1';
    const std::string there = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(spaces_[2]);
    const std::string metric = " metric " + std::to_string(100 + nic);
    const std::string ip = wires == Wires::kRoutedIPv6 ? "ip -6 " : "ip ";
    bool done = in(spaces_[host], "ip link add nic" + k + " address " + hardware_address(host, nic) +
                                      " type veth peer name " + port + " && ip link set " + port + " netns " + there +
                                      " && ip link set nic" + k + " up && ip addr add " + address + prefix + dev);
    // The port that was plugged in last is the first that a switch floods: the second NIC answers ARP before the first.
    if (one_subnet(wires)) return done && in(spaces_[2], "ip link set " + port + " master sw up");
    done = done && in(spaces_[2], "ip link set " + port + " up && ip addr add " + gateway + prefix + " dev " + port +
                                      " && sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    if (wires == Wires::kPointToPoint) {
      done = done && in(spaces_[2], "ip route add " + address + " dev " + port);
      done = done && in(spaces_[host], "ip route add " + gateway + dev);
    }
    return done && in(spaces_[host], ip + "route add default via " + gateway + dev + metric);
  }

  int home_ = -1;
  int spaces_[3] = {-1, -1, -1};
};

// Four sums of 8 MiB by two ranks; what is wrong about them.
inline std::string sum_rounds(canary_context* context, int rank) {
  std::vector<float> mine(2 << 20), sum(mine.size());
  for (int round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<float>((i + rank + round) % 1000);
    const auto status =
        canary_all_reduce(canary_world(context), mine.data(), sum.data(), mine.size(), CANARY_F32, CANARY_SUM, nullptr);
    if (status != CANARY_OK) return last_error().message;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      if (sum[i] != static_cast<float>((i + round) % 1000 + (i + 1 + round) % 1000))
        return "element " + std::to_string(i) + " of round " + std::to_string(round) + " is wrong";
    }
  }
  return "";
}

// Whether every one of the first two NICs has one lane, in time.
inline bool both_nics_up(canary_context* context) {
  return poll_until([&] {
    canary_nic_stats nics[4] = {};
    std::size_t count = 0;
    EXPECT_EQ(canary_stats(context, nics, 4, &count), CANARY_OK);
    return nics[0].lanes_up == 1 && nics[1].lanes_up == 1;
  });
}

class RailsNamespaceTest : public ::testing::TestWithParam<Wires> {
 protected:
  void SetUp() override {
    const std::string missing = bed_.build(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  static Strings settings(int host, const std::string& pairing) {
    return {"insecure=1", "host_id=host-" + std::to_string(host), "join_timeout=20s", "rail_pairing=" + pairing};
  }
  // The reports of both hosts' processes.
  std::vector<std::string> on_hosts(const std::function<std::string(int host)>& body) {
    std::vector<std::unique_ptr<Process>> processes;
    for (int host : {0, 1}) {
      processes.push_back(std::make_unique<Process>([&, host] {
        bed_.enter_host(host);
        return body(host);
      }));
    }
    std::vector<std::string> out;
    for (auto& p : processes) out.push_back(p->report());
    return out;
  }
  std::string join() const {
    const std::string address = Bed::address_of(GetParam(), 0, 0);
    return "tcp://" + (ipv6(GetParam()) ? "[" + address + "]" : address) + ":29400";
  }

  Bed bed_;
};

}  // namespace canarynet::test

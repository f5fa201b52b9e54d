// Rails beyond one subnet over real (virtual Ethernet) devices: two hosts of two NICs each, made of network namespaces,
// behind a router, behind a gateway with addresses of /32, and all four NICs in one subnet on one switch, with the
// kernel's own sysctls. Needs root; the namespaces hang on descriptors of this process and vanish with it.
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/syscall.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "embed/connections_test_util.h"

namespace canarynet {
namespace {

using test::bytes_of;
using test::Handle;
using test::Process;
using test::Strings;

enum class Wires { kRouted, kRoutedIPv6, kPointToPoint, kOneSubnet, kOneSubnetIPv6 };

bool ipv6(Wires wires) { return wires == Wires::kRoutedIPv6 || wires == Wires::kOneSubnetIPv6; }
bool one_subnet(Wires wires) { return wires == Wires::kOneSubnet || wires == Wires::kOneSubnetIPv6; }

std::string name_of(Wires wires) {
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
  // What can't be had here; "" when the bed stands.
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
std::string sum_rounds(canary_context* context, int rank) {
  std::vector<float> mine(2 << 20), sum(mine.size());
  for (int round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<float>((i + rank + round) % 1000);
    const auto status =
        canary_all_reduce(canary_world(context), mine.data(), sum.data(), mine.size(), CANARY_F32, CANARY_SUM, nullptr);
    if (status != CANARY_OK) return test::last_error().message;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      if (sum[i] != static_cast<float>((i + round) % 1000 + (i + 1 + round) % 1000))
        return "element " + std::to_string(i) + " of round " + std::to_string(round) + " is wrong";
    }
  }
  return "";
}

// Whether every one of the first two NICs has one lane, in time.
bool both_nics_up(canary_context* context) {
  return test::poll_until([&] {
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
  // What both hosts' processes report.
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

INSTANTIATE_TEST_SUITE_P(Wires, RailsNamespaceTest,
                         ::testing::Values(Wires::kRouted, Wires::kRoutedIPv6, Wires::kPointToPoint, Wires::kOneSubnet,
                                           Wires::kOneSubnetIPv6),
                         [](const ::testing::TestParamInfo<Wires>& wires) { return name_of(wires.param); });

TEST_P(RailsNamespaceTest, AJobUsesEveryNicAndSumsExactly) {
  const auto reports = on_hosts([&](int host) -> std::string {
    canary_context* context = nullptr;
    if (test::init(join(), host, 2, settings(host, "auto"), &context) != CANARY_OK) return test::last_error().message;
    canary_nic_stats nics[4] = {};
    std::size_t count = 0;
    // An IPv6 link asks for its neighbours a second or two after it is up; so long it takes, too, until a neighbour that
    // was told a wrong hardware address has the right one.
    both_nics_up(context);
    if (std::string wrong = sum_rounds(context, host); !wrong.empty()) return wrong;
    EXPECT_EQ(canary_stats(context, nics, 4, &count), CANARY_OK);
    std::string out;
    for (std::size_t i = 0; i < 2; ++i) {
      // 4 x 8 MiB, half of each sent twice: two NICs that may use any rate share them about evenly.
      if (nics[i].transmit_bytes < 2'000'000) out += std::string(nics[i].device) + " carried next to nothing; ";
      if (nics[i].lanes_up != 1) out += std::string(nics[i].device) + " has not one lane; ";
    }
    // Nobody leaves before the other has counted.
    EXPECT_EQ(canary_barrier(canary_world(context), nullptr), CANARY_OK);
    EXPECT_EQ(canary_finalize(context), CANARY_OK);
    return out;
  });
  EXPECT_EQ(reports[0], "");
  EXPECT_EQ(reports[1], "");
}

TEST_P(RailsNamespaceTest, PairedBySubnetOnlyRanksCannotMeetAndTheErrorSaysWho) {
  if (one_subnet(GetParam())) GTEST_SKIP() << "they share one";
  const auto reports = on_hosts([&](int host) -> std::string {
    canary_context* context = nullptr;
    if (test::init(join(), host, 2, settings(host, "subnet"), &context) != CANARY_OK) return test::last_error().message;
    float x = 1;
    const auto status = canary_all_reduce(canary_world(context), &x, &x, 1, CANARY_F32, CANARY_SUM, nullptr);
    std::string message = test::last_error().message;
    EXPECT_EQ(status, CANARY_UNREACHABLE) << message;
    EXPECT_EQ(canary_finalize(context), CANARY_OK);
    return message;
  });
  for (const std::string& message : reports) {
    EXPECT_NE(message.find("ranks 0 and 1"), std::string::npos) << message;
    EXPECT_NE(message.find("CANARY_RAIL_PAIRING"), std::string::npos) << message;
  }
}

TEST_P(RailsNamespaceTest, AConnectionUsesEveryNicAndDeliversExactly) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const auto data = bytes_of(7, 16 << 20);
  const auto reports = on_hosts([&](int host) -> std::string {
    Strings all = settings(host, "auto");
    all.push_back("rails=nic0,nic1");
    test::TestEndpoint endpoint(all);
    if (endpoint.raw == nullptr) return "no endpoint";
    Handle handle{};
    std::string out;
    if (host == 0) {
      canary_listener* listener = endpoint.listen(&handle);
      EXPECT_EQ(::write(pipe_ends[1], handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
      canary_connection* c = test::accept(listener);
      std::vector<std::uint8_t> in(data.size());
      for (std::uint8_t more = 1; more != 0;) {
        std::fill(in.begin(), in.end(), std::uint8_t{0});
        EXPECT_EQ(test::wait(test::receive(c, in.data(), in.size())), CANARY_OK) << test::last_error().message;
        if (in != data) out = "the bytes are not those that were sent";
        EXPECT_EQ(test::wait(test::receive(c, &more, 1)), CANARY_OK) << test::last_error().message;
      }
      // The other way, too, so that the sender can leave.
      EXPECT_EQ(test::wait(test::send(c, in.data(), 1)), CANARY_OK);
      EXPECT_EQ(canary_close(c), CANARY_OK);
      EXPECT_EQ(canary_close_listener(listener), CANARY_OK);
    } else {
      EXPECT_EQ(::read(pipe_ends[0], handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
      canary_connection* c = test::connect(endpoint, handle);
      // The second NIC's lane may come up a little later than the first one's.
      const auto began = std::chrono::steady_clock::now();
      for (std::uint8_t more = 1; more != 0;) {
        EXPECT_EQ(test::wait(test::send(c, data.data(), data.size())), CANARY_OK) << test::last_error().message;
        canary_nic_stats nics[4] = {};
        std::size_t count = 0;
        EXPECT_EQ(canary_endpoint_stats(endpoint.raw, nics, 4, &count), CANARY_OK);
        const bool both = nics[0].transmit_bytes >= data.size() / 4 && nics[1].transmit_bytes >= data.size() / 4;
        more = both || test::seconds_since(began) > 20 ? 0 : 1;
        if (more == 0 && !both) out = "one NIC carried next to nothing";
        EXPECT_EQ(test::wait(test::send(c, &more, 1)), CANARY_OK);
      }
      std::uint8_t last = 0;
      EXPECT_EQ(test::wait(test::receive(c, &last, 1)), CANARY_OK);
      EXPECT_EQ(canary_close(c), CANARY_OK);
    }
    return out;
  });
  EXPECT_EQ(reports[0], "");
  EXPECT_EQ(reports[1], "");
  for (const int fd : pipe_ends) ::close(fd);
}

// All NICs in one subnet.
class OneSubnetTest : public RailsNamespaceTest {
 protected:
  // Warnings of this process about shared subnets.
  static std::vector<std::string>& warnings() {
    static std::vector<std::string> lines;
    return lines;
  }
  static void collect_warnings() {
    canary_set_log(
        [](void*, int, const char* line, std::size_t length) {
          std::string text(line, length);
          if (text.find("shares") != std::string::npos) warnings().push_back(std::move(text));
        },
        nullptr, 2);
  }
};

INSTANTIATE_TEST_SUITE_P(Wires, OneSubnetTest, ::testing::Values(Wires::kOneSubnet),
                         [](const ::testing::TestParamInfo<Wires>& wires) { return name_of(wires.param); });

// Whether this process, without any capability, may still bind a socket to a device (since Linux 5.7).
bool drop_capabilities() {
  __user_cap_header_struct head{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct none[2] = {};
  EXPECT_EQ(::syscall(SYS_capset, &head, none), 0);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool allowed = ::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "nic0", 4) == 0;
  ::close(fd);
  return allowed;
}

TEST_P(OneSubnetTest, EveryNicServesAProcessWithoutPrivileges) {
  const auto reports = on_hosts([&](int host) -> std::string {
    if (!drop_capabilities()) return "not here";
    collect_warnings();
    canary_context* context = nullptr;
    if (test::init(join(), host, 2, settings(host, "auto"), &context) != CANARY_OK) return test::last_error().message;
    std::string out = both_nics_up(context) ? "" : "one NIC has no lane";
    out += sum_rounds(context, host);
    for (const std::string& line : warnings()) out += line;
    EXPECT_EQ(canary_finalize(context), CANARY_OK);
    return out;
  });
  if (reports[0] == "not here") GTEST_SKIP() << "only root may bind to a device here";
  EXPECT_EQ(reports[0], "");
  EXPECT_EQ(reports[1], "");
}

TEST_P(OneSubnetTest, UnderAStrictFilterOneWarningNamesTheSysctlsAndTheJobGoesOn) {
  for (int host : {0, 1}) {
    ASSERT_TRUE(bed_.at_host(
        host,
        "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.nic0.rp_filter=1 net.ipv4.conf.nic1.rp_filter=1"));
  }
  const auto reports = on_hosts([&](int host) -> std::string {
    collect_warnings();
    // An endpoint of the same process has nothing new to say.
    Strings of_endpoint = settings(host, "auto");
    of_endpoint.push_back("rails=nic0,nic1");
    const test::TestEndpoint endpoint(of_endpoint);
    canary_context* context = nullptr;
    if (test::init(join(), host, 2, settings(host, "auto"), &context) != CANARY_OK) return test::last_error().message;
    if (std::string wrong = sum_rounds(context, host); !wrong.empty()) return wrong;
    canary_nic_stats nics[4] = {};
    std::size_t count = 0;
    EXPECT_EQ(canary_stats(context, nics, 4, &count), CANARY_OK);
    EXPECT_EQ(nics[0].lanes_up, 1u);
    EXPECT_EQ(nics[1].lanes_up, 0u) << "nic1 was to hear nothing";
    EXPECT_EQ(canary_barrier(canary_world(context), nullptr), CANARY_OK);
    EXPECT_EQ(canary_finalize(context), CANARY_OK);
    EXPECT_EQ(warnings().size(), 1u);
    return warnings().empty() ? "" : warnings()[0];
  });
  for (int host : {0, 1}) {
    const std::string& said = reports[static_cast<std::size_t>(host)];
    const std::string nics = "nic1 (" + Bed::address_of(GetParam(), host, 1) + ") shares 10.140.0.0/16 with nic0 (" +
                             Bed::address_of(GetParam(), host, 0) + ")";
    for (const std::string& part : {nics, std::string("rp_filter is 1 (strict) for nic1"),
                                    std::string("leads over nic0"), std::string("net.ipv4.conf.all.rp_filter=2")}) {
      EXPECT_NE(said.find(part), std::string::npos) << part << " is missing: " << said;
    }
  }
}

TEST_P(OneSubnetTest, WhatNoAnnouncementPutsRightIsWarnedOfOnce) {
  const auto reports = on_hosts([&](int host) -> std::string {
    collect_warnings();
    // An administrator's word counts more than any announcement. Host 0 dials.
    if (host == 0) {
      EXPECT_TRUE(Bed::shell("ip neigh replace " + Bed::address_of(GetParam(), 1, 0) + " lladdr " +
                             Bed::hardware_address(1, 1) + " dev nic0 nud permanent"));
    }
    canary_context* context = nullptr;
    if (test::init(join(), host, 2, settings(host, "auto"), &context) != CANARY_OK) return test::last_error().message;
    EXPECT_EQ(sum_rounds(context, host), "");
    // Only the host that is dialled can know.
    const auto began = std::chrono::steady_clock::now();
    float known = 0;
    while (known == 0 && test::seconds_since(began) < (test::sanitized() ? 60 : 20)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const float mine = warnings().empty() ? 0 : 1;
      EXPECT_EQ(canary_all_reduce(canary_world(context), &mine, &known, 1, CANARY_F32, CANARY_MAX, nullptr), CANARY_OK);
    }
    EXPECT_EQ(canary_finalize(context), CANARY_OK);
    EXPECT_LE(warnings().size(), 1u);
    return warnings().empty() ? "" : warnings()[0];
  });
  EXPECT_EQ(reports[0], "");
  const std::string& said = reports[1];
  for (const char* part : {"what comes from 10.140.0.1 ", "for nic0 keeps arriving at another NIC",
                           "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2"}) {
    EXPECT_NE(said.find(part), std::string::npos) << part << " is missing: " << said;
  }
}

TEST_P(OneSubnetTest, ANeighbourThatForgetsWhichNicItIsIsToldAgain) {
  const auto reports = on_hosts([&](int host) -> std::string {
    canary_context* context = nullptr;
    if (test::init(join(), host, 2, settings(host, "auto"), &context) != CANARY_OK) return test::last_error().message;
    if (!both_nics_up(context)) return "one NIC has no lane";
    if (std::string wrong = sum_rounds(context, host); !wrong.empty()) return wrong;
    canary_nic_stats nics[4] = {};
    std::size_t count = 0;
    EXPECT_EQ(canary_stats(context, nics, 4, &count), CANARY_OK);
    const auto failovers = nics[0].failovers;
    // What either sends by its first NIC comes in by the other's second one from here on.
    EXPECT_TRUE(Bed::shell("ip neigh replace " + Bed::address_of(GetParam(), 1 - host, 0) + " lladdr " +
                           Bed::hardware_address(1 - host, 1) + " dev nic0 nud reachable"));
    EXPECT_TRUE(test::poll_until([&] {
      EXPECT_EQ(canary_stats(context, nics, 4, &count), CANARY_OK);
      return nics[0].failovers > failovers;
    })) << "the lane of nic0 did not notice";
    std::string out = sum_rounds(context, host);
    if (!both_nics_up(context)) out += "nic0 did not come back";
    out += sum_rounds(context, host);
    EXPECT_EQ(canary_barrier(canary_world(context), nullptr), CANARY_OK);
    EXPECT_EQ(canary_finalize(context), CANARY_OK);
    return out;
  });
  EXPECT_EQ(reports[0], "");
  EXPECT_EQ(reports[1], "");
}

}  // namespace
}  // namespace canarynet

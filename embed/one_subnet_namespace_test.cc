// All NICs of two hosts in one subnet, with the kernel's own sysctls: what it takes to use them, what puts them right,
// and what is said where nothing can. Needs root.
#include <linux/capability.h>
#include <sys/syscall.h>

#include "embed/rail_bed_test_util.h"

namespace canarynet {
namespace {

using test::Bed;
using test::both_nics_up;
using test::RailsNamespaceTest;
using test::Strings;
using test::sum_rounds;
using test::Wires;

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
    // From here on, everything that either sends by its first NIC comes in by the other's second one.
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

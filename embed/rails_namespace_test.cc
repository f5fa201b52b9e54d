// Rails beyond one subnet over real (virtual Ethernet) devices: two hosts of two NICs each, made of network namespaces,
// behind a router, behind a gateway with addresses of /32, and on one switch. Needs root; the namespaces hang on
// descriptors of this process and vanish with it.
#include <fcntl.h>
#include <sched.h>

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

enum class Wires { kRouted, kRoutedIPv6, kPointToPoint };

// Hosts 0 and 1, and the router (2) between them.
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
      shell("ip link set lo up");
    }
    for (int host : {0, 1}) {
      for (int nic : {0, 1}) {
        if (!plug_in(wires, host, nic)) return "the ip tool or veth devices are missing here";
      }
    }
    enter(home_);
    return "";
  }
  void enter_host(int host) const { enter(spaces_[host]); }
  static std::string address_of(Wires wires, int host, int nic) {
    const std::string h = std::to_string(host), k = std::to_string(nic);
    if (wires == Wires::kRoutedIPv6) return "fd00:" + k + ":" + h + "::2";
    if (wires == Wires::kPointToPoint) return "10.128." + k + "." + std::to_string(2 + host);
    return "10." + std::to_string(60 + 10 * nic + host) + ".0.2";
  }

 private:
  static int own_space() { return ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC); }
  static void enter(int space) { ASSERT_EQ(::setns(space, CLONE_NEWNET), 0); }
  static bool shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }
  static bool in(int space, const std::string& command) {
    enter(space);
    return shell(command);
  }
  bool plug_in(Wires wires, int host, int nic) const {
    const std::string k = std::to_string(nic), port = "p" + std::to_string(host) + k, dev = " dev nic" + k;
    const std::string address = address_of(wires, host, nic);
    const std::string prefix = wires == Wires::kRoutedIPv6 ? "/64 nodad" : wires == Wires::kRouted ? "/24" : "/32";
    std::string gateway = wires == Wires::kPointToPoint ? "10.128." + k + ".1" : address;
    gateway.back() = '1';
    const std::string there = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(spaces_[2]);
    const std::string metric = " metric " + std::to_string(100 + nic);
    const std::string ip = wires == Wires::kRoutedIPv6 ? "ip -6 " : "ip ";
    bool done = in(spaces_[host], "ip link add nic" + k + " type veth peer name " + port + " && ip link set " + port +
                                      " netns " + there + " && ip link set nic" + k + " up && ip addr add " + address +
                                      prefix + dev);
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
    return "tcp://" + (GetParam() == Wires::kRoutedIPv6 ? "[" + address + "]" : address) + ":29400";
  }

  Bed bed_;
};

INSTANTIATE_TEST_SUITE_P(Wires, RailsNamespaceTest,
                         ::testing::Values(Wires::kRouted, Wires::kRoutedIPv6, Wires::kPointToPoint),
                         [](const ::testing::TestParamInfo<Wires>& wires) {
                           return wires.param == Wires::kRouted       ? "Routed"
                                  : wires.param == Wires::kRoutedIPv6 ? "RoutedIPv6"
                                                                      : "PointToPoint";
                         });

TEST_P(RailsNamespaceTest, AJobUsesEveryNicAndSumsExactly) {
  const auto reports = on_hosts([&](int host) -> std::string {
    canary_context* context = nullptr;
    if (test::init(join(), host, 2, settings(host, "auto"), &context) != CANARY_OK) return test::last_error().message;
    canary_nic_stats nics[4] = {};
    std::size_t count = 0;
    // An IPv6 link asks for its neighbours a second or two after it is up.
    test::poll_until([&] {
      EXPECT_EQ(canary_stats(context, nics, 4, &count), CANARY_OK);
      return nics[0].lanes_up == 1 && nics[1].lanes_up == 1;
    });
    std::vector<float> mine(2 << 20), sum(mine.size());
    for (int round = 0; round < 4; ++round) {
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<float>((i + host + round) % 1000);
      const auto status = canary_all_reduce(canary_world(context), mine.data(), sum.data(), mine.size(), CANARY_F32,
                                            CANARY_SUM, nullptr);
      if (status != CANARY_OK) return test::last_error().message;
      for (std::size_t i = 0; i < sum.size(); ++i) {
        if (sum[i] != static_cast<float>((i + round) % 1000 + (i + 1 + round) % 1000))
          return "element " + std::to_string(i) + " of round " + std::to_string(round) + " is wrong";
      }
    }
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

}  // namespace
}  // namespace canarynet

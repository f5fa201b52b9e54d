// Lanes over real (virtual Ethernet) devices: two network namespaces, two veth pairs on the same subnet, so that only
// binding to the device keeps each lane on its own rail. Needs root; the namespaces hang on descriptors of this process
// and vanish with it.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>

#include "transport/tcp/tcp_fixture.h"
#include "transport/tcp/way_losses.h"

namespace canarynet {
namespace {

using lane_test::Doorman;
using lane_test::make_header;
using lane_test::pattern_bytes;
using lane_test::Recorder;

bool shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

class TcpNamespaceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    home_ = Socket(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    for (Socket& ns : namespaces_) {
      if (::unshare(CLONE_NEWNET) != 0) GTEST_SKIP() << "making a network namespace needs root";
      ns = Socket(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    }
    // We are in namespace 1; the far ends of the pairs move to 0, named by a descriptor of this process.
    const std::string other = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(namespaces_[0].fd());
    bool done = true;
    for (int i = 0; i < 2; ++i) {
      const std::string n = std::to_string(i);
      done = done && shell("ip link add nic" + n + " type veth peer name far" + n + " && ip link set far" + n +
                           " netns " + other);
      done = done && shell("ip addr add 10.77.0." + std::to_string(20 + i) + "/24 dev nic" + n + " && ip link set nic" +
                           n + " up");
    }
    enter(0);
    for (int i = 0; i < 2; ++i) {
      const std::string n = std::to_string(i);
      done = done && shell("ip link set far" + n + " name nic" + n + " && ip addr add 10.77.0." +
                           std::to_string(10 + i) + "/24 dev nic" + n + " && ip link set nic" + n + " up");
    }
    if (!done) GTEST_SKIP() << "the ip tool or veth devices are missing here";
    for (int side : {0, 1}) {
      enter(side);
      // Two devices on one subnet answer ARP for each other's addresses unless told not to.
      ASSERT_TRUE(shell("ip link set lo up"));
      shell("sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.rp_filter=0");
      TcpOptions options;
      options.allow_non_loopback = true;
      options.congestion = "reno";  // which every kernel has
      for (int i = 0; i < 2; ++i) {
        Rail rail;
        rail.device = "nic" + std::to_string(i);
        rail.address = Address::ipv4(10, 77, 0, static_cast<std::uint8_t>((side == 0 ? 10 : 20) + i), 24);
        options.rails.push_back(rail);
      }
      auto made = TcpLaneFactory::create(options);
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      factories_[side] = made.take();
    }
    factories_[1]->set_acceptor(&doorman_);
  }
  void TearDown() override {
    doorman_.lanes.clear();
    ASSERT_EQ(::setns(home_.fd(), CLONE_NEWNET), 0);
  }
  void enter(int side) { ASSERT_EQ(::setns(namespaces_[side].fd(), CLONE_NEWNET), 0); }
  bool run_until(const std::function<bool()>& done, Nanos limit = 20_s) {
    const Nanos end = clock_.now() + limit;
    while (!done()) {
      if (clock_.now() >= end) return false;
      for (int side : {0, 1}) {
        factories_[side]->poll(clock_.now());
      }
    }
    return true;
  }
  std::uint64_t sent_by(int side, int rail) {
    // sysfs shows the namespace it was mounted in: ask the kernel by netlink, through ip.
    enter(side);
    FILE* pipe = ::popen(
        ("ip -s -o link show nic" + std::to_string(rail) + " | sed 's/.*TX:[^0-9]*//' | cut -d' ' -f1").c_str(), "r");
    unsigned long long bytes = 0;
    if (pipe != nullptr) {
      if (std::fscanf(pipe, "%llu", &bytes) != 1) bytes = 0;
      ::pclose(pipe);
    }
    return bytes;
  }

  SystemClock clock_;
  Socket home_;
  Socket namespaces_[2];
  Recorder near_sink_, far_sink_;
  Doorman doorman_{&far_sink_};
  std::unique_ptr<TcpLaneFactory> factories_[2];
};

TEST_F(TcpNamespaceTest, EachLaneStaysOnItsOwnDeviceInBothDirections) {
  const auto payload = pattern_bytes(1, 200'000);
  for (int rail : {0, 1}) {
    near_sink_ = Recorder();
    far_sink_ = Recorder();
    doorman_.lanes.clear();
    enter(0);
    auto lane = factories_[0]->dial(rail, factories_[1]->rails()[static_cast<std::size_t>(rail)].address, near_sink_);
    ASSERT_TRUE(lane.ok()) << lane.status().to_string();
    ASSERT_TRUE(run_until([&] { return near_sink_.ups == 1 && doorman_.lanes.size() == 1; })) << near_sink_.reason;
    EXPECT_TRUE(factories_[0]->notes().empty()) << factories_[0]->notes()[0];
    EXPECT_TRUE(factories_[1]->notes().empty()) << factories_[1]->notes()[0];
    std::uint64_t before[2][2];
    for (int side : {0, 1}) {
      for (int i : {0, 1}) before[side][i] = sent_by(side, i);
    }
    Lane& near = *lane.value();
    Lane& far = *doorman_.lanes[0];
    EXPECT_EQ(far.rail(), rail);
    for (Lane* each : {&near, &far}) {
      ASSERT_TRUE(each->send(make_header(1, payload), payload.data(), 1));
      each->flush(clock_.now());
    }
    ASSERT_TRUE(run_until([&] { return near_sink_.frames == 1 && far_sink_.frames == 1; }));
    for (int side : {0, 1}) {
      EXPECT_GT(sent_by(side, rail) - before[side][rail], payload.size()) << "side " << side;
      EXPECT_LT(sent_by(side, 1 - rail) - before[side][1 - rail], 5'000u)
          << "side " << side << " sent over the wrong device";
    }
    lane.value().reset();
  }
}

TEST_F(TcpNamespaceTest, PeerOnTheSameHostIsReachedFromAnyRail) {
  enter(1);
  for (std::size_t to : {0u, 1u}) {
    near_sink_ = Recorder();
    doorman_.lanes.clear();
    auto lane = factories_[1]->dial(0, factories_[1]->rails()[to].address, near_sink_);
    ASSERT_TRUE(lane.ok());
    ASSERT_TRUE(run_until([&] { return near_sink_.ups == 1 && doorman_.lanes.size() == 1; }, 5_s)) << near_sink_.reason;
    EXPECT_EQ(doorman_.lanes[0]->rail(), static_cast<int>(to));
    EXPECT_TRUE(factories_[1]->notes().empty());
    lane.value().reset();
  }
}

TEST_F(TcpNamespaceTest, TwoEnginesCannotListenOnOnePort) {
  enter(1);
  TcpOptions options;
  options.allow_non_loopback = true;
  options.rails = {factories_[1]->rails()[0]};
  auto second = TcpLaneFactory::create(options);
  ASSERT_FALSE(second.ok()) << "connections would be shared out between two engines";
  EXPECT_NE(second.status().text().find("10.77.0.20"), std::string::npos) << second.status().text();
}

TEST_F(TcpNamespaceTest, TwoEnginesOfSeveralNicsInOneSubnetCannotListenOnOnePort) {
  enter(1);
  TcpOptions options;
  options.allow_non_loopback = true;
  options.rails.assign(factories_[1]->rails().begin(), factories_[1]->rails().end());
  auto second = TcpLaneFactory::create(options);
  ASSERT_FALSE(second.ok()) << "connections would be shared out between two engines";
  EXPECT_NE(second.status().text().find("10.77.0.20"), std::string::npos) << second.status().text();
}

TEST_F(TcpNamespaceTest, AWayThatLosesPacketsIsToldOnceWithTheFigureAndWhatToSet) {
  enter(1);
  // A random number decides on each packet: one in twenty does not arrive.
  const bool loses =
      shell("tc qdisc add dev nic0 clsact") && shell(
                                                   "tc filter add dev nic0 ingress bpf da bytecode "
                                                   "'4,32 0 0 4294963256,53 1 0 214748364,6 0 0 2,6 0 0 4294967295'");
  if (!loses) GTEST_SKIP() << "the tc tool or its BPF filters are missing here";
  enter(0);
  auto lane = factories_[0]->dial(0, factories_[1]->rails()[0].address, near_sink_);
  ASSERT_TRUE(lane.ok()) << lane.status().to_string();
  ASSERT_TRUE(run_until([&] { return near_sink_.ups == 1 && doorman_.lanes.size() == 1; })) << near_sink_.reason;
  const auto payload = pattern_bytes(1, 100'000);
  std::vector<std::string> told;
  const auto carry = [&](int frames, const std::function<bool()>& enough) {
    int sent = far_sink_.frames;
    const int until = sent + frames;
    return run_until(
        [&] {
          for (; sent < far_sink_.frames + 4; ++sent) lane.value()->send(make_header(1, payload), payload.data(), 1);
          lane.value()->flush(clock_.now());
          if (std::string words = lane.value()->look_at_losses(); !words.empty()) told.push_back(words);
          return far_sink_.frames >= until || enough();
        },
        60_s);
  };
  if (!may_use_bbr()) {
    ASSERT_TRUE(carry(400, [&] { return !told.empty(); }));
    EXPECT_TRUE(told.empty()) << "nothing here would serve it better, yet: " << told[0];
    return;
  }
  // On a busy machine the round trip looks like a queue much of the time.
  ASSERT_TRUE(carry(100'000, [&] { return !told.empty(); }));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("reno"), std::string::npos) << told[0];
  EXPECT_NE(told[0].find("CANARY_TCP_CONGESTION=bbr"), std::string::npos) << told[0];
  const LaneCounters& counters = lane.value()->counters();
  EXPECT_GE(counters.segments_resent, LossWatch::kLostMin);
  EXPECT_GT(counters.segments_sent, counters.segments_resent * 2);
  ASSERT_TRUE(carry(20, [] { return false; }));
  EXPECT_EQ(told.size(), 1u) << "once is enough: " << told.back();
}

TEST_F(TcpNamespaceTest, DeadDeviceIsSilenceNotAHangup) {
  enter(0);
  auto lane = factories_[0]->dial(0, factories_[1]->rails()[0].address, near_sink_);
  ASSERT_TRUE(lane.ok());
  ASSERT_TRUE(run_until([&] { return near_sink_.ups == 1 && doorman_.lanes.size() == 1; }));
  enter(1);
  ASSERT_TRUE(shell("ip link set nic0 down"));
  const auto payload = pattern_bytes(1, 50'000);
  ASSERT_TRUE(lane.value()->send(make_header(1, payload), payload.data(), 1));
  lane.value()->flush(clock_.now());
  run_until([] { return false; }, 300_ms);
  EXPECT_EQ(near_sink_.downs, 0) << near_sink_.reason;
  EXPECT_EQ(far_sink_.frames, 0);
  EXPECT_TRUE(lane.value()->up());
  lane.value().reset();
}

}  // namespace
}  // namespace canarynet

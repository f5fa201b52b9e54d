// canary-run's hosts: reachability over each NIC, shaping, live changes, delay, loss, and that nothing is left behind.
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "tools/run/run_test_util.h"

namespace canarynet::run {
namespace {

constexpr int kPort = 5000;
constexpr uid_t kNobody = 65534;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string why_no_namespaces(bool root) {
  if (root && ::geteuid() != 0) return "needs root";
  const auto e = run(canary_run("-n 1 --hosts 1 -q", "true"));
  return e.code == 0 ? "" : "no network namespaces here: " + e.err;
}

class Hosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = why_no_namespaces(true); !why.empty()) GTEST_SKIP() << why;
  }

  // A job whose ranks take TCP connections until they are killed.
  void start_sinks(const std::string& arguments) {
    start(arguments, "exec " RUN_PROBE " sink 5000");
    ASSERT_TRUE(eventually([&] { return lines_of(job_->out()).size() == pids_in(job_->state(), "ranks").size(); }));
  }
  void start(const std::string& arguments, const std::string& script) {
    Job::Options o;
    o.environment = {census_.mark()};
    job_ = std::make_unique<Job>(canary_run(arguments, script), o);
    ASSERT_NE(job_->state(), "") << job_->err();
  }

  // Runs a command in a host, found through the state file from outside.
  Ended in_host(int host, std::vector<std::string> command) {
    const auto pids = pids_in(job_->state(), "hosts");
    command.insert(command.begin(), {"nsenter", "-n", "-t", std::to_string(pids.at(static_cast<std::size_t>(host)))});
    return run(command);
  }
  double mbit(int from, const std::string& address, int ms, const std::string& device) {
    const auto e = in_host(from, {RUN_PROBE, "blast", address, std::to_string(kPort), std::to_string(ms), device});
    EXPECT_EQ(e.code, 0) << e.err;
    return std::atof(e.out.c_str());
  }
  std::vector<std::string> reached(int from, const std::string& device, const std::vector<std::string>& addresses) {
    std::vector<std::string> command = {RUN_PROBE, "reach", std::to_string(kPort), device};
    command.insert(command.end(), addresses.begin(), addresses.end());
    return lines_of(in_host(from, command).out);
  }
  // A link that came up again carries only after a while: its carrier may be reported a second late, and a host that
  // asked for an address in vain asks again after another second.
  bool comes_back(int from, const std::string& device, const std::string& address) {
    for (int tries = 0; tries < 25; ++tries) {
      if (reached(from, device, {address}).size() == 1) return true;
    }
    return false;
  }
  void link(const std::string& change, int code = 0) {
    const auto e = run({CANARY_RUN, "link", state_path_in(job_->folder()), change});
    EXPECT_EQ(e.code, code) << e.err;
  }

  // The address of every (host, NIC), as the state file has it.
  using Addresses = std::map<std::pair<int, int>, std::string>;
  Addresses addresses() {
    Addresses found;
    const std::string state = job_->state();
    const std::string device = "\"device\": \"nic", address = "\"address\": \"";
    int host = -1, last = 1 << 30;
    for (auto at = state.find(device); at != std::string::npos; at = state.find(device, at + 1)) {
      const int k = static_cast<int>(number_after(state.substr(at), device));
      if (k <= last) ++host;
      last = k;
      const auto start = state.find(address, at) + address.size();
      found[{host, k}] = state.substr(start, state.find('"', start) - start);
    }
    return found;
  }
  static std::vector<std::string> of_other_hosts(const Addresses& all, int host) {
    std::vector<std::string> others;
    for (const auto& [place, address] : all) {
      if (place.first != host) others.push_back(address);
    }
    return others;
  }
  // Expects that each host over each NIC reaches just the hosts for which `joined(host, nic, other)`, and only on their
  // NIC of that switch.
  void expect_wiring(int hosts, int nics, const std::function<int(int, int, int)>& nic_of_other) {
    const auto all = addresses();
    ASSERT_EQ(all.size(), static_cast<std::size_t>(hosts * nics));
    for (int h = 0; h < hosts; ++h) {
      const std::vector<std::string> others = of_other_hosts(all, h);
      for (int k = 0; k < nics; ++k) {
        std::vector<std::string> expected;
        for (const auto& [place, address] : all) {
          if (place.first != h && nic_of_other(h, k, place.first) == place.second) expected.push_back(address);
        }
        EXPECT_EQ(reached(h, "nic" + std::to_string(k), others), expected) << "host " << h << " nic" << k;
      }
    }
  }

  // Expects that over each of its NICs a host reaches all NICs of all others.
  void expect_all_reached(int hosts, int nics) {
    const auto all = addresses();
    ASSERT_EQ(all.size(), static_cast<std::size_t>(hosts * nics));
    for (int h = 0; h < hosts; ++h) {
      const std::vector<std::string> others = of_other_hosts(all, h);
      for (int k = 0; k < nics; ++k) {
        EXPECT_EQ(reached(h, "nic" + std::to_string(k), others), others) << "host " << h << " nic" << k;
      }
    }
  }

  Census census_;
  std::unique_ptr<Job> job_;
};

// Shaped rate as TCP sees it: headers take 3.5 to 5 %.
void expect_rate(double got, double rate) {
  EXPECT_GT(got, rate * 0.85) << "Mbit/s";
  EXPECT_LT(got, rate * 1.1) << "Mbit/s";
}

TEST_F(Hosts, GiveRanksTheirEnvironmentAndAHostName) {
  const auto e = run(canary_run("-n 4 --hosts 2 --nics 2 -q",
                                "echo $CANARY_HOST_ID $(hostname) $CANARY_LOCAL_RANK/$CANARY_LOCAL_SIZE "
                                "$CANARY_JOIN $CANARY_INSECURE $CANARY_SOCKET_IFNAME $(ls /sys/class/net)"));
  EXPECT_EQ(e.code, 0) << e.err;
  auto lines = lines_of(e.out);
  std::sort(lines.begin(), lines.end());
  const std::string common = " tcp://10.0.0.1:29400 1 ^ctl0,lo ctl0 lo nic0 nic1";
  EXPECT_EQ(lines, (std::vector<std::string>{"[0] host-0 host-0 0/2" + common, "[1] host-0 host-0 1/2" + common,
                                             "[2] host-1 host-1 0/2" + common, "[3] host-1 host-1 1/2" + common}));
}

// The kernel unmounts mounts that only a dead process had before it closes that process's sockets; on a busy machine
// that took seconds in which its peers could not know.
TEST_F(Hosts, ADeadRanksMountsAreNotLeftToItsExit) {
  const auto e = run(canary_run("-n 2 --hosts 2 -q --no-prefix",
                                "f=${CANARY_RUN_STATE%/*}/mounts\n"
                                "if [ $CANARY_RANK = 1 ]; then readlink /proc/self/ns/mnt >$f.new; mv $f.new $f\n"
                                "else for i in $(seq 100); do [ -e $f ] && break; sleep 0.05; done; sleep 0.2\n"
                                "  readlink /proc/1/fd/* | grep -cxF \"$(cat $f)\"; fi"));
  EXPECT_EQ(e.out, "1\n") << e.err;
}

TEST_F(Hosts, WithoutCtlJoinOverNic0) {
  const auto e = run(canary_run("-n 2 --hosts 2 --no-ctl -q --no-prefix", "echo $CANARY_JOIN $(ls /sys/class/net)"));
  EXPECT_EQ(e.out, "tcp://10.1.0.1:29400 lo nic0\ntcp://10.1.0.1:29400 lo nic0\n") << e.err;
}

TEST_F(Hosts, FlatNicKReachesNicKOfAllOthers) {
  start_sinks("-n 3 --hosts 3 --nics 2");
  expect_wiring(3, 2, [](int, int k, int) { return k; });
}

TEST_F(Hosts, MeshHasALinkPerPair) {
  start_sinks("-n 3 --hosts 3 --topology mesh");
  expect_wiring(3, 2, [](int h, int k, int other) {
    const int meant = k < h ? k : k + 1;
    if (meant != other) return -1;
    return h < other ? h : h - 1;
  });
}

TEST_F(Hosts, BcubeLevelReachesHostsThatDifferInThatDigit) {
  start_sinks("-n 4 --hosts 4 --topology bcube:2,2");
  expect_wiring(4, 2, [](int h, int k, int other) { return (h ^ other) == (1 << k) ? k : -1; });
}

TEST_F(Hosts, BehindARouterEveryNicReachesEveryNicOfTheOthers) {
  for (const char* more : {"", " --ipv6", " --delay 1ms", " --ipv6 --delay 1ms"}) {
    start_sinks(std::string("-n 3 --hosts 3 --nics 2 --topology routed") + more);
    expect_all_reached(3, 2);
  }
}

TEST_F(Hosts, WithAddressesInNoSubnetEveryNicReachesEveryNicOfTheOthers) {
  for (const char* more : {"", " --ipv6", " --delay 1ms", " --ipv6 --delay 1ms"}) {
    start_sinks(std::string("-n 3 --hosts 3 --nics 2 --topology pointtopoint") + more);
    expect_all_reached(3, 2);
  }
}

TEST_F(Hosts, ARoutedPacketLeavesOverTheNicWhoseAddressItCarries) {
  for (const std::string topology : {"routed", "pointtopoint"}) {
    start_sinks("-n 2 --hosts 2 --nics 2 --topology " + topology);
    const auto all = addresses();
    for (const int k : {0, 1}) {
      const auto e = in_host(0, {"ip", "route", "get", all.at({1, 0}), "from", all.at({0, k})});
      EXPECT_TRUE(has(e.out, "dev nic" + std::to_string(k))) << topology << ": " << e.out << e.err;
    }
    EXPECT_TRUE(has(in_host(0, {"ip", "route", "get", all.at({1, 1})}).out, "dev nic0")) << "no address, no choice";
  }
}

TEST_F(Hosts, ARoutedNicThatWasDownHasItsAddressAndItsRoutesAgain) {
  for (const std::string more : {"routed", "routed --ipv6", "pointtopoint", "pointtopoint --ipv6", "flat --ipv6"}) {
    start_sinks("-n 2 --hosts 2 --nics 2 --topology " + more);
    const std::string other = addresses().at({1, 1});
    link("host=0,nic=1,down");
    EXPECT_TRUE(reached(0, "nic1", {other}).empty()) << more;
    link("host=0,nic=1,up");
    EXPECT_TRUE(comes_back(0, "nic1", other)) << more;
  }
}

TEST_F(Hosts, OneSubnetHoldsAllNicsAndLeavesTheKernelsDefaults) {
  start_sinks("-n 2 --hosts 2 --nics 2 --topology onesubnet");
  const auto all = addresses();
  EXPECT_EQ(reached(0, "", {all.at({1, 0}), all.at({1, 1})}).size(), 2u);
  const auto e = in_host(0, {"ip", "-4", "route", "show", "10.1.0.0/16"});
  EXPECT_TRUE(has(e.out, "dev nic0") && has(e.out, "dev nic1")) << e.out;
  for (const std::string name : {"arp_ignore", "arp_announce", "rp_filter"}) {
    for (const std::string scope : {"all", "nic0", "nic1"}) {
      std::ostringstream setting;
      setting << "net.ipv4.conf." << scope << "." << name;
      EXPECT_EQ(in_host(1, {"sysctl", "-n", setting.str()}).out, "0\n") << setting.str();
    }
  }
  // This is the case under test: the kernel sends from the second NIC's address over the first.
  EXPECT_TRUE(has(in_host(0, {"ip", "route", "get", all.at({1, 1}), "from", all.at({0, 1})}).out, "dev nic0"));
}

TEST_F(Hosts, WithIpv6ReachEachOtherOverTheSameWiring) {
  start_sinks("-n 3 --hosts 3 --nics 2 --ipv6");
  for (const auto& [place, address] : addresses()) EXPECT_TRUE(has(address, "fd00:")) << address;
  expect_wiring(3, 2, [](int, int k, int) { return k; });
  EXPECT_EQ(in_host(0, {"ip", "-4", "addr", "show", "dev", "nic0"}).out, "") << "nic0 was to have IPv6 only";
  start_sinks("-n 4 --hosts 4 --topology bcube:2,2 --ipv6");
  expect_wiring(4, 2, [](int h, int k, int other) { return (h ^ other) == (1 << k) ? k : -1; });
  start_sinks("-n 2 --hosts 2 --nics 2 --topology onesubnet --ipv6");
  EXPECT_EQ(reached(0, "", {addresses().at({1, 0}), addresses().at({1, 1})}).size(), 2u);
}

TEST_F(Hosts, WithIpv6AndWithoutCtlJoinOverNic0) {
  const auto e = run(canary_run("-n 2 --hosts 2 --no-ctl --ipv6 -q --no-prefix", "echo $CANARY_JOIN"));
  EXPECT_EQ(e.out, "tcp://[fd00:1::1]:29400\ntcp://[fd00:1::1]:29400\n") << e.err;
}

TEST_F(Hosts, RatesHoldBehindARouterAndPerHost) {
  start_sinks("-n 2 --hosts 2 --nics 2 --topology routed --rate 400mbit,100mbit,host1.nic0=50mbit");
  const auto all = addresses();
  expect_rate(mbit(0, all.at({1, 0}), 800, "nic0"), 50);
  expect_rate(mbit(1, all.at({0, 1}), 600, "nic1"), 100);
  // Between NICs of two rates the slower one is the limit.
  expect_rate(mbit(0, all.at({1, 1}), 600, "nic0"), 100);
}

TEST_F(Hosts, CtlReachesAllHosts) {
  start_sinks("-n 4 --hosts 4 --topology bcube:2,2");
  EXPECT_EQ(reached(3, "ctl0", {"10.0.0.1", "10.0.0.2", "10.0.0.3"}).size(), 3u);
}

TEST_F(Hosts, RatesHoldPerNicAndFollowLiveChangesInBothDirections) {
  start_sinks("-n 2 --hosts 2 --nics 2 --rate 400mbit,100mbit");
  expect_rate(mbit(0, "10.1.0.2", 800, "nic0"), 400);
  expect_rate(mbit(1, "10.2.0.1", 600, "nic1"), 100);
  // Only host 1 changes: its own packets are held at its NIC, those for it at the switch's port.
  link("host=1,nic=0,rate=100mbit");
  expect_rate(mbit(1, "10.1.0.1", 600, "nic0"), 100);
  expect_rate(mbit(0, "10.1.0.2", 600, "nic0"), 100);
  EXPECT_TRUE(has(job_->state(), "\"rate\": \"100mbit\""));
  link("host=1,nic=0,rate=none");
  expect_rate(mbit(1, "10.1.0.1", 800, "nic0"), 400);  // now the switch's port towards host 0 is the limit
}

TEST_F(Hosts, ARateChangesUnderAFlow) {
  start_sinks("-n 2 --hosts 2 --rate 400mbit");
  Job flow({"nsenter", "-n", "-t", std::to_string(pids_in(job_->state(), "hosts").at(0)), RUN_PROBE, "blast",
            "10.1.0.2", "5000", "1600"});
  ::usleep(900'000);
  link("host=0,nic=0,rate=100mbit");
  const double mean = std::atof(flow.wait().out.c_str());
  EXPECT_GT(mean, 150);
  EXPECT_LT(mean, 350);
}

TEST_F(Hosts, ABlackHoleDropsSilentlyBothWays) {
  start_sinks("-n 2 --hosts 2 --nics 2");
  ASSERT_EQ(reached(1, "nic0", {"10.1.0.1"}).size(), 1u);  // from here on both know each other's hardware address
  link("host=0,nic=0,blackhole=on");
  const auto received = [&] {  // packets, by nic0 of host 0
    const auto line = in_host(0, {"grep", "nic0", "/proc/net/dev"}).out;
    std::istringstream numbers(line.substr(line.find(':') + 1));
    long bytes = 0, packets = -1;
    numbers >> bytes >> packets;
    return packets;
  };
  const long before = received();
  EXPECT_EQ(in_host(1, {RUN_PROBE, "send", "10.1.0.1", "5001", "100"}).code, 0);
  EXPECT_LT(received() - before, 50) << "packets towards the host were to be dropped";
  EXPECT_EQ(reached(0, "nic0", {"10.1.0.2"}).size(), 0u);
  EXPECT_EQ(reached(1, "nic0", {"10.1.0.1"}).size(), 0u);
  EXPECT_EQ(reached(0, "nic1", {"10.2.0.2"}).size(), 1u) << "only nic0 was to be cut";
  EXPECT_TRUE(has(in_host(0, {"ip", "link", "show", "nic0"}).out, "LOWER_UP")) << "the carrier was to stay";
  link("host=0,nic=0,blackhole=off");
  EXPECT_EQ(reached(1, "nic0", {"10.1.0.1"}).size(), 1u);
}

TEST_F(Hosts, ALinkGoesDownAndComesBack) {
  start_sinks("-n 2 --hosts 2 --nics 2 --rate 400mbit");
  link("host=1,nic=1,down");
  EXPECT_EQ(reached(0, "nic1", {"10.2.0.2"}).size(), 0u);
  EXPECT_TRUE(has(in_host(1, {"ip", "link", "show", "nic1"}).out, "state DOWN"));
  EXPECT_EQ(reached(0, "nic0", {"10.1.0.2"}).size(), 1u);
  link("host=1,nic=1,up");
  EXPECT_TRUE(comes_back(0, "nic1", "10.2.0.2"));
  expect_rate(mbit(0, "10.2.0.2", 600, "nic1"), 400);
}

TEST_F(Hosts, WrongChangesAreRefusedWithAReason) {
  start_sinks("-n 2 --hosts 2");
  const std::string state = state_path_in(job_->folder());
  auto e = run({CANARY_RUN, "link", state, "host=2,nic=0,down"});
  EXPECT_EQ(e.code, 1);
  EXPECT_TRUE(has(e.err, "hosts are 0 to 1")) << e.err;
  e = run({CANARY_RUN, "link", state, "host=0,nic=0,delay=1ms"});
  EXPECT_EQ(e.code, 1);
  EXPECT_TRUE(has(e.err, "--delay")) << e.err;
  e = run({CANARY_RUN, "link", state, "host=0,nic=0,sideways"});
  EXPECT_EQ(e.code, 2);
  EXPECT_TRUE(has(e.err, "host=0,nic=0,sideways")) << e.err;
}

TEST_F(Hosts, ARankChangesLinksToo) {
  const auto e =
      run(canary_run("-n 2 --hosts 2 -q", std::string("[ $CANARY_RANK = 1 ] || exit 0; ") + CANARY_RUN +
                                              " link $CANARY_RUN_STATE host=1,nic=0,down && ip -br link show nic0"));
  EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_TRUE(has(e.out, "nic0") && has(e.out, " DOWN ")) << e.out;
}

// The file of a --script.
class Script {
 public:
  explicit Script(const std::string& text) {
    EXPECT_NE(::mkdtemp(folder_), nullptr);
    std::ofstream(path()) << text;
  }
  ~Script() { std::filesystem::remove_all(folder_); }
  std::string path() const { return std::string(folder_) + "/script"; }

 private:
  char folder_[32] = "/tmp/run_test_script.XXXXXX";
};

TEST_F(Hosts, AScriptChangesLinksAtItsTimes) {
  const Script script(
      "# the last first: times decide\n"
      "1.2s  host1.*     up\n"
      "0.6s  host1.*     down  # both NICs\n"
      "0.6s  host0.nic1  rate 50mbit\n"
      "0.9s  *.nic0      loss 100%\n");
  // Rank 0 reads the state file as time goes by and notes when it changed.
  const auto e =
      run(canary_run("-n 2 --hosts 2 --nics 2 --rate 100mbit --no-prefix --script " + script.path(),
                     "[ $CANARY_RANK = 0 ] || { sleep 1.8; exit; }; for i in $(seq 90); do echo $(date +%s%N) "
                     "$(grep -c '\"up\": false' $CANARY_RUN_STATE) $(grep -c 50mbit $CANARY_RUN_STATE) "
                     "$(grep -c '\"loss_ppm\": 1000000' $CANARY_RUN_STATE); sleep 0.02; done"));
  EXPECT_EQ(e.code, 0) << e.err;
  const auto lines = lines_of(e.out);
  ASSERT_EQ(lines.size(), 90u);
  double start = 0, down = 0, slow = 0, lossy = 0, up = 0;  // seconds; 0: never
  for (const auto& line : lines) {
    std::istringstream numbers(line);
    double ns = 0;
    int dark = 0, slowed = 0, lost = 0;
    numbers >> ns >> dark >> slowed >> lost;
    const double now = ns * 1e-9;
    if (start == 0) start = now;
    if (down == 0 && dark == 2) down = now - start;
    if (slow == 0 && slowed == 1) slow = now - start;
    if (lossy == 0 && lost == 2) lossy = now - start;
    if (down > 0 && up == 0 && dark == 0) up = now - start;
  }
  // Rank 0 needs a moment to begin, and each change some milliseconds; a busy machine adds to both.
  EXPECT_GT(down, 0.35);
  EXPECT_LT(down, 0.85);
  EXPECT_GT(slow, 0.35);
  EXPECT_LT(slow, 0.85);
  EXPECT_GT(lossy, 0.65);
  EXPECT_LT(lossy, 1.15);
  EXPECT_GT(up, 0.95);
  EXPECT_LT(up, 1.5);
  EXPECT_TRUE(has(e.err, "--script: host1.* down is done")) << e.err;
}

TEST_F(Hosts, AScriptsRateIsFeltByAFlow) {
  const Script script("800ms host0.nic0 rate 100mbit\n");
  const auto e = run(canary_run("-n 2 --hosts 2 --rate 400mbit --no-prefix -q --grace 0s --script " + script.path(),
                                "[ $CANARY_RANK = 0 ] || exec " RUN_PROBE " sink 5000 >&2; " RUN_PROBE
                                " blast 10.1.0.2 5000 1600 && exit 3"));
  EXPECT_EQ(e.code, 3) << e.err;
  EXPECT_GT(std::atof(e.out.c_str()), 150);
  EXPECT_LT(std::atof(e.out.c_str()), 350);
}

TEST_F(Hosts, AScriptsDelayNeedsNoOption) {
  const Script script("0s * delay 30ms\n");
  const auto e =
      run(canary_run("-n 2 --hosts 2 --no-prefix -q --grace 0s --script " + script.path(),
                     "[ $CANARY_RANK = 0 ] || exec " RUN_PROBE " sink 5000 >&2; sleep 0.3; a=$(date +%s%N); " RUN_PROBE
                     " reach 5000 nic0 10.1.0.2 >&2; echo $((($(date +%s%N)-a)/1000000)); exit 3"));
  EXPECT_EQ(e.code, 3) << e.err;
  EXPECT_GE(std::atof(e.out.c_str()), 60) << "ms of a handshake with 30 ms each way";
}

double rtt_ms(const std::string& state) { return number_after(state, "\"rtt_ms\": {\"min\": "); }

TEST_F(Hosts, DelayIsReachedAndReported) {
  for (const double one_way : {1.0, 20.0}) {
    start_sinks("-n 2 --hosts 2 --rate 200mbit --delay " + std::to_string(static_cast<int>(one_way)) + "ms");
    const double rtt = rtt_ms(job_->state());
    EXPECT_GE(rtt, 2 * one_way * 0.999);
    EXPECT_LT(rtt, 2 * one_way + 2);
    EXPECT_TRUE(has(job_->err(), "RTT over nic0")) << job_->err();
  }
}

TEST_F(Hosts, TcpFillsADelayedLinkAndTheDelayChangesLive) {
  start_sinks("-n 2 --hosts 2 --rate 100mbit --delay 2ms --jitter 200us");
  expect_rate(mbit(0, "10.1.0.2", 800, "nic0"), 100);
  link("host=*,nic=0,delay=60ms");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(reached(0, "nic0", {"10.1.0.2"}).size(), 1u);
  // A handshake takes one round trip.
  EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 0.12);
}

// Rank 1 runs `prepare` and counts the datagrams that rank 0 then sends. Returns the share that is missing.
double loss_seen(const std::string& arguments, const std::string& prepare, int datagrams) {
  const std::string script = "if [ $CANARY_RANK = 1 ]; then " + prepare +
                             "exec " RUN_PROBE
                             " count 5001 300 $TMPDIR/ready $TMPDIR/sent; fi; "
                             "until [ -e $TMPDIR/ready ]; do sleep 0.02; done; " RUN_PROBE " send 10.1.0.2 5001 " +
                             std::to_string(datagrams) + " && touch $TMPDIR/sent";
  const auto e = run(canary_run("-n 2 --hosts 2 -q --no-prefix " + arguments, script));
  EXPECT_EQ(e.code, 0) << e.err;
  return 1 - std::atof(e.out.c_str()) / datagrams;
}

// The bounds are five standard deviations.
TEST_F(Hosts, LossIsAsAskedBetweenTwoHosts) { EXPECT_NEAR(loss_seen("--loss 5%", "", 20'000), 0.05, 0.0077); }

TEST_F(Hosts, LossChangesLive) {
  EXPECT_NEAR(loss_seen("", CANARY_RUN " link $CANARY_RUN_STATE host=1,nic=0,loss=10% && ", 20'000), 0.10, 0.0106);
}

TEST_F(Hosts, ManyAreUpInASecond) {
  const auto e = run(canary_run("-n 16 --hosts 16 --topology bcube:4,2 --rate 1gbit", "true"));
  EXPECT_LT(number_after(e.err, "up in "), 5000) << "ms; 0.1 s on an idle machine: " << e.err;
}

TEST_F(Hosts, LeaveNothingAfterANormalEnd) {
  start("-n 4 --hosts 2 --nics 2 --rate 100mbit --delay 1ms", "sleep 0.2");
  EXPECT_EQ(job_->wait().code, 0);
  EXPECT_EQ(census_.leftovers(), "");
  EXPECT_TRUE(job_->leftover_files().empty());
}

TEST_F(Hosts, LeaveNothingAfterSigterm) {
  start("-n 2 --hosts 2", "setsid sleep 300 & sleep 300");
  ::kill(job_->pid(), SIGTERM);
  job_->wait();
  EXPECT_EQ(census_.leftovers(), "");
  EXPECT_TRUE(job_->leftover_files().empty());
}

TEST_F(Hosts, LeaveNothingAfterSigkill) {
  start("-n 4 --hosts 2 --nics 2 --rate 100mbit --delay 1ms", "trap '' TERM; setsid sleep 300 & sleep 300");
  ASSERT_TRUE(eventually([&] { return census_.processes().size() >= 12; })) << "the census does not see the job";
  EXPECT_EQ(census_.namespaces(), 3u) << "two hosts and the fabric";
  ::kill(job_->pid(), SIGKILL);
  job_->wait();
  EXPECT_EQ(census_.leftovers(), "");
  EXPECT_TRUE(eventually([&] { return job_->leftover_files().empty(); }, 5));
}

// An ordinary user, in a user namespace.
class UserHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) {
      if (const auto why = why_no_namespaces(false); !why.empty()) GTEST_SKIP() << why;
    } else {
      // The build folder may be closed to others.
      options_.user = kNobody;
      char folder[] = "/tmp/run_test_bin.XXXXXX";
      ASSERT_NE(::mkdtemp(folder), nullptr);
      folder_ = folder;
      std::filesystem::permissions(folder_, std::filesystem::perms(0755));
      for (const char* program : {CANARY_RUN, RUN_PROBE}) std::filesystem::copy(program, folder_);
      run_ = folder_ + "/canary-run";
      probe_ = folder_ + "/run_probe";
      const auto e = run({run_, "-n", "1", "--hosts", "1", "-q", "--", "true"}, options_);
      if (e.code == 125) GTEST_SKIP() << "no user namespaces here: " << e.err;
    }
    options_.environment = {census_.mark()};
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  std::vector<std::string> command(const std::string& arguments, const std::string& script) {
    auto argv = canary_run(arguments, script);
    argv[0] = run_;
    return argv;
  }

  Job::Options options_;
  std::string folder_, run_ = CANARY_RUN, probe_ = RUN_PROBE;
  Census census_;
};

TEST_F(UserHosts, PlainRanksStayTheUser) {
  const auto e = run(command("-n 2 --no-prefix", "id -u"), options_);
  EXPECT_EQ(e.code, 0) << e.err;
  const std::string uid = std::to_string(options_.user != 0 ? options_.user : ::geteuid());
  EXPECT_EQ(e.out, uid + "\n" + uid + "\n");
}

TEST_F(UserHosts, HaveShapedLinksThatChangeLive) {
  // Rank 1 receives; rank 0 sends, makes its link slower and sends again.
  const std::string script = "if [ $CANARY_RANK = 1 ]; then exec " + probe_ + " sink 5000 >&2; fi; " + probe_ +
                             " blast 10.1.0.2 5000 600 nic0; " + run_ +
                             " link $CANARY_RUN_STATE host=0,nic=0,rate=100mbit; " + probe_ +
                             " blast 10.1.0.2 5000 600 nic0; exit 5";
  const auto e = run(command("-n 2 --hosts 2 --rate 300mbit --grace 0s --no-prefix", script), options_);
  EXPECT_EQ(e.code, 5) << e.err;
  const auto lines = lines_of(e.out);
  ASSERT_EQ(lines.size(), 2u) << e.err;
  expect_rate(std::stod(lines[0]), 300);
  expect_rate(std::stod(lines[1]), 100);
  EXPECT_EQ(census_.leftovers(), "");
}

TEST_F(UserHosts, HaveDelayAndSayWhatWasReached) {
  const auto e =
      run(command("-n 2 --hosts 2 --delay 2ms --no-prefix", "[ $CANARY_RANK = 1 ] || cat $CANARY_RUN_STATE"), options_);
  EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_TRUE(has(e.err, "RTT over nic0")) << e.err;
  EXPECT_GE(rtt_ms(e.out), 3.99);
  EXPECT_LT(rtt_ms(e.out), 20);
}

TEST_F(UserHosts, LeaveNothingAfterSigkill) {
  Job job(command("-n 2 --hosts 2 --delay 1ms", "setsid sleep 300 & sleep 300"), options_);
  ASSERT_NE(job.state(), "") << job.err();
  ASSERT_TRUE(eventually([&] { return census_.processes().size() >= 8; }));
  ::kill(job.pid(), SIGKILL);
  job.wait();
  EXPECT_EQ(census_.leftovers(), "");
  EXPECT_TRUE(eventually([&] { return job.leftover_files().empty(); }, 5));
}

}  // namespace
}  // namespace canarynet::run

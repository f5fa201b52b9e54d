#include "tools/run/testbed.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <sstream>

namespace canarynet::run {
namespace {

// Appends the parts; batches of ip and tc are long.
template <typename... Parts>
void add(std::string* out, const Parts&... parts) {
  (out->append(parts), ...);
}

// Room is made for this rate if none is set.
constexpr std::int64_t kUnshapedGuess = 2'000'000'000;

// Classic BPF, direct action: 2 = drop, -1 = go on. The second draws a random number for each packet.
constexpr const char* kDropAll = "1,6 0 0 2";
std::string drop_some(std::uint32_t ppm) {
  const auto threshold =
      std::min<std::uint64_t>(static_cast<std::uint64_t>(ppm) * 0x1'0000'0000ull / 1'000'000, 0xffff'ffff);
  // ld rand; jge #threshold, pass; ret 2 (drop); ret -1 (pass)
  return "4,32 0 0 4294963256,53 1 0 " + std::to_string(threshold) + ",6 0 0 2,6 0 0 4294967295";
}

// Sets sysctls of a network namespace's IPv4 and IPv6, for it and for devices to come.
void set_for_all(const std::string& family, const std::string& name, const std::string& value) {
  for (const char* scope : {"all", "default"}) {
    std::string path = "/proc/sys/net/";
    add(&path, family, "/conf/", scope, "/", name);
    static_cast<void>(write_file(path, value));  // IPv6 may be absent
  }
}

void set_network_defaults(const RunOptions& options, bool host) {
  const bool ipv6 = options.ipv6 && host;
  set_for_all("ipv6", "disable_ipv6", ipv6 ? "0" : "1");
  // Addresses can be used at once, and are only those that the wiring gives.
  set_for_all("ipv6", "accept_dad", "0");
  set_for_all("ipv6", "accept_ra", "0");
  // With several NICs in one host each answers for its own address, and asks, on its own NIC only. In one subnet the
  // kernel's own defaults are under test: any NIC that hears the question answers for all addresses.
  const bool own_only = !host || options.topology != Topology::kOneSubnet;
  set_for_all("ipv4", "rp_filter", "0");
  set_for_all("ipv4", "arp_ignore", own_only ? "1" : "0");
  set_for_all("ipv4", "arp_announce", own_only ? "2" : "0");
  static_cast<void>(write_file("/proc/sys/net/ipv4/ip_forward", "0"));
}

// 2 ms of the rate, with room for at least one full segmentation-offload packet (64 KiB and headers).
Bytes default_burst(std::int64_t rate) { return {std::max<std::int64_t>(72 << 10, rate / 8 / 500)}; }
// 16 ms of the rate: TCP fills the link, but soon feels a rate that drops.
Bytes default_queue(std::int64_t rate) { return {std::max<std::int64_t>(256 << 10, rate / 8 * 16 / 1000)}; }

// Makes receive buffers that hold twice what is under way on the longest path. The kernel's own tuning starts at 64 KiB
// and needs seconds to get there on a busy machine, while the link is idle.
void set_tcp_buffers(const RunOptions& options) {
  std::int64_t under_way = 0;
  for (int i = 0; i < options.hosts * options.nics; ++i) {
    const int h = i / options.nics, k = i % options.nics;
    const std::int64_t rate = options.rates.at(h, k, std::int64_t{0});
    const Nanos rtt = options.delays.at(h, k, Nanos{}) * 2;
    under_way = std::max(under_way, BytesPerSec{(rate > 0 ? rate : kUnshapedGuess) / 8}.bytes_in(rtt).count);
  }
  // It is doubled once more, since the kernel counts half of a buffer as its own overhead.
  const std::int64_t wanted = std::min<std::int64_t>(4 * under_way, 64 << 20);
  for (const std::string name : {"tcp_rmem", "tcp_wmem"}) {
    const std::string path = "/proc/sys/net/ipv4/" + name;
    std::istringstream now(read_text(path));
    std::int64_t least = 4096, first = 131072, most = 4 << 20;
    now >> least >> first >> most;
    if (name == "tcp_rmem") first = std::max(first, wanted);  // a sender's buffer grows with its window by itself
    std::string text;
    add(&text, std::to_string(least), " ", std::to_string(first), " ", std::to_string(std::max(most, wanted)));
    static_cast<void>(write_file(path, text));
  }
}

// The share that each of the two links of a path drops, so that the path drops `ppm`.
std::uint32_t half_loss(std::uint32_t ppm) {
  return static_cast<std::uint32_t>(std::llround(1e6 * (1 - std::sqrt(1 - static_cast<double>(ppm) / 1e6))));
}

std::string relay_end(char kind, const Port& p) { return kind + p.uplink.substr(1); }

}  // namespace

Result<std::unique_ptr<Testbed>> Testbed::build(const RunOptions& options, const OuterPids& pids,
                                                const std::string& scratch, std::vector<std::string>* notes) {
  std::unique_ptr<Testbed> bed(new Testbed(options, scratch));
  bed->wiring_ = make_wiring(options);
  for (const auto& port : bed->wiring_.ports) {
    NicState nic;
    nic.rate = options.rates.at(port.host, port.nic, std::int64_t{0});
    nic.loss_ppm = half_loss(options.loss_ppm.at(port.host, port.nic, 0u));
    bed->nics_.push_back(nic);
  }
  if (auto s = bed->make_hosts(pids, notes); !s.ok()) return s.wrap("hosts");
  if (auto s = bed->make_links(); !s.ok()) return s.wrap("links");
  const bool lossy = std::any_of(bed->nics_.begin(), bed->nics_.end(), [](const auto& n) { return n.loss_ppm > 0; });
  if (options.relay || lossy) {
    if (auto s = bed->segmentation_off(); !s.ok()) return s.wrap("segmentation offload");
  }
  if (auto s = bed->shape_all(); !s.ok()) return s.wrap("shaping");
  if (options.relay) {
    if (auto s = bed->start_relay(); !s.ok()) return s.wrap("--delay");
  }
  return bed;
}

Status Testbed::make_hosts(const OuterPids& pids, std::vector<std::string>* notes) {
  // This process passes through each namespace in turn and ends in the fabric's: no /proc of another process is needed.
  for (int h = 0; h <= options_.hosts; ++h) {
    if (::unshare(CLONE_NEWNET) != 0) return system_error("a new network namespace", errno);
    Descriptor network(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    if (!network.open()) return system_error("/proc/self/ns/net", errno);
    set_network_defaults(options_, h < options_.hosts);
    if (h == options_.hosts) {
      fabric_ = std::move(network);
      break;
    }
    if (options_.relay) set_tcp_buffers(options_);
    if (!options_.congestion.empty()) {
      const std::string path = "/proc/sys/net/ipv4/tcp_congestion_control";
      if (!write_file(path, options_.congestion).ok() && h == 0) {
        std::string now = read_text(path);
        while (!now.empty() && now.back() == '\n') now.pop_back();
        notes->push_back("--congestion " + options_.congestion +
                         ": this kernel does not let a namespace default to it; lanes take it from " +
                         "CANARY_TCP_CONGESTION, other programs use " + now + " unless they set TCP_CONGESTION");
      }
    }
    hosts_.push_back({std::move(network), -1, -1});
    auto ready = make_pipe();
    if (!ready.ok()) return ready.status();
    const pid_t pid = ::fork();
    if (pid < 0) return system_error("fork", errno);
    if (pid == 0) {
      become_child();
      const pid_t outer = pids.self();
      ::prctl(PR_SET_NAME, "canary-host");
      if (const Status s = enter(h); s.ok()) write_all(ready.value().write.fd(), &outer, sizeof outer);
      ready.value().write.close();
      for (;;) ::pause();
    }
    ready.value().write.close();
    hosts_.back().pid = pid;
    if (!read_all(ready.value().read.fd(), &hosts_.back().outer_pid, sizeof(pid_t))) {
      return {CANARY_SYSTEM, "a host's private mounts were refused"};
    }
  }
  return {};
}

Status Testbed::enter(int host) const {
  if (::setns(hosts_[static_cast<std::size_t>(host)].network.fd(), CLONE_NEWNET) != 0)
    return system_error("setns", errno);
  if (::unshare(CLONE_NEWNS | CLONE_NEWUTS) != 0) return system_error("unshare", errno);
  const std::string name = "host-" + std::to_string(host);
  if (::sethostname(name.data(), name.size()) != 0) return system_error("sethostname", errno);
  // /sys shows the network devices of the namespace that mounts it. Some containers refuse: then /sys stays the
  // machine's.
  ::mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr);
  if (::mount("tmpfs", scratch_.c_str(), "tmpfs", 0, "size=64k,mode=755") == 0) {
    std::string names = "127.0.0.1 localhost\n";
    for (int h = 0; h < options_.hosts; ++h) {
      add(&names, options_.ctl ? control_address(h) : wiring_.port(h, 0).address, " host-", std::to_string(h), "\n");
    }
    const std::string file = scratch_ + "/hosts";
    if (write_file(file, names).ok()) ::mount(file.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr);
    ::umount2(scratch_.c_str(), MNT_DETACH);
  }
  return {};
}

Status Testbed::make_switches() {
  const std::string mtu = " mtu " + std::to_string(options_.mtu) + " ";
  std::string fabric;
  const auto add_switch = [&](const std::string& name, const std::string& size) {
    add(&fabric, "link add ", name, size, "type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set ", name,
        " up\n");
  };
  for (const auto& name : wiring_.switches) {
    if (!wiring_.routed) add_switch(name, mtu);
  }
  if (options_.ctl) add_switch("ctl", " ");
  for (const auto& p : wiring_.ports) {
    const auto& network = hosts_[static_cast<std::size_t>(p.host)];
    const std::string master =
        wiring_.routed ? "" : " master " + wiring_.switches[static_cast<std::size_t>(p.switch_index)];
    add(&fabric, "link add ", p.uplink, mtu, "type veth peer name ", p.device, mtu, "netns ",
        std::to_string(network.pid), "\n");
    if (options_.relay) {
      const std::string r = relay_end('r', p), b = relay_end('b', p);
      add(&fabric, "link add ", r, mtu, "type veth peer name ", b, mtu, "\nlink set ", p.uplink, " up\nlink set ", r,
          " up\nlink set ", b, master, " up\n");
    } else {
      add(&fabric, "link set ", p.uplink, master, " up\n");
    }
  }
  for (int h = 0; options_.ctl && h < options_.hosts; ++h) {
    const std::string c = "c" + std::to_string(h);
    add(&fabric, "link add ", c, " type veth peer name ctl0 netns ",
        std::to_string(hosts_[static_cast<std::size_t>(h)].pid), "\nlink set ", c, " master ctl up\n");
  }
  return run_program(fabric_.fd(), {"ip", "-batch", "-"}, fabric);
}

Status Testbed::make_router() {
  // This process stands in the fabric's namespace, to which these sysctls belong. NICs that must not speak IPv6, such
  // as the relay's, stay without.
  const std::string family = wiring_.ipv6 ? "ipv6" : "ipv4";
  std::string batch;
  for (const auto& p : wiring_.ports) {
    const std::string device = switch_device(p);
    std::string conf;
    add(&conf, "/proc/sys/net/", family, "/conf/", device);
    if (wiring_.ipv6) {
      if (auto s = write_file(conf + "/disable_ipv6", "0"); !s.ok()) return s;
    } else if (p.prefix == 32) {
      if (auto s = write_file(conf + "/proxy_arp", "1"); !s.ok()) return s;
    }
    batch += router_addressing(wiring_, p, device);
  }
  set_for_all(family, "forwarding", "1");
  return run_program(fabric_.fd(), {"ip", wiring_.ipv6 ? "-6" : "-4", "-batch", "-"}, batch);
}

Status Testbed::address(int host, const std::string& batch) const {
  return run_program(hosts_[static_cast<std::size_t>(host)].network.fd(),
                     {"ip", wiring_.ipv6 ? "-6" : "-4", "-batch", "-"}, batch);
}

Status Testbed::make_links() {
  if (auto s = make_switches(); !s.ok()) return s.wrap("switches");
  if (wiring_.routed) {
    if (auto s = make_router(); !s.ok()) return s.wrap("router");
  }
  for (int h = 0; h < options_.hosts; ++h) {
    std::string links = "link set lo up\n", nics;
    if (options_.ctl) add(&links, "addr add ", control_address(h), "/24 dev ctl0\nlink set ctl0 up\n");
    for (int k = 0; k < wiring_.nics; ++k)
      add(&nics, host_addressing(wiring_, wiring_.port(h, k)), source_rule(wiring_.port(h, k)));
    Status s = run_program(hosts_[static_cast<std::size_t>(h)].network.fd(), {"ip", "-batch", "-"}, links);
    if (s.ok()) s = address(h, nics);
    if (!s.ok()) return s.wrap("host-" + std::to_string(h));
  }
  return {};
}

std::string Testbed::switch_device(const Port& port) const {
  return options_.relay ? relay_end('b', port) : port.uplink;
}

std::string Testbed::shaper(const Port& port, const std::string& device) const {
  const std::int64_t rate = nic(port.host, port.nic).rate;
  if (rate == 0) return "";
  const Bytes burst = options_.bursts.at(port.host, port.nic, default_burst(rate));
  const Bytes queue = options_.queues.at(port.host, port.nic, default_queue(rate));
  return "qdisc replace dev " + device + " root tbf rate " + std::to_string(rate) + "bit burst " +
         std::to_string(burst.count) + "b limit " + std::to_string(queue.count) + "b\n";
}

Status Testbed::shape_all() {
  std::string fabric;
  for (int h = 0; h < options_.hosts; ++h) {
    std::string host;
    for (int k = 0; k < wiring_.nics; ++k) {
      const Port& p = wiring_.port(h, k);
      host += shaper(p, p.device);
      add(&fabric, shaper(p, switch_device(p)), "qdisc add dev ", switch_device(p), " clsact\n");
    }
    if (host.empty()) continue;
    if (auto s = run_program(hosts_[static_cast<std::size_t>(h)].network.fd(), {"tc", "-batch", "-"}, host); !s.ok()) {
      return s.wrap("host-" + std::to_string(h));
    }
  }
  if (auto s = run_program(fabric_.fd(), {"tc", "-batch", "-"}, fabric); !s.ok()) return s.wrap("switches");
  for (const auto& p : wiring_.ports) {
    if (state_of(p).loss_ppm == 0) continue;
    if (auto s = set_filters(p); !s.ok()) return s;
  }
  return {};
}

Status Testbed::set_filters(const Port& port) {
  const NicState& nic = state_of(port);
  const std::string device = switch_device(port);
  std::string batch;
  for (const char* side : {"ingress", "egress"}) {
    // Removing a filter that is not there is an error, so one that lets all pass replaces it first.
    const std::string code = nic.blackhole ? kDropAll : drop_some(nic.loss_ppm);
    add(&batch, "filter replace dev ", device, " ", side, " pref 1 handle 1 protocol all bpf bytecode \"", code,
        "\" da\n");
    if (!nic.blackhole && nic.loss_ppm == 0) add(&batch, "filter del dev ", device, " ", side, " pref 1\n");
  }
  return run_program(fabric_.fd(), {"tc", "-batch", "-"}, batch);
}

Status Testbed::segmentation_off() {
  // Loss and delay act on the packets of the wire, not on 64 KiB bundles of them.
  if (!segmentation_) return {};
  segmentation_ = false;
  for (const auto& host : hosts_) {
    Status s = run_in_network(host.network.fd(), [&]() -> std::string {
      const Descriptor fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      for (int k = 0; k < wiring_.nics; ++k) {
        for (const std::uint32_t command : {ETHTOOL_STSO, ETHTOOL_SGSO}) {
          ethtool_value off{command, 0};
          ifreq request{};
          ::snprintf(request.ifr_name, sizeof request.ifr_name, "nic%d", k);
          request.ifr_data = reinterpret_cast<char*>(&off);
          if (::ioctl(fd.fd(), SIOCETHTOOL, &request) != 0)
            return std::string(request.ifr_name) + ": " + strerror(errno);
        }
      }
      return "";
    });
    if (!s.ok()) return s;
  }
  return {};
}

Status Testbed::start_relay() {
  const std::size_t count = wiring_.ports.size();
  void* memory = ::mmap(nullptr, count * sizeof(RelayKnobs), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return system_error("mmap", errno);
  knobs_ = new (memory) RelayKnobs[count];
  std::vector<RelayLink> links;
  std::string back;
  for (std::size_t i = 0; i < count; ++i) {
    const Port& p = wiring_.ports[i];
    const Nanos delay = options_.delays.at(p.host, p.nic, Nanos{});
    const Nanos jitter = options_.jitters.at(p.host, p.nic, Nanos{});
    knobs_[i].delay_ns = delay.count;
    knobs_[i].jitter_ns = jitter.count;
    // The slots hold what is under way at the NIC's rate, and 20 ms by which the relay may be late.
    const std::int64_t rate = nics_[i].rate > 0 ? nics_[i].rate : kUnshapedGuess;
    const Bytes under_way = BytesPerSec{rate / 8}.bytes_in(delay + jitter + 20_ms);
    const auto slots = std::clamp<std::int64_t>(2 * under_way.count / options_.mtu, 2048, 16384);
    links.push_back({p.uplink, relay_end('r', p), options_.mtu, static_cast<int>(slots), &knobs_[i]});
    // Towards the host there is no delay, so those packets cross inside the kernel.
    add(&back, "qdisc add dev ", relay_end('r', p), " clsact\nfilter add dev ", relay_end('r', p),
        " ingress pref 1 protocol all u32 match u32 0 0 action mirred egress redirect dev ", p.uplink, "\n");
  }
  if (auto s = run_program(fabric_.fd(), {"tc", "-batch", "-"}, back); !s.ok()) return s;

  auto ready = make_pipe();
  if (!ready.ok()) return ready.status();
  // One process per host opens and closes its sockets, which is slow, beside the others.
  const auto per_host = static_cast<std::ptrdiff_t>(wiring_.nics);
  for (auto first = links.begin(); first != links.end(); first += per_host) {
    const pid_t pid = ::fork();
    if (pid < 0) return system_error("fork", errno);
    if (pid == 0) {
      become_child();
      ::prctl(PR_SET_NAME, "canary-relay");
      ready.value().read.close();
      run_relay({first, first + per_host}, ready.value().write.fd());
      ::_exit(1);
    }
  }
  ready.value().write.close();
  char error[512];
  const ssize_t n = ::read(ready.value().read.fd(), error, sizeof error);
  if (n > 0) return {CANARY_SYSTEM, std::string(error, static_cast<std::size_t>(n))};
  return {};
}

std::uint64_t Testbed::relay_losses() const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; knobs_ != nullptr && i < wiring_.ports.size(); ++i) sum += knobs_[i].lost;
  return sum;
}

Status Testbed::set_rate(const Port& port, std::int64_t rate) {
  state_of(port).rate = rate;
  struct End {
    int network;
    std::string device;
  };
  for (const End& end : {End{hosts_[static_cast<std::size_t>(port.host)].network.fd(), port.device},
                         End{fabric_.fd(), switch_device(port)}}) {
    if (rate > 0) {
      if (auto s = run_program(end.network, {"tc", "-batch", "-"}, shaper(port, end.device)); !s.ok()) return s;
    } else {
      // This fails if nothing is shaped, which is what was asked for.
      static_cast<void>(run_program(end.network, {"tc", "qdisc", "del", "dev", end.device, "root"}, ""));
    }
  }
  return {};
}

Status Testbed::change(const Port& port, const LinkChange& c) {
  NicState& nic = state_of(port);
  switch (c.action) {
    case LinkChange::Action::kRate:
      return set_rate(port, c.rate);
    case LinkChange::Action::kUp:
    case LinkChange::Action::kDown: {
      nic.up = c.action == LinkChange::Action::kUp;
      return address(port.host, nic.up ? host_addressing(wiring_, port) : "link set " + port.device + " down\n");
    }
    case LinkChange::Action::kBlackhole:
      nic.blackhole = c.on;
      return set_filters(port);
    case LinkChange::Action::kLoss:
      nic.loss_ppm = c.loss_ppm;
      if (auto s = segmentation_off(); !s.ok()) return s;
      return set_filters(port);
    case LinkChange::Action::kDelay:
      if (knobs_ == nullptr) return {CANARY_INVALID_ARGUMENT, "delay= needs a start with --delay (--delay 0s will do)"};
      knobs_[port.host * wiring_.nics + port.nic].delay_ns = c.delay.count;
      return {};
    case LinkChange::Action::kNone:
      break;
  }
  return {CANARY_INTERNAL, "a link change without an action"};
}

Status Testbed::apply(const LinkChange& c) {
  if (c.place.host >= options_.hosts || c.place.nic >= wiring_.nics) {
    return {CANARY_INVALID_ARGUMENT, "no such NIC: hosts are 0 to " + std::to_string(options_.hosts - 1) +
                                         ", NICs 0 to " + std::to_string(wiring_.nics - 1)};
  }
  for (const auto& port : wiring_.ports) {
    if (!c.place.covers(port.host, port.nic)) continue;
    if (auto s = change(port, c); !s.ok()) return s;
  }
  return {};
}

Result<RoundTrip> Testbed::round_trip() const {
  const Port& from = wiring_.port(0, 0);
  for (const auto& to : wiring_.ports) {
    if (to.host == from.host || to.switch_index != from.switch_index) continue;
    const Nanos expected = options_.delays.at(0, 0, Nanos{}) + options_.delays.at(to.host, to.nic, Nanos{});
    return measure_round_trip(hosts_[0].network.fd(), hosts_[static_cast<std::size_t>(to.host)].network.fd(),
                              to.address, expected);
  }
  return Status(CANARY_UNREACHABLE, "host-0 has no neighbour on nic0");
}

std::string Testbed::join_address() const {
  if (options_.ctl) return control_address(0);
  const std::string& address = wiring_.port(0, 0).address;
  return wiring_.ipv6 ? "[" + address + "]" : address;
}

}  // namespace canarynet::run

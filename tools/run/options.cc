#include "tools/run/options.h"

#include <algorithm>
#include <CLI/CLI.hpp>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/text.h"
#include "tools/run/values.h"

namespace canarynet::run {
namespace {

// "500mbit,125mbit,host1.nic0=50mbit"
template <typename T>
Status parse_list(const std::string& option, const std::string& text, const RunOptions& o,
                  Result<T> (*parse)(std::string_view, std::string_view), PerNic<T>* out) {
  for (const auto& part : split(text)) {
    const auto equals = part.find('=');
    auto value = parse(option, equals == std::string_view::npos ? part : part.substr(equals + 1));
    if (!value.ok()) return value.status();
    if (equals == std::string_view::npos) {
      out->by_nic.push_back(value.take());
      continue;
    }
    const auto place = parse_place(part.substr(0, equals), o.hosts, o.nics);
    if (!place.ok()) return wrong(option, part, "before the = it " + place.status().text());
    out->own.push_back({place.value(), value.take()});
  }
  if (out->by_nic.size() > 1 && out->by_nic.size() != static_cast<std::size_t>(o.nics)) {
    return wrong(option, text,
                 "takes one value for all NICs or one for each of the " + std::to_string(o.nics) +
                     " NICs, and others for places (host1.nic0=VALUE)");
  }
  return {};
}

constexpr const char* kTopologyTakes =
    "takes flat, mesh, bcube:r,L (r^L hosts with L NICs, such as bcube:2,2), routed, pointtopoint or onesubnet";

constexpr std::pair<std::string_view, Topology> kPlainTopologies[] = {
    {"flat", Topology::kFlat},           {"mesh", Topology::kMesh},
    {"routed", Topology::kRouted},       {"pointtopoint", Topology::kPointToPoint},
    {"onesubnet", Topology::kOneSubnet},
};

Status parse_topology(const std::string& text, RunOptions* o) {
  o->topology_text = text;
  for (const auto& [name, topology] : kPlainTopologies) {
    if (text != name) continue;
    o->topology = topology;
    return {};
  }
  if (text.rfind("bcube:", 0) != 0) return wrong("--topology", text, kTopologyTakes);
  o->topology = Topology::kBcube;
  const auto numbers = split(std::string_view(text).substr(6));
  if (numbers.size() != 2) return wrong("--topology", text, kTopologyTakes);
  const auto r = parse_int("--topology", numbers[0], 2, kMaxHosts), l = parse_int("--topology", numbers[1], 1, 8);
  if (!r.ok() || !l.ok()) return wrong("--topology", text, kTopologyTakes);
  o->radix = r.value();
  o->levels = l.value();
  return {};
}

// Checks that the NICs per host and the hosts are those that the topology needs.
Status fit_topology(const std::string& nics_text, RunOptions* o) {
  int needed = 1;
  std::string reason;
  if (o->topology == Topology::kMesh) {
    if (o->hosts < 2) return wrong("--hosts", std::to_string(o->hosts), "a mesh takes at least 2 hosts");
    needed = o->hosts - 1;
    reason = "a mesh of " + std::to_string(o->hosts) + " hosts takes " + std::to_string(needed) +
             " (one NIC per other host)";
  } else if (o->topology == Topology::kBcube) {
    std::int64_t hosts = 1;
    for (int i = 0; i < o->levels && hosts <= kMaxHosts; ++i) hosts *= o->radix;
    if (hosts != o->hosts) {
      return wrong("--hosts", std::to_string(o->hosts),
                   o->topology_text + " takes r^L = " + (hosts > kMaxHosts ? "more than 250" : std::to_string(hosts)) +
                       " hosts");
    }
    needed = o->levels;
    reason = o->topology_text + " takes " + std::to_string(needed) + " (one NIC per level)";
  }
  o->nics = needed;
  if (nics_text.empty()) return {};
  const auto nics = parse_int("--nics", nics_text, 1, kMaxHosts);
  if (!nics.ok()) return nics.status();
  if (!reason.empty() && nics.value() != needed) return wrong("--nics", nics_text, reason);
  o->nics = nics.value();
  return {};
}

struct Texts {
  std::string ranks, hosts, fabric, nics, topology, rate, delay, jitter, loss, mtu, port, burst, queue, grace, timeout,
      script;
};

Status check_plain(const CLI::App& app) {
  for (const char* option : {"--fabric", "--nics", "--topology", "--rate", "--delay", "--jitter", "--loss", "--mtu",
                             "--no-ctl", "--congestion", "--burst", "--queue", "--ipv6", "--script"}) {
    if (app.count(option) > 0) {
      return {CANARY_INVALID_ARGUMENT,
              std::string(option) + " needs --hosts: plain processes share the machine's loopback"};
    }
  }
  return {};
}

Status check_aliases(const CLI::App& app) {
  for (const char* option :
       {"--delay", "--jitter", "--loss", "--mtu", "--no-ctl", "--burst", "--queue", "--ipv6", "--script"}) {
    if (app.count(option) > 0) {
      return {CANARY_INVALID_ARGUMENT,
              std::string(option) + " needs --fabric namespaces: loopback addresses can only be paced (--rate)"};
    }
  }
  return {};
}

Status read_script(const std::string& path, RunOptions* o) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file.is_open() || file.bad()) return wrong("--script", path, "takes a file that can be read");
  auto steps = parse_script(path, text.str(), o->hosts, o->nics);
  if (!steps.ok()) return steps.status();
  o->script = steps.take();
  return {};
}

Status fill_links(const Texts& t, RunOptions* o) {
  Status s;
  const auto list = [&](const char* option, const std::string& text, auto parse, auto* out) {
    if (s.ok() && !text.empty()) s = parse_list(option, text, *o, parse, out);
  };
  list("--rate", t.rate, &parse_rate, &o->rates);
  list("--delay", t.delay, &parse_time, &o->delays);
  list("--jitter", t.jitter, &parse_time, &o->jitters);
  list("--loss", t.loss, &parse_loss, &o->loss_ppm);
  list("--burst", t.burst, &parse_room, &o->bursts);
  list("--queue", t.queue, &parse_room, &o->queues);
  if (s.ok() && !t.script.empty()) s = read_script(t.script, o);
  const bool delays = std::any_of(o->script.begin(), o->script.end(),
                                  [](const auto& step) { return step.change.action == LinkChange::Action::kDelay; });
  o->relay = !t.delay.empty() || !t.jitter.empty() || delays;
  return s;
}

Status fill(const Texts& t, const CLI::App& app, RunOptions* o) {
  if (t.ranks.empty()) return {CANARY_INVALID_ARGUMENT, "-n RANKS is missing: how many ranks to start"};
  auto number = parse_int("-n", t.ranks, 1, kMaxRanks);
  if (!number.ok()) return number.status();
  o->ranks = number.value();
  if (!t.port.empty()) {
    number = parse_int("--port", t.port, 1, 65535);
    if (!number.ok()) return number.status();
    o->port = number.value();
  }
  for (const auto& [name, text, out] :
       {std::tuple{"--grace", &t.grace, &o->grace}, std::tuple{"--timeout", &t.timeout, &o->timeout}}) {
    if (text->empty()) continue;
    const auto time = parse_time(name, *text);
    if (!time.ok()) return time.status();
    *out = time.value();
  }
  if (t.hosts.empty()) return check_plain(app);

  number = parse_int("--hosts", t.hosts, 1, kMaxHosts);
  if (!number.ok()) return number.status();
  o->hosts = number.value();
  if (o->ranks % o->hosts != 0) {
    return wrong("-n", t.ranks,
                 "--hosts " + t.hosts + " takes a multiple of " + t.hosts + " (equal blocks of ranks per host)");
  }
  if (!t.fabric.empty() && t.fabric != "namespaces") {
    if (t.fabric != "alias") return wrong("--fabric", t.fabric, "takes namespaces or alias");
    o->fabric = Fabric::kAlias;
    if (auto s = check_aliases(app); !s.ok()) return s;
  }
  if (auto s = parse_topology(t.topology.empty() ? "flat" : t.topology, o); !s.ok()) return s;
  if (auto s = fit_topology(t.nics, o); !s.ok()) return s;
  if (o->aliases() && (o->topology == Topology::kRouted || o->topology == Topology::kPointToPoint ||
                       o->topology == Topology::kOneSubnet)) {
    return wrong("--topology", t.topology, "needs --fabric namespaces: loopback addresses have neither routes nor ARP");
  }
  if (auto s = fill_links(t, o); !s.ok()) return s;
  if (!t.mtu.empty()) {
    number = parse_int("--mtu", t.mtu, 576, 65000);
    if (!number.ok()) return number.status();
    o->mtu = number.value();
  }
  return {};
}

constexpr const char* kFooter = R"(
While it runs:
  canary-run link STATE CHANGE...      change links; STATE is the path in CANARY_RUN_STATE (or --state)
    CHANGE   host=H,nic=K,rate=125mbit   both directions; rate=none lifts the limit
             host=H,nic=K,down | up      the NIC, as `ip link set` does
             host=H,nic=K,blackhole=on   drop all its packets both ways, carrier stays up; blackhole=off
             host=H,nic=K,loss=1%        drop at random, each way, on this link
             host=H,nic=K,delay=2ms      packets leaving the host (needs a start with --delay or --jitter)
             H and K may be * for all
  --script FILE makes such changes at times after the ranks began, a line each: TIME PLACE CHANGE
             2.5s host1.nic0 rate 125mbit, 3s host0.* down, 6s host0.* up, 7s * loss 1%, 8s *.nic1 delay 2ms

Environment of a rank: CANARY_RANK, CANARY_WORLD_SIZE, CANARY_LOCAL_RANK, CANARY_LOCAL_SIZE, CANARY_JOIN,
  CANARY_SOCKET_IFNAME (unless set), CANARY_RUN_STATE; with --hosts also CANARY_HOST_ID, CANARY_INSECURE=1;
  with --fabric alias CANARY_HOST_ID, CANARY_RAILS and, with --rate, CANARY_PACING_RATE.
Exit status: that of the first rank that failed, 128 + N for signal N; 2 wrong arguments; 124 --timeout; 125 no test
bed.
Signals INT, TERM, HUP, USR1 and USR2 go to all ranks. Nothing is left behind, also after SIGKILL.)";

}  // namespace

std::string rates_text(const RunOptions& o, int host) {
  std::string text;
  for (int k = 0; k < o.nics && !o.rates.empty(); ++k)
    text += (k > 0 ? "," : "") + rate_text(o.rates.at(host, k, std::int64_t{0}));
  return text;
}

Result<ParsedOptions> parse_run_options(const std::vector<std::string>& arguments) {
  ParsedOptions parsed;
  RunOptions& o = parsed.options;
  // The line is split here at the first "--": the rest is the ranks' command, whatever it looks like.
  std::vector<std::string> own;
  bool separator = false;
  for (const auto& argument : arguments) {
    if (!separator && argument == "--") {
      separator = true;
    } else {
      (separator ? o.command : own).push_back(argument);
    }
  }

  Texts t;
  CLI::App app(
      "canary-run -n RANKS [OPTIONS] -- CMD...\n"
      "Starts the ranks of a job on this machine: plain processes, or on hosts made of network namespaces.",
      "canary-run");
  app.footer(kFooter);
  bool no_ctl = false, no_prefix = false;
  app.add_option("-n,--ranks", t.ranks, "ranks to start, in equal blocks per host")->type_name("RANKS");
  app.add_option("--hosts", t.hosts, "make H hosts, one network namespace each (default: plain processes)")
      ->type_name("H");
  app.add_option("--fabric", t.fabric,
                 "of what hosts are made: namespaces (default), or alias: loopback addresses as NICs, each connection "
                 "paced to --rate; needs no privileges, emulated")
      ->type_name("F");
  app.add_option("--nics", t.nics, "NICs per host, nic0 ... (default: what the topology takes)")->type_name("K");
  app.add_option(
         "--topology", t.topology,
         "flat: NIC k on switch k (default); mesh: one link per pair of hosts; bcube:r,L: r^L hosts with L NICs; "
         "routed: a subnet per host and NIC, behind a router; pointtopoint: /32 addresses behind a gateway; onesubnet: "
         "all NICs of all hosts in one subnet, sysctls as the kernel has them")
      ->type_name("T");
  app.add_option("--rate", t.rate,
                 "rate of a NIC, each direction: 500mbit, or one per NIC index: 500mbit,125mbit, or others for some: "
                 "500mbit,host1.nic0=50mbit (so all lists)")
      ->type_name("R[,R...]");
  app.add_option("--delay", t.delay, "one way between two hosts: 1ms, or one per NIC index; the RTT reached is printed")
      ->type_name("T[,T...]");
  app.add_option("--jitter", t.jitter, "varies the delay by up to this, order is kept")->type_name("T[,T...]");
  app.add_option("--loss", t.loss, "packets lost between two hosts, each way: 0.1%")->type_name("P[,P...]");
  app.add_option("--mtu", t.mtu, "of NICs and switches (default 1500)")->type_name("BYTES");
  app.add_option("--burst", t.burst, "bucket of the shaper (default from the rate)")->type_name("SIZE[,SIZE...]");
  app.add_option("--queue", t.queue, "queue of a NIC and of a switch port (default from the rate)")
      ->type_name("SIZE[,SIZE...]");
  app.add_flag("--ipv6", o.ipv6, "NICs have IPv6 addresses instead of IPv4 (ctl0 keeps IPv4)");
  app.add_option("--script", t.script, "changes links while the ranks run: lines such as 2.5s host1.nic0 rate 50mbit")
      ->type_name("FILE");
  app.add_flag("--no-ctl", no_ctl, "no ctl0, the unshaped control NIC: ranks join over nic0");
  app.add_option("--congestion", o.congestion, "TCP congestion control in the hosts, where the kernel allows")
      ->type_name("NAME");
  app.add_option("--port", t.port, "port in CANARY_JOIN (default 29400 with hosts, else a free one)")->type_name("P");
  app.add_option("--grace", t.grace, "what the others get after a rank failed, before SIGTERM (default 5s)")
      ->type_name("T");
  app.add_flag("--keep-going", o.keep_going, "leave the others alone when a rank fails");
  app.add_option("--timeout", t.timeout, "stop all ranks after this time (exit status 124)")->type_name("T");
  app.add_option("--state", o.state_path, "write the state file here (default: in a temporary folder)")
      ->type_name("PATH");
  app.add_flag("--no-prefix", no_prefix, "do not put [rank] before each line of output");
  app.add_flag("-q,--quiet", o.quiet, "say nothing but errors");
  app.set_version_flag("--version", "canary-run " CANARYNET_VERSION);
  try {
    std::vector<std::string> reversed(own.rbegin(), own.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    parsed.print_help = true;
    parsed.help = app.help();
    return parsed;
  } catch (const CLI::CallForVersion& e) {
    parsed.print_help = true;
    parsed.help = std::string(e.what()) + "\n";
    return parsed;
  } catch (const CLI::ExtrasError& e) {
    return Status(CANARY_INVALID_ARGUMENT, std::string(e.what()) + " (the command goes after --)");
  } catch (const CLI::ParseError& e) {
    return Status(CANARY_INVALID_ARGUMENT, e.what());
  }
  o.ctl = !no_ctl;
  o.prefix = !no_prefix;
  if (auto s = fill(t, app, &o); !s.ok()) return s;
  if (o.command.empty())
    return Status(CANARY_INVALID_ARGUMENT, "the command is missing: canary-run -n RANKS ... -- CMD...");
  return parsed;
}

}  // namespace canarynet::run

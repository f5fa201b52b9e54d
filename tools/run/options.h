// tools/run/options.h -- canary-run's command line, checked before anything is created.
//
// Rates are bits per second (0: unshaped), losses parts per million. Every error names the option, its value and what
// it takes. Nothing is created, but the file that --script names is read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "tools/run/place.h"
#include "tools/run/script.h"

namespace canarynet::run {

// kRouted: a subnet per host and NIC, behind a router. kPointToPoint: addresses in no subnet, behind a gateway.
// kOneSubnet: all NICs of all hosts in one, on one switch, like machines that nobody has set up for it.
enum class Topology { kFlat, kMesh, kBcube, kRouted, kPointToPoint, kOneSubnet };
// The kind of hosts and NICs. kAlias is an emulation: addresses of the loopback network, paced by TCP, without
// privileges.
enum class Fabric { kNamespaces, kAlias };

struct RunOptions {
  int ranks = 0;
  int hosts = 0;  // 0: plain processes on loopback
  Fabric fabric = Fabric::kNamespaces;
  int nics = 0;
  Topology topology = Topology::kFlat;
  int radix = 0;   // bcube:r,L
  int levels = 0;  // bcube:r,L
  std::string topology_text = "flat";
  bool ipv6 = false;  // the NICs' addresses; ctl0 has IPv4
  PerNic<std::int64_t> rates;
  bool relay = false;     // packets pass the relay: --delay, --jitter or a script that changes delays, even to 0
  PerNic<Nanos> delays;   // one way, added where a packet leaves its host
  PerNic<Nanos> jitters;  // ± around the delay
  PerNic<std::uint32_t> loss_ppm;  // between two hosts, each way; half of it happens at either end
  int mtu = 1500;
  bool ctl = true;
  int port = 0;  // of rank 0's coordinator; 0: kJoinPort with hosts, a free one for plain processes
  std::string congestion;
  PerNic<Bytes> bursts;  // none: from the rate
  PerNic<Bytes> queues;  // none: from the rate
  std::vector<ScriptStep> script;
  bool prefix = true;
  bool quiet = false;
  bool keep_going = false;
  Nanos grace = 5_s;
  Nanos timeout{};  // 0: none
  std::string state_path;
  std::vector<std::string> command;

  bool namespaces() const { return hosts > 0 && fabric == Fabric::kNamespaces; }
  bool aliases() const { return hosts > 0 && fabric == Fabric::kAlias; }
  int ranks_per_host() const { return hosts > 0 ? ranks / hosts : ranks; }
  int host_of(int rank) const { return hosts > 0 ? rank / ranks_per_host() : 0; }
};

inline constexpr int kJoinPort = 29400;
inline constexpr int kMaxHosts = 250;  // the host number is the last octet of an address
inline constexpr int kMaxRanks = 1024;

struct ParsedOptions {
  bool print_help = false;
  std::string help;
  RunOptions options;
};
// Arguments without the program's name.
Result<ParsedOptions> parse_run_options(const std::vector<std::string>& arguments);

// "500mbit,125mbit": the rates of the host's NICs; "" if none was asked for.
std::string rates_text(const RunOptions& options, int host);

}  // namespace canarynet::run

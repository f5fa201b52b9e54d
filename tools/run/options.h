// tools/run/options.h -- what the user asked canary-run for, checked before anything is created.
//
// Rates are bits per second (0: unshaped), losses parts per million. Lists have one entry per NIC index. Every error
// names the option, its value and what it takes. No side effects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/units.h"

namespace canarynet::run {

enum class Topology { kFlat, kMesh, kBcube };
// What hosts and NICs are made of. kAlias: addresses of the loopback network, paced by TCP, without privileges; an
// emulation.
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
  std::vector<std::int64_t> rates;
  bool relay = false;                   // --delay or --jitter given, even as 0: packets pass the relay
  std::vector<Nanos> delays;            // one way, added where a packet leaves its host
  std::vector<Nanos> jitters;           // ± around the delay
  std::vector<std::uint32_t> loss_ppm;  // between two hosts, each way; half of it happens at either end
  int mtu = 1500;
  bool ctl = true;
  int port = 0;  // of rank 0's coordinator; 0: kJoinPort with hosts, a free one for plain processes
  std::string congestion;
  Bytes burst{};  // 0: from the rate
  Bytes queue{};  // 0: from the rate
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
  // The entry of a per-NIC list for NIC `nic`: a list of one serves all.
  template <typename T>
  static T per_nic(const std::vector<T>& list, int nic, T none) {
    return list.empty() ? none : list[list.size() == 1 ? 0 : static_cast<std::size_t>(nic)];
  }
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

// One change of a link while the ranks run: "host=1,nic=0,rate=125mbit", "host=*,nic=1,down".
struct LinkChange {
  int host = -1;  // -1: all
  int nic = -1;   // -1: all
  enum class Action { kNone, kRate, kUp, kDown, kBlackhole, kLoss, kDelay } action = Action::kNone;
  std::int64_t rate = 0;
  bool on = false;  // kBlackhole
  std::uint32_t loss_ppm = 0;
  Nanos delay{};
};
Result<LinkChange> parse_link_change(std::string_view text);

// "500mbit", "2.5gbit", "none" → bits per second.
Result<std::int64_t> parse_rate(std::string_view option, std::string_view text);
// "0.1%", "0" → parts per million.
Result<std::uint32_t> parse_loss(std::string_view option, std::string_view text);
// As tc prints it: "500mbit"; "none" for 0.
std::string rate_text(std::int64_t bits_per_second);
// "500mbit,125mbit": the rates of a host's NICs; "" where none was asked for.
std::string rates_text(const RunOptions& options);

}  // namespace canarynet::run

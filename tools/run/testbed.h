// tools/run/testbed.h -- the hosts: network namespaces, veth NICs, switches (bridges), shaping, and changing them live.
//
// It lives in canary-run's init process, which stands in the fabric's network namespace (the switches' own). A sleeping
// process holds each host; all of it disappears with the PID namespace. Single-threaded, blocking (milliseconds per
// change).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/run/echo.h"
#include "tools/run/options.h"
#include "tools/run/process.h"
#include "tools/run/relay.h"
#include "tools/run/wiring.h"

namespace canarynet::run {

struct NicState {
  std::int64_t rate = 0;  // bits per second, 0: unshaped
  bool up = true;
  bool blackhole = false;
  std::uint32_t loss_ppm = 0;  // of this link, each direction
};

class Testbed {
 public:
  // Moves the calling process into the fabric's namespace. `notes` collects what the user should know.
  // `scratch` is a folder used as a mount point in private mount namespaces.
  static Result<std::unique_ptr<Testbed>> build(const RunOptions& options, const OuterPids& pids,
                                                const std::string& scratch, std::vector<std::string>* notes);

  // For a fresh child: enters host's network namespace and gets a host name, /sys and /etc/hosts of its own.
  Status enter(int host) const;
  Status apply(const LinkChange& change);
  // Measures between host 0's nic0 and its first neighbour there.
  Result<RoundTrip> round_trip() const;
  // The address of rank 0's host, where ranks join, as URLs have it.
  std::string join_address() const;

  const Wiring& wiring() const { return wiring_; }
  const NicState& nic(int host, int k) const { return nics_[static_cast<std::size_t>(host * wiring_.nics + k)]; }
  // The bridge port of a NIC, on which the switch's half of shaping, loss and black holes acts.
  std::string switch_device(const Port& port) const;
  pid_t holder(int host) const { return hosts_[static_cast<std::size_t>(host)].outer_pid; }
  std::uint64_t relay_losses() const;

 private:
  struct Host {
    Descriptor network;
    pid_t pid = -1;        // as init sees it
    pid_t outer_pid = -1;  // as the caller sees it
  };

  Testbed(const RunOptions& options, const std::string& scratch) : options_(options), scratch_(scratch) {}
  Status make_hosts(const OuterPids& pids, std::vector<std::string>* notes);
  Status make_links();
  Status shape_all();
  Status start_relay();
  Status change(const Port& port, const LinkChange& change);
  Status set_rate(const Port& port, std::int64_t rate);
  // Replaces the port's drop filters by those that its NicState asks for.
  Status set_filters(const Port& port);
  Status segmentation_off();
  Status make_switches();
  Status make_router();
  // Runs `ip -batch` in a host, for lines about NICs.
  Status address(int host, const std::string& batch) const;
  std::string shaper(const Port& port, const std::string& device) const;
  NicState& state_of(const Port& port) { return nics_[static_cast<std::size_t>(port.host * wiring_.nics + port.nic)]; }

  RunOptions options_;
  std::string scratch_;
  Wiring wiring_;
  std::vector<Host> hosts_;
  std::vector<NicState> nics_;
  Descriptor fabric_;
  RelayKnobs* knobs_ = nullptr;  // one per port, shared with the relay
  bool segmentation_ = true;
};

}  // namespace canarynet::run

#include "topology/shared_subnet.h"

#include <atomic>

#include "base/log.h"

namespace canarynet {
namespace {

bool share(const Rail& a, const Rail& b) {
  return a.device != b.device && a.address.family == Address::Family::kIPv4 && !a.address.loopback() &&
         a.address.same_subnet(b.address);
}

std::string name_of(const Rail& rail) {
  Address bare = rail.address;
  bare.port = 0;
  return rail.device + " (" + bare.to_string() + ")";
}

}  // namespace

bool shares_subnet(std::span<const Rail> rails, std::size_t rail) {
  for (const Rail& other : rails) {
    if (share(rails[rail], other)) return true;
  }
  return false;
}

std::string describe_shared_subnet(std::span<const Rail> rails, std::size_t rail) {
  std::string others;
  for (const Rail& other : rails) {
    if (share(rails[rail], other)) others += (others.empty() ? "" : ", ") + name_of(other);
  }
  return name_of(rails[rail]) + " shares " + Network::of(rails[rail].address).to_string() + " with " + others;
}

void warn_of_shared_subnet(const std::string& what) {
  static std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  log(LogLevel::kWarn,
      "%s. Until that changes one NIC carries everything there. On every host set net.ipv4.conf.all.rp_filter=2, "
      "net.ipv4.conf.all.arp_ignore=1 and net.ipv4.conf.all.arp_announce=2 (sysctl), or give each NIC a subnet of its "
      "own, or name one NIC in CANARY_RAILS",
      what.c_str());
}

}  // namespace canarynet

// Wiring, addresses and faults of the simulated network.
#include <algorithm>
#include <string>

#include "sim/sim_fabric.h"
#include "sim/sim_lane.h"

namespace canarynet {

namespace {

constexpr std::uint16_t kRailPort = 47000;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

Address without_port(Address address) {
  address.port = 0;
  address.prefix_bits = 0;
  return address;
}

}  // namespace

Wiring Wiring::flat(int hosts, int rails) {
  std::vector<std::uint32_t> row;
  for (int rail = 0; rail < rails; ++rail) row.push_back(static_cast<std::uint32_t>(rail));
  return {std::vector<std::vector<std::uint32_t>>(at(hosts), row)};
}

Wiring Wiring::mesh(int hosts) {
  CANARY_CHECK(hosts - 1 <= kRailsMax, "a mesh needs a NIC per other host");
  Wiring wiring;
  wiring.networks.resize(at(hosts));
  std::uint32_t network = 0;
  for (int a = 0; a < hosts; ++a) {
    for (int b = a + 1; b < hosts; ++b, ++network) {
      wiring.networks[at(a)].push_back(network);  // to b: a's peers below a came in earlier rounds
      wiring.networks[at(b)].push_back(network);
    }
  }
  return wiring;
}

Wiring Wiring::bcube(int r, int levels) {
  CANARY_CHECK(r >= 2 && levels >= 1 && levels <= kRailsMax, "BCube wants a radix and levels");
  int hosts = 1;
  for (int level = 0; level < levels; ++level) hosts *= r;
  Wiring wiring;
  wiring.networks.resize(at(hosts));
  for (int host = 0; host < hosts; ++host) {
    int power = 1;
    for (int level = 0; level < levels; ++level, power *= r) {
      const int group = host / (power * r) * power + host % power;  // the host's digits without this one
      wiring.networks[at(host)].push_back(static_cast<std::uint32_t>(level * (hosts / r) + group));
    }
  }
  return wiring;
}

SimFabric::SimFabric(FabricOptions options, const Wiring& wiring) : options_(options), random_(options.seed) {
  CANARY_CHECK(!wiring.networks.empty() && wiring.networks.size() <= 65000, "1 to 65000 hosts");
  std::uint32_t networks = 0;
  for (const auto& row : wiring.networks) {
    CANARY_CHECK(row.size() <= at(kRailsMax), "too many NICs on a host");
    for (const std::uint32_t network : row) networks = std::max(networks, network + 1);
  }
  std::vector<std::uint32_t> members(networks);
  for (const auto& row : wiring.networks) {
    for (const std::uint32_t network : row) ++members[network];
  }
  const std::uint32_t largest = networks == 0 ? 0 : *std::max_element(members.begin(), members.end());
  // Few large networks: 10.<network>.x.y/16; many small ones: 10.<network>.<network>.x/24.
  const bool large = largest > 250;
  CANARY_CHECK(networks <= (large ? 250u : 65536u), "no addresses for so many networks of this size");
  std::fill(members.begin(), members.end(), 0u);

  CANARY_CHECK(wiring.machine.empty() || wiring.machine.size() == wiring.networks.size(), "each host is on a machine");

  hosts_.resize(wiring.networks.size());
  for (int h = 0; h < hosts(); ++h) {
    Host& host = hosts_[at(h)];
    host.factory = std::make_unique<SimLaneFactory>(*this, h);
    host.first_nic = static_cast<std::uint32_t>(nics_.size());
    for (const std::uint32_t network : wiring.networks[at(h)]) {
      const std::uint32_t place = members[network]++;
      const auto byte = [](std::uint32_t value) { return static_cast<std::uint8_t>(value & 255); };
      const int rail = static_cast<int>(host.rails.size());
      Nic nic;
      nic.host = h;
      nic.rail = rail;
      nic.network = network;
      nic.options = options_.nic;
      nics_.push_back(nic);
      const Address address =
          large ? Address::ipv4(10, byte(network), byte(place / 250), byte(place % 250 + 1), 16, kRailPort)
                : Address::ipv4(10, byte(network >> 8), byte(network), byte(place + 1), 24, kRailPort);
      host.rails.push_back({"nic" + std::to_string(rail), address, options_.nic.out.rate});
      located_.push_back({without_port(address), h, rail});
    }
    if (!options_.control_over_rails || host.rails.empty())
      located_.push_back({without_port(control_address(h)), h, kControlRail});
    if (!wiring.machine.empty()) add_shared_memory(h, wiring.machine[at(h)], networks);
  }
  std::sort(located_.begin(), located_.end(), [](const Located& a, const Located& b) { return a.address < b.address; });
}

// Adds it behind the NICs, as in a host's list of rails.
void SimFabric::add_shared_memory(int h, int machine, std::uint32_t networks) {
  Host& host = hosts_[at(h)];
  Nic nic;
  nic.host = h;
  nic.rail = static_cast<int>(host.rails.size());
  nic.network = networks + static_cast<std::uint32_t>(machine);
  nic.shared = true;
  nic.options = options_.memory;
  nics_.push_back(nic);
  Address name;
  name.family = Address::Family::kSharedMemory;
  name.prefix_bits = 64;
  name.port = kRailPort;
  name.bytes[0] = static_cast<std::uint8_t>(machine >> 8);
  name.bytes[1] = static_cast<std::uint8_t>(machine);
  name.bytes[14] = static_cast<std::uint8_t>(h >> 8);
  name.bytes[15] = static_cast<std::uint8_t>(h);
  host.rails.push_back({"shm", name, options_.memory.out.rate});
  located_.push_back({without_port(name), h, nic.rail});
}

SimFabric::~SimFabric() {
  for (LaneSlot& slot : lanes_) {
    if (slot.lane == nullptr) continue;
    SimLane* lane = slot.lane;
    lane->fabric_ = nullptr;
    lane->up_ = false;
    lane->dead_ = true;
    lane->queue_ = {};
    lane->landed_ = {};
    if (lane->fabric_owned_) delete lane;
  }
}

LaneFactory& SimFabric::factory(int host) { return *hosts_[at(host)].factory; }

Address SimFabric::control_address(int host) const {
  const Host& h = hosts_[at(host)];
  if (options_.control_over_rails && !h.rails.empty()) return without_port(h.rails.front().address);
  return Address::ipv4(172, 16, static_cast<std::uint8_t>(host / 250), static_cast<std::uint8_t>(host % 250 + 1));
}

int SimFabric::host_of(const Address& address) const {
  const Address wanted = without_port(address);
  const auto found = std::lower_bound(located_.begin(), located_.end(), wanted,
                                      [](const Located& l, const Address& a) { return l.address < a; });
  return found == located_.end() || found->address != wanted ? -1 : found->host;
}

Result<SimFabric::Route> SimFabric::route(int host, int rail, const Address& to) const {
  const Address wanted = without_port(to);
  const auto found = std::lower_bound(located_.begin(), located_.end(), wanted,
                                      [](const Located& l, const Address& a) { return l.address < a; });
  if (found == located_.end() || found->address != wanted) return Status(CANARY_UNREACHABLE, "nobody has this address");
  Route route;
  route.to_host = found->host;
  if (found->rail == kControlRail) {
    if (rail != kControlRail) return Status(CANARY_UNREACHABLE, "no route from a rail to the control network");
    return route;
  }
  route.to_nic = hosts_[at(found->host)].first_nic + static_cast<std::uint32_t>(found->rail);
  route.to_rail = to.port == kRailPort ? found->rail : kControlRail;
  const Host& from = hosts_[at(host)];
  if (rail >= static_cast<int>(from.rails.size())) return Status(CANARY_INVALID_ARGUMENT, "no such rail");
  // A control lane goes out as the system routes it: over the first NIC of that network.
  const std::uint32_t first = rail == kControlRail ? 0 : static_cast<std::uint32_t>(rail);
  const std::uint32_t last = rail == kControlRail ? static_cast<std::uint32_t>(from.rails.size()) : first + 1;
  for (std::uint32_t r = first; r < last; ++r) {
    if (nics_[from.first_nic + r].network == nics_[route.to_nic].network) {
      route.from_nic = from.first_nic + r;
      return route;
    }
  }
  return Status(CANARY_UNREACHABLE, "no route: not on one network");
}

// --- faults ----------------------------------------------------------------------------------------------------------

bool SimFabric::blocked(std::uint16_t from, std::uint16_t to, std::uint32_t from_nic, std::uint32_t to_nic) const {
  if (hosts_[to].silent) return true;
  if (from_nic != kNoSlot && (!nics_[from_nic].up || !nics_[to_nic].up)) return true;
  if (from_nic != kNoSlot && nics_[from_nic].shared) return false;  // no network divides it
  if (blocks_.empty()) return false;
  return (blocks_[std::size_t{from} * hosts_.size() + to] & (from_nic == kNoSlot ? kBlockControl : kBlockRails)) != 0;
}

NicOptions& SimFabric::nic(int host, int rail) { return nic_at(host, rail).options; }
PathOptions& SimFabric::path(int from, int to) {
  const std::size_t n = hosts_.size();
  if (paths_.empty()) paths_.resize(n * n);
  return paths_[static_cast<std::size_t>(from) * n + static_cast<std::size_t>(to)];
}
const NicCounters& SimFabric::nic_counters(int host, int rail) const { return nic_at(host, rail).counters; }
bool SimFabric::nic_is_up(int host, int rail) const { return nic_at(host, rail).up; }

void SimFabric::nic_down(int host, int rail, NicDeath death) {
  Nic& nic = nic_at(host, rail);
  nic.up = false;
  nic.announced_down = death != NicDeath::kSilent;
  if (death == NicDeath::kSilent) return;
  const std::uint32_t index = hosts_[at(host)].first_nic + static_cast<std::uint32_t>(rail);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    SimLane* lane = lanes_[i].lane;
    if (lane == nullptr) continue;
    if (lane->nic_ == index || (death == NicDeath::kBothEnds && lane->peer_nic_ == index)) {
      down(*lane, Status(CANARY_SYSTEM, "network is down"), false);
    }
  }
}

void SimFabric::nic_up(int host, int rail) {
  nic_at(host, rail).up = true;
  nic_at(host, rail).announced_down = false;
}

void SimFabric::lanes_between(int host, int peer, std::vector<Lane*>* lanes) const {
  std::vector<SimLane*> found;
  for (const LaneSlot& slot : lanes_) {
    SimLane* lane = slot.lane;
    if (lane != nullptr && lane->host_ == host && lane->peer_host_ == peer && lane->up()) found.push_back(lane);
  }
  std::sort(found.begin(), found.end(), [](const SimLane* a, const SimLane* b) { return a->number_ < b->number_; });
  lanes->assign(found.begin(), found.end());
}

void SimFabric::kill_lane(Lane& lane, bool announced, bool hangup) {
  auto& one = static_cast<SimLane&>(lane);
  for (SimLane* end : {&one, resolve(one.peer_)}) {
    if (end == nullptr) continue;
    if (announced) {
      down(*end, Status(CANARY_SYSTEM, hangup ? "connection reset by peer" : "the lane broke"), hangup);
    } else {
      end->silent_ = true;
    }
  }
}

void SimFabric::set_block(int a, int b, std::uint8_t what, bool on) {
  if (blocks_.empty()) blocks_.resize(hosts_.size() * hosts_.size());
  std::uint8_t& bits = blocks_[at(a) * hosts_.size() + at(b)];
  bits = static_cast<std::uint8_t>(on ? bits | what : bits & ~what);
}

void SimFabric::block(int a, int b, std::uint8_t what, bool both_ways) {
  set_block(a, b, what, true);
  if (both_ways) set_block(b, a, what, true);
}

void SimFabric::unblock(int a, int b, std::uint8_t what, bool both_ways) {
  set_block(a, b, what, false);
  if (both_ways) set_block(b, a, what, false);
}

void SimFabric::heal() {
  std::fill(blocks_.begin(), blocks_.end(), std::uint8_t{0});
  for (Nic& nic : nics_) {
    nic.up = true;
    nic.announced_down = false;
  }
}

void SimFabric::freeze(int host) { hosts_[at(host)].frozen = true; }
bool SimFabric::frozen(int host) const { return hosts_[at(host)].frozen; }
bool SimFabric::crashed(int host) const { return hosts_[at(host)].crashed; }

void SimFabric::thaw(int host) {
  Host& h = hosts_[at(host)];
  h.frozen = false;
  make_ready(host);
}

void SimFabric::slow(int host, std::int64_t times) { hosts_[at(host)].slowness = std::max<std::int64_t>(times, 1); }

void SimFabric::crash(int host, CrashKind kind) {
  Host& h = hosts_[at(host)];
  if (h.crashed) return;
  h.crashed = true;
  h.silent = kind == CrashKind::kSilent;
  h.frozen = false;
  h.control_port = 0;
  h.factory->acceptor_ = nullptr;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    SimLane* lane = lanes_[i].lane;
    if (lane == nullptr || lane->host_ != host || lane->dead_) continue;
    if (kind == CrashKind::kHangup) {
      close(*lane);
    } else {
      lane->dead_ = true;
      lane->up_ = false;
      drop_lists(*lane);
    }
    if (lane->fabric_owned_) delete lane;
  }
  while (!h.inbox.empty()) {
    const InboxEntry entry = h.inbox.pop();
    if (entry.kind == InboxEntry::kFrame) discard(entry.frame);
  }
}

void SimFabric::restart(int host) {
  Host& h = hosts_[at(host)];
  h.crashed = false;
  h.silent = false;
}

}  // namespace canarynet

#include "runtime/meeting.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "base/fork.h"
#include "base/secret.h"
#include "control/unique_id.h"
#include "discovery/host.h"

namespace canarynet {
namespace {

using control::UniqueId;

constexpr int kBacklog = 1024;
constexpr std::size_t kOpenIdsMax = 64;

// Ids made here that no job has taken yet, the oldest first.
struct OpenId {
  std::uint64_t token;
  Socket listener;
};
struct OpenIds {  // a forked child has made none: it does not answer for its parent
  std::mutex mutex;
  std::vector<OpenId> list;
};

std::string source_of(const ContextOptions& options) {
  return options.join_source.empty() ? "CANARY_JOIN" : options.join_source;
}

Status check_allowed(const std::vector<Address>& addresses, const Settings& settings, const std::string& what) {
  for (const Address& a : addresses) {
    if (a.loopback() || settings.insecure) continue;
    return Status(CANARY_INSECURE, what +
                                       " is not a loopback address and there is no key: traffic would be neither "
                                       "authenticated nor encrypted. Set CANARY_INSECURE=1 to accept that");
  }
  return {};
}

Result<Socket> take_listener(std::uint64_t token) {
  OpenIds& ids = process_wide<OpenIds>();
  const std::lock_guard lock(ids.mutex);
  const auto found =
      std::find_if(ids.list.begin(), ids.list.end(), [&](const OpenId& id) { return id.token == token; });
  if (found == ids.list.end()) {
    return Status(CANARY_JOIN,
                  "rank 0 must be the process that called canary_get_unique_id: this one did not make the id it was "
                  "given, has used it already (an id serves one job), or has made " +
                      std::to_string(kOpenIdsMax) + " others since");
  }
  Socket listener = std::move(found->listener);
  ids.list.erase(found);
  return listener;
}

Result<Meeting> meet_by_id(const ContextOptions& options, const std::vector<Interface>& interfaces) {
  auto id = control::parse_unique_id(options.settings.join);
  if (!id.ok()) {
    return Status(id.status().code() == CANARY_VERSION ? CANARY_VERSION : CANARY_INVALID_SETTING,
                  source_of(options) + ": " + id.status().text());
  }
  Meeting m;
  m.token = id.value().token;
  m.addresses = std::move(id.value().addresses);
  // On a network that this host is on as well, first.
  std::stable_partition(m.addresses.begin(), m.addresses.end(), [&](const Address& a) {
    return std::any_of(interfaces.begin(), interfaces.end(),
                       [&](const Interface& i) { return i.address.same_subnet(a); });
  });
  if (Status s = check_allowed(m.addresses, options.settings, "the unique id's " + m.addresses.front().to_string());
      !s.ok())
    return s;
  if (options.ranks.front() == 0) {
    auto listener = take_listener(m.token);
    if (!listener.ok()) return listener.status();
    m.listener = listener.take();
  } else if (std::all_of(m.addresses.begin(), m.addresses.end(), [](const Address& a) { return a.loopback(); }) &&
             id.value().host != control::host_mark(default_host_id())) {
    return Status(CANARY_JOIN,
                  "the unique id was made on another host and holds its loopback address only: set CANARY_INSECURE=1 "
                  "where canary_get_unique_id is called (and CANARY_SOCKET_IFNAME, if that names loopback)");
  }
  return m;
}

// Rank 0's host as others may reach it, the NICs that the settings name first.
Result<std::vector<Address>> own_addresses(const Settings& settings) {
  auto interfaces = list_interfaces();
  if (!interfaces.ok()) return interfaces.status();
  auto rails = choose_rails(settings, interfaces.value(), !settings.insecure);
  if (!rails.ok()) return rails.status();
  std::vector<Address> out;
  const auto add = [&](const Address& a) {
    const bool known = std::any_of(out.begin(), out.end(), [&](const Address& o) { return o.bytes == a.bytes; });
    if (!known && out.size() < control::kUniqueIdAddressesMax) out.push_back(a);
  };
  for (const Rail& rail : rails.value()) add(rail.address);
  if (Status s = check_allowed(out, settings, "canary_get_unique_id: " + out.front().to_string()); !s.ok()) return s;
  if (std::all_of(out.begin(), out.end(), [](const Address& a) { return a.loopback(); })) {
    out.resize(1);
    return out;
  }
  // A loopback address beside real ones would lead other hosts to themselves.
  std::erase_if(out, [](const Address& a) { return a.loopback(); });
  for (const Interface& i : interfaces.value()) {
    if (!i.address.loopback() && matches_ifname("^docker,virbr", i.name)) add(i.address);
  }
  return out;
}

}  // namespace

Result<Meeting> meeting_point(const ContextOptions& options, const std::vector<Interface>& interfaces) {
  const Settings& s = options.settings;
  if (s.join.starts_with(control::kUniqueIdScheme)) return meet_by_id(options, interfaces);
  auto address = resolve_join(s.join, source_of(options));
  if (!address.ok()) return address.status();
  Meeting m;
  m.addresses.push_back(address.value());
  if (Status refused = check_allowed(m.addresses, s, "CANARY_JOIN=" + s.join); !refused.ok()) return refused;
  return m;
}

Status make_unique_id(std::span<std::uint8_t> bytes) {
  auto settings = Settings::from_environment();
  if (!settings.ok()) return settings.status();
  auto addresses = own_addresses(settings.value());
  if (!addresses.ok()) return addresses.status();
  UniqueId id;
  id.addresses = addresses.take();
  // On every address of the host, as rank 0 listens wherever it is joined; an IPv6 wildcard takes IPv4 as well.
  Address at = id.addresses.front();
  for (const Address& a : id.addresses) {
    if (a.family == Address::Family::kIPv6) at.family = a.family;
  }
  if (!id.addresses.front().loopback()) at.bytes = {};
  auto listener = listen_on(at, {.backlog = kBacklog});
  if (!listener.ok()) return listener.status().wrap("canary_get_unique_id");
  id.port = local_address(listener.value().fd()).port;
  id.host = control::host_mark(default_host_id());
  auto token = draw_secret();
  if (!token.ok()) return token.status();
  id.token = token.value();

  OpenIds& ids = process_wide<OpenIds>();
  const std::lock_guard lock(ids.mutex);
  ids.list.reserve(kOpenIdsMax + 1);
  if (ids.list.size() == kOpenIdsMax) ids.list.erase(ids.list.begin());
  const auto encoded = control::encode(id);
  std::copy(encoded.begin(), encoded.end(), bytes.begin());
  ids.list.push_back({id.token, listener.take()});
  return {};
}

}  // namespace canarynet

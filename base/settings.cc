#include "base/settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <variant>

namespace canarynet {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSec = 1'000'000'000;
constexpr std::int64_t kMiB = 1 << 20;

using Field = std::variant<std::string Settings::*, bool Settings::*, std::int64_t Settings::*, Bytes Settings::*,
                           Nanos Settings::*>;

struct Row {
  SettingInfo info;
  Field field;
};

const Row kRows[] = {
    {{"join", "CANARY_JOIN", SettingKind::kText, "", 0, 0, false,
      "where the ranks meet: tcp://host:port, an address of rank 0's host; or id:HEX, the 256 digits of a unique id"},
     &Settings::join},
    {{"join_timeout", "CANARY_JOIN_TIMEOUT", SettingKind::kDuration, "120s", 10 * kMs, 86400 * kSec, false,
      "how long canary_init waits for all ranks, and a connection for its peer (connect; in the NCCL plugin also "
      "accept)"},
     &Settings::join_timeout},
    {{"insecure", "CANARY_INSECURE", SettingKind::kBool, "0", 0, 1, false,
      "1 allows addresses beyond loopback without keys: traffic is neither encrypted nor authenticated"},
     &Settings::insecure},
    {{"host_id", "CANARY_HOST_ID", SettingKind::kText, "", 0, 0, false,
      "names this host; default: boot id and network namespace"},
     &Settings::host_id},
    {{"local_ranks", "CANARY_LOCAL_RANKS", SettingKind::kInteger, "1", 1, 1024, false,
      "threads of this process that each join as a rank; they share one engine"},
     &Settings::local_ranks},
    {{"socket_ifname", "CANARY_SOCKET_IFNAME", SettingKind::kText, "", 0, 0, false,
      "NICs to use: comma-separated name prefixes; ^ in front excludes them, = in front takes exact names"},
     &Settings::socket_ifname},
    {{"rails", "CANARY_RAILS", SettingKind::kText, "", 0, 0, false,
      "NICs in rail order, by exact name or address, comma-separated; overrides socket_ifname"},
     &Settings::rails},
    {{"rail_pairing", "CANARY_RAIL_PAIRING", SettingKind::kText, "auto", 0, 0, true,
      "which NICs of two hosts meet: subnet (those on one subnet), route (also those that routes join), auto (subnet; "
      "route where two hosts share none), index (k-th with k-th)"},
     &Settings::rail_pairing},
    {{"transports", "CANARY_TRANSPORTS", SettingKind::kText, "tcp,shm", 0, 0, false,
      "kinds of lanes, of ranks and of connections, comma-separated: tcp over NICs, shm between processes of one host "
      "and user, which then meet over nothing else"},
     &Settings::transports},
    {{"lanes_per_rail", "CANARY_LANES_PER_RAIL", SettingKind::kInteger, "1", 1, 16, true,
      "connections per rail and peer; more help where a network caps single flows"},
     &Settings::lanes_per_rail},
    {{"connect_at_join", "CANARY_CONNECT_AT_JOIN", SettingKind::kInteger, "32", 0, 65535, true,
      "a job of at most this many processes connects every pair at the join; a larger one connects each process to "
      "its two neighbours by rank, and to any other on first use"},
     &Settings::connect_at_join},
    {{"tcp_congestion", "CANARY_TCP_CONGESTION", SettingKind::kText, "cubic", 0, 0, false,
      "TCP congestion control of lanes; empty or not available: the system's (docs/congestion.md: which for what "
      "link)"},
     &Settings::tcp_congestion},
    {{"tcp_notsent_lowat", "CANARY_TCP_NOTSENT_LOWAT", SettingKind::kBytes, "128KiB", 4096, 64 * kMiB, false,
      "bytes a socket may hold that TCP has not sent yet; small values make rate changes felt at once"},
     &Settings::tcp_notsent_lowat},
    {{"pacing_rate", "CANARY_PACING_RATE", SettingKind::kText, "", 0, 0, false,
      "the most that one connection sends, paced by TCP: 500mbit, or one per rail, 500mbit,none; for addresses that "
      "stand in for NICs"},
     &Settings::pacing_rate},
    {{"algo", "CANARY_ALGO", SettingKind::kText, "", 0, 0, true,
      "planner for all collectives it defines: ring, mesh, bcube, halving_doubling, tree, dbtree, parameter_server, "
      "ring_per_rail, hierarchical, bcube_x, mesh_relay; or rules by collective and size: "
      "all_reduce:0-64K=mesh,64K-=ring;broadcast=tree; what they leave open, and empty: chosen by size and topology"},
     &Settings::algo},
    {{"ps_servers", "CANARY_PS_SERVERS", SettingKind::kInteger, "1", 1, 8192, true,
      "ranks that own a part each, from rank 0, where parameter_server runs"},
     &Settings::ps_servers},
    {{"measured_choice", "CANARY_MEASURED_CHOICE", SettingKind::kBool, "1", 0, 1, true,
      "1: what was measured of the links may choose another planner than size and topology do, the same one on all "
      "ranks; 0: never"},
     &Settings::measured_choice},
    {{"piece_bytes", "CANARY_PIECE_BYTES", SettingKind::kBytes, "128KiB", 1024, kMiB, true,
      "largest piece: unit of schedule, striping and retransmission; a multiple of 128; rings of shared memory hold "
      "two, and 1 MiB at least"},
     &Settings::piece_bytes},
    {{"shm_crc", "CANARY_SHM_CRC", SettingKind::kBool, "0", 0, 1, true,
      "1: payloads carry a CRC32C also through this host's own memory, and are checked; on NICs they always do"},
     &Settings::shm_crc},
    {{"probes", "CANARY_PROBES", SettingKind::kBool, "0", 0, 1, false,
      "1: idle links are measured by trains of probes, which take a hundredth of their time; 0: by traffic alone"},
     &Settings::probes},
    {{"eager_bytes", "CANARY_EAGER_BYTES", SettingKind::kBytes, "4MiB", 16384, 64 * kMiB, true,
      "per peer: what may be sent for operations that it has not entered yet, and of it 256 KiB at most for messages; "
      "a link is idle at the start of an operation for what its round trip carries beyond this"},
     &Settings::eager_bytes},
    {{"ops_in_flight", "CANARY_OPS_IN_FLIGHT", SettingKind::kInteger, "64", 1, 1024, false,
      "operations of one rank that may be pending at once; one more waits its turn"},
     &Settings::ops_in_flight},
    {{"heartbeat_interval", "CANARY_HEARTBEAT_INTERVAL", SettingKind::kDuration, "200ms", kMs, 60 * kSec, false,
      "how often an idle lane and the control connection say that this engine lives"},
     &Settings::heartbeat_interval},
    {{"silence_limit", "CANARY_SILENCE_LIMIT", SettingKind::kDuration, "60s", 10 * kMs, 3600 * kSec, false,
      "how long a peer whose death nothing proves may be unheard, on any lane and on control, before it counts as "
      "dead"},
     &Settings::silence_limit},
    {{"silence_warning", "CANARY_SILENCE_WARNING", SettingKind::kDuration, "2s", 0, 3600 * kSec, false,
      "after how long a warning names a silent peer, its host and NICs; 0: never"},
     &Settings::silence_warning},
    {{"entry_limit", "CANARY_ENTRY_LIMIT", SettingKind::kDuration, "10min", 10 * kMs, 86400 * kSec, false,
      "how long an operation waits for a live rank that has not called it"},
     &Settings::entry_limit},
    {{"exchange_limit", "CANARY_EXCHANGE_LIMIT", SettingKind::kDuration, "30s", 10 * kMs, 86400 * kSec, false,
      "how long an operation that all have entered may go without progress"},
     &Settings::exchange_limit},
    {{"stall_warning", "CANARY_STALL_WARNING", SettingKind::kDuration, "10s", 0, 86400 * kSec, false,
      "how long a message on a connection may make no progress before a warning says what it waits for; 0: for ever"},
     &Settings::stall_warning},
    {{"progress_thread", "CANARY_PROGRESS_THREAD", SettingKind::kBool, "1", 0, 1, false,
      "0: the engine runs only inside calls; between them peers hear nothing and do not mind, its death shows by "
      "hang-ups and limits only"},
     &Settings::progress_thread},
    {{"spin_budget", "CANARY_SPIN", SettingKind::kDuration, "0us", 0, 10 * kSec, false,
      "how long a waiting thread polls before it sleeps; 0 where cores are few"},
     &Settings::spin_budget},
    {{"halt_poll", "CANARY_HALT_POLL", SettingKind::kDuration, "200us", 0, 10 * kMs, false,
      "endpoints and the NCCL plugin: how long their thread polls before it sleeps while replies come that soon; 0: "
      "never"},
     &Settings::halt_poll},
    {{"abort_on_error", "CANARY_ABORT_ON_ERROR", SettingKind::kBool, "0", 0, 1, false,
      "NCCL plugin: 1 aborts the process when a connection fails, instead of leaving its GPU kernels spinning until "
      "somebody aborts the communicator"},
     &Settings::abort_on_error},
    {{"nccl_alpha", "CANARY_NCCL_ALPHA", SettingKind::kText, "", 0, 0, false,
      "NCCL plugin: start-up time of a message between hosts, such as 25us; with nccl_bandwidth the tuner's "
      "cost model, equal on all ranks"},
     &Settings::nccl_alpha},
    {{"nccl_bandwidth", "CANARY_NCCL_BANDWIDTH", SettingKind::kText, "", 0, 0, false,
      "NCCL plugin: what all NICs of a host carry together in one direction, such as 2.5gbit"},
     &Settings::nccl_bandwidth},
};

Status invalid(const SettingInfo& info, std::string_view text, const std::string& takes) {
  return Status(CANARY_INVALID_SETTING, std::string(info.environment) + "=\"" + std::string(text) + "\": " + takes);
}

bool parse_number(std::string_view text, std::int64_t* value, std::string_view* rest) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error != std::errc() || end == text.data()) return false;
  *rest = text.substr(static_cast<std::size_t>(end - text.data()));
  return true;
}

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

// Smallest first; if one factor has two names, the second is the one that is written.
constexpr Unit kSizes[] = {{"", 1},        {"B", 1},         {"K", 1 << 10}, {"KiB", 1 << 10},
                           {"M", 1 << 20}, {"MiB", 1 << 20}, {"G", 1 << 30}, {"GiB", 1 << 30}};
constexpr Unit kTimes[] = {{"ns", 1}, {"us", 1000}, {"ms", kMs}, {"s", kSec}, {"min", 60 * kSec}, {"h", 3600 * kSec}};

bool scale(std::string_view unit, std::span<const Unit> units, std::int64_t* value) {
  for (const Unit& u : units) {
    if (u.name == unit) return !__builtin_mul_overflow(*value, u.factor, value);
  }
  return false;
}

// Writes the value in the largest unit of which it is a whole number.
std::string written(std::int64_t value, std::span<const Unit> units) {
  const Unit* best = units.data();
  for (const Unit& u : units) {
    if (value % u.factor == 0 && value >= u.factor) best = &u;
  }
  return std::to_string(value / best->factor) + std::string(best->name);
}

std::string written(std::int64_t value, SettingKind kind) {
  if (kind == SettingKind::kDuration) return value == 0 ? "0" : written(value, kTimes);
  return kind == SettingKind::kBytes ? written(value, kSizes) : std::to_string(value);
}

Status check_range(const SettingInfo& info, std::string_view text, std::int64_t value) {
  if (value >= info.min && value <= info.max) return {};
  return invalid(info, text,
                 "must lie between " + written(info.min, info.kind) + " and " + written(info.max, info.kind));
}

// Takes the next part off the front of a comma-separated list.
std::string_view next_part(std::string_view* list) {
  const std::size_t comma = std::min(list->find(','), list->size());
  const std::string_view part = list->substr(0, comma);
  list->remove_prefix(std::min(comma + 1, list->size()));
  return part;
}

bool known_transports(std::string_view list) {
  if (list.empty() || list.back() == ',') return false;
  while (!list.empty()) {
    const std::string_view part = next_part(&list);
    if (part != "tcp" && part != "shm") return false;
  }
  return true;
}

Status assign(Settings* s, const Row& row, std::string_view text) {
  const SettingInfo& info = row.info;
  switch (info.kind) {
    case SettingKind::kText:
      if (std::string_view(info.name) == "transports" && !known_transports(text))
        return invalid(info, text, "takes a comma-separated list of tcp and shm");
      if (std::string_view(info.name) == "rail_pairing" && text != "auto" && text != "subnet" && text != "route" &&
          text != "index")
        return invalid(info, text, "takes auto, subnet, route or index");
      s->*std::get<std::string Settings::*>(row.field) = std::string(text);
      return {};
    case SettingKind::kBool: {
      if (text != "0" && text != "1") return invalid(info, text, "takes 0 or 1");
      s->*std::get<bool Settings::*>(row.field) = text == "1";
      return {};
    }
    case SettingKind::kInteger: {
      std::int64_t value = 0;
      std::string_view rest;
      if (!parse_number(text, &value, &rest) || !rest.empty()) return invalid(info, text, "takes a whole number");
      if (Status st = check_range(info, text, value); !st.ok()) return st;
      s->*std::get<std::int64_t Settings::*>(row.field) = value;
      return {};
    }
    case SettingKind::kBytes: {
      const auto value = parse_bytes(text);
      if (!value.ok()) return invalid(info, text, value.status().text());
      if (Status st = check_range(info, text, value.value().count); !st.ok()) return st;
      if (std::string_view(info.name) == "piece_bytes" && value.value().count % 128 != 0) {
        return invalid(info, text, "must be a multiple of 128 bytes");
      }
      s->*std::get<Bytes Settings::*>(row.field) = value.value();
      return {};
    }
    case SettingKind::kDuration: {
      const auto value = parse_duration(text);
      if (!value.ok()) return invalid(info, text, value.status().text());
      if (Status st = check_range(info, text, value.value().count); !st.ok()) return st;
      s->*std::get<Nanos Settings::*>(row.field) = value.value();
      return {};
    }
  }
  return Status(CANARY_INTERNAL, "setting of unknown kind");
}

std::string text_of(const Settings& settings, const Row& row) {
  return std::visit(
      [&](auto field) -> std::string {
        const auto& v = settings.*field;
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return v;
        } else if constexpr (std::is_same_v<T, Bytes> || std::is_same_v<T, Nanos>) {
          return written(v.count, row.info.kind);
        } else {
          return std::to_string(v);
        }
      },
      row.field);
}

}  // namespace

std::span<const SettingInfo> setting_table() {
  static const std::vector<SettingInfo> infos = [] {
    std::vector<SettingInfo> out;
    for (const Row& row : kRows) out.push_back(row.info);
    return out;
  }();
  return infos;
}

Result<Bytes> parse_bytes(std::string_view text) {
  std::int64_t value = 0;
  std::string_view unit;
  if (parse_number(text, &value, &unit) && value >= 0 && scale(unit, kSizes, &value)) {
    return Bytes{value};
  }
  return Status(CANARY_INVALID_ARGUMENT, "takes bytes: 4096, 128KiB, 1MiB");
}

Result<Nanos> parse_duration(std::string_view text) {
  if (text == "0") return Nanos{};  // the only value that needs no unit
  std::int64_t value = 0;
  std::string_view unit;
  if (parse_number(text, &value, &unit) && value >= 0 && scale(unit, kTimes, &value)) {
    return Nanos{value};
  }
  return Status(CANARY_INVALID_ARGUMENT, "takes a time with its unit: 500us, 250ms, 10s, 10min");
}

std::string as_written(Bytes bytes) { return written(bytes.count, SettingKind::kBytes); }
std::string as_written(Nanos time) { return written(time.count, SettingKind::kDuration); }

Settings Settings::defaults() {
  Settings s;
  for (const Row& row : kRows) {
    const Status st = assign(&s, row, row.info.default_value);
    CANARY_CHECK(st.ok(), "a setting's default is not valid");
  }
  return s;
}

Result<Settings> Settings::from_environment() {
  Settings s = defaults();
  for (const Row& row : kRows) {
    const char* text = std::getenv(row.info.environment);
    if (text == nullptr) continue;
    if (Status st = assign(&s, row, text); !st.ok()) return st;
  }
  return s;
}

Status Settings::check() const {
  const auto contradict = [](const char* name, Nanos value, const char* other, Nanos other_value,
                             const std::string& why) {
    return Status(CANARY_INVALID_SETTING, std::string(name) + "=" + as_written(value) + " contradicts " + other + "=" +
                                              as_written(other_value) + ": " + why);
  };
  // Control takes a peer for lost after this many missed heartbeats.
  if (const Nanos beats = heartbeat_interval * 3; silence_limit < beats) {
    return contradict("CANARY_SILENCE_LIMIT", silence_limit, "CANARY_HEARTBEAT_INTERVAL", heartbeat_interval,
                      "peers that live would be taken for dead between two heartbeats; it takes three of them, " +
                          as_written(beats) + ", or more");
  }
  if (entry_limit < heartbeat_interval) {
    return contradict("CANARY_ENTRY_LIMIT", entry_limit, "CANARY_HEARTBEAT_INTERVAL", heartbeat_interval,
                      "heartbeats say which operations a rank has entered; it takes one of them, " +
                          as_written(heartbeat_interval) + ", or more");
  }
  return {};
}

bool Settings::uses(std::string_view transport) const {
  for (std::string_view rest = transports; !rest.empty();) {
    if (next_part(&rest) == transport) return true;
  }
  return false;
}

Status Settings::set(std::string_view name, std::string_view text) {
  for (const Row& row : kRows) {
    if (name == row.info.name || name == row.info.environment) return assign(this, row, text);
  }
  return Status(CANARY_INVALID_SETTING,
                "no setting is called \"" + std::string(name) + "\" (docs/settings.md lists them)");
}

Result<std::int64_t> Settings::number(std::string_view name) const {
  for (const Row& row : kRows) {
    if (name != row.info.name && name != row.info.environment) continue;
    if (const auto* b = std::get_if<bool Settings::*>(&row.field)) return std::int64_t{this->**b};
    if (const auto* i = std::get_if<std::int64_t Settings::*>(&row.field)) return this->**i;
    if (const auto* n = std::get_if<Bytes Settings::*>(&row.field)) return (this->**n).count;
    if (const auto* t = std::get_if<Nanos Settings::*>(&row.field)) return (this->**t).count;
    return Status(CANARY_INVALID_ARGUMENT, "setting \"" + std::string(name) + "\" is a text");
  }
  return Status(CANARY_INVALID_SETTING,
                "no setting is called \"" + std::string(name) + "\" (docs/settings.md lists them)");
}

std::optional<Settings::Difference> Settings::first_difference(const Settings& other) const {
  for (const Row& row : kRows) {
    std::string mine = text_of(*this, row), theirs = text_of(other, row);
    if (mine != theirs) return Difference{row.info.name, std::move(mine), std::move(theirs)};
  }
  return {};
}

std::vector<std::string> Settings::must_agree() const {
  std::vector<std::string> out;
  for (const Row& row : kRows) {
    if (row.info.must_agree) out.push_back(std::string(row.info.name) + "=" + text_of(*this, row));
  }
  return out;
}

}  // namespace canarynet

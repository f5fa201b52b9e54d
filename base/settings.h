// base/settings.h -- every setting of the library, declared once: name, environment variable, default, unit, sentence.
//
// The table feeds the environment reader, --help texts and docs/settings.md. Values are read once, at engine creation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/units.h"

namespace canarynet {

enum class SettingKind : std::uint8_t { kText, kBool, kInteger, kBytes, kDuration };

struct SettingInfo {
  const char* name;         // "piece_bytes"
  const char* environment;  // "CANARY_PIECE_BYTES"
  SettingKind kind;
  const char* default_value;  // as a user would write it
  std::int64_t min;           // kInteger, kBytes, kDuration (ns)
  std::int64_t max;
  bool must_agree;  // compared between ranks at join
  const char* sentence;
};
std::span<const SettingInfo> setting_table();

// One value of every setting. Durations in nanoseconds.
struct Settings {
  // joining
  std::string join;  // CANARY_JOIN: tcp://host:port
  Nanos join_timeout;
  bool insecure = false;
  std::string host_id;
  std::int64_t local_ranks = 1;
  // rails and lanes
  std::string socket_ifname;  // NCCL's grammar: prefix list, ^ exclude, = exact
  std::string rails;          // CANARY_RAILS: devices or addresses, in order
  std::string rail_pairing;   // "auto", "subnet", "route", "index"
  std::string transports;     // "tcp,shm"; uses() reads it
  std::int64_t lanes_per_rail = 1;
  std::int64_t connect_at_join = 32;
  std::string tcp_congestion;
  Bytes tcp_notsent_lowat;
  std::string pacing_rate;  // CANARY_PACING_RATE: one rate, or one per rail
  // data path
  std::string algo;  // CANARY_ALGO
  std::int64_t ps_servers = 1;
  bool measured_choice = true;
  Bytes piece_bytes;
  bool shm_crc = false;
  bool probes = false;
  Bytes eager_bytes;
  std::int64_t ops_in_flight = 64;
  // time limits
  Nanos heartbeat_interval;
  Nanos silence_limit;
  Nanos silence_warning;  // 0: never
  Nanos entry_limit;
  Nanos exchange_limit;
  Nanos stall_warning;  // of connections; 0: never
  // threads
  bool progress_thread = true;
  Nanos spin_budget;
  Nanos halt_poll;
  // the NCCL plugin's, which reads them itself
  bool abort_on_error = false;
  std::string nccl_alpha;
  std::string nccl_bandwidth;

  // Defaults of the table.
  static Settings defaults();
  // Environment over defaults; the error names the variable, its value and what it takes.
  static Result<Settings> from_environment();
  // Whether CANARY_TRANSPORTS lists this kind of lane.
  bool uses(std::string_view transport) const;
  // Sets one setting, by name ("piece_bytes") or environment name, from text.
  Status set(std::string_view name, std::string_view text);
  // Whether the values go together; call it when all are known. The error names both settings and their values.
  Status check() const;
  // The value of a setting that is not a text: nanoseconds, bytes, a number, 0 or 1.
  Result<std::int64_t> number(std::string_view name) const;
  // The first setting whose value is another one in `other`.
  struct Difference {
    std::string name, mine, theirs;
  };
  std::optional<Difference> first_difference(const Settings& other) const;
  // "name=value" of every must_agree setting, in table order: ranks compare these at join.
  std::vector<std::string> must_agree() const;
};

// "128KiB", "1MiB", "4096" → bytes; "250ms", "10s", "100us", "10min" → Nanos.
Result<Bytes> parse_bytes(std::string_view text);
Result<Nanos> parse_duration(std::string_view text);
// The reverse, exact and as short as possible: "128KiB", "1500ms".
std::string as_written(Bytes bytes);
std::string as_written(Nanos time);

}  // namespace canarynet

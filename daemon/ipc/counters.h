// daemon/ipc/counters.h -- an engine's counters as they lie in shared memory: one table per engine, in a memfd of its
// process.
//
//   0        8         12            16          24         32 ...
//   | magic  | version | table bytes | sequence  | updated  | who: pid, role, rank, names | process values |
//   | NIC rows | choice rows | link rows |
//
// A reader finds it through /proc/PID/fd, where it is called "/memfd:canary-counters (deleted)": nothing is in the file
// system, and nothing outlives the process. One writer, any number of readers: `sequence` is odd while the table is
// written; a reader copies the table and takes it if the sequence was even and the same before and after
// (counters_reader.h).
// Units: bytes, frames, nanoseconds, bytes per second; instants are of CLOCK_MONOTONIC. Counters begin with the engine
// and only grow; the table is as old as `updated_ns` says (the writer publishes at a bounded rate, and not while
// nothing happens).
// A reader believes nothing: validate() says what is wrong with a copy. Native byte order: it never leaves the host.
// New metrics take the next free value, which is 0 in older tables; any other change is a new version.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace canarynet::ipc {

inline constexpr const char* kCountersName = "canary-counters";
inline constexpr std::uint64_t kCountersMagic = 0x3153'5243'594e'4143;  // "CANYCRS1"
inline constexpr std::uint32_t kCountersVersion = 4;

// The counters of a NIC. The table below has the same order; an exporter takes names, units and help texts from it.
enum class NicMetric : std::uint32_t {
  kTransmitBytes,
  kReceiveBytes,
  kTransmitFrames,
  kReceiveFrames,
  kUp,
  kLanesUp,
  kNominalRate,
  kMeasuredRate,
  kFailovers,
  kResentLost,
  kResentStalled,
  kResentFailover,
  kResentHedged,
  kCrcErrors,
  kHeaderErrors,
  kCount
};
enum class LinkMetric : std::uint32_t {
  kTransmitBytes,
  kReceiveBytes,
  kUp,
  kSmoothedRtt,
  kMinimumRtt,
  kRate,
  kUnackedBytes,
  kFailovers,
  kSegmentsSent,
  kSegmentsResent,
  kAlpha,
  kBeta,
  kJitter,
  kLostFrames,
  kSampledAt,
  kLevelChanges,
  kCount
};
enum class ProcessMetric : std::uint32_t {
  kPeers,
  kConnections,
  kOperationsInFlight,
  kOperations,
  kOperationFailures,
  kMessagesInFlight,
  kMessageBytesInFlight,
  kMessagesSent,
  kMessageBytesSent,
  kMessagesReceived,
  kMessageBytesReceived,
  kLinksLeftOut,
  kChoicesLeftOut,
  kCodecValueBytes,
  kCodecEncodedBytes,
  kCodecGainPpm,
  kCodecResidualPpm,
  kNullPieces,
  kNullValueBytes,
  kCount
};

enum class MetricKind : std::uint8_t { kCounter, kGauge };
// The unit of the stored value; an exporter shows seconds for nanoseconds, as Prometheus wants its base units.
enum class MetricUnit : std::uint8_t { kNumber, kBytes, kNanos, kBytesPerSecond };

struct MetricInfo {
  const char* name;   // canary_nic_transmit_bytes_total
  const char* label;  // added to those of its row: reason="lost"; "" for none
  MetricKind kind;
  MetricUnit unit;
  const char* help;
};
// Rows are labelled {device,transport}, links {device,peer}; both also by process.
std::span<const MetricInfo> nic_metrics();
std::span<const MetricInfo> link_metrics();
std::span<const MetricInfo> process_metrics();

enum class Role : std::uint32_t {
  kRank = 1,      // of a job (canary_init)
  kEndpoint = 2,  // connections without a job (canary_endpoint_create)
};

inline constexpr std::size_t kValues = 24;  // per row; those beyond the existing metrics stay 0
inline constexpr std::size_t kNicsMax = 32;
inline constexpr std::size_t kChoicesMax = 64;
inline constexpr std::size_t kLinksMax = 512;  // further links and choices are left out, and counted

struct NicRow {
  char device[32];
  char transport[16];
  std::array<std::uint64_t, kValues> values;

  std::uint64_t& at(NicMetric m) { return values[static_cast<std::size_t>(m)]; }
  std::uint64_t at(NicMetric m) const { return values[static_cast<std::size_t>(m)]; }
};
struct LinkRow {
  std::uint32_t nic;  // row of the local one
  std::uint32_t lane;
  char peer[56];    // "rank 3", "hosta:1234"
  char remote[48];  // NIC or address at the other end
  std::array<std::uint64_t, kValues> values;

  std::uint64_t& at(LinkMetric m) { return values[static_cast<std::size_t>(m)]; }
  std::uint64_t at(LinkMetric m) const { return values[static_cast<std::size_t>(m)]; }
};

// Why a group's operations run by the algorithm that they do.
enum class ChosenBy : std::uint32_t {
  kForced = 1,    // a user's row
  kMeasured = 2,  // a row of the group's measured table
  kKept = 3,      // such a row, which keeps the choice by size and topology
  kStatic = 4,    // size and topology; no row says anything
};

// Why a row of a measured table names the algorithm that it does.
enum class ChoiceReason : std::uint32_t {
  kNone = 0,            // no row, or too few operations had run to compare it
  kTrial = 1,           // it is there to be timed
  kFastest = 2,         // of all that was timed, it took the least
  kAsFastAsStatic = 3,  // the choice by size and topology: what took less took hardly less
  kStays = 4,           // what decided before: what took less took hardly less
};

// Operations of one collective by one algorithm.
struct ChoiceTimes {
  char planner[24];
  std::uint64_t operations;
  std::uint64_t mean_ns;
  std::uint32_t before;         // 1: by an earlier table than the one that decides now, the last one by which any ran
  std::uint32_t table_version;  // of that one; 0: there was none yet
};
// What runs a collective's operations of one class of sizes in a group. The names of planners are empty where there is
// none, and numbers 0. Where operations let their codec be chosen, `asked` is what they ask with ("auto"), and codecs
// stand in the places of planners.
struct ChoiceRow {
  static constexpr std::size_t kTimesMax = 8;

  char collective[24];
  char asked[24];
  char planner[24];
  char runner_up[24];   // the best of the others
  std::uint32_t group;  // its number in the job; 1: all ranks
  std::uint32_t ranks;
  ChosenBy chosen_by;
  std::uint32_t piece_bytes;  // 0: the job's
  std::uint32_t table_version, table_checksum;
  std::uint64_t from_bytes, to_bytes;  // one past; to_bytes 0: no end
  std::uint64_t predicted_ns, runner_up_ns;
  ChoiceReason reason;
  std::uint32_t spare;
  std::array<ChoiceTimes, kTimesMax> times;
};

struct CountersTable {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t table_bytes;
  std::uint64_t sequence;    // the writer's
  std::uint64_t updated_ns;  // when this was published
  std::uint64_t started_ns;  // when the engine was made
  std::uint64_t number;      // of the engine in its process, from 1
  std::int64_t pid;          // as the process sees itself
  Role role;
  std::int32_t rank;  // first one served here; -1: no job
  std::int32_t local_ranks;
  std::int32_t world_size;
  std::uint32_t nics;     // rows in use
  std::uint32_t links;    // rows in use
  std::uint32_t choices;  // rows in use
  std::uint32_t spare;
  char process[32];  // the program's name
  char host[64];
  char build[32];  // "0.1.0"
  std::array<std::uint64_t, kValues> values;
  std::array<NicRow, kNicsMax> nic;
  std::array<ChoiceRow, kChoicesMax> choice;
  std::array<LinkRow, kLinksMax> link;

  std::uint64_t& at(ProcessMetric m) { return values[static_cast<std::size_t>(m)]; }
  std::uint64_t at(ProcessMetric m) const { return values[static_cast<std::size_t>(m)]; }
  // Calls fn(begin, end) for each run of bytes that is in use, from the front. Rows beyond the table don't count.
  template <typename Fn>
  void for_each_used(Fn fn) const {
    fn(std::size_t{0},
       offsetof(CountersTable, choice) + std::min<std::size_t>(choices, kChoicesMax) * sizeof(ChoiceRow));
    const std::size_t begin = offsetof(CountersTable, link);
    fn(begin, begin + std::min<std::size_t>(links, kLinksMax) * sizeof(LinkRow));
  }
};
static_assert(std::is_trivially_copyable_v<CountersTable> && std::has_unique_object_representations_v<CountersTable>);
static_assert(sizeof(NicRow) == 240 && sizeof(LinkRow) == 304 && sizeof(ChoiceRow) == 544);
static_assert(offsetof(CountersTable, sequence) == 16 && offsetof(CountersTable, process) == 88);
static_assert(offsetof(CountersTable, nic) == 408 && offsetof(CountersTable, link) % 8 == 0);
static_assert(sizeof(CountersTable) == 408 + 240 * kNicsMax + 304 * kLinksMax + 544 * kChoicesMax &&
              sizeof(CountersTable) % 8 == 0);
static_assert(static_cast<std::size_t>(NicMetric::kCount) <= kValues &&
              static_cast<std::size_t>(LinkMetric::kCount) <= kValues &&
              static_cast<std::size_t>(ProcessMetric::kCount) <= kValues);

// Returns "" or why a copy of `bytes` bytes is no table of ours: foreign or cut memory, another version, rows beyond
// the table, labels that are no text. The values themselves may be anything.
std::string validate(const CountersTable& copy, std::size_t bytes);

// Copies text, cut to what fits, always terminated, the rest zero; '?' replaces what is no printable ASCII.
void put_label(std::span<char> label, std::string_view text);

}  // namespace canarynet::ipc

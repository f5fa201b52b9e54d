// port/session.h -- what the commands of a session say, as plain bytes.
//
// No state; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace canarynet::port {

// The words that a session's numbers begin with. Those behind kLinger count at the opening only; behind them stand
// kSessionColayer words for each colayer: its elements, and the number of its codec (0: none).
enum SessionWord : std::size_t {
  kStaleness,     // the bound s; kUnboundedStaleness: none
  kProportion,    // p: colayers of an iteration
  kWaits,         // at the bound: 1 waits, 0 drops
  kQuorum,        // waits: percent of the living workers that are enough once the others are late; 100: all
  kAbsences,      // steps in a row that go on without the same worker
  kLinger,        // nanoseconds; kUsualLinger: a quarter of the median iteration
  kStalenessMax,  // up to which the bound may be raised later
  kBacklog,       // results of a colayer that are kept apart until they are taken
  kGoesOn,        // after a death: 1 goes on with the survivors, 0 ends; equal for all workers
  kSessionHead,
};
inline constexpr std::size_t kSessionColayer = 2;
inline constexpr std::uint64_t kUnboundedStaleness = UINT64_MAX;
inline constexpr std::uint64_t kUsualLinger = UINT64_MAX;
inline constexpr std::uint64_t kColayersMax = 256;
inline constexpr std::uint64_t kBacklogMax = 64;
inline constexpr std::uint64_t kAbsencesMax = 1 << 20;

enum class SessionStep : std::int32_t {
  kStep,    // ends an iteration
  kPull,    // takes all rounds that are committed, and goes on with the newest iteration
  kFinish,  // this worker pushes no more; when all say so, takes what is left
};
inline constexpr std::int32_t kSessionSteps = 3;

// What a step handed out.
struct SessionResult {
  std::int64_t iteration = 0;   // that the worker is in now
  std::int64_t newest = 0;      // that any worker is known to have entered
  std::int64_t oldest = 0;      // among the gradients in the sums; 0: there are none
  std::uint64_t gradients = 0;  // in the sums, one per worker, iteration and colayer
  std::uint64_t rounds = 0;     // whose results are in the sums, of all colayers
  std::uint64_t dropped = 0;    // of this worker's gradients, since the opening
  std::uint64_t overtime = 0;   // 1: nothing was handed out, the worker has to pull
};
static_assert(std::is_trivially_copyable_v<SessionResult>);

}  // namespace canarynet::port

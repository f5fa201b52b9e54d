// collectives/bundle_tuner.h -- how the tensors of a bundle travel: it measures some iterations, and plans from them.
//
// A bundle's tensors are reduced in every iteration, in one order. The tuner says how they travel in the next one:
//   four iterations that measure: twice a message for each tensor, twice one message for all of them. The first of each
//   pair finds channels and plans that nobody has used yet, and does not count;
//   then, by the plan that follows from them, for kIterationsPerPlan iterations;
//   then rank 0 compares the median of these iterations with what was expected, and where it is kTolerance off, they
//   measure again. A plan that comes out again is expected to take what it took: the model was wrong, not the network.
// All ranks do the same in the same iteration: what they decide on is either a number of iterations or what rank 0 has
// told, which a caller carries (report, plan, verdict: lists of 64-bit numbers).
//
// Times count from the end of the iteration before, which all ranks see at about the same time. The slowest rank's
// ready times count, since a message leaves for good when everybody has it, and the earliest ends of messages.
// T(p) = a + b·p is fitted to what was seen: a + b·p of the message of all tensors is its time, at the rank that waited
// least, and of such pairs the one is taken by which messages per tensor, one after the other, would have ended when
// they did. Messages that are under way together make a small, then.
// Units: Nanos, bytes. Pure: no clock, no network. It allocates when made and where it plans.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "collectives/merge_planner.h"

namespace canarynet {

// An iteration with a message per tensor, and how long the message of all tensors took. Seconds from its beginning;
// [tensor] in the order of submission.
struct BundleTimes {
  std::vector<std::uint64_t> bytes;
  std::vector<double> ready;
  std::vector<double> ends;  // of messages; of tensors without bytes it does not count
  double whole_seconds = 0;
};
AffineTime fit_transfer_time(const BundleTimes& times);

class BundleTuner {
 public:
  static constexpr std::uint64_t kIterationsPerPlan = 100;
  static constexpr double kTolerance = 0.2;

  // `bytes`: of the tensors in the order in which they are submitted, at least one.
  BundleTuner(std::vector<std::uint64_t> bytes, MergePolicy policy);

  // The groups of the next iteration: [group] how many tensors belong to it and to those before it.
  std::span<const std::uint32_t> ends() const { return ends_; }
  std::uint32_t plans() const { return plans_; }                   // made so far
  double expected_seconds() const { return expected_.seconds(); }  // of an iteration by the plan; 0: there is none
  double median_seconds() const;                                   // of the last iterations by it; 0: there are none
  AffineTime transfer_time() const { return time_; }               // that the plan was made with

  // An iteration by ends() is over. On one clock: the end of the one before (or, of the first one, its first
  // submission); [tensor] when it was submitted; [group] when its message was through.
  struct Times {
    Nanos began;
    std::span<const Nanos> submitted;
    std::span<const Nanos> done;
  };
  enum class Then : std::uint8_t {
    kGoOn,
    kPlan,   // reduce report() among all ranks by MIN; rank 0 calls make_plan(); send its plan() to all, then adopt()
    kJudge,  // rank 0 calls judge(); send its verdict() to all, then obey()
  };
  Then end_iteration(const Times& times);

  std::span<std::int64_t> report() { return report_; }
  void make_plan();  // from the reduced report
  std::span<std::int64_t> plan() { return plan_; }
  // CANARY_MISMATCH: what came is no plan of so many tensors.
  Status adopt();
  void judge();
  std::span<std::int64_t> verdict() { return {&verdict_, 1}; }
  void obey();

 private:
  enum class Phase : std::uint8_t { kEachCold, kEach, kWholeCold, kWhole, kPlanned };
  static constexpr std::size_t kRecent = 64;
  static constexpr std::size_t kHead = 3;  // words of a plan before its ends

  void begin(Phase phase);
  void note_ready(const Times& times, std::size_t at);

  std::vector<std::uint64_t> bytes_;
  MergePolicy policy_;
  Phase phase_ = Phase::kEachCold;
  std::vector<std::uint32_t> ends_;
  std::vector<std::uint32_t> last_plan_;  // its ends, while ends_ measure
  std::uint32_t plans_ = 0;
  std::uint64_t iterations_ = 0;  // by this plan
  Nanos expected_{};
  std::array<Nanos, kRecent> recent_{};  // iterations by this plan; the place of the next one is iterations_ % kRecent
  // [tensor] minus its ready times with a message each, and with one of all; [tensor] its message's end; all's time.
  std::vector<std::int64_t> report_;
  std::vector<std::int64_t> plan_;  // expected nanoseconds, the bits of a and b; then ends, then zeros
  AffineTime time_;
  std::int64_t verdict_ = 0;  // 1: measure again
};

}  // namespace canarynet

// compress/ratio_controller.h -- chooses the share of values that a sparsifier keeps, as FlexComm 3-E does.
//
// Candidates are c_high / 3^k down to c_low. Each has a time to compress and a gain, both measured, and a time to
// exchange, predicted for the network as it is now. Minimised are (t_comp, t_sync, 1 / gain) at once: the Pareto front
// is computed exactly (there are few candidates), and its knee is chosen, the point nearest to the best of each
// objective when each is scaled to 0 .. 1 over the front; ties go to the larger ratio.
//
// Gains are explored, `explore_iterations` for each candidate, from a checkpoint that the caller takes before and goes
// back to afterwards: at the start, and whenever the gain of the ratio in use has moved by `gain_change` or more since
// it was explored. The ratio is chosen again when new gains are in or the network has changed.
//
// Pure: no clock, no network, no randomness. All ranks must feed it the same numbers (means over ranks) and then choose
// alike. Memory: allocates in the constructor only, apart from what the handed-in functions do. One thread.
//
//   for (;;) {
//     const RatioController::Step step = controller.next();
//     if (step.save) take a checkpoint;
//     if (step.restore) go back to it;
//     run one iteration with step.ratio;
//     controller.report(gain, seconds spent compressing);
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace canarynet {

struct RatioOptions {
  double high = 0.1;
  double low = 0.001;
  double factor = 3;
  int explore_iterations = 10;
  double gain_change = 0.10;  // relative
  double gain_weight = 0.1;   // of one report in the smoothed gain
};

// high / factor^k, rounded to multiples of `low`, while at least `low`: 0.1, 0.033, 0.011, 0.004, 0.001 by default.
std::vector<double> ratio_candidates(const RatioOptions& options);

// Three objectives to minimise.
struct RatioCost {
  double compress_seconds;
  double sync_seconds;
  double inverse_gain;
};
// Indices of the points that no other point dominates (at most as large in all, smaller in one), ascending.
std::vector<std::size_t> pareto_front(std::span<const RatioCost> costs);
// The knee of their front, by index; of equals the lowest. At least one point.
std::size_t knee_of(std::span<const RatioCost> costs);

class RatioController {
 public:
  // Seconds to exchange a tensor at this ratio over the network as it is now: the cheapest of the collectives that
  // could (AG, ART-ring, ART-tree). Called whenever the ratio is chosen.
  using SyncTime = std::function<double(double ratio)>;

  // Options must have 0 < low <= high <= 1, factor > 1, explore_iterations > 0 (CANARY_CHECK).
  RatioController(const RatioOptions& options, SyncTime sync_time);

  struct Step {
    double ratio;
    bool exploring;
    bool save;     // before this iteration: take a checkpoint
    bool restore;  // before this iteration: go back to the checkpoint
  };
  // What the next iteration does. Followed by one report().
  Step next();
  // Gain and seconds of compressing of the iteration just run.
  void report(double gain, double compress_seconds);
  // Alpha or beta have changed. The ratio is chosen again at once, or when a running exploration ends.
  void network_changed();

  double ratio() const { return candidates_[current_].ratio; }
  bool exploring() const { return explored_ < candidates_.size(); }
  int explorations() const { return explorations_; }
  int choices() const { return choices_; }
  // Mean gain of the last exploration; 0 before the first.
  double explored_gain(std::size_t candidate) const { return candidates_[candidate].gain; }
  std::size_t candidates() const { return candidates_.size(); }

 private:
  struct Candidate {
    double ratio;
    double gain = 0;
    double compress_seconds = 0;
  };
  void begin_exploration();
  void choose();

  RatioOptions options_;
  SyncTime sync_time_;
  std::vector<Candidate> candidates_;
  std::vector<RatioCost> costs_;
  std::size_t current_ = 0;
  std::size_t explored_ = 0;  // candidates done in the running exploration; all: none is running
  int iterations_ = 0;        // of the candidate being explored
  double gain_sum_ = 0;
  double compress_sum_ = 0;
  double recent_gain_ = 0;  // smoothed gain of the ratio in use, since it was chosen
  bool save_ = false;
  bool restore_ = false;
  int explorations_ = 0;
  int choices_ = 0;
};

}  // namespace canarynet

// embed/ratio_choice.h -- a ratio controller (compress/ratio_controller.h) that lives with a group: it times codecs,
// reads gains and links, and has all ranks see the same numbers.
//
// What: the controller sees a report for every `iterations` iterations, so ranks exchange their numbers no more often.
// Memory: what it is created with, and a copy of the group's error feedback. Thread: one caller at a time, while its
// context stays. Failure: the first one of an operation is kept and ends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "canarynet/canarynet.h"
#include "collectives/link_costs.h"
#include "compress/ratio_controller.h"
#include "embed/context_handles.h"

namespace canarynet {

class RatioChoice {
 public:
  // What canary_ratio_create has. Collective.
  static Result<std::shared_ptr<RatioChoice>> create(const GroupPlace& place, const canary_ratio_options& options);
  Status next(std::uint32_t* codec);
  Status report();
  // `state` but for its size.
  void read(canary_ratio_state* state) const;

 private:
  struct Candidate {
    double ratio = 0;
    std::uint32_t codec = 0;
    double compress_seconds = 0;  // at the slowest rank
  };

  // Of the tensor. `whole`: nothing is left out of it, as where it travels dense, or to nobody.
  struct Gain {
    double smoothed = 1;
    bool sent = false;  // by a codec, ever
    bool whole = true;
  };

  RatioChoice(const GroupPlace& place, const canary_ratio_options& options);
  Status declare(const char* codec);
  Status agree();
  Status look();
  Status begin_batch();
  Status save();
  Status restore();
  Status read_gain(Gain* gain) const;
  double sync_seconds(double ratio) const;
  LinkCost own_links() const;
  const Candidate& candidate_of(double ratio) const;
  Status all_gather(std::span<const double> own);
  Status fail(const Status& why);

  GroupPlace place_;
  canary_ratio_options options_;                    // without texts
  bool ring_or_tree_ = false, all_gather_ = false;  // the exchanges that the codec may take
  bool by_variance_ = false;
  std::vector<Candidate> candidates_;
  std::optional<RatioController> controller_;
  LinkCost link_;                    // the slowest rank's, when a ratio was chosen last
  std::vector<double> gathered_;     // all ranks', rank behind rank
  std::vector<std::byte> feedback_;  // of the checkpoint
  RatioController::Step step_{};
  bool under_way_ = false;  // next() was called, report() not yet
  int done_ = 0;            // iterations of the batch
  Gain before_;             // when the batch began
  double gain_ = 0;
  Status failed_;
};

}  // namespace canarynet

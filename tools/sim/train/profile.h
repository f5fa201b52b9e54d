// tools/sim/train/profile.h -- the time that an iteration takes and the bytes that it makes, layer by layer.
//
// A profile stands for a model on a card: its gradient's bytes and its seconds decide how long exchanges take against
// the computation. Where a paper gives no times of its layers they follow from their multiply-accumulates; `source`
// says what was assumed. One thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "collectives/merge_planner.h"

namespace canarynet::sim {

struct Profile {
  std::string name;
  std::string source;  // where the numbers come from, for people
  BackwardPass pass;

  double seconds() const;  // of an iteration without any exchange
  double bytes() const;
  // Seconds from the beginning of an iteration until `share` of the gradient's bytes are there. The backward pass makes
  // them from the last layer to the first, and within a layer evenly.
  double ready(double share) const;
  // The same layers, in an iteration of so many seconds.
  void set_seconds(double seconds);
};

// "vgg19-v100", a model of models.h on one GPU of a K80 ("resnet50-k80"), or a trace ("iteration.json", trace_file.h).
// An error names what there is.
Result<Profile> find_profile(const std::string& name);
std::string profile_names();

}  // namespace canarynet::sim

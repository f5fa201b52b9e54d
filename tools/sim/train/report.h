// tools/sim/train/report.h -- what a simulated training came to: for people, as JSON, and as a drawing.
#pragma once

#include <string>

#include "tools/sim/train/trainer.h"

namespace canarynet::sim {

std::string text_of(const TrainOptions& options, const Training& training, const std::string& assumption);
// {"policy": …, "assumption": …, "seconds_to_target": …, "steps_to_target": …, "bytes_to_target": …,
//  "final_accuracy": …, "curve": [{"seconds": …, "steps": …, "bytes": …, "accuracy": …}, …], …}; null where the target
// was not reached.
std::string json_of(const TrainOptions& options, const Training& training, const std::string& assumption);
// An SVG file: accuracy over virtual seconds.
std::string plot_of(const TrainOptions& options, const Training& training);

}  // namespace canarynet::sim

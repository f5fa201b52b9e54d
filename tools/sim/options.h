// tools/sim/options.h -- canary-sim's command line. Pure: nothing is opened, nothing printed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/arguments.h"
#include "tools/sim/merge.h"
#include "tools/sim/models.h"
#include "tools/sim/network.h"
#include "tools/sim/search/search.h"
#include "tools/sim/train/train_options.h"

namespace canarynet::sim {

enum class Command : std::uint8_t { kMerge, kSelect, kNetwork, kSearch, kTrain };

struct SimOptions {
  Command command = Command::kMerge;
  std::string json_path;  // "-": standard output
  // merge: one of the two
  const Model* model = nullptr;
  std::string trace_path;
  int batch = 0;  // of the model
  double macs_per_second = 6e11;
  MergeStudy merge;  // without the pass
  // select, network
  TopkStudy topk;
  double ratio = 1, alpha = 0, bits_per_second = 0;
  double compress_seconds = 0;  // select
  std::string schedule;
  int epochs = kScheduleEpochs;
  std::vector<double> ratios = {0.1, 0.033, 0.011, 0.004, 0.001};
  std::vector<double> gains;  // of the ratios; empty: those of a made-up gradient
  double codec_speed = 0;     // bytes of f32 a second; 0: measured
  std::string plot_path;      // network, search, train
  SearchStudy search;
  TrainOptions train;
};

struct ParsedOptions : tools::Outcome {
  SimOptions options;
};
ParsedOptions parse_sim_options(const std::vector<std::string>& arguments);

}  // namespace canarynet::sim

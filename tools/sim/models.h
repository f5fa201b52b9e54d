// tools/sim/models.h -- the models that canary-sim knows: their tensors, from the definitions of their architectures.
//
// tools/sim/models/make_models.py writes the tables. A tensor's backward time is taken as proportional to the
// multiply-accumulates (MACs) of its layer: an assumption, which a recorded trace (trace_file.h) does without.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "collectives/merge_planner.h"

namespace canarynet::sim {

struct ModelTensor {
  const char* name;
  std::uint64_t elements;  // of 4 bytes
  std::uint64_t macs;      // of one image forward
};

struct Model {
  std::string_view name;
  int batch;                             // images per worker in MG-WFBP's experiments
  std::span<const ModelTensor> tensors;  // in forward order
  std::uint64_t parameters() const;
  std::uint64_t macs() const;
};

// All of them.
std::span<const Model> models();
// Null if there is none of that name.
const Model* find_model(std::string_view name);

// The forward pass takes MACs·batch / rate, each tensor's backward step twice what its layer took forward: one for the
// gradient of the weights, one for that of the inputs.
BackwardPass pass_of(const Model& model, int batch, double macs_per_second);

}  // namespace canarynet::sim

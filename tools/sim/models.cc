#include "tools/sim/models.h"

#include <algorithm>
#include <iterator>

namespace canarynet::sim {
namespace {

constexpr ModelTensor kGoogLeNet[] = {
#include "tools/sim/models/googlenet.inc"
};
constexpr ModelTensor kResNet50[] = {
#include "tools/sim/models/resnet50.inc"
};
constexpr ModelTensor kResNet152[] = {
#include "tools/sim/models/resnet152.inc"
};
constexpr ModelTensor kDenseNet161[] = {
#include "tools/sim/models/densenet161.inc"
};
constexpr ModelTensor kDenseNet201[] = {
#include "tools/sim/models/densenet201.inc"
};
constexpr ModelTensor kInceptionV4[] = {
#include "tools/sim/models/inceptionv4.inc"
};

constexpr Model kModels[] = {
    {"googlenet", 64, kGoogLeNet},     {"resnet50", 32, kResNet50},       {"resnet152", 128, kResNet152},
    {"densenet161", 64, kDenseNet161}, {"densenet201", 64, kDenseNet201}, {"inceptionv4", 128, kInceptionV4},
};

}  // namespace

std::uint64_t Model::parameters() const {
  std::uint64_t sum = 0;
  for (const ModelTensor& t : tensors) sum += t.elements;
  return sum;
}
std::uint64_t Model::macs() const {
  std::uint64_t sum = 0;
  for (const ModelTensor& t : tensors) sum += t.macs;
  return sum;
}

std::span<const Model> models() { return kModels; }

const Model* find_model(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kModels), std::end(kModels), [&](const Model& m) { return m.name == name; });
  return found == std::end(kModels) ? nullptr : found;
}

BackwardPass pass_of(const Model& model, int batch, double macs_per_second) {
  const double per_mac = batch / macs_per_second;
  BackwardPass pass;
  pass.forward_seconds = static_cast<double>(model.macs()) * per_mac;
  for (const ModelTensor& t : model.tensors)
    pass.layers.push_back({2 * static_cast<double>(t.macs) * per_mac, 4 * t.elements});
  return pass;
}

}  // namespace canarynet::sim

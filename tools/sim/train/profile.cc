#include "tools/sim/train/profile.h"

#include <algorithm>
#include <vector>

#include "tools/sim/models.h"
#include "tools/sim/print.h"
#include "tools/sim/trace_file.h"

namespace canarynet::sim {
namespace {

struct Layer {
  double elements = 0;
  double macs = 0;  // of one image forward
};
Layer convolution(int kernel, int from, int to, int size) {
  const double elements = static_cast<double>(kernel) * kernel * from * to;
  return {elements, elements * size * size};
}
Layer connected(int from, int to) {
  const double elements = static_cast<double>(from) * to;
  return {elements, elements};
}

// Blocks of 3x3 convolutions, halved in size after each; `repeats` per block.
std::vector<Layer> vgg(std::initializer_list<int> repeats, int size) {
  std::vector<Layer> layers;
  int from = 3, to = 64;
  for (const int count : repeats) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(convolution(3, from, to, size));
      from = to;
    }
    to = std::min(2 * to, 512);
    size /= 2;
  }
  return layers;
}

std::vector<Layer> vgg19_of_ten_classes() {
  std::vector<Layer> layers = vgg({2, 2, 4, 4, 4}, 224);
  layers.push_back(connected(512 * 7 * 7, 4096));
  layers.push_back(connected(4096, 4096));
  layers.push_back(connected(4096, 10));
  return layers;
}

std::vector<Layer> resnet18() {
  std::vector<Layer> layers = {convolution(7, 3, 64, 112)};
  int from = 64;
  for (int stage = 0; stage < 4; ++stage) {
    const int to = 64 << stage, size = 56 >> stage;
    for (int i = 0; i < 4; ++i) {
      layers.push_back(convolution(3, from, to, size));
      from = to;
    }
  }
  layers.push_back(connected(512, 1000));
  return layers;
}

Profile made_of(const std::string& name, const std::vector<Layer>& layers, double bytes, double seconds) {
  double elements = 0, macs = 0;
  for (const Layer& layer : layers) {
    elements += layer.elements;
    macs += layer.macs;
  }
  Profile profile;
  profile.name = name;
  profile.pass.forward_seconds = seconds / 3;
  for (const Layer& layer : layers) {
    const double share = bytes > 0 ? bytes / elements : 4.0;
    profile.pass.layers.push_back(
        {2 * profile.pass.forward_seconds * layer.macs / macs, static_cast<std::uint64_t>(layer.elements * share)});
  }
  return profile;
}

constexpr const char* kByMacs = "; its layers take as long as their multiply-accumulates, backward twice as forward";
constexpr std::string_view kCard = "-k80";

}  // namespace

double Profile::seconds() const {
  double sum = pass.forward_seconds;
  for (const LayerTiming& layer : pass.layers) sum += layer.backward_seconds;
  return sum;
}

double Profile::bytes() const {
  double sum = 0;
  for (const LayerTiming& layer : pass.layers) sum += static_cast<double>(layer.bytes);
  return sum;
}

double Profile::ready(double share) const {
  double left = share * bytes(), at = pass.forward_seconds;
  for (std::size_t i = pass.layers.size(); i-- > 0;) {
    const auto here = static_cast<double>(pass.layers[i].bytes);
    if (left <= here) return here > 0 ? at + pass.layers[i].backward_seconds * left / here : at;
    left -= here;
    at += pass.layers[i].backward_seconds;
  }
  return at;
}

void Profile::set_seconds(double wanted) {
  const double factor = wanted / seconds();
  pass.forward_seconds *= factor;
  for (LayerTiming& layer : pass.layers) layer.backward_seconds *= factor;
}

std::string profile_names() {
  std::string names = "vgg19-v100, vgg16-1080ti, resnet18-1080ti";
  for (const Model& model : models()) names += ", " + std::string(model.name) + std::string(kCard);
  return names + ", or a trace FILE.json";
}

Result<Profile> find_profile(const std::string& name) {
  if (name == "vgg19-v100") {
    Profile profile = made_of(name, vgg19_of_ten_classes(), 0, 0.16);
    profile.source =
        std::string("VGG-19 of 10 classes; 0.16 s for 28 images are assumed, Canary's paper gives none") + kByMacs;
    return profile;
  }
  if (name == "vgg16-1080ti") {
    Profile profile = made_of(name, vgg({2, 2, 3, 3, 3}, 32), 9.23e6, 0.043);
    profile.source = std::string(
                         "VGG-16 for images of 32 x 32, with the 9.23 MB of Ripples' paper; 0.043 s for 128 "
                         "images are assumed") +
                     kByMacs;
    return profile;
  }
  if (name == "resnet18-1080ti") {
    Profile profile = made_of(name, resnet18(), 0, 0.03);
    profile.source = std::string("ResNet-18; 0.03 s are ESync's paper's") + kByMacs;
    return profile;
  }
  if (name.size() > kCard.size() && name.ends_with(kCard)) {
    const Model* model = find_model(std::string_view(name).substr(0, name.size() - kCard.size()));
    if (model != nullptr) {
      Profile profile;
      profile.name = name;
      profile.pass = pass_of(*model, model->batch, 6e11);
      profile.source = printed("%d images at 6e11 multiply-accumulates per second", model->batch) + kByMacs;
      return profile;
    }
  }
  if (name.ends_with(".json")) {
    auto trace = read_trace_file(name);
    if (!trace.ok()) return trace.status();
    Profile profile;
    profile.name = name;
    profile.source = "recorded";
    profile.pass = std::move(trace.value().pass);
    if (profile.bytes() <= 0 || profile.seconds() <= 0) {
      return Status(CANARY_INVALID_ARGUMENT, name + ": an iteration needs bytes to exchange, and time");
    }
    return profile;
  }
  return Status(CANARY_INVALID_ARGUMENT, "there is no profile \"" + name + "\": " + profile_names());
}

}  // namespace canarynet::sim

#include "compress/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "compress/codec.h"
#include "kernels/crc32c.h"

namespace canarynet {
namespace {

//  | magic: u32 | version: u32 | tensors: u64 |                                   16
//  then per tensor | id: u64 | count: u64 | steps: u64 | sent: f64 | all: f64 |   40, count x f32
//  and from version 2 on | velocities: u64 |, 0 or count, and so many x f32
//  and from version 3 on | length of the right factor: u64 |, and so many x f32
//  then | crc32c of all before: u32 |
constexpr std::uint32_t kMagic = 0x46454E43;  // "CNEF"
constexpr std::uint32_t kVersion = 3, kVersionWithVelocity = 2, kOldestVersion = 1;
constexpr std::size_t kHeadBytes = 16;
constexpr std::size_t kTensorBytes = 40;
constexpr std::size_t kChecksumBytes = 4;

template <typename T>
void append(std::vector<std::uint8_t>* bytes, T value) {
  const std::size_t at = bytes->size();
  bytes->resize(at + sizeof(T));
  std::memcpy(bytes->data() + at, &value, sizeof(T));
}

template <typename T>
T take(std::span<const std::uint8_t>* bytes) {
  T value;
  std::memcpy(&value, bytes->data(), sizeof(T));
  *bytes = bytes->subspan(sizeof(T));
  return value;
}

void append_floats(std::vector<std::uint8_t>* bytes, const std::vector<float>& values) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(values.data());
  bytes->insert(bytes->end(), begin, begin + values.size() * sizeof(float));
}

Status damaged(const std::string& why) { return {CANARY_MISMATCH, "saved error feedback: " + why}; }

// Of a count that stands before them. Nothing is allocated for more than is there.
Status take_floats(std::span<const std::uint8_t>* bytes, std::uint64_t count, const std::string& what,
                   std::vector<float>* values) {
  if (count > bytes->size() / sizeof(float)) return damaged(what + " ends early");
  values->resize(count);
  if (count != 0) std::memcpy(values->data(), bytes->data(), count * sizeof(float));
  *bytes = bytes->subspan(count * sizeof(float));
  if (first_not_finite(values->data(), count) != count) return damaged(what + " is not finite");
  return {};
}

double energy_of(std::span<const float> values) {
  double energy = 0;
  for (const float value : values) energy += static_cast<double>(value) * value;
  return energy;
}

double ratio(double sent, double all) { return all > 0 ? sent / all : 1; }

}  // namespace

Status ErrorFeedback::prepare(std::uint64_t tensor, std::size_t count) {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) {
    Tensor fresh;
    fresh.residual.resize(count);  // where that throws, nothing is known of the tensor
    tensors_.emplace(tensor, std::move(fresh));
    return {};
  }
  if (found->second.residual.size() == count) return {};
  return {CANARY_MISMATCH, "tensor " + std::to_string(tensor) + " has " +
                               std::to_string(found->second.residual.size()) + " elements in the error feedback, not " +
                               std::to_string(count)};
}

const ErrorFeedback::Tensor& ErrorFeedback::known(std::uint64_t tensor) const {
  const auto found = tensors_.find(tensor);
  CANARY_CHECK(found != tensors_.end(), "a tensor is prepared first");
  return found->second;
}

ErrorFeedback::Tensor& ErrorFeedback::known(std::uint64_t tensor) {
  return const_cast<Tensor&>(std::as_const(*this).known(tensor));
}

void ErrorFeedback::compensate(std::uint64_t tensor, const float* values, std::size_t count, float* out) const {
  const std::vector<float>& residual = known(tensor).residual;
  CANARY_CHECK(residual.size() == count, "a tensor keeps its size");
  for (std::size_t i = 0; i < count; ++i) out[i] = values[i] + residual[i];
}

void ErrorFeedback::settle(std::uint64_t tensor, const float* compensated, const float* sent, std::size_t count) {
  const auto found = tensors_.find(tensor);
  CANARY_CHECK(found != tensors_.end(), "a tensor is prepared first");
  Tensor& state = found->second;
  CANARY_CHECK(state.residual.size() == count, "a tensor keeps its size");
  state.leaves = true;
  double sent_energy = 0, energy = 0;
  for (std::size_t i = 0; i < count; ++i) {
    state.residual[i] = compensated[i] - sent[i];
    sent_energy += static_cast<double>(sent[i]) * sent[i];
    energy += static_cast<double>(compensated[i]) * compensated[i];
  }
  count_step(state, sent_energy, energy);
}

// As if the other parts were like this one: sums stay those of the whole tensor, whatever parts it travels in.
void ErrorFeedback::count_step(Tensor& state, double sent_energy, double energy, double share) {
  const double weight = state.steps == 0 ? 1 : kGainWeight * share;
  state.sent_energy += weight * (sent_energy / share - state.sent_energy);
  state.energy += weight * (energy / share - state.energy);
  ++state.steps;
}

bool ErrorFeedback::leaves(std::uint64_t tensor) const {
  const auto found = tensors_.find(tensor);
  return found != tensors_.end() && found->second.leaves;
}

// Count 0 stands for the whole tensor.
TensorPart ErrorFeedback::within(const Tensor& state, TensorPart part) {
  const std::size_t all = state.residual.size();
  if (part.count == 0) return {0, all};
  CANARY_CHECK(part.begin <= all && part.count <= all - part.begin, "a part lies in its tensor");
  return part;
}

void ErrorFeedback::commit_all_sent(std::uint64_t tensor, TensorPart part) {
  Tensor& state = known(tensor);
  const auto [begin, count] = within(state, part);
  if (count != state.residual.size()) {
    const std::span<float> residual = std::span(state.residual).subspan(begin, count);
    state.left_energy = std::max(0.0, state.left_energy - energy_of(residual));
    std::fill(residual.begin(), residual.end(), 0.0F);
    if (!state.velocity.empty()) std::fill_n(state.velocity.begin() + static_cast<std::ptrdiff_t>(begin), count, 0.0F);
    return;
  }
  std::fill(state.residual.begin(), state.residual.end(), 0.0F);
  state.velocity.clear();
  state.left_energy = 0;
  state.leaves = false;
}

ErrorFeedback::Exchange ErrorFeedback::begin(std::uint64_t tensor, const float* values, float momentum,
                                             TensorPart part) {
  Tensor& state = known(tensor);
  const auto [begin, count] = within(state, part);
  const std::size_t all = state.residual.size();
  state.left_out.resize(all);
  const std::span<float> left_out = std::span(state.left_out).subspan(begin, count);
  std::fill(left_out.begin(), left_out.end(), 0.0F);
  state.gathers = momentum != 0;
  if (!state.gathers) return {std::span(state.residual).subspan(begin, count), left_out};
  CANARY_CHECK(values != nullptr, "momentum is gathered from values");
  state.velocity.resize(all);
  state.velocity_next.resize(all);
  state.carried.resize(all);
  for (std::size_t i = 0; i < count; ++i) {
    const float kept = momentum * state.velocity[begin + i];
    state.velocity_next[begin + i] = kept + values[i];
    state.carried[begin + i] = kept + state.residual[begin + i];
  }
  return {std::span(state.carried).subspan(begin, count), left_out};
}

void ErrorFeedback::commit(std::uint64_t tensor, double sent_energy, double energy, double left_energy,
                           TensorPart part) {
  Tensor& state = known(tensor);
  CANARY_CHECK(state.left_out.size() == state.residual.size(), "an exchange begins before it ends");
  const auto [begin, count] = within(state, part);
  const bool whole = count == state.residual.size();
  if (whole) {
    state.residual.swap(state.left_out);
    state.left_energy = left_energy;
  } else {
    const std::span<float> residual = std::span(state.residual).subspan(begin, count);
    state.left_energy = std::max(0.0, state.left_energy - energy_of(residual)) + left_energy;
    std::copy_n(state.left_out.begin() + static_cast<std::ptrdiff_t>(begin), count, residual.begin());
  }
  if (state.gathers) {
    for (std::size_t i = begin; i < begin + count; ++i) {
      // What has arrived moves on by itself no longer. Nor does what has left the range of floats: the tensor would be
      // refused for ever, and its saved state as well.
      const bool ends = state.residual[i] == 0 || !std::isfinite(state.velocity_next[i]);
      if (ends) state.velocity_next[i] = 0;
      state.velocity[i] = state.velocity_next[i];
    }
  } else if (whole) {
    state.velocity.clear();
  } else if (!state.velocity.empty()) {
    std::fill_n(state.velocity.begin() + static_cast<std::ptrdiff_t>(begin), count, 0.0F);
  }
  state.leaves = true;
  count_step(state, sent_energy, energy,
             whole ? 1 : static_cast<double>(count) / static_cast<double>(state.residual.size()));
}

std::span<float> ErrorFeedback::right_factor(std::uint64_t tensor, std::size_t length) {
  const auto found = tensors_.find(tensor);
  CANARY_CHECK(found != tensors_.end(), "a tensor is prepared first");
  std::vector<float>& factor = found->second.right_factor;
  if (factor.size() != length) factor.assign(length, 0.0F);
  return factor;
}

std::span<const float> ErrorFeedback::residual(std::uint64_t tensor, TensorPart part) const {
  const Tensor& state = known(tensor);
  const auto [begin, count] = within(state, part);
  return std::span(state.residual).subspan(begin, count);
}

std::span<const float> ErrorFeedback::velocity(std::uint64_t tensor) const { return known(tensor).velocity; }

double ErrorFeedback::gain(std::uint64_t tensor) const {
  const Tensor& state = known(tensor);
  return ratio(state.sent_energy, state.energy);
}

double ErrorFeedback::gain() const {
  double sent = 0, all = 0;
  for (const auto& [id, tensor] : tensors_) {
    sent += tensor.sent_energy;
    all += tensor.energy;
  }
  return ratio(sent, all);
}

double ErrorFeedback::residual_norm(std::uint64_t tensor) const { return std::sqrt(energy_of(known(tensor).residual)); }

double ErrorFeedback::residual_norm() const {
  double energy = 0;
  for (const auto& [id, tensor] : tensors_) {
    const double norm = residual_norm(id);
    energy += norm * norm;
  }
  return std::sqrt(energy);
}

std::size_t ErrorFeedback::saved_bytes() const {
  std::size_t bytes = kHeadBytes + kChecksumBytes;
  for (const auto& [id, tensor] : tensors_) {
    bytes += kTensorBytes + 2 * sizeof(std::uint64_t) +
             (tensor.residual.size() + tensor.velocity.size() + tensor.right_factor.size()) * sizeof(float);
  }
  return bytes;
}

std::vector<std::uint8_t> ErrorFeedback::save() const {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(saved_bytes());
  append(&bytes, kMagic);
  append(&bytes, kVersion);
  append(&bytes, static_cast<std::uint64_t>(tensors_.size()));
  for (const auto& [id, tensor] : tensors_) {
    append(&bytes, id);
    append(&bytes, static_cast<std::uint64_t>(tensor.residual.size()));
    append(&bytes, tensor.steps);
    append(&bytes, tensor.sent_energy);
    append(&bytes, tensor.energy);
    append_floats(&bytes, tensor.residual);
    append(&bytes, static_cast<std::uint64_t>(tensor.velocity.size()));
    append_floats(&bytes, tensor.velocity);
    append(&bytes, static_cast<std::uint64_t>(tensor.right_factor.size()));
    append_floats(&bytes, tensor.right_factor);
  }
  append(&bytes, crc32c(0, bytes.data(), bytes.size()));
  return bytes;
}

Status ErrorFeedback::restore(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < kHeadBytes + kChecksumBytes) return damaged("it ends within its head");
  std::span<const std::uint8_t> rest = bytes;
  if (take<std::uint32_t>(&rest) != kMagic) return damaged("it does not begin as one");
  const auto version = take<std::uint32_t>(&rest);
  if (version < kOldestVersion || version > kVersion) {
    return damaged("version " + std::to_string(version) + ", this library reads " + std::to_string(kVersion));
  }
  std::span<const std::uint8_t> checksum = bytes.last(kChecksumBytes);
  const std::size_t covered = bytes.size() - kChecksumBytes;
  if (take<std::uint32_t>(&checksum) != crc32c(0, bytes.data(), covered)) {
    return damaged("its checksum does not match");
  }
  rest = rest.first(rest.size() - kChecksumBytes);
  std::map<std::uint64_t, Tensor> tensors;
  for (auto left = take<std::uint64_t>(&rest); left != 0; --left) {
    if (rest.size() < kTensorBytes) return damaged("it ends within a tensor's head");
    const auto id = take<std::uint64_t>(&rest);
    const std::string name = "tensor " + std::to_string(id);
    const auto count = take<std::uint64_t>(&rest);
    Tensor tensor;
    tensor.steps = take<std::uint64_t>(&rest);
    tensor.sent_energy = take<double>(&rest);
    tensor.energy = take<double>(&rest);
    if (!(tensor.sent_energy >= 0 && std::isfinite(tensor.sent_energy) && tensor.energy >= 0 &&
          std::isfinite(tensor.energy))) {
      return damaged(name + " has no energy that can be");
    }
    Status taken = take_floats(&rest, count, name + "'s residual", &tensor.residual);
    tensor.left_energy = energy_of(tensor.residual);
    if (taken.ok() && version >= kVersionWithVelocity) {
      if (rest.size() < sizeof(std::uint64_t)) return damaged(name + " ends before its velocity");
      const auto velocities = take<std::uint64_t>(&rest);
      if (velocities != 0 && velocities != count) return damaged(name + " has a velocity of another length");
      taken = take_floats(&rest, velocities, name + "'s velocity", &tensor.velocity);
    }
    if (taken.ok() && version == kVersion) {
      if (rest.size() < sizeof(std::uint64_t)) return damaged(name + " ends before its right factor");
      const auto length = take<std::uint64_t>(&rest);
      taken = take_floats(&rest, length, name + "'s right factor", &tensor.right_factor);
    }
    if (!taken.ok()) return taken;
    if (!tensors.emplace(id, std::move(tensor)).second) return damaged(name + " is there twice");
  }
  if (!rest.empty()) return damaged(std::to_string(rest.size()) + " bytes are left over");
  tensors_ = std::move(tensors);
  return {};
}

}  // namespace canarynet

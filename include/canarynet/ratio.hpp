// canarynet/ratio.hpp -- C++20 over the ratios of canarynet/ratio.h: how much of a gradient a codec keeps.
//
// What: Ratio gives each iteration's codec, and finds the best one meanwhile.
// Ownership: Ratio owns its handle and the function that saves and restores training state.
// Threads and failures: as in canarynet.hpp, which includes this header; one thread at a time is in a ratio.
//
//   canarynet::Ratio ratio(world, "artopk:star", tensor, gradient.size(), [&](canary_checkpoint what) {
//     if (what == CANARY_CHECKPOINT_SAVE) saved = parameters; else parameters = saved;
//   });
//   for (;;) { options.codec = ratio.next(); world.all_reduce(gradient, CANARY_AVG, options); ...; ratio.report(); }
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "canarynet/canarynet.hpp"

namespace canarynet {
inline namespace v0 {

// Which ratios are tried, and when; see canary_ratio_options.
struct RatioCandidates {
  double high = 0.1, low = 0.001, factor = 3;
  double gain_change = 0.1;
  int iterations = 10;
};

class Ratio {
 public:
  using Checkpoint = std::function<void(canary_checkpoint)>;  // must not throw

  // Blocks until all members of the group have made theirs; see canary_ratio_options.
  Ratio(Group& group, const std::string& codec, std::uint64_t tensor, std::uint64_t count, Checkpoint checkpoint,
        const RatioCandidates& candidates = {})
      : checkpoint_(std::make_unique<Checkpoint>(std::move(checkpoint))) {
    canary_ratio_options options = CANARY_RATIO_OPTIONS_INIT;
    options.codec = codec.c_str();
    options.tensor = tensor;
    options.count = count;
    options.high = candidates.high;
    options.low = candidates.low;
    options.factor = candidates.factor;
    options.gain_change = candidates.gain_change;
    options.iterations = candidates.iterations;
    options.checkpoint = [](void* user, canary_checkpoint what) { (*static_cast<Checkpoint*>(user))(what); };
    options.user = checkpoint_.get();
    check(canary_ratio_create(group.handle(), &options, &handle_));
  }
  Ratio(Ratio&& other) noexcept
      : checkpoint_(std::move(other.checkpoint_)), handle_(std::exchange(other.handle_, nullptr)) {}
  Ratio& operator=(Ratio&& other) noexcept {
    std::swap(checkpoint_, other.checkpoint_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Ratio() {
    if (handle_ != nullptr) (void)canary_ratio_destroy(handle_);
  }

  canary_ratio* handle() const { return handle_; }
  std::uint32_t next() {
    std::uint32_t codec = 0;
    check(canary_ratio_next(handle_, &codec));
    return codec;
  }
  void report() { check(canary_ratio_report(handle_)); }
  canary_ratio_state state() const {
    canary_ratio_state out{};
    out.struct_size = sizeof out;
    check(canary_ratio_read(handle_, &out));
    return out;
  }

 private:
  std::unique_ptr<Checkpoint> checkpoint_;
  canary_ratio* handle_ = nullptr;
};

}  // namespace v0
}  // namespace canarynet

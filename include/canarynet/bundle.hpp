// canarynet/bundle.hpp -- C++20 over the bundles of canarynet/bundle.h: tensors declared once, which travel merged.
//
// What: Bundle (a model's tensors in the order of their submission) and which of them travel together.
// Ownership: a tensor's memory is lent from submit() until wait() or wait_tensor() returns, and has to live until the
//   bundle is destroyed. The destructor waits for messages that are under way.
// Threads and failures: as in canarynet.hpp, which includes this header; one thread at a time is in a bundle.
//
//   std::vector<std::span<float>> tensors = ...;  // in backward order, best one behind the other in memory
//   canarynet::Bundle bundle(context.world(), tensors, CANARY_AVG);
//   for (std::size_t t = 0; t < tensors.size(); ++t) { backward(t); bundle.submit(t); }
//   bundle.wait();
#pragma once

#include <cstddef>
#include <cstdint>
#include <ranges>
#include <utility>
#include <vector>

#include "canarynet/canarynet.hpp"

namespace canarynet {
inline namespace v0 {

// Which tensors travel together, and how; see canary_bundle_options.
struct Merging {
  canary_merge policy = CANARY_MERGE_EXACT;
  canary_priority priority = CANARY_PRIORITY_NORMAL;
  std::vector<std::size_t> ends = {};  // of given groups
  std::uint32_t codec = 0;             // of codec(); 0: none
  std::uint64_t tensor = 0;            // with a codec: the bundle's number in the error feedback; 0: none is kept
  float momentum = 0;

  static Merging given(std::vector<std::size_t> ends) {
    Merging merging;
    merging.policy = CANARY_MERGE_GIVEN;
    merging.ends = std::move(ends);
    return merging;
  }
};

class Bundle {
 public:
  // Blocks until all members of the group have declared the same; `tensors` is a range of buffers of one type.
  template <std::ranges::input_range Tensors>
  requires OutputBuffer<std::ranges::range_reference_t<Tensors>> Bundle(Group& group, Tensors&& tensors,
                                                                        canary_redop redop = CANARY_AVG,
                                                                        const Merging& merging = {}) {
    std::vector<canary_tensor> list;
    for (auto&& t : tensors) list.push_back({std::ranges::data(t), std::ranges::size(t)});
    canary_bundle_options options = CANARY_BUNDLE_OPTIONS_INIT;
    options.policy = merging.policy;
    options.priority = merging.priority;
    options.ends = merging.ends.empty() ? nullptr : merging.ends.data();
    options.groups = merging.ends.size();
    options.codec = merging.codec;
    options.tensor = merging.tensor;
    options.momentum = merging.momentum;
    constexpr canary_type kType = type_of<detail::ElementOf<std::ranges::range_reference_t<Tensors>>>;
    check(canary_bundle_create(group.handle(), list.data(), list.size(), kType, redop, &options, &handle_));
  }
  Bundle(Bundle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Bundle& operator=(Bundle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Bundle() {
    if (handle_ != nullptr) (void)canary_bundle_destroy(handle_);
  }
  void destroy() { check(canary_bundle_destroy(std::exchange(handle_, nullptr))); }

  canary_bundle* handle() const { return handle_; }
  void submit(std::size_t tensor) { check(canary_bundle_submit(handle_, tensor)); }
  void wait() { check(canary_bundle_wait(handle_)); }
  void wait_tensor(std::size_t tensor) { check(canary_bundle_wait_tensor(handle_, tensor)); }

  canary_bundle_state state() const { return read(nullptr, 0); }
  // The groups of the next iteration: how many tensors are in each and in those before it.
  std::vector<std::size_t> ends() const {
    std::vector<std::size_t> list(static_cast<std::size_t>(state().groups));
    read(list.data(), list.size());
    return list;
  }

 private:
  canary_bundle_state read(std::size_t* ends, std::size_t room) const {
    canary_bundle_state out{};
    out.struct_size = sizeof out;
    check(canary_bundle_read(handle_, &out, ends, room));
    return out;
  }
  canary_bundle* handle_ = nullptr;
};

}  // namespace v0
}  // namespace canarynet

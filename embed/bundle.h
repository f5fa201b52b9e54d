// embed/bundle.h -- a bundle's tensors in memory, and their messages as ordinary operations of its group.
//
// What: it starts a group's all-reduce when the last of its tensors has been submitted, copies where tensors do not lie
// together (with error feedback: and in the order of their places in it), and carries what the tuner
// (collectives/bundle_tuner.h) measures and decides from rank to rank, by operations of the group as well.
// Memory: all of it is taken by create(); plans allocate a little. Thread: one caller at a time, while its context
// stays. Failure: the first one of a message is kept and ends the bundle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "canarynet/canarynet.h"
#include "collectives/bundle_tuner.h"
#include "embed/context_handles.h"

namespace canarynet {

class Bundle {
 public:
  // What canary_bundle_create has. Collective.
  static Result<std::shared_ptr<Bundle>> create(const GroupPlace& place, std::span<const canary_tensor> tensors,
                                                canary_type type, canary_redop redop,
                                                const canary_bundle_options& options);
  Status submit(std::size_t tensor);
  Status wait();
  Status wait_tensor(std::size_t tensor);
  // Returns when no message is under way.
  void drain();
  // `state` but for its size.
  void read(canary_bundle_state* state, std::span<std::size_t> ends) const;

 private:
  struct Tensor {
    std::byte* data = nullptr;
    std::uint64_t count = 0, bytes = 0;
    std::uint64_t offset = 0;  // of its place among all bytes, as staging memory and error feedback have them
  };
  // A message. `data`: where it is reduced.
  struct Message {
    std::size_t first = 0, end = 0;  // tensors
    std::uint64_t count = 0;         // elements; 0: nothing is sent
    std::uint64_t offset = 0;        // of the lowest place of its tensors
    std::byte* data = nullptr;
    bool copied = false;
    canary_op* op = nullptr;  // under way
    bool launched = false;    // in this iteration
  };

  // What its messages are asked for with, which are the same but for their values.
  struct Terms {
    canary_priority priority = CANARY_PRIORITY_NORMAL;
    std::uint32_t codec = 0;
    std::uint64_t tensor = 0;
    float momentum = 0;
  };

  Bundle(const GroupPlace& place, canary_type type, canary_redop redop, const Terms& terms)
      : place_(place), type_(type), redop_(redop), terms_(terms) {}
  Status declare(std::span<const canary_tensor> tensors);
  Status choose_groups(const canary_bundle_options& options, std::vector<std::uint32_t>* ends);
  Status agree(const canary_bundle_options& options, std::span<const std::uint32_t> given);
  Status tensors_differ(int rank);
  Status check_codec();
  bool lies_downwards() const;
  bool lies_upwards() const;
  void give_places();
  OpRequest request_for(std::byte* data, std::uint64_t count, std::uint64_t offset) const;
  std::uint64_t hash_of_places() const;
  bool lies_together(const Message& message) const;
  void lay_out(std::span<const std::uint32_t> ends);
  bool may_need_staging() const;

  Status launch(Message& message);
  Status finish(Message& message);
  Status end_iteration();
  Status follow(BundleTuner::Then then);
  Status all_reduce(std::span<std::int64_t> words, canary_redop redop);
  Status from_rank_0(std::span<std::int64_t> words);
  Status all_gather(std::span<const std::int64_t> own, std::span<std::int64_t> all);
  Status fail(const Status& why);

  GroupPlace place_;
  canary_type type_;
  canary_redop redop_;
  Terms terms_;
  std::vector<Tensor> tensors_;
  std::vector<std::uint32_t> by_address_;  // tensors that have elements
  bool same_places_ = false;               // all ranks have them in the same order in memory, with the same gaps
  bool down_ = false;                      // places count from the last tensor on
  std::uint64_t element_ = 0, bytes_ = 0;
  std::unique_ptr<std::byte[]> staging_;
  std::vector<Message> messages_;
  std::vector<std::uint32_t> message_of_;   // [tensor]
  std::vector<std::uint64_t> submitted_;    // [tensor] the last iteration in which it was
  std::vector<Nanos> submitted_at_, done_;  // [tensor], [message]
  std::uint64_t iteration_ = 1;
  std::size_t ready_ = 0;  // tensors before this one are all there
  std::size_t next_ = 0;   // message to leave
  Nanos began_{};
  std::optional<BundleTuner> tuner_;  // of the policies that measure
  Status failed_;
};

}  // namespace canarynet

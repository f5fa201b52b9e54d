// embed/parameter_exchange.h -- the exchanges that a policy tells a worker to make, on parameters that the program
// lends.
//
// What: begin() takes what one exchange sends and starts its partial all-reduce; go_on() takes what has come of it,
// step by step: the mean, and after a mean of deltas (sync/local_updates.h) perhaps the state of a worker that is
// further. The parameters change in go_on() alone.
// Ownership: the parameters are the program's, and outlive it; all else is its own. An operation that is under way
// borrows the buffer, so drop() comes before the end.
// Threads: one at a time. Memory: of deltas three or four times the parameters and up to two parts more; of parameters
// once. Nothing allocates after construction. Failures: the operation's; the parameters are then as they were.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "embed/context_handles.h"
#include "embed/op_options.h"
#include "sync/local_updates.h"

namespace canarynet {

class ParameterExchange {
 public:
  // Without `deltas` the exchanges are means of the parameters. `options`: of all of them.
  ParameterExchange(canary_context& context, port::MemberId member, std::span<float> parameters,
                    const OptionsRead& options, const std::optional<sync::LocalUpdates::Options>& deltas);

  struct Task {
    std::span<const int> ranks;  // of the group, ascending
    std::uint64_t number = 0;    // of the partial all-reduce; handing over takes the next one
    int part = 0;
    bool counted = false;
    int rank = 0;  // the worker's own
    int source = -1;
    std::span<const int> behind;  // ascending
  };
  Status begin(const Task& task);
  // What runs, and what is begun next, ends so long from now on, well or not; 0: as the options say.
  void limit(Nanos time);
  // Whether something is under way, and whether go_on() need not wait for it.
  bool running() const { return op_ != nullptr; }
  bool ended();
  // Whether go_on() has a step to take that leaves the parameters as they are: others wait for it.
  bool goes_on_beside() { return hands_over() && !handing_over_ && ended(); }
  // Takes one step. *applied: its result is in the parameters, whatever the status of the hand-over behind it.
  Status go_on(bool* applied);
  // Ends what is under way, if something is.
  void drop();

  std::size_t size() const { return parameters_.size(); }
  // The common parameters, as far as this worker knows them.
  std::span<const float> common() const { return updates_ ? updates_->anchor() : parameters_; }

 private:
  bool hands_over() const { return source_ == rank_ || behind_; }
  Status start(std::span<const int> ranks, std::uint64_t number, std::span<float> values, canary_redop redop,
               const OptionsRead& coding);
  Status hand_over();

  canary_context& context_;
  port::MemberId member_;
  std::span<float> parameters_;
  std::optional<sync::LocalUpdates> updates_;
  std::vector<float> buffer_;
  canary_op* op_ = nullptr;
  OptionsRead options_;
  Nanos time_limit_;  // of what is begun next
  // The exchange that runs.
  std::uint64_t number_ = 0;
  int part_ = 0;
  int rank_ = 0;
  int source_ = -1;
  bool behind_ = false;         // this worker is
  bool handing_over_ = false;   // the step under way
  std::vector<int> receivers_;  // those behind, and the source
};

}  // namespace canarynet

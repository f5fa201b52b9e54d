// sync_trainer.h -- training by a policy (--sync): who exchanges what with whom, and when.
//
// bsp, ssp, asp and canary push what each iteration changes into a session (canarynet/session.hpp), and apply the sums
// that a step hands out. What is pushed is rate x velocity over the number of workers, not the gradient: each rank
// keeps the momentum of its own gradients, so the parameters follow from the sums alone, and in bsp they are those of
// the usual trainer but for rounding.
// ripples, esync and diloco (canarynet/policy.hpp) let each rank take its own steps, on parameters that it lends to the
// policy, which brings in what others have learnt when its time has come. An exchange that a death spoils is left out.
// When a rank dies, training goes on: sessions do so by themselves, and averaging leaves out what a death spoils.
// Before they compare what they have, those who are left form a group of their own; its first rank reports.
// All ranks call the same functions in the same order. One thread. Failures come as canarynet::Error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "examples/train_fashion_mnist/exchange.h"
#include "examples/train_fashion_mnist/options.h"
#include "examples/train_fashion_mnist/pace.h"
#include "examples/train_fashion_mnist/replica.h"

namespace train {

// What one worker did.
struct WorkerFigures {
  std::int64_t rank = 0;
  std::int64_t iterations = 0;
  std::int64_t dropped = 0;  // of its gradients, by iteration and colayer
  std::int64_t pulls = 0;
  std::int64_t went_on = 0;    // steps, without somebody who was late
  std::int64_t was_late = 0;   // steps that others did not wait for
  std::int64_t exchanges = 0;  // means over some ranks
  std::int64_t failed = 0;     // of them
  double seconds = 0;
  double waited = 0;        // of them, in the exchange
  double longest_wait = 0;  // of these, at once
  double loss = 0;          // mean of all iterations
};

struct SyncFigures {
  std::vector<WorkerFigures> workers;  // those who are left
  std::vector<int> died;               // world ranks
  double apart = 0;  // largest distance of a rank's parameters from the mean at the end, over the mean's length
};

class SyncTrainer {
 public:
  SyncTrainer(canarynet::Context& context, const Options& options, const Dataset& images);

  // Afterwards all who are left have the same parameters.
  SyncFigures train();
  // Those who are left.
  // Whether this rank reports: the first of those who are left.
  bool speaks() const { return alive_.front() == context_.rank(); }
  canarynet::Group& group() { return left_ ? *left_ : context_.world(); }
  Replica& replica() { return replica_; }

 private:
  void agree();
  void train_in_session();
  void train_by_averaging();
  void exchange(canarynet::Policy& policy, const canarynet::Policy::Task& task);
  void train_alone(canarynet::Policy& policy);
  double left_ms() const { return start_ms_ + 1e3 * options_.seconds - now_ms(); }
  void compute(canarynet::Session& session, bool waits);
  canary_session_result step(canarynet::Session& session, bool waits);
  void apply();
  float progress(bool waits) const;
  float progress_end() const;
  bool over(bool waits) const { return progress(waits) >= progress_end(); }
  void report();
  void lose(const canarynet::Error& error);
  SyncFigures figures();
  void waited_since(double start_ms);

  canarynet::Context& context_;
  const Options& options_;
  Replica replica_;
  std::optional<canarynet::Group> left_;
  std::vector<int> alive_;  // world ranks
  std::vector<int> died_;
  std::vector<std::size_t> counts_;  // of the colayers
  Pace pace_;
  std::vector<float> velocity_, change_, sums_;
  bool agreed_ = false;   // on the parameters to begin with
  bool trained_ = false;  // all that is left is to compare
  double apart_ = 0;
  double start_ms_ = 0;
  int workers_ = 0;             // that live, as far as known
  std::size_t step_ = 0;        // iterations of this rank
  std::int64_t done_ = 0;       // where steps wait: iterations that all have made, or gone on without
  std::uint64_t exchange_ = 0;  // the last one's number
  bool beside_ = false;         // exchanges run beside iterations
  std::int64_t merged_ = 0;     // gradients in the parameters, by iteration and colayer
  WorkerFigures mine_;
  double loss_ = 0;  // since the last report
  std::size_t reported_ = 0;
};

}  // namespace train

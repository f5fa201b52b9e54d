// tools/sim/train/trainer.h -- training in virtual time: true gradients, simulated engines, and the loop of policy.h.
//
// An iteration takes the profile's seconds; its gradient is computed at its start, from the parameters of that moment.
// Everything else is the engines' own: collectives, sessions and messages (engines.h), and the coordinator that
// policies ask. Each worker's own policy is sync's, as in a program. Bit for bit the same for equal options. One
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "sync/local_updates.h"
#include "sync/policy_name.h"
#include "tools/sim/train/engines.h"
#include "tools/sim/train/learner.h"
#include "tools/sim/train/sessions.h"
#include "tools/sim/train/slices.h"
#include "tools/sim/train/train_options.h"

namespace canarynet::sim {

struct CurvePoint {
  double seconds = 0;  // virtual, from the first iteration on
  double steps = 0;    // iterations, as a mean over the workers
  double bytes = 0;    // sent by all NICs, at the profile's size
  double accuracy = 0;
};

struct Training {
  std::vector<CurvePoint> curve;
  std::optional<CurvePoint> target;      // the first point that reached it
  CurvePoint end;                        // with the accuracy on all test images
  std::vector<std::int64_t> iterations;  // per worker
  std::vector<double> computing;         // per worker: the share of the time in which it computed or slept
  std::int64_t exchanges = 0;            // that workers took part in
  // How far the worker that is furthest from the mean of all parameters is from it, per length of that mean.
  double divergence = 0;
  // Sessions: rounds of colayers, the mean number of gradients in one, gradients dropped (of one iteration and
  // colayer), and pulls.
  std::int64_t rounds = 0;
  double gradients = 0;
  std::uint64_t dropped = 0;
  std::int64_t pulls = 0;
  std::uint64_t hash = 0;  // of parameters and of all that the engines said
};

class Trainer {
 public:
  // Of options that check() accepts. `learner` has the same options and outlives it.
  Trainer(const TrainOptions& options, Learner& learner);
  ~Trainer();

  Result<Training> run();
  // How the scaled model stands for the profile: one sentence or two.
  static std::string assumption(const TrainOptions& options, std::size_t parameters);

 private:
  using Exchange = sync::Exchange;
  struct Worker {
    std::unique_ptr<sync::WorkerPolicy> policy;
    std::vector<float> parameters;
    std::vector<float> gradient;  // of the running iteration, and then what an exchange makes of it
    std::vector<float> sent;      // given to an exchange, which may write there
    std::vector<float> before;    // kGroup: what was given
    std::vector<float> waiting;   // kPartition: own gradients not sent yet
    std::map<int, std::deque<std::vector<float>>> arrived;  // kNeighbours: by the neighbour
    std::unique_ptr<sync::LocalUpdates> updates;            // kDelta
    std::optional<Random> random;
    std::vector<std::byte> heard;  // where an answer of the coordinator comes
    sync::WorkerSet told;          // the members of the exchange that it told of, until that has ended,
    sync::WorkerSet told_behind;   // and those of them that are behind
    bool is_told = false;
    Exchange exchange;
    sync::WorkerSet behind;  // of the exchange
    bool training = false;
    bool exchanging = false;
    bool stepped = false;     // a local step was taken since the exchange began
    int parts = 0;            // of the running gradient's exchange that are under way
    std::uint64_t life = 0;   // of iterations: events of an older one are void
    std::int64_t rounds = 0;  // kDelta: exchanges that are in `updates`
    std::int64_t iterations = 0;
    Nanos began;
    Nanos took;  // the iteration that runs, or ran last
    Nanos computing;
  };
  Worker& at(int w) { return workers_[static_cast<std::size_t>(w)]; }
  int count() const { return options_.workers(); }
  float rate() const { return static_cast<float>(options_.rate); }

  // The loop (trainer.cc).
  void proceed(int w);
  void begin_iteration(int w);
  void end_iteration(int w);
  Nanos time_of(int w, Nanos* asleep);
  Status bring_up();
  void open_policy(int w, Engines::Done opened);
  void ask(int w, const sync::Question& question);
  void listen(int w);
  void hear(int w);
  void evaluate();
  CurvePoint point();
  std::vector<float> mean_parameters() const;
  std::vector<float> common_parameters() const;
  double divergence() const;

  // What an exchange is (exchanges.cc).
  void exchange(int w, const Exchange& exchange);
  void exchanged(int w);
  void gradient_part(int w, int z);
  void give_up_iteration(int w);
  void finish_gradient(int w);
  void reduce_delta(int w);
  void hand_over(int w);
  void average_group(int w);
  void average_neighbours(int w);
  void join_neighbours(int w);
  void push_to_server(int w);
  void send_partition(int w);

  TrainOptions options_;
  Learner& learner_;
  std::vector<Slice> slices_;
  double scale_ = 1;         // bytes sent of the profile per byte of the model
  std::uint32_t codec_ = 0;  // its number
  std::string policy_name_;
  std::vector<std::uint64_t> hosts_;  // of all ranks
  std::vector<Worker> workers_;
  std::vector<float> server_;  // kServer without waiting: the parameters there
  Status failure_;
  std::unique_ptr<Sessions> sessions_;  // of the policies that have one
  Engines engines_;                     // last: it ends first, and nobody writes to the others afterwards
  Nanos start_;
  std::uint64_t start_bytes_ = 0;
  Nanos last_iteration_;
  std::int64_t iterations_ = 0;
  std::int64_t next_evaluation_ = 0;
  Training result_;
};

}  // namespace canarynet::sim

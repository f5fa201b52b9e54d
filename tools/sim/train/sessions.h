// tools/sim/train/sessions.h -- a session of all workers: sync's rounds, each an all-reduce of the engines.
//
// What: SessionRounds decides per worker what is joined to which round and when; here are its numbers (accumulators,
// inputs, backlogs) and the way of a round. Each colayer has a group of engines of its own, so its rounds follow one
// another and wait for no other colayer's. Who contributed which iterations travels behind the values, in the same sum:
// two numbers per worker, of which only its own are not 0.
// What differs from a session inside of the engine: a worker without data joins with zeros, which travel in full where
// null pieces would be headers only, so the bytes are an upper bound; and the notice that a round is open is an event
// that comes a link's latency later, since no piece of it can be seen from here.
// Thread: one. Nobody dies.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/units.h"
#include "sync/session_rounds.h"
#include "tools/sim/train/engines.h"
#include "tools/sim/train/slices.h"

namespace canarynet::sim {

class Sessions {
 public:
  struct Options {
    int workers = 1;
    sync::Thresholds thresholds;
    std::optional<Nanos> linger;
    Nanos notice;     // how long the notice of a round takes
    float scale = 1;  // a round's sum is taken off the parameters times this
  };
  // `engines`, `slices` and the parameters of `parameters_of` outlive it.
  Sessions(const Options& options, Engines* engines, const std::vector<Slice>* slices,
           std::function<std::vector<float>&(int worker)> parameters_of);

  // Colayer z of the running iteration's gradient. False: the worker is overtime, gives up its iteration, and pulls.
  bool push(int worker, int z, std::span<const float> gradient);
  // The iteration has ended and everything is pushed. `entered` is called once the worker is in the next one, with what
  // has come meanwhile in its parameters.
  void step(int worker, Engines::Done entered);
  // The newest parameters, from the worker that is furthest ahead.
  void pull(int worker, Engines::Done pulled);

  std::uint64_t dropped() const;  // gradients of one iteration and colayer
  std::int64_t pulls() const { return pulls_; }
  std::int64_t rounds() const { return rounds_; }                // counted at worker 0
  std::int64_t contributions() const { return contributions_; }  // to these rounds
  const sync::SessionRounds& rounds_of(int worker) const { return *workers_[static_cast<std::size_t>(worker)].rounds; }

 private:
  struct Colayer {
    std::vector<float> accumulated;
    std::vector<float> in;  // the running round's, with the contributors behind it
    std::vector<std::vector<float>> backlog;
  };
  struct Worker {
    std::unique_ptr<sync::SessionRounds> rounds;
    std::vector<Colayer> colayers;
    Engines::Done entered;  // a step that is blocked
    Nanos deadline = Nanos::max();
  };
  Worker& at(int w) { return workers_[static_cast<std::size_t>(w)]; }
  Colayer& at(int w, int z) { return at(w).colayers[static_cast<std::size_t>(z)]; }
  const Slice& slice(int z) const { return (*slices_)[static_cast<std::size_t>(z)]; }
  void clear(int worker);
  void start_due(int worker);
  void start(int worker, int z);
  void committed(int worker, int z);
  void take_backlog(int worker);
  void try_step(int worker);
  void hand_over(int worker, int owner, Engines::Done pulled);

  Options options_;
  Engines* engines_;
  const std::vector<Slice>* slices_;
  std::function<std::vector<float>&(int)> parameters_of_;
  std::vector<Worker> workers_;
  std::int64_t pulls_ = 0;
  std::int64_t rounds_ = 0;
  std::int64_t contributions_ = 0;
};

}  // namespace canarynet::sim

// tools/sim/train/sessions.h -- the session of all workers in a simulated training: the engines' own.
//
// What: what a program does with a session (canary_session_open, push, step, pull), with what a step hands out taken
// off the worker's parameters.
// Thread: one. Failures: of the engines.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/units.h"
#include "port/session.h"
#include "sync/gei.h"
#include "tools/sim/train/engines.h"
#include "tools/sim/train/slices.h"

namespace canarynet::sim {

class Sessions {
 public:
  struct Options {
    int workers = 1;
    sync::Thresholds thresholds;
    std::optional<Nanos> linger;
    std::uint32_t codec = 0;  // of all colayers; 0: dense
    float scale = 1;          // the sums are taken off the parameters times this
  };
  // `engines`, `slices` and the parameters of `parameters_of` outlive it.
  Sessions(const Options& options, Engines* engines, const std::vector<Slice>* slices,
           std::function<std::vector<float>&(int worker)> parameters_of);

  void open(int worker, Engines::Done opened);
  // Colayer z of the running iteration's gradient. False: the worker is overtime, gives up its iteration, and pulls.
  bool push(int worker, int z, std::span<const float> gradient);
  // The iteration has ended and everything is pushed. `entered` is called once the worker is in the next one, with what
  // has come meanwhile in its parameters.
  void step(int worker, Engines::Done entered) { take(worker, port::SessionStep::kStep, std::move(entered)); }
  // Goes on with the newest iteration, and with all that has come.
  void pull(int worker, Engines::Done pulled);

  std::uint64_t dropped() const;  // gradients of one iteration and colayer
  std::int64_t pulls() const { return pulls_; }
  // Of which worker 0 has the results, and the gradients in them.
  std::uint64_t rounds() const { return rounds_; }
  std::uint64_t gradients() const { return gradients_; }

 private:
  struct Worker {
    std::vector<float> sums;  // of all colayers, one behind the other
    port::SessionResult result;
  };
  Worker& at(int w) { return workers_[static_cast<std::size_t>(w)]; }
  void take(int worker, port::SessionStep what, Engines::Done taken);
  void apply(int worker);

  Options options_;
  Engines* engines_;
  const std::vector<Slice>* slices_;
  std::function<std::vector<float>&(int)> parameters_of_;
  std::vector<std::uint64_t> words_;
  std::vector<Worker> workers_;
  std::int64_t pulls_ = 0;
  std::uint64_t rounds_ = 0;
  std::uint64_t gradients_ = 0;
};

}  // namespace canarynet::sim

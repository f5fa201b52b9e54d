// engine/greeter.h -- holds accepted lanes until their Hello tells whose they are.
//
// What: the one place for strangers, bounded in time and in number, where the oldest of the source with the most makes
// room for the next; its host takes the lanes it knows. Used by the engine of a job and by the
// endpoint of connections. Strangers are warned of, once in ten seconds: some knock ten times a second.
// Memory: owns a lane until the host took it; what was turned away is destroyed by sweep(), outside of callbacks.
// Thread: the owner's.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/sparse_warning.h"
#include "base/units.h"
#include "transport/lane.h"
#include "transport/wire.h"

namespace canarynet {

class GreeterHost {
 public:
  // A whole and intact Hello. Takes `lane`, or leaves it: then it is turned away.
  virtual void on_hello(std::unique_ptr<Lane>& lane, const wire::Header& header, const wire::HelloPayload& hello) = 0;

 protected:
  ~GreeterHost() = default;
};

class Greeter final : public LaneSink {
 public:
  Greeter(GreeterHost& host, std::size_t strangers_max);
  void take(std::unique_ptr<Lane> lane, Nanos now);
  void sweep(Nanos now);
  // Closes all lanes without a word. Outside of callbacks.
  void abandon() noexcept { waiting_.clear(); }
  bool empty() const { return waiting_.empty(); }
  // Says that the lane was a stranger's; `why` in a few words, it stands in parentheses. The caller drops the lane.
  void turn_away(const Lane& lane, const char* why);

  void on_up(Lane&) override {}
  Landing landing_for(Lane& lane, const wire::Header& header) override;
  void on_frame(Lane& lane, const wire::Header& header, const Arrival& arrival) override;
  void on_writable(Lane&) override {}
  void on_down(Lane& lane, const Status& reason, bool hangup) override;

 private:
  struct Waiting {
    std::unique_ptr<Lane> lane;
    Nanos since;
    bool finished = false;
  };
  void refuse(Lane& lane, const wire::HelloPayload& hello);
  Waiting* find(const Lane& lane);
  GreeterHost& host_;
  const std::size_t strangers_max_;
  std::vector<Waiting> waiting_;
  Nanos now_;
  SparseWarning warning_;
};

}  // namespace canarynet

// engine/greeter.h -- holds accepted lanes until their Hello tells whose they are.
//
// What: the one place for strangers, bounded in time and in number, where the oldest of the source with the most makes
// room for the next; of its hosts, the engine of a job and the endpoint of connections, the one that a hello is for
// takes the lane or leaves it. Strangers are warned of, once in ten seconds: some knock ten times a second.
// Memory: owns a lane until the host took it; what was turned away is destroyed by sweep(), outside of callbacks.
// Thread: the owner's.
#pragma once

#include <array>
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
  // Whether lanes with such a hello are this host's.
  virtual bool expects(const wire::HelloPayload& hello) const = 0;
  // A whole and intact Hello that it expects. Takes `lane`, or leaves it: then it is turned away.
  virtual void on_hello(std::unique_ptr<Lane>& lane, const wire::Header& header, const wire::HelloPayload& hello) = 0;

 protected:
  ~GreeterHost() = default;
};

class Greeter final : public LaneAcceptor, public LaneSink {
 public:
  explicit Greeter(std::size_t strangers_max);
  // From now on until leave(); two at most.
  void serve(GreeterHost& host);
  void leave(GreeterHost& host) noexcept;
  // What comes from here on comes at `now`.
  void set_time(Nanos now) { now_ = now; }
  // Lets go of whom it turned away, and of those who have said nothing for too long.
  void sweep();
  void on_accept(std::unique_ptr<Lane> lane) override;
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
  std::array<GreeterHost*, 2> hosts_{};
  const std::size_t strangers_max_;
  std::vector<Waiting> waiting_;
  Nanos now_;
  SparseWarning warning_;
};

}  // namespace canarynet

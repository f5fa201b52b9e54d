// engine/silence_watch.h -- who is not heard, and whose end is proved: one judgement for engines and endpoints.
//
// What: a warning names a silent peer early, with those of its host; judge() says when a peer has ended. Connections
// that end prove a process's death: over control, where there is any, else over the lanes. Silence proves nothing: a
// host whose NICs are dark, a paused virtual machine and a process in a debugger come back. So its limit is long, what
// waits goes on where it stopped, and the time of a silence (unheard()) is no time without progress.
// Thread: the owner's. Time in which this process itself stood still does not count (Peers::begin_cycle()). Failures:
// none; what a judgement means for operations and connections is the owner's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/process_pulse.h"
#include "base/settings.h"
#include "engine/peers.h"

namespace canarynet {

using PulseSource = std::function<ProcessPulse(std::int64_t pid)>;  // of another process of this host

class SilenceHost {
 public:
  virtual ~SilenceHost() = default;
  // A peer's latest word that did not come over its lanes. `relayed`: by somebody else, who hears it a beat earlier.
  struct Word {
    Nanos heard;
    bool relayed = false;
  };
  // Empty: there is no other way, and the lanes alone tell of its end.
  virtual std::optional<Word> word_over_control(const Peer& peer) const = 0;
  // The names of peers on one host: "ranks 4, 5 (host b)", and what a long text may end with.
  struct Names {
    std::string who, where;
  };
  virtual Names names_of(std::span<const Peer* const> peers) const = 0;
};

class SilenceWatch {
 public:
  enum class Fate : std::uint8_t {
    kLives,    // or nothing proves anything else yet
    kLeft,     // it said farewell over its lanes
    kRefuses,  // nobody is there any more: every dial is refused
    kNotMet,   // no lane came up within CANARY_JOIN_TIMEOUT
    kHungUp,   // it closed every lane and opens none
    kSilent,   // for longer than CANARY_SILENCE_LIMIT
  };

  // All outlive this.
  SilenceWatch(const Settings& settings, const Peers& peers, SilenceHost& host)
      : settings_(settings), peers_(peers), host_(host) {}
  // Names this host as in the peers, and says how its other processes are looked at (empty: they are not).
  void set_host(std::string name, PulseSource pulse_of);
  bool sees_pulses() const { return pulse_of_ != nullptr; }

  // When a word of it last came that a piece could have come with: over a lane, or where none joins the two, over
  // control.
  Nanos last_word(const Peer& peer) const;
  // Whether silence says anything of it.
  static bool should_speak(const Peer& peer);
  // Time in which that holds is no time without progress. A silence that outlasts its limit has a verdict of its own,
  // or is of no importance to whoever waits.
  bool unheard(const Peer& peer, Nanos now) const;
  // Once per silence, for all processes of a host together; and again when it is over.
  void warn(Nanos now);
  Fate judge(Peer& peer, Nanos now);
  // Whether no peer of any other host was heard lately, of two or more hosts: then it is this one that is cut off, not
  // they.
  bool alone(Nanos now, bool by_lanes, Nanos limit) const;
  // "CANARY_SILENCE_LIMIT (60 s)"
  std::string limit_text() const;

 private:
  Fate judge_by_lanes(Peer& peer, Nanos now) const;
  bool merely_starved(Peer& peer, Nanos now) const;
  bool is_news(Peer& peer, Nanos now, Nanos limit) const;
  bool is_back(const Peer& peer, Nanos now) const;
  template <typename Wanted>
  std::vector<Peer*> of_its_host(std::size_t first, Wanted wanted) const;
  void tell(std::size_t first, Nanos now);
  void tell_return(std::size_t first, Nanos now);
  bool speaks_over_control(const Peer& peer, Nanos now) const;

  const Settings& settings_;
  const Peers& peers_;
  SilenceHost& host_;
  std::string my_host_;
  PulseSource pulse_of_;
};

}  // namespace canarynet

// runtime/host.h -- drives the engine and the endpoint of a process: one set of lanes, one clock, one thread.
//
// What: a place each for an engine and an endpoint (residents). Those that ask for the same lanes live in one host, so
// that a process which has both listens once on each NIC, knows one rate of it, and has one thread; who asks for others
// gets a host of its own. Whoever holds the baton drives both: the host's thread while nobody waits, or a caller inside
// drive_until(), who takes over while the thread naps.
// Memory: residents are their owners'; each leaves before it ends. Threads: any, as each call says.
// Failures: as values; where memory runs out in a resident, that one is over (Resident::give_up()).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/settings.h"
#include "engine/shared_rails.h"
#include "runtime/baton.h"
#include "runtime/halt_poll.h"
#include "runtime/host_lanes.h"
#include "transport/tcp/tcp_lane_factory.h"

namespace canarynet {

// What a host drives. All calls by the holder of the baton.
class Resident {
 public:
  // The two halves of a poll; `moved`: the lanes did something in between.
  virtual void begin_poll(Nanos now) = 0;
  virtual std::size_t end_poll(Nanos now, bool moved) = 0;
  virtual Nanos next_deadline() const = 0;
  // It is not driven any more: it was left, or memory ran out.
  virtual bool over() const = 0;
  // Memory ran out in it, which may have stopped anywhere. Touches nobody's buffers afterwards.
  virtual void give_up() noexcept = 0;
  // Tells callers' event loops of what has completed.
  virtual void ring_bells() = 0;
  // A command came by call().
  virtual bool called() const { return false; }
  // More is under way than a request and its reply: polling on would bring nothing sooner.
  virtual bool moves_bulk() const { return true; }
  // A caller that has just submitted begins to drive, or ends.
  virtual void hurry(Nanos) {}
  virtual void settle(Nanos) {}
  // It has something to do for which nobody waits.
  virtual bool busy() const { return false; }

 protected:
  ~Resident() = default;
};

class Host {
 public:
  // An endpoint's callers never drive: its thread polls before it sleeps, and takes over as soon as others let go.
  enum class Place : std::uint8_t { kEngine, kEndpoint };

  struct Wanted {
    const Settings& settings;
    TcpOptions tcp;
    std::string host_id;
    bool has_peers = true;  // false: leaves out what only they need
    bool shared = true;     // with a resident of the other kind
  };
  // Finds a host with these lanes whose place is free, or makes one, and takes that place. Any thread.
  static Result<std::shared_ptr<Host>> take_place(Place place, Wanted wanted);
  ~Host();

  // From now on the resident is driven, once there is a thread or a caller. Holding the baton.
  void move_in(Place place, Resident& resident);
  // Runs `farewell` holding the baton; afterwards the resident is not driven any more. The last one to go ends the
  // thread.
  template <typename Farewell>
  void move_out(Place place, Farewell farewell) {
    hold([&] {
      farewell();
      drive_no_more(place);
    });
    give_place(place);
  }
  // Starts the thread unless it runs. Any thread.
  Status start_thread(const char* name);
  bool has_thread() const { return has_thread_.load(std::memory_order_acquire); }

  // Runs `fn` holding the baton: no other thread drives meanwhile.
  template <typename Fn>
  auto hold(Fn fn) {
    baton_.want(+1);  // a caller inside drive_until() keeps it while it sleeps
    while (!baton_.try_take()) {
      ring_doorbell();
      baton_.wait_for_engine(1_ms);
    }
    baton_.want(-1);
    struct Giver {
      Host& host;
      ~Giver() {
        host.ring_bells();
        host.hand_back(true);
      }
    } giver{*this};
    return fn();
  }

  // A caller of an engine drives, or sleeps while another thread does, until `done()`, which other threads may ask too,
  // or the resident is over. `spin`: for how long it polls before it sleeps; `polls_before_yield`: how often it does so
  // in vain before it lets others use its core. `submitted`: what it waits for was handed over without telling anybody.
  struct Patience {
    Nanos spin;
    int polls_before_yield = 0;
  };
  template <typename Done>
  void drive_until(Resident& resident, const Done& done, Patience patience, bool submitted);
  // Lets things happen once, without waiting. Any thread.
  void nudge();
  // Something was submitted to a resident whose callers do not drive. One system call if everybody sleeps, else none.
  void call() {
    if (asleep_.exchange(false)) ring_doorbell();
  }
  // Wakes whoever waits for results that may never come.
  void notify_all();

  // Holding the baton: one round of polling; true when there was work.
  bool drive_once();
  // The same, and a sleep where there was none, until the next deadline or for `limit`.
  void drive_or_sleep(Nanos limit);
  // Runs `fn`, which uses the resident, and ends that if memory runs out.
  template <typename Fn>
  void attempt(Resident& resident, Fn fn) {
    if (resident.over()) return;
    try {
      fn();
    } catch (const std::bad_alloc&) {
      end(resident);
    }
  }
  void end(Resident& resident);

  // For event loops that drive where there is no thread: what they sleep on, and a drive after which those tell of the
  // next thing to do. Holding the baton.
  Result<std::array<int, 3>> open_alarm();
  void drive_for_loops(const Resident& resident);

  Nanos now() const { return clock_.now(); }
  // Holding the baton, but for kernel_tx_bytes() and rails().
  HostLanes& lanes() { return *lanes_; }
  TcpLaneFactory& tcp() { return *tcp_; }
  const std::shared_ptr<SharedRails>& rails() const { return rails_; }
  // How the thread polls before it sleeps while an endpoint lives here. Before that moves in.
  void set_patience(Nanos spin_budget, Nanos halt_poll);

 private:
  Host() = default;
  Status open(Wanted wanted);
  bool serves(const Wanted& wanted) const;
  void drive_no_more(Place place);
  void give_place(Place place);
  void run();
  void stop();
  bool try_take();
  void hand_back(bool busy);
  void sleep_until(Nanos deadline);
  void wait_for_lanes(Nanos deadline);
  void ring_doorbell();
  void drain_doorbell();
  void ring_bells();
  bool prepare_to_sleep();
  bool called() const;
  Nanos next_deadline() const;
  bool polls_on(bool worked);

  // What was asked for, to compare with what others ask for.
  Settings settings_;
  std::vector<Rail> asked_;
  std::vector<BytesPerSec> pacing_;
  std::string host_id_;
  std::array<bool, 2> taken_{};  // places; the registry's mutex guards it

  static constexpr Nanos kDrivesEvery = 1_ms;  // by callers whose calls are done at once
  SystemClock clock_;
  std::unique_ptr<TcpLaneFactory> tcp_;
  std::unique_ptr<HostLanes> lanes_;  // over it, and through shared memory
  std::shared_ptr<SharedRails> rails_;
  std::array<Resident*, 2> residents_{};  // by place; the holder's
  Baton baton_;
  Nanos drove_at_;   // when the last cycle began; the holder's
  Nanos last_work_;  // of the thread's cycles
  Nanos spin_budget_;
  HaltPoll halt_poll_;
  Descriptor doorbell_;
  Descriptor alarm_;               // at the next deadline, for event loops; without a thread
  std::atomic<bool> rung_{false};  // since it was last drained
  // Nobody looks for commands before the doorbell rings.
  std::atomic<bool> asleep_{false};
  std::atomic<bool> broken_{false};  // memory ran out inside of the lanes: nobody uses them any more
  std::atomic<bool> stop_{false};
  std::atomic<bool> has_thread_{false};
  std::atomic<bool> has_endpoint_{false};
  std::atomic<std::int64_t> thread_wakes_at_{0};  // when the thread will look by itself
  // The thread stays away while callers come again and again: it rests for some milliseconds at a time, until it finds
  // no turn taken since its last look, or the engine left unattended. Then it drives, and sleeps on the lanes. A caller
  // that polls while it sleeps there may take what it would have been woken for, and therefore prepares its sleep anew
  // (hand_back()). While an endpoint lives here, it does not rest.
  std::atomic<bool> thread_sleeps_{false};  // on the lanes
  std::atomic<std::uint32_t> turns_{0};     // of callers
  std::atomic<bool> unattended_{false};     // the last of them left something to do for which nobody waits
  std::mutex thread_mutex_;                 // its start
  std::thread thread_;
};

template <typename Done>
void Host::drive_until(Resident& resident, const Done& done, Patience patience, bool submitted) {
  const auto ended = [&] { return done() || resident.over(); };
  while (!ended()) {
    if (baton_.wanted()) std::this_thread::sleep_for(std::chrono::microseconds(20));  // theirs first
    if (!try_take()) {
      if (submitted) ring_doorbell();
      submitted = false;
      baton_.wait(50_ms, ended);
      continue;
    }
    if (std::exchange(submitted, false)) attempt(resident, [&] { resident.hurry(clock_.now()); });
    // Calls that are done at once, one after the other, would keep the thread at rest and the lanes unread.
    if (!resident.over() && done() && clock_.now() - drove_at_ > kDrivesEvery) {
      drive_once();
      baton_.notify_done();
    }
    Nanos last_work;
    int idle_polls = 0;
    bool worked = true;
    while (!ended()) {
      const bool worked_before = std::exchange(worked, drive_once());
      baton_.notify_done();  // also without work: a limit that has passed ends operations as well
      if (ended() || baton_.wanted()) break;
      if (patience.spin.count != 0) {
        if (worked_before) last_work = drove_at_;  // that cycle's end
        idle_polls = worked ? 0 : idle_polls + 1;
        if (worked || drove_at_ - last_work < patience.spin) {
          if (idle_polls > patience.polls_before_yield) std::this_thread::yield();
          continue;
        }
      }
      // Also after work: what is left has a deadline of 0, and a descriptor with more to read ends the sleep at once.
      sleep_until(next_deadline());
    }
    attempt(resident, [&] { resident.settle(clock_.now()); });
    // A caller that exchanges again and again wakes nobody in between, unless it leaves something that is due.
    hand_back(!resident.over() && (resident.busy() || resident.next_deadline().count == 0));
  }
}

}  // namespace canarynet

// runtime/context.h -- the engine embedded in a process: real clock and lanes, a progress thread, callers that drive
// while they wait.
//
// One Context serves one rank, or several whose threads share it (runtime/local_ranks.h).
// Threads: any number of callers; the engine itself is used by whoever holds the baton. The progress thread serves it
// while nobody waits; a caller inside wait() takes over and the progress thread naps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "engine/engine.h"
#include "runtime/baton.h"
#include "runtime/completion_bell.h"
#include "runtime/counters.h"
#include "runtime/host_lanes.h"
#include "transport/tcp/tcp_lane_factory.h"

namespace canarynet {

struct ContextOptions {
  Settings settings;
  std::vector<int> ranks = {0};  // served here, ascending
  int world_size = 1;
  std::string join_source;  // where settings.join comes from when it is not CANARY_JOIN, for messages
};

class Context {
 public:
  // Discovers NICs, joins, and returns when every rank is there.
  static Result<std::unique_ptr<Context>> create(ContextOptions options);
  ~Context();

  const std::vector<int>& ranks() const { return options_.ranks; }
  int world_size() const { return options_.world_size; }
  // The group of all ranks, as one of ours names it.
  port::MemberId world(int rank);
  // The id by which commands name it here.
  port::TicketId ticket_id(OpTicket& ticket) { return engine_->ticket_id(ticket); }
  const char* algorithm(port::MemberId member) const { return engine_->algorithm(member); }

  // Hands a command to the engine and, when nobody else drives, gives it a first push from this thread. Where too many
  // of the member's operations wait for those before them, it waits as well, on the command's own time. An error: the
  // command makes no sense, and its ticket is not used.
  Status submit(const port::Command& command);
  // Drives, or sleeps while another thread does, until the ticket is done or the job was left.
  void wait(const OpTicket& ticket);
  // Both at once, for a call that blocks: the caller drives its submission itself, and nobody else is woken for it.
  Status run(const port::Command& command, const OpTicket& ticket);
  // Lets things happen once, without waiting.
  void nudge();

  // Memory that ranks of this host read where it lies (canary_mem_alloc); it ends with release() or the context.
  Result<void*> allocate(std::size_t bytes);
  Status release(void* memory);

  // Runs `fn` while holding the engine.
  template <typename Fn>
  auto with_engine(Fn fn) {
    baton_.want(+1);  // a caller inside wait() keeps it while it sleeps
    while (!baton_.try_take()) {
      ring_doorbell();
      baton_.wait_for_engine(1_ms);
    }
    baton_.want(-1);
    struct Giver {
      Context& context;
      ~Giver() {
        context.ring_bells();
        context.baton_.give();
      }
    } giver{*this};
    try {
      return fn(*engine_);
    } catch (const std::bad_alloc&) {
      give_up();
      throw;
    }
  }
  // Opens `bell` (one for each rank at most), which is rung from now on when operations that mark it have completed,
  // and when the job is over. Both calls by whoever holds the engine.
  Status add_bell(CompletionBell& bell);
  void remove_bell(CompletionBell& bell) { std::erase(bells_, &bell); }
  // For the owner of a bell when it is readable: drains it, and drives where no thread of the library does.
  void answer_bell(CompletionBell& bell);
  // Leaves the job; bounded. The progress thread has ended afterwards, whoever waits has returned with its ticket not
  // done, and nothing is read from or written to anybody's buffers.
  void leave();
  // One of our ranks leaves: the last one to do so leaves the job. Its operations are done.
  void leave(int rank);

  // The job was left, or memory ran out: what is not done will not be.
  bool over() const { return over_.load(std::memory_order_acquire); }
  Status why_over() const;

 private:
  explicit Context(ContextOptions options);
  void say_farewell();
  Status start();
  Status join();
  Status hand_over(const port::Command& command);
  Status wait_for_room(port::Command command);
  // wait() for anything that other threads may ask about.
  template <typename Done>
  void drive_until(const Done& done, bool submitted);
  void progress_loop();
  // One round of polling; true when there was work.
  bool drive_once();
  // `fn` uses the engine; if memory runs out in it, the job is over for this process.
  template <typename Fn>
  void drive(Fn fn);
  // Memory ran out while this thread held the engine.
  void give_up();
  void sleep_until(Nanos deadline);
  bool try_take();
  // Gives the engine back after drive_once(). `busy`: it has something to do for which nobody waits.
  void hand_back(bool busy);
  void wait_for_lanes(Nanos deadline);
  void ring_doorbell();
  void drain_doorbell();
  bool has_thread() const { return options_.settings.progress_thread && options_.world_size > 1; }
  // Drives, and has the bells readable when the engine has to be driven again; for callers that sleep on them instead
  // of the progress thread that there is not.
  void drive_for_bells();
  // Tells of what has completed under this thread's hands.
  void ring_bells() {
    for (CompletionBell* bell : bells_) bell->ring_if_news();
  }

  ContextOptions options_;
  SystemClock clock_;
  std::unique_ptr<TcpLaneFactory> factory_;
  std::unique_ptr<HostLanes> lanes_;  // over it, and through shared memory
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EngineCounters> counters_;
  std::atomic<int> staying_{0};  // ranks that have not left
  Baton baton_;
  Nanos drove_at_;  // when the last cycle began; the holder's of the baton
  Descriptor doorbell_;
  std::vector<CompletionBell*> bells_;  // of the ranks that asked; the holder's
  Descriptor alarm_;                    // at the engine's next deadline, for their loops; without a progress thread
  int polls_before_yield_ = 0;          // of a spinning caller, without work
  std::atomic<bool> rung_{false};       // since it was last drained
  std::atomic<bool> stop_{false};
  std::atomic<bool> out_of_memory_{false};
  std::atomic<bool> over_{false};                 // the job was left: nobody drives any more
  std::atomic<std::int64_t> thread_wakes_at_{0};  // when the progress thread will look by itself
  // The progress thread stays away while callers come again and again: it rests for some milliseconds at a time, until
  // it finds no turn taken since its last look, or the engine left unattended. Then it drives, and sleeps on the lanes.
  // A caller that polls while it sleeps there may take what it would have been woken for, and therefore prepares its
  // sleep anew (hand_back()).
  std::atomic<bool> thread_sleeps_{false};  // on the lanes
  std::atomic<std::uint32_t> turns_{0};     // of callers at the engine
  std::atomic<bool> unattended_{false};     // the last of them left something to do for which nobody waits
  std::thread progress_;
};

}  // namespace canarynet

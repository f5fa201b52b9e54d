// runtime/context.h -- a job's engine embedded in a process: how it joins and leaves, and how callers drive it while
// they wait.
//
// One Context serves one rank, or several whose threads share it (runtime/local_ranks.h).
// Threads: any number of callers; the engine itself is used by whoever holds the baton of its host (runtime/host.h),
// whose thread serves it while nobody waits.
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "runtime/completion_bell.h"
#include "runtime/counters.h"
#include "runtime/host.h"

namespace canarynet {

struct ContextOptions {
  Settings settings;
  std::vector<int> ranks = {0};  // served here, ascending
  int world_size = 1;
  std::string join_source;  // where settings.join comes from when it is not CANARY_JOIN, for messages
};

class Context final : private Resident {
 public:
  // Discovers NICs, joins, and returns when every rank is there.
  static Result<std::unique_ptr<Context>> create(ContextOptions options);
  ~Context();

  const std::vector<int>& ranks() const { return options_.ranks; }
  int world_size() const { return options_.world_size; }
  // The clock by which tickets say when they were done. Any thread.
  Nanos now() const { return host_->now(); }
  // The group of all ranks, as one of ours names it.
  port::MemberId world(int rank);
  // The id by which commands name it here.
  port::TicketId ticket_id(OpTicket& ticket) { return engine_->ticket_id(ticket); }
  const char* algorithm(port::MemberId member) const { return engine_->algorithm(member); }

  // Hands a command to the engine and, when nobody else drives, gives it a first push from this thread. Where too many
  // of the member's operations wait for those before them, it waits as well, on the command's own time. An error: the
  // command makes no sense, and its ticket is not used.
  Status submit(const port::Command& command);
  // Says what is wrong with a command, and does not hand it over.
  Status check_call(const port::Command& command) const { return engine_->check_call(command); }
  // Drives, or sleeps while another thread does, until the ticket is done or the job was left.
  void wait(const OpTicket& ticket);
  // Both at once, for a call that blocks: the caller drives its submission itself, and nobody else is woken for it.
  Status run(const port::Command& command, const OpTicket& ticket);
  // Lets things happen once, without waiting.
  void nudge() { host_->nudge(); }

  // Memory that ranks of this host read where it lies (canary_mem_alloc); it ends with release() or the context.
  Result<void*> allocate(std::size_t bytes);
  Status release(void* memory);

  // Runs `fn` while holding the engine.
  template <typename Fn>
  auto with_engine(Fn fn) {
    return host_->hold([&] {
      try {
        return fn(*engine_);
      } catch (const std::bad_alloc&) {
        host_->end(*this);
        throw;
      }
    });
  }
  std::string explain(port::MemberId member, Collective collective, std::uint64_t bytes) {
    return with_engine([&](Engine& e) { return e.explain(member, collective, bytes); });
  }
  // Opens `bell` (one for each rank at most), which is rung from now on when operations that mark it have completed,
  // and when the job is over. Both calls by whoever holds the engine.
  Status add_bell(CompletionBell& bell);
  void remove_bell(CompletionBell& bell) { std::erase(bells_, &bell); }
  // For the owner of a bell when it is readable: drains it, and drives where no thread of the library does.
  void answer_bell(CompletionBell& bell);
  // Leaves the job; bounded. Whoever waits has returned afterwards with its ticket not done, nothing is read from or
  // written to anybody's buffers, and the thread has ended unless it serves an endpoint.
  void leave();
  // One of our ranks leaves: the last one to do so leaves the job. Its operations are done.
  void leave(int rank);

  // The job was left, or memory ran out: what is not done will not be.
  bool over() const override { return over_.load(std::memory_order_acquire); }
  Status why_over() const;

 private:
  explicit Context(ContextOptions options);
  Status start();
  Status join();
  Status hand_over(const port::Command& command);
  Status wait_for_room(port::Command command);
  void say_farewell();
  bool has_thread() const { return options_.settings.progress_thread && options_.world_size > 1; }
  // For anything that other threads may ask about.
  template <typename Done>
  void drive_until(const Done& done, bool submitted) {
    host_->drive_until(*this, done, {options_.settings.spin_budget, polls_before_yield_}, submitted);
  }

  // Resident
  void begin_poll(Nanos now) override { engine_->begin_poll(now); }
  std::size_t end_poll(Nanos now, bool moved) override;
  Nanos next_deadline() const override { return engine_->next_deadline(); }
  void give_up() noexcept override;
  void ring_bells() override {
    for (CompletionBell* bell : bells_) bell->ring_if_news();
  }
  void hurry(Nanos now) override { engine_->hurry(now); }
  void settle(Nanos now) override { engine_->flush_acks(now, !host_->has_thread()); }
  bool busy() const override { return engine_->busy(); }

  ContextOptions options_;
  std::shared_ptr<Host> host_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EngineCounters> counters_;
  std::atomic<int> staying_{0};         // ranks that have not left
  std::vector<CompletionBell*> bells_;  // of the ranks that asked; the holder's
  int polls_before_yield_ = 0;          // of a spinning caller, without work
  bool has_place_ = false;
  std::atomic<bool> out_of_memory_{false};
  std::atomic<bool> over_{false};  // the job was left: nobody drives any more
};

}  // namespace canarynet

// tools/run/ranks.h -- the ranks' processes: their environment, their output by lines, their ends, and when to stop the
// others.
//
// Single-threaded, driven by the init process: it polls the descriptors and hands events in. Ranks lead process groups
// of their own.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "tools/run/options.h"
#include "tools/run/process.h"
#include "tools/run/testbed.h"

namespace canarynet::run {

class Ranks {
 public:
  // Writes to one of our own descriptors; returns false if nobody will read it any more.
  using Sink = std::function<bool(int fd, const std::string& text)>;
  Ranks(const RunOptions& options, Sink sink) : options_(options), sink_(std::move(sink)) {}
  // Sets the hosts on which ranks run; without it they are plain processes.
  void attach(const Testbed* bed) { bed_ = bed; }

  // Forks all ranks; they wait for release().
  Status spawn(const OuterPids& pids, const std::string& join, const std::string& state_path);
  std::vector<pid_t> outer_pids() const;
  Status release();

  bool any_alive() const { return alive_ > 0; }
  // The exit code of the first failure, or of a rank struck by a signal which may have caused that failure; 0 while all
  // is well.
  int exit_code() const { return exit_code_; }

  void add_polled(std::vector<pollfd>* out) const;
  // Reads what there is on `fd`, one of those from add_polled.
  void read_output(int fd);
  // Reads the rest of the pipes, including lines without an end.
  void drain_output();

  // Takes note of any child of init that ended; those that are no ranks are ignored.
  void ended(pid_t pid, int status, Nanos now);
  // Passes a signal of the user on; INT and TERM also start the clock to SIGKILL.
  void pass_on(int signal, Nanos now);
  // Stops all, with exit code `code` unless a rank failed before.
  void stop(int code, Nanos now);
  // When tick() has something to do; Nanos::max() for never.
  Nanos next_tick() const { return deadline_; }
  void tick(Nanos now);
  void kill_all(int signal);

 private:
  struct Stream {
    Descriptor fd;
    int to = 1;
    std::string partial;
  };
  struct Rank {
    pid_t pid = -1;
    pid_t outer_pid = -1;
    bool alive = false;
    // Its mount namespace. The last process that leaves one unmounts it before the kernel closes the process's sockets,
    // which takes seconds on a busy machine; a killed process of a host that lives on does not wait for that.
    Descriptor mounts;
    Stream streams[2];
  };
  enum class Phase { kRunning, kGrace, kTerminated, kKilled };

  void enter_host(int host) const;
  [[noreturn]] void become_rank(int rank, const std::string& join, const std::string& state_path);
  void say(const std::string& line) { sink_(2, "canary-run: " + line + "\n"); }
  void emit(int rank, Stream* stream, bool flush);
  // Reads once; returns false if there is nothing more for now.
  bool read_once(int rank, Stream* stream);

  const RunOptions& options_;
  const Testbed* bed_ = nullptr;
  Sink sink_;
  std::vector<Rank> ranks_;
  Pipe go_;
  int alive_ = 0;
  int exit_code_ = 0;
  Nanos failed_at_;            // when it was first set
  bool cause_struck_ = false;  // it was a death by a signal
  Phase phase_ = Phase::kRunning;
  bool stopped_by_user_ = false;
  Nanos deadline_ = Nanos::max();
};

}  // namespace canarynet::run

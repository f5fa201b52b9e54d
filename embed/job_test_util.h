// embed/job_test_util.h -- for tests: jobs over real TCP on loopback through the C ABI, ranks as threads or as forked
// processes.
//
// Job: n ranks of one process, each with a context of its own, driven from one thread per rank in each().
// Process: one forked rank, whose last word is report() and whose failed checks fail the test; make them while the
// process has no other thread. Ports are taken below the kernel's ephemeral range, so that no outgoing connection sits
// on them.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "canarynet/canarynet.h"

namespace canarynet::test {

inline bool sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

inline int free_port() {
  static std::atomic<unsigned> next{static_cast<unsigned>(getpid()) * 61u};
  for (;;) {
    const int port = 12000 + static_cast<int>(next++ % 18000u);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<std::uint16_t>(port));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool is_free = bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0 && listen(fd, 1) == 0;
    close(fd);
    if (is_free) return port;
  }
}

inline std::string join_url(int port) { return "tcp://127.0.0.1:" + std::to_string(port); }

using Strings = std::vector<std::string>;

inline Strings operator+(Strings a, const Strings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// `local_ranks`: canary_config's; 0 leaves it to the environment.
inline canary_status init(const std::string& join, int rank, int world_size, const Strings& settings,
                          canary_context** out, int local_ranks = 0) {
  std::vector<const char*> pointers;
  for (const std::string& s : settings) pointers.push_back(s.c_str());
  canary_config c = CANARY_CONFIG_INIT;
  c.join = join.c_str();
  c.rank = rank;
  c.world_size = world_size;
  c.settings = pointers.data();
  c.settings_count = pointers.size();
  c.local_ranks = local_ranks;
  return canary_init(&c, out);
}

// canary_last_error of this thread, kept.
struct Error {
  canary_status code = CANARY_OK;
  std::string message, op, host, device, phase;
  std::int64_t op_number = -1;
  std::uint32_t group = 0, epoch = 0;
  int rank = -1;
  std::uint64_t elapsed_ns = 0;
};

inline Error last_error() {
  canary_error e{};
  e.struct_size = sizeof e;
  EXPECT_EQ(canary_last_error(&e), CANARY_OK);
  return {e.code, e.message, e.op, e.host, e.device, e.phase, e.op_number, e.group, e.epoch, e.rank, e.elapsed_ns};
}

// One thread per rank; returns when all have ended.
inline void on_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&body, r] { body(r); });
  for (std::thread& t : threads) t.join();
}

class Job {
 public:
  explicit Job(int ranks, const Strings& settings = {})
      : Job(std::vector<Strings>(static_cast<std::size_t>(ranks), settings)) {}
  // Settings of each rank.
  explicit Job(const std::vector<Strings>& settings) : contexts_(settings.size()) {
    const std::string join = join_url(free_port());
    on_threads(ranks(), [&](int r) {
      const auto i = static_cast<std::size_t>(r);
      EXPECT_EQ(init(join, r, ranks(), settings[i], &contexts_[i]), CANARY_OK) << last_error().message;
    });
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {
    on_threads(ranks(), [&](int r) { leave(r); });
  }

  bool joined() const {
    for (const canary_context* c : contexts_) {
      if (c == nullptr) return false;
    }
    return true;
  }
  int ranks() const { return static_cast<int>(contexts_.size()); }
  canary_context* context(int rank) const { return contexts_[static_cast<std::size_t>(rank)]; }
  canary_group* world(int rank) const { return canary_world(context(rank)); }
  void leave(int rank) {
    canary_context*& c = contexts_[static_cast<std::size_t>(rank)];
    if (c == nullptr) return;
    EXPECT_EQ(canary_finalize(c), CANARY_OK);
    c = nullptr;
  }
  void each(const std::function<void(int)>& body) const { on_threads(ranks(), body); }

 private:
  std::vector<canary_context*> contexts_;
};

// A rank in a process of its own. Its body's return value arrives as report(). Checks that fail in it are printed there
// and fail this test too, at the latest when the object goes, and so does every end but the body's and SIGKILL.
class Process {
 public:
  explicit Process(const std::function<std::string()>& body) {
    int ends[2];
    if (pipe(ends) != 0) abort();
    const bool failed_before = testing::Test::HasFailure();  // which the child inherits
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      alarm(100);  // never outlives a stuck test by much
      const std::string text = body();
      [[maybe_unused]] const ssize_t n = write(ends[1], text.data(), text.size());
      _exit(testing::Test::HasFailure() && !failed_before ? kFailedChecks : 0);
    }
    close(ends[1]);
    from_ = ends[0];
  }
  Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, -1)), from_(std::exchange(other.from_, -1)) {}
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (pid_ > 0) {
      kill();
      reap();
    }
    if (from_ >= 0) close(from_);
  }
  pid_t pid() const { return pid_; }
  void kill() const { ::kill(pid_, SIGKILL); }
  // The text that the body returned; "" when it died.
  std::string report() {
    std::string text;
    char part[4096];
    for (ssize_t n = 0; (n = read(from_, part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(n));
    reap();
    return text;
  }

 private:
  static constexpr int kFailedChecks = 3;
  void reap() {
    int status = 0;
    if (pid_ > 0 && waitpid(pid_, &status, 0) == pid_) {
      if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
        ADD_FAILURE() << "process " << pid_ << " ended with status " << WEXITSTATUS(status)
                      << (WEXITSTATUS(status) == kFailedChecks ? ": checks failed in it, printed above" : "");
      }
      if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
        ADD_FAILURE() << "process " << pid_ << " ended by signal " << WTERMSIG(status);
      }
    }
    pid_ = -1;
  }
  pid_t pid_ = -1;
  int from_ = -1;
};

// Four processes of a job. Rank 2 says that it is `ready` and is killed a moment later; `body` returns "good" in the
// others.
inline void expect_good_without_rank_2(
    const std::function<std::string(canary_context*, int rank, const std::function<void()>& ready)>& body) {
  const std::string join = join_url(free_port());
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const auto ready = [&go] {
    const char byte = 0;
    [[maybe_unused]] const ssize_t told = write(go[1], &byte, 1);
  };
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(std::make_unique<Process>([&, rank]() -> std::string {
      canary_context* context = nullptr;
      if (init(join, rank, 4, {}, &context) != CANARY_OK) return last_error().message;
      std::string said = body(context, rank, ready);
      if (said == "good") canary_finalize(context);
      return said;
    }));
  }
  char byte = 0;
  ASSERT_EQ(read(go[0], &byte, 1), 1);
  usleep(100'000);
  ranks[2]->kill();
  for (const int rank : {0, 1, 3}) EXPECT_EQ(ranks[static_cast<std::size_t>(rank)]->report(), "good") << rank;
  close(go[0]);
  close(go[1]);
}

// Seconds on a clock that all processes of this machine share.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// All ranks know of a mismatch or an abort after 250 ms, as the docs promise. The machines that run this are
// small and shared: five times that.
inline constexpr double kToldBound = 1.25;

inline double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

}  // namespace canarynet::test

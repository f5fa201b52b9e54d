#include "tools/run/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "tools/run/wiring.h"

namespace canarynet::run {
namespace {

constexpr std::size_t kLongestLine = 8 << 20;  // longer lines go on in parts; a run's figures can be long
// The time between SIGTERM and SIGKILL when canary-run stops the others.
constexpr Nanos kKillAfter = 2_s;
// A killed rank closes its connections before it has ended: others may hear of its death, fail and be gone while it is
// still being taken down. So a death by a signal counts before a failure that was seen up to this much earlier.
constexpr Nanos kSameCause = 2_s;

// Whether it was ended by a signal from outside or by a fault. Aborting is a decision of its own, like exiting.
bool struck(int status) { return WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT; }

void set_env(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

}  // namespace

void Ranks::enter_host(int host) const {
  if (bed_ == nullptr) return;
  const Status s = bed_->enter(host);
  if (s.ok()) return;
  const std::string text = "canary-run: cannot enter host-" + std::to_string(host) + ": " + s.text() + "\n";
  write_all(2, text.data(), text.size());
  ::_exit(125);
}

void Ranks::become_rank(int rank, const std::string& join, const std::string& state_path) {
  const int host = options_.host_of(rank), local_size = options_.ranks_per_host();
  if (bed_ != nullptr) {
    set_env("CANARY_HOST_ID", "host-" + std::to_string(host));
    set_env("CANARY_INSECURE", "1");
    if (!options_.congestion.empty()) set_env("CANARY_TCP_CONGESTION", options_.congestion);
  }
  if (options_.aliases()) {
    set_env("CANARY_HOST_ID", "host-" + std::to_string(host));
    set_env("CANARY_RAILS", alias_rails(make_wiring(options_), host));
    if (!options_.rates.empty()) set_env("CANARY_PACING_RATE", rates_text(options_, host));
    if (!options_.congestion.empty()) set_env("CANARY_TCP_CONGESTION", options_.congestion);
  }
  set_env("CANARY_RANK", std::to_string(rank));
  set_env("CANARY_WORLD_SIZE", std::to_string(options_.ranks));
  set_env("CANARY_LOCAL_RANK", std::to_string(rank % local_size));
  set_env("CANARY_LOCAL_SIZE", std::to_string(local_size));
  set_env("CANARY_JOIN", join);
  set_env("CANARY_RUN_STATE", state_path);
  ::setenv("CANARY_SOCKET_IFNAME", bed_ != nullptr ? "^ctl0,lo" : "=lo", 0);
  std::vector<char*> args;
  args.reserve(options_.command.size() + 1);
  for (const auto& a : options_.command) args.push_back(const_cast<char*>(a.c_str()));
  args.push_back(nullptr);
  ::execvp(args[0], args.data());
  const int error = errno;
  const std::string text = "canary-run: cannot run " + options_.command[0] + ": " + strerror(error) + "\n";
  write_all(2, text.data(), text.size());
  ::_exit(error == ENOENT ? 127 : 126);
}

Status Ranks::spawn(const OuterPids& pids, const std::string& join, const std::string& state_path) {
  auto go = make_pipe(), ready = make_pipe();
  if (!go.ok()) return go.status();
  if (!ready.ok()) return ready.status();
  go_ = go.take();
  ranks_.resize(static_cast<std::size_t>(options_.ranks));
  for (int r = 0; r < options_.ranks; ++r) {
    Rank& rank = ranks_[static_cast<std::size_t>(r)];
    Descriptor ends[2];
    for (int i = 0; i < 2; ++i) {
      auto pipe = make_pipe();
      if (!pipe.ok()) return pipe.status();
      rank.streams[i].fd = std::move(pipe.value().read);
      rank.streams[i].to = i + 1;
      ::fcntl(rank.streams[i].fd.fd(), F_SETFL, O_NONBLOCK);
      ends[i] = std::move(pipe.value().write);
    }
    rank.pid = ::fork();
    if (rank.pid < 0) return system_error("fork", errno);
    if (rank.pid == 0) {
      become_child();
      ::setpgid(0, 0);
      const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      ::dup2(nothing.fd(), 0);
      ::dup2(ends[0].fd(), 1);
      ::dup2(ends[1].fd(), 2);
      const pid_t outer = pids.self();
      char byte = 0;
      go_.write.close();
      enter_host(options_.host_of(r));
      // There was no go-ahead: canary-run gave up or died.
      if (!write_all(ready.value().write.fd(), &outer, sizeof outer) || !read_all(go_.read.fd(), &byte, 1))
        ::_exit(125);
      become_rank(r, join, state_path);
    }
    ::setpgid(rank.pid, rank.pid);  // in both processes, so that neither has to wait for the other
    rank.alive = true;
    ++alive_;
    // Ranks start one at a time, since they share the pipe.
    if (!read_all(ready.value().read.fd(), &rank.outer_pid, sizeof(pid_t)))
      return {CANARY_SYSTEM, "a rank died at its start"};
    if (bed_ != nullptr) rank.mounts = pids.open(rank.outer_pid, "ns/mnt");
  }
  return {};
}

std::vector<pid_t> Ranks::outer_pids() const {
  std::vector<pid_t> pids;
  for (const auto& rank : ranks_) pids.push_back(rank.outer_pid);
  return pids;
}

Status Ranks::release() {
  const std::string bytes(ranks_.size(), 'g');
  const bool written = write_all(go_.write.fd(), bytes.data(), bytes.size());
  go_ = {};
  return written ? Status() : system_error("starting the ranks", errno);
}

void Ranks::add_polled(std::vector<pollfd>* out) const {
  for (const auto& rank : ranks_) {
    for (const auto& stream : rank.streams) {
      if (stream.fd.open()) out->push_back({stream.fd.fd(), POLLIN, 0});
    }
  }
}

void Ranks::emit(int rank, Stream* stream, bool flush) {
  const std::string prefix = options_.prefix ? "[" + std::to_string(rank) + "] " : "";
  std::string out;
  std::size_t start = 0;
  const std::string& text = stream->partial;
  for (std::size_t end; (end = text.find('\n', start)) != std::string::npos; start = end + 1) {
    out += prefix;
    out.append(text, start, end + 1 - start);
  }
  if ((flush && start < text.size()) || text.size() - start > kLongestLine) {
    out += prefix;
    out.append(text, start, std::string::npos);
    out += '\n';
    start = text.size();
  }
  stream->partial.erase(0, start);
  if (!out.empty()) sink_(stream->to, out);
}

bool Ranks::read_once(int rank, Stream* stream) {
  char buffer[16 << 10];
  const ssize_t n = ::read(stream->fd.fd(), buffer, sizeof buffer);
  if (n > 0) {
    stream->partial.append(buffer, static_cast<std::size_t>(n));
    emit(rank, stream, false);
    return true;
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  emit(rank, stream, true);
  stream->fd.close();
  return false;
}

void Ranks::read_output(int fd) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    for (auto& stream : ranks_[r].streams) {
      if (stream.fd.fd() == fd) static_cast<void>(read_once(static_cast<int>(r), &stream));
    }
  }
}

void Ranks::drain_output() {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    for (auto& stream : ranks_[r].streams) {
      while (stream.fd.open() && read_once(static_cast<int>(r), &stream)) {
      }
      emit(static_cast<int>(r), &stream, true);
    }
  }
}

void Ranks::ended(pid_t pid, int status, Nanos now) {
  const auto at = std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return r.pid == pid && r.alive; });
  if (at == ranks_.end()) return;
  at->alive = false;
  --alive_;
  if (status == 0) return;
  const int number = static_cast<int>(at - ranks_.begin());
  const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  // Once the ranks are being stopped, how each one ends is no news.
  const bool by_us = phase_ == Phase::kTerminated || phase_ == Phase::kKilled;
  if (exit_code_ == 0) {
    failed_at_ = now;
    cause_struck_ = struck(status);
    exit_code_ = code;
  } else if (!by_us && struck(status) && !cause_struck_ && now - failed_at_ <= kSameCause) {
    cause_struck_ = true;
    exit_code_ = code;
  }
  if (by_us) return;
  std::string text = "rank " + std::to_string(number);
  if (options_.hosts > 0) text += " (host-" + std::to_string(options_.host_of(number)) + ")";
  if (WIFSIGNALED(status)) {
    const char* name = ::sigabbrev_np(WTERMSIG(status));
    text += " was killed by SIG" + std::string(name != nullptr ? name : std::to_string(WTERMSIG(status)).c_str());
    if (WCOREDUMP(status)) text += " (core dumped)";
  } else {
    text += " exited with status " + std::to_string(code);
  }
  if (phase_ == Phase::kRunning && !options_.keep_going && alive_ > 0) {
    phase_ = Phase::kGrace;
    deadline_ = now + options_.grace;
    const auto tenths = options_.grace.count / 100'000'000;
    text += "; the others are stopped in " + std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
  }
  say(text);
}

void Ranks::kill_all(int signal) {
  for (const auto& rank : ranks_) {
    if (rank.alive) ::kill(-rank.pid, signal);
  }
}

void Ranks::pass_on(int signal, Nanos now) {
  const bool ends = signal == SIGINT || signal == SIGTERM;
  if (ends && stopped_by_user_) {
    // The user has asked twice, so there is no more waiting.
    deadline_ = now;
    phase_ = Phase::kTerminated;
    return;
  }
  kill_all(signal);
  if (!ends) return;
  stopped_by_user_ = true;
  phase_ = Phase::kTerminated;
  deadline_ = now + options_.grace;
}

void Ranks::stop(int code, Nanos now) {
  if (exit_code_ == 0) exit_code_ = code;
  kill_all(SIGTERM);
  phase_ = Phase::kTerminated;
  deadline_ = now + kKillAfter;
}

void Ranks::tick(Nanos now) {
  if (now < deadline_) return;
  deadline_ = Nanos::max();
  if (phase_ == Phase::kGrace) {
    stop(exit_code_, now);
  } else if (phase_ == Phase::kTerminated) {
    kill_all(SIGKILL);
    phase_ = Phase::kKilled;
  }
}

}  // namespace canarynet::run

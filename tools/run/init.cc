#include "tools/run/init.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "base/clock.h"
#include "tools/run/control.h"
#include "tools/run/ranks.h"
#include "tools/run/state.h"

namespace canarynet::run {
namespace {

constexpr int kNoTestbed = 125;
constexpr int kTimedOut = 124;

// A port of 127.0.0.1 that is free now. It lies below the range from which the kernel picks, so that no outgoing
// connection takes it before rank 0 listens.
int free_port() {
  for (int attempt = 0; attempt < 200; ++attempt) {
    std::uint16_t random = 0;
    static_cast<void>(::getrandom(&random, sizeof random, 0));
    const int port = 20000 + random % 12000;
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(static_cast<std::uint16_t>(port));
    const Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(fd.fd(), reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0) return port;
  }
  return kJoinPort;
}

std::string milliseconds(Nanos t) {
  char text[32];
  ::snprintf(text, sizeof text, "%.2f ms", static_cast<double>(t.count) / 1e6);
  return text;
}

class Init {
 public:
  explicit Init(InitArguments a)
      : arguments_(std::move(a)),
        options_(*arguments_.options),
        ranks_(options_, [this](int fd, const std::string& text) { return put(fd, text); }) {}

  int run() {
    const Status s = prepare();
    if (!s.ok()) {
      if (!orphaned_) say(s.text());
      finish();
      return kNoTestbed;
    }
    serve();
    finish();
    return ranks_.exit_code();
  }

 private:
  Status prepare() {
    // A session of its own: a signal that kills canary-run's process group must not reach the process that cleans up.
    ::setsid();
    ::signal(SIGPIPE, SIG_IGN);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    // All other signals stay blocked as inherited; from outside only SIGKILL ends init.
    ::sigprocmask(SIG_BLOCK, &child, nullptr);
    children_ = Descriptor(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
    unsigned char byte = 0;
    if (!read_all(arguments_.lifeline.fd(), &byte, 1) || byte != kGo) {
      orphaned_ = true;
      return {CANARY_SYSTEM, "canary-run went away"};
    }
    // Lets the caller, without privileges, look into the namespaces through /proc.
    ::prctl(PR_SET_DUMPABLE, 1);
    ::prctl(PR_SET_NAME, "canary-run-init");
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (auto s = pids_.open(); !s.ok()) return s;
    state_.init_pid = pids_.self();
    if (arguments_.namespaces) {
      if (::mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return system_error("private mounts", errno);
      // Ranks find themselves under their own pids. Some containers refuse; ranks then see the outer pids.
      ::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr);
    }
    auto paths = make_state_paths(options_.state_path);
    if (!paths.ok()) return paths.status();
    paths_ = paths.take();
    const std::string report = paths_.folder + '\0' + paths_.state + '\0';
    if (!write_all(arguments_.report.fd(), report.data(), report.size()))
      return {CANARY_SYSTEM, "canary-run went away"};
    arguments_.report.close();
    return start();
  }

  Status start() {
    state_.options = &options_;
    state_.pid = arguments_.caller;
    if (options_.aliases()) {
      tell(std::to_string(options_.hosts) + " hosts with " + std::to_string(options_.nics) + " NICs (" +
           options_.topology_text + ") EMULATED by loopback addresses: " +
           (options_.rates.empty() ? "not paced" : "every connection paced to its NIC's " + rates_text(options_, 0)) +
           "; no NIC is shared, delayed or lossy");
    }
    if (options_.namespaces()) {
      std::vector<std::string> notes;
      const Nanos begin = clock_.now();
      auto bed = Testbed::build(options_, pids_, paths_.folder, &notes);
      if (!bed.ok()) return bed.status();
      bed_ = bed.take();
      state_.bed = bed_.get();
      for (const auto& note : notes) tell(note);
      tell(std::to_string(options_.hosts) + " hosts with " + std::to_string(options_.nics) + " NICs (" +
           options_.topology_text + (options_.ipv6 ? ", IPv6" : "") + ") up in " + milliseconds(clock_.now() - begin));
      if (options_.relay) measure();
    }
    const int port = options_.port > 0 ? options_.port : bed_ ? kJoinPort : free_port();
    state_.join = "tcp://" + (bed_ ? bed_->join_address() : "127.0.0.1") + ":" + std::to_string(port);
    if (auto s = control_.listen(paths_.control); !s.ok()) return s;
    ranks_.attach(bed_.get());
    if (auto s = ranks_.spawn(pids_, state_.join, paths_.state); !s.ok()) return s;
    state_.ranks = ranks_.outer_pids();
    if (auto s = write_state(state_, paths_); !s.ok()) return s;
    began_ = clock_.now();
    return ranks_.release();
  }

  void measure() {
    const auto rtt = bed_->round_trip();
    if (!rtt.ok()) {
      say(rtt.status().text());
      return;
    }
    state_.round_trip = rtt.value();
    const Nanos asked = options_.delays.at(0, 0, Nanos{}) + options_.delays.at(1, 0, Nanos{});
    tell("RTT over nic0: " + milliseconds(rtt.value().min) + " least, " + milliseconds(rtt.value().median) +
         " median; " + milliseconds(asked) + " asked for");
  }

  void serve() {
    const Nanos limit = options_.timeout > Nanos{} ? clock_.now() + options_.timeout : Nanos::max();
    bool timed_out = false;
    std::vector<pollfd> polled;
    while (ranks_.any_alive() && !orphaned_) {
      polled.assign({{arguments_.lifeline.fd(), POLLIN, 0}, {children_.fd(), POLLIN, 0}, {control_.fd(), POLLIN, 0}});
      ranks_.add_polled(&polled);
      const Nanos next = std::min({ranks_.next_tick(), timed_out ? Nanos::max() : limit, next_step()});
      int wait = -1;
      if (next != Nanos::max())
        wait = static_cast<int>(std::clamp<std::int64_t>((next - clock_.now()).count / 1'000'000 + 1, 0, 60'000));
      if (::poll(polled.data(), polled.size(), wait) < 0 && errno != EINTR) break;
      if (polled[0].revents != 0) on_lifeline();
      for (std::size_t i = 3; i < polled.size(); ++i) {
        if (polled[i].revents != 0) ranks_.read_output(polled[i].fd);
      }
      if (polled[1].revents != 0) reap();
      if (polled[2].revents != 0) control_.serve([this](const LinkChange& change) { return change_link(change); });
      while (next_step() <= clock_.now()) play(options_.script[played_++]);
      if (!timed_out && clock_.now() >= limit) {
        timed_out = true;
        say("the ranks did not end within --timeout; stopping them");
        ranks_.stop(kTimedOut, clock_.now());
      }
      ranks_.tick(clock_.now());
    }
  }

  void on_lifeline() {
    unsigned char byte = 0;
    if (read_all(arguments_.lifeline.fd(), &byte, 1)) {
      if (byte == SIGINT || byte == SIGTERM) impatient_ = ++stop_requests_ > 1;
      ranks_.pass_on(byte, clock_.now());
    } else {
      orphaned_ = true;
    }
  }

  void reap() {
    signalfd_siginfo ignored;
    while (::read(children_.fd(), &ignored, sizeof ignored) > 0) {
    }
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) ranks_.ended(pid, status, clock_.now());
  }

  Nanos next_step() const {
    return played_ < options_.script.size() ? began_ + options_.script[played_].at : Nanos::max();
  }

  void play(const ScriptStep& step) {
    const Status s = change_link(step.change);
    if (s.ok()) {
      tell("--script: " + step.text + " is done, " + milliseconds(clock_.now() - began_) + " after the ranks began");
    } else {
      say("--script: " + step.text + ": " + s.text());
    }
  }

  Status change_link(const LinkChange& change) {
    if (options_.aliases())
      return {CANARY_INVALID_ARGUMENT, "NICs emulated by loopback addresses can't be changed while the ranks run"};
    if (!bed_) return {CANARY_INVALID_ARGUMENT, "these ranks are plain processes: start with --hosts to have links"};
    if (auto s = bed_->apply(change); !s.ok()) return s;
    return write_state(state_, paths_);
  }

  void finish() {
    if (::getpid() == 1) {
      ::kill(-1, SIGKILL);  // grandchildren, holders, the relay
    } else {
      end_descendants();
    }
    if (!orphaned_) ranks_.drain_output();
    if (bed_ && bed_->relay_losses() > 0 && !orphaned_) {
      tell("the delay relay lost " + std::to_string(bed_->relay_losses()) + " packets (too slow, or a NIC was down)");
    }
    paths_.remove();
  }

  // Without a PID namespace it ends the ranks' groups, then every orphan that falls to us, the subreaper.
  void end_descendants() {
    ranks_.kill_all(SIGKILL);
    for (int round = 0; round < 200; ++round) {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      std::istringstream children(read_text("/proc/thread-self/children"));
      pid_t pid = 0;
      int found = 0;
      for (; children >> pid; ++found) ::kill(pid, SIGKILL);
      if (found == 0) return;
      ::usleep(5000);
    }
  }

  // A stalled reader of our output must not keep us from seeing that canary-run is gone or that the user has had
  // enough.
  bool put(int fd, const std::string& text) {
    std::size_t at = 0;
    while (at < text.size() && !orphaned_ && !impatient_) {
      pollfd p[2] = {{fd, POLLOUT, 0}, {arguments_.lifeline.fd(), POLLIN, 0}};
      if (::poll(p, 2, -1) < 0) continue;
      if (p[1].revents != 0) on_lifeline();
      if (p[0].revents == 0) continue;
      // A pipe that polls writable takes this much without blocking.
      const ssize_t n = ::write(fd, text.data() + at, std::min<std::size_t>(text.size() - at, 4096));
      if (n < 0 && errno != EINTR && errno != EAGAIN) return false;
      if (n > 0) at += static_cast<std::size_t>(n);
    }
    return at == text.size();
  }
  void say(const std::string& line) { put(2, "canary-run: " + line + "\n"); }
  void tell(const std::string& line) {
    if (!options_.quiet) say(line);
  }

  InitArguments arguments_;
  const RunOptions& options_;
  SystemClock clock_;
  OuterPids pids_;
  StatePaths paths_;
  RunState state_;
  std::unique_ptr<Testbed> bed_;
  ControlServer control_;
  Ranks ranks_;
  Descriptor children_;
  Nanos began_{};
  std::size_t played_ = 0;  // steps of the script
  bool orphaned_ = false;
  bool impatient_ = false;
  int stop_requests_ = 0;
};

}  // namespace

int run_init(InitArguments arguments) { return Init(std::move(arguments)).run(); }

}  // namespace canarynet::run

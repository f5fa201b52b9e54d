// canary-run: starts the ranks of a job on this machine. This process only starts init, passes signals on and waits;
// see init.h for the rest. `canary-run --help` and docs/canary-run.md say how to use it.
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <string>
#include <vector>

#include "tools/environment.h"
#include "tools/run/control.h"
#include "tools/run/init.h"
#include "tools/run/options.h"
#include "tools/run/state.h"

namespace canarynet::run {
namespace {

constexpr int kWrongArguments = 2;
constexpr int kNoTestbed = 125;

int fail(int code, const std::string& text) {
  ::fprintf(stderr, "canary-run: %s\n", text.c_str());
  if (code == kWrongArguments) ::fprintf(stderr, "canary-run: --help shows the options\n");
  return code;
}

// Forks into new namespaces: returns 0 in the child, which is then their first process.
pid_t fork_into(unsigned long flags) { return static_cast<pid_t>(::syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0)); }

// Maps the caller inside a user namespace: to root if links must be configured, else to itself.
Status map_user(pid_t pid, bool as_root) {
  const std::string proc = "/proc/" + std::to_string(pid) + "/";
  const auto line = [&](unsigned id) { return std::to_string(as_root ? 0 : id) + " " + std::to_string(id) + " 1\n"; };
  static_cast<void>(write_file(proc + "setgroups", "deny"));  // older kernels have no such file, and need none
  if (auto s = write_file(proc + "uid_map", line(::geteuid())); !s.ok()) return s;
  return write_file(proc + "gid_map", line(::getegid()));
}

struct Started {
  pid_t pid = -1;
  bool user_namespace = false;
  bool namespaces = true;
};

// Uses namespaces by privilege, else in a user namespace of our own; plain processes do without if neither is allowed.
Started start_init(bool hosts) {
  constexpr unsigned long kBoth = CLONE_NEWPID | CLONE_NEWNS;
  Started s;
  s.pid = fork_into(kBoth);
  if (s.pid >= 0) return s;
  s.user_namespace = true;
  s.pid = fork_into(kBoth | CLONE_NEWUSER);
  if (s.pid >= 0 || hosts) return s;
  s.user_namespace = s.namespaces = false;
  s.pid = ::fork();
  return s;
}

StatePaths read_report(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  const auto middle = text.find('\0');
  if (middle == std::string::npos || text.back() != '\0') return {};
  StatePaths paths;
  paths.folder = text.substr(0, middle);
  paths.state = text.substr(middle + 1, text.size() - middle - 2);
  paths.control = paths.folder + "/control";
  return paths;
}

int run(const RunOptions& options) {
  sigset_t passed;
  sigemptyset(&passed);
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) sigaddset(&passed, s);
  ::sigprocmask(SIG_BLOCK, &passed, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);  // an inherited SIG_IGN would take init's status from us
  const pid_t self = ::getpid();
  const Descriptor signals(::signalfd(-1, &passed, SFD_CLOEXEC));
  auto lifeline = make_pipe(), report = make_pipe();
  if (!lifeline.ok()) return fail(kNoTestbed, lifeline.status().text());
  if (!report.ok()) return fail(kNoTestbed, report.status().text());

  const Started init = start_init(options.namespaces());
  if (init.pid < 0) {
    return fail(kNoTestbed, std::string("--hosts needs root or user namespaces (kernel.unprivileged_userns_clone, "
                                        "user.max_user_namespaces): ") +
                                strerror(errno));
  }
  if (init.pid == 0) {
    lifeline.value().write.close();
    report.value().read.close();
    InitArguments arguments;
    arguments.options = &options;
    arguments.caller = self;
    arguments.lifeline = std::move(lifeline.value().read);
    arguments.report = std::move(report.value().write);
    arguments.namespaces = init.namespaces;
    ::_exit(run_init(std::move(arguments)));
  }
  lifeline.value().read.close();
  report.value().write.close();
  if (init.user_namespace) {
    if (const Status s = map_user(init.pid, options.namespaces()); !s.ok()) {
      lifeline.value().write.close();
      ::waitpid(init.pid, nullptr, 0);
      return fail(kNoTestbed, "this user's namespaces: " + s.text());
    }
  }
  if (!init.namespaces && !options.quiet) {
    ::fprintf(stderr, "canary-run: no PID namespace here: ranks' children may outlive canary-run in rare cases\n");
  }
  write_all(lifeline.value().write.fd(), &kGo, 1);
  const StatePaths paths = read_report(report.value().read.fd());

  for (;;) {
    signalfd_siginfo info;
    if (!read_all(signals.fd(), &info, sizeof info)) continue;
    if (info.ssi_signo != SIGCHLD) {
      const auto number = static_cast<unsigned char>(info.ssi_signo);
      write_all(lifeline.value().write.fd(), &number, 1);
      continue;
    }
    int status = 0;
    if (::waitpid(init.pid, &status, WNOHANG) != init.pid) continue;
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    paths.remove();
    return fail(128 + WTERMSIG(status), "the init process was killed by signal " + std::to_string(WTERMSIG(status)));
  }
}

int link_command(const std::vector<std::string>& arguments) {
  if (arguments.size() < 3) {
    return fail(kWrongArguments, "link takes the state file and at least one change such as host=1,nic=0,rate=125mbit");
  }
  const Status s = request_changes(arguments[1], {arguments.begin() + 2, arguments.end()});
  if (s.ok()) return 0;
  return fail(s.code() == CANARY_INVALID_ARGUMENT ? kWrongArguments : 1, s.text());
}

}  // namespace
}  // namespace canarynet::run

int main(int argc, char** argv) {
  using namespace canarynet::run;
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (!arguments.empty() && arguments[0] == "link") return link_command(arguments);
    const auto parsed = parse_run_options(arguments);
    if (!parsed.ok()) return fail(kWrongArguments, parsed.status().text());
    if (parsed.value().print_help) {
      ::fputs(parsed.value().help.c_str(), stdout);
      return 0;
    }
    canarynet::tools::warn_of_environment("canary-run");
    return run(parsed.value().options);
  } catch (const std::exception& e) {  // memory ran out
    ::fprintf(stderr, "canary-run: %s\n", e.what());
    return kNoTestbed;
  }
}

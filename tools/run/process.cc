#include "tools/run/process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace canarynet::run {
namespace {

std::string errno_text(const std::string& what) { return what + ": " + strerror(errno); }

// Reads everything until EOF, at most 4 KiB: error texts of helpers.
std::string drain(int fd) {
  std::string text;
  char buffer[1024];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (text.size() < 4096) text.append(buffer, static_cast<std::size_t>(n));
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

Result<Pipe> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return system_error("pipe", errno);
  return Pipe{Descriptor(fds[0]), Descriptor(fds[1])};
}

bool write_all(int fd, const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::write(fd, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool read_all(int fd, void* data, std::size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = ::read(fd, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

Status write_file(const std::string& path, const std::string& text) {
  const Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.open() || !write_all(fd.fd(), text.data(), text.size())) return system_error(path, errno);
  return {};
}

std::string read_text(const std::string& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  for (ssize_t n; fd.open() && (n = ::read(fd.fd(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  return text;
}

Status OuterPids::open() {
  proc_ = Descriptor(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  return proc_.open() ? Status() : system_error("/proc", errno);
}

pid_t OuterPids::self() const {
  char text[32] = {};
  if (::readlinkat(proc_.fd(), "self", text, sizeof text - 1) > 0) return static_cast<pid_t>(std::atoi(text));
  return ::getpid();
}

Descriptor OuterPids::open(pid_t outer, const std::string& file) const {
  return Descriptor(::openat(proc_.fd(), (std::to_string(outer) + "/" + file).c_str(), O_RDONLY | O_CLOEXEC));
}

void become_child() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

Status run_in_network(int network_fd, const std::function<std::string()>& body) {
  auto pipe = make_pipe();
  if (!pipe.ok()) return pipe.status();
  const pid_t pid = ::fork();
  if (pid < 0) return system_error("fork", errno);
  if (pid == 0) {
    become_child();
    const std::string error = ::setns(network_fd, CLONE_NEWNET) != 0 ? errno_text("setns") : body();
    write_all(pipe.value().write.fd(), error.data(), error.size());
    ::_exit(error.empty() ? 0 : 1);
  }
  pipe.value().write.close();
  const std::string error = drain(pipe.value().read.fd());
  const int status = wait_for(pid);
  if (status == 0) return {};
  return {CANARY_SYSTEM, error.empty() ? "a helper ended with status " + std::to_string(status) : error};
}

Status run_program(int network_fd, const std::vector<std::string>& argv, const std::string& input) {
  const Descriptor in(::memfd_create("input", MFD_CLOEXEC));
  if (!in.open() || !write_all(in.fd(), input.data(), input.size()) || ::lseek(in.fd(), 0, SEEK_SET) != 0) {
    return system_error("memfd_create", errno);
  }
  const Status status = run_in_network(network_fd, [&]() -> std::string {
    auto errors = make_pipe();
    if (!errors.ok()) return errors.status().text();
    const pid_t pid = ::fork();
    if (pid < 0) return errno_text("fork");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(in.fd(), 0);
      ::dup2(errors.value().write.fd(), 1);
      ::dup2(errors.value().write.fd(), 2);
      // ip and tc lie in /usr/sbin, which a plain user's PATH may lack.
      const char* path = ::getenv("PATH");
      ::setenv("PATH", (std::string(path ? path : "/usr/bin:/bin") + ":/usr/sbin:/sbin").c_str(), 1);
      std::vector<char*> args;
      args.reserve(argv.size() + 1);
      for (const auto& a : argv) args.push_back(const_cast<char*>(a.c_str()));
      args.push_back(nullptr);
      ::execvp(args[0], args.data());
      const std::string error = errno_text("cannot run it") + " (Debian package iproute2)";
      write_all(2, error.data(), error.size());
      ::_exit(127);
    }
    errors.value().write.close();
    std::string output = drain(errors.value().read.fd());
    const int code = wait_for(pid);
    if (code == 0) return {};
    return output.empty() ? "status " + std::to_string(code) : output;
  });
  return status.ok() ? status : status.wrap(argv[0]);
}

}  // namespace canarynet::run

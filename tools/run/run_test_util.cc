#include "tools/run/run_test_util.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace canarynet::run {
namespace fs = std::filesystem;

bool eventually(const std::function<bool()>& condition, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    if (condition()) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    ::usleep(5000);
  }
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

double number_after(const std::string& text, const std::string& key) {
  const auto at = text.find(key);
  return at == std::string::npos ? std::nan("") : std::atof(text.c_str() + at + key.size());
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

Job::Job(const std::vector<std::string>& argv, const Options& options) {
  char folder[] = "/tmp/run_test.XXXXXX";
  folder_ = ::mkdtemp(folder);
  if (options.user != 0 && ::chown(folder_.c_str(), options.user, options.user) != 0) ::perror("chown");
  pid_ = ::fork();
  if (pid_ != 0) return;
  if (options.own_group) ::setpgid(0, 0);
  const int out = ::open((folder_ + "/out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  const int err = ::open((folder_ + "/err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::dup2(out, 1);
  ::dup2(err, 2);
  ::setenv("TMPDIR", folder_.c_str(), 1);
  for (const char* name : {"CANARY_SOCKET_IFNAME", "CANARY_HOST_ID", "CANARY_INSECURE"}) ::unsetenv(name);
  for (const auto& e : options.environment) ::putenv(::strdup(e.c_str()));
  if (options.user != 0) {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(options.user, options.user, options.user) != 0 ||
        ::setresuid(options.user, options.user, options.user) != 0) {
      ::_exit(99);
    }
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed takes its jobs along
  std::vector<char*> args;
  args.reserve(argv.size() + 1);
  for (const auto& a : argv) args.push_back(const_cast<char*>(a.c_str()));
  args.push_back(nullptr);
  ::execvp(args[0], args.data());
  ::_exit(98);
}

Job::~Job() {
  if (!ended_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    eventually([&] { return leftover_files().empty(); }, 5);
  }
  fs::remove_all(folder_);
}

std::string Job::out() const { return slurp(folder_ + "/out"); }
std::string Job::err() const { return slurp(folder_ + "/err"); }

Ended Job::wait(double seconds) {
  int status = 0;
  const bool done = eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, seconds);
  if (!done) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
  }
  ended_ = true;
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), out(), err()};
}

std::string state_path_in(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().rfind("canary-run.", 0) == 0) return entry.path().string() + "/state.json";
  }
  return "";
}

std::string Job::state() {
  std::string text;
  eventually([&] {
    const std::string path = state_path_in(folder_);
    if (!path.empty()) text = slurp(path);
    siginfo_t gone{};
    return !text.empty() ||
           (::waitid(P_PID, static_cast<id_t>(pid_), &gone, WEXITED | WNOHANG | WNOWAIT) == 0 && gone.si_pid != 0);
  });
  return text;
}

std::set<std::string> Job::leftover_files() const {
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (name != "out" && name != "err") files.insert(name);
  }
  return files;
}

Ended run(const std::vector<std::string>& argv, const Job::Options& options) { return Job(argv, options).wait(); }
Ended run(const std::vector<std::string>& argv) { return Job(argv).wait(); }

std::vector<std::string> canary_run(const std::string& arguments, const std::string& script) {
  std::vector<std::string> argv = {CANARY_RUN};
  std::istringstream words(arguments);
  for (std::string word; words >> word;) argv.push_back(word);
  argv.insert(argv.end(), {"--", "sh", "-c", script});
  return argv;
}

std::vector<pid_t> pids_in(const std::string& state, const std::string& section) {
  std::vector<pid_t> pids;
  const auto start = state.find("\"" + section + "\": [");
  if (start == std::string::npos) return pids;
  const auto stop = state.find("\n  \"", start + 1);
  const std::string part = state.substr(start, stop - start);
  const std::string key = "\"pid\": ";
  for (auto at = part.find(key); at != std::string::npos; at = part.find(key, at + 1)) {
    pids.push_back(static_cast<pid_t>(number_after(part.substr(at), key)));
  }
  return pids;
}

namespace {

template <typename Body>
void each_process(Body body) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (!name.empty() && std::all_of(name.begin(), name.end(), ::isdigit))
      body(static_cast<pid_t>(std::stol(name)), entry.path().string());
  }
}

std::string network_of(const std::string& process) {
  std::error_code error;
  const auto link = fs::read_symlink(process + "/ns/net", error);
  return error ? "" : link.string();
}

// Names of interfaces that canary-run gives, found where it should never put them: nic0, ctl0, sw1_0, p0_0, r…, b…, c0.
std::set<std::string> stray_interfaces() {
  std::set<std::string> found;
  for (const auto& line : lines_of(slurp("/proc/net/dev"))) {
    const auto start = line.find_first_not_of(' ');
    const std::string name = line.substr(start, line.find(':') - start);
    const std::string letters = name.substr(0, name.find_first_of("0123456789"));
    if (letters == name) continue;
    for (const char* ours : {"nic", "ctl", "sw", "p", "r", "b", "c"}) {
      if (letters == ours) found.insert(name);
    }
  }
  return found;
}

}  // namespace

Census::Census() {
  static int count = 0;
  mark_ = "RUN_TEST_MARK=" + std::to_string(::getpid()) + "_" + std::to_string(++count) + "_";
}

std::vector<pid_t> Census::processes() {
  std::vector<pid_t> found;
  const std::string own = network_of("/proc/self");
  each_process([&](pid_t pid, const std::string& path) {
    if (slurp(path + "/environ").find(mark_) == std::string::npos) return;
    found.push_back(pid);
    const std::string network = network_of(path);
    if (!network.empty() && network != own) namespaces_.insert(network);
  });
  return found;
}

std::string Census::leftovers() {
  std::string text;
  eventually(
      [&] {
        text.clear();
        for (const pid_t pid : processes()) text += "process " + std::to_string(pid) + "\n";
        each_process([&](pid_t pid, const std::string& path) {
          if (namespaces_.count(network_of(path)) > 0) text += "process " + std::to_string(pid) + " in a host\n";
        });
        for (const auto& i : stray_interfaces()) text += "interface " + i + "\n";
        return text.empty();
      },
      5);
  return text;
}

}  // namespace canarynet::run

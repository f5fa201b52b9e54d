// Starts canary-run as users do, and counts what it leaves behind.
#pragma once

#include <sys/types.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace canarynet::run {

struct Ended {
  int code = -1;  // exit status, or 128 + signal
  std::string out, err;
};

// A program in the background, with its output in files of its own folder, which is also its TMPDIR and is removed with
// the job.
class Job {
 public:
  struct Options {
    uid_t user = 0;                        // 0: as the test
    bool own_group = false;                // leads a process group
    std::vector<std::string> environment;  // NAME=value
  };
  Job(const std::vector<std::string>& argv, const Options& options);
  explicit Job(const std::vector<std::string>& argv) : Job(argv, Options{}) {}
  ~Job();

  pid_t pid() const { return pid_; }
  const std::string& folder() const { return folder_; }
  std::string out() const;
  std::string err() const;
  // Waits for the end; after `seconds` it kills the job (code 137).
  Ended wait(double seconds = 30);
  // The state file's text, once the ranks run; "" if the job ended before.
  std::string state();
  // Files that canary-run made in its TMPDIR and that are still there.
  std::set<std::string> leftover_files() const;

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  std::string folder_;
};

Ended run(const std::vector<std::string>& argv, const Job::Options& options);
Ended run(const std::vector<std::string>& argv);
// canary-run with these arguments, split at spaces, and `sh -c script` as the ranks' command.
std::vector<std::string> canary_run(const std::string& arguments, const std::string& script);

// The pids of the state file's "hosts" or "ranks", in order.
std::vector<pid_t> pids_in(const std::string& state, const std::string& section);
std::string state_path_in(const std::string& folder);

// Finds everything of a job that the machine can still show: processes with the mark in their environment or in a
// network namespace where such a process was seen, and interfaces of canary-run's names in the test's own namespace.
class Census {
 public:
  Census();
  // "NAME=value" for the job's environment.
  const std::string& mark() const { return mark_; }
  // The processes that carry the mark now; remembers their namespaces.
  std::vector<pid_t> processes();
  // Namespaces that processes() has met, besides the test's own.
  std::size_t namespaces() const { return namespaces_.size(); }
  // Returns "" if nothing is left, after waiting up to 5 s for the kernel's clean-up. Else says what there still is.
  std::string leftovers();

 private:
  std::string mark_;
  std::set<std::string> namespaces_;
};

// The number after the first `key` in `text`; NaN if there is none.
double number_after(const std::string& text, const std::string& key);
// Polls until `condition`, at most `seconds`.
bool eventually(const std::function<bool()>& condition, double seconds = 10);
std::vector<std::string> lines_of(const std::string& text);
std::string slurp(const std::string& path);

}  // namespace canarynet::run

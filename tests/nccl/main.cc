// canary-nccl-harness: plays NCCL on a net plugin, without a GPU and without NCCL. tests/nccl/README.md says how.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tests/nccl/modes.h"

namespace nccltest {
namespace {

int run_rank(Options options, int rank) {
  options.rank = rank;
  set_log(rank, options.log_level);
  std::signal(SIGPIPE, SIG_IGN);  // as in any process that runs NCCL under Python
  return run_mode(options);
}

// Runs all ranks as children. The exit status is 0 if every rank's is (the victim of `kill` must have been killed).
int run_ranks(Options options) {
  char folder[] = "/tmp/canary-nccl.XXXXXX";
  if (options.meet.empty()) {
    if (!mkdtemp(folder)) {
      std::perror(folder);
      return 2;
    }
    options.meet = folder;
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    // exit, not _exit: sanitizers report at the end.
    if (child == 0) std::exit(run_rank(options, rank));
    children.push_back(child);
  }
  int status = 0;
  for (int rank = 0; rank < options.ranks; ++rank) {
    int ended = 0;
    if (waitpid(children[static_cast<std::size_t>(rank)], &ended, 0) < 0) {
      status = 1;
      continue;
    }
    const bool killed = WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL;
    const bool right =
        options.mode == "kill" && rank == options.victim ? killed : WIFEXITED(ended) && WEXITSTATUS(ended) == 0;
    if (right) continue;
    if (WIFSIGNALED(ended)) std::fprintf(stderr, "rank %d ended by signal %d\n", rank, WTERMSIG(ended));
    status = 1;
  }
  if (options.meet == folder) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
  return status;
}

}  // namespace
}  // namespace nccltest

int main(int argc, char** argv) {
  using namespace nccltest;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      std::fputs(help_text().c_str(), stdout);
      return 0;
    }
  }
  Options options;
  std::string error;
  if (!parse_options(arguments, &options, &error)) {
    std::fprintf(stderr, "canary-nccl-harness: %s\n", error.c_str());
    return 2;
  }
  if (options.mode == "tuner" || options.mode == "list") return run_rank(options, options.rank < 0 ? 0 : options.rank);
  return options.rank >= 0 ? run_rank(options, options.rank) : run_ranks(options);
}

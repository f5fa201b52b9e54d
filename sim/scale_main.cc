// canary-sim-scale [ENGINES...]: prints the table of docs/benchmarks.md, "Jobs of many processes". Each line is one
// job, in a process of its own, so that its memory is its own.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "sim/scale.h"

namespace {

using canarynet::ScaleFigures;
using canarynet::ScaleOptions;

bool print(const ScaleOptions& options) {
  const ScaleFigures f = canarynet::measure_scale(options);
  if (!f.wrong.empty()) {
    std::printf("%d engines, %s: %s\n", options.engines, options.algo.c_str(), f.wrong.c_str());
    return false;
  }
  std::printf("| %5d | %-16s | %7.1f ms | %6.2f s | %8.0f KiB | %5.1f (%llu) | %6.1f (%llu) | %8.1f ms | %6.2f s |\n",
              options.engines, options.algo.c_str(), static_cast<double>(f.join.count) * 1e-6, f.join_seconds,
              f.bytes_per_engine / 1024, f.joined.mean, static_cast<unsigned long long>(f.joined.most), f.reduced.mean,
              static_cast<unsigned long long>(f.reduced.most), static_cast<double>(f.reduce.count) * 1e-6,
              f.reduce_seconds);
  return true;
}

// Returns false if the job failed.
bool in_a_process_of_its_own(const ScaleOptions& options) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool ok = print(options);
    std::fflush(stdout);
    ::_exit(ok ? 0 : 1);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {64, 256, 1024};
  std::printf(
      "| engines | plan | join, virtual | join, real | memory per engine | channels after the join: mean (most) | "
      "after an all-reduce | it took, virtual | real |\n|---|---|---|---|---|---|---|---|---|\n");
  bool ok = true;
  for (const int engines : sizes) {
    if (engines < 2) {
      std::fprintf(stderr, "canary-sim-scale: takes numbers of engines, 2 or more\n");
      return 2;
    }
    for (const char* algo : {"ring", "halving_doubling", "hierarchical"}) {
      ScaleOptions options;
      options.engines = engines;
      options.algo = algo;
      if (options.algo == "hierarchical") options.engines_per_machine = 8;
      ok = in_a_process_of_its_own(options) && ok;
    }
  }
  return ok ? 0 : 1;
}

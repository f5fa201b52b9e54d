#include "examples/train_fashion_mnist/sync_report.h"

#include <algorithm>

#include "examples/train_fashion_mnist/traffic.h"

namespace train {
namespace {

// Of all workers together.
double iterations_per_second(const std::vector<WorkerFigures>& workers) {
  std::int64_t iterations = 0;
  double seconds = 0;
  for (const WorkerFigures& worker : workers) {
    iterations += worker.iterations;
    seconds = std::max(seconds, worker.seconds);
  }
  return seconds > 0 ? static_cast<double>(iterations) / seconds : 0;
}

template <typename Values, typename Text>
std::string joined(const Values& values, const char* between, const Text& text) {
  std::string all;
  for (const auto& value : values) all += (all.empty() ? "" : between) + text(value);
  return all;
}

}  // namespace

std::string sync_text(const Options& options, const SyncFigures& figures, const TestFigures& test) {
  std::string text;
  for (const int rank : figures.died) text += format("rank %d was lost; what it did is not known\n", rank);
  text += format("%s, %zu ranks: %.2f iterations per second together\n", options.sync.c_str(), figures.workers.size(),
                 iterations_per_second(figures.workers));
  for (const WorkerFigures& worker : figures.workers) {
    text += format(
        "  rank %-3d %6d iterations in %.1f s, loss %.4f, %4.1f %% of the time in exchanges (at once at most %.3f s)",
        static_cast<int>(worker.rank), static_cast<int>(worker.iterations), worker.seconds, worker.loss,
        worker.seconds > 0 ? 100 * worker.waited / worker.seconds : 0, worker.longest_wait);
    text += worker.exchanges > 0 ? format(", %d means, of which %d failed\n", static_cast<int>(worker.exchanges),
                                          static_cast<int>(worker.failed))
                                 : format(", %d pulls, %d gradients of colayers dropped\n",
                                          static_cast<int>(worker.pulls), static_cast<int>(worker.dropped));
    if (worker.went_on > 0 || worker.was_late > 0) {
      text += format("           %d steps went on without somebody, %d of its own were too late\n",
                     static_cast<int>(worker.went_on), static_cast<int>(worker.was_late));
    }
  }
  text += format("test accuracy %.2f %% (%lld of %zu)\n", 100 * test.accuracy(), static_cast<long long>(test.correct),
                 test.images);
  return text +
         format("the ranks were %.2g apart before they took their mean; parameters %s on all ranks (hash %016llx)\n",
                figures.apart, test.identical ? "bit-identical" : "NOT THE SAME",
                static_cast<unsigned long long>(test.hash));
}

std::string sync_json(const Options& options, const SyncFigures& figures, const TestFigures& test) {
  const auto worker_json = [](const WorkerFigures& w) {
    return format(
        "{\"rank\": %d, \"iterations\": %d, \"seconds\": %.3f, \"waited_s\": %.3f, \"longest_wait_s\": %.4f, "
        "\"pulls\": %d, \"dropped\": %d, \"went_on\": %d, \"was_late\": %d, \"exchanges\": %d, \"failed\": %d, "
        "\"loss\": %.5f}",
        static_cast<int>(w.rank), static_cast<int>(w.iterations), w.seconds, w.waited, w.longest_wait,
        static_cast<int>(w.pulls), static_cast<int>(w.dropped), static_cast<int>(w.went_on),
        static_cast<int>(w.was_late), static_cast<int>(w.exchanges), static_cast<int>(w.failed), w.loss);
  };
  return "{\"mode\": \"sync\", \"sync\": \"" + options.sync + "\", \"network\": \"" + options.network + "\",\n" +
         format(" \"test_accuracy\": %.4f, \"identical\": %s, \"parameters_hash\": \"%016llx\", \"apart\": %.3g,\n",
                test.accuracy(), test.identical ? "true" : "false", static_cast<unsigned long long>(test.hash),
                figures.apart) +
         " \"died\": [" + joined(figures.died, ", ", [](int rank) { return std::to_string(rank); }) +
         format("],\n \"iterations_per_second\": %.3f, \"workers\": [\n  ", iterations_per_second(figures.workers)) +
         joined(figures.workers, ",\n  ", worker_json) + "]}\n";
}

}  // namespace train

// canary-perf: measures and checks collectives. The columns and sizes are those of nccl-tests.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>

#include "tools/environment.h"
#include "tools/perf/measure.h"
#include "tools/perf/options.h"
#include "tools/perf/report.h"
#include "tools/perf/series.h"

namespace canarynet::perf {
namespace {

constexpr int kFailed = 1, kBadArguments = 2;

std::unique_ptr<Series> open_series(const PerfOptions& options, int rank) {
  if (rank % options.threads != 0) return nullptr;  // the NICs are the process's
  std::string path = options.series_path;
  const auto mark = path.find("%r");
  if (path.empty() || (mark == std::string::npos && rank != 0)) return nullptr;
  if (mark != std::string::npos) path.replace(mark, 2, std::to_string(rank));
  return std::make_unique<Series>(path);
}

// Rank 0's output: the table as it grows, the JSON at the end.
class Output {
 public:
  Output(const PerfOptions& options, int rank, int ranks)
      : options_(options),
        prints_(rank == 0),
        table_(prints_ && options.json_path != "-"),
        json_(json_run(options, ranks)) {
    if (table_) put(table_head(options, ranks));
  }
  void titles(Op op) {
    if (table_) put(table_titles(op));
  }
  void row(const Row& row) {
    json_["results"].push_back(json_row(row, options_));
    if (table_) put(table_row(row, options_));
  }
  void error(const std::string& text) { json_["error"] = text; }
  bool finish() {
    if (!prints_ || options_.json_path.empty()) return true;
    if (options_.json_path == "-") return put(json_.dump(1) + "\n"), true;
    std::ofstream file(options_.json_path);
    file << json_.dump(1) << '\n';
    file.close();
    if (!file) std::fprintf(stderr, "canary-perf: --json=%s: can't be written\n", options_.json_path.c_str());
    return static_cast<bool>(file);
  }

 private:
  static void put(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }
  const PerfOptions& options_;
  bool prints_, table_;
  nlohmann::json json_;
};

int complain(int rank, const std::string& text, int status) {
  std::fprintf(stderr, "canary-perf: rank %d: %s\n", rank, text.c_str());
  return status;
}

int run(Context& context, const PerfOptions& options) {
  const int rank = context.rank();
  if (options.root >= context.world_size()) {
    return complain(
        rank,
        "--root " + std::to_string(options.root) + ": there are " + std::to_string(context.world_size()) + " ranks",
        kBadArguments);
  }
  auto series = open_series(options, rank);
  Output output(options, rank, context.world_size());
  int status = 0;
  try {
    for (const Op op : options.ops) {
      output.titles(op);
      const auto take = [&](const Row& row) {
        output.row(row);
        for (const auto& fault : row.faults) {
          complain(rank, std::string(name_of(op)) + " of " + std::to_string(row.bytes) + " bytes: " + fault, kFailed);
        }
        if (row.failed) status = kFailed;
      };
      if (options.order != Order::kBlocks && op != Op::kBarrier) {
        for (const Row& row : measure_mixed(context, options, op, series.get())) take(row);
        continue;
      }
      const auto sizes = op == Op::kBarrier ? std::vector<std::uint64_t>{0} : sizes_of(options);
      for (const auto bytes : sizes) take(measure(context, options, op, bytes, series.get()));
    }
  } catch (const std::exception& error) {
    output.error(error.what());
    status = complain(rank, error.what(), kFailed);
  }
  return output.finish() ? status : kFailed;
}

// A number that canary-run, or another starter of the processes, must have set.
std::optional<int> told(const char* name) {
  const char* text = std::getenv(name);
  int value = 0;
  if (text == nullptr) return {};
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != '\0' || value < 0 || value > 65535) return {};
  return value;
}

// Lives one rank's life; returns its exit status.
int live(const PerfOptions& options, const JoinOptions& join, const std::string& name) {
  try {
    Context context(join);
    const int status = run(context, options);
    if (status == 0) context.finalize();
    return status;
  } catch (const Error& error) {
    std::fprintf(stderr, "canary-perf: %s: %s\n", name.c_str(), error.what());
    return error.code() == CANARY_INVALID_SETTING || error.code() == CANARY_INVALID_ARGUMENT ? kBadArguments : kFailed;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "canary-perf: %s: %s\n", name.c_str(), error.what());
    return kFailed;
  }
}

// Process p of P has the ranks p * threads … of P * threads.
int live_on_threads(const PerfOptions& options, JoinOptions join) {
  const auto process = told("CANARY_RANK"), processes = told("CANARY_WORLD_SIZE");
  if (!process || !processes) {
    std::fprintf(stderr,
                 "canary-perf: -t %d: CANARY_RANK and CANARY_WORLD_SIZE must say which process of how many this is\n",
                 options.threads);
    return kBadArguments;
  }
  join.local_ranks = options.threads;
  join.world_size = *processes * options.threads;
  std::vector<int> status(static_cast<std::size_t>(options.threads));
  std::vector<std::thread> threads;
  for (int t = 0; t < options.threads; ++t) {
    JoinOptions mine = join;
    mine.rank = *process * options.threads + t;
    threads.emplace_back([&options, &status, mine, t] {
      status[static_cast<std::size_t>(t)] = live(options, mine, "rank " + std::to_string(*mine.rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(status.begin(), status.end());
}

int main_with(const std::vector<std::string>& arguments) {
  const ParsedOptions parsed = parse_perf_options(arguments);
  if (parsed.exit_status >= 0) {
    std::fprintf(parsed.exit_status == 0 ? stdout : stderr, "%s", parsed.text.c_str());
    return parsed.exit_status;
  }
  JoinOptions join;
  join.settings = parsed.options.settings;
  if (!parsed.options.algo.empty()) join.settings.push_back("algo=" + parsed.options.algo);
  // One process is enough to warn about the job's environment; canary-run has done so already.
  if (std::getenv("CANARY_RUN_STATE") == nullptr && told("CANARY_RANK").value_or(0) == 0)
    tools::warn_of_environment("canary-perf");
  if (parsed.options.threads > 1) return live_on_threads(parsed.options, join);
  const char* env_rank = std::getenv("CANARY_RANK");
  return live(parsed.options, join, std::string("rank ") + (env_rank != nullptr ? env_rank : "?"));
}

}  // namespace
}  // namespace canarynet::perf

int main(int argc, char** argv) { return canarynet::perf::main_with({argv + 1, argv + argc}); }

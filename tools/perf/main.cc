// canary-perf: measures and checks collectives. The columns and sizes are those of nccl-tests.
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>

#include "tools/perf/measure.h"
#include "tools/perf/options.h"
#include "tools/perf/report.h"
#include "tools/perf/series.h"

namespace canarynet::perf {
namespace {

constexpr int kFailed = 1, kBadArguments = 2;

std::unique_ptr<Series> open_series(const PerfOptions& options, int rank) {
  std::string path = options.series_path;
  const auto mark = path.find("%r");
  if (path.empty() || (mark == std::string::npos && rank != 0)) return nullptr;
  if (mark != std::string::npos) path.replace(mark, 2, std::to_string(rank));
  return std::make_unique<Series>(path);
}

// Rank 0's: the table as it grows, the JSON at the end.
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
      const auto sizes = op == Op::kBarrier ? std::vector<std::uint64_t>{0} : sizes_of(options);
      for (const auto bytes : sizes) {
        const Row row = measure(context, options, op, bytes, series.get());
        output.row(row);
        for (const auto& fault : row.faults) {
          complain(rank, std::string(name_of(op)) + " of " + std::to_string(bytes) + " bytes: " + fault, kFailed);
        }
        if (row.failed) status = kFailed;
      }
    }
  } catch (const std::exception& error) {
    output.error(error.what());
    status = complain(rank, error.what(), kFailed);
  }
  return output.finish() ? status : kFailed;
}

int main_with(const std::vector<std::string>& arguments) {
  const ParsedOptions parsed = parse_perf_options(arguments);
  if (parsed.exit_status >= 0) {
    std::fprintf(parsed.exit_status == 0 ? stdout : stderr, "%s\n", parsed.text.c_str());
    return parsed.exit_status;
  }
  JoinOptions join;
  join.settings = parsed.options.settings;
  if (!parsed.options.algo.empty()) join.settings.push_back("algo=" + parsed.options.algo);
  const char* env_rank = std::getenv("CANARY_RANK");
  const std::string name = std::string("rank ") + (env_rank != nullptr ? env_rank : "?");
  try {
    Context context(join);
    const int status = run(context, parsed.options);
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

}  // namespace
}  // namespace canarynet::perf

int main(int argc, char** argv) { return canarynet::perf::main_with({argv + 1, argv + argc}); }

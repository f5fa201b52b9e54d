// canary-sim: simulates merging of gradients, the choice of an exchange for compressed ones, and training; searches
// for the designs of an exchange that none other beats.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "tools/environment.h"
#include "tools/output.h"
#include "tools/sim/options.h"
#include "tools/sim/print.h"
#include "tools/sim/search/codec_sample.h"
#include "tools/sim/trace_file.h"
#include "tools/sim/train/report.h"

namespace canarynet::sim {
namespace {

constexpr const char* kTool = "canary-sim";
constexpr int kFailed = 1;

// Writes the table unless something else has standard output, and the JSON where it was asked for.
bool give(const SimOptions& o, const std::string& table, const std::string& json) {
  bool fine = true;
  if (o.json_path != "-" && o.plot_path != "-") fine &= tools::write_output(kTool, "-", table);
  if (!o.json_path.empty()) fine &= tools::write_output(kTool, o.json_path, json);
  return fine;
}

bool merge(const SimOptions& o) {
  MergeStudy study = o.merge;
  if (o.model != nullptr) {
    study.source = o.model->name;
    study.pass = pass_of(*o.model, o.batch, o.macs_per_second);
    study.assumption = printed(
        "%d images per worker; a tensor's backward time is twice its layer's multiply-accumulates (MACs) forward, at "
        "%.4g MACs per second; biases and normalisation take no time",
        o.batch, o.macs_per_second);
  } else {
    auto trace = read_trace_file(o.trace_path);
    if (!trace.ok()) {
      std::fprintf(stderr, "%s: %s\n", kTool, trace.status().text().c_str());
      return false;
    }
    study.source = o.trace_path;
    study.pass = std::move(trace.value().pass);
  }
  const std::vector<MergeRow> rows = rows_of(study);
  return give(o, text_of(study, rows), json_of(study, rows));
}

bool select(const SimOptions& o) {
  const ExchangeChoice choice = choose(o.topk, o.ratio, o.alpha, o.bits_per_second, o.compress_seconds);
  return give(o, text_of(o.topk, choice), json_of(o.topk, choice, o.alpha, o.bits_per_second));
}

// Of exact top-k on one core.
std::vector<RatioSample> samples_of(const SimOptions& o) {
  constexpr std::size_t kSampled = 1 << 20;
  const SampleGradient gradient(kSampled, /*seed=*/1);
  std::vector<RatioSample> samples;
  for (std::size_t r = 0; r < o.ratios.size(); ++r) {
    CodecSpec spec;
    spec.kind = CodecKind::kTopK;
    spec.ratio_ppm = static_cast<std::uint32_t>(std::max(1.0, std::round(o.ratios[r] * 1e6)));
    const CodecSample sample = sample_codec(spec, kSampled * sizeof(float), gradient, o.codec_speed);
    samples.push_back({sample.encode * o.topk.parameters * 4, o.gains.empty() ? sample.gain : o.gains[r]});
  }
  return samples;
}

bool network(const SimOptions& o) {
  const NetworkReplay all = replay(o.schedule, o.epochs, o.topk, o.ratios, samples_of(o));
  const bool given = give(o, text_of(all), json_of(all));
  return (o.plot_path.empty() || tools::write_output(kTool, o.plot_path, plot_of(all))) && given;
}

bool search(const SimOptions& o) {
  if (!o.search.exhaustive && !has_nsga2()) {
    std::fprintf(stderr,
                 "%s: search: this build has no NSGA-II, since pagmo was not found when it was configured (Debian: "
                 "libpagmo-dev); --exhaustive needs none\n",
                 kTool);
    return false;
  }
  const SearchResult found = search(o.search);
  const bool given = give(o, text_of(o.search, found), json_of(o.search, found));
  return (o.plot_path.empty() || tools::write_output(kTool, o.plot_path, plot_of(o.search, found))) && given;
}

bool train(const SimOptions& o) {
  try {
    const Images images = Images::load(o.train.learner.directory);
    Learner learner(o.train.learner, images);
    const std::string assumption = Trainer::assumption(o.train, learner.size());
    auto trained = Trainer(o.train, learner).run();
    if (!trained.ok()) throw std::runtime_error(trained.status().to_string());
    const Training& t = trained.value();
    const bool given = give(o, text_of(o.train, t, assumption), json_of(o.train, t, assumption));
    return (o.plot_path.empty() || tools::write_output(kTool, o.plot_path, plot_of(o.train, t))) && given;
  } catch (const std::runtime_error& e) {
    std::fprintf(stderr, "%s: %s\n", kTool, e.what());
    return false;
  }
}

int run(const std::vector<std::string>& arguments) {
  const ParsedOptions parsed = parse_sim_options(arguments);
  if (parsed.exit_status >= 0) {
    std::fputs(parsed.text.c_str(), parsed.exit_status == 0 ? stdout : stderr);
    return parsed.exit_status;
  }
  tools::warn_of_environment(kTool);
  const SimOptions& o = parsed.options;
  const bool fine = o.command == Command::kMerge    ? merge(o)
                    : o.command == Command::kSelect ? select(o)
                    : o.command == Command::kSearch ? search(o)
                    : o.command == Command::kTrain  ? train(o)
                                                    : network(o);
  return fine ? 0 : kFailed;
}

}  // namespace
}  // namespace canarynet::sim

int main(int argc, char** argv) { return canarynet::sim::run({argv + 1, argv + argc}); }

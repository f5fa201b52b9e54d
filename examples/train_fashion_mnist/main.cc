// train_fashion_mnist -- trains a small network on Fashion-MNIST over all ranks, through Canary's public header alone.
//
//   canary-run -n 4 --hosts 4 --topology bcube:2,2 --rate 200mbit -- train_fashion_mnist
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

#include "examples/train_fashion_mnist/sync_report.h"
#include "examples/train_fashion_mnist/sync_trainer.h"
#include "examples/train_fashion_mnist/trainer.h"

namespace train {
namespace {

constexpr int kFailed = 1, kWrongArguments = 2;

void write_json(const Options& options, const std::string& text) {
  if (options.json.empty()) return;
  std::ofstream file(options.json);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("--json " + options.json + ": can't be written");
}

// The gradient's exchange alone, each result checked: what training would wait for with nothing to hide it behind.
int exchange_only(canarynet::Context& context, const Options& options) {
  constexpr std::size_t kWarmup = 5;
  auto& world = context.world();
  Network network = make_network(options, 784, options.seed);
  const auto gradient = network.gradient();
  const auto own = static_cast<float>(context.rank());
  const auto average = static_cast<float>(context.world_size() - 1) / 2;
  std::vector<double> times;
  std::size_t wrong = 0;
  const Traffic traffic(context);
  for (std::size_t n = 0; n < kWarmup + options.exchange_only; ++n) {
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>((i + n) % 97) + own;
    const double start = now_ms();
    world.all_reduce(gradient, CANARY_AVG);
    if (n >= kWarmup) times.push_back(now_ms() - start);
    for (std::size_t i = 0; i < gradient.size(); ++i)
      wrong += gradient[i] != static_cast<float>((i + n) % 97) + average;
  }
  const auto nics = traffic.everybodys();
  if (context.rank() == 0) {
    std::printf("%zu exchanges of %.3f MB between %d ranks (%s): mean %.2f ms, median %.2f ms\n%s", times.size(),
                static_cast<double>(gradient.size_bytes()) / 1e6, context.world_size(), world.algorithm().c_str(),
                mean(times), median(times), traffic_text(nics).c_str());
    write_json(
        options,
        format("{\"mode\": \"exchange_only\", \"ranks\": %d, \"algorithm\": \"%s\", \"exchanges\": %zu,\n"
               " \"gradient_bytes\": %zu, \"exchange_ms_mean\": %.4f, \"exchange_ms_median\": %.4f,\n \"nics\": ",
               context.world_size(), world.algorithm().c_str(), times.size(), gradient.size_bytes(), mean(times),
               median(times)) +
            traffic_json(nics) + "}\n");
  }
  if (wrong == 0) return 0;
  std::fprintf(stderr, "train_fashion_mnist: rank %d: %zu wrong elements\n", context.rank(), wrong);
  return kFailed;
}

int accurate_enough(double accuracy, const Options& options, bool speaks) {
  if (accuracy >= options.accuracy_min) return 0;
  if (speaks) {
    std::fprintf(stderr, "train_fashion_mnist: test accuracy %.2f %% is below %.2f %%\n", 100 * accuracy,
                 100 * options.accuracy_min);
  }
  return kFailed;
}

int train_all(canarynet::Context& context, const Options& options) {
  const bool speaks = context.rank() == 0;
  const Dataset images = Dataset::load(options.data, "train"), test = Dataset::load(options.data, "t10k");
  if (test.pixels() != images.pixels()) throw std::runtime_error("training and test images differ in size");
  Trainer trainer(context, options, images);
  const TrainingFigures f = trainer.train();
  const auto correct = trainer.replica().count_correct(context.world(), test);
  const bool same = trainer.replica().same_everywhere(context.world());
  const double accuracy = static_cast<double>(correct) / static_cast<double>(test.size());
  // The algorithm of an all_reduce: same_everywhere() ran one last.
  const std::string algorithm = context.world().algorithm();
  if (speaks) {
    std::printf("\ntest accuracy %.2f %% (%lld of %zu) after %zu steps, %.2f epochs, %.1f s; loss %.4f\n",
                100 * accuracy, static_cast<long long>(correct), test.size(), f.steps, f.epochs, f.seconds, f.loss);
    std::printf("parameters %s on all %d ranks (hash %016llx)\n", same ? "bit-identical" : "NOT THE SAME",
                context.world_size(), static_cast<unsigned long long>(trainer.replica().hash()));
    std::printf(
        "step %.1f ms; exchange of %.3f MB %.1f ms (median %.1f), %.1f ms of it not hidden behind the backward pass\n",
        f.step_ms_mean, static_cast<double>(trainer.gradient_bytes()) / 1e6, f.exchange_ms_mean, f.exchange_ms_median,
        f.exposed_ms_mean);
    if (f.ratio != 0)
      std::printf("%s keeps %.3g of the gradient in the end; %zu more steps tried ratios and were undone\n",
                  options.codec.c_str(), f.ratio, f.undone);
    std::printf("gradient traffic by NIC, sent:\n%s", traffic_text(f.traffic).c_str());
    std::fflush(stdout);
    write_json(
        options,
        format("{\"mode\": \"train\", \"network\": \"%s\", \"codec\": \"%s\",\n", options.network.c_str(),
               options.codec.c_str()) +
            format(" \"ratio\": %.6f, \"steps_undone\": %zu,\n", f.ratio, f.undone) +
            format(" \"ranks\": %d, \"algorithm\": \"%s\", \"steps\": %zu, \"epochs\": %.3f, "
                   "\"seconds\": %.2f,\n"
                   " \"test_accuracy\": %.4f, \"loss\": %.5f, \"identical\": %s, \"parameters_hash\": \"%016llx\",\n",
                   context.world_size(), algorithm.c_str(), f.steps, f.epochs, f.seconds, accuracy, f.loss,
                   same ? "true" : "false", static_cast<unsigned long long>(trainer.replica().hash())) +
            format(" \"gradient_bytes\": %zu, \"step_ms_mean\": %.3f, \"step_ms_median\": %.3f,\n"
                   " \"exchange_ms_mean\": %.3f, \"exchange_ms_median\": %.3f,\n"
                   " \"exposed_ms_mean\": %.3f, \"exposed_ms_median\": %.3f,\n \"nics\": ",
                   trainer.gradient_bytes(), f.step_ms_mean, f.step_ms_median, f.exchange_ms_mean, f.exchange_ms_median,
                   f.exposed_ms_mean, f.exposed_ms_median) +
            traffic_json(f.traffic) + "}\n");
  }
  if (!same && speaks) std::fprintf(stderr, "train_fashion_mnist: the ranks' parameters differ\n");
  const int status = accurate_enough(accuracy, options, speaks);
  return same ? status : kFailed;
}

int train_by_policy(canarynet::Context& context, const Options& options) {
  for (const auto& [rank, factor] : options.slow) {
    if (rank >= static_cast<std::size_t>(context.world_size()))
      throw std::runtime_error("--slow " + std::to_string(rank) + ": there are " +
                               std::to_string(context.world_size()) + " ranks");
  }
  const Dataset images = Dataset::load(options.data, "train"), test = Dataset::load(options.data, "t10k");
  if (test.pixels() != images.pixels()) throw std::runtime_error("training and test images differ in size");
  SyncTrainer trainer(context, options, images);
  const SyncFigures figures = trainer.train();
  TestFigures result;
  result.correct = trainer.replica().count_correct(trainer.group(), test);
  result.images = test.size();
  result.identical = trainer.replica().same_everywhere(trainer.group());
  result.hash = trainer.replica().hash();
  const bool speaks = trainer.speaks();
  if (speaks) {
    std::printf("\n%s", sync_text(options, figures, result).c_str());
    std::fflush(stdout);
    write_json(options, sync_json(options, figures, result));
  }
  const int status = accurate_enough(result.accuracy(), options, speaks);
  return result.identical ? status : kFailed;
}

int main_with(const std::vector<std::string>& arguments) {
  const Parsed parsed = parse_options(arguments);
  if (parsed.exit_status >= 0) {
    std::fprintf(parsed.exit_status == 0 ? stdout : stderr, "%s\n", parsed.text.c_str());
    return parsed.exit_status;
  }
  const Options& options = parsed.options;
  try {
    if (!options.sync.empty()) (void)canarynet::Policy::by_session(options.sync);
  } catch (const canarynet::Error& error) {
    std::fprintf(stderr, "train_fashion_mnist: --sync %s: %s (see --help)\n", options.sync.c_str(), error.what());
    return kWrongArguments;
  }
  const char* rank = std::getenv("CANARY_RANK");
  try {
    canarynet::Context context;
    const int status = options.exchange_only > 0 ? exchange_only(context, options)
                       : !options.sync.empty()   ? train_by_policy(context, options)
                                                 : train_all(context, options);
    context.finalize();
    return status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_fashion_mnist: rank %s: %s\n", rank != nullptr ? rank : "?", error.what());
    return kFailed;
  }
}

}  // namespace
}  // namespace train

int main(int argc, char** argv) { return train::main_with({argv + 1, argv + argc}); }

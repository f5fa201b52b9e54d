#include "tools/sim/options.h"

#include <charconv>
#include <CLI/CLI.hpp>
#include <cmath>
#include <optional>

#include "base/text.h"

namespace canarynet::sim {
namespace {

using tools::number;
using tools::rate;
using tools::seconds;
using tools::whole;
using tools::wrong;

constexpr int kWorkersMax = 1'000'000;
constexpr double kSearchParametersMax = 4e9;

// A positive number: "6e11", "25.6M"; k, M and G stand for 10^3, 10^6 and 10^9.
std::optional<double> amount(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value) || value <= 0) return {};
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit.empty()) return value;
  if (unit == "k") return value * 1e3;
  if (unit == "M") return value * 1e6;
  if (unit == "G") return value * 1e9;
  return {};
}

double ratio(std::string_view option, std::string_view text, std::string_view one) {
  const auto value = amount(one);
  if (!value || *value > 1) wrong(option, text, "shares above 0 and up to 1, such as 0.01");
  return *value;
}

std::string model_names() {
  std::string names;
  for (const Model& model : models()) names += (names.empty() ? "" : ", ") + std::string(model.name);
  return names;
}

// Each halves an image of 28 x 28; the fourth would see 4 x 4.
constexpr std::size_t kConvolutionsMax = 3;

struct Texts {
  std::string model, batch, macs_per_second, workers, allreduce, a, b, fitted_workers;
  std::string codec, sync, topology, nic, latency, profile, iteration, slow, lossy, jitter, rate, target, hidden, data,
      train_batch, convolutions;
  std::string train_workers, workers_per_host, seed, colayers, steps, evaluate_every, test_images;
  std::string ranks, parameters, ratio, ratios, gains, compress, alpha, bandwidth, root, epochs;
  std::string post, codec_speed, least_gain, generations, population;
};

void fill_merge(const Texts& t, SimOptions* o) {
  if (t.model.empty() == o->trace_path.empty()) throw tools::Wrong{"merge takes either --trace or --model"};
  if (!t.model.empty()) {
    o->model = find_model(t.model);
    if (o->model == nullptr) wrong("--model", t.model, model_names());
    o->batch = o->model->batch;
  } else if (!t.batch.empty() || !t.macs_per_second.empty()) {
    throw tools::Wrong{(t.batch.empty() ? "--macs-per-second" : "--batch") +
                       std::string(" goes with --model: a trace has its own times")};
  }
  if (!t.batch.empty()) o->batch = number("--batch", t.batch, 1, 1'000'000);
  if (!t.macs_per_second.empty()) {
    const auto value = amount(t.macs_per_second);
    if (!value) wrong("--macs-per-second", t.macs_per_second, "a number such as 6e11 or 600G");
    o->macs_per_second = *value;
  }
  MergeStudy& study = o->merge;
  bool known = false;
  for (const auto law :
       {ScalingLaw::kFixed, ScalingLaw::kRing, ScalingLaw::kDoubleTree, ScalingLaw::kDoubleTreeAsPrinted}) {
    if (t.allreduce != name_of(law)) continue;
    study.law = law;
    known = true;
  }
  if (!known) wrong("--allreduce", t.allreduce, "fixed, ring, dbtree or dbtree=paper");
  for (const std::string_view one : split(t.workers)) {
    const auto workers = whole(one, 1, kWorkersMax);
    if (!workers) wrong("--workers", t.workers, "a list of whole numbers from 1 to " + std::to_string(kWorkersMax));
    study.workers.push_back(*workers);
  }
  if (study.workers.empty()) wrong("--workers", t.workers, "a list such as 4,8,16");
  study.fitted = {seconds("--a", t.a), seconds("--b", t.b)};
  if (!t.fitted_workers.empty()) {
    if (study.law == ScalingLaw::kFixed) throw tools::Wrong{"--fitted-workers: fixed constants are not scaled"};
    study.fitted_workers = number("--fitted-workers", t.fitted_workers, 2, kWorkersMax);
  }
}

double share(std::string_view option, const std::string& text) {
  const auto value = text == "0" ? std::optional(0.0) : amount(text);
  if (!value || *value > 1) wrong(option, text, "a share from 0 to 1, such as 0.85");
  return *value;
}

void fill_train(const Texts& t, SimOptions* options) {
  TrainOptions& o = options->train;
  constexpr int kTrainWorkersMax = 256;
  o.learner.workers = number("--workers", t.train_workers, 1, kTrainWorkersMax);
  if (!t.workers_per_host.empty())
    o.workers_per_host = number("--workers-per-host", t.workers_per_host, 1, kTrainWorkersMax);
  if (!t.seed.empty()) o.learner.seed = number<std::uint64_t>("--seed", t.seed, 0, UINT64_MAX);
  auto policy = sync::parse_policy(t.sync);
  if (!policy.ok()) throw tools::Wrong{"--sync " + t.sync + ": " + policy.status().text()};
  o.policy = policy.value();
  const auto topology = parse_topology(t.topology.empty() ? "flat" : t.topology);
  if (!topology.ok()) wrong("--topology", t.topology, topology.status().text());
  o.topology = topology.value();
  if (!t.nic.empty()) o.nic_bits_per_second = rate("--nic", t.nic);
  if (!t.latency.empty()) o.latency = seconds("--latency", t.latency);
  auto profile = find_profile(t.profile.empty() ? "vgg19-v100" : t.profile);
  if (!profile.ok()) throw tools::Wrong{"--profile " + t.profile + ": " + profile.status().text()};
  o.profile = std::move(profile.value());
  if (!t.iteration.empty()) {
    const double wanted = seconds("--iteration", t.iteration);
    if (wanted < 1e-6 || wanted > 3600) wrong("--iteration", t.iteration, "a time from 1us to an hour");
    o.profile.set_seconds(wanted);
    o.profile.source += "; its times are scaled to iterations of " + t.iteration;
  }
  if (!t.slow.empty()) {
    const auto slow = parse_slow(t.slow, o.workers());
    if (!slow.ok()) wrong("--slow", t.slow, slow.status().text());
    o.slow = slow.value();
  }
  if (!t.lossy.empty()) {
    const auto lossy = parse_lossy(t.lossy);
    if (!lossy.ok()) wrong("--lossy", t.lossy, lossy.status().text());
    o.lossy = lossy.value();
  }
  if (!t.codec.empty()) {
    const auto codec = parse_codec(t.codec);
    if (!codec.ok()) throw tools::Wrong{"--codec " + t.codec + ": " + codec.status().text()};
    o.codec = codec.value();
  }
  if (!t.jitter.empty()) o.jitter = share("--jitter", t.jitter);
  if (!t.target.empty()) o.target = share("--target", t.target);
  if (!t.rate.empty()) {
    const auto value = amount(t.rate);
    if (!value || *value > 100) wrong("--rate", t.rate, "a number above 0, such as 0.1");
    o.rate = *value;
  }
  if (!t.hidden.empty()) {
    o.learner.hidden.clear();
    for (const std::string_view one : split(t.hidden)) {
      const auto width = whole<std::size_t>(one, 1, 4096);
      if (!width) wrong("--hidden", t.hidden, "widths of layers from 1 to 4096, such as 64 or 128,64");
      o.learner.hidden.push_back(*width);
    }
  }
  if (!t.convolutions.empty()) {
    for (const std::string_view one : split(t.convolutions)) {
      const auto channels = whole<std::size_t>(one, 1, 256);
      if (!channels || o.learner.convolutions.size() == kConvolutionsMax)
        wrong("--convolutions", t.convolutions, "up to three numbers of channels from 1 to 256, such as 16,32");
      o.learner.convolutions.push_back(*channels);
    }
  }
  if (!t.train_batch.empty()) o.learner.batch = number<std::size_t>("--batch", t.train_batch, 1, 10'000);
  if (!t.data.empty()) {
    if (t.data != "iid" && t.data != "by-class") wrong("--data", t.data, "iid or by-class");
    o.learner.by_class = t.data == "by-class";
  }
  if (!t.colayers.empty()) o.colayers = number("--colayers", t.colayers, 1, 100);
  if (!t.steps.empty()) o.steps = number("--steps", t.steps, 1, 10'000'000);
  if (!t.evaluate_every.empty()) o.evaluate_every = number("--evaluate-every", t.evaluate_every, 1, 1'000'000);
  if (!t.test_images.empty()) o.test_images = number<std::size_t>("--test-images", t.test_images, 1, 10'000);
  if (options->plot_path == "-" && options->json_path == "-")
    throw tools::Wrong{"--plot - and --json both take standard output"};
  if (const Status fits = check(o); !fits.ok()) throw tools::Wrong{fits.text()};
}

double codec_speed(const Texts& t) {
  const auto speed = amount(t.codec_speed);
  if (!speed) wrong("--codec-speed", t.codec_speed, "bytes of f32 a second, such as 2G");
  return *speed;
}

void fill_search(const Texts& t, SimOptions* options) {
  SearchStudy& o = options->search;
  Network& network = o.run.network;
  network.ranks = number("--ranks", t.ranks, 2, kSearchRanksMax);
  const auto parameters = amount(t.parameters);
  if (!parameters || *parameters < 1 || *parameters > kSearchParametersMax)
    wrong("--params", t.parameters, "a number from 1 to 4G, such as 25.6M");
  o.run.parameters = *parameters;
  network.alpha = seconds("--alpha", t.alpha);
  network.bits_per_second = rate("--bandwidth", t.bandwidth);
  if (!t.post.empty()) network.post = seconds("--post", t.post);
  if (!t.codec_speed.empty()) o.run.codec_speed = codec_speed(t);
  if (!t.least_gain.empty()) o.least_gain = share("--least-gain", t.least_gain);
  if (o.exhaustive && !(t.generations.empty() && t.population.empty() && t.seed.empty()))
    throw tools::Wrong{"--exhaustive tries all designs: it takes no --generations, --population or --seed"};
  if (!t.generations.empty()) o.nsga2.generations = number("--generations", t.generations, 1u, 100'000u);
  if (!t.population.empty()) {
    o.nsga2.population = number("--population", t.population, 8u, 10'000u);
    if (o.nsga2.population % 4 != 0) wrong("--population", t.population, "a multiple of 4");
  }
  if (!t.seed.empty()) o.nsga2.seed = number<std::uint32_t>("--seed", t.seed, 0, UINT32_MAX);
  if (options->plot_path == "-" && options->json_path == "-")
    throw tools::Wrong{"--plot - and --json both take standard output"};
}

void fill(const Texts& t, SimOptions* o) {
  if (o->command == Command::kMerge) return fill_merge(t, o);
  if (o->command == Command::kTrain) return fill_train(t, o);
  if (o->command == Command::kSearch) return fill_search(t, o);
  if (!t.ranks.empty()) o->topk.ranks = number("--ranks", t.ranks, 1, kWorkersMax);
  const auto parameters = amount(t.parameters);
  if (!parameters) wrong("--params", t.parameters, "a number such as 25600000 or 25.6M");
  o->topk.parameters = *parameters;
  if (!t.root.empty()) {
    if (t.root != "star" && t.root != "var") wrong("--root", t.root, "star or var");
    o->topk.root = t.root == "star" ? TopkRoot::kStaleness : TopkRoot::kVariance;
  }
  if (o->command == Command::kSelect) {
    o->ratio = ratio("--ratio", t.ratio, t.ratio);
    o->alpha = seconds("--alpha", t.alpha);
    o->bits_per_second = rate("--bandwidth", t.bandwidth);
    if (!t.compress.empty()) o->compress_seconds = seconds("--compress", t.compress);
    return;
  }
  if (!t.epochs.empty()) {
    o->epochs = number("--epochs", t.epochs, kScheduleEpochs, 100 * kScheduleEpochs);
    if (o->epochs % kScheduleEpochs != 0)
      wrong("--epochs", t.epochs, "a multiple of " + std::to_string(kScheduleEpochs));
  }
  if (network_schedule(o->schedule, o->epochs).empty()) wrong("--schedule", o->schedule, "c1 or c2");
  if (o->plot_path == "-" && o->json_path == "-") throw tools::Wrong{"--plot - and --json both take standard output"};
  if (!t.ratios.empty()) {
    o->ratios.clear();
    for (const std::string_view one : split(t.ratios)) o->ratios.push_back(ratio("--ratios", t.ratios, one));
  }
  if (!t.gains.empty()) {
    for (const std::string_view one : split(t.gains)) o->gains.push_back(ratio("--gains", t.gains, one));
    if (o->gains.size() != o->ratios.size())
      wrong("--gains", t.gains, "one for each of " + std::to_string(o->ratios.size()) + " ratios");
  }
  if (!t.codec_speed.empty()) o->codec_speed = codec_speed(t);
}

constexpr const char* kFooter = R"(
  canary-sim merge --model resnet50 --workers 4,8,16,32,64 --allreduce ring --a 9.72e-4 --b 1.97e-9
  canary-sim merge --trace iteration.json --workers 8 --allreduce fixed --a 1ms --b 0.2ns --json
  canary-sim select --ranks 8 --params 25.6M --ratio 0.01 --alpha 1ms --bandwidth 10gbit
  canary-sim network --schedule c1 --params 25.6M --plot c1.svg
  canary-sim search --ranks 8 --params 25.6M --alpha 50us --bandwidth 10gbit --plot front.svg
  canary-sim train --workers 9 --sync esync --topology bcube:3,2 --nic 10gbit --slow 3:5x --target 0.8

docs/canary-sim.md has the models behind the figures and what they assume.
Exit status: 0; 1 a file that can't be read or written, a failed training, or a search without pagmo; 2 wrong
arguments.)";

}  // namespace

ParsedOptions parse_sim_options(const std::vector<std::string>& arguments) {
  ParsedOptions parsed;
  SimOptions& o = parsed.options;
  Texts t;
  CLI::App app{"Simulates how training exchanges its gradients.", "canary-sim"};
  app.footer(kFooter);
  app.require_subcommand(1);
  auto* merge = app.add_subcommand("merge", "which gradients travel in one message, and what that gives");
  auto* select = app.add_subcommand("select", "which exchange of top-k gradients is the cheapest");
  auto* network = app.add_subcommand("network", "the same while the network changes, by FlexComm's schedules");
  auto* search = app.add_subcommand("search", "codec, piece size and planner at once: Pareto front and knee");
  auto* train = app.add_subcommand("train", "training in virtual time: true gradients, simulated engines");
  merge->add_option("--trace", o.trace_path, "JSON file: layers with their bytes and backward times");
  merge->add_option("--model", t.model, model_names());
  merge->add_option("--batch", t.batch, "images per worker [as in MG-WFBP's experiments]");
  merge->add_option("--macs-per-second", t.macs_per_second, "speed of a worker, from which times are made [6e11]");
  merge->add_option("--workers", t.workers, "list of numbers of workers")->required();
  merge->add_option("--allreduce", t.allreduce, "fixed, ring, dbtree or dbtree=paper: how a and b grow with workers")
      ->required();
  merge->add_option("--a", t.a, "start-up seconds of an all-reduce")->required();
  merge->add_option("--b", t.b, "seconds per byte of it")->required();
  merge->add_option("--fitted-workers", t.fitted_workers, "a and b are those of a ring of so many [16]");
  for (auto* command : {select, network}) {
    auto* ranks =
        command->add_option("--ranks", t.ranks, command == select ? "number of ranks" : "number of ranks [8]");
    if (command == select) ranks->required();
    command->add_option("--params", t.parameters, "parameters of 4 bytes, such as 25.6M")->required();
    command->add_option("--root", t.root, "how AR-Topk finds its root: star or var [star]");
  }
  select->add_option("--ratio", t.ratio, "share of the values that is sent")->required();
  select->add_option("--alpha", t.alpha, "start-up time of a message on a link")->required();
  select->add_option("--bandwidth", t.bandwidth, "of a link")->required();
  select->add_option("--compress", t.compress, "time to compress, before it is compared with a dense ring [0]");
  network->add_option("--schedule", o.schedule, "c1 or c2")->required();
  network->add_option("--epochs", t.epochs, "a multiple of 50 stretches the schedule [50]");
  network->add_option("--ratios", t.ratios, "list of candidates [0.1,0.033,0.011,0.004,0.001]");
  network->add_option("--gains", t.gains, "of the candidates, 0 to 1 [those of a made-up gradient]");
  network->add_option("--codec-speed", t.codec_speed, "bytes of f32 a second of the compression [measured]");
  network->add_option("--plot", o.plot_path, "draws it into an SVG file as well; - writes the drawing only");
  search->add_option("--ranks", t.ranks, "number of ranks, each on a host of its own, up to 64")->required();
  search->add_option("--params", t.parameters, "parameters of 4 bytes, such as 25.6M")->required();
  search->add_option("--alpha", t.alpha, "start-up time of a message on a link")->required();
  search->add_option("--bandwidth", t.bandwidth, "of a link")->required();
  search->add_option("--post", t.post, "time to post a message [10us]");
  search->add_option("--codec-speed", t.codec_speed, "bytes of f32 a second of every codec [measured]");
  search->add_option("--least-gain", t.least_gain, "designs with less are passed over [0.1]");
  search->add_option("--generations", t.generations, "of NSGA-II [100]");
  search->add_option("--population", t.population, "of NSGA-II, a multiple of 4 [100]");
  search->add_option("--seed", t.seed, "of NSGA-II [1]");
  search->add_flag("--exhaustive", o.search.exhaustive, "tries all designs instead, and takes no pagmo");
  search->add_option("--plot", o.plot_path, "draws the front into an SVG file as well; - writes the drawing only");
  train->add_option("--workers", t.train_workers, "number of workers")->required();
  train->add_option("--sync", t.sync, "policy: bsp, bml, ps, esync, ripples:smart, diloco:h=50, ... (docs/sync.md)")
      ->required();
  train->add_option("--workers-per-host", t.workers_per_host, "that share a host and its NICs [1]");
  train->add_option("--seed", t.seed, "of everything random [1]");
  train->add_option("--topology", t.topology, "flat:NICS, mesh or bcube:R,L [flat:1]");
  train->add_option("--nic", t.nic, "rate of a NIC [10gbit]");
  train->add_option("--latency", t.latency, "of a link in one direction [20us]");
  train->add_option("--profile", t.profile, profile_names() + " [vgg19-v100]");
  train->add_option("--iteration", t.iteration, "seconds of an iteration instead of the profile's");
  train->add_option("--lossy", t.lossy, "1:10%: NIC 1 of every host loses a tenth of all packets; 3.1:10%: of host 3");
  train->add_option("--slow", t.slow, "3:5x: worker 3 takes five times as long; 3:+5x: it sleeps five iterations more");
  train->add_option("--codec", t.codec, "of gradients, such as sketch:8, int8 or fp16 [dense]");
  train->add_option("--jitter", t.jitter, "an iteration takes up to this share more or less [0]");
  train->add_option("--target", t.target, "accuracy that ends the training [0.85]");
  train->add_flag("--go-on", o.train.go_on, "goes on beyond the target, to --steps");
  train->add_option("--steps", t.steps, "iterations at most, as a mean over the workers [2000]");
  train->add_option("--rate", t.rate, "of learning [0.1]");
  train->add_option("--batch", t.train_batch, "images per worker and iteration [32]");
  train->add_option("--hidden", t.hidden, "widths of the network's inner layers [128]");
  train->add_option("--convolutions", t.convolutions, "channels of convolutions before them, such as 16,32 [none]");
  train->add_option("--data", t.data, "how images are dealt out: iid, by-class [iid]");
  train->add_option("--data-dir", o.train.learner.directory, "of Fashion-MNIST's files [Debian's]");
  train->add_option("--colayers", t.colayers, "parts that are exchanged while others are computed [10]");
  train->add_option("--evaluate-every", t.evaluate_every, "steps between two points of the curve [10]");
  train->add_option("--test-images", t.test_images, "for the curve; the end takes all [2000]");
  train->add_option("--plot", o.plot_path, "draws the curve into an SVG file as well; - writes the drawing only");
  for (auto* command : {merge, select, network, search, train})
    command->add_flag("--json{-}", o.json_path, "results as JSON instead of the table; --json=FILE: beside it");
  const auto take = [&] {
    o.command = merge->parsed()    ? Command::kMerge
                : select->parsed() ? Command::kSelect
                : search->parsed() ? Command::kSearch
                : train->parsed()  ? Command::kTrain
                                   : Command::kNetwork;
    fill(t, &o);
  };
  tools::parse(app, arguments, take, &parsed);
  return parsed;
}

}  // namespace canarynet::sim

#include "tools/sim/network.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "compress/ratio_controller.h"
#include "tools/sim/print.h"

namespace canarynet::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kParameterBytes = 4;

Json costs_json(const ExchangeChoice& choice) {
  Json costs;
  for (int e = 0; e < kTopkExchangeCount; ++e)
    costs[std::string(name_of(static_cast<TopkExchange>(e)))] = choice.seconds[static_cast<std::size_t>(e)];
  return costs;
}

Json study_json(const TopkStudy& study) {
  return {{"ranks", study.ranks},
          {"parameters", study.parameters},
          {"bytes", study.parameters * kParameterBytes},
          {"root", study.root == TopkRoot::kStaleness ? "star" : "var"}};
}

}  // namespace

std::vector<NetworkPhase> network_schedule(std::string_view name, int epochs) {
  struct Part {
    int last;  // of 50 epochs
    double alpha, gbit;
  };
  constexpr Part kC1[] = {{12, 1e-3, 25}, {24, 1e-3, 1}, {36, 50e-3, 1}, {50, 50e-3, 25}};
  constexpr Part kC2[] = {{12, 1e-3, 25}, {20, 7e-3, 5}, {28, 50e-3, 1}, {36, 7e-3, 5}, {50, 1e-3, 25}};
  std::vector<NetworkPhase> phases;
  const auto add = [&](const Part& part) {
    const int first = phases.empty() ? 1 : phases.back().last + 1;
    phases.push_back({first, part.last * (epochs / kScheduleEpochs), part.alpha, part.gbit * 1e9});
  };
  if (name == "c1") {
    for (const Part& part : kC1) add(part);
  } else if (name == "c2") {
    for (const Part& part : kC2) add(part);
  }
  return phases;
}

ExchangeChoice choose(const TopkStudy& study, double ratio, double alpha, double bits_per_second,
                      double compress_seconds) {
  const TopkRequest request{.ranks = study.ranks,
                            .bytes = study.parameters * kParameterBytes,
                            .ratio = ratio,
                            .link = {alpha, 8 / bits_per_second},
                            .root = study.root};
  ExchangeChoice choice{.ratio = ratio};
  for (int e = 0; e < kTopkExchangeCount; ++e)
    choice.seconds[static_cast<std::size_t>(e)] = topk_cost(static_cast<TopkExchange>(e), request);
  choice.winner = cheapest_topk(request);
  choice.compress_seconds = compress_seconds;
  choice.dense_seconds = dense_ring_cost(request);
  choice.pays = compression_pays(request, compress_seconds);
  return choice;
}

std::string text_of(const TopkStudy& study, const ExchangeChoice& choice) {
  std::string out =
      printed("%d ranks, %.6g parameters of 4 bytes, ratio %g\n", study.ranks, study.parameters, choice.ratio);
  out += printed("%-10s %14s %14s\n", "exchange", "seconds", "of the best");
  for (int e = 0; e < kTopkExchangeCount; ++e) {
    const double cost = choice.seconds[static_cast<std::size_t>(e)];
    out += printed("%-10s %14.6g %13.2fx\n", std::string(name_of(static_cast<TopkExchange>(e))).c_str(), cost,
                   choice.best_seconds() > 0 ? cost / choice.best_seconds() : 1);
  }
  out += "winner: " + std::string(name_of(choice.winner)) + "\n";
  return out + printed("with %g s to compress it takes %.6g s, and a dense ring %.6g s: compressing %s\n",
                       choice.compress_seconds, choice.best_seconds() + choice.compress_seconds, choice.dense_seconds,
                       choice.pays ? "pays" : "does not pay");
}

std::string json_of(const TopkStudy& study, const ExchangeChoice& choice, double alpha, double bits_per_second) {
  Json json = study_json(study);
  json["ratio"] = choice.ratio;
  json["alpha_seconds"] = alpha;
  json["bandwidth_bits_per_second"] = bits_per_second;
  json["costs_seconds"] = costs_json(choice);
  json["winner"] = name_of(choice.winner);
  json["compress_seconds"] = choice.compress_seconds;
  json["dense_seconds"] = choice.dense_seconds;
  json["pays"] = choice.pays;
  return json.dump(1) + "\n";
}

NetworkReplay replay(const std::string& schedule, int epochs, const TopkStudy& study, const std::vector<double>& ratios,
                     const std::vector<RatioSample>& samples) {
  CANARY_CHECK(samples.empty() || samples.size() == ratios.size(), "a sample per ratio");
  NetworkReplay result{schedule, study, ratios, network_schedule(schedule, epochs), samples, {}, {}};
  for (const NetworkPhase& phase : result.phases) {
    auto& row = result.choices.emplace_back();
    std::vector<RatioCost> costs;
    for (std::size_t r = 0; r < ratios.size(); ++r) {
      const double compress_seconds = samples.empty() ? 0 : samples[r].compress_seconds;
      row.push_back(choose(study, ratios[r], phase.alpha, phase.bits_per_second, compress_seconds));
      if (!samples.empty()) costs.push_back({compress_seconds, row[r].best_seconds(), 1 / samples[r].gain});
    }
    if (!costs.empty()) result.chosen.push_back(knee_of(costs));
  }
  return result;
}

std::string text_of(const NetworkReplay& replay) {
  std::string out = "schedule " + replay.schedule +
                    printed(
                        ", %d ranks, %.6g parameters of 4 bytes; the exchange chosen for each ratio, and its "
                        "milliseconds\n",
                        replay.study.ranks, replay.study.parameters);
  out += printed("%-8s %7s %10s", "epochs", "alpha", "bandwidth");
  for (const double ratio : replay.ratios) out += printed("  %17s", printed("c = %g", ratio).c_str());
  out += printed("  %8s%s\n", "dense", replay.chosen.empty() ? "" : "   chosen");
  for (std::size_t p = 0; p < replay.phases.size(); ++p) {
    const NetworkPhase& phase = replay.phases[p];
    out += printed("%-8s %5g ms %5g Gbit", printed("%d-%d", phase.first, phase.last).c_str(), phase.alpha * 1e3,
                   phase.bits_per_second / 1e9);
    for (const ExchangeChoice& choice : replay.choices[p])
      out += printed("  %8s %8.1f", std::string(name_of(choice.winner)).c_str(), choice.best_seconds() * 1e3);
    out += printed("  %8.1f", replay.choices[p].front().dense_seconds * 1e3);
    if (!replay.chosen.empty()) out += printed("  %7g", replay.ratios[replay.chosen[p]]);
    out += "\n";
  }
  const auto samples = [&](const char* what, const auto& value) {
    out += printed("%-27s", what);
    for (const RatioSample& sample : replay.samples) out += printed("  %17.3f", value(sample));
    out += "\n";
  };
  if (!replay.samples.empty()) {
    samples("compressing, milliseconds", [](const RatioSample& s) { return s.compress_seconds * 1e3; });
    samples("gain", [](const RatioSample& s) { return s.gain; });
  }
  return out;
}

std::string json_of(const NetworkReplay& replay) {
  Json json = {{"schedule", replay.schedule}};
  json.update(study_json(replay.study));
  for (std::size_t r = 0; r < replay.samples.size(); ++r) {
    const RatioSample& sample = replay.samples[r];
    json["samples"].push_back(
        {{"ratio", replay.ratios[r]}, {"compress_seconds", sample.compress_seconds}, {"gain", sample.gain}});
  }
  json["phases"] = Json::array();
  for (std::size_t p = 0; p < replay.phases.size(); ++p) {
    const NetworkPhase& phase = replay.phases[p];
    Json choices = Json::array();
    for (const ExchangeChoice& choice : replay.choices[p]) {
      choices.push_back(
          {{"ratio", choice.ratio}, {"costs_seconds", costs_json(choice)}, {"winner", name_of(choice.winner)}});
    }
    json["phases"].push_back({{"first_epoch", phase.first},
                              {"last_epoch", phase.last},
                              {"alpha_seconds", phase.alpha},
                              {"bandwidth_bits_per_second", phase.bits_per_second},
                              {"dense_seconds", replay.choices[p].front().dense_seconds},
                              {"choices", std::move(choices)}});
    if (!replay.chosen.empty()) json["phases"].back()["chosen_ratio"] = replay.ratios[replay.chosen[p]];
  }
  return json.dump(1) + "\n";
}

}  // namespace canarynet::sim

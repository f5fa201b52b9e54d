// tools/sim/network.h -- which exchange of top-k gradients a network calls for as it changes: `canary-sim select` and
// `canary-sim network`.
//
// The schedules are those of FlexComm (collectives/topk_cost.h has the source): α and bandwidth per epoch of training.
// For each ratio the costs of the exchanges decide; the ratio itself is chosen as compress/ratio_controller.h does, by
// that cost, the time to compress and the gain, of which samples are handed in.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/topk_cost.h"

namespace canarynet::sim {

// The epochs first..last (from 1; both belong to it), in which the network stays as it is.
struct NetworkPhase {
  int first = 1, last = 1;
  double alpha = 0;  // seconds
  double bits_per_second = 0;
};

// "c1" or "c2" over so many epochs: 50, or a multiple of it, which stretches it. Empty if there is no such schedule.
// C2's moderate network, which the paper does not give, has 7 ms and 5 Gbit/s.
std::vector<NetworkPhase> network_schedule(std::string_view name, int epochs);
constexpr int kScheduleEpochs = 50;

struct ExchangeChoice {
  double ratio = 1;
  std::array<double, kTopkExchangeCount> seconds = {};  // by TopkExchange
  TopkExchange winner = TopkExchange::kAllGather;
  double compress_seconds = 0;  // what is added to the exchange before it is compared with
  double dense_seconds = 0;     // a ring all-reduce of everything
  bool pays = false;            // it takes longer than both

  double best_seconds() const { return seconds[static_cast<std::size_t>(winner)]; }
};

struct TopkStudy {
  int ranks = 8;
  double parameters = 0;  // of 4 bytes
  TopkRoot root = TopkRoot::kStaleness;
};
ExchangeChoice choose(const TopkStudy& study, double ratio, double alpha, double bits_per_second,
                      double compress_seconds);

std::string text_of(const TopkStudy& study, const ExchangeChoice& choice);
// {"costs_seconds": {"ag": …, "art_ring": …, "art_tree": …}, "winner": …, "dense_seconds": …, "pays": …}, and the
// request.
std::string json_of(const TopkStudy& study, const ExchangeChoice& choice, double alpha, double bits_per_second);

// What compressing at a ratio takes, and the share of the gradient's energy that it sends.
struct RatioSample {
  double compress_seconds = 0;
  double gain = 1;
};

struct NetworkReplay {
  std::string schedule;
  TopkStudy study;
  std::vector<double> ratios;
  std::vector<NetworkPhase> phases;
  std::vector<RatioSample> samples;                  // [ratio]
  std::vector<std::vector<ExchangeChoice>> choices;  // [phase][ratio]
  std::vector<std::size_t> chosen;                   // [phase], of the ratios; empty without samples
};
// One sample per ratio, or none: then no ratio is chosen.
NetworkReplay replay(const std::string& schedule, int epochs, const TopkStudy& study, const std::vector<double>& ratios,
                     const std::vector<RatioSample>& samples);

std::string text_of(const NetworkReplay& replay);
std::string json_of(const NetworkReplay& replay);
// An SVG file: above, the seconds of each ratio's exchange by epoch, on a logarithmic axis; below, a band per ratio in
// the colour of its winner, the chosen one with a frame.
std::string plot_of(const NetworkReplay& replay);

}  // namespace canarynet::sim

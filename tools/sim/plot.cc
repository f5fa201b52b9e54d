// The plot of a network's replay, as SVG.
#include <algorithm>
#include <cmath>

#include "tools/sim/network.h"
#include "tools/sim/print.h"

namespace canarynet::sim {
namespace {

constexpr double kLeft = 90, kWidth = 700, kTop = 60, kHeight = 260, kBand = 22, kBandGap = 6;
constexpr const char* kWinnerColours[kTopkExchangeCount] = {"#0072b2", "#e69f00", "#009e73"};

std::string words(double x, double y, const std::string& text, const char* more = "") {
  return printed("<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, more) + text + "</text>\n";
}
std::string line(double x1, double y1, double x2, double y2, const std::string& stroke) {
  return printed("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"", x1, y1, x2, y2) + stroke + "\"/>\n";
}

}  // namespace

std::string plot_of(const NetworkReplay& replay) {
  const int epochs = replay.phases.empty() ? 1 : replay.phases.back().last;
  double low = HUGE_VAL, high = 0;
  for (const auto& row : replay.choices) {
    for (const ExchangeChoice& choice : row) {
      low = std::min(low, choice.best_seconds());
      high = std::max(high, choice.best_seconds());
    }
  }
  if (!(low > 0) || !(high > 0)) low = high = 1;
  const double bottom = std::floor(std::log10(low)), top = std::max(std::ceil(std::log10(high)), bottom + 1);
  const auto x = [&](int epochs_done) { return kLeft + kWidth * epochs_done / epochs; };
  const auto y = [&](double seconds) { return kTop + kHeight * (top - std::log10(seconds)) / (top - bottom); };
  const auto grey = [&](std::size_t ratio) {  // the larger ratio is the darker line
    const int shade = replay.ratios.size() < 2 ? 0 : static_cast<int>(170 * ratio / (replay.ratios.size() - 1));
    return printed("rgb(%d,%d,%d)", shade, shade, shade);
  };

  const double bands = kTop + kHeight + 50;
  const double height = bands + static_cast<double>(replay.ratios.size()) * (kBand + kBandGap) + 40;
  std::string out = printed(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kLeft + kWidth + 30, height);
  out += words(10, 20,
               "Network schedule " + replay.schedule +
                   printed(": %d ranks, %.6g parameters", replay.study.ranks, replay.study.parameters),
               "font-size=\"14\"");
  for (int decade = static_cast<int>(bottom); decade <= static_cast<int>(top); ++decade) {
    const double at = y(std::pow(10, decade));
    out += line(kLeft, at, kLeft + kWidth, at, "#ddd");
    out += words(kLeft - 8, at + 4, printed("%g s", std::pow(10, decade)), "text-anchor=\"end\"");
  }
  for (std::size_t p = 0; p < replay.phases.size(); ++p) {
    const NetworkPhase& phase = replay.phases[p];
    const double from = x(phase.first - 1), to = x(phase.last);
    out += line(from, kTop, from, height - 30, "#bbb");
    out += words(from + 4, kTop - 8, printed("%g ms, %g Gbit/s", phase.alpha * 1e3, phase.bits_per_second / 1e9),
                 "fill=\"#555\"");
    out += words(from + 2, height - 14, printed("epoch %d", phase.first), "fill=\"#555\"");
    for (std::size_t r = 0; r < replay.ratios.size(); ++r) {
      const ExchangeChoice& choice = replay.choices[p][r];
      const double at = choice.best_seconds() > 0 ? y(choice.best_seconds()) : kTop + kHeight;
      out += printed("<path d=\"M%.1f,%.1f H%.1f\" stroke=\"", from, at, to) + grey(r) +
             "\" stroke-width=\"2\" fill=\"none\"/>\n";
      if (p > 0 && replay.choices[p - 1][r].best_seconds() > 0)
        out += line(from, y(replay.choices[p - 1][r].best_seconds()), from, at, grey(r));
      const double band = bands + static_cast<double>(r) * (kBand + kBandGap);
      const std::string winner(name_of(choice.winner));
      out += printed("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\" fill=\"%s\">", from, band, to - from,
                     kBand, kWinnerColours[static_cast<std::size_t>(choice.winner)]) +
             "<title>" + printed("c = %g: ", choice.ratio) + winner + printed(", %.4g s", choice.best_seconds()) +
             "</title></rect>\n" + words(from + 4, band + 15, winner, "fill=\"white\"");
    }
  }
  for (std::size_t p = 0; p < replay.chosen.size(); ++p) {
    const double from = x(replay.phases[p].first - 1), to = x(replay.phases[p].last);
    const double band = bands + static_cast<double>(replay.chosen[p]) * (kBand + kBandGap);
    out += printed(
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\" fill=\"none\" stroke=\"black\" "
        "stroke-width=\"3\"/>\n",
        from + 1.5, band, to - from - 3, kBand);
  }
  if (!replay.chosen.empty()) out += words(kLeft, bands - 10, "in a frame: the ratio that is chosen", "fill=\"#555\"");
  for (std::size_t r = 0; r < replay.ratios.size(); ++r) {
    const double band = bands + static_cast<double>(r) * (kBand + kBandGap);
    out += printed("<path d=\"M8,%.1f H22\" stroke=\"", band + 11) + grey(r) + "\" stroke-width=\"2\"/>\n";
    out += words(kLeft - 8, band + 15, printed("c = %g", replay.ratios[r]), "text-anchor=\"end\"");
  }
  return out + "</svg>\n";
}

}  // namespace canarynet::sim

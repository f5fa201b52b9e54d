// The plot of a search's front, as SVG.
#include <algorithm>
#include <array>
#include <cmath>

#include "tools/sim/print.h"
#include "tools/sim/search/search.h"

namespace canarynet::sim {
namespace {

constexpr double kLeft = 60, kWidth = 700, kTop = 40, kHeight = 340;
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                                 "#56b4e9", "#d55e00", "#f0e442", "#000000"};

// "topk" of "topk:0.01".
std::string family_of(const CodecSpec& codec) {
  const std::string text = to_text(codec);
  return text.substr(0, text.find(':'));
}

}  // namespace

std::string plot_of(const SearchStudy& study, const SearchResult& result) {
  double low = HUGE_VAL, high = 0, longest = 0;
  std::vector<std::string> families;
  for (const Tried& t : result.front) {
    low = std::min(low, t.costs.cost.sync_seconds);
    high = std::max(high, t.costs.cost.sync_seconds);
    longest = std::max(longest, t.costs.cost.compress_seconds);
    const std::string family = family_of(t.design.codec);
    if (std::find(families.begin(), families.end(), family) == families.end()) families.push_back(family);
  }
  if (!(low > 0) || !(high > 0)) low = high = 1;
  const double bottom = std::floor(std::log10(low)), top = std::max(std::ceil(std::log10(high)), bottom + 1);
  const auto x = [&](double seconds) { return kLeft + kWidth * (std::log10(seconds) - bottom) / (top - bottom); };
  const auto y = [&](double gain) { return kTop + kHeight * (1 - gain); };

  std::string out = printed(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kLeft + kWidth + 130, kTop + kHeight + 60);
  const Network& net = study.run.network;
  out += printed("<text x=\"10\" y=\"20\" font-size=\"14\">%d ranks, %.6g parameters, %g ms, %g Gbit/s</text>\n",
                 net.ranks, study.run.parameters, net.alpha * 1e3, net.bits_per_second / 1e9);
  for (int decade = static_cast<int>(bottom); decade <= static_cast<int>(top); ++decade) {
    const double at = x(std::pow(10, decade));
    out += printed("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", at, kTop, at,
                   kTop + kHeight);
    out += printed("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g s</text>\n", at, kTop + kHeight + 16,
                   std::pow(10, decade));
  }
  for (int tenths = 0; tenths <= 10; tenths += 2) {
    const double at = y(tenths / 10.0);
    out += printed("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", kLeft, at,
                   kLeft + kWidth, at);
    out += printed("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", kLeft - 8, at + 4, tenths / 10.0);
  }
  out += printed("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", kLeft + kWidth / 2, kTop + kHeight + 40) +
         "gain over seconds to exchange; a dot's area: seconds to compress; ringed: the knee</text>\n";
  for (std::size_t i = 0; i < result.front.size(); ++i) {
    const Tried& t = result.front[i];
    const auto family = std::find(families.begin(), families.end(), family_of(t.design.codec)) - families.begin();
    const double share = longest > 0 ? t.costs.cost.compress_seconds / longest : 0;
    out += printed("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\" fill-opacity=\"0.6\"%s>",
                   x(std::max(t.costs.cost.sync_seconds, low)), y(std::clamp(t.costs.gain, 0.0, 1.0)),
                   2 + 8 * std::sqrt(share), kColours[static_cast<std::size_t>(family) % kColours.size()],
                   i == result.knee ? " stroke=\"black\" stroke-width=\"2\"" : "");
    out += "<title>" + to_text(t.design.codec) + ", " + std::string(name_of(t.design.planner)) +
           printed(", %.4g KiB: %.4g ms + %.4g ms, gain %.4f</title></circle>\n",
                   static_cast<double>(t.design.piece_bytes) / 1024, t.costs.cost.compress_seconds * 1e3,
                   t.costs.cost.sync_seconds * 1e3, t.costs.gain);
  }
  for (std::size_t i = 0; i < families.size(); ++i) {
    const double at = kTop + 16 * static_cast<double>(i) + 8;
    out += printed("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\"/>", kLeft + kWidth + 20, at,
                   kColours[i % kColours.size()]);
    out += printed("<text x=\"%.1f\" y=\"%.1f\">", kLeft + kWidth + 30, at + 4) + families[i] + "</text>\n";
  }
  return out + "</svg>\n";
}

}  // namespace canarynet::sim

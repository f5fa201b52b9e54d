#include "tools/plan/draw.h"

#include <algorithm>

namespace canarynet::plan {
namespace {

std::string leaves_text(const Step& step) {
  std::string text = std::to_string(step.leaf_begin);
  if (step.leaf_end - step.leaf_begin > 1) text += "-" + std::to_string(step.leaf_end - 1);
  return text;
}

int rounds_of(const std::vector<Plan>& plans) {
  int rounds = 0;
  for (const Plan& plan : plans) {
    for (const Step& s : plan.steps) rounds = std::max(rounds, s.round + 1);
  }
  return rounds;
}

// Goes around the colour circle by the golden angle, so that neighbours differ.
std::string colour_of(std::uint32_t leaf) { return "hsl(" + std::to_string(leaf * 137 % 360) + ",65%,42%)"; }

}  // namespace

std::string draw_text(const std::vector<Plan>& plans, int only) {
  const int rounds = rounds_of(plans);
  std::vector<std::vector<std::string>> cells(plans.size(), std::vector<std::string>(static_cast<std::size_t>(rounds)));
  std::vector<std::size_t> width(static_cast<std::size_t>(rounds));
  for (std::size_t k = 0; k < width.size(); ++k) width[k] = std::to_string(k).size();
  for (std::size_t r = 0; r < plans.size(); ++r) {
    if (only >= 0 && r != static_cast<std::size_t>(only)) continue;
    for (const Step& s : plans[r].steps) {
      if (s.kind != StepKind::kSend) continue;
      std::string& cell = cells[r][s.round];
      cell += (cell.empty() ? "" : " ") + leaves_text(s) + ">" + std::to_string(s.peer);
      width[s.round] = std::max(width[s.round], cell.size());
    }
  }
  const auto padded = [](std::string text, std::size_t size) {
    text.resize(std::max(size, text.size()), ' ');
    return text;
  };
  const std::size_t margin = std::max<std::size_t>(5, std::to_string(plans.size()).size() + 1);
  std::string out = padded("round", margin);
  for (std::size_t k = 0; k < width.size(); ++k) out += "  " + padded(std::to_string(k), width[k]);
  out += "\n";
  for (std::size_t r = 0; r < plans.size(); ++r) {
    if (only >= 0 && r != static_cast<std::size_t>(only)) continue;
    std::string row = padded("r" + std::to_string(r), margin);
    for (std::size_t k = 0; k < width.size(); ++k) row += "  " + padded(cells[r][k], width[k]);
    row.erase(row.find_last_not_of(' ') + 1);
    out += row + "\n";
  }
  return out;
}

std::string draw_svg(const std::vector<Plan>& plans, const std::string& title) {
  constexpr int kColumn = 90, kRow = 34, kLeft = 50, kTop = 56;
  const int rounds = rounds_of(plans);
  const int width = kLeft + rounds * kColumn + 30, height = kTop + static_cast<int>(plans.size()) * kRow + 10;
  const auto text_of = [](int v) { return std::to_string(v); };
  const auto x = [&](int round) { return text_of(kLeft + round * kColumn); };
  const auto y = [&](int rank) { return text_of(kTop + rank * kRow); };
  std::string out =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + text_of(width) + "\" height=\"" + text_of(height) +
      "\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n" +
      "<text x=\"10\" y=\"18\" font-size=\"14\">" + title + "</text>\n" +
      "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" markerHeight=\"6\" "
      "orient=\"auto\"><path d=\"M0,0 L8,4 L0,8 z\" fill=\"context-stroke\"/></marker></defs>\n";
  for (int k = 0; k < rounds; ++k)
    out += "<text x=\"" + x(k) + "\" y=\"" + text_of(kTop - 20) + "\" fill=\"#777\">round " + text_of(k) + "</text>\n";
  for (int r = 0; r < static_cast<int>(plans.size()); ++r) {
    out += "<text x=\"10\" y=\"" + y(r) + "\">r" + text_of(r) + "</text>\n<line x1=\"" + x(0) + "\" x2=\"" + x(rounds) +
           "\" y1=\"" + y(r) + "\" y2=\"" + y(r) + "\" stroke=\"#ddd\"/>\n";
  }
  for (int r = 0; r < static_cast<int>(plans.size()); ++r) {
    for (const Step& s : plans[static_cast<std::size_t>(r)].steps) {
      if (s.kind != StepKind::kSend) continue;
      out += "<line x1=\"" + x(s.round) + "\" y1=\"" + y(r) + "\" x2=\"" +
             text_of(kLeft + s.round * kColumn + kColumn - 16) + "\" y2=\"" + y(s.peer) + "\" stroke=\"" +
             colour_of(s.leaf_begin) + "\" stroke-width=\"1.6\" marker-end=\"url(#tip)\"><title>r" + text_of(r) +
             " to r" + text_of(s.peer) + ", leaves " + leaves_text(s) + " of " + std::string(name_of(s.src)) +
             (s.rail >= 0 ? ", rail " + text_of(s.rail) : "") + "</title></line>\n";
    }
  }
  return out + "</svg>\n";
}

}  // namespace canarynet::plan

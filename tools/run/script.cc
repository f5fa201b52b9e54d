#include "tools/run/script.h"

#include <algorithm>
#include <sstream>

#include "base/text.h"
#include "tools/run/values.h"

namespace canarynet::run {
namespace {

constexpr const char* kActions = "takes rate R, loss P%, delay T, blackhole on|off, up or down";

std::vector<std::string> words_of(std::string_view line) {
  std::istringstream in(std::string(line.substr(0, line.find('#'))));
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// The status's text begins with the word it is about.
Result<ScriptStep> parse_step(const std::vector<std::string>& words, int hosts, int nics) {
  const auto word = [&](std::size_t i) {
    return "word " + std::to_string(i + 1) + (i < words.size() ? " \"" + words[i] + "\"" : " is missing");
  };
  const auto bad = [&](std::size_t i, const std::string& takes) {
    return Status(CANARY_INVALID_ARGUMENT, word(i) + ": " + takes);
  };
  ScriptStep step;
  const auto at = parse_time("", words[0]);
  if (!at.ok()) return bad(0, "takes a time after the ranks began, such as 2.5s or 300ms");
  step.at = at.value();
  const auto place = words.size() > 1
                         ? parse_place(words[1], hosts, nics)
                         : Result<Place>(Status(CANARY_INVALID_ARGUMENT, "takes a place such as host0.nic0"));
  if (!place.ok()) return bad(1, place.status().text());
  step.change.place = place.value();
  if (words.size() < 3) return bad(2, kActions);
  const auto known = set_action(words[2], words.size() > 3 ? words[3] : "", &step.change);
  if (!known.ok()) return bad(3, known.status().text());
  if (!known.value()) {
    const bool alone = words[2] == "up" || words[2] == "down";
    return alone ? bad(3, words[2] + " takes no value") : bad(2, kActions);
  }
  if (words.size() > 4) return bad(4, "nothing is expected after the value");
  for (std::size_t i = 1; i < words.size(); ++i) step.text += (i > 1 ? " " : "") + words[i];
  return step;
}

}  // namespace

Result<std::vector<ScriptStep>> parse_script(const std::string& file, std::string_view text, int hosts, int nics) {
  std::vector<ScriptStep> steps;
  int number = 0;
  for (const auto& line : split(text, '\n')) {
    ++number;
    const auto words = words_of(line);
    if (words.empty()) continue;
    auto step = parse_step(words, hosts, nics);
    if (!step.ok()) return step.status().wrap("--script " + file + ": line " + std::to_string(number));
    steps.push_back(step.take());
  }
  std::stable_sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
  return steps;
}

}  // namespace canarynet::run

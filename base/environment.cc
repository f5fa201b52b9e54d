#include "base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>

#include "base/log.h"
#include "base/settings.h"

namespace canarynet {
namespace {

constexpr std::string_view kPrefix = "CANARY_";
// Variables that are no settings.
constexpr std::string_view kOthers[] = {
    "CANARY_RANK",    "CANARY_WORLD_SIZE", "CANARY_LOCAL_RANK",  "CANARY_LOCAL_SIZE", "CANARY_LOG",
    "CANARY_KERNELS", "CANARY_RUN_STATE",  "CANARY_NCCL_PLUGIN", "CANARY_WRITE_DOCS", "CANARY_RENDEZVOUS"};
// Prefixes of programs around the library: tests, simulations, benchmarks.
constexpr std::string_view kForeignPrefixes[] = {"CANARY_TEST_", "CANARY_SIM_", "CANARY_BENCH_"};
constexpr std::size_t kNameMax = 64;  // longer names are not compared: none of ours is half as long

std::vector<std::string_view> known_names() {
  std::vector<std::string_view> names(std::begin(kOthers), std::end(kOthers));
  for (const SettingInfo& setting : setting_table()) names.emplace_back(setting.environment);
  return names;
}

// How many letters have to be inserted, removed, replaced or swapped with their neighbour to make one word the other.
std::size_t edits_between(std::string_view a, std::string_view b) {
  std::array<std::array<std::size_t, kNameMax + 1>, 3> rows{};
  for (std::size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto &row = rows[i % 3], &above = rows[(i + 2) % 3], &two_above = rows[(i + 1) % 3];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
  }
  return rows[a.size() % 3][b.size()];
}

// Returns "" if none is near enough to have been meant.
std::string_view nearest(std::string_view name, const std::vector<std::string_view>& names) {
  if (name.size() > kNameMax) return {};
  const std::string_view word = name.substr(kPrefix.size());
  std::string_view best;
  std::size_t fewest = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string_view known : names) {
    const std::size_t edits = edits_between(word, known.substr(kPrefix.size()));
    if (edits >= fewest || edits >= word.size()) continue;
    fewest = edits;
    best = known;
  }
  return best;
}

}  // namespace

std::vector<std::string> strange_variables(const char* const* variables) {
  std::vector<std::string> sentences;
  const auto names = known_names();
  for (; variables != nullptr && *variables != nullptr; ++variables) {
    const std::string_view entry = *variables;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with(kPrefix) || std::find(names.begin(), names.end(), name) != names.end()) continue;
    if (std::any_of(std::begin(kForeignPrefixes), std::end(kForeignPrefixes),
                    [&](std::string_view prefix) { return name.starts_with(prefix); }))
      continue;
    const std::string_view meant = nearest(name, names);
    sentences.push_back(std::string(name) + " is no setting of Canary and is ignored: " +
                        (meant.empty() ? "docs/settings.md lists them all" : "is " + std::string(meant) + " meant?"));
  }
  return sentences;
}

std::vector<std::string> strange_variables() { return strange_variables(::environ); }

void warn_of_strange_variables() {
  static std::atomic<bool> told{false};
  if (!log_enabled(LogLevel::kWarn) || told.exchange(true)) return;
  for (const std::string& sentence : strange_variables()) log(LogLevel::kWarn, "%s", sentence.c_str());
}

}  // namespace canarynet

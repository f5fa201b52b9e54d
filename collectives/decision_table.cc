#include "collectives/decision_table.h"

#include <algorithm>
#include <tuple>

#include "base/settings.h"
#include "base/text.h"

namespace canarynet {
namespace {

std::string known_planners() {
  std::string known;
  for (const Planner& p : planners()) known += (known.empty() ? "" : ", ") + std::string(name_of(p.id));
  return known;
}

std::string known_collectives() {
  std::string known;
  for (int c = 0; c < kCollectiveCount; ++c)
    known += (known.empty() ? "" : ", ") + std::string(name_of(static_cast<Collective>(c)));
  return known;
}

std::string quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

Status wrong(std::string text) { return {CANARY_INVALID_SETTING, std::move(text)}; }

bool has_sizes(Collective c) { return c != Collective::kAllToAllV && c != Collective::kBarrier; }

// Reads "64K-1M", "64K-", "-64K" or "-".
Status parse_range(std::string_view text, Decision* row) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return wrong(quoted(text) + " is no range of sizes: write 0-64K, or 64K-");
  const std::string_view from = text.substr(0, dash), to = text.substr(dash + 1);
  for (const auto& [part, bytes] : {std::pair{from, &row->from_bytes}, std::pair{to, &row->to_bytes}}) {
    if (part.empty()) continue;
    const auto size = parse_bytes(part);
    if (!size.ok() || size.value().count < 0)
      return wrong(quoted(part) + " in " + quoted(text) + " is no size: it takes bytes, as in 4096, 64K, 1MiB");
    *bytes = static_cast<std::uint64_t>(size.value().count);
  }
  if (row->from_bytes >= row->to_bytes) return wrong("the range " + quoted(text) + " holds no size: from comes first");
  return {};
}

// Reads "ring" or, with the size of its pieces, "ring/32K".
Status parse_planner(std::string_view text, Decision* row) {
  const std::size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    const auto size = parse_bytes(text.substr(slash + 1));
    if (!size.ok() || size.value().count < 1024 || size.value().count > (1 << 20) || size.value().count % 128 != 0)
      return wrong("the pieces in " + quoted(text) + " are no size from 1K to 1M that 128 divides: write ring/32K");
    row->piece_bytes = static_cast<std::uint32_t>(size.value().count);
  }
  const std::string_view name = text.substr(0, slash);
  if (canarynet::parse(name, &row->planner)) return {};
  return wrong("there is no planner " + quoted(name) + "; it takes one of " + known_planners());
}

std::string as_range(const Decision& row) {
  const auto size = [](std::uint64_t bytes) {
    const bool whole = bytes != 0 && bytes % 1024 == 0;
    return whole ? std::to_string(bytes / 1024) + "K" : std::to_string(bytes);
  };
  return size(row.from_bytes) + "-" + (row.to_bytes == Decision::kNoEnd ? "" : size(row.to_bytes));
}

std::string pieces(std::uint32_t bytes) {
  return bytes % 1024 == 0 ? std::to_string(bytes / 1024) + "K" : std::to_string(bytes);
}

bool is_any_size(const Decision& row) { return row.from_bytes == 0 && row.to_bytes == Decision::kNoEnd; }

}  // namespace

Result<DecisionTable> DecisionTable::parse(std::string_view text) {
  DecisionTable table;
  if (text.empty()) return table;
  if (text.find_first_of("=:;") == std::string_view::npos) {
    PlannerId id{};
    if (!canarynet::parse(text, &id)) {
      return wrong("it takes one of " + known_planners() +
                   ", or rules for collectives: all_reduce:0-64K=mesh,64K-=ring;broadcast=tree");
    }
    for (int c = 0; c < kCollectiveCount; ++c) {
      const auto collective = static_cast<Collective>(c);
      if (planner(id).defines(collective, 2)) table.rows_.push_back({.collective = collective, .planner = id});
    }
    return table;
  }
  for (const std::string_view rule : split(text, ';')) {
    const std::size_t name_end = rule.find_first_of(":=");
    const std::string_view name = rule.substr(0, name_end);
    Decision row;
    if (name_end == std::string_view::npos)
      return wrong("the rule " + quoted(rule) + " has no \"=\": write collective=planner");
    if (!canarynet::parse(name, &row.collective)) {
      return wrong("the rule " + quoted(rule) + " begins with no collective; it takes one of " + known_collectives());
    }
    const bool by_size = rule[name_end] == ':';
    if (by_size && !has_sizes(row.collective)) {
      return wrong("the rule " + quoted(rule) + " gives sizes, but ranks know no common size of " + std::string(name) +
                   ": write " + std::string(name) + "=planner");
    }
    const std::string_view choices = rule.substr(name_end + 1);
    for (const std::string_view choice : by_size ? split(choices) : std::vector{choices}) {
      Decision one = row;
      std::string_view chosen = choice;
      if (by_size) {
        const std::size_t equals = choice.find('=');
        if (equals == std::string_view::npos)
          return wrong(quoted(choice) + " in " + quoted(rule) + " has no \"=\": write 0-64K=planner");
        if (Status bad = parse_range(choice.substr(0, equals), &one); !bad.ok()) return bad;
        chosen = choice.substr(equals + 1);
      }
      if (Status bad = parse_planner(chosen, &one); !bad.ok()) return bad;
      if (!planner(one.planner).defines(one.collective, 2))
        return wrong(std::string(name_of(one.planner)) + " does not define " + std::string(name) + ", as " +
                     quoted(rule) + " asks");
      if (Status bad = table.add(one); !bad.ok()) return bad;
    }
  }
  return table;
}

Status DecisionTable::add(const Decision& row) {
  const auto before = [](const Decision& a, const Decision& b) {
    return std::tuple(a.collective, a.from_bytes) < std::tuple(b.collective, b.from_bytes);
  };
  const auto at = std::upper_bound(rows_.begin(), rows_.end(), row, before);
  const auto overlaps = [&](const Decision& other) {
    return other.collective == row.collective && other.from_bytes < row.to_bytes && row.from_bytes < other.to_bytes;
  };
  for (const auto& other : {at == rows_.begin() ? rows_.end() : at - 1, at}) {
    if (other == rows_.end() || !overlaps(*other)) continue;
    return wrong("two rules for " + std::string(name_of(row.collective)) +
                 " speak of the same sizes: " + as_range(*other) + " and " + as_range(row));
  }
  rows_.insert(at, row);
  return {};
}

const Decision* DecisionTable::find(Collective collective, std::uint64_t bytes) const {
  const auto covers = [&](const Decision& row) { return row.covers(collective, bytes); };
  const auto found = std::find_if(rows_.begin(), rows_.end(), covers);
  return found == rows_.end() ? nullptr : &*found;
}

std::string DecisionTable::to_string() const {
  std::string out;
  for (auto row = rows_.begin(); row != rows_.end(); ++row) {
    const bool continues = row != rows_.begin() && row[-1].collective == row->collective;
    out += continues ? "," : (out.empty() ? "" : ";") + std::string(name_of(row->collective));
    if (!is_any_size(*row)) out += (continues ? "" : ":") + as_range(*row);
    out += "=" + std::string(name_of(row->planner));
    if (row->piece_bytes != 0) out += "/" + pieces(row->piece_bytes);
  }
  return out;
}

std::uint64_t operation_bytes(const PlanRequest& request) {
  if (!has_sizes(request.collective)) return 0;
  // The size is that of a rank's row of blocks, not of the whole square.
  const auto rows = is_pairwise(request.collective) ? static_cast<std::uint64_t>(request.ranks) : 1;
  return request.total() / rows * request.element_bytes;
}

}  // namespace canarynet

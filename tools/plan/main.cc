// canary-plan: shows, proves, costs and chooses schedules.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/settings.h"
#include "collectives/candidates.h"
#include "collectives/checker.h"
#include "collectives/ring_order.h"
#include "collectives/selector.h"
#include "tools/environment.h"
#include "tools/output.h"
#include "tools/plan/draw.h"
#include "tools/plan/network_file.h"
#include "tools/plan/options.h"

namespace canarynet::plan {
namespace {

constexpr int kFailed = 1;
constexpr std::uint64_t kDoubleTreePiece = 128 * 1024;

std::string text_of(const PlanOptions& o, PlannerId id, int ranks) {
  return std::string(name_of(id)) + " " + std::string(name_of(o.collective)) + ", " + std::to_string(ranks) + " ranks";
}

// The planners asked for, or all that define the collective.
std::vector<PlannerId> planners_of(const PlanOptions& o) {
  if (!o.planners.empty()) return o.planners;
  std::vector<PlannerId> all;
  for (const Planner& p : planners()) {
    if (p.defines(o.collective, o.ranks_max)) all.push_back(p.id);
  }
  return all;
}

// Returns false if refused. A planner asked for by name must be possible; of "all" others are skipped, with the reason.
bool possible(const PlanOptions& o, PlannerId id, const PlanRequest& request, bool* failed) {
  const Status status = planner(id).check(request);
  if (status.ok()) return true;
  *failed |= !o.planners.empty();
  std::fprintf(stderr, "canary-plan: %s: %s\n", text_of(o, id, request.ranks).c_str(), status.text().c_str());
  return false;
}

bool write(const std::string& path, const std::string& text) { return tools::write_output("canary-plan", path, text); }

int show(const PlanOptions& o) {
  const int n = o.ranks_max;
  const Reachability reach = reach_of(o, n);
  const std::vector<int> host_of = hosts_of(o, n);
  const PlanRequest request = request_of(o, n, reach, host_of);
  bool failed = false;
  std::string drawings;
  for (const PlannerId id : planners_of(o)) {
    if (!possible(o, id, request, &failed)) continue;
    std::vector<std::uint64_t> leaves;
    planner(id).leaves(request, &leaves);
    std::vector<Plan> plans(static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r) planner(id).plan(request, r, &plans[static_cast<std::size_t>(r)]);
    const std::string title = text_of(o, id, n);
    if (o.svg_path != "-") {
      std::printf("%s: %s\n%zu leaves:", title.c_str(), planner(id).sentence, leaves.size() - 1);
      for (std::size_t i = 0; i + 1 < leaves.size() && i < 16; ++i)
        std::printf(" [%llu,%llu)", static_cast<unsigned long long>(leaves[i]),
                    static_cast<unsigned long long>(leaves[i + 1]));
      std::printf("%s elements of %u bytes\n%s", leaves.size() > 17 ? " ..." : "", request.element_bytes,
                  draw_text(plans, o.rank).c_str());
      for (int r = 0; o.steps && r < n; ++r) {
        if (o.rank < 0 || r == o.rank) std::fputs(to_string(plans[static_cast<std::size_t>(r)], r).c_str(), stdout);
      }
      std::puts("");
    }
    if (drawings.empty()) drawings = draw_svg(plans, title);
  }
  if (!o.svg_path.empty() && !drawings.empty()) failed |= !write(o.svg_path, drawings);
  return failed ? kFailed : 0;
}

int check(const PlanOptions& o) {
  bool failed = false;
  for (const PlannerId id : planners_of(o)) {
    int proven = 0;
    for (int n = o.ranks_min; n <= o.ranks_max; ++n) {
      const Reachability reach = reach_of(o, n);
      const std::vector<int> host_of = hosts_of(o, n);
      const PlanRequest request = request_of(o, n, reach, host_of);
      if (!possible(o, id, request, &failed)) continue;
      if (const Status status = check_planner(id, request); !status.ok()) {
        std::fprintf(stderr, "canary-plan: %s: WRONG: %s\n", text_of(o, id, n).c_str(), status.text().c_str());
        failed = true;
        continue;
      }
      ++proven;
    }
    std::printf("%-18s %s: proven for %d of %d sizes\n", std::string(name_of(id)).c_str(),
                std::string(name_of(o.collective)).c_str(), proven, o.ranks_max - o.ranks_min + 1);
  }
  return failed ? kFailed : 0;
}

// In bcube_x on one flat network all send to all in turn, and nobody stands for others: 4,096 ranks would take 40 s and
// 3.6 GB.
bool short_enough(const PlanOptions& o, PlannerId id, int ranks, bool* failed) {
  constexpr int kRanksMax = 2048;
  if (id != PlannerId::kBCubeX || o.bcube.levels != 0 || ranks <= kRanksMax) return true;
  *failed |= !o.planners.empty();
  std::fprintf(stderr, "canary-plan: %s: at most %d ranks of a flat network can be walked\n",
               text_of(o, id, ranks).c_str(), kRanksMax);
  return false;
}

int cost(const PlanOptions& o) {
  const int n = o.ranks_max;
  const Reachability reach = reach_of(o, n);
  const std::vector<int> host_of = hosts_of(o, n);
  const PlanRequest request = request_of(o, n, reach, host_of);
  const bool table = o.json_path != "-";
  nlohmann::json json = {{"op", name_of(o.collective)},
                         {"ranks", n},
                         {"bytes", o.bytes},
                         {"rails", o.rails},
                         {"ranks_per_host", o.ranks_per_host},
                         {"alpha_s", o.model.alpha},
                         {"beta_s_per_byte", o.model.beta},
                         {"gamma_s_per_byte", o.model.gamma},
                         {"post_s", o.model.post},
                         {"costs_seconds", nlohmann::json::object()},
                         {"closed_forms_seconds", nlohmann::json::object()}};
  bool failed = false;
  if (table) std::printf("%-18s %14s %14s\n", "algorithm", "walk (s)", "closed form");
  for (const PlannerId id : planners_of(o)) {
    if (!possible(o, id, request, &failed) || !short_enough(o, id, n, &failed)) continue;
    CostModel model = o.model;
    if (id == PlannerId::kDoubleTree && !o.piece_given) model.piece_bytes = kDoubleTreePiece;
    const double walk = walk_cost(id, request, o.rails, model);
    const auto form = closed_form(id, request, o.rails, model);
    const std::string name(name_of(id));
    json["costs_seconds"][name] = walk;
    if (form.ok()) json["closed_forms_seconds"][name] = form.value();
    if (table)
      std::printf("%-18s %14.6g %14s\n", name.c_str(), walk, form.ok() ? std::to_string(form.value()).c_str() : "-");
  }
  if (!o.json_path.empty()) failed |= !write(o.json_path, json.dump(1) + "\n");
  return failed ? kFailed : 0;
}

// The engine's own piece size, if nothing says otherwise.
constexpr std::uint64_t kUsualPiece = 128 * 1024;

int choose(const PlanOptions& o) {
  auto read = read_network_file(o.network_path);
  if (!read.ok()) {
    std::fprintf(stderr, "canary-plan: %s\n", read.status().text().c_str());
    return kFailed;
  }
  const NetworkFile& network = read.value();
  if (o.root >= network.ranks()) {
    std::fprintf(stderr, "canary-plan: --root %d: %s has ranks 0 to %d\n", o.root, o.network_path.c_str(),
                 network.ranks() - 1);
    return kFailed;
  }
  PlanRequest request{.collective = o.collective,
                      .ranks = network.ranks(),
                      .root = has_root(o.collective) ? o.root : 0,
                      .reach = &network.reach,
                      .bcube = network.bcube,
                      .servers = o.servers,
                      .host_of = network.host_of};
  size_of(o, network.ranks(), &request);
  CostModel model = network.model;
  model.links = &network.links;
  const auto unmeasured = select_planner(request, {});
  if (!unmeasured.ok()) {
    std::fprintf(stderr, "canary-plan: %s\n", unmeasured.status().text().c_str());
    return kFailed;
  }
  std::vector<Candidate> all = cost_candidates(request, network.rails, model, o.pieces);
  // Rings may stand in a better order than that of the ranks; each takes the better of the two.
  const std::vector<std::uint16_t> order = best_ring_order(request, &network.links);
  const bool reordered = !std::is_sorted(order.begin(), order.end());
  std::vector<PlannerId> in_order;  // planners whose best costs are those in `order`
  if (reordered) {
    PlanRequest other = request;
    other.ring_order = order;
    for (const Candidate& c : cost_candidates(other, network.rails, model, o.pieces)) {
      if (c.planner != PlannerId::kRing && c.planner != PlannerId::kRingPerRail) continue;
      const auto same = [&](const Candidate& k) { return k.planner == c.planner && k.piece_bytes == c.piece_bytes; };
      const auto known = std::find_if(all.begin(), all.end(), same);
      if (known != all.end() && known->seconds <= c.seconds) continue;
      if (known != all.end()) {
        *known = c;
      } else {
        all.push_back(c);
      }
      if (std::find(in_order.begin(), in_order.end(), c.planner) == in_order.end()) in_order.push_back(c.planner);
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  }
  model.piece_bytes = kUsualPiece;
  const double of_unmeasured = walk_cost(unmeasured.value(), request, network.rails, model);
  const double best = all.front().seconds;

  nlohmann::json json = {
      {"op", name_of(o.collective)},
      {"ranks", network.ranks()},
      {"bytes", o.bytes},
      {"chosen", {{"algo", name_of(all.front().planner)}, {"piece_bytes", all.front().piece_bytes}}},
      {"predicted_seconds", best},
      {"unmeasured",
       {{"algo", name_of(unmeasured.value())}, {"piece_bytes", kUsualPiece}, {"predicted_seconds", of_unmeasured}}},
      {"candidates", nlohmann::json::array()}};
  for (const Candidate& c : all) {
    json["candidates"].push_back(
        {{"algo", name_of(c.planner)}, {"piece_bytes", c.piece_bytes}, {"predicted_seconds", c.seconds}});
  }
  for (const PlannerId id : in_order) json["ring_orders"][std::string(name_of(id))] = order;
  if (o.json_path != "-") {
    std::printf("%-18s %10s %14s %14s\n", "algorithm", "piece", "predicted (s)", "of the best");
    // Each planner comes with its best piece size.
    std::vector<PlannerId> seen;
    for (const Candidate& c : all) {
      if (std::find(seen.begin(), seen.end(), c.planner) != seen.end()) continue;
      seen.push_back(c.planner);
      std::printf("%-18s %10s %14.6g %13.2fx\n", std::string(name_of(c.planner)).c_str(),
                  as_written(Bytes{static_cast<std::int64_t>(c.piece_bytes)}).c_str(), c.seconds, c.seconds / best);
    }
    for (const PlannerId id : in_order) {
      std::printf("%s in the order", std::string(name_of(id)).c_str());
      for (const std::uint16_t rank : order) std::printf(" %d", rank);
      std::puts("");
    }
    std::printf("without measurements: %s with pieces of %s, %.6g s, %.2fx\n",
                std::string(name_of(unmeasured.value())).c_str(),
                as_written(Bytes{static_cast<std::int64_t>(kUsualPiece)}).c_str(), of_unmeasured, of_unmeasured / best);
  }
  return o.json_path.empty() || write(o.json_path, json.dump(1) + "\n") ? 0 : kFailed;
}

int run(const std::vector<std::string>& arguments) {
  const ParsedOptions parsed = parse_plan_options(arguments);
  if (parsed.exit_status >= 0) {
    std::fputs(parsed.text.c_str(), parsed.exit_status == 0 ? stdout : stderr);
    return parsed.exit_status;
  }
  tools::warn_of_environment("canary-plan");
  switch (parsed.options.command) {
    case Command::kShow:
      return show(parsed.options);
    case Command::kCheck:
      return check(parsed.options);
    case Command::kCost:
      return cost(parsed.options);
    case Command::kChoose:
      return choose(parsed.options);
  }
  return kFailed;
}

}  // namespace
}  // namespace canarynet::plan

int main(int argc, char** argv) { return canarynet::plan::run({argv + 1, argv + argc}); }

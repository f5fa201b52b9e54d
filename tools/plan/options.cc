#include "tools/plan/options.h"

#include <CLI/CLI.hpp>
#include <optional>

#include "base/settings.h"
#include "base/text.h"
#include "topology/rails.h"

namespace canarynet::plan {
namespace {

constexpr int kRanksMax = 1024;      // all ranks' plans are in memory at once
constexpr int kCostRanksMax = 4096;  // ranks that stand for others are walked, so that takes little

using tools::number;
using tools::rate;
using tools::seconds;
using tools::whole;
using tools::wrong;

std::uint64_t bytes(std::string_view option, std::string_view text) {
  const auto value = parse_bytes(text);
  if (!value.ok() || value.value() > Bytes{std::int64_t{1} << 40})
    wrong(option, text, "a size such as 4096, 128KiB or 64MiB");
  return static_cast<std::uint64_t>(value.value().count);
}

std::string planner_names() {
  std::string names;
  for (const Planner& p : planners()) names += (names.empty() ? "" : ", ") + std::string(name_of(p.id));
  return names;
}
std::string collective_names() {
  std::string names;
  for (int c = 0; c < kCollectiveCount; ++c)
    names += (c == 0 ? "" : ", ") + std::string(name_of(static_cast<Collective>(c)));
  return names;
}

struct Texts {
  std::string op, algo, ranks, rails, wiring, root, servers, per_host, size, rank, alpha, bandwidth, gamma, post, piece;
  std::string local_alpha, local_bandwidth;
};

void fill(const Texts& t, PlanOptions* o) {
  const int ranks_max = o->command == Command::kCost ? kCostRanksMax : kRanksMax;
  if (!t.op.empty() && !parse(t.op, &o->collective)) wrong("--op", t.op, collective_names());
  if (!t.algo.empty() && t.algo != "all") {
    for (const std::string_view name : split(t.algo)) {
      PlannerId id{};
      if (!parse(name, &id)) wrong("--algo", t.algo, "a list of " + planner_names() + ", or all");
      o->planners.push_back(id);
    }
  }
  if (!t.rails.empty()) o->rails = number("--rails", t.rails, 1, kRailsMax);
  if (!t.wiring.empty() && t.wiring != "flat") {
    const auto comma = t.wiring.find(',');
    const bool named = t.wiring.starts_with("bcube:") && comma != std::string::npos;
    const auto r = named ? whole(std::string_view(t.wiring).substr(6, comma - 6), 2, 64) : std::nullopt;
    const auto levels = named ? whole(std::string_view(t.wiring).substr(comma + 1), 1, 11) : std::nullopt;
    int n = 1;
    for (int l = 0; r && levels && l < *levels && n <= ranks_max; ++l) n *= *r;
    if (!r || !levels || n > ranks_max)
      wrong("--wiring", t.wiring, "flat or bcube:R,L with at most " + std::to_string(ranks_max) + " ranks");
    o->bcube = {*r, *levels};
    o->rails = *levels;
    o->ranks_min = o->ranks_max = n;
  }
  if (!t.ranks.empty()) {
    const auto dash = t.ranks.find('-');
    const bool range = dash != std::string::npos;
    const auto first = whole(std::string_view(t.ranks).substr(0, dash), 1, ranks_max);
    const auto last = range ? whole(std::string_view(t.ranks).substr(dash + 1), 1, ranks_max) : first;
    if (!first || !last || *first > *last || (range && o->command != Command::kCheck)) {
      wrong("--ranks", t.ranks,
            "a number from 1 to " + std::to_string(ranks_max) +
                (o->command == Command::kCheck ? ", or two such as 2-16" : ""));
    }
    if (o->bcube.levels != 0 && (*first != o->ranks_min || *last != o->ranks_min))
      wrong("--ranks", t.ranks, std::to_string(o->ranks_min) + " with --wiring " + t.wiring);
    o->ranks_min = *first;
    o->ranks_max = *last;
  }
  if (o->command == Command::kCheck && o->ranks_max > 64)
    wrong("--ranks", t.ranks.empty() ? std::to_string(o->ranks_max) : t.ranks, "at most 64: the proof is symbolic");
  // A network's number of ranks is known only when its file has been read.
  const int root_max = o->command == Command::kChoose ? ranks_max - 1 : o->ranks_min - 1;
  if (!t.root.empty()) o->root = number("--root", t.root, 0, root_max);
  if (!t.servers.empty()) o->servers = number("--servers", t.servers, 1, ranks_max);
  if (!t.per_host.empty()) o->ranks_per_host = number("--ranks-per-host", t.per_host, 1, ranks_max);
  if (!t.size.empty()) o->bytes = bytes("--bytes", t.size);
  if (!o->svg_path.empty() && o->planners.size() != 1) wrong("--svg", o->svg_path, "one schedule: name it with --algo");
  if (!t.rank.empty()) o->rank = number("--rank", t.rank, 0, o->ranks_max - 1);
  if (o->command == Command::kChoose && !t.piece.empty()) {
    o->pieces.clear();
    for (const std::string_view piece : split(t.piece)) {
      o->pieces.push_back(bytes("--piece", piece));
      if (o->pieces.back() == 0) wrong("--piece", t.piece, "a list of sizes such as 64KiB,128KiB");
    }
  }
  if (o->command != Command::kCost) return;
  o->model.alpha = seconds("--alpha", t.alpha);
  o->model.beta = 8 / rate("--bandwidth", t.bandwidth);
  if (!t.gamma.empty()) o->model.gamma = seconds("--gamma", t.gamma);
  if (!t.post.empty()) o->model.post = seconds("--post", t.post);
  if (!t.local_alpha.empty()) o->model.local_alpha = seconds("--local-alpha", t.local_alpha);
  if (!t.local_bandwidth.empty()) o->model.local_beta = 8 / rate("--local-bandwidth", t.local_bandwidth);
  o->piece_given = !t.piece.empty();
  if (o->piece_given) o->model.piece_bytes = bytes("--piece", t.piece);
}

constexpr const char* kFooter = R"(
  canary-plan show --algo ring --ranks 4 --svg ring.svg
  canary-plan check --algo all --ranks 1-64
  canary-plan cost --op all_reduce --algo ring,tree --ranks 8 --bytes 100MiB --alpha 1ms --bandwidth 10gbit --json
  canary-plan choose --network net.toml --bytes 64MiB

The cost is a walk over the plan by the alpha-beta model; docs/collectives.md has the model and the closed forms.
Exit status: 0; 1 a plan that can't be made or proven; 2 wrong arguments.)";

}  // namespace

ParsedOptions parse_plan_options(const std::vector<std::string>& arguments) {
  ParsedOptions parsed;
  PlanOptions& o = parsed.options;
  Texts t;
  CLI::App app{"Shows, proves and costs schedules.", "canary-plan"};
  app.footer(kFooter);
  app.require_subcommand(1);
  auto* show = app.add_subcommand("show", "draws who sends what to whom, round by round");
  auto* check = app.add_subcommand("check", "proves schedules symbolically, up to 64 ranks");
  auto* cost = app.add_subcommand("cost", "how long they take");
  auto* choose = app.add_subcommand("choose", "which one a network described in a file is served best by, and why");
  for (auto* command : {show, check, cost, choose}) {
    command->add_option("--op", t.op, collective_names() + " [all_reduce]");
    command->add_option("--root", t.root, "root of broadcast, reduce, gather and scatter [0]");
    command->add_option("--servers", t.servers, "of parameter_server [1]");
    command->add_option("--bytes", t.size, "the whole buffer [1MiB]");
  }
  for (auto* command : {show, check, cost}) {
    command->add_option("--algo", t.algo, "list of " + planner_names() + "; or all [all]");
    command->add_option("--ranks", t.ranks, "number of ranks; check also takes a range, 2-16 [4]");
    command->add_option("--wiring", t.wiring, "flat, or bcube:R,L (ranks R^L, rails L) [flat]");
    command->add_option("--rails", t.rails, "rails of each rank on flat wiring [1]");
    command->add_option("--ranks-per-host", t.per_host, "ranks that share a host and its rails [1]");
  }
  show->add_option("--rank", t.rank, "one rank's part only");
  show->add_flag("--steps", o.steps, "every step with its dependencies");
  show->add_option("--svg", o.svg_path, "draws into a file as well; - writes the drawing only");
  cost->add_option("--alpha", t.alpha, "start-up time of a message on a link")->required();
  cost->add_option("--bandwidth", t.bandwidth, "of one rail")->required();
  cost->add_option("--gamma", t.gamma, "seconds to add a byte [0]");
  cost->add_option("--post", t.post, "time to post one more message [0]");
  cost->add_option("--local-alpha", t.local_alpha, "start-up time of a message between ranks of one host [0]");
  cost->add_option("--local-bandwidth", t.local_bandwidth, "between ranks of one host [free]");
  cost->add_option("--piece", t.piece, "messages are pieces of this size, which pipeline [whole steps; dbtree 128KiB]");
  choose->add_option("--network", o.network_path, "TOML file: hosts, NICs, links that differ (docs/canary-plan.md)")
      ->required();
  choose->add_option("--piece", t.piece, "list of piece sizes to try [32KiB to 1MiB]");
  for (auto* command : {cost, choose})
    command->add_flag("--json{-}", o.json_path, "results as JSON instead of the table; --json=FILE: beside it");
  const auto take = [&] {
    o.command = show->parsed()    ? Command::kShow
                : check->parsed() ? Command::kCheck
                : cost->parsed()  ? Command::kCost
                                  : Command::kChoose;
    fill(t, &o);
  };
  tools::parse(app, arguments, take, &parsed);
  return parsed;
}

Reachability reach_of(const PlanOptions& options, int ranks) {
  return options.bcube.levels != 0 ? Reachability::bcube(options.bcube.r, options.bcube.levels)
                                   : Reachability::full(ranks, options.rails);
}

std::vector<int> hosts_of(const PlanOptions& options, int ranks) {
  std::vector<int> host_of(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) host_of[static_cast<std::size_t>(r)] = r / options.ranks_per_host;
  return host_of;
}

PlanRequest request_of(const PlanOptions& options, int ranks, const Reachability& reach,
                       const std::vector<int>& host_of) {
  PlanRequest request{.collective = options.collective,
                      .ranks = ranks,
                      .root = has_root(options.collective) ? options.root : 0,
                      .reach = &reach,
                      .bcube = options.bcube.levels != 0 ? options.bcube : find_bcube(reach, options.rails),
                      .servers = options.servers,
                      .host_of = host_of};
  size_of(options, ranks, &request);
  return request;
}

void size_of(const PlanOptions& options, int ranks, PlanRequest* request) {
  const bool floats = options.bytes % 4 == 0 && options.collective != Collective::kBarrier;
  const std::uint64_t elements = options.bytes / (floats ? 4 : 1);
  request->element_bytes = floats ? 4 : 1;
  request->count = options.collective == Collective::kBarrier ? 0
                   : in_blocks(options.collective)            ? elements / static_cast<std::uint64_t>(ranks)
                                                              : elements;
}

}  // namespace canarynet::plan

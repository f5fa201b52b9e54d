// sim/choice_bench.cc -- how good the choice of a planner is, in virtual time. It runs every planner that can run a
// network's all-reduce there, and compares the best of all with what the cost model chooses from the true α and β of
// the links, and with what the static choice takes.
//
//   canary-sim-choice [--quick] [--live] [--why] [--bytes N]... [NAME...]
//     NAME: only beds whose name contains one of the texts; --bytes: only these sizes (4K, 1M, ...). Unequal beds of 16
//     hosts take long, so they run only where a NAME asks for them.
//
// With --live, the group's own measured table takes the place of the model's choice from the truth: a cluster runs the
// all-reduce by what its engines measure, until its table has been the same for five seconds (ten seconds at least, ten
// minutes at most: told as "unsettled"), and what it has settled on is timed, again where trials began meanwhile.
// Applications compute between operations, so there are 5 ms between two, which don't count. The other planners, with
// the engine's pieces and with a quarter of them, run for ten seconds like that, since lanes that have carried more
// know their rates better. The prediction is the table's (0 %: it has no row). --why adds what canary_explain() says,
// how much of the time until it settled went to trials, how its operations' times spread, and the times of all
// planners.
// Regret is the time of the chosen planner / time of the best, minus 1. The prediction error is that of the chosen
// planner's time. Exit status 1: an operation failed, or a sum was wrong; 2: a wrong argument. (The times hold the
// network's part of an engine's cost, not the processors'.)
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/settings.h"
#include "collectives/candidates.h"
#include "collectives/selector.h"
#include "sim/cluster.h"

using namespace canarynet;

namespace {

struct Nic {
  double mbit = 1000;
  Nanos delay = 50_us;  // one way
};

struct Bed {
  std::string name;
  Wiring wiring;
  BCubeShape bcube;
  std::vector<std::vector<Nic>> nics;  // [host][rail]
  int ranks_per_host = 1;
  double bad_way_mbit = 0;  // between hosts 0 and 1, both ways; 0: there is none
  bool if_named = false;    // it runs only where a name on the command line asks for it

  int hosts() const { return static_cast<int>(nics.size()); }
  int ranks() const { return hosts() * ranks_per_host; }
  int rails() const { return static_cast<int>(nics.front().size()); }
};

Bed flat(std::string name, int hosts, const std::vector<Nic>& nics) {
  const auto n = static_cast<std::size_t>(hosts);
  return {std::move(name), Wiring::flat(hosts, static_cast<int>(nics.size())), {}, {n, nics}};
}

// A link per pair, but the NICs with which hosts 0 and 1 would meet are each alone in a network.
Bed without_an_edge(std::string name, int hosts) {
  const auto n = static_cast<std::size_t>(hosts);
  Bed bed{std::move(name), Wiring::mesh(hosts), {}, {n, std::vector<Nic>(n - 1, {100})}};
  bed.wiring.networks[0][0] = static_cast<std::uint32_t>(n * n);
  return bed;
}

std::vector<Bed> all_beds() {
  std::vector<Bed> beds;
  for (const int n : {2, 3, 4, 8, 16}) {
    const std::string hosts = std::to_string(n) + " hosts, ";
    beds.push_back(flat(hosts + "1 Gbit/s", n, {{}}));
    beds.push_back(flat(hosts + "1 Gbit/s, 2 ms", n, {{1000, 2_ms}}));
    beds.push_back(flat(hosts + "500 + 125 Mbit/s", n, {{500}, {125}}));
    if (n == 2) continue;
    const std::size_t equal = beds.size();
    Bed slow = flat(hosts + "one of them slow", n, {{500}, {500}});
    slow.nics.back() = {{100}, {100}};
    beds.push_back(slow);
    Bed rail = flat(hosts + "one slow rail", n, {{500}, {500}});
    rail.nics.back() = {{500}, {50}};
    beds.push_back(rail);
    Bed far = flat(hosts + "one of them far", n, {{1000}});
    far.nics.back() = {{1000, 5_ms}};
    beds.push_back(far);
    Bed bad = flat(hosts + "a bad way between two", n, {{500}});
    bad.bad_way_mbit = 25;
    beds.push_back(bad);
    for (std::size_t i = equal; i < beds.size(); ++i) beds[i].if_named = n == 16;
  }
  for (const int n : {3, 5}) {
    beds.push_back({std::to_string(n) + " hosts, a link per pair",
                    Wiring::mesh(n),
                    {},
                    {static_cast<std::size_t>(n), std::vector<Nic>(static_cast<std::size_t>(n) - 1, {100})}});
  }
  for (const auto& [r, levels] : {std::pair{2, 2}, {3, 2}, {2, 3}}) {
    const int n = static_cast<int>(std::lround(std::pow(r, levels)));
    beds.push_back({"bcube(" + std::to_string(r) + "," + std::to_string(levels) + ")",
                    Wiring::bcube(r, levels),
                    {r, levels},
                    {static_cast<std::size_t>(n), std::vector<Nic>(static_cast<std::size_t>(levels), {500})}});
  }
  for (const int n : {4, 5}) beds.push_back(without_an_edge("an edge missing among " + std::to_string(n), n));
  beds.push_back(flat("4 x 2 ranks, 1 Gbit/s", 4, {{}}));
  beds.back().ranks_per_host = 2;
  beds.push_back(flat("4 x 2 ranks, 500 + 125 Mbit", 4, {{500}, {125}}));
  beds.back().ranks_per_host = 2;
  beds.push_back(flat("3 x 4 ranks, one host slow", 3, {{500}, {500}}));
  beds.back().ranks_per_host = 4;
  beds.back().nics.back() = {{100}, {100}};
  return beds;
}

// Ranks of one host meet in its memory.
Reachability reach_of(const Bed& bed) {
  Reachability reach(bed.ranks());
  for (int a = 0; a < bed.ranks(); ++a) {
    for (int b = 0; b < a; ++b) {
      const int host_a = a / bed.ranks_per_host, host_b = b / bed.ranks_per_host;
      if (host_a == host_b) {
        reach.set(a, b, Reachability::kHostBit, Reachability::kHostBit);
        continue;
      }
      std::uint32_t of_a = 0, of_b = 0;
      for (int i = 0; i < bed.rails(); ++i) {
        for (int k = 0; k < bed.rails(); ++k) {
          const auto& networks = bed.wiring.networks;
          if (networks[static_cast<std::size_t>(host_a)][static_cast<std::size_t>(i)] !=
              networks[static_cast<std::size_t>(host_b)][static_cast<std::size_t>(k)])
            continue;
          of_a |= 1u << i;
          of_b |= 1u << k;
        }
      }
      reach.set(a, b, of_a, of_b);
    }
  }
  return reach;
}

LinkCosts truth(const Bed& bed) {
  LinkCosts links;
  for (int a = 0; a < bed.hosts(); ++a) {
    for (int b = 0; b < bed.hosts(); ++b) {
      if (a == b) continue;
      for (int i = 0; i < bed.rails(); ++i) {
        for (int k = 0; k < bed.rails(); ++k) {
          const auto& networks = bed.wiring.networks;
          const auto from = static_cast<std::size_t>(a), to = static_cast<std::size_t>(b);
          const auto mine = static_cast<std::size_t>(i), theirs = static_cast<std::size_t>(k);
          if (networks[from][mine] != networks[to][theirs]) continue;
          const Nic &out = bed.nics[from][mine], &in = bed.nics[to][theirs];
          const double way = bed.bad_way_mbit > 0 && a + b == 1 ? bed.bad_way_mbit : out.mbit;
          links.set(a * bed.ranks_per_host, b * bed.ranks_per_host, i,
                    {out.delay.seconds(), 8 / (std::min({out.mbit, in.mbit, way}) * 1e6)});
        }
      }
    }
  }
  return links;
}

// Seconds of one all-reduce: the mean of those that begin within 100 ms after an equally long warm-up, or, with
// `paused`, within a second after kSettles, with pauses; < 0: it failed. By `forced`, or, with none, by what the group
// settles on, which is told in *live.
struct Live {
  std::string planner, why;
  double predicted = 0;
  bool settled = true;
  int tables = 0;
  double on_trial = 0;         // part of the time until it settled
  std::vector<double> took{};  // seconds, each operation that was timed
};
struct Forced {
  PlannerId planner;
  std::uint64_t piece_bytes;
};
// A plan on trial takes some operations: a choice is settled once so many have not changed it, in kQuiet at least.
constexpr int kQuietOperations = 8;
constexpr Nanos kSettles = 10_s, kQuiet = 5_s, kSettlesMax = 600_s, kPause = 5_ms;
double run(const Bed& bed, std::optional<Forced> forced, std::uint64_t bytes, bool paused, Live* live = nullptr) {
  ClusterOptions o;
  o.hosts = bed.hosts();
  o.ranks_per_host = bed.ranks_per_host;
  o.wiring = bed.wiring;
  o.fabric.window_bytes = 16 << 20;
  o.settings.measured_choice = !forced;
  if (forced) {
    o.settings.algo = std::string(name_of(forced->planner));
    o.settings.piece_bytes = Bytes{static_cast<std::int64_t>(forced->piece_bytes)};
  }
  Cluster c(std::move(o));
  for (int h = 0; h < bed.hosts(); ++h) {
    for (int r = 0; r < bed.rails(); ++r) {
      const Nic& nic = bed.nics[static_cast<std::size_t>(h)][static_cast<std::size_t>(r)];
      c.fabric().nic(h, r) = NicOptions::link(nic.delay, BytesPerSec::from_mbit(static_cast<std::int64_t>(nic.mbit)));
    }
  }
  for (const auto& [a, b] : {std::pair{0, 1}, {1, 0}}) {
    if (bed.bad_way_mbit > 0)
      c.fabric().path(a, b).stream_rate = BytesPerSec::from_mbit(static_cast<std::int64_t>(bed.bad_way_mbit));
  }
  if (!c.join()) return -1;
  const auto n = static_cast<std::size_t>(bed.ranks());
  std::vector<std::vector<std::int32_t>> input(n), output(n);
  std::int32_t sum = 0;
  for (std::size_t r = 0; r < n; ++r) {
    input[r].assign(bytes / 4, static_cast<std::int32_t>(r * 7 + 1));
    sum += static_cast<std::int32_t>(r * 7 + 1);
  }
  const auto once = [&] {
    std::vector<std::unique_ptr<OpTicket>> tickets;
    for (std::size_t r = 0; r < n; ++r) {
      output[r].assign(bytes / 4, 0);
      tickets.push_back(std::make_unique<OpTicket>());
      c.all_reduce(static_cast<int>(r), input[r].data(), output[r].data(), bytes / 4, CANARY_I32, CANARY_SUM,
                   tickets.back().get());
    }
    const auto done = [&] { return std::all_of(tickets.begin(), tickets.end(), [](auto& t) { return t->done(); }); };
    if (!c.run_until(done, 120_s)) return false;
    for (std::size_t r = 0; r < n; ++r) {
      const bool right = std::all_of(output[r].begin(), output[r].end(), [&](std::int32_t x) { return x == sum; });
      if (tickets[r]->code != CANARY_OK || !right) return false;
    }
    return true;
  };
  const auto table = [&] {
    const GroupMember& m = *c.world(0);
    return m.group->decisions ? m.group->decisions->table_for(m.entered + 1).identity() : 0;
  };
  const auto on_trial = [&] {
    const GroupMember& m = *c.world(0);
    if (!m.group->decisions) return false;
    const MeasuredRow* row = m.group->decisions->table_for(m.entered).find(Collective::kAllReduce, bytes);
    return row != nullptr && row->on_trial();
  };
  const Nanos start = c.now(), settles = paused ? kSettles : 100_ms;
  Nanos changed = start, latest;
  auto present = table();
  const auto is_quiet = [&] { return c.now() - changed >= std::max(kQuiet, latest * kQuietOperations); };
  const auto is_settled = [&] {
    if (c.now() - start < settles) return false;
    return live == nullptr || is_quiet() || c.now() - start >= kSettlesMax;
  };
  std::vector<double> took;
  const auto run_one = [&] {
    const Nanos submitted = c.now();
    if (!once()) return false;
    latest = c.now() - submitted;
    took.push_back(latest.seconds());
    if (paused) c.run_for(kPause);
    if (live != nullptr && on_trial()) live->on_trial += (c.now() - submitted).seconds();
    if (table() == present) return true;
    present = table();
    changed = c.now();
    if (live != nullptr) ++live->tables;
    return true;
  };
  // What has stood for long is tried again now and then: that is waited for, too.
  for (bool timed = false; !timed;) {
    while (!is_settled()) {
      if (!run_one()) return -1;
    }
    if (live != nullptr) live->settled = is_quiet();
    took.clear();
    for (const Nanos began = c.now(); c.now() - began < (paused ? 1_s : 100_ms) || took.empty();) {
      if (!run_one()) return -1;
    }
    timed = live == nullptr || is_quiet() || c.now() - start >= kSettlesMax;
  }
  if (live != nullptr) {
    live->on_trial /= (c.now() - start).seconds();
    live->took = took;
    const GroupMember& m = *c.world(0);
    live->planner = c.engine(0).algorithm(m.id);
    live->why = c.engine(0).explain(m.id, Collective::kAllReduce, bytes);
    if (m.group->decisions) {
      const MeasuredRow* row = m.group->decisions->table_for(m.entered).find(Collective::kAllReduce, bytes);
      if (row != nullptr) live->predicted = row->predicted_us * 1e-6;
    }
  }
  return std::accumulate(took.begin(), took.end(), 0.0) / static_cast<double>(took.size());
}

double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  if (values.empty()) return 0;
  return values[std::min(values.size() - 1, static_cast<std::size_t>(static_cast<double>(values.size()) * part))];
}
double median(const std::vector<double>& values) { return quantile(values, 0.5); }

struct Totals {
  std::vector<double> regret, regret_static, error;
};

bool measure(const Bed& bed, std::uint64_t bytes, bool with_live, bool why, Totals* totals) {
  const Reachability reach = reach_of(bed);
  const LinkCosts links = truth(bed);
  // A flat network can be run as a BCube, too.
  const BCubeShape bcube = bed.bcube.levels != 0 ? bed.bcube : find_bcube(reach, kRailsMax);
  std::vector<int> host_of;
  for (int r = 0; bed.ranks_per_host > 1 && r < bed.ranks(); ++r) host_of.push_back(r / bed.ranks_per_host);
  const PlanRequest request{
      .ranks = bed.ranks(), .count = bytes / 4, .reach = &reach, .bcube = bcube, .host_of = host_of};
  static constexpr std::uint64_t kPiece[] = {128 << 10, 32 << 10};  // the engine's, and those that a table may choose
  const auto candidates =
      cost_candidates(request, bed.rails(), {.links = &links}, std::span(kPiece).first(with_live ? 2 : 1));
  const auto unmeasured = select_planner(request, {});
  if (candidates.empty() || !unmeasured.ok()) return false;
  struct Ran {
    PlannerId planner;
    std::uint64_t piece_bytes;
    double predicted, took;
    std::string name() const { return std::string(name_of(planner)) + (piece_bytes == kPiece[0] ? "" : "/4"); }
  };
  std::vector<Ran> ran;
  for (const Candidate& c : candidates) {
    const double took = run(bed, Forced{c.planner, c.piece_bytes}, bytes, with_live);
    if (took < 0) {
      std::fprintf(stderr, "%s, %s: %s failed\n", bed.name.c_str(),
                   as_written(Bytes{static_cast<std::int64_t>(bytes)}).c_str(),
                   std::string(name_of(c.planner)).c_str());
      return false;
    }
    ran.push_back({c.planner, c.piece_bytes, c.seconds, took});
  }
  const auto took = [&](PlannerId id) {
    return std::find_if(ran.begin(), ran.end(),
                        [&](const Ran& r) { return r.planner == id && r.piece_bytes == kPiece[0]; })
        ->took;
  };
  const auto best =
      std::min_element(ran.begin(), ran.end(), [](const Ran& a, const Ran& b) { return a.took < b.took; });
  Live live{std::string(name_of(ran.front().planner)), "", ran.front().predicted};
  double of_chosen = ran.front().took;
  if (with_live) {
    of_chosen = run(bed, std::nullopt, bytes, true, &live);
    if (of_chosen < 0) return false;
  }
  const double regret = of_chosen / best->took - 1, of_static = took(unmeasured.value()) / best->took - 1;
  const double error = live.predicted > 0 ? live.predicted / of_chosen - 1 : 0;
  totals->regret.push_back(regret);
  totals->regret_static.push_back(of_static);
  totals->error.push_back(std::abs(error));
  std::printf("| %-28s | %6s | %-16s | %10.3f | %-16s | %5.1f %% | %-16s | %6.1f %% | %+6.1f %% |\n", bed.name.c_str(),
              as_written(Bytes{static_cast<std::int64_t>(bytes)}).c_str(), best->name().c_str(), best->took * 1e3,
              live.planner.c_str(), regret * 100, std::string(name_of(unmeasured.value())).c_str(), of_static * 100,
              error * 100);
  if (!live.settled) std::puts("unsettled: the table changed to the end");
  if (why) {
    std::printf("%s\n", live.why.c_str());
    if (with_live) {
      std::printf("%d tables, on trial for %.0f %% of the time; least, median, 90th and longest of %zu operations: ",
                  live.tables, live.on_trial * 100, live.took.size());
      for (const double part : {0.0, 0.5, 0.9, 1.0}) std::printf(" %.3f", quantile(live.took, part) * 1e3);
      std::puts(" ms");
    }
    std::printf(" ");
    for (const Ran& r : ran) {
      std::printf(" %s %.3f ms (predicted %.3f)", r.name().c_str(), r.took * 1e3, r.predicted * 1e3);
    }
    std::puts("");
  }
  std::fflush(stdout);
  return true;
}

bool is_named(const Bed& bed, const std::string& text) { return bed.name.find(text) != std::string::npos; }
bool any_named(const std::string& text) {
  const std::vector<Bed> beds = all_beds();
  return std::any_of(beds.begin(), beds.end(), [&](const Bed& bed) { return is_named(bed, text); });
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false, live = false, why = false;
  std::vector<std::string> wanted;
  std::vector<std::uint64_t> sizes;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strcmp(argv[i], "--live") == 0) {
      live = true;
    } else if (std::strcmp(argv[i], "--why") == 0) {
      why = true;
    } else if (std::strcmp(argv[i], "--bytes") == 0 && i + 1 < argc) {
      const auto size = parse_bytes(argv[++i]);
      if (!size.ok() || size.value().count < 4) {
        std::fprintf(stderr, "--bytes wants a size of at least 4 bytes, not %s\n", argv[i]);
        return 2;
      }
      sizes.push_back(static_cast<std::uint64_t>(size.value().count) / 4 * 4);
    } else if (argv[i][0] == '-') {
      std::fprintf(stderr, "%s: takes [--quick] [--live] [--why] [--bytes N]... [NAME...]\n", argv[i]);
      return 2;
    } else if (!any_named(argv[i])) {
      std::fprintf(stderr, "%s: no network is called that; there are\n", argv[i]);
      for (const Bed& bed : all_beds()) std::fprintf(stderr, "  %s\n", bed.name.c_str());
      return 2;
    } else {
      wanted.emplace_back(argv[i]);
    }
  }
  if (sizes.empty()) sizes = {1 << 10, 16 << 10, 256 << 10, 4 << 20};
  std::puts("| network | bytes | best | ms | chosen | regret | static choice | regret | prediction |");
  std::puts("|---|---|---|---|---|---|---|---|---|");
  Totals totals;
  bool ok = true;
  for (const Bed& bed : all_beds()) {
    const auto named = [&](const std::string& text) { return is_named(bed, text); };
    if (!wanted.empty() && std::none_of(wanted.begin(), wanted.end(), named)) continue;
    if (bed.if_named && wanted.empty()) continue;
    if (quick && bed.hosts() > 4) continue;
    for (const std::uint64_t bytes : sizes) ok = measure(bed, bytes, live, why, &totals) && ok;
  }
  const auto worst = [](const std::vector<double>& v) { return v.empty() ? 0 : *std::max_element(v.begin(), v.end()); };
  std::printf(
      "\n%zu cases; regret: median %.1f %%, worst %.1f %%; static choice: median %.1f %%, worst %.1f %%; "
      "prediction error: median %.1f %%, worst %.1f %%\n",
      totals.regret.size(), median(totals.regret) * 100, worst(totals.regret) * 100, median(totals.regret_static) * 100,
      worst(totals.regret_static) * 100, median(totals.error) * 100, worst(totals.error) * 100);
  return ok && !totals.regret.empty() ? 0 : 1;
}

#include "sim/swarm_life.h"

#include <algorithm>
#include <iterator>

namespace canarynet {
namespace {

Life draw_shape(Random& r) {
  Life life;
  ClusterOptions& c = life.cluster;
  c.ranks_per_host = r.below(4) == 0 ? static_cast<int>(2 + r.below(3)) : 1;
  const auto wiring = r.below(10);
  std::string wires;
  if (wiring < 6) {
    c.hosts = static_cast<int>(c.ranks_per_host > 1 ? 2 + r.below(3) : 2 + r.below(7));
    life.rails = static_cast<int>(1 + r.below(4));
    c.wiring = Wiring::flat(c.hosts, life.rails);
    life.safe_rail = life.rails > 1;
    wires = "flat";
  } else if (wiring < 9) {
    const int r_digit = r.below(3) == 0 ? 3 : 2;
    const int levels = r_digit == 2 && c.ranks_per_host == 1 && r.below(3) == 0 ? 3 : 2;
    c.hosts = 1;
    for (int l = 0; l < levels; ++l) c.hosts *= r_digit;
    c.ranks_per_host = 1;
    life.rails = levels;
    c.wiring = Wiring::bcube(r_digit, levels);
    life.pairs = false;
    wires = "bcube(" + std::to_string(r_digit) + "," + std::to_string(levels) + ")";
  } else {
    c.hosts = static_cast<int>(2 + r.below(4));
    life.rails = c.hosts - 1;
    c.wiring = Wiring::mesh(c.hosts);
    wires = "mesh";
  }
  FabricOptions& f = c.fabric;
  f.seed = r.next();
  f.stream = r.below(3) != 0;
  f.bad_header_resets = f.stream;
  f.nic = NicOptions::link(
      Nanos{static_cast<std::int64_t>(r.below(500'000))},
      r.below(3) == 0 ? BytesPerSec{} : BytesPerSec::from_mbit(static_cast<std::int64_t>(100 + r.below(10'000))));
  f.retransmit_delay = 50_ms;
  const auto some = [&](std::uint32_t most) { return r.below(3) == 0 ? static_cast<std::uint32_t>(r.below(most)) : 0; };
  f.nic.out.loss_ppm = some(f.stream ? 5'000 : 30'000);
  f.nic.out.duplicate_ppm = some(200'000);
  f.nic.out.reorder_ppm = some(200'000);
  f.nic.out.corrupt_ppm = some(f.stream ? 2'000 : 20'000);
  f.nic.out.jitter = Nanos{static_cast<std::int64_t>(r.below(200'000))};
  const char* const algorithms[] = {"",
                                    "",
                                    "",
                                    "ring",
                                    "mesh",
                                    "bcube",
                                    "halving_doubling",
                                    "tree",
                                    "dbtree",
                                    "parameter_server",
                                    "ring_per_rail",
                                    "hierarchical"};
  // A forced planner whose ranks can't meet is refused; that has its own tests.
  c.settings.algo = wires == "flat" || wires == "mesh" ? algorithms[r.below(std::size(algorithms))] : "";
  if (c.settings.algo == "bcube" &&
      (wires != "flat" || (c.hosts * c.ranks_per_host != 4 && c.hosts * c.ranks_per_host != 8))) {
    c.settings.algo = "ring";
  }
  if (c.settings.algo == "ring_per_rail" && wires != "flat") c.settings.algo = "tree";
  c.settings.piece_bytes = Bytes{static_cast<std::int64_t>(1024 << r.below(8))};
  if (r.below(4) == 0) c.settings.eager_bytes = Bytes{16384};
  if (r.below(4) == 0) c.settings.lanes_per_rail = 2;
  if (r.below(4) == 0) f.window_bytes = 64 << 10;
  if (r.below(4) == 0) f.queue_frames = 8;
  const std::int64_t limits[] = {1, 1, 1, 3};
  c.settings.silence_limit = 1_s * limits[r.below(4)];
  const std::int64_t poll_times[] = {0, 0, 5'000, 100'000};
  c.poll_time = Nanos{poll_times[r.below(std::size(poll_times))]};
  life.shape = wires + " " + std::to_string(c.hosts) + "x" + std::to_string(c.ranks_per_host) + " ranks, " +
               std::to_string(life.rails) + " rails, " + (f.stream ? "streams" : "packets") + ", loss " +
               std::to_string(f.nic.out.loss_ppm) + " dup " + std::to_string(f.nic.out.duplicate_ppm) + " reorder " +
               std::to_string(f.nic.out.reorder_ppm) + " corrupt " + std::to_string(f.nic.out.corrupt_ppm) +
               " ppm, piece " + std::to_string(c.settings.piece_bytes.count) + ", poll " +
               std::to_string(c.poll_time.count / 1000) + " us, silence " +
               std::to_string(c.settings.silence_limit.count / 1'000'000) + " ms, algo " +
               (c.settings.algo.empty() ? "auto" : c.settings.algo);
  return life;
}

// Draws how much the ranks do. Pools of the smallest size make every shortage happen.
void draw_work(Random& r, Life* life) {
  ClusterOptions& c = life->cluster;
  life->large = r.below(16) == 0;
  life->collectives = static_cast<int>(life->large ? 2 + r.below(5) : 6 + r.below(30));
  life->depth = static_cast<int>(1 + r.below(8));
  if (r.below(6) == 0) life->depth = 40;  // more than may be in flight
  life->messages = r.below(3) == 0 ? 0 : static_cast<int>(r.below(25));
  if (life->pairs && life->ranks() > 2) life->groups = static_cast<int>(r.below(4));
  const std::int64_t in_flight[] = {64, 64, 8, 2};
  c.settings.ops_in_flight = in_flight[r.below(4)];
  if (life->large) c.settings.piece_bytes = Bytes{static_cast<std::int64_t>(4096 << r.below(4))};
  const std::uint32_t records[] = {512, 512, 128, 16}, copies[] = {256, 256, 32, 4};
  const auto pool = r.below(4);
  c.amend = [few_records = records[pool], few_copies = copies[pool]](int, EngineOptions* e) {
    e->channel_records = few_records;
    e->channel_copies = few_copies;
  };
  life->shape += ", " + std::to_string(life->collectives) + (life->large ? " large" : "") + " collectives " +
                 std::to_string(life->depth) + " deep (" + std::to_string(c.settings.ops_in_flight) + " in flight), " +
                 std::to_string(life->messages) + " messages, " + std::to_string(life->groups) + " groups, " +
                 std::to_string(records[pool]) + " records";
}

void draw_ending(Random& r, Life* life) {
  const Ending endings[] = {Ending::kCrash, Ending::kCrash, Ending::kFreeze,   Ending::kCut,
                            Ending::kCut,   Ending::kAbort, Ending::kDeadline, Ending::kAbort};
  const char* const names[] = {"nothing", "a crash", "a freeze", "a cut", "an abort", "a deadline"};
  life->ending = endings[r.below(std::size(endings))];
  life->shape += std::string(", ended by ") + names[static_cast<int>(life->ending)];
}

// Uses the product's own limit: faults last up to a quarter of it, many seconds, and every rank must survive that,
// whatever the streams' back-off has come to.
void be_patient(Life* life) {
  life->cluster.settings.silence_limit = Settings::defaults().silence_limit;
  life->cluster.fabric.retransmit_backs_off = true;
  life->shape += ", patient";
}

// Draws which hosts share a machine, and rings that a few pieces fill, or a single one.
void draw_near(Random r, Life* life) {
  ClusterOptions& c = life->cluster;
  FabricOptions& f = c.fabric;
  const auto machines = r.below(3) == 0 ? 1 : 1 + r.below(static_cast<std::uint64_t>(c.hosts));
  for (int h = 0; h < c.hosts; ++h) c.wiring.machine.push_back(static_cast<int>(r.below(machines)));
  life->near = true;
  f.ring_bytes = (32 << 10) << r.below(6);
  c.settings.piece_bytes = Bytes{f.ring_bytes >> r.below(3)};
  f.memory =
      NicOptions::link(Nanos{static_cast<std::int64_t>(r.below(20'000))}, BytesPerSec{500'000'000LL << r.below(5)});
  if (!life->large && r.below(3) != 0) {
    life->large = true;
    life->collectives = static_cast<int>(2 + r.below(6));
  }
  life->large_bytes = std::min(life->large_bytes, f.ring_bytes * 4);  // enough to fill rings
  life->slow_readers = r.below(4) != 0;
  life->stops = static_cast<int>(r.below(3));
  c.amend = [before = c.amend, machine = c.wiring.machine](int host, EngineOptions* e) {
    before(host, e);
    e->host_id = "machine-" + std::to_string(machine[static_cast<std::size_t>(host)]);
  };
  life->shape += "; machines";
  for (const int machine : c.wiring.machine) life->shape += " " + std::to_string(machine);
  life->shape += ", rings " + std::to_string(f.ring_bytes) + ", piece " + std::to_string(c.settings.piece_bytes.count) +
                 (life->large ? ", large" : "") + (life->slow_readers ? ", slow readers" : "") + ", " +
                 std::to_string(life->stops) + " stops";
}

// Makes it a job of many ranks, which call less.
void draw_many(Random r, Life* life) {
  ClusterOptions& c = life->cluster;
  c.settings.algo.clear();
  c.settings.piece_bytes = Bytes{std::max<std::int64_t>(c.settings.piece_bytes.count, 4096)};
  c.ranks_per_host = r.below(3) == 0 ? static_cast<int>(2 + r.below(3)) : 1;
  std::string wires = "flat";
  life->rails = static_cast<int>(1 + r.below(2));
  life->pairs = true;
  if (r.below(4) == 0) {
    // Planning for 64 ranks that do not all meet takes seconds.
    const int digits[] = {3, 3, 5, 5, 4}, levels[] = {3, 3, 2, 2, 3};
    const auto which = r.below(8) == 0 ? 4 : r.below(4);
    c.ranks_per_host = 1;
    c.hosts = 1;
    life->rails = levels[which];
    for (int l = 0; l < life->rails; ++l) c.hosts *= digits[which];
    c.wiring = Wiring::bcube(digits[which], life->rails);
    life->pairs = false;
    life->safe_rail = false;
    wires = "bcube";
  } else {
    c.hosts = static_cast<int>(17 + r.below(48)) / c.ranks_per_host;
    c.hosts = std::max(c.hosts, 16 / c.ranks_per_host + 1);
    c.wiring = Wiring::flat(c.hosts, life->rails);
    life->safe_rail = life->rails > 1;
  }
  const std::int64_t opened[] = {0, 4, 32};
  c.settings.connect_at_join = opened[r.below(3)];
  life->large = false;
  life->collectives = static_cast<int>(r.below(5));
  life->messages = std::min(life->messages, 5);
  life->groups = life->pairs ? std::min(life->groups, 1) : 0;
  life->shape += "; many: " + wires + " " + std::to_string(c.hosts) + "x" + std::to_string(c.ranks_per_host) +
                 " ranks, " + std::to_string(life->rails) + " rails, " + std::to_string(life->collectives) +
                 " collectives, " + std::to_string(life->groups) + " groups, connects to " +
                 std::to_string(c.settings.connect_at_join);
}

}  // namespace

bool Life::share_network(int a, int b) const {
  const auto& x = cluster.wiring.networks[static_cast<std::size_t>(a)];
  const auto& y = cluster.wiring.networks[static_cast<std::size_t>(b)];
  return a == b ||
         std::any_of(x.begin(), x.end(), [&](std::uint32_t n) { return std::find(y.begin(), y.end(), n) != y.end(); });
}

bool Life::share_memory(int a, int b) const {
  const std::vector<int>& machine = cluster.wiring.machine;
  return !machine.empty() && machine[static_cast<std::size_t>(a)] == machine[static_cast<std::size_t>(b)];
}

Life draw_life(Random& random, const SwarmOptions& options) {
  Life life = draw_shape(random);
  draw_work(random, &life);
  if (!options.lethal && !options.near && options.faults && Random(options.seed ^ 0x70617469656e74).below(8) == 0)
    be_patient(&life);
  // Every other life without shared memory opens its channels on first use.
  if (!options.near && Random(options.seed ^ 0x737061727365).below(2) == 0) life.cluster.settings.connect_at_join = 0;
  if (options.many) draw_many(Random(options.seed ^ 0x6d616e79), &life);
  if (options.near) draw_near(Random(~options.seed), &life);
  if (options.lethal) draw_ending(random, &life);
  // Words about policies are said once per connection, and come in their order there.
  life.cluster.fabric.reliable_control = options.training;
  // A worker that is told of an exchange may wait for one that is not told, because the coordinator is lost. All may
  // stand still for minutes.
  if (options.lethal && options.training) life.cluster.settings.entry_limit = options.near ? 200_s : 20_s;
  if (!options.faults) {
    DirectionOptions& out = life.cluster.fabric.nic.out;
    out.loss_ppm = out.duplicate_ppm = out.reorder_ppm = out.corrupt_ppm = 0;
  }
  return life;
}

}  // namespace canarynet

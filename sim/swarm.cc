#include "sim/swarm.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "sim/cluster.h"
#include "sim/oracle.h"

namespace canarynet {
namespace {

constexpr Nanos kGrace = 3_s;       // after a crash every survivor must have heard (limit 2 s, and a retry)
constexpr Nanos kPatience = 120_s;  // no operation may take longer in virtual time, whatever the faults

struct Life {
  ClusterOptions cluster;
  std::string shape;
  bool safe_rail = false;  // rail 0 never fails: longer outages are allowed on the others
  int rails = 1;
  bool pairs = true;  // everybody meets everybody
};

Life draw(Random& r) {
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
  const std::int64_t poll_times[] = {0, 0, 5'000, 100'000};
  c.poll_time = Nanos{poll_times[r.below(std::size(poll_times))]};
  life.shape = wires + " " + std::to_string(c.hosts) + "x" + std::to_string(c.ranks_per_host) + " ranks, " +
               std::to_string(life.rails) + " rails, " + (f.stream ? "streams" : "packets") + ", loss " +
               std::to_string(f.nic.out.loss_ppm) + " dup " + std::to_string(f.nic.out.duplicate_ppm) + " reorder " +
               std::to_string(f.nic.out.reorder_ppm) + " corrupt " + std::to_string(f.nic.out.corrupt_ppm) +
               " ppm, piece " + std::to_string(c.settings.piece_bytes.count) + ", poll " +
               std::to_string(c.poll_time.count / 1000) + " us, algo " +
               (c.settings.algo.empty() ? "auto" : c.settings.algo);
  return life;
}

// `pairs`: everybody meets everybody.
oracle::Shape draw_shape(Random& r, int ranks, bool pairs) {
  oracle::Shape s;
  const auto kind = r.below(10);
  s.collective = kind < 3 ? Collective::kAllReduce : static_cast<Collective>(r.below(kCollectiveCount));
  if (s.collective == Collective::kAllToAllV && !pairs) s.collective = Collective::kAllReduce;
  s.ranks = ranks;
  s.type = static_cast<DataType>(r.below(kDataTypeCount));
  s.redop = static_cast<ReduceOp>(r.below(kReduceOpCount));
  s.root = static_cast<int>(r.below(static_cast<std::uint64_t>(ranks)));
  s.salt = r.next();
  const std::uint64_t sizes[] = {0, 1, 7, 1001, 4096, 20'000};
  s.count = sizes[r.below(6)];
  oracle::draw_counts(&s, s.count);
  if (has_counts(s.collective)) s.count = 0;
  return s;
}

// One operation on all ranks.
struct Round {
  oracle::Shape shape;
  bool in_place = false;
  std::vector<std::vector<std::byte>> input, output;  // in place: both in `input`
  std::vector<std::vector<std::uint64_t>> counts;
  std::vector<std::unique_ptr<OpTicket>> tickets;

  std::byte* input_of(int rank) {
    return input[static_cast<std::size_t>(rank)].data() + (in_place ? oracle::in_place_input(shape, rank) : 0);
  }
  std::byte* output_of(int rank) {
    const auto i = static_cast<std::size_t>(rank);
    return in_place ? input[i].data() + oracle::in_place_output(shape, rank) : output[i].data();
  }
};

class Swarm {
 public:
  explicit Swarm(const SwarmOptions& options) : options_(options), random_(options.seed), life_(draw(random_)) {
    if (!options_.faults) {
      auto& out = life_.cluster.fabric.nic.out;
      out.loss_ppm = out.duplicate_ppm = out.reorder_ppm = out.corrupt_ppm = 0;
    }
    report_.shape = life_.shape;
    cluster_ = std::make_unique<Cluster>(life_.cluster);
  }

  SwarmReport run() {
    if (!cluster_->join()) {
      std::string why = "join did not succeed";
      for (int h = 0; h < cluster_->hosts(); ++h) {
        if (!cluster_->engine(h).join_status().ok())
          why += "; host " + std::to_string(h) + ": " + cluster_->engine(h).join_status().to_string();
      }
      fail(why);
      return finish();
    }
    const std::uint64_t rounds = 2 + random_.below(6);
    if (options_.lethal) crash_at_ = cluster_->now() + Nanos{static_cast<std::int64_t>(random_.below(60'000'000))};
    next_fault_ = cluster_->now() + Nanos{static_cast<std::int64_t>(random_.below(30'000'000))};
    for (std::uint64_t i = 0; i < rounds && report_.ok; ++i) start_round();
    wait_all();
    if (options_.lethal && report_.ok) check_dead();
    return finish();
  }

 private:
  void start_round() {
    // At most four in flight.
    while (report_.ok && live_.size() >= 4) wait_first();
    auto round = std::make_unique<Round>();
    round->shape = draw_shape(random_, cluster_->ranks(), life_.pairs);
    round->in_place = random_.below(2) == 0 && oracle::can_be_in_place(round->shape);
    for (int r = 0; r < cluster_->ranks(); ++r) {
      const std::size_t in = oracle::input_bytes(round->shape, r), out = oracle::output_bytes(round->shape, r);
      round->input.emplace_back(round->in_place ? std::max(in, out) : in);
      round->output.emplace_back(round->in_place ? 0 : out);
      round->counts.push_back(oracle::counts_of(round->shape, r));
      round->tickets.push_back(std::make_unique<OpTicket>());
      oracle::fill_input(round->shape, r, round->input_of(r));
    }
    // Ranks enter in a random order, some late.
    std::vector<int> order(static_cast<std::size_t>(cluster_->ranks()));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    Round& r = *round;
    live_.push_back(std::move(round));
    for (const int rank : order) {
      if (random_.below(3) == 0) advance(Nanos{static_cast<std::int64_t>(random_.below(3'000'000))});
      submit(r, rank);
    }
    ++report_.collectives;
  }

  void submit(Round& round, int rank) {
    if (!cluster_->alive(cluster_->host_of(rank))) return;
    const auto i = static_cast<std::size_t>(rank);
    Submission s;
    s.member = cluster_->world(rank);
    s.ticket = round.tickets[i].get();
    s.request = {.collective = round.shape.collective,
                 .input = round.input_of(rank),
                 .output = round.output_of(rank),
                 .count = round.shape.count,
                 .type = round.shape.type,
                 .redop = round.shape.redop,
                 .root = round.shape.root,
                 .counts = round.counts[i]};
    cluster_->submit(rank, std::move(s));
  }

  bool round_done(const Round& round) const {
    for (int r = 0; r < cluster_->ranks(); ++r) {
      if (cluster_->alive(cluster_->host_of(r)) && !round.tickets[static_cast<std::size_t>(r)]->done()) return false;
    }
    return true;
  }

  // Time passes, faults come and go.
  void advance(Nanos span) {
    const Nanos end = cluster_->now() + span;
    while (cluster_->now() < end) {
      inject();
      Nanos stop = end;
      if (options_.faults) stop = std::min(stop, next_fault_);
      if (!heals_.empty()) stop = std::min(stop, heals_.front().at);
      if (crash_at_ != Nanos::max()) stop = std::min(stop, crash_at_);
      cluster_->run_for(std::max(stop - cluster_->now(), 1_us));
    }
  }

  void wait_first() {
    Round& round = *live_.front();
    const Nanos limit = cluster_->now() + kPatience;
    while (!round_done(round)) {
      if (cluster_->now() > limit || (crashed_at_ != Nanos::max() && cluster_->now() > crashed_at_ + kGrace)) {
        std::string who;
        for (int r = 0; r < cluster_->ranks(); ++r) {
          if (cluster_->alive(cluster_->host_of(r)) && !round.tickets[static_cast<std::size_t>(r)]->done())
            who += " " + std::to_string(r);
        }
        fail("hang: " + oracle::to_string(round.shape) + " #" + std::to_string(round.tickets[0]->number) +
             " never ended on ranks" + who);
        return;
      }
      inject();
      cluster_->step(std::min({cluster_->now() + 100_ms, options_.faults ? next_fault_ : Nanos::max(), crash_at_,
                               heals_.empty() ? Nanos::max() : heals_.front().at}));
    }
    judge(round);
    live_.erase(live_.begin());
  }

  void wait_all() {
    while (report_.ok && !live_.empty()) wait_first();
  }

  void judge(Round& round) {
    for (int r = 0; r < cluster_->ranks() && report_.ok; ++r) {
      if (!cluster_->alive(cluster_->host_of(r))) continue;
      const auto i = static_cast<std::size_t>(r);
      const OpTicket& t = *round.tickets[i];
      if (t.code == CANARY_OK) {
        const std::string wrong = oracle::compare(round.shape, r, round.output_of(r));
        if (!wrong.empty()) fail("wrong result: " + wrong);
        continue;
      }
      ++report_.errors;
      any_error_ = true;
      if (crashed_at_ == Nanos::max()) {
        fail("rank " + std::to_string(r) + ": " + t.status.to_string());
      } else if (t.status.detail().rank < 0 || cluster_->host_of(t.status.detail().rank) != crashed_host_) {
        fail("rank " + std::to_string(r) + " blames the wrong rank: " + t.status.to_string());
      }
    }
  }

  // After an error, every later operation gives the same verdict, on all.
  void check_dead() {
    if (crashed_at_ == Nanos::max()) return;
    options_.faults = false;  // a frozen engine could not answer
    for (const Heal& h : heals_) undo(h);
    heals_.clear();
    advance(kGrace);
    OpTicket tickets[64];
    float value = 1;
    for (int r = 0; r < cluster_->ranks(); ++r) {
      if (!cluster_->alive(cluster_->host_of(r))) continue;
      cluster_->all_reduce(r, &value, &value, 1, CANARY_F32, CANARY_SUM, &tickets[r]);
      if (!tickets[r].done() || tickets[r].code == CANARY_OK) {
        fail("rank " + std::to_string(r) + " still accepts operations " + std::to_string(kGrace.count / 1'000'000'000) +
             " s after a member's death");
      }
    }
  }

  void inject() {
    while (!heals_.empty() && heals_.front().at <= cluster_->now()) {
      undo(heals_.front());
      heals_.erase(heals_.begin());
    }
    if (crash_at_ <= cluster_->now()) {
      crash_at_ = Nanos::max();
      crashed_host_ = static_cast<int>(random_.below(static_cast<std::uint64_t>(cluster_->hosts())));
      crashed_at_ = cluster_->now();
      ++report_.faults;
      cluster_->kill(crashed_host_, random_.below(2) == 0 ? CrashKind::kHangup : CrashKind::kSilent);
    }
    if (!options_.faults || next_fault_ > cluster_->now()) return;
    // Without a rail that always works, outages must not add up to the silence limit: that is a failure then, and rightly so.
    const Nanos breath = life_.safe_rail ? 1_ms : 2_s;
    next_fault_ = cluster_->now() + breath + Nanos{static_cast<std::int64_t>(random_.below(200'000'000))};
    SimFabric& f = cluster_->fabric();
    const int host = static_cast<int>(random_.below(static_cast<std::uint64_t>(cluster_->hosts())));
    // Every pair keeps a path, or gets it back before it counts as lost.
    const int rail = life_.safe_rail ? 1 + static_cast<int>(random_.below(static_cast<std::uint64_t>(life_.rails - 1)))
                                     : static_cast<int>(random_.below(static_cast<std::uint64_t>(life_.rails)));
    const Nanos outage{static_cast<std::int64_t>(random_.below(life_.safe_rail ? 3'000'000'000 : 250'000'000))};
    ++report_.faults;
    switch (random_.below(5)) {
      case 0:
      case 1:
        if (!f.nic_is_up(host, rail)) return;
        f.nic_down(host, rail, static_cast<NicDeath>(random_.below(3)));
        later({cluster_->now() + outage, Heal::Kind::kNic, host, rail});
        return;
      case 2: {
        std::vector<Lane*> lanes;
        const int peer = static_cast<int>(random_.below(static_cast<std::uint64_t>(cluster_->hosts())));
        if (peer == host) return;
        f.lanes_between(host, peer, &lanes);
        std::erase_if(lanes,
                      [&](const Lane* l) { return l->rail() == kControlRail || (life_.safe_rail && l->rail() == 0); });
        if (lanes.empty()) return;
        // A lane that dies silently is noticed within the silence limit only if another one speaks.
        f.kill_lane(*lanes[random_.below(lanes.size())], !life_.safe_rail || random_.below(2) == 0);
        return;
      }
      case 3:
        if (f.frozen(host) || f.crashed(host)) return;
        f.freeze(host);
        later({cluster_->now() + Nanos{static_cast<std::int64_t>(random_.below(300'000'000))}, Heal::Kind::kThaw, host,
               0});
        return;
      case 4:
        f.slow(host, static_cast<std::int64_t>(1 + random_.below(10)));
        later({cluster_->now() + outage, Heal::Kind::kSpeed, host, 0});
        return;
    }
  }

  struct Heal {
    enum class Kind { kNic, kThaw, kSpeed };
    Nanos at;
    Kind kind;
    int host, rail;
  };
  void later(Heal h) {
    heals_.insert(
        std::upper_bound(heals_.begin(), heals_.end(), h, [](const Heal& a, const Heal& b) { return a.at < b.at; }), h);
  }
  void undo(const Heal& h) {
    SimFabric& f = cluster_->fabric();
    if (h.kind == Heal::Kind::kNic) f.nic_up(h.host, h.rail);
    if (h.kind == Heal::Kind::kThaw && f.frozen(h.host)) f.thaw(h.host);
    if (h.kind == Heal::Kind::kSpeed) f.slow(h.host, 1);
  }

  void fail(const std::string& why) {
    if (!report_.ok) return;
    report_.ok = false;
    report_.failure = why;
  }
  SwarmReport finish() {
    report_.hash = cluster_->fabric().hash();
    report_.virtual_time = cluster_->now();
    return report_;
  }

  SwarmOptions options_;
  Random random_;
  Life life_;
  SwarmReport report_;
  std::vector<std::unique_ptr<Round>> live_;  // outlives the cluster: engines borrow its buffers
  std::unique_ptr<Cluster> cluster_;
  std::vector<Heal> heals_;
  Nanos next_fault_;
  Nanos crash_at_ = Nanos::max();
  Nanos crashed_at_ = Nanos::max();
  int crashed_host_ = -1;
  bool any_error_ = false;
};

}  // namespace

SwarmReport run_swarm(const SwarmOptions& options) { return Swarm(options).run(); }

}  // namespace canarynet

#include "sim/swarm.h"

#include <algorithm>
#include <memory>

#include "base/log.h"
#include "sim/cluster.h"
#include "sim/swarm_blame.h"
#include "sim/swarm_faults.h"
#include "sim/swarm_life.h"
#include "sim/swarm_partials.h"
#include "sim/swarm_policies.h"
#include "sim/swarm_sessions.h"
#include "sim/swarm_traffic.h"

namespace canarynet {
namespace {

constexpr Nanos kGrace = 3_s;       // beyond the silence limit: by then every survivor must have heard
constexpr Nanos kPatience = 120_s;  // no call may take longer in virtual time, whatever the faults

class Swarm {
 public:
  explicit Swarm(const SwarmOptions& options)
      : options_(options),
        random_(options.seed),
        life_(draw_life(random_, options)),
        traffic_(life_, random_,
                 [this](const SwarmGroup& g, int rank, const Status& status) {
                   return blame(*cluster_, life_, deed(), g, rank, status);
                 }),
        cluster_(std::make_unique<Cluster>(with_pulses(life_.cluster))),
        faults_(life_, random_) {
    report_.shape = life_.shape;
    parts_.push_back(&traffic_);
    if (options.training) train();
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
    for (SwarmPart* part : parts_) part->begin(cluster_.get());
    if (options_.faults) faults_.begin(cluster_.get());
    plan_stop();
    if (life_.ending != Ending::kNone) end_at_ = cluster_->now() + below(60_ms);
    for (int turns = 0; report_.ok && !finished(); ++turns) {
      if (turns == 10'000'000) fail("no end" + pending());
      if (life_.slow_readers) stop_a_reader();
      if (random_.below(3) == 0) advance(random_.below(16) == 0 ? below(50_ms) : below(3_ms));
      if (!act()) wait();
      look_for_failures();
    }
    if (report_.ok && ended_at_ != Nanos::max()) check_dead();
    return finish();
  }

 private:
  Nanos below(Nanos most) {
    return Nanos{static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(most.count)))};
  }
  // What the ranks do beside the traffic of the group of all.
  void train() {
    const auto excuse = [this](Joint what, const std::vector<int>& ranks, int rank, const Status& status) {
      return blame(*cluster_, life_, deed(), what, traffic_.world(), ranks, rank, status);
    };
    const auto in_world = [this, excuse](Joint what, int rank, const Status& status) {
      return excuse(what, traffic_.world().ranks, rank, status);
    };
    const auto of_exchange = [excuse](Joint what) {
      return [excuse, what](const std::vector<int>& ranks, int rank, const Status& status) {
        return excuse(what, ranks, rank, status);
      };
    };
    sessions_ =
        std::make_unique<SwarmSessions>(life_, options_.seed, [in_world](bool goes_on, int rank, const Status& status) {
          return in_world(goes_on ? Joint::kSessionThatGoesOn : Joint::kSession, rank, status);
        });
    partials_ = std::make_unique<SwarmPartials>(life_, options_.seed, of_exchange(Joint::kExchange));
    policies_ = std::make_unique<SwarmPolicies>(
        life_, options_.seed,
        [in_world](int rank, const Status& status) { return in_world(Joint::kPolicy, rank, status); },
        of_exchange(Joint::kPolicyExchange));
    parts_.insert(parts_.end(), {sessions_.get(), partials_.get(), policies_.get()});
    report_.shape += "; " + sessions_->shape() + "; " + partials_->shape() + "; " + policies_->shape();
  }
  const Deed& deed() {
    // A flipped bit in a header ends a stream's lane, which is a fault besides.
    const FabricOptions& f = life_.cluster.fabric;
    deed_.alone = faults_.count() == 0 && !(f.stream && f.nic.out.corrupt_ppm != 0);
    return deed_;
  }

  bool finished() const {
    return std::all_of(parts_.begin(), parts_.end(), [](const SwarmPart* part) { return part->finished(); });
  }
  bool act() {
    const std::uint64_t turn = parts_.size() == 1 ? 0 : training_.below(parts_.size());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[(turn + i) % parts_.size()]->act()) return true;
    }
    return false;
  }
  std::string pending() const {
    std::string text;
    for (const SwarmPart* part : parts_) text += part->pending();
    return text;
  }
  void look_for_failures() {
    for (const SwarmPart* part : parts_) {
      if (!part->failure().empty()) fail(part->failure());
    }
  }

  int any_host() { return static_cast<int>(random_.below(static_cast<std::uint64_t>(cluster_->hosts()))); }

  Nanos next_event() const { return std::min({faults_.next(), end_at_, thaw_at_, reads_at_, stop_at_}); }
  void run_events() {
    if (options_.faults) faults_.run();
    if (thaw_at_ <= cluster_->now()) {
      thaw_at_ = Nanos::max();
      cluster_->fabric().thaw(deed_.victim);
      quiet_since_ = cluster_->now();
    }
    if (reads_at_ <= cluster_->now()) go_on_reading();
    if (stop_at_ <= cluster_->now()) stand_still();
    if (end_at_ <= cluster_->now()) end();
  }

  // Time passes, faults come and go.
  void advance(Nanos span) {
    const Nanos end = cluster_->now() + span;
    while (cluster_->now() < end) {
      run_events();
      cluster_->run_for(std::max(std::min(end, next_event()) - cluster_->now(), 1_us));
    }
  }

  // Nothing can be called before something happens.
  void wait() {
    run_events();
    Nanos next = next_event(), last = quiet_since_;
    for (const SwarmPart* part : parts_) {
      next = std::min(next, part->wakes());
      last = std::max(last, part->last_event());
    }
    const Nanos until = std::min(cluster_->now() + 100_ms, std::max(next, cluster_->now() + 1_us));
    if (!cluster_->step(until)) cluster_->fabric().advance_to(until);
    Nanos patience = kPatience;
    if (ended_at_ != Nanos::max() && life_.ending != Ending::kAbort && life_.ending != Ending::kDeadline &&
        !life_.large)
      patience = kGrace + life_.cluster.settings.silence_limit;
    if (options_.training && options_.lethal) patience += life_.cluster.settings.entry_limit;  // see draw_life()
    if (cluster_->now() > last + patience) fail("hang" + pending());
  }

  // --- pauses (SwarmOptions::near) ---

  // Gives engines the view of one another that a machine has: a stopped one neither runs nor wants to.
  ClusterOptions with_pulses(ClusterOptions options) {
    if (!life_.near) return options;
    options.amend = [this, before = options.amend](int host, EngineOptions* e) {
      before(host, e);
      e->pulse_of = [this](std::int64_t pid) {
        const auto h = static_cast<int>(pid - 1000);
        if (!cluster_->alive(h) || cluster_->fabric().frozen(h)) return ProcessPulse{};
        return ProcessPulse{static_cast<std::uint64_t>(cluster_->now().count), false};
      };
    };
    return options;
  }

  // Stops a host's reading soon after something was called: frames written to it stay half written if a ring is full.
  void stop_a_reader() {
    const int host = static_cast<int>(near_.below(static_cast<std::uint64_t>(cluster_->hosts())));
    if (reads_at_ != Nanos::max() || near_.below(3) != 0 || !shares_machine(host)) return;
    advance(Nanos{static_cast<std::int64_t>(near_.below(400'000))});
    if (reads_at_ != Nanos::max() || !cluster_->alive(host) || cluster_->fabric().frozen(host)) return;
    reader_ = host;
    cluster_->fabric().freeze(host);
    reads_at_ = cluster_->now() + Nanos{static_cast<std::int64_t>(near_.below(
                                      static_cast<std::uint64_t>(life_.cluster.settings.silence_limit.count / 10)))};
  }
  void go_on_reading() {
    reads_at_ = Nanos::max();
    const bool stopped_for_good =
        deed_.ending == Ending::kFreeze && deed_.victim == reader_ && thaw_at_ != Nanos::max();
    if (cluster_->fabric().frozen(reader_) && !stopped_for_good) cluster_->fabric().thaw(reader_);
  }

  void plan_stop() {
    stop_at_ =
        life_.stops == 0 ? Nanos::max() : cluster_->now() + Nanos{static_cast<std::int64_t>(near_.below(40'000'000))};
  }
  // All hosts stop at once, for longer than the silence limit, some for longer than the exchange limit, and go on one
  // after the other. A host that looks must find that nobody was silent.
  void stand_still() {
    const Nanos limit = life_.cluster.settings.silence_limit;
    if (thaw_at_ != Nanos::max()) {  // the one that stops alone must do so for long enough
      stop_at_ = thaw_at_ + limit;
      return;
    }
    std::vector<int> stopped;
    for (int h = 0; h < cluster_->hosts(); ++h) {
      if (!cluster_->alive(h) || cluster_->fabric().frozen(h)) continue;
      cluster_->fabric().freeze(h);
      stopped.insert(stopped.begin() + static_cast<std::ptrdiff_t>(near_.below(stopped.size() + 1)), h);
    }
    const auto beyond = static_cast<std::uint64_t>(limit.count) * 3;
    cluster_->run_for(limit + Nanos{static_cast<std::int64_t>(near_.below(beyond))} +
                      (near_.below(8) == 0 ? 40_s : 0_s));
    for (const int h : stopped) {
      cluster_->fabric().thaw(h);
      cluster_->run_for(Nanos{static_cast<std::int64_t>(near_.below(5'000'000))});
    }
    quiet_since_ = cluster_->now();
    ++report_.stops;
    --life_.stops;
    plan_stop();
  }

  // --- the end of groups ---

  void end() {
    const SwarmGroup* group = nullptr;
    GroupMember* member = nullptr;
    int rank = -1;
    if (life_.slow_readers && life_.ending != Ending::kCut && !cluster_->fabric().half_written() &&
        near_.below(1000) != 0) {
      end_at_ = cluster_->now() + 500_us;  // rather while a frame is half written
      return;
    }
    end_at_ = Nanos::max();
    switch (life_.ending) {
      case Ending::kNone:
        return;
      case Ending::kCrash:
        happen(any_host());
        for (SwarmPart* part : parts_) part->bury(deed_.victim);
        // One process of a machine that lives on ends.
        deed_.hangup = random_.below(2) == 0 || shares_machine(deed_.victim);
        return cluster_->kill(deed_.victim, deed_.hangup ? CrashKind::kHangup : CrashKind::kSilent);
      case Ending::kFreeze: {
        const Nanos limit = life_.cluster.settings.silence_limit;
        happen(any_host());
        thaw_at_ = cluster_->now() + limit + 600_ms + below(3_s);
        quiet_since_ = thaw_at_;
        return cluster_->fabric().freeze(deed_.victim);
      }
      case Ending::kCut:
        return cut();
      case Ending::kAbort: {
        if (!traffic_.pick_member(&group, &rank, &member)) break;
        happen(-1);
        deed_.group = group;
        deed_.rank = rank;
        return cluster_->submit(rank, port::abort(member->id, kAbortReason));
      }
      case Ending::kDeadline: {
        OpTicket* ticket = nullptr;
        if (!traffic_.pick_pending(&group, &rank, &member, &ticket)) break;
        happen(-1);
        deed_.group = group;
        return cluster_->set_deadline(member, ticket, below(5_ms) + 1_ns);
      }
    }
    if (!finished()) end_at_ = cluster_->now() + below(5_ms) + 1_us;  // another moment suits better
  }

  void happen(int victim) {
    log(LogLevel::kDebug, "%.3f s: the life ends by deed %d, of host %d", cluster_->now().seconds(),
        static_cast<int>(life_.ending), victim);
    ended_at_ = quiet_since_ = cluster_->now();
    deed_.ending = life_.ending;
    deed_.victim = victim;
    if (victim >= 0) faults_.spare(victim, life_.ending == Ending::kFreeze);
    for (SwarmPart* part : parts_) {
      if (victim >= 0) part->give_up(victim);
    }
    ++report_.faults;
  }
  bool shares_machine(int host) const {
    for (int h = 0; h < cluster_->hosts(); ++h) {
      if (h != host && life_.share_memory(h, host)) return true;
    }
    return false;
  }

  // A network can be cut, a machine's memory can't.
  void cut() {
    happen(any_host());
    const auto kind = random_.below(3);
    const bool both_ways = random_.below(2) == 0;
    const int other = any_host();
    const int victim = deed_.victim;
    const bool pair = kind == 0 && other != victim && life_.meet(victim, other);
    deed_.control_cut = !pair && kind == 2 && !shares_machine(victim);  // its neighbours would lack only half of it
    if (!both_ways && !deed_.control_cut)
      deed_.cut = life_.near && near_.below(2) == 0 ? Deed::Cut::kDeaf : Deed::Cut::kUnheard;
    for (int h = 0; h < cluster_->hosts(); ++h) {
      if (h == victim || (pair && h != other) || life_.share_memory(victim, h)) continue;
      if (!deed_.control_cut && !life_.share_network(victim, h)) continue;
      deed_.cut_from.push_back(h);
      const std::uint8_t what = deed_.control_cut ? kBlockAll : kBlockRails;
      if (deed_.cut != Deed::Cut::kDeaf) cluster_->fabric().block(victim, h, what, false);
      if (deed_.cut != Deed::Cut::kUnheard) cluster_->fabric().block(h, victim, what, false);
    }
  }

  // After an error every later operation of the group must give the same verdict on all ranks.
  void check_dead() {
    if (options_.faults) faults_.end();  // a frozen engine could not answer
    if (reads_at_ != Nanos::max()) go_on_reading();
    stop_at_ = Nanos::max();
    advance(kGrace + life_.cluster.settings.silence_limit);
    if (thaw_at_ != Nanos::max()) advance(thaw_at_ - cluster_->now() + 1_s);
    if (life_.ending == Ending::kCut) return;  // not everybody can be told
    traffic_.expect_dead();
    look_for_failures();
  }

  void fail(const std::string& why) {
    if (!report_.ok) return;
    report_.ok = false;
    report_.failure = why;
  }

  SwarmReport finish() {
    report_.hash = cluster_->fabric().hash();
    for (const SwarmPart* part : parts_) {
      report_.hash ^= part->hash();
      report_.errors += part->errors();
    }
    report_.virtual_time = cluster_->now();
    report_.collectives = traffic_.collectives();
    report_.messages = traffic_.messages();
    report_.faults += faults_.count();
    report_.given_up = cluster_->fabric().counters().given_up;
    for (int h = 0; life_.near && h < cluster_->hosts(); ++h) {
      const auto memory = static_cast<int>(life_.cluster.wiring.networks[static_cast<std::size_t>(h)].size());
      report_.through_memory += cluster_->fabric().nic_counters(h, memory).tx_bytes;
    }
    if (cluster_->fabric().counters().changed != 0)
      fail(std::to_string(cluster_->fabric().counters().changed) +
           " frames left from memory that had been overwritten");
    if (options_.training) {
      report_.gradients = sessions_->gradients();
      report_.dropped = sessions_->dropped();
      report_.rounds = sessions_->rounds();
      report_.survived = sessions_->survived();
      report_.exchanges = partials_->exchanges() + policies_->exchanges();
      report_.answers = policies_->answers();
    }
    cluster_.reset();
    for (SwarmPart* part : parts_) part->close();
    look_for_failures();
    return report_;
  }

  SwarmOptions options_;
  Random random_;
  Life life_;
  SwarmReport report_;
  // They outlive the cluster: engines borrow their buffers.
  SwarmTraffic traffic_;
  std::unique_ptr<SwarmSessions> sessions_;
  std::unique_ptr<SwarmPartials> partials_;
  std::unique_ptr<SwarmPolicies> policies_;
  std::vector<SwarmPart*> parts_;  // all of them
  std::unique_ptr<Cluster> cluster_;
  SwarmFaults faults_;

  Nanos end_at_ = Nanos::max(), ended_at_ = Nanos::max();
  Nanos thaw_at_ = Nanos::max();
  Nanos quiet_since_;  // waiting calls have time from here on
  Deed deed_;
  Random near_{options_.seed ^ 0x6e656172};            // for SwarmOptions::near
  Random training_{options_.seed ^ 0x747261696e696e};  // for SwarmOptions::training
  int reader_ = -1;                                    // host that does not read
  Nanos reads_at_ = Nanos::max(), stop_at_ = Nanos::max();
};

}  // namespace

SwarmReport run_swarm(const SwarmOptions& options) {
  SwarmOptions drawn = options;
  // A quarter of the training is among hosts that share machines.
  if (options.training && !options.many) drawn.near |= Random(options.seed ^ 0x6d656574).below(4) == 0;
  return Swarm(drawn).run();
}

}  // namespace canarynet

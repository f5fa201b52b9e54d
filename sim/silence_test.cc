// Silent, dead or merely slow peers: engines and endpoints judge them by the same code, and so behave alike. Every test
// runs over both. Virtual time.
#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/duration_text.h"
#include "sim/cluster_test_util.h"
#include "sim/endpoint_test_util.h"
#include "sim/warnings_test_util.h"

namespace canarynet {
namespace {

struct BedOptions {
  int hosts = 3;
  bool one_machine = false;        // they share memory
  std::vector<std::string> names;  // of hosts, if they are not "host-0", "host-1", ...
  Settings settings = Settings::defaults();
  PulseSource pulse_of;
};

Wiring wiring_of(const BedOptions& o) {
  Wiring w = Wiring::flat(o.hosts, 2);
  if (o.one_machine) w.machine.assign(static_cast<std::size_t>(o.hosts), 0);
  return w;
}

FabricOptions fabric_options() {
  FabricOptions o;
  o.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
  o.retransmit_backs_off = true;
  return o;
}

// Processes that all talk to each other, one on each host.
class Bed {
 public:
  virtual ~Bed() = default;
  virtual void meet() = 0;
  // Starts an exchange in which every process needs every other, for some milliseconds.
  virtual void begin() = 0;
  virtual bool done(int host) const = 0;
  virtual Status failure(int host) const = 0;
  virtual void expect_success(Nanos limit) = 0;
  virtual void kill(int host, CrashKind kind) = 0;
  virtual void leave(int host) = 0;
  virtual SimFabric& fabric() = 0;
  virtual bool run_until(const std::function<bool()>& condition, Nanos span) = 0;
  void run_for(Nanos span) {
    run_until([] { return false; }, span);
  }
};

class EngineBed final : public Bed {
 public:
  explicit EngineBed(const BedOptions& o) : cluster_(cluster_options(o)) {}
  ~EngineBed() override {  // ends the engines, so that nobody uses the buffers of operations under way
    for (int h = 0; h < cluster_.hosts(); ++h) cluster_.kill(h, CrashKind::kSilent);
  }
  void meet() override { ASSERT_TRUE(cluster_.join()); }
  void begin() override {
    work_ = std::make_unique<AllRanks>(cluster_, sum(cluster_.ranks(), 4 << 20));
    work_->submit_all();
    cluster_.run_for(200_us);
    ASSERT_FALSE(work_->all_done());
  }
  bool done(int host) const override { return work_->done(host); }
  Status failure(int host) const override { return work_->ticket(host).status; }
  void expect_success(Nanos limit) override { work_->expect_exact(limit); }
  void kill(int host, CrashKind kind) override { cluster_.kill(host, kind); }
  void leave(int host) override { leave_and_end(cluster_, host); }
  SimFabric& fabric() override { return cluster_.fabric(); }
  bool run_until(const std::function<bool()>& condition, Nanos span) override {
    const Nanos end = cluster_.now() + span;
    const bool met = cluster_.run_until(condition, span);
    // While all stand still nothing happens, but time passes all the same.
    if (!met && cluster_.now() < end) cluster_.fabric().advance_to(end);
    return met;
  }

 private:
  static ClusterOptions cluster_options(const BedOptions& o) {
    ClusterOptions c;
    c.hosts = o.hosts;
    c.wiring = wiring_of(o);
    c.fabric = fabric_options();
    c.settings = o.settings;
    c.amend = [o](int h, EngineOptions* e) {
      if (!o.names.empty()) e->host_id = e->host_name = o.names[static_cast<std::size_t>(h)];
      e->pulse_of = o.pulse_of;
    };
    return c;
  }
  Cluster cluster_;
  std::unique_ptr<AllRanks> work_;
};

class EndpointBed final : public Bed {
 public:
  explicit EndpointBed(const BedOptions& o)
      : net_(wiring_of(o), fabric_options(), o.settings, [o](int h, EndpointOptions* e) {
          if (!o.names.empty()) e->host_name = o.names[static_cast<std::size_t>(h)];
          e->pulse_of = o.pulse_of;
        }) {
    for (int a = 0; a < o.hosts; ++a) {
      for (int b = a + 1; b < o.hosts; ++b) pairs_.push_back({std::make_unique<Pair>(net_, a, b), a, b});
    }
  }
  ~EndpointBed() override {
    for (int h = 0; h < net_.fabric.hosts(); ++h) net_.kill(h, CrashKind::kSilent);
  }
  void meet() override {
    for (auto& p : pairs_) ASSERT_NO_FATAL_FAILURE(p.pair->open());
  }
  void begin() override {
    for (auto& p : pairs_) {
      Connection &a = *p.pair->connecting[0], &b = *p.pair->accepted[0];
      for (int i = 0; i < 2; ++i) {
        work_.push_back({p.a, &p.pair->send(a, 4 << 20)});
        work_.push_back({p.b, &p.pair->receive(b, 4 << 20)});
        work_.push_back({p.b, &p.pair->send(b, 4 << 20)});
        work_.push_back({p.a, &p.pair->receive(a, 4 << 20)});
      }
    }
    net_.pass(200_us);
    ASSERT_FALSE(std::any_of(work_.begin(), work_.end(), [](const Piece& w) { return w.half->ticket.done(); }));
  }
  bool done(int host) const override {
    return !failure(host).ok() || std::all_of(work_.begin(), work_.end(),
                                              [&](const Piece& w) { return w.host != host || w.half->ticket.done(); });
  }
  Status failure(int host) const override {
    for (const Piece& w : work_) {
      if (w.host == host && w.half->ticket.done() && w.half->ticket.code != CANARY_OK) return w.half->ticket.status;
    }
    return {};
  }
  void expect_success(Nanos limit) override {
    for (auto& p : pairs_) ASSERT_NO_FATAL_FAILURE(p.pair->expect_all(limit));
  }
  void kill(int host, CrashKind kind) override { net_.kill(host, kind); }
  void leave(int host) override {
    net_.at(host).leave(net_.fabric.now());
    net_.pass(5_ms);
    net_.kill(host, CrashKind::kHangup);
  }
  SimFabric& fabric() override { return net_.fabric; }
  bool run_until(const std::function<bool()>& condition, Nanos span) override { return net_.until(condition, span); }

 private:
  struct Two {
    std::unique_ptr<Pair> pair;
    int a, b;
  };
  struct Piece {
    int host;
    Half* half;
  };
  Net net_;
  std::vector<Two> pairs_;
  std::vector<Piece> work_;
};

struct Kind {
  const char* name;
  std::unique_ptr<Bed> (*make)(const BedOptions& options);
};
template <typename T>
std::unique_ptr<Bed> make_bed(const BedOptions& o) {
  return std::make_unique<T>(o);
}

class Silence : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Bed> bed(const BedOptions& o = {}) {
    auto made = GetParam().make(o);
    made->meet();
    made->run_for(1_s);
    return made;
  }
  static BedOptions with_limit(Nanos limit) {
    BedOptions o;
    o.settings.silence_limit = limit;
    return o;
  }
  static bool has(const Status& s, const char* part) { return s.text().find(part) != std::string::npos; }
};
INSTANTIATE_TEST_SUITE_P(Of, Silence,
                         testing::Values(Kind{"Engines", make_bed<EngineBed>},
                                         Kind{"Endpoints", make_bed<EndpointBed>}),
                         [](const auto& p) { return std::string(p.param.name); });

TEST_P(Silence, OfAHostWithoutPowerEndsAtTheLimitAndTheTextNamesHostAndSetting) {
  for (const Nanos limit : {1_s, 60_s}) {
    const auto b = bed(with_limit(limit));
    ASSERT_NO_FATAL_FAILURE(b->begin());
    b->kill(1, CrashKind::kSilent);
    b->run_for(limit - 100_ms);
    ASSERT_FALSE(b->done(0) || b->done(2));
    ASSERT_TRUE(b->run_until([&] { return b->done(0) && b->done(2); }, 500_ms));
    for (const int host : {0, 2}) {
      const Status s = b->failure(host);
      EXPECT_EQ(s.code(), CANARY_PEER_SILENT) << s.to_string();
      EXPECT_TRUE(has(s, "host-1")) << s.text();
      EXPECT_TRUE(has(s, limit == 1_s ? "CANARY_SILENCE_LIMIT (1 s)" : "CANARY_SILENCE_LIMIT (60 s)")) << s.text();
    }
  }
}

TEST_P(Silence, OfAStoppedProcessIsWarnedOfOnceAndWaitedFor) {
  for (const Nanos span : {1500_ms, 10_s}) {
    const auto b = bed();
    ASSERT_NO_FATAL_FAILURE(b->begin());
    const Warnings warnings;
    b->fabric().freeze(1);
    b->run_for(span);
    const std::ptrdiff_t told = span > 2_s ? 2 : 0;  // by each of the two others
    EXPECT_EQ(warnings.with("silent for 20"), told);
    EXPECT_EQ(warnings.with("what waits for it goes on when it is heard, or ends after CANARY_SILENCE_LIMIT (60 s)"),
              told);
    b->fabric().thaw(1);
    ASSERT_NO_FATAL_FAILURE(b->expect_success(1_s));
    b->run_for(500_ms);
    EXPECT_EQ(warnings.with("heard again after"), told);
    EXPECT_EQ(warnings.lines.size(), static_cast<std::size_t>(told) * 2) << warnings.lines.back();
  }
}

// Three missing beats are a silence, two are none. A warning may be wanted even sooner.
TEST_P(Silence, IsWarnedOfOnceHoweverSoonThatIsWanted) {
  for (const Nanos warning : {250_ms, 500_ms}) {
    BedOptions o;
    o.settings.silence_warning = warning;
    o.settings.heartbeat_interval = 200_ms;
    const auto b = bed(o);
    ASSERT_NO_FATAL_FAILURE(b->begin());
    const Warnings warnings;
    b->fabric().freeze(1);
    b->run_for(5_s);
    EXPECT_EQ(warnings.lines.size(), 2u) << "by each of the two others: " << warnings.lines.back();
    b->fabric().thaw(1);
    ASSERT_NO_FATAL_FAILURE(b->expect_success(1_s));
    b->run_for(500_ms);
    EXPECT_EQ(warnings.with("heard again after 5"), 2);
    EXPECT_EQ(warnings.lines.size(), 4u) << warnings.lines.back();
  }
}

TEST_P(Silence, IsNoTimeWithoutProgress) {
  BedOptions o;
  o.settings.exchange_limit = 4_s;
  const auto b = bed(o);
  ASSERT_NO_FATAL_FAILURE(b->begin());
  for (const int other : {0, 2}) b->fabric().block(1, other);
  b->run_for(30_s);
  b->fabric().heal();
  ASSERT_NO_FATAL_FAILURE(b->expect_success(2_s));
}

TEST_P(Silence, IsNobodysWhileThisProcessItselfStandsStill) {
  for (const Nanos pause : {1600_ms, 5_s, 40_s}) {
    const auto b = bed(with_limit(1_s));
    ASSERT_NO_FATAL_FAILURE(b->begin());
    const Warnings warnings;
    for (int h = 0; h < 3; ++h) b->fabric().freeze(h);
    b->run_for(pause);
    for (int h = 0; h < 3; ++h) {  // they go on one after the other
      b->fabric().thaw(h);
      b->run_for(5_ms);
    }
    ASSERT_NO_FATAL_FAILURE(b->expect_success(5_s)) << milliseconds(pause);
    b->run_for(2_s);
    EXPECT_TRUE(warnings.lines.empty()) << warnings.lines.back();
  }
}

TEST_P(Silence, IsNamedLaterByAPauseInBetweenAndNoMore) {
  for (const Nanos pause : {Nanos{}, 1_s, 3_s}) {
    const auto b = bed(with_limit(1_s));
    ASSERT_NO_FATAL_FAILURE(b->begin());
    b->fabric().freeze(1);
    const Nanos began = b->fabric().now();
    b->run_for(300_ms);
    for (const int h : {0, 2}) b->fabric().freeze(h);
    b->run_for(pause);
    for (const int h : {0, 2}) b->fabric().thaw(h);
    ASSERT_TRUE(b->run_until([&] { return b->done(0) && b->done(2); }, 3_s));
    EXPECT_GE(b->fabric().now() - began, 800_ms + pause);
    EXPECT_LE(b->fabric().now() - began, 1500_ms + pause);
    for (const int h : {0, 2}) {
      EXPECT_EQ(b->failure(h).code(), CANARY_PEER_SILENT) << b->failure(h).to_string();
      EXPECT_TRUE(has(b->failure(h), "host-1")) << b->failure(h).text();
    }
  }
}

TEST_P(Silence, IsNotWaitedForWhereAProcessEnds) {
  for (const bool one_machine : {false, true}) {
    for (const bool stopped : {false, true}) {  // before
      SCOPED_TRACE(std::string(one_machine ? "one machine" : "three hosts") + (stopped ? ", stopped" : ""));
      BedOptions o;
      o.one_machine = one_machine;
      const auto b = bed(o);
      ASSERT_NO_FATAL_FAILURE(b->begin());
      if (stopped) {
        b->fabric().freeze(1);
        b->run_for(1_s);
      }
      b->kill(1, CrashKind::kHangup);
      ASSERT_TRUE(b->run_until([&] { return b->done(0) && b->done(2); }, stopped ? 1500_ms : 500_ms));
      for (const int h : {0, 2}) {
        EXPECT_EQ(b->failure(h).code(), CANARY_PEER_DIED) << b->failure(h).to_string();
        EXPECT_TRUE(has(b->failure(h), "host-1")) << b->failure(h).text();
      }
    }
  }
}

TEST_P(Silence, OfWhoHasSaidFarewellIsNoNews) {
  const auto b = bed();
  const Warnings warnings;
  ASSERT_NO_FATAL_FAILURE(b->leave(1));
  b->run_for(70_s);
  EXPECT_TRUE(warnings.lines.empty()) << warnings.lines.back();
}

// The others see one of three things of process 1 when they look: it waits for a core; or it sleeps, but ran since the
// last look; or neither.
TEST_P(Silence, OfAProcessOfTheSameHostCountsOnlyIfItStandsStill) {
  enum class Sight { kWaits, kRuns, kStandsStill };
  for (const Sight sight : {Sight::kWaits, Sight::kRuns, Sight::kStandsStill}) {
    std::uint64_t ran = 7;
    BedOptions o = with_limit(1_s);
    o.one_machine = true;
    o.names.assign(3, "one host");
    o.pulse_of = [&](std::int64_t pid) {
      const bool busy = pid == 1001 && sight == Sight::kRuns;
      return ProcessPulse{busy ? ++ran : ran, pid == 1001 && sight == Sight::kWaits};
    };
    const auto b = bed(o);
    ASSERT_NO_FATAL_FAILURE(b->begin());
    const Warnings warnings;
    b->fabric().freeze(1);
    if (sight == Sight::kStandsStill) {
      ASSERT_TRUE(b->run_until([&] { return b->done(0) && b->done(2); }, 1500_ms));
      for (const int h : {0, 2}) EXPECT_EQ(b->failure(h).code(), CANARY_PEER_SILENT) << b->failure(h).to_string();
      continue;
    }
    b->run_for(5_s);
    ASSERT_FALSE(b->done(0)) << b->failure(0).to_string();
    EXPECT_TRUE(warnings.lines.empty()) << warnings.lines.back();
    b->fabric().thaw(1);
    ASSERT_NO_FATAL_FAILURE(b->expect_success(5_s));
  }
}

TEST_P(Silence, OfEverybodyElseIsPerhapsThisHostsOwn) {
  const auto b = bed();
  ASSERT_NO_FATAL_FAILURE(b->begin());
  const Warnings warnings;
  for (const int other : {0, 1}) b->fabric().block(2, other);
  b->run_for(2500_ms);
  EXPECT_EQ(warnings.with("silent for 20"), 4) << "two of host 2, and one of each of the others";
  EXPECT_EQ(warnings.with("like every other host: this host's own NICs may be dark"), 2) << "of host 2";
  b->fabric().heal();
  ASSERT_NO_FATAL_FAILURE(b->expect_success(2_s));
}

TEST_P(Silence, OfTwoProcessesOfAHostIsToldInOneLine) {
  BedOptions o;
  o.names = {"near", "far", "far"};
  const auto b = bed(o);
  ASSERT_NO_FATAL_FAILURE(b->begin());
  const Warnings warnings;
  for (const int h : {1, 2}) b->fabric().freeze(h);
  b->run_for(5_s);
  ASSERT_EQ(warnings.lines.size(), 1u);
  EXPECT_EQ(warnings.with("1, 2 (host far)") + warnings.with("on host far (pids 1001, 1002)"), 1) << warnings.lines[0];
  for (const int h : {1, 2}) b->fabric().thaw(h);
  ASSERT_NO_FATAL_FAILURE(b->expect_success(2_s));
  b->run_for(200_ms);
  EXPECT_EQ(warnings.with("heard again after"), 1);
}

}  // namespace
}  // namespace canarynet

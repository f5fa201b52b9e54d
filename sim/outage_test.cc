// Outages that every rank survives: all NICs of a host dark, one rank or all of them stopped, for seconds to half a
// minute. The job goes on within a second after the return, with exact results, whatever TCP's own back-off has come
// to. Virtual time; a stream's retries come ever more rarely there, as TCP's do.
#include <string>
#include <utility>
#include <vector>

#include "base/duration_text.h"
#include "base/random.h"
#include "sim/cluster_test_util.h"
#include "sim/warnings_test_util.h"

namespace canarynet {
namespace {

constexpr Nanos kSpans[] = {1_s, 3_s, 10_s, 30_s};
constexpr Nanos kGoesOn = 1_s;

enum class Outage {
  kDark,      // no frame passes, either way; nobody is told
  kUnheard,   // frames from the host are lost
  kDeaf,      // frames to the host are lost
  kNicsDown,  // the host's own lanes end, and it can't dial
  kStopped,   // its process stands still
};
const char* const kNames[] = {"dark", "unheard", "deaf", "NICs down", "stopped"};

ClusterOptions bed(Random& random) {
  ClusterOptions o;
  o.hosts = static_cast<int>(2 + random.below(4));
  o.ranks_per_host = random.below(3) == 0 ? 2 : 1;
  const int rails = static_cast<int>(1 + random.below(2));
  o.wiring = Wiring::flat(o.hosts, rails);
  o.fabric.seed = random.next();
  o.fabric.nic =
      NicOptions::link(Nanos{static_cast<std::int64_t>(20'000 + random.below(500'000))}, BytesPerSec::from_mbit(1000));
  o.fabric.control_over_rails = random.below(2) == 0;
  o.fabric.retransmit_backs_off = true;
  return o;
}

void begin(Cluster& c, int host, Outage outage, std::uint8_t what = kBlockAll) {
  if (outage == Outage::kStopped) return c.fabric().freeze(host);
  for (int other = 0; other < c.hosts(); ++other) {
    if (other == host) continue;
    if (outage != Outage::kDeaf) c.fabric().block(host, other, what, false);
    if (outage != Outage::kUnheard) c.fabric().block(other, host, what, false);
  }
  if (outage != Outage::kNicsDown) return;
  for (int rail = 0; rail < static_cast<int>(c.fabric().factory(host).rails().size()); ++rail)
    c.fabric().nic_down(host, rail, NicDeath::kLocal);
}

void end(Cluster& c, int host) {
  c.fabric().heal();
  if (c.fabric().frozen(host)) c.fabric().thaw(host);
}

// An operation is under way at the start of the outage, others are called during it, and one after it.
void survive(const ClusterOptions& o, Outage outage, Nanos span, Random& random, std::uint8_t what = kBlockAll) {
  Cluster c(o);
  ASSERT_TRUE(c.join());
  c.run_for(500_ms + Nanos{static_cast<std::int64_t>(random.below(1'000'000'000))});
  const int host = static_cast<int>(random.below(static_cast<std::uint64_t>(o.hosts)));
  AllRanks before(c, sum(c.ranks(), 512 << 10)), meanwhile(c, sum(c.ranks(), 1000, 2)),
      small(c, broadcast(c.ranks(), 1));
  before.submit_all();
  c.run_for(Nanos{static_cast<std::int64_t>(random.below(2'000'000))});
  begin(c, host, outage, what);
  c.run_for(span / 2);
  for (int r = 0; r < c.ranks(); ++r) {
    if (outage == Outage::kStopped && c.host_of(r) == host) continue;
    meanwhile.submit(r);
    small.submit(r);
  }
  c.run_for(span - span / 2);
  end(c, host);
  for (int r = 0; r < c.ranks(); ++r) {
    if (outage != Outage::kStopped || c.host_of(r) != host) continue;
    meanwhile.submit(r);
    small.submit(r);
  }
  const Nanos back = c.now();
  for (AllRanks* op : {&before, &meanwhile, &small}) ASSERT_NO_FATAL_FAILURE(op->expect_exact(5_s));
  EXPECT_LE(c.now() - back, kGoesOn);
  c.run_for(500_ms);
  AllRanks after(c, sum(c.ranks(), 256 << 10, 3));
  after.submit_all();
  ASSERT_NO_FATAL_FAILURE(after.expect_exact(1_s));
}

class AHostIsAway : public testing::TestWithParam<Outage> {};

TEST_P(AHostIsAway, AndTheJobGoesOnWithinASecondAfterItsReturn) {
  for (const Nanos span : kSpans) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      Random random(seed * 100 + static_cast<std::uint64_t>(GetParam()));
      const ClusterOptions o = bed(random);
      SCOPED_TRACE(std::string(kNames[static_cast<int>(GetParam())]) + " for " + milliseconds(span) + ", seed " +
                   std::to_string(seed) + ", " + std::to_string(o.hosts) + " hosts");
      ASSERT_NO_FATAL_FAILURE(survive(o, GetParam(), span, random));
      ASSERT_FALSE(HasFailure());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AHostIsAway,
                         testing::Values(Outage::kDark, Outage::kUnheard, Outage::kDeaf, Outage::kNicsDown,
                                         Outage::kStopped),
                         [](const auto& p) {
                           std::string name = kNames[static_cast<int>(p.param)];
                           std::erase(name, ' ');
                           return name;
                         });

TEST(Outage, OfTheNicsAloneIsSurvivedWhileControlLives) {
  for (const Nanos span : kSpans) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      Random random(seed);
      ClusterOptions o = bed(random);
      o.fabric.control_over_rails = false;
      SCOPED_TRACE(milliseconds(span) + ", seed " + std::to_string(seed));
      ASSERT_NO_FATAL_FAILURE(survive(o, Outage::kDark, span, random, kBlockRails));
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST(Outage, OfAllProcessesAtOnceIsSurvived) {
  for (const Nanos span : kSpans) {
    Random random(static_cast<std::uint64_t>(span.count));
    Cluster c(bed(random));
    ASSERT_TRUE(c.join());
    c.run_for(1_s);
    AllRanks op(c, sum(c.ranks(), 1 << 20));
    op.submit_all();
    c.run_for(1_ms);
    for (int h = 0; h < c.hosts(); ++h) c.fabric().freeze(h);
    c.run_for(span);
    const Nanos back = c.now();
    for (int h = 0; h < c.hosts(); ++h) {
      c.fabric().thaw(h);
      c.run_for(5_ms);
    }
    ASSERT_NO_FATAL_FAILURE(op.expect_exact(5_s)) << milliseconds(span);
    EXPECT_LE(c.now() - back, kGoesOn) << milliseconds(span);
  }
}

// The limits on progress count only time in which a peer could have brought something.
TEST(Outage, IsNoTimeWithoutProgress) {
  for (const Outage outage : {Outage::kDark, Outage::kStopped}) {
    Random random(7);
    ClusterOptions o = bed(random);
    o.settings.exchange_limit = 4_s;
    ASSERT_NO_FATAL_FAILURE(survive(o, outage, 30_s, random)) << kNames[static_cast<int>(outage)];
  }
}

TEST(Outage, IsWarnedOfOnceWithHostAndNicsAndItsEndWithItsLength) {
  ClusterOptions o = flat_cluster(3, 2, 2);
  o.fabric.retransmit_backs_off = true;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  c.run_for(1_s);
  const Warnings warnings;
  begin(c, 2, Outage::kStopped);
  c.run_for(1800_ms);  // its last beat is older than the outage by up to one interval
  EXPECT_TRUE(warnings.lines.empty()) << warnings.lines[0];
  c.run_for(500_ms);
  // Each of the two others says so.
  const char* const silent = "ranks 4, 5 (host host-2): silent for 2";
  EXPECT_EQ(warnings.with(silent), 2) << warnings.lines.size();
  EXPECT_EQ(warnings.with("via nic0>nic0, nic1>nic1 and over control; what waits for it goes on when it is heard, or "
                          "ends after CANARY_SILENCE_LIMIT (60 s)"),
            2);
  c.run_for(7700_ms);
  EXPECT_EQ(warnings.lines.size(), 2u) << warnings.lines.back();
  end(c, 2);
  c.run_for(300_ms);
  EXPECT_EQ(warnings.with("ranks 4, 5 (host host-2): heard again after 10"), 2) << warnings.lines.back();
  EXPECT_EQ(warnings.lines.size(), 4u) << warnings.lines.back();
  // The next silence is warned of again.
  begin(c, 2, Outage::kDark);
  c.run_for(2500_ms);
  EXPECT_EQ(warnings.with(silent), 4);
  EXPECT_EQ(warnings.with("like every other host: this host's own NICs may be dark"), 2) << "of host 2 itself";
}

TEST(Outage, OfAHostWithoutPowerIsNamedAtTheLimitWithTheSettingThatDecides) {
  Cluster c(flat_cluster(3, 2));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(3, 1 << 20));
  op.submit_all();
  c.run_for(200_us);
  c.kill(1, CrashKind::kSilent);
  const Nanos limit = Settings::defaults().silence_limit;
  ASSERT_EQ(limit, 60_s);
  c.run_for(limit - 1_s);
  ASSERT_FALSE(op.done(0) || op.done(2));
  ASSERT_TRUE(c.run_until([&] { return op.all_done_but(1); }, 2_s));
  for (const int r : {0, 2}) {
    const Status& s = op.ticket(r).status;
    EXPECT_EQ(s.code(), CANARY_PEER_SILENT) << s.to_string();
    EXPECT_EQ(s.detail().rank, 1) << s.to_string();
    EXPECT_NE(s.text().find("CANARY_SILENCE_LIMIT (60 s)"), std::string::npos) << s.to_string();
  }
}

// A rank that is done delays its farewell for an absent one that still needs something from it.
TEST(Outage, AtTheEndOfAJobIsSurvived) {
  ClusterOptions o = flat_cluster(3, 2);
  o.fabric.retransmit_backs_off = true;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  c.run_for(1_s);
  begin(c, 2, Outage::kDark);
  AllRanks op(c, broadcast(3, 100));  // copied: the root is done at once
  op.submit_all();
  ASSERT_TRUE(c.run_until([&] { return op.done(0); }, 1_s));
  c.engine(0).leave(c.now());
  c.run_for(10_s);
  ASSERT_FALSE(op.done(2));
  end(c, 2);
  ASSERT_NO_FATAL_FAILURE(op.expect_exact(1_s));
  ASSERT_TRUE(c.run_until([&] { return c.engine(0).left(); }, 2_s));
}

}  // namespace
}  // namespace canarynet

// Sessions that go on after deaths: whole engines, in virtual time, with workers that die at any moment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "sim/session_codecs_test_util.h"

namespace canarynet {
namespace {

SessionSetup goes_on(SessionSetup setup) {
  setup.goes_on = true;
  return setup;
}

// What the dead had pushed of each colayer, by rank; -1: it lives.
using Pushed = std::vector<double>;

void die(Cluster& c, SessionWorkers& w, int host, Pushed* pushed, CrashKind how = CrashKind::kHangup) {
  pushed->resize(w.size(), -1);
  for (int r = 0; r < c.ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    if (c.host_of(r) != host || w[at] == nullptr) continue;
    (*pushed)[at] = static_cast<double>((w[at]->pushed + 2) / 3);
    w[at].reset();
  }
  c.kill(host, how);
}

// All that the living pushed and did not drop has reached all of them once, and of the dead they have the same.
void expect_survivors_agree(const SessionWorkers& workers, const Pushed& dead, const std::string& what) {
  constexpr int colayers = 3;
  const SessionWorker* first = nullptr;
  sync::Iteration furthest = 0;
  for (const auto& w : workers) furthest = std::max(furthest, w != nullptr ? w->last.iteration : 0);
  for (std::size_t r = 0; r < workers.size(); ++r) {
    if (workers[r] == nullptr) continue;
    const SessionWorker& w = *workers[r];
    ASSERT_TRUE(w.error.ok()) << what << "rank " << r << ": " << w.error.to_string();
    if (first == nullptr) first = &w;
    double own = 0;
    for (int z = 0; z < colayers; ++z) own += w.total(z, static_cast<int>(r));
    EXPECT_EQ(own, static_cast<double>(w.pushed - w.last.dropped)) << what << "rank " << r;
    for (int z = 0; z < colayers; ++z) {
      for (int j = 0; j < static_cast<int>(workers.size()); ++j)
        EXPECT_EQ(w.total(z, j), first->total(z, j)) << what << "rank " << r << ", colayer " << z << ", of rank " << j;
      for (std::size_t j = 0; j < dead.size(); ++j) {
        EXPECT_TRUE(dead[j] < 0 || w.total(z, static_cast<int>(j)) <= dead[j])
            << what << "colayer " << z << ", more of the dead rank " << j << " than it pushed";
      }
    }
    EXPECT_LE(w.last.newest, furthest) << what << "rank " << r << " is told of an iteration of the dead";
  }
  ASSERT_NE(first, nullptr) << what;
}

TEST(SessionDeaths, TheOthersGoOnAndAreHandedTheSame) {
  for (const SessionSetup& rule :
       {SessionSetup::bsp(), SessionSetup::ssp(2), SessionSetup::asp(), SessionSetup::canary(3, 2)}) {
    for (int host = 0; host < 4; ++host) {
      Cluster c(flat_cluster(4));
      ASSERT_TRUE(c.join());
      Pushed dead;
      SessionWorkers w = start(c, goes_on(rule), {1_ms, 2_ms, 3_ms}, 40);
      const std::size_t other = host == 3 ? 0 : 3;
      ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[other]->steps == 7; }));
      die(c, w, host, &dead);
      ASSERT_TRUE(work(c, w)) << "somebody waits for ever, without host " << host;
      expect_survivors_agree(w, dead, "without host " + std::to_string(host) + ": ");
      EXPECT_EQ(w[other]->view().living, 3);
      if (HasFatalFailure()) return;
    }
  }
}

// At every moment of some rounds, and then another one at many moments of the agreement.
TEST(SessionDeaths, AtEveryMoment) {
  for (int at = 0; at < (quick() ? 5 : 60); ++at) {
    for (const std::int64_t later : {-1, 0, 20, 60, 130, 300, 700, 1500}) {
      Cluster c(flat_cluster(4, 2, at % 3 == 2 ? 2 : 1));
      ASSERT_TRUE(c.join());
      SessionSetup setup = goes_on(at % 2 == 0 ? SessionSetup::ssp(1) : SessionSetup::asp());
      setup.counts = {40, 3000, 20'000};
      if (at % 3 == 2) setup.linger = Nanos{};
      Pushed dead;
      SessionWorkers w = start(c, setup, {1_ms, 1300_us, 900_us}, 12);
      const std::string what = std::to_string(at) + ", " + std::to_string(later) + ": ";
      ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 4; }));
      const Nanos then = c.now() + Nanos{(quick() ? 360'000 : 30'000) * at};
      ASSERT_TRUE(work_until(c, w, 10_s, [&] { return c.now() >= then; }));
      die(c, w, 1 + at % 3, &dead);
      if (later >= 0) {
        const Nanos second = c.now() + Nanos{later * 1000};
        work_until(c, w, 10_s, [&] { return c.now() >= second; });
        die(c, w, at % 4 == 0 ? 0 : (at + 1) % 3 + 1, &dead);
      }
      // Without the coordinator a second death shows by silence.
      ASSERT_TRUE(work(c, w, 300_s)) << what << "somebody waits for ever";
      expect_survivors_agree(w, dead, what);
      if (HasFailure()) return;
    }
  }
}

// Frames get lost, come twice, late and changed; hosts die, one after the other, until two are left.
void live_and_die(std::uint64_t seed, const std::vector<SessionSetup>& rules) {
  Random random(seed);
  const int ranks = seed % 3 == 0 ? 2 : 1;
  ClusterOptions o = rough_cluster(3 + static_cast<int>(random.below(5)), seed, &random, ranks);
  o.settings.piece_bytes = Bytes{4096};
  Cluster c(o);
  ASSERT_TRUE(c.join());
  SessionSetup setup = goes_on(rules[random.below(rules.size())]);
  setup.counts = {100, 9'000, 17'001};
  Pushed dead;
  SessionWorkers w = start(c, setup, {2_ms, 3_ms, 1_ms, 7_ms}, 25);
  // Two are left: whoever hears nobody any more takes itself for the one that is cut off, and ends.
  const int deaths = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(c.hosts() - 2)));
  const bool silent = random.below(2) == 0;
  const std::string what = "seed " + std::to_string(seed) + ", " + std::to_string(c.hosts()) + " hosts x " +
                           std::to_string(ranks) + ", " + std::to_string(deaths) + " deaths, " +
                           (silent ? "silent" : "hangup") + ": ";
  std::vector<bool> down(static_cast<std::size_t>(c.hosts()));
  for (int i = 0; i < deaths; ++i) {
    const Nanos then = c.now() + Nanos{static_cast<std::int64_t>(random.below(40'000'000))};
    work_until(c, w, 60_s, [&] { return c.now() >= then; });
    const auto host = random.below(static_cast<std::uint64_t>(c.hosts()));
    if (down[host]) continue;
    down[host] = true;
    die(c, w, static_cast<int>(host), &dead, silent ? CrashKind::kSilent : CrashKind::kHangup);
  }
  ASSERT_TRUE(work(c, w, 600_s)) << what << "somebody waits for ever";
  expect_survivors_agree(w, dead, what);
}

TEST(SessionDeaths, NothingOfTheLivingIsLostUnderFaults) {
  const bool whole = std::getenv("CANARY_TEST_WHOLE") != nullptr;
  std::vector<std::uint64_t> seeds(whole ? 600 : quick() ? 8 : 40);
  std::iota(seeds.begin(), seeds.end(), 1);
  seeds.push_back(642);  // a rank of a process goes on sooner than the other, whom nobody else tells of the round
  for (const std::uint64_t seed : seeds) {
    live_and_die(seed, {SessionSetup::bsp(), SessionSetup::ssp(2), SessionSetup::asp(), SessionSetup::canary(2, 2)});
    if (HasFailure()) return;
  }
}

TEST(SessionDeaths, NothingOfTheLivingIsLostWithAQuorum) {
  const bool whole = std::getenv("CANARY_TEST_WHOLE") != nullptr;
  for (std::uint64_t seed = 1; seed <= (whole ? 600 : quick() ? 6 : 24); ++seed) {
    live_and_die(seed, {SessionSetup::bsp().with_quorum(60), SessionSetup::ssp(2).with_quorum(50, 3)});
    if (HasFailure()) return;
  }
}

TEST(SessionDeaths, TheLastOneGoesOnAlone) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  Pushed dead;
  SessionWorkers w = start(c, goes_on(SessionSetup::bsp()), {1_ms}, 20);
  for (const int host : {2, 1}) {
    ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == (host == 2 ? 5u : 10u); }));
    die(c, w, host, &dead);
  }
  ASSERT_TRUE(work(c, w)) << "it waits for ever";
  expect_survivors_agree(w, dead, "");
  EXPECT_EQ(w[0]->view().living, 1);
}

// Some have heard that all have finished, and close the session, and others have not when a worker dies.
TEST(SessionDeaths, WhileAllFinish) {
  int between = 0;
  for (int at = 0; at < (quick() ? 24 : 120); ++at) {
    ClusterOptions o = flat_cluster(4);
    o.fabric.seed = static_cast<std::uint64_t>(at) + 1;
    o.settings.silence_limit = 2_s;
    // Or three have finished long before the last one, whose last rounds they still join. What is lost on the way comes
    // from nobody any more when its sender has died.
    const bool one_slow = at % 2 == 1;
    o.fabric.stream = !one_slow;
    for (DirectionOptions* d : {&o.fabric.nic.out, &o.fabric.nic.in}) {
      d->jitter = 200_us;
      d->loss_ppm = one_slow ? 50'000 : 0;
    }
    Cluster c(o);
    ASSERT_TRUE(c.join());
    Pushed dead;
    SessionSetup setup = goes_on(one_slow ? SessionSetup::asp() : SessionSetup::bsp());
    if (one_slow) setup.counts = {40, 3000, 20'000};
    SessionWorkers w =
        start(c, setup, one_slow ? std::vector<Nanos>{1_ms, 1_ms, 1_ms, 4_ms} : std::vector<Nanos>{1_ms}, 3);
    std::vector<bool> closed(4);
    const auto close = [&] {
      for (std::size_t r = 0; r < 4; ++r) {
        if (w[r] == nullptr || closed[r] || w[r]->ended == Nanos{}) continue;
        w[r]->close();
        closed[r] = true;
      }
      return static_cast<int>(std::count(closed.begin(), closed.end(), true));
    };
    ASSERT_TRUE(work_until(c, w, 10_s, [&] { return close() > (one_slow ? 0 : at % 3); }));
    const std::string what = std::to_string(at) + ", " + std::to_string(close()) + " have heard: ";
    between += close() < 4;
    const int who = one_slow ? at % 3 : at % 4;
    const bool ended = closed[static_cast<std::size_t>(who)];
    die(c, w, who, &dead, at % 4 == 1 ? CrashKind::kSilent : CrashKind::kHangup);
    closed[static_cast<std::size_t>(who)] = true;
    ASSERT_TRUE(work_until(c, w, 60_s, [&] { return close() == 4; })) << what << "somebody waits for ever";
    expect_survivors_agree(w, dead, what);
    // Of one that has pushed all and met the others nothing is lost.
    const std::size_t alive = who == 0 ? 1 : 0;
    if (ended) {
      EXPECT_EQ(w[alive]->total(0, who), 3) << what;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(between, quick() ? 2 : 10) << "no death came between the first who heard and the last";
}

// A round that is redone takes its input and what was left out before it, not what the codec made of them.
TEST(SessionDeaths, WithCodecsNothingOfTheLivingIsLost) {
  for (int at = 0; at < 20; ++at) {
    ClusterOptions o = flat_cluster(4);
    o.settings.algo = "mesh";
    Cluster c(o);
    ASSERT_TRUE(c.join());
    const std::vector<std::string> codecs = {at % 2 == 0 ? "int8" : "sketch:8", "topk:0.05", ""};
    SessionSetup setup = goes_on(with_codecs(at % 4 < 2 ? SessionSetup::bsp() : SessionSetup::asp(), codecs));
    setup.counts = {2000, 700, 700};
    const auto gradient = setup.gradient;
    setup.gradient = [gradient](int r, std::size_t z, int n, std::size_t i) {
      return r == 2 ? 0.0f : gradient(r, z, n, i);
    };
    Pushed dead;
    SessionWorkers w = start(c, setup, {1_ms, 1300_us, 900_us}, 12);
    ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 5; }));
    const Nanos then = c.now() + Nanos{60'000 * at};
    work_until(c, w, 10_s, [&] { return c.now() >= then; });
    die(c, w, 2, &dead);
    const std::string what = std::to_string(at) + ": ";
    ASSERT_TRUE(work(c, w)) << what << "somebody waits for ever";
    SessionWorkers living;
    for (const std::size_t r : {0u, 1u, 3u}) living.push_back(std::move(w[r]));
    for (const auto& one : living) {
      ASSERT_TRUE(one->error.ok()) << what << one->error.to_string();
      ASSERT_EQ(one->last.dropped, 0u) << what;
    }
    // What the dead one has left out of the sums that it made is lost: a bucket's width where a codec has buckets (a
    // gradient has elements of 8), or what was not among the largest of the quarter of elements that it added up.
    for (std::size_t z = 0; z < 3; ++z) {
      std::uint64_t apart = 0;
      for (std::size_t i = 0; i < setup.counts[z]; ++i) {
        double given = 0;
        for (const auto& one : living) given += one->given(z)[i];
        const double late = given - sum_left_out(living, z, i);
        apart += living[0]->handed(z)[i] != late;
        // Steps of different workers add up different rounds, which rounds sums of fractions differently.
        for (const auto& one : living) {
          ASSERT_NEAR(one->handed(z)[i], living[0]->handed(z)[i], z == 0 ? 1e-3 : 0) << what << z << ", element " << i;
          ASSERT_TRUE(z > 0 || std::abs(one->handed(z)[i] - late) < 2) << what << "element " << i;
        }
      }
      EXPECT_TRUE(z == 0 || apart <= (z == 1 ? setup.counts[z] / 3 : 0)) << what << "colayer " << z << ": " << apart;
    }
  }
}

TEST(SessionDeaths, BeforeAllHaveOpened) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  const SessionSetup setup = goes_on(SessionSetup::bsp());
  Pushed dead;
  SessionWorkers w(3);
  w[0] = std::make_unique<SessionWorker>(c, 0, setup, 1_ms, 5);
  work_until(c, w, 50_ms, [] { return false; });
  die(c, w, 2, &dead);
  work_until(c, w, 50_ms, [] { return false; });
  w[1] = std::make_unique<SessionWorker>(c, 1, setup, 1_ms, 5);
  ASSERT_TRUE(work(c, w, 5_s)) << "somebody waits for ever";
  expect_survivors_agree(w, dead, "");
  EXPECT_EQ(w[0]->total(0, 1), 5);
}

// A rank of a process whose other rank has been through one or two deaths, or leavings.
TEST(SessionDeaths, ALocalRankMayOpenItAfterwards) {
  for (const int deaths : {1, 2}) {
    for (const bool leaves : {false, true}) {
      Cluster c(flat_cluster(4, 2, 2));
      ASSERT_TRUE(c.join());
      const SessionSetup setup = goes_on(SessionSetup::bsp());
      SessionWorkers w(8);
      for (std::size_t r = 0; r < 7; ++r) {
        if (r != 1) w[r] = std::make_unique<SessionWorker>(c, static_cast<int>(r), setup, 1_ms, 5);
      }
      Pushed dead;
      for (int host = 3; host > 3 - deaths; --host) {
        work_until(c, w, 50_ms, [] { return false; });
        if (leaves) {
          for (const int r : {2 * host, 2 * host + 1}) w[static_cast<std::size_t>(r)].reset();
          leave_and_end(c, host);
        } else {
          die(c, w, host, &dead);
        }
        work_until(c, w, 3_s, [] { return false; });
      }
      w[1] = std::make_unique<SessionWorker>(c, 1, setup, 1_ms, 5);
      const std::string what = std::to_string(deaths) + (leaves ? " left: " : " died: ");
      ASSERT_TRUE(work(c, w, 30_s)) << what << "somebody waits for ever";
      expect_survivors_agree(w, dead, what);
      EXPECT_EQ(w[0]->total(0, 1), 5) << what;
    }
  }
}

// One far ahead of the others dies, with a round that only some of them have.
TEST(SessionDeaths, TheNewestIterationIsALivingOnes) {
  for (int at = 0; at < (quick() ? 6 : 40); ++at) {
    ClusterOptions o = flat_cluster(4);
    o.fabric.seed = static_cast<std::uint64_t>(at) + 1;
    for (DirectionOptions* d : {&o.fabric.nic.out, &o.fabric.nic.in}) d->jitter = 200_us;
    Cluster c(o);
    ASSERT_TRUE(c.join());
    SessionSetup setup = goes_on(SessionSetup::asp());
    setup.counts = {40, 3000, 20'000};
    Pushed dead;
    SessionWorkers w;
    for (int r = 0; r < 4; ++r)
      w.push_back(std::make_unique<SessionWorker>(c, r, setup, r == 1 ? 300_us : 4_ms, r == 1 ? 1000 : 8));
    ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 4; }));
    const Nanos then = c.now() + Nanos{47'000 * at};
    work_until(c, w, 10_s, [&] { return c.now() >= then; });
    die(c, w, 1, &dead);
    const std::string what = std::to_string(at) + ": ";
    ASSERT_TRUE(work(c, w)) << what << "somebody waits for ever";
    expect_survivors_agree(w, dead, what);
    if (HasFailure()) return;
  }
}

TEST(SessionDeaths, ItsNumberIsUsedAfterwardsToo) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  const SessionSetup setup = goes_on(SessionSetup::bsp());
  Pushed dead;
  SessionWorkers w = start(c, setup, {1_ms}, 10);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 5; }));
  die(c, w, 2, &dead);
  ASSERT_TRUE(work(c, w, 5_s));
  expect_survivors_agree(w, dead, "");
  for (const int r : {0, 1}) w[static_cast<std::size_t>(r)]->close();
  for (const int r : {0, 1}) {
    SessionWorkers again(1);
    again[0] = std::make_unique<SessionWorker>(c, r, setup, 1_ms, 1);
    ASSERT_TRUE(work(c, again, 5_s)) << "it waits for ever";
    EXPECT_NE(again[0]->error.text().find("its number has been used"), std::string::npos)
        << again[0]->error.to_string();
  }
}

// Those that might ask have waited for so long at most.
TEST(SessionDeaths, AClosedSessionAnswersUntilTheEntryLimit) {
  for (const bool later : {false, true}) {
    ClusterOptions o = flat_cluster(3);
    o.settings.entry_limit = 2_s;
    Cluster c(o);
    ASSERT_TRUE(c.join());
    Pushed dead;
    SessionWorkers w = start(c, goes_on(SessionSetup::bsp()), {1_ms}, 3);
    ASSERT_TRUE(work(c, w));
    for (auto& one : w) one->close();
    c.run_for(later ? 3_s : 1_s);
    const std::uint64_t before = c.engine(0).counters().operations;
    die(c, w, 2, &dead);
    c.run_for(1_s);
    EXPECT_EQ(c.engine(0).counters().operations > before, !later) << "an agreement of the others";
  }
}

TEST(SessionDeaths, WhoLeavesTheJobIsDeadToTheOthers) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  Pushed dead;
  SessionWorkers w = start(c, goes_on(SessionSetup::ssp(2)), {1_ms}, 30);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 5; }));
  w[1].reset();
  leave_and_end(c, 1);
  ASSERT_TRUE(work(c, w, 20_s)) << "somebody waits for ever";
  expect_survivors_agree(w, dead, "");
}

// The others take it for dead, and it hears of it or finds that it hears nobody.
TEST(SessionDeaths, WhoIsCutOffEndsAndTheOthersGoOn) {
  for (int host = 0; host < 4; ++host) {
    for (const bool one_way : {false, true}) {
      ClusterOptions o = flat_cluster(4);
      o.settings.silence_limit = 5_s;
      Cluster c(o);
      ASSERT_TRUE(c.join());
      Pushed dead;
      SessionWorkers w = start(c, goes_on(SessionSetup::ssp(2)), {1_ms}, 30);
      const auto cut_off = static_cast<std::size_t>(host);
      ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[cut_off]->steps == 5; }));
      for (int other = 0; other < 4; ++other) {
        if (other == host) continue;
        c.fabric().block(host, other, kBlockAll, false);
        if (!one_way) c.fabric().block(other, host, kBlockAll, false);
      }
      const std::string what = std::to_string(host) + (one_way ? " is not heard: " : " is cut off: ");
      ASSERT_TRUE(work(c, w, 120_s)) << what << "somebody waits for ever";
      EXPECT_FALSE(w[cut_off]->error.ok()) << what;
      w[cut_off].reset();
      expect_survivors_agree(w, dead, what);
      if (HasFailure()) return;
    }
  }
}

// Whoever is told why a session ends, hears it also where a death was heard of first.
TEST(SessionDeaths, AnEndThatComesWithADeathIsTold) {
  for (int at = -10; at <= 10; ++at) {
    for (const int ranks : {1, 2}) {
      Cluster c(flat_cluster(4, 2, ranks));
      ASSERT_TRUE(c.join());
      Pushed dead;
      SessionWorkers w = start(c, goes_on(SessionSetup::ssp(2)), {1_ms}, 1000);
      ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 5; }));
      const auto ends = static_cast<std::size_t>(ranks);  // the first rank of host 1
      const auto close = [&] {
        w[ends]->hold(true);
        w[ends]->close();
      };
      if (at < 0) close();
      const Nanos then = c.now() + Nanos{std::abs(at) * 15'000};
      work_until(c, w, 1_s, [&] { return c.now() >= then; });
      die(c, w, 2, &dead);
      if (at >= 0) {
        const Nanos end = c.now() + Nanos{at * 15'000};
        work_until(c, w, 1_s, [&] { return c.now() >= end; });
        close();
      }
      const auto told = [&] {
        return std::all_of(w.begin(), w.end(),
                           [&](const auto& one) { return one == nullptr || one == w[ends] || !one->error.ok(); });
      };
      ASSERT_TRUE(work_until(c, w, 20_s, told)) << at << ", " << ranks << " ranks";
      for (const auto& one : w) {
        if (one == nullptr || one == w[ends]) continue;
        EXPECT_EQ(one->error.code(), CANARY_ABORTED) << at << ": " << one->error.to_string();
      }
    }
  }
}

TEST(SessionDeaths, WorkersThatDoNotAgreeOnItAreTold) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  Pushed dead;
  SessionWorkers w;
  w.push_back(std::make_unique<SessionWorker>(c, 0, SessionSetup::bsp(), 1_ms, 1));
  w.push_back(std::make_unique<SessionWorker>(c, 1, goes_on(SessionSetup::bsp()), 1_ms, 1));
  ASSERT_TRUE(work(c, w, 5_s));
  for (const auto& one : w) {
    EXPECT_EQ(one->error.code(), CANARY_MISMATCH) << one->error.to_string();
    EXPECT_NE(one->error.text().find("goes on after deaths"), std::string::npos) << one->error.to_string();
  }
}

}  // namespace
}  // namespace canarynet

// Whole sessions over a toy network: every invariant holds, whatever is drawn.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <tuple>
#include <utility>

#include "sync/property_test_util.h"
#include "sync/session_toy_test_util.h"

namespace canarynet::sync {
namespace {

ToyOptions random_toy(Random& random) {
  ToyOptions o;
  static constexpr std::pair<int, int> kCubes[] = {{3, 2}, {2, 3}, {4, 2}, {2, 2}, {5, 1}};
  o.shape = static_cast<ToyOptions::Shape>(random.below(4));
  o.workers = random.below(8) == 0 ? 17 + static_cast<int>(random.below(48)) : 1 + static_cast<int>(random.below(12));
  if (o.shape == ToyOptions::Shape::kBCube) {
    std::tie(o.radix, o.levels) = kCubes[random.below(5)];
    o.workers = 1;
    for (int l = 0; l < o.levels; ++l) o.workers *= o.radix;
  }
  o.iterations = o.workers > 16 ? 5 : 12;
  o.colayers = 1 + static_cast<int>(random.below(o.workers > 16 ? 2 : 5));
  o.segments = o.shape == ToyOptions::Shape::kBCube ? std::min(o.workers, 4) : 1 + static_cast<int>(random.below(3));
  o.delay_max = Nanos{100'000 + static_cast<std::int64_t>(random.below(8'000'000))};
  if (random.below(3) == 0) o.linger = Nanos{static_cast<std::int64_t>(random.below(10'000'000))};
  for (int w = 0; w < o.workers; ++w) {
    o.compute.push_back(Nanos{2'000'000 + static_cast<std::int64_t>(random.below(20'000'000))});
    if (random.below(6) == 0) o.compute.back() = o.compute.back() * 10;
  }
  switch (random.below(5)) {
    case 0:
      o.thresholds = Thresholds::bsp(o.colayers);
      break;
    case 1:
      o.thresholds = Thresholds::ssp(1 + static_cast<Iteration>(random.below(5)), o.colayers);
      break;
    case 2:
      o.thresholds = Thresholds::asp(o.colayers);
      break;
    case 3:
      o.thresholds = Thresholds::canary(static_cast<Iteration>(random.below(6)), o.colayers);
      break;
    case 4:
      o.thresholds =
          Thresholds::canary(static_cast<Iteration>(random.below(6)), static_cast<int>(random.below(o.colayers + 1)));
      o.change_thresholds = random.below(2) == 0;
  }
  return o;
}

TEST(SessionLives, EveryInvariantHoldsOnRandomSessions) {
  for_each_seed("session", 120, [](std::uint64_t seed) {
    Random random(seed);
    SessionToy toy(random_toy(random), seed);
    toy.run();
  });
}

void draw_quorum(Random& random, ToyOptions* o) {
  o->thresholds = random.below(2) == 0 ? Thresholds::bsp(o->colayers)
                                       : Thresholds::ssp(1 + static_cast<Iteration>(random.below(4)), o->colayers);
  o->thresholds.quorum = 30 + static_cast<int>(random.below(70));
  o->thresholds.absences = 1 + static_cast<int>(random.below(6));
  o->change_thresholds = false;
  o->iterations = o->workers > 16 ? 10 : 30;
}

void draw_deaths(Random& random, std::uint64_t within, ToyOptions* o) {
  const int deaths = 1 + static_cast<int>(random.below(3));
  for (int i = 0; i < deaths; ++i) {
    o->deaths.push_back(
        {Nanos{static_cast<std::int64_t>(random.below(within))}, static_cast<int>(random.below(o->workers))});
  }
}

TEST(SessionLives, EveryInvariantHoldsWithAQuorum) {
  int went_on = 0;
  const std::uint64_t lives = for_each_seed("session with a quorum", 120, [&](std::uint64_t seed) {
    Random random(seed * 15485863);
    ToyOptions o = random_toy(random);
    draw_quorum(random, &o);
    SessionToy toy(o, seed);
    toy.run();
    went_on += toy.went_on();
  });
  EXPECT_GT(went_on * 6, 5 * static_cast<int>(lives));
}

TEST(SessionLives, EveryInvariantHoldsWithAQuorumWhenWorkersDie) {
  for_each_seed("session with a quorum and deaths", 120, [](std::uint64_t seed) {
    Random random(seed * 32452843);
    ToyOptions o = random_toy(random);
    draw_quorum(random, &o);
    draw_deaths(random, 400'000'000, &o);
    SessionToy toy(o, seed);
    toy.run();
  });
}

TEST(SessionLives, EveryInvariantHoldsWhenWorkersDie) {
  for_each_seed("session with deaths", 120, [](std::uint64_t seed) {
    Random random(seed * 7919);
    ToyOptions o = random_toy(random);
    o.change_thresholds = false;
    draw_deaths(random, 150'000'000, &o);
    SessionToy toy(o, seed);
    toy.run();
  });
}

// A change of mode must not leave anybody waiting for what nobody will send.
TEST(SessionLives, EveryInvariantHoldsWhenTheModeChangesWhileItRuns) {
  for_each_seed("session with switches", 80, [](std::uint64_t seed) {
    Random random(seed * 104729);
    ToyOptions o = random_toy(random);
    o.change_thresholds = false;
    for (int i = 0; i < 4; ++i) {
      const Thresholds all[] = {Thresholds::bsp(o.colayers), Thresholds::ssp(2, o.colayers),
                                Thresholds::asp(o.colayers), Thresholds::canary(3, o.colayers)};
      o.switches.push_back({Nanos{static_cast<std::int64_t>(random.below(200'000'000))}, all[random.below(4)]});
    }
    // Who ended with an iteration that it dropped would be waited for by BSP for ever: it has to leave. Nobody leaves
    // here, so in the end nobody waits.
    o.switches.push_back({5_s, Thresholds::asp(o.colayers)});
    SessionToy toy(o, seed);
    toy.run();
  });
}

TEST(SessionLives, BspSumsEveryIterationOfEverybodyInOneRound) {
  ToyOptions o;
  o.workers = 9;
  o.thresholds = Thresholds::bsp(3);
  o.iterations = 15;
  SessionToy toy(o, 3);
  toy.run();
  for (int z = 0; z < 3; ++z) {
    ASSERT_EQ(toy.rounds(z), 15u);
    for (std::uint32_t m = 1; m <= 15; ++m) {
      for (int w = 0; w < 9; ++w) EXPECT_EQ(toy.contributors(z, m).of(w), (IterationRange{m, m}));
    }
  }
  EXPECT_EQ(toy.null_pieces(), 0);
}

// One worker of nine is ten times slower: under BSP all wait for it, under Canary nobody does.
TEST(SessionLives, AStragglerHoldsUpWhoWaits) {
  ToyOptions o;
  o.workers = 9;
  o.iterations = 20;
  o.compute.assign(9, 10_ms);
  o.compute[4] = 100_ms;
  o.delay_max = 500_us;
  o.thresholds = Thresholds::bsp(3);
  SessionToy bsp(o, 5);
  bsp.run();
  o.thresholds = Thresholds::canary(4, 3);
  SessionToy canary(o, 5);
  canary.run();
  EXPECT_GT(bsp.now(), 1500_ms);
  EXPECT_GT(canary.pulls(), 0);
  EXPECT_GT(canary.dropped(), 0u);
  o.thresholds = Thresholds::asp(3);
  SessionToy asp(o, 5);
  asp.run();
  EXPECT_EQ(asp.pulls(), 0);
  EXPECT_EQ(asp.dropped(), 0u);
}

// With a quorum nobody waits for it either, and yet the others' gradients of an iteration come together.
TEST(SessionLives, WithAQuorumAStragglerHoldsUpNobody) {
  ToyOptions o;
  o.workers = 9;
  o.iterations = 60;
  o.compute.assign(9, 10_ms);
  o.compute[4] = 100_ms;
  o.delay_max = 100_us;
  o.thresholds = Thresholds::bsp(3);
  SessionToy bsp(o, 5);
  bsp.run();
  o.thresholds.quorum = 75;
  SessionToy quorate(o, 5);
  quorate.run();
  EXPECT_LT(quorate.now() * 3, bsp.now());
  EXPECT_GT(quorate.went_on(), 100);
  EXPECT_EQ(quorate.dropped(), 0u);
  EXPECT_LT(quorate.rounds(2), 100u) << "a round of an iteration, and some for what came late";
}

// What the page warns of: without linger nearly every gradient opens a round of its own.
TEST(SessionLives, LingerSavesRounds) {
  const auto pieces_per_iteration = [](Thresholds thresholds, std::optional<Nanos> linger) {
    ToyOptions o;
    o.workers = 9;
    o.shape = ToyOptions::Shape::kBCube;
    o.radix = 3;
    o.levels = 2;
    o.segments = 9;
    o.colayers = 3;
    o.iterations = 40;
    o.delay_max = 300_us;
    o.compute.assign(9, 20_ms);
    o.thresholds = thresholds;
    o.linger = linger;
    SessionToy toy(o, 11);
    toy.run();
    // In units of what BSP sends for one iteration of all nine.
    return static_cast<double>(toy.payload_pieces()) / (2.0 * 8 * 9 * 3) /
           (static_cast<double>(toy.iterations_done()) / 9);
  };
  const double bsp = pieces_per_iteration(Thresholds::bsp(3), {});
  const double none = pieces_per_iteration(Thresholds::canary(18, 3), Nanos{});
  const double with = pieces_per_iteration(Thresholds::canary(18, 3), std::nullopt);
  std::cout << "pieces with a payload against BSP: " << none << " without linger, " << with << " with" << std::endl;
  EXPECT_NEAR(bsp, 1.0, 0.001);
  EXPECT_GT(none, 1.5 * with);
}

}  // namespace
}  // namespace canarynet::sync

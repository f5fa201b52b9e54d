// Deciding allocates nothing: only setting up does.
#include <gtest/gtest.h>

#include <vector>

#include "sync/policy_name.h"
#include "sync/session_rounds.h"
#include "sync/sub_header.h"
#include "tests/allocation_counter.h"

namespace canarynet::sync {
namespace {

TEST(SyncAllocation, TheDecisionsOfASessionAllocateNothing) {
  if (!CANARYNET_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer has its own allocator";
  SessionRounds::Options options;
  options.workers = 64;
  options.colayers = 10;
  options.thresholds = Thresholds::canary(4, 10);
  SessionRounds rounds(options);
  Contributors set(64);
  Contributors read(64);
  std::vector<std::uint8_t> bytes(sub_header_bytes_max(64));
  std::vector<std::uint32_t> applied(10);
  SubHeader header{.whole_set = true, .round = 1, .newest = 1, .iteration = 1};
  std::size_t used = 0;
  allocation_counter::arm();
  Nanos now;
  for (Iteration t = 1; t < 200; ++t) {
    now += 1_ms;
    for (int z = 0; z < 10; ++z) {
      rounds.push(now, z);
      rounds.arrive(now, z, 1, rounds.next_round(z), t + (t % 20 == 0 ? 9 : 0), 7, t);
      for (int due = rounds.due(now); due >= 0; due = rounds.due(now)) {
        const auto input = rounds.join(now, due);
        set.clear();
        set.add(0, input.tags);
        set.add(7, {t, t});
        header.newest = rounds.newest();
        header.iteration = rounds.iteration();
        encode(header, set, bytes);
        decode(bytes, {64, 10, 0}, &header, &read, &used);
        rounds.commit(now, due, set);
      }
    }
    if (rounds.step(now) == SessionRounds::Step::kOvertime) {
      for (int z = 0; z < 10; ++z) applied[static_cast<std::size_t>(z)] = rounds.next_round(z);
      rounds.adopt(now, rounds.newest(), applied);
    }
    if (t % 3 == 0) {
      for (int z = 0; z < 10; ++z) rounds.clear_backlog(z);
    }
  }
  EXPECT_EQ(allocation_counter::disarm(), 0);
  EXPECT_GT(rounds.dropped(), 0u);
  EXPECT_GT(rounds.iteration(), 150);
}

TEST(SyncAllocation, CoordinatorsAllocateNothing) {
  if (!CANARYNET_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer has its own allocator";
  for (const char* text : {"esync", "esync-nb", "ripples:smart", "ripples:random", "ad-psgd", "diloco:h=9,quorum=75",
                           "diloco:h=9,fragments=3,quorum=75,overlap=2"}) {
    const Cluster cluster = cluster_of(8, 8);
    const auto spec = parse_policy(text).value();
    Random random(1);
    const auto coordinator = make_coordinator(spec, cluster, &random);
    std::vector<std::unique_ptr<WorkerPolicy>> workers;
    for (int w = 0; w < 64; ++w) workers.push_back(make_worker(spec, cluster, w, 1_ms));
    Answers answers;
    Answers more;
    answers.reserve(4096);
    more.reserve(4096);
    allocation_counter::arm();
    Nanos now;
    long exchanges = 0;
    for (int cycle = 0; cycle < 400; ++cycle) {
      now += 1_ms;
      for (int w = 0; w < 64; ++w) {
        auto& worker = *workers[static_cast<std::size_t>(w)];
        const Task task = worker.next(now);
        if (task.kind == Task::Kind::kTrain) worker.trained(now, 1_ms);
        if (task.kind == Task::Kind::kAsk) coordinator->asked(now, task.question, &answers);
        if (task.kind == Task::Kind::kExchange) worker.exchanged(now), ++exchanges;
      }
      coordinator->expire(now, &answers);
      if (cycle == 300) coordinator->died(now, 5, &answers);
      more.swap(answers);
      answers.clear();
      for (const Answer& answer : more) workers[static_cast<std::size_t>(answer.worker)]->answered(now, answer);
    }
    EXPECT_EQ(allocation_counter::disarm(), 0) << text;
    EXPECT_GT(exchanges, 64) << text;
  }
}

}  // namespace
}  // namespace canarynet::sync

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "base/fifo.h"
#include "base/mpsc_ring.h"

namespace canarynet {
namespace {

TEST(MpscRing, RefusesWhenFullAndKeepsOrder) {
  MpscRing<int> ring(4);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(ring.push(i));
  EXPECT_FALSE(ring.push(4));
  int v = -1;
  for (int round = 0; round < 10; ++round) {
    ASSERT_TRUE(ring.pop(&v));
    EXPECT_EQ(v, round);
    EXPECT_TRUE(ring.push(round + 4));
  }
}

TEST(MpscRing, TellsHowManyWereClaimedAndTakenAlsoPastItsEnd) {
  MpscRing<int> ring(4);
  int value = 0;
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(ring.claimed(), i);
    ASSERT_TRUE(ring.push(1));
    EXPECT_EQ(ring.claimed(), i + 1);
    EXPECT_EQ(ring.taken(), i);
    ASSERT_TRUE(ring.pop(&value));
    EXPECT_EQ(ring.taken(), i + 1);
  }
}

TEST(MpscRing, LetsItsConsumerLookAheadAndChangeWhatWaits) {
  MpscRing<int> ring(4);
  int value = 0;
  for (int round = 0; round < 6; ++round) {
    EXPECT_EQ(ring.peek(0), nullptr);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(ring.push(10 * round + i));
    EXPECT_FALSE(ring.full());
    ASSERT_NE(ring.peek(2), nullptr);
    EXPECT_EQ(*ring.peek(2), 10 * round + 2);
    EXPECT_EQ(ring.peek(3), nullptr);
    *ring.peek(1) = -1;
    ASSERT_TRUE(ring.push(7));
    EXPECT_TRUE(ring.full());
    for (const int expected : {10 * round, -1, 10 * round + 2, 7}) {
      ASSERT_TRUE(ring.pop(&value));
      EXPECT_EQ(value, expected);
      EXPECT_FALSE(ring.full());
    }
  }
}

// Sanitizers write everything that is allocated.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
std::size_t resident_pages() {
  std::size_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident;
}

TEST(MpscRing, CostsNoMemoryForCellsThatWereNeverUsed) {
  struct Large {
    char bytes[4096];
  };
  const std::size_t before = resident_pages();
  MpscRing<Large> ring(8192);
  ASSERT_TRUE(ring.push({}));
  EXPECT_FALSE(ring.full());
  EXPECT_LT(resident_pages() - before, 1024u) << "of 8192";
}
#endif

TEST(MpscRing, PopsNothingFromEmpty) {
  MpscRing<int> ring(2);
  int v = 7;
  EXPECT_FALSE(ring.pop(&v));
  EXPECT_EQ(v, 7);
}

TEST(MpscRing, ManyProducersLoseNothingAndKeepEachOnesOrder) {
  constexpr int kProducers = 3, kEach = 20000;
  MpscRing<int> ring(64);
  std::vector<std::thread> threads;
  for (int p = 0; p < kProducers; ++p) {
    threads.emplace_back([&ring, p] {
      for (int i = 0; i < kEach; ++i) {
        while (!ring.push(p * kEach + i)) std::this_thread::yield();
      }
    });
  }
  std::vector<int> next(kProducers, 0);
  for (int got = 0; got < kProducers * kEach;) {
    int v = 0;
    if (!ring.pop(&v)) {
      std::this_thread::yield();
      continue;
    }
    ++got;
    EXPECT_EQ(v % kEach, next[static_cast<std::size_t>(v / kEach)]++);
  }
  for (auto& t : threads) t.join();
}

TEST(MpscRing, TakesAllOfAUnitOrNothing) {
  MpscRing<int> ring(8);
  const int unit[] = {1, 2, 3};
  EXPECT_TRUE(ring.push_all(unit));
  EXPECT_TRUE(ring.push(4));
  EXPECT_TRUE(ring.push_all(unit));
  EXPECT_FALSE(ring.push_all(unit)) << "there is room for one";
  EXPECT_TRUE(ring.push(5));
  for (const int expected : {1, 2, 3, 4, 1, 2, 3, 5}) {
    int v = 0;
    ASSERT_TRUE(ring.pop(&v));
    EXPECT_EQ(v, expected);
  }
  EXPECT_FALSE(ring.ready());
  EXPECT_TRUE(ring.push_all(unit)) << "past its end";
}

// A consumer that finds the first value of a unit finds the others without waiting, whatever other producers do.
TEST(MpscRing, ShowsAUnitWholeOrNotAtAll) {
  constexpr int kProducers = 2, kUnits = 5000, kLength = 8;
  MpscRing<int> ring(64);
  std::vector<std::thread> threads;
  for (int p = 0; p < kProducers; ++p) {
    threads.emplace_back([&ring, p] {
      int unit[kLength];
      for (int i = 0; i < kUnits; ++i) {
        for (int k = 0; k < kLength; ++k) unit[k] = (p * kUnits + i) * kLength + k;
        while (!ring.push_all(unit)) std::this_thread::yield();
      }
    });
  }
  int halves = 0, torn = 0;
  for (int got = 0; got < kProducers * kUnits;) {
    int first = 0, v = 0;
    if (!ring.pop(&first)) {
      std::this_thread::yield();
      continue;
    }
    ++got;
    for (int k = 1; k < kLength; ++k) {
      bool waited = false;
      while (!ring.pop(&v)) waited = true;
      halves += waited;
      torn += v != first + k;
    }
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(halves, 0);
  EXPECT_EQ(torn, 0);
}

TEST(Fifo, KeepsOrderWhileItGrowsAndGoesRound) {
  Fifo<int> queue;
  int in = 0, out = 0;
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < round % 7 + 1; ++i) queue.push(in++);
    for (std::size_t i = 0; i < queue.size(); ++i) ASSERT_EQ(queue[i], out + static_cast<int>(i));
    for (int i = 0; i < round % 5 + 1 && !queue.empty(); ++i) ASSERT_EQ(queue.pop(), out++);
  }
  while (!queue.empty()) ASSERT_EQ(queue.pop(), out++);
  EXPECT_EQ(in, out);
}

TEST(Fifo, HoldsNothingOfWhatWasPopped) {
  Fifo<std::shared_ptr<int>> queue;
  const auto value = std::make_shared<int>(1);
  queue.push(value);
  (void)queue.pop();
  EXPECT_EQ(value.use_count(), 1);
}

}  // namespace
}  // namespace canarynet

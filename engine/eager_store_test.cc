#include "engine/eager_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <vector>

#include "base/random.h"

namespace canarynet {
namespace {

using Keeps = EagerStore::Keeps;

wire::Header piece(std::uint32_t flow, std::uint32_t op, std::uint32_t number, std::uint32_t bytes,
                   std::uint16_t source = 1, std::uint16_t destination = 0) {
  wire::Header h;
  h.flow = flow;
  h.epoch = 1;
  h.op = op;
  h.piece = number;
  h.payload_bytes = bytes;
  h.source = source;
  h.destination = destination;
  return h;
}

std::vector<std::uint32_t> pieces_of(EagerStore& store, std::uint32_t flow, std::uint32_t op, std::size_t most = 1000) {
  std::vector<std::uint32_t> found;
  store.for_each_of(flow, 1, op, 1, 0, [&](EagerStore::Entry& e) {
    found.push_back(e.header.piece);
    return found.size() < most;
  });
  return found;
}

TEST(EagerStore, FindsAPieceByAllThatIdentifiesIt) {
  EagerStore store(64 * 1024, Keeps::kOperations);
  const wire::Header kept = piece(3, 5, 7, 100);
  EagerStore::Entry* const e = store.take(kept);
  ASSERT_NE(e, nullptr);
  EXPECT_EQ(store.find(kept), e);
  const auto other = [&](auto change) {
    wire::Header h = kept;
    change(h);
    return store.find(h);
  };
  EXPECT_EQ(other([](auto& h) { ++h.flow; }), nullptr);
  EXPECT_EQ(other([](auto& h) { ++h.epoch; }), nullptr);
  EXPECT_EQ(other([](auto& h) { ++h.op; }), nullptr);
  EXPECT_EQ(other([](auto& h) { ++h.step; }), nullptr);
  EXPECT_EQ(other([](auto& h) { ++h.piece; }), nullptr);
  EXPECT_EQ(other([](auto& h) { ++h.source; }), nullptr);
  EXPECT_EQ(other([](auto& h) { ++h.destination; }), nullptr);
  store.release(e);
  EXPECT_EQ(store.find(kept), nullptr);
  EXPECT_TRUE(store.empty());
}

TEST(EagerStore, GivesTheOldestPieceOfAnOperationFirstAndNoneOfAnother) {
  EagerStore store(64 * 1024, Keeps::kOperations);
  for (const std::uint32_t number : {4u, 2u, 9u}) {
    ASSERT_NE(store.take(piece(3, 5, number, 10)), nullptr);
    ASSERT_NE(store.take(piece(3, 6, number + 100, 10)), nullptr);
    ASSERT_NE(store.take(piece(3, 5, number + 200, 10, 2)), nullptr);
  }
  EXPECT_EQ(pieces_of(store, 3, 5), (std::vector<std::uint32_t>{4, 2, 9}));
  EXPECT_EQ(pieces_of(store, 3, 5, 2), (std::vector<std::uint32_t>{4, 2})) << "it goes on after being told to stop";
  EXPECT_TRUE(pieces_of(store, 3, 7).empty());
}

TEST(EagerStore, OfMessagesGivesAllOfAPair) {
  EagerStore store(64 * 1024, Keeps::kMessages);
  for (const std::uint32_t number : {1u, 2u, 3u}) ASSERT_NE(store.take(piece(3, number, number, 10)), nullptr);
  EXPECT_EQ(pieces_of(store, 3, 0), (std::vector<std::uint32_t>{1, 2, 3}));
}

TEST(EagerStore, IsFullWhenItsBytesAreCharged) {
  EagerStore store(16 * 1024, Keeps::kOperations);
  ASSERT_NE(store.take(piece(1, 1, 0, 8 * 1024)), nullptr);
  ASSERT_NE(store.take(piece(1, 1, 1, 7 * 1024 + 1)), nullptr);
  EXPECT_EQ(store.take(piece(1, 1, 2, 0)), nullptr);
}

// A walk may release what it stands on, and what it would come to next.
TEST(EagerStore, AWalkSurvivesTheReleaseOfWhatFollows) {
  EagerStore store(64 * 1024, Keeps::kOperations);
  for (std::uint32_t i = 0; i < 6; ++i) ASSERT_NE(store.take(piece(1, 1, i, 10)), nullptr);
  std::vector<std::uint32_t> seen;
  store.for_each_of(1, 1, 1, 1, 0, [&](EagerStore::Entry& e) {
    const std::uint32_t number = e.header.piece;
    seen.push_back(number);
    store.release(&e);
    if (number == 1) {
      for (const std::uint32_t next : {2u, 3u}) store.release(store.find(piece(1, 1, next, 10)));
    }
    return true;
  });
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{0, 1, 4, 5}));
  EXPECT_TRUE(store.empty());
}

// Random pieces of few conversations in a small store, against a list that is searched: many share a bucket.
TEST(EagerStore, KeepsWhatAListWouldKeep) {
  for (const Keeps keeps : {Keeps::kOperations, Keeps::kMessages}) {
    struct Kept {
      wire::Header header;
      std::byte mark;
    };
    EagerStore store(256 * 1024, keeps);
    std::list<Kept> model;
    Random random(3);
    const auto number = [&](std::uint32_t bound) { return static_cast<std::uint32_t>(random.below(bound)); };
    int refused = 0;
    for (int i = 0; i < 50'000; ++i) {
      const wire::Header h =
          piece(1 + number(2), 1 + number(4), number(40), number(3000), 1, static_cast<std::uint16_t>(number(2)));
      const auto same = [&](const Kept& k) {
        return k.header.flow == h.flow && k.header.op == h.op && k.header.piece == h.piece &&
               k.header.destination == h.destination;
      };
      const auto known = std::find_if(model.begin(), model.end(), same);
      EagerStore::Entry* e = store.find(h);
      ASSERT_EQ(e != nullptr, known != model.end()) << "turn " << i;
      if (e == nullptr) {
        e = store.take(h);
        if (e == nullptr) {
          ++refused;
          continue;
        }
        model.push_back({h, static_cast<std::byte>(number(256))});
        std::memset(store.data(*e), std::to_integer<int>(model.back().mark), EagerStore::charge(h.payload_bytes));
      } else if (number(3) != 0) {
        for (std::uint32_t b = 0; b < EagerStore::charge(known->header.payload_bytes); ++b)
          ASSERT_EQ(store.data(*e)[b], known->mark) << "turn " << i;
        store.release(e);
        model.erase(known);
      }
      if (i % 100 != 0) continue;
      auto next = model.begin();
      store.for_each_of(h.flow, 1, h.op, 1, h.destination, [&](EagerStore::Entry& found) {
        while (next != model.end() && (next->header.flow != h.flow || next->header.destination != h.destination ||
                                       (keeps == Keeps::kOperations && next->header.op != h.op)))
          ++next;
        EXPECT_NE(next, model.end());
        if (next == model.end()) return false;
        EXPECT_EQ(found.header.piece, (next++)->header.piece);
        return true;
      });
    }
    EXPECT_GT(model.size(), 50u);
    EXPECT_GT(refused, 0) << "it was never full";
  }
}

}  // namespace
}  // namespace canarynet

// What a session's piece says: every set survives the wire, and what is damaged is refused with a reason.
#include "sync/sub_header.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "sync/property_test_util.h"

namespace canarynet::sync {
namespace {

struct Written {
  SubHeader header;
  Contributors set;
  SubHeaderBounds bounds;
  std::vector<std::uint8_t> bytes;
};

Written random_piece(Random& random) {
  const int n = 1 + static_cast<int>(random.below(64));
  Written piece{{}, Contributors(n), {n, 10, 5}, {}};
  SubHeader& header = piece.header;
  header.whole_set = random.below(4) != 0;
  header.colayer = static_cast<std::uint16_t>(random.below(10));
  header.layout = 5;
  header.round = 1 + static_cast<std::uint32_t>(random.below(1u << 31));
  header.newest = 1 + static_cast<Iteration>(random.below(random.below(2) == 0 ? 100 : kIterationMax));
  header.iteration = 1 + static_cast<Iteration>(random.below(header.newest));
  for (int w = 0; w < n; ++w) {
    if (random.below(3) != 0) continue;
    const Iteration last = 1 + static_cast<Iteration>(random.below(header.newest));
    piece.set.add(w, {1 + static_cast<Iteration>(random.below(last)), last});
  }
  piece.bytes.resize(sub_header_bytes_max(n));
  piece.bytes.resize(encode(header, piece.set, piece.bytes));
  return piece;
}

TEST(SubHeader, EverySetSurvivesTheWire) {
  for_each_seed("sub-header", 2000, [](std::uint64_t seed) {
    Random random(seed);
    const Written piece = random_piece(random);
    auto bytes = piece.bytes;
    bytes.push_back(0xee);  // the payload
    SubHeader header;
    Contributors set(piece.bounds.workers);
    std::size_t used = 0;
    ASSERT_EQ(decode(bytes, piece.bounds, &header, &set, &used), nullptr);
    EXPECT_EQ(used, piece.bytes.size());
    EXPECT_EQ(header.null, piece.set.empty());
    EXPECT_EQ(header.set_hash, piece.set.hash());
    EXPECT_EQ(header.newest, piece.header.newest);
    EXPECT_EQ(header.iteration, piece.header.iteration);
    EXPECT_EQ(header.round, piece.header.round);
    EXPECT_EQ(header.colayer, piece.header.colayer);
    if (header.whole_set) {
      EXPECT_TRUE(set == piece.set);
    }
  });
}

TEST(SubHeader, ItIsRefusedAtEveryLengthTooShort) {
  Random random(7);
  const Written piece = random_piece(random);
  SubHeader header;
  Contributors set(piece.bounds.workers);
  std::size_t used = 0;
  for (std::size_t bytes = 0; bytes < piece.bytes.size(); ++bytes) {
    const char* why = decode({piece.bytes.data(), bytes}, piece.bounds, &header, &set, &used);
    ASSERT_NE(why, nullptr) << bytes;
  }
}

// A damaged byte is found, or changes nothing but the numbers that stand for themselves (round, ζ, t, colayer).
TEST(SubHeader, ADamagedSetIsNeverTaken) {
  for_each_seed("damage", 300, [](std::uint64_t seed) {
    Random random(seed);
    Written piece = random_piece(random);
    if (!piece.header.whole_set || piece.set.empty()) return;
    const std::size_t at = kSubHeaderFixedBytes + random.below(piece.bytes.size() - kSubHeaderFixedBytes);
    piece.bytes[at] ^= static_cast<std::uint8_t>(1u << random.below(8));
    SubHeader header;
    Contributors set(piece.bounds.workers);
    std::size_t used = 0;
    EXPECT_NE(decode(piece.bytes, piece.bounds, &header, &set, &used), nullptr);
  });
}

TEST(SubHeader, ReasonsNameWhatIsWrong) {
  const auto why = [](std::size_t at, std::uint8_t value, bool whole = true) {
    Contributors set(9);
    set.add(3, {5, 7});
    SubHeader header{.whole_set = whole, .colayer = 2, .layout = 5, .round = 4, .newest = 9, .iteration = 8};
    std::vector<std::uint8_t> bytes(sub_header_bytes_max(9));
    bytes.resize(encode(header, set, bytes));
    bytes[at] = value;
    Contributors read(9);
    std::size_t used = 0;
    const char* reason = decode(bytes, {9, 10, 5}, &header, &read, &used);
    return std::string(reason == nullptr ? "" : reason);
  };
  EXPECT_EQ(why(0, 1), "");
  EXPECT_EQ(why(0, 2), "another version of the sub-header");
  EXPECT_EQ(why(1, 8), "unknown flags");
  EXPECT_EQ(why(1, 6), "a notice that is part of a round");
  EXPECT_EQ(why(1, 1, false), "a null piece with contributors, or a sum of nobody's");
  EXPECT_EQ(why(2, 10), "no such colayer");
  EXPECT_EQ(why(4, 6), "another layout of the colayers");
  EXPECT_EQ(why(6, 8), "another number of workers");
  EXPECT_EQ(why(8, 0), "rounds count from 1");
  EXPECT_EQ(why(12, 7), "an iteration newer than the newest");
  EXPECT_EQ(why(25, 2), "a contributor outside of the session");
  EXPECT_EQ(why(26, 9), "a contribution from before the first iteration");
  EXPECT_EQ(why(26, 1), "the contributors do not match their hash");
  EXPECT_EQ(why(26, 0x82), "a contribution from before the first iteration") << "0x82 0x02: a number of two bytes";
  EXPECT_EQ(why(27, 0x80), "a number is longer than it needs to be") << "0x80 0x00: a zero of two bytes";
  EXPECT_EQ(why(31, 1), "the padding is not zero");
}

// As long as nobody lags by 128 iterations a contributor costs two bytes.
TEST(SubHeader, AWholeSetOf64WorkersIsShort) {
  Contributors set(64);
  for (int w = 0; w < 64; ++w) set.add(w, {90, 100});
  std::vector<std::uint8_t> bytes(sub_header_bytes_max(64));
  EXPECT_EQ(encode({.whole_set = true, .round = 1, .newest = 101, .iteration = 101}, set, bytes), 24u + 8u + 128u);
  EXPECT_EQ(encode({.round = 1, .newest = 101, .iteration = 101}, set, bytes), 24u);
}

}  // namespace
}  // namespace canarynet::sync

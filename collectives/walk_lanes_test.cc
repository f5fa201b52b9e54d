// Which lane takes a piece in a cost walk, by hand.
#include "collectives/walk_lanes.h"

#include <gtest/gtest.h>

#include "transport/channel_limits.h"

namespace canarynet {
namespace {

constexpr double kFast = 8 / 500e6, kSlow = 8 / 125e6;  // seconds a byte at 500 and 125 Mbit/s
constexpr std::uint64_t kPiece = 16 * 1024;             // as much as strangers may have given to a NIC
static_assert(kPiece == limits::kStrangerBytes);

WalkLanes pair_of(WalkWay first, WalkWay second) {
  WalkLanes lanes;
  lanes.add_pair();
  lanes.add({.rail = 0, .way = first});
  lanes.add({.rail = 1, .way = second});
  return lanes;
}

TEST(WalkLanes, ASlowLaneTakesAPieceOnceTheFastOneHoldsSoMuchThatItIsThereEarlier) {
  WalkLanes lanes = pair_of({.alpha = 5e-5, .link_beta = kFast}, {.alpha = 5e-5, .link_beta = kSlow});
  // A piece and a stranger's over the slow one take as long as eight pieces over the fast one: six held, and those two.
  for (int i = 0; i < 7; ++i) EXPECT_EQ(lanes.choose(0, kPiece, -1), 0u) << i;
  EXPECT_EQ(lanes.choose(0, kPiece, -1), 1u);
  EXPECT_EQ(lanes.choose(0, kPiece, -1), 0u);
  EXPECT_EQ(lanes[0].held, 8 * kPiece);
  EXPECT_EQ(lanes[1].held, kPiece);
  for (int i = 0; i < 8; ++i) lanes.arrived(0, kPiece);
  EXPECT_EQ(lanes.choose(0, kPiece, -1), 0u) << "what is there holds up nothing";
}

TEST(WalkLanes, TheNamedRailIsPreferredByAThirdAndNoMore) {
  for (const double slower : {1.0, 1.4, 1.6, 4.0}) {
    WalkLanes lanes = pair_of({.link_beta = kFast}, {.link_beta = slower * kFast});
    EXPECT_EQ(lanes.choose(0, kPiece, -1), 0u) << "the first of those that are as good";
    lanes.arrived(0, kPiece);
    EXPECT_EQ(lanes.choose(0, kPiece, 0), 0u);
    lanes.arrived(0, kPiece);
    EXPECT_EQ(lanes.choose(0, kPiece, 1), slower < 1.5 ? 1u : 0u) << slower;
  }
}

TEST(WalkLanes, AShortPieceTakesTheNearLaneAndALongQueueTheFarOne) {
  WalkLanes lanes = pair_of({.alpha = 11e-3, .link_beta = kFast}, {.alpha = 1e-3, .link_beta = kFast});
  EXPECT_EQ(lanes.choose(0, 4, -1), 1u);
  EXPECT_EQ(lanes.choose(0, 600'000, -1), 1u);
  // 10 ms are 625,000 bytes.
  EXPECT_EQ(lanes.choose(0, 4, -1), 1u);
  EXPECT_EQ(lanes.choose(0, 30'000, -1), 1u);
  EXPECT_EQ(lanes.choose(0, 4, -1), 0u);
}

TEST(WalkLanes, PairsOfHostsHaveLanesOfTheirOwn) {
  WalkLanes lanes;
  for (std::uint32_t pair = 0; pair < 3; ++pair) {
    EXPECT_EQ(lanes.add_pair(), pair);
    for (int rail = 0; rail <= static_cast<int>(pair); ++rail) lanes.add({.rail = rail, .way = {.link_beta = kFast}});
  }
  EXPECT_EQ(lanes.choose(0, kPiece, 2), 0u) << "its only one";
  EXPECT_EQ(lanes.choose(1, kPiece, -1), 1u);
  EXPECT_EQ(lanes.choose(1, kPiece, -1), 2u);
  EXPECT_EQ(lanes.choose(2, kPiece, -1), 3u) << "what others hold is nothing to it";
  EXPECT_EQ(lanes.choose(2, kPiece, 2), 5u);
}

}  // namespace
}  // namespace canarynet

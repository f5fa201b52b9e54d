#include "sync/meetings.h"

#include <gtest/gtest.h>

#include "sync/meetings_test_util.h"

namespace canarynet::sync {
namespace {

TEST(Meetings, WithoutAWordOfThemEverybodyMeets) {
  const Meetings all;
  EXPECT_TRUE(all.everybody());
  EXPECT_TRUE(all.connected(set_of(9, {1, 8})));
  WorkerSet reached(9);
  all.reach(1, set_of(9, {1, 5, 8}), &reached);
  EXPECT_TRUE(reached == set_of(9, {1, 5, 8}));
}

TEST(Meetings, ADiagonalIsConnectedByAThirdOne) {
  const Meetings m = rows_and_columns(4, 2);
  EXPECT_FALSE(m.everybody());
  EXPECT_TRUE(m.meets(1, set_of(4, {0, 2})));
  EXPECT_FALSE(m.meets(1, set_of(4, {2})));
  EXPECT_FALSE(m.connected(set_of(4, {1, 2})));
  EXPECT_TRUE(m.connected(set_of(4, {0, 1, 2})));
  EXPECT_TRUE(m.connected(set_of(4, {3})));
  EXPECT_TRUE(m.connected(WorkerSet(4)));
}

TEST(Meetings, AWayLeadsThroughMembersOfTheSetAlone) {
  const Meetings m = rows_and_columns(4, 2);
  WorkerSet reached(4);
  m.reach(1, set_of(4, {1, 2}), &reached);
  EXPECT_TRUE(reached == set_of(4, {1}));
  m.reach(1, set_of(4, {1, 2, 3}), &reached);
  EXPECT_TRUE(reached == set_of(4, {1, 2, 3}));
}

}  // namespace
}  // namespace canarynet::sync

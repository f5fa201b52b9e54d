// A group's measured table where links are busy all the time, in virtual time.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <string>

#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

// Returns when a group has judged the algorithm that it began with. 4 MiB among eight hosts of which one has a fifth of
// the others' rate; `before_each` runs before each operation.
Nanos judged_at(int mbit, Nanos limit, const std::function<void(Cluster&)>& before_each) {
  Cluster c(measuring(flat_cluster(8, 2)));
  for (int host = 0; host < 8; ++host) {
    for (int rail = 0; rail < 2; ++rail)
      c.fabric().nic(host, rail) = NicOptions::link(50_us, BytesPerSec::from_mbit(host == 7 ? mbit / 5 : mbit));
  }
  if (!c.join()) {
    ADD_FAILURE() << "the join failed";
    return limit;
  }
  std::uint64_t salt = 0;
  std::string why;
  const auto is_judged = [&] {
    const GroupMember& m = *c.world(0);
    if (m.group->decisions->table_for(m.entered + 1).identity() == 0) return false;
    why = c.engine(0).explain(m.id, Collective::kAllReduce, 4 << 20);
    return why.find("too few operations") == std::string::npos;
  };
  while (c.now() < limit && !is_judged()) {
    before_each(c);
    AllRanks op(c, sum(8, 1 << 20, ++salt));
    op.submit_all();
    op.expect_exact(60_s);
    c.run_for(5_ms);
  }
  std::printf("after %llu operations, %.1f s: %s\n", static_cast<unsigned long long>(salt), c.now().seconds(),
              why.c_str());
  EXPECT_TRUE(is_judged());
  return c.now();
}

// An operation takes a third of a second, and in that time the level of some link of the 112 changes for a moment.
TEST(BusyLinks, LevelsThatChangeAllTheTimeKeepNobodyFromJudging) {
  judged_at(500, 6_s, [](Cluster&) {});
}

// An operation takes more than a second. One link's level changes every 1.5 or 2.5 s, long enough for the change to
// count.
TEST(BusyLinks, LevelsThatChangeForSecondsKeepNobodyFromJudging) {
  for (const Nanos period : {1500_ms, 2500_ms}) {
    const Nanos at = judged_at(125, 30_s, [&](Cluster& c) {
      const bool halved = c.now().count / period.count % 2 != 0;
      c.fabric().nic(3, 0) = NicOptions::link(50_us, BytesPerSec::from_mbit(halved ? 62 : 125));
    });
    EXPECT_LT(at, 16_s) << period.seconds();  // 20 s if each change outdated the operations before it
  }
}

// Times from before the links changed are none of what runs now.
TEST(BusyLinks, LevelsThatChangeOnceOutdateWhatRuns) {
  Cluster c(measuring(flat_cluster(4, 1)));
  const auto set_delay = [&](Nanos delay) {
    for (int host = 0; host < 4; ++host) c.fabric().nic(host, 0) = NicOptions::link(delay, BytesPerSec::from_mbit(100));
  };
  set_delay(100_us);
  ASSERT_TRUE(c.join());
  std::uint64_t salt = 0;
  const auto run_until = [&](Nanos end, const std::function<bool()>& enough) {
    while (c.now() < end && !enough()) {
      AllRanks op(c, sum(4, 1 << 17, ++salt));
      op.submit_all();
      op.expect_exact(60_s);
      c.run_for(1_ms);
    }
  };
  const Group& g = *c.world(0)->group;
  const auto table = [&] { return g.decisions->table_for(c.world(0)->entered + 1); };
  const auto in_force = [&]() -> const ChoiceUse::Took& {
    const MeasuredTable now = table();
    return g.use.find(Collective::kAllReduce, 512 << 10)->in_force(now.find(Collective::kAllReduce, 512 << 10));
  };
  run_until(40_s, [&] {
    const std::string why = c.engine(0).explain(c.world(0)->id, Collective::kAllReduce, 512 << 10);
    return c.now() > 5_s && why.find("timed") != std::string::npos && why.find("trial") == std::string::npos &&
           in_force().lately >= ChoiceUse::Took::kEnough;
  });
  const std::uint32_t identity = table().identity();
  ASSERT_NE(identity, 0u);
  ASSERT_GE(in_force().lately, ChoiceUse::Took::kEnough);
  set_delay(20_ms);
  run_until(c.now() + 3_s, [&] { return in_force().lately < ChoiceUse::Took::kFew; });
  EXPECT_LT(in_force().lately, ChoiceUse::Took::kFew);
  EXPECT_EQ(table().identity(), identity) << "nothing has been decided by times of before";
}

}  // namespace
}  // namespace canarynet

// A group's measured table, in virtual time: made of what its engines measured, in force from the same operation on
// everywhere, and never in anybody's way.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/serial.h"
#include "sim/cluster_test_util.h"
#include "sim/forger_test_util.h"

namespace canarynet {
namespace {

// A network on which the static choice is far from the best: it takes the ring for 4 MiB, whose steps all wait for the
// host that is far away.
ClusterOptions far_cluster(int hosts = 8, int ranks_per_host = 1) {
  ClusterOptions o = flat_cluster(hosts, 1, ranks_per_host);
  o.fabric.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(1000));
  o.fabric.window_bytes = 16 << 20;
  return o;
}
void put_far(Cluster& c, int host, Nanos delay) {
  c.fabric().nic(host, 0) = NicOptions::link(delay, BytesPerSec::from_mbit(1000));
}

// Notes by which table each rank entered each operation, and checks that all ranks agree.
class Decisions final : public PollWatcher {
 public:
  explicit Decisions(Cluster& c) : c_(c), seen_(static_cast<std::size_t>(c.ranks()), first(c)) { c.add_watcher(this); }
  ~Decisions() override { c_.remove_watcher(this); }
  static std::uint32_t first(Cluster& c) { return c.world(0)->entered; }

  void polled(int host) override {
    for (int r = 0; r < c_.ranks(); ++r) {
      if (c_.host_of(r) != host || !c_.alive(host)) continue;
      const GroupMember* m = c_.world(r);
      std::uint32_t& seen = seen_[static_cast<std::size_t>(r)];
      while (seen != m->entered) {
        ++seen;
        const wire::SignaturePayload& s = m->history[seen % GroupMember::kHistory];
        const auto [at, first] = by_number_.try_emplace(seen, s);
        EXPECT_EQ(at->second.table, s.table) << "operation " << seen << " at rank " << r;
        EXPECT_EQ(at->second.planner, s.planner) << "operation " << seen << " at rank " << r;
        if (first && s.table != last_table_) {
          last_table_ = s.table;
          ++tables_;
        }
      }
    }
  }
  int tables() const { return tables_; }  // that came into force
  const std::map<std::uint32_t, wire::SignaturePayload>& by_number() const { return by_number_; }

 private:
  Cluster& c_;
  std::vector<std::uint32_t> seen_;
  std::map<std::uint32_t, wire::SignaturePayload> by_number_;
  std::uint32_t last_table_ = 0;
  int tables_ = 0;
};

// One sum after the other for so long, or until `enough`. Every result is checked. Returns when it was enough.
Nanos exchange(Cluster& c, Nanos span, std::uint64_t count, const std::function<bool()>& enough = [] { return false; }) {
  const Nanos began = c.now();
  std::uint64_t salt = 1;
  while (c.now() - began < span) {
    AllRanks op(c, sum(c.ranks(), count, ++salt));
    op.submit_all();
    op.expect_exact(60_s);
    if (testing::Test::HasFatalFailure() || enough()) break;
    c.run_for(1_ms);
  }
  return c.now() - began;
}

std::string planner_now(Cluster& c) { return c.engine(0).algorithm(c.world(0)->id); }

TEST(Decision, ABetterPlannerThanTheStaticOneIsChosenWithinTwoSeconds) {
  Cluster c(far_cluster());
  put_far(c, 7, 5_ms);
  ASSERT_TRUE(c.join());
  Decisions watch(c);
  exchange(c, 50_ms, 1 << 20);
  const std::string before = planner_now(c);
  const Nanos took = exchange(c, 4_s, 1 << 20, [&] { return planner_now(c) != before; });
  std::printf("%s to %s after %.3f s\n", before.c_str(), planner_now(c).c_str(), took.seconds());
  EXPECT_LE(took.count, (2_s).count);
  EXPECT_NE(planner_now(c), before);
  exchange(c, 5_s, 1 << 20);
  EXPECT_EQ(watch.tables(), 1) << "nothing has changed since";
}

}  // namespace
}  // namespace canarynet

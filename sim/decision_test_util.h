// For tests of a group's measured table: clusters whose static choice is not the best, and what their ranks decide by.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sim/cluster_test_util.h"

namespace canarynet {

// Long links: the ring, which is the static choice for 512 KiB among 4 ranks, takes 6 message times, a mesh takes two.
inline constexpr std::uint64_t kCount = 1 << 17;  // f32: 512 KiB
inline NicOptions link_of(Nanos delay) { return NicOptions::link(delay, BytesPerSec::from_mbit(100)); }
inline ClusterOptions long_cluster(int hosts = 4, int ranks_per_host = 1, Nanos delay = 20_ms) {
  ClusterOptions o = measuring(flat_cluster(hosts, 1, ranks_per_host));
  o.fabric.nic = link_of(delay);
  return o;
}
inline void set_delay(Cluster& c, Nanos delay) {
  for (int host = 0; host < c.hosts(); ++host) c.fabric().nic(host, 0) = link_of(delay);
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
inline Nanos exchange(
    Cluster& c, Nanos span, std::uint64_t count, const std::function<bool()>& enough = [] { return false; },
    Nanos pause = 1_ms) {
  const Nanos began = c.now();
  std::uint64_t salt = 1;
  while (c.now() - began < span) {
    AllRanks op(c, sum(c.ranks(), count, ++salt));
    op.submit_all();
    op.expect_exact(60_s);
    if (testing::Test::HasFatalFailure() || enough()) break;
    c.run_for(pause);
  }
  return c.now() - began;
}

inline std::string planner_now(Cluster& c) { return c.engine(0).algorithm(c.world(0)->id); }
inline DecisionFlow& decisions(Cluster& c, int host) {
  return *c.world(host * c.ranks() / c.hosts())->group->decisions;
}
// The table by which the host would enter its next operation; 0: none.
inline std::uint32_t table_at(Cluster& c, int host) {
  return decisions(c, host).table_for(c.world(host * c.ranks() / c.hosts())->entered + 1).identity();
}
inline bool all_decide_by_a_table(Cluster& c) {
  for (int h = 0; h < c.hosts(); ++h) {
    if (table_at(c, h) == 0 || table_at(c, h) != table_at(c, 0)) return false;
  }
  return true;
}

}  // namespace canarynet

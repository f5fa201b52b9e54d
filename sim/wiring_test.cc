// The share of the links between hosts that collectives use, compared with what the wiring can carry. Virtual time.
#include <gtest/gtest.h>

#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

// Seconds of an all-reduce after one that has measured the lanes.
double seconds_of_all_reduce(Cluster& c, std::uint64_t count) {
  AllRanks warm(c, sum(c.ranks(), count / 8));
  warm.submit_all();
  warm.expect_exact();
  const Nanos began = c.now();
  AllRanks op(c, sum(c.ranks(), count, 2));
  op.submit_all();
  op.expect_exact();
  return (c.now() - began).seconds();
}

ClusterOptions mesh_cluster(int hosts, int ranks_per_host) {
  ClusterOptions o;
  o.hosts = hosts;
  o.ranks_per_host = ranks_per_host;
  o.wiring = Wiring::mesh(hosts);
  o.fabric.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(500));
  return o;
}

TEST(MeshWiring, AllReduceUsesTheLinksOfAllPairsAtOnce) {
  constexpr std::uint64_t kBytes = 8 << 20;
  for (const auto& [hosts, each] : {std::pair{3, 1}, {4, 1}, {5, 1}, {8, 1}, {4, 2}}) {
    SCOPED_TRACE(std::to_string(hosts) + " hosts of " + std::to_string(each));
    Cluster c(mesh_cluster(hosts, each));
    ASSERT_TRUE(c.join());
    // Each link carries 2/n of the buffer each way.
    const double bound = 2.0 / hosts * kBytes / 62.5e6;
    EXPECT_GT(bound / seconds_of_all_reduce(c, kBytes / 4), 0.93);
  }
}

}  // namespace
}  // namespace canarynet

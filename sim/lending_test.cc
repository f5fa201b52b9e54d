// An operation that is done has given its buffers back: no part of them may be read or written afterwards, whatever is
// still under way. AllRanks overwrites each rank's buffers at that moment and looks at them until the test ends.
#include <gtest/gtest.h>

#include <tuple>

#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

// Rank 0 sends to the others over two rails. A frame is on its way over rail 0, and another rank's waits for its turn
// there, when that rail becomes so slow that both pieces are sent again over the other. The operation ends; the rail
// crawls on.
// The parameters are ranks, kilobytes per second, and half milliseconds before the rail crawls: at some of them a piece
// is on its way there.
class CrawlingRail : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(CrawlingRail, NeitherReadsNorWritesWhatWasGivenBack) {
  const auto [ranks, rate, moment] = GetParam();
  ClusterOptions o = flat_cluster(ranks, 2);
  o.fabric.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(1000));
  o.settings.piece_bytes = Bytes{64 << 10};
  o.settings.algo = "mesh";
  Cluster c(o);
  ASSERT_TRUE(c.join());
  const oracle::Shape s = broadcast(ranks, 1 << 18);
  AllRanks warm(c, s);
  warm.submit_all();
  warm.expect_exact();
  AllRanks op(c, s);
  op.submit_all();
  c.run_for(500_us * moment);
  ASSERT_FALSE(op.done(1));
  c.fabric().nic(0, 0).out.rate = BytesPerSec{rate * 1000};
  op.expect_exact();
  // Frames on the crawling rail arrive, or its lane is given up.
  c.run_for(2_s);
}

INSTANTIATE_TEST_SUITE_P(Rates, CrawlingRail,
                         testing::Combine(testing::Values(2, 3), testing::Values(800, 600, 400, 300, 250, 200, 100),
                                          testing::Range(1, 5)));

// In all-reduces a rank overwrites a range that it has sent with the range's final sum. If acknowledgements get lost
// the sum may be here long before it is known that the sent piece arrived: until then the piece may have to go again,
// as it was.
TEST(LostAcknowledgements, KeepWhatWasSentFromBeingOverwritten) {
  for (const char* algo : {"ring", "mesh", "halving_doubling"}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(std::string(algo) + ", seed " + std::to_string(seed));
      ClusterOptions o = flat_cluster(4, 2);
      o.fabric.seed = seed;
      o.fabric.stream = false;
      o.fabric.bad_header_resets = false;
      o.fabric.nic.out.loss_ppm = 150'000;
      o.settings.piece_bytes = Bytes{16 << 10};
      o.settings.algo = algo;
      Cluster c(o);
      ASSERT_TRUE(c.join());
      oracle::Shape s;
      s.ranks = 4;
      s.count = 1 << 17;
      for (int i = 0; i < 3; ++i) {
        AllRanks op(c, s, i % 2 == 1);
        op.submit_all();
        op.expect_exact();
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace canarynet

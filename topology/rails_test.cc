#include "topology/rails.h"

#include <gtest/gtest.h>

#include <initializer_list>

#include "base/random.h"

namespace canarynet {
namespace {

Rail rail_on(int subnet, int host, int prefix_bits = 24) {
  Rail rail;
  rail.device = "nic" + std::to_string(subnet);
  rail.address = Address::ipv4(10, 0, static_cast<std::uint8_t>(subnet), static_cast<std::uint8_t>(host),
                               static_cast<std::uint8_t>(prefix_bits));
  return rail;
}

// The shared memory of process `process` on host `host`.
Rail memory_of(int host, int process) {
  Rail rail;
  rail.device = "shm";
  rail.address.family = Address::Family::kSharedMemory;
  rail.address.prefix_bits = 64;
  rail.address.port = 1;
  rail.address.bytes[0] = static_cast<std::uint8_t>(host);
  rail.address.bytes[15] = static_cast<std::uint8_t>(process);
  return rail;
}

std::vector<RailPair> pairs(std::vector<Rail> a, std::vector<Rail> b) { return pair_rails(a, b, RailPairing::kSubnet); }

TEST(PairRails, JoinsRailsOfOneSubnetWhateverTheirIndex) {
  EXPECT_EQ(pairs({rail_on(1, 1), rail_on(2, 1)}, {rail_on(2, 2), rail_on(1, 2)}),
            (std::vector<RailPair>{{0, 1}, {1, 0}}));
}

TEST(PairRails, NeverJoinsTwoKnownSubnetsThatDiffer) {
  EXPECT_EQ(pairs({rail_on(1, 1), rail_on(2, 1)}, {rail_on(1, 2), rail_on(3, 2)}), (std::vector<RailPair>{{0, 0}}));
  EXPECT_TRUE(pairs({rail_on(1, 1)}, {rail_on(2, 2)}).empty());
}

TEST(PairRails, FallsBackToTheIndexWhereASubnetIsUnknown) {
  EXPECT_EQ(pairs({rail_on(1, 1, 0), rail_on(2, 1, 0)}, {rail_on(5, 2, 0), rail_on(6, 2, 0)}),
            (std::vector<RailPair>{{0, 0}, {1, 1}}));
  EXPECT_EQ(pairs({rail_on(1, 1), rail_on(2, 1, 0)}, {rail_on(1, 2), rail_on(6, 2, 0)}),
            (std::vector<RailPair>{{0, 0}, {1, 1}}));
}

TEST(PairRails, SpreadsSeveralRailsOfOneSubnet) {
  EXPECT_EQ(pairs({rail_on(1, 1), rail_on(1, 2)}, {rail_on(1, 3), rail_on(1, 4)}),
            (std::vector<RailPair>{{0, 0}, {1, 1}}));
  EXPECT_EQ(pairs({rail_on(1, 1), rail_on(1, 2), rail_on(1, 5)}, {rail_on(1, 3), rail_on(1, 4)}),
            (std::vector<RailPair>{{0, 0}, {1, 1}, {2, 0}}));
  EXPECT_EQ(pairs({rail_on(1, 3)}, {rail_on(1, 1), rail_on(1, 2)}), (std::vector<RailPair>{{0, 0}, {0, 1}}));
}

TEST(PairRails, ProcessesOfOneHostMeetInItsMemoryAndNowhereElse) {
  EXPECT_EQ(pairs({rail_on(1, 1), memory_of(1, 1)}, {rail_on(1, 1), rail_on(2, 1), memory_of(1, 2)}),
            (std::vector<RailPair>{{1, 2}}));
  EXPECT_EQ(pairs({rail_on(1, 1), memory_of(1, 1)}, {rail_on(1, 2), memory_of(2, 1)}), (std::vector<RailPair>{{0, 0}}));
  EXPECT_EQ(pairs({rail_on(1, 1), memory_of(1, 1)}, {rail_on(1, 1)}), (std::vector<RailPair>{{0, 0}}));
  EXPECT_TRUE(pairs({memory_of(1, 1)}, {memory_of(2, 1)}).empty());
}

TEST(Reachability, ProcessesOfOneHostHaveTheirBit) {
  std::vector<std::vector<Rail>> hosts;
  std::vector<int> engines;
  for (int i = 0; i < 4; ++i) {
    hosts.push_back({rail_on(1, i / 2 + 1), memory_of(i / 2, i)});
    engines.push_back(i);
  }
  const auto reach = Reachability::from_rails(hosts, engines);
  EXPECT_EQ(reach.rails(0, 1), Reachability::kHostBit | 2u);
  EXPECT_EQ(reach.rails(3, 2), Reachability::kHostBit | 2u);
  EXPECT_EQ(reach.rails(0, 2), 1u);
  EXPECT_EQ(reach.rails(3, 0), 1u);
}

TEST(Reachability, RanksOfOneHostFormAnyBCube) {
  std::vector<std::vector<Rail>> hosts;
  std::vector<int> engines;
  for (int i = 0; i < 8; ++i) {
    hosts.push_back({rail_on(1, 1), memory_of(1, i)});
    engines.push_back(i);
  }
  const BCubeShape shape = find_bcube(Reachability::from_rails(hosts, engines), kRailsMax);
  EXPECT_EQ(shape.r, 2);
  EXPECT_EQ(shape.levels, 3);
}

TEST(Reachability, BCubeJoinsRanksThatDifferInOneDigit) {
  const auto reach = Reachability::bcube(3, 2);
  ASSERT_EQ(reach.ranks(), 9);
  EXPECT_EQ(reach.rails(0, 2), 1u);  // digit 0 differs: level 0
  EXPECT_EQ(reach.rails(0, 6), 2u);  // digit 1 differs: level 1
  EXPECT_EQ(reach.rails(0, 4), 0u);
  EXPECT_FALSE(reach.meets(0, 4));
  EXPECT_TRUE(reach.meets(4, 4));
}

TEST(Reachability, FromRailsOfBCubeSubnetsIsBCube) {
  // Level-0 cubes share the upper digit, level-1 cubes the lower one.
  std::vector<std::vector<Rail>> hosts;
  std::vector<int> engines;
  for (int i = 0; i < 9; ++i) {
    hosts.push_back({rail_on(i / 3, i % 3 + 1), rail_on(100 + i % 3, i / 3 + 1)});
    engines.push_back(i);
  }
  const auto reach = Reachability::from_rails(hosts, engines);
  const auto wanted = Reachability::bcube(3, 2);
  for (int a = 0; a < 9; ++a) {
    for (int b = 0; b < 9; ++b) EXPECT_EQ(reach.rails(a, b), wanted.rails(a, b)) << a << " " << b;
  }
}

TEST(Reachability, RanksOfOneEngineAlwaysMeet) {
  const std::vector<std::vector<Rail>> hosts = {{rail_on(1, 1)}, {rail_on(1, 1)}, {rail_on(2, 1)}};
  const std::vector<int> engines = {0, 0, 1};
  const auto reach = Reachability::from_rails(hosts, engines);
  EXPECT_EQ(reach.rails(0, 1), Reachability::kLocalBit);
  EXPECT_FALSE(reach.meets(1, 2));
}

TEST(Reachability, RailNumbersAreTheRowsOwn) {
  const std::vector<std::vector<Rail>> hosts = {{rail_on(1, 1), rail_on(2, 1)},
                                                {rail_on(3, 2), rail_on(4, 2), rail_on(2, 2)}};
  const std::vector<int> engines = {0, 1};
  const auto reach = Reachability::from_rails(hosts, engines);
  EXPECT_EQ(reach.rails(0, 1), 0b10u);
  EXPECT_EQ(reach.rails(1, 0), 0b100u);
}

// The matrix, kept for kinds of ranks, must equal what each two ranks would find for themselves.
TEST(Reachability, RanksOfOneKindMeetAsEachTwoWould) {
  Random random(7);
  const auto one_of = [&](std::initializer_list<int> list) { return list.begin()[random.below(list.size())]; };
  for (int round = 0; round < 300; ++round) {
    const RailPairing pairing = static_cast<RailPairing>(random.below(4));
    std::vector<std::vector<Rail>> hosts;
    std::vector<int> engines;
    // A route leads to one half of a subnet. Hosts are then so plain that many differ only by the half they are in.
    const bool split = random.below(3) == 0;
    for (int r = 0; r < 12; ++r) {
      const bool with_the_last = r != 0 && random.below(4) == 0;
      engines.push_back(with_the_last ? engines.back() : r);
      if (with_the_last) {
        hosts.push_back(hosts.back());
        continue;
      }
      std::vector<Rail>& rails = hosts.emplace_back();
      const int nics = split ? 1 : static_cast<int>(random.below(3));
      for (int i = 0; i < nics; ++i) {
        const int bits = split ? 24 : one_of({24, 24, 24, 16, 0});
        Rail& rail = rails.emplace_back(rail_on(one_of({1, 2, 3}), r + one_of({1, 129}), bits));
        if (split) {
          rail.beyond.push_back(Network::of(rail_on(one_of({1, 2, 3}), 129, 25).address));
          continue;
        }
        if (random.below(2) == 0) rail.beyond.push_back(Network::everything(Address::Family::kIPv4));
        if (random.below(3) == 0) rail.beyond.push_back(Network::of(rail_on(one_of({1, 2, 3}), 1).address));
      }
      if (random.below(2) == 0) rails.push_back(memory_of(one_of({1, 2}), r));
    }
    const Reachability reach = Reachability::from_rails(hosts, engines, pairing);
    bool all = true;
    for (int a = 0; a < 12; ++a) {
      for (int b = 0; b < 12; ++b) {
        std::uint32_t wanted = 0;
        const auto at = static_cast<std::size_t>(a);
        if (a != b && engines[at] == engines[static_cast<std::size_t>(b)]) wanted = Reachability::kLocalBit;
        if (wanted == 0 && a != b) {
          for (const RailPair& p : pair_rails(hosts[at], hosts[static_cast<std::size_t>(b)], pairing)) {
            wanted |= 1u << p.local;
            const Address& here = hosts[at][static_cast<std::size_t>(p.local)].address;
            if (here.family == Address::Family::kSharedMemory) wanted |= Reachability::kHostBit;
          }
        }
        ASSERT_EQ(reach.rails(a, b), wanted) << "round " << round << ", ranks " << a << " and " << b;
        all = all && (a == b || wanted != 0);
      }
    }
    ASSERT_EQ(reach.all_pairs([](std::uint32_t rails) { return rails != 0; }), all) << "round " << round;
  }
}

TEST(Reachability, OneMissingLinkLeavesAllOthers) {
  const std::vector<std::vector<Rail>> hosts(4, {rail_on(1, 1)});
  const std::vector<int> engines = {0, 0, 1, 2};
  Reachability reach = Reachability::from_rails(hosts, engines);
  reach.set(1, 3, 0, 0);
  EXPECT_FALSE(reach.meets(3, 1));
  EXPECT_EQ(reach.rails(0, 1), Reachability::kLocalBit);
  EXPECT_EQ(reach.rails(0, 3), 1u);
  EXPECT_EQ(reach.rails(2, 3), 1u);
}

TEST(Reachability, SubsetKeepsRowsInMemberOrder) {
  const std::vector<int> members = {8, 2, 0};
  const auto reach = Reachability::bcube(3, 2).subset(members);
  EXPECT_EQ(reach.ranks(), 3);
  EXPECT_EQ(reach.rails(0, 1), 2u);
  EXPECT_EQ(reach.rails(1, 2), 1u);
  EXPECT_FALSE(reach.meets(0, 2));
}

TEST(FindBCube, NamesTheWiringItWasGiven) {
  for (const auto& [r, levels] : {std::pair{3, 2}, {2, 3}, {4, 2}, {2, 2}, {5, 1}, {2, 6}}) {
    const BCubeShape shape = find_bcube(Reachability::bcube(r, levels), 8);
    EXPECT_EQ(shape.r, r);
    EXPECT_EQ(shape.levels, levels);
  }
}

TEST(FindBCube, TakesTheMostLevelsThatFitAFlatNetwork) {
  EXPECT_EQ(find_bcube(Reachability::full(16, 4), 4).levels, 4);
  EXPECT_EQ(find_bcube(Reachability::full(16, 4), 2).levels, 2);
  EXPECT_EQ(find_bcube(Reachability::full(16, 2), 8).levels, 2);  // rails 2 and 3 are not there
  EXPECT_EQ(find_bcube(Reachability::full(6, 2), 8).levels, 1);
}

TEST(FindBCube, RefusesAMissingLinkAndASingleRank) {
  auto reach = Reachability::bcube(3, 2);
  reach.set(4, 5, 0, 0);
  EXPECT_EQ(find_bcube(reach, 8).levels, 0);
  EXPECT_EQ(find_bcube(Reachability::full(1, 1), 8).levels, 0);
}

}  // namespace
}  // namespace canarynet

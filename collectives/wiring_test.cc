// The static choice for wirings in which peers are behind different NICs.
#include "collectives/wiring.h"

#include <gtest/gtest.h>

#include "collectives/cost.h"
#include "collectives/selector.h"

namespace canarynet {
namespace {

// Each pair of hosts has a link: host a reaches b over the rail that is b's place among the others.
Reachability mesh_wiring(int hosts) {
  Reachability reach(hosts);
  for (int a = 0; a < hosts; ++a) {
    for (int b = a + 1; b < hosts; ++b) reach.set(a, b, 1u << (b - 1), 1u << a);
  }
  return reach;
}

// The `each` ranks of every host share an engine and the host's NICs.
Reachability spread(const Reachability& hosts, int each) {
  Reachability reach(hosts.ranks() * each);
  for (int a = 0; a < reach.ranks(); ++a) {
    for (int b = a + 1; b < reach.ranks(); ++b) {
      const bool local = a / each == b / each;
      reach.set(a, b, local ? Reachability::kLocalBit : hosts.rails(a / each, b / each),
                local ? Reachability::kLocalBit : hosts.rails(b / each, a / each));
    }
  }
  return reach;
}

PlannerId chosen(const PlanRequest& request) {
  const auto result = select_planner(request, {});
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? result.value() : PlannerId::kParameterServer;
}

constexpr Collective kSums[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                Collective::kBroadcast, Collective::kReduce};

TEST(Wiring, ALinkPerPairOfHostsTakesTheMeshAtEverySize) {
  for (const int n : {3, 4, 5, 8, 16}) {
    const auto reach = mesh_wiring(n);
    for (const Collective collective : kSums) {
      for (const std::uint64_t count : {1ull, 1'000ull, 30'000ull, 1'000'000ull, 30'000'000ull, 1'000'000'000ull}) {
        const PlanRequest request{.collective = collective,
                                  .ranks = n,
                                  .count = count,
                                  .reach = &reach,
                                  .bcube = find_bcube(reach, kRailsMax)};
        EXPECT_EQ(chosen(request), PlannerId::kMesh) << n << " hosts, " << name_of(collective) << " of " << count;
      }
    }
  }
}

TEST(Wiring, TheMeshLoadsALinkPerPairEvenlyAndTheRingOneOfThem) {
  const auto reach = mesh_wiring(5);
  const PlanRequest request{.ranks = 5, .count = 5040 * 640, .reach = &reach};
  const CostModel model{.beta = 1e-9};
  const double bytes = 5040 * 640 * 4;
  EXPECT_NEAR(walk_cost(PlannerId::kRing, request, kRailsMax, model), 8.0 / 5 * bytes * 1e-9, bytes * 1e-11);
  EXPECT_NEAR(walk_cost(PlannerId::kMesh, request, kRailsMax, model), 2.0 / 5 * bytes * 1e-9, bytes * 1e-11);
}

// All plans move the same bytes over the NICs of a flat wiring, so the table decides, whatever rates are set.
TEST(Wiring, WhereEveryPeerIsBehindTheSameNicsTheTableDecides) {
  for (const int n : {2, 3, 4, 5, 8}) {
    for (const int rails : {1, 2, 4}) {
      const auto reach = Reachability::full(n, rails);
      std::vector<double> rates(static_cast<std::size_t>(n) * kRailsMax, 1e9);
      rates[0] = 1e7;
      for (const bool told : {false, true}) {
        PlanRequest request{.ranks = n, .count = 100, .reach = &reach};
        if (told) request.rail_rates = rates;
        EXPECT_FALSE(rails_differ_by_peer(request));
        EXPECT_EQ(chosen(request), n == 2 || n == 4 ? PlannerId::kHalvingDoubling : PlannerId::kMesh) << n;
        request.count = 30'000'000;
        EXPECT_EQ(chosen(request), PlannerId::kRing) << n << " hosts, " << rails << " NICs";
      }
    }
  }
  // A NIC more on some hosts helps no plan: the host with a single NIC decides.
  auto uneven = Reachability::full(4, 1);
  uneven.set(0, 1, 3, 3);
  EXPECT_EQ(chosen({.ranks = 4, .count = 30'000'000, .reach = &uneven}), PlannerId::kRing);
}

TEST(Wiring, BCubeWiringKeepsBCube) {
  for (const auto& [r, levels] : {std::pair{2, 2}, {3, 2}, {2, 3}, {4, 2}, {2, 5}}) {
    const auto reach = Reachability::bcube(r, levels);
    std::vector<double> rates(static_cast<std::size_t>(reach.ranks()) * kRailsMax, 1.25e9);
    for (const bool told : {false, true}) {
      for (const Collective collective : kSums) {
        for (const std::uint64_t count : {100'000ull, 3'000'000ull, 300'000'000ull}) {
          PlanRequest request{
              .collective = collective, .ranks = reach.ranks(), .count = count, .reach = &reach, .bcube = {r, levels}};
          if (told) request.rail_rates = rates;
          EXPECT_EQ(chosen(request), PlannerId::kBCube)
              << r << ", " << levels << ", " << name_of(collective) << " of " << count;
        }
      }
    }
  }
}

// The diagonals of a mesh of four hosts are slow: a ring around the outer links avoids them.
TEST(Wiring, ToldRatesDecideBetweenPlans) {
  const auto reach = mesh_wiring(4);
  const PlanRequest alike{.ranks = 4, .count = 30'000'000, .reach = &reach};
  EXPECT_EQ(chosen(alike), PlannerId::kMesh);
  std::vector<double> rates(4 * kRailsMax, 1.25e9);
  const auto slow = [&](int host, int peer) {
    rates[static_cast<std::size_t>(host * kRailsMax + (peer < host ? peer : peer - 1))] = 1.25e7;
  };
  slow(0, 2), slow(2, 0), slow(1, 3), slow(3, 1);
  PlanRequest told = alike;
  told.rail_rates = rates;
  EXPECT_EQ(chosen(told), PlannerId::kRing);
}

TEST(Wiring, AReceiverIsNoFasterThanItsSender) {
  const auto reach = Reachability::full(2, 1);
  std::vector<double> rates(2 * kRailsMax, 1e9);
  rates[0] = 1e8;
  const PlanRequest request{
      .collective = Collective::kBroadcast, .ranks = 2, .count = 250'000, .reach = &reach, .rail_rates = rates};
  EXPECT_NEAR(walk_cost(PlannerId::kRing, request, 1, {}), 0.01, 1e-6);
  PlanRequest back = request;
  back.root = 1;
  EXPECT_NEAR(walk_cost(PlannerId::kRing, back, 1, {}), 0.01, 1e-6) << "nor a sender faster than its receiver";
}

TEST(Wiring, HostsOfSeveralRanksExchangeOverAllTheirLinks) {
  for (const int hosts : {3, 4, 5}) {
    const auto reach = spread(mesh_wiring(hosts), 2);
    std::vector<int> host_of;
    for (int r = 0; r < reach.ranks(); ++r) host_of.push_back(r / 2);
    const PlanRequest request{.ranks = reach.ranks(), .count = 30'000'000, .reach = &reach, .host_of = host_of};
    ASSERT_EQ(chosen(request), PlannerId::kHierarchical);
    EXPECT_TRUE(straight_beats_ring_between_hosts(request));
    // Each host sends 2/H of the buffer over each of its links.
    const double share = 2.0 / hosts * 30'000'000 * 4 * 1e-9;
    EXPECT_NEAR(walk_cost(PlannerId::kHierarchical, request, kRailsMax, {.beta = 1e-9, .piece_bytes = 1 << 20}), share,
                share * 0.1);
    const auto flat = spread(Reachability::full(hosts, 2), 2);
    PlanRequest on_flat = request;
    on_flat.reach = &flat;
    EXPECT_FALSE(straight_beats_ring_between_hosts(on_flat));
  }
}

}  // namespace
}  // namespace canarynet

#include "transport/tcp/stray_watch.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

const Address kPeer = Address::ipv4(10, 1, 0, 2, 0, 41000);

Address with_port(Address a, std::uint16_t port) {
  a.port = port;
  return a;
}

// Tries of one peer, one each 100 ms, from `from` on for `length`; whether any of them was too many.
bool tries(StrayWatch& watch, Nanos from, Nanos length, int rail = 0, const Address& peer = kPeer) {
  bool late = false;
  for (Nanos t{}; t <= length; t += 100_ms)
    late |= watch.strayed(rail, with_port(peer, static_cast<std::uint16_t>(1000 + t.count / 1'000'000)), from + t);
  return late;
}

TEST(StrayWatch, APeerThatIsPutRightInTimeIsNothingToWarnOf) {
  StrayWatch watch;
  EXPECT_FALSE(tries(watch, 5_s, StrayWatch::kPatience - 100_ms));
  watch.arrived(0, with_port(kPeer, 2000));
  EXPECT_FALSE(tries(watch, 5_s + StrayWatch::kPatience, StrayWatch::kPatience - 100_ms)) << "it begins anew";
}

TEST(StrayWatch, APeerThatStraysOnIsTooMany) {
  StrayWatch watch;
  EXPECT_FALSE(tries(watch, 5_s, StrayWatch::kPatience - 100_ms));
  EXPECT_TRUE(watch.strayed(0, kPeer, 5_s + StrayWatch::kPatience)) << "whatever port it comes from";
}

TEST(StrayWatch, TriesFarApartHaveNothingToDoWithEachOther) {
  StrayWatch watch;
  for (int i = 1; i < 20; ++i) EXPECT_FALSE(watch.strayed(0, kPeer, (StrayWatch::kApart + 1_ms) * i)) << i;
}

TEST(StrayWatch, PeersAndRailsCountForThemselves) {
  StrayWatch watch;
  const Address other = Address::ipv4(10, 1, 0, 3);
  EXPECT_FALSE(tries(watch, 5_s, StrayWatch::kPatience - 100_ms));
  EXPECT_FALSE(watch.strayed(1, kPeer, 5_s + StrayWatch::kPatience));
  EXPECT_FALSE(watch.strayed(0, other, 5_s + StrayWatch::kPatience));
  watch.arrived(1, kPeer);
  watch.arrived(0, other);
  EXPECT_TRUE(watch.strayed(0, kPeer, 5_s + StrayWatch::kPatience)) << "neither is the one that strays";
}

TEST(StrayWatch, ManyPeersTakeThePlacesOfThoseThatWereQuietLongest) {
  StrayWatch watch;
  EXPECT_FALSE(tries(watch, 5_s, StrayWatch::kPatience - 100_ms));
  const Nanos later = 5_s + StrayWatch::kPatience - 50_ms;
  for (std::uint8_t i = 0; i < 63; ++i) EXPECT_FALSE(watch.strayed(0, Address::ipv4(10, 2, 0, i), later));
  EXPECT_TRUE(watch.strayed(0, kPeer, 5_s + StrayWatch::kPatience)) << "there was room for all";
  for (int round = 0; round < 3; ++round) {
    for (std::uint8_t i = 0; i < 200; ++i)
      EXPECT_FALSE(watch.strayed(0, Address::ipv4(10, 3, static_cast<std::uint8_t>(round), i), later + 1_s));
  }
  EXPECT_FALSE(watch.strayed(0, kPeer, later + 1_s)) << "its place was taken";
}

}  // namespace
}  // namespace canarynet

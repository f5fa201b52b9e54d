// An endpoint tells of its NICs through the C ABI: names, speeds, and counters that agree with what was sent.
#include <algorithm>

#include "canarynet/canarynet.hpp"
#include "embed/connections_test_util.h"

namespace canarynet {
namespace {

using test::last_error;
using test::TestEndpoint;

std::vector<canary_nic_stats> stats_of(const TestEndpoint& e) {
  std::vector<canary_nic_stats> nics(20);
  std::size_t count = 0;
  EXPECT_EQ(canary_endpoint_stats(e.raw, nics.data(), nics.size(), &count), CANARY_OK) << last_error().message;
  nics.resize(std::min(count, nics.size()));
  return nics;
}

void exchange(const test::Ends& e, std::size_t bytes, int messages) {
  const auto out = test::bytes_of(1, bytes);
  std::vector<std::uint8_t> in(bytes);
  for (int i = 0; i < messages; ++i) {
    canary_request* r = test::receive(e.b, in.data(), in.size());
    canary_request* s = test::send(e.a, out.data(), out.size());
    ASSERT_EQ(test::wait(r), CANARY_OK) << last_error().message;
    ASSERT_EQ(test::wait(s), CANARY_OK) << last_error().message;
  }
}

TEST(EndpointStats, RailsAreNamedInOrderWithAddressAndSpeed) {
  TestEndpoint e({"rails=127.5.0.1/24,127.5.1.1/24", "pacing_rate=500mbit,none"});
  canary_rail rails[3];
  std::size_t count = 0;
  ASSERT_EQ(canary_endpoint_rails(e.raw, rails, 1, &count), CANARY_OK);
  EXPECT_EQ(count, 2u) << "the number there is, not that which fitted";
  ASSERT_EQ(canary_endpoint_rails(e.raw, rails, 3, &count), CANARY_OK);
  ASSERT_EQ(count, 2u);
  EXPECT_STREQ(rails[0].device, "lo:0");
  EXPECT_STREQ(rails[0].address, "127.5.0.1");
  EXPECT_EQ(rails[0].speed_mbit, 500u);
  EXPECT_STREQ(rails[1].device, "lo:1");
  EXPECT_STREQ(rails[1].address, "127.5.1.1");
  EXPECT_EQ(rails[1].speed_mbit, 0u);
  EXPECT_EQ(canary_endpoint_rails(e.raw, nullptr, 1, &count), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_endpoint_rails(nullptr, rails, 3, &count), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_endpoint_stats(nullptr, nullptr, 0, &count), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_endpoint_stats(e.raw, nullptr, 0, &count), CANARY_OK);
  EXPECT_EQ(count, 2u);
}

TEST(EndpointStats, BothEndsCountTheBytesThatWereSentOnEveryNic) {
  constexpr std::size_t kBytes = 4 << 20;
  constexpr int kMessages = 8;
  const auto sum = [](const std::vector<canary_nic_stats>& nics, std::uint64_t canary_nic_stats::*field) {
    std::uint64_t total = 0;
    for (const canary_nic_stats& n : nics) total += n.*field;
    return total;
  };
  TestEndpoint one({"rails=127.6.0.1/24,127.6.1.1/24", "transports=tcp"}), two({"rails=127.6.0.2/24,127.6.1.2/24"});
  const test::Ends e = test::join_ends(one, two);
  ASSERT_NO_FATAL_FAILURE(exchange(e, kBytes, kMessages));
  const auto sent = stats_of(one), received = stats_of(two);
  ASSERT_EQ(sent.size(), 2u);
  ASSERT_EQ(received.size(), 2u);
  EXPECT_STREQ(sent[1].device, "lo:1");
  constexpr std::uint64_t kPayload = std::uint64_t{kBytes} * kMessages;
  const std::uint64_t transmitted = sum(sent, &canary_nic_stats::transmit_bytes);
  EXPECT_GE(transmitted, kPayload + kPayload / (128 << 10) * 48) << "headers included";
  EXPECT_LT(transmitted, kPayload + kPayload / 20 + sum(sent, &canary_nic_stats::piece_retransmits) * (130 << 10));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_GT(sent[i].transmit_bytes, kPayload / 20) << "NIC " << i << " had no part in it";
    EXPECT_EQ(sent[i].lanes_up, 1u);
    EXPECT_GT(sent[i].rate_bytes_per_second, 0u);
    EXPECT_EQ(sent[i].piece_crc_errors, 0u);
    // Everything that left one end has come to the other, but for a heartbeat on its way.
    const auto close_to = [&](std::uint64_t a, std::uint64_t b) { return a >= b ? a - b < 2000 : b - a < 2000; };
    EXPECT_TRUE(close_to(sent[i].transmit_bytes, received[i].receive_bytes)) << i;
    EXPECT_TRUE(close_to(received[i].transmit_bytes, sent[i].receive_bytes)) << i;
  }
}

TEST(EndpointStats, SharedMemoryIsListedBehindTheNicsOnceItStandsInForThem) {
  TestEndpoint one, two;
  EXPECT_EQ(stats_of(one).size(), 1u);
  const test::Ends e = test::join_ends(one, two);
  ASSERT_NO_FATAL_FAILURE(exchange(e, 1 << 20, 4));
  for (const TestEndpoint* end : {&one, &two}) {
    const auto nics = stats_of(*end);
    ASSERT_EQ(nics.size(), 2u);
    EXPECT_STREQ(nics[0].device, "lo");
    EXPECT_EQ(nics[0].transmit_bytes, 0u);
    EXPECT_EQ(nics[0].lanes_up, 0u);
    EXPECT_STREQ(nics[1].device, "shm");
    EXPECT_EQ(nics[1].lanes_up, 1u);
    std::size_t count = 0;
    ASSERT_EQ(canary_endpoint_rails(end->raw, nullptr, 0, &count), CANARY_OK);
    EXPECT_EQ(count, 1u) << "it is no NIC";
  }
  EXPECT_GT(stats_of(one)[1].transmit_bytes, 4u << 20);
  EXPECT_GT(stats_of(two)[1].receive_bytes, 4u << 20);
}

TEST(EndpointStats, CountersOutliveTheConnectionsAndTheirPeers) {
  TestEndpoint one({"transports=tcp"});
  std::uint64_t before = 0;
  {
    TestEndpoint two;
    const test::Ends e = test::join_ends(one, two);
    ASSERT_NO_FATAL_FAILURE(exchange(e, 1 << 20, 4));
    before = stats_of(one)[0].transmit_bytes;
    EXPECT_EQ(stats_of(one)[0].lanes_up, 1u);
  }
  ASSERT_TRUE(test::poll_until([&] { return stats_of(one)[0].lanes_up == 0; })) << "its peer has ended";
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the link is buried
  EXPECT_GE(stats_of(one)[0].transmit_bytes, before);
  EXPECT_LT(stats_of(one)[0].transmit_bytes, before + (64 << 10)) << "counted twice";
}

TEST(EndpointStats, TwoEndpointsOfOneProcessCountForThemselves) {
  TestEndpoint one({"transports=tcp"}), two, idle;
  ASSERT_NO_FATAL_FAILURE(exchange(test::join_ends(one, two), 1 << 20, 2));
  EXPECT_GT(stats_of(one)[0].transmit_bytes, 2u << 20);
  EXPECT_LT(stats_of(two)[0].transmit_bytes, 1u << 18);
  EXPECT_EQ(stats_of(idle)[0].transmit_bytes, 0u);
}

TEST(EndpointStats, InCppAreVectors) {
  Endpoint e({"rails=lo"});
  ASSERT_EQ(e.rails().size(), 1u);
  EXPECT_STREQ(e.rails()[0].device, "lo");
  EXPECT_STREQ(e.rails()[0].address, "127.0.0.1");
  ASSERT_EQ(e.nics().size(), 1u);
  EXPECT_STREQ(e.nics()[0].device, "lo");
}

}  // namespace
}  // namespace canarynet

// Endpoints of one machine meet in shared memory and nothing else, endpoints of others over their NICs. Virtual time.
#include "sim/endpoint_test_util.h"

namespace canarynet {
namespace {

// Hosts 0 and 1 are processes of one machine with two NICs, host 2 is another machine.
Wiring two_machines() {
  Wiring w = Wiring::flat(3, 2);
  w.machine = {0, 0, 1};
  return w;
}
constexpr int kMemory = 2;  // its rail, behind the NICs

class MemoryNet : public Net {
 public:
  MemoryNet() : Net(two_machines(), quick(), Settings::defaults(), [](int, EndpointOptions*) {}) {}
  std::uint64_t by_nics(int host) const {
    return fabric.nic_counters(host, 0).tx_bytes + fabric.nic_counters(host, 1).tx_bytes;
  }
  std::uint64_t by_memory(int host) { return at(host).rail_stats(kMemory).lanes.bytes_sent; }
};

// Makes the handle as an endpoint without shared memory, or of an older library, would have made it.
void forget_memory(Pair& p) {
  EndpointHandle h = decode_handle(p.handle).value();
  std::erase_if(h.rails, [](const Address& a) { return a.family == Address::Family::kSharedMemory; });
  encode(h, p.handle);
  ASSERT_EQ(p.handle[2], std::byte{1}) << "the version that older libraries read";
}

void exchange(Net& net, Pair& p) {
  for (std::size_t round = 0; round < 3; ++round) {
    for (const std::uint64_t bytes : {0, 1, 1000, 100'000, 131'072, 131'073, 3'000'000}) {
      p.send(*p.connecting[0], bytes);
      p.receive(*p.accepted[0], bytes);
      p.receive(*p.connecting[0], bytes);
      p.send(*p.accepted[0], bytes);
    }
  }
  ASSERT_NO_FATAL_FAILURE(p.expect_all(5_s));
  p.halves.clear();
  net.pass(1_ms);
}

TEST(EndpointMemory, EndpointsOfOneMachineMeetInItAndOthersOverNics) {
  MemoryNet net;
  Pair near(net, 0, 1);
  ASSERT_NO_FATAL_FAILURE(near.open());
  ASSERT_NO_FATAL_FAILURE(exchange(net, near));
  EXPECT_EQ(net.by_nics(0) + net.by_nics(1), 0u);
  EXPECT_GT(net.by_memory(0), 9'000'000u);
  EXPECT_GT(net.by_memory(1), 9'000'000u);
  const std::uint64_t before = net.by_memory(0);
  Pair far(net, 0, 2);
  ASSERT_NO_FATAL_FAILURE(far.open());
  ASSERT_NO_FATAL_FAILURE(exchange(net, far));
  EXPECT_GT(net.by_nics(0), 9'000'000u);
  EXPECT_LT(net.by_memory(0) - before, 10'000u);  // heartbeats of the first link
}

TEST(EndpointMemory, AHandleThatNamesNoneIsReachedOverNics) {
  MemoryNet net;
  Pair p(net, 0, 1);
  ASSERT_NO_FATAL_FAILURE(forget_memory(p));
  ASSERT_NO_FATAL_FAILURE(p.open());
  ASSERT_NO_FATAL_FAILURE(exchange(net, p));
  EXPECT_GT(net.by_nics(0), 9'000'000u);
  EXPECT_EQ(net.by_memory(0), 0u);
}

TEST(EndpointMemory, AnEndpointReachesItself) {
  MemoryNet net;
  Pair p(net, 0, 0);
  ASSERT_NO_FATAL_FAILURE(p.open());
  ASSERT_NO_FATAL_FAILURE(exchange(net, p));
  EXPECT_EQ(net.by_nics(0), 0u);
}

TEST(EndpointMemory, AProcessThatHasEndedIsNamedSoonByWhoConnectsToIt) {
  MemoryNet net;
  Pair p(net, 0, 1);
  net.kill(1, CrashKind::kHangup);
  Connection& c = p.connect();
  ASSERT_TRUE(net.until([&] { return c.state == Connection::State::kFailed; }, 3_s));
  EXPECT_EQ(c.failure.code(), CANARY_PEER_DIED) << c.failure.text();
}

TEST(EndpointMemory, AHandleSaysItsNameAndOtherOnesAreRefused) {
  Address name;
  name.family = Address::Family::kSharedMemory;
  name.prefix_bits = 64;
  name.port = 1;
  for (std::size_t i = 0; i < name.bytes.size(); ++i) name.bytes[i] = static_cast<std::uint8_t>(i * 7);
  EndpointHandle h;
  h.token = 5;
  const auto add_nics = [&](int count) {
    h.rails.clear();
    for (int i = 0; i < count; ++i) h.rails.push_back(Address::ipv4(10, 0, static_cast<std::uint8_t>(i), 1, 24, 4000));
    h.rails.push_back(name);
  };
  std::array<std::byte, kHandleBytes> bytes{};
  for (const int nics : {0, 1, 13}) {
    add_nics(nics);
    EXPECT_EQ(encode(h, bytes), h.rails.size());
    EXPECT_EQ(bytes[2], std::byte{2}) << "older libraries refuse it by its version";
    const auto back = decode_handle(bytes);
    ASSERT_TRUE(back.ok()) << back.status().text();
    EXPECT_EQ(back.value().rails, h.rails);
    EXPECT_EQ(back.value().text().find("shm") == std::string::npos, nics != 0) << back.value().text();
  }
  add_nics(14);  // no room: peers of this host meet it over its NICs
  EXPECT_EQ(encode(h, bytes), 14u);
  EXPECT_EQ(bytes[2], std::byte{1});
  ASSERT_TRUE(decode_handle(bytes).ok());

  const auto refused = [&](const char* word) {
    const auto got = decode_handle(bytes);
    ASSERT_FALSE(got.ok()) << word;
    EXPECT_EQ(got.status().code(), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(got.status().text().find(word), std::string::npos) << got.status().text();
  };
  bytes[2] = std::byte{2};
  refused("has no name in shared memory");
  add_nics(1);
  encode(h, bytes);
  bytes[2] = std::byte{1};
  refused("no such subnet");
  std::swap(h.rails[0], h.rails[1]);
  encode(h, bytes);
  refused("something follows its name");
}

}  // namespace
}  // namespace canarynet

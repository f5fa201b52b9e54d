#include "topology/address.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

Address must_parse(const char* text) {
  auto parsed = Address::parse(text);
  EXPECT_TRUE(parsed.ok()) << text << ": " << parsed.status().to_string();
  return parsed.ok() ? parsed.value() : Address{};
}

TEST(Address, ParsesEveryDocumentedForm) {
  EXPECT_EQ(must_parse("10.0.0.1"), Address::ipv4(10, 0, 0, 1));
  EXPECT_EQ(must_parse("10.0.0.1:4000"), Address::ipv4(10, 0, 0, 1, 0, 4000));
  EXPECT_EQ(must_parse("10.0.0.1/24"), Address::ipv4(10, 0, 0, 1, 24));
  EXPECT_EQ(must_parse("10.0.0.1/24:4000"), Address::ipv4(10, 0, 0, 1, 24, 4000));
  const Address six = must_parse("[::1]:4000");
  EXPECT_EQ(six.family, Address::Family::kIPv6);
  EXPECT_EQ(six.port, 4000);
  EXPECT_EQ(must_parse("::1").bytes, six.bytes);
  EXPECT_EQ(must_parse("fe80::1/64").prefix_bits, 64);
  EXPECT_EQ(must_parse("[fe80::1]/64:7").prefix_bits, 64);
  EXPECT_EQ(must_parse("[fe80::1/64]:7").port, 7);
}

TEST(Address, RefusesWhatIsNoNumericAddress) {
  for (const char* text :
       {"", "host", "host:1", "10.0.0", "10.0.0.1:", "10.0.0.1:65536", "10.0.0.1:-1", "10.0.0.1/33", "10.0.0.1/0",
        "10.0.0.1/", "[::1", "[::1]x", "[10.0.0.1]:1", "::1/129", "10.0.0.1:40x", "[::1/64]/64"}) {
    EXPECT_FALSE(Address::parse(text).ok()) << text;
  }
}

TEST(Address, TextSurvivesARoundTrip) {
  for (const char* text : {"10.0.0.1", "10.0.0.1:4000", "::1", "[fe80::1]:4000"}) {
    EXPECT_EQ(must_parse(text).to_string(), text);
  }
  EXPECT_EQ(Address{}.to_string(), "none");
  Address memory;
  memory.family = Address::Family::kSharedMemory;
  memory.bytes = {1, 2, 3, 4, 5, 6, 7, 8, 0xde, 0xad, 0, 0, 0, 0, 0, 0x0f};
  EXPECT_EQ(memory.to_string(), "shm:dead00000000000f");
  EXPECT_FALSE(memory.loopback());
}

TEST(Address, SubnetsCompareUnderTheShorterKnownPrefix) {
  const Address a = must_parse("10.0.1.1/24");
  EXPECT_TRUE(a.same_subnet(must_parse("10.0.1.200/24")));
  EXPECT_FALSE(a.same_subnet(must_parse("10.0.2.1/24")));
  EXPECT_TRUE(a.same_subnet(must_parse("10.0.2.1/16")));
  EXPECT_FALSE(a.same_subnet(must_parse("10.0.1.1")));
  EXPECT_TRUE(must_parse("10.0.0.130/25").same_subnet(must_parse("10.0.0.200/25")));
  EXPECT_FALSE(must_parse("10.0.0.1/25").same_subnet(must_parse("10.0.0.200/25")));
  EXPECT_TRUE(must_parse("fd00::1/64").same_subnet(must_parse("fd00::ffff:1/64")));
  EXPECT_FALSE(must_parse("fd00::1/64").same_subnet(a));
}

TEST(Address, LoopbackIsRecognised) {
  EXPECT_TRUE(must_parse("127.0.0.5").loopback());
  EXPECT_TRUE(must_parse("::1").loopback());
  EXPECT_FALSE(must_parse("10.0.0.1").loopback());
  EXPECT_FALSE(must_parse("::").loopback());
  EXPECT_FALSE(Address{}.loopback());
}

}  // namespace
}  // namespace canarynet

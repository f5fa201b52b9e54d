#include "control/unique_id.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/crc32c.h"

namespace canarynet::control {
namespace {

UniqueId some_id() {
  UniqueId id;
  id.token = 0x0123456789abcdef;
  id.host = 77;
  id.port = 40123;
  id.addresses = {Address::ipv4(10, 0, 0, 1, 24, 40123), Address::parse("[fd00::5/64]:40123").value()};
  return id;
}

// With a checksum that fits what it holds.
UniqueIdBytes resealed(UniqueIdBytes bytes) {
  const std::uint32_t crc = crc32c(0, bytes.data(), kUniqueIdBytes - 4);
  std::memcpy(bytes.data() + kUniqueIdBytes - 4, &crc, 4);
  return bytes;
}

std::string reason(const UniqueIdBytes& bytes) {
  const auto id = decode_unique_id(bytes);
  return id.ok() ? "" : id.status().text();
}

TEST(UniqueIdBytes, SurviveTheirEncodingAndTheirText) {
  const UniqueId id = some_id();
  const UniqueIdBytes bytes = encode(id);
  for (const auto& back : {decode_unique_id(bytes), parse_unique_id(unique_id_text(bytes))}) {
    ASSERT_TRUE(back.ok()) << back.status().text();
    EXPECT_EQ(back.value().token, id.token);
    EXPECT_EQ(back.value().host, id.host);
    EXPECT_EQ(back.value().port, id.port);
    EXPECT_EQ(back.value().addresses, id.addresses);
  }
}

TEST(UniqueIdBytes, EveryChangeOfAByteIsNoticed) {
  const UniqueIdBytes good = encode(some_id());
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int flip = 1; flip < 256; ++flip) {
      UniqueIdBytes bytes = good;
      bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ flip);
      const auto id = decode_unique_id(bytes);
      ASSERT_FALSE(id.ok()) << "byte " << at << " changed by " << flip;
      ASSERT_NE(id.status().text(), "");
    }
  }
}

TEST(UniqueIdBytes, AReasonIsGivenForEachKindOfWrongBytes) {
  EXPECT_NE(reason(UniqueIdBytes{}).find("all zeroes"), std::string::npos);
  UniqueIdBytes bytes = encode(some_id());
  bytes[0] = 'c';
  EXPECT_NE(reason(bytes).find("begins with something else"), std::string::npos);
  bytes = encode(some_id());
  bytes[7] = 9;
  EXPECT_EQ(decode_unique_id(bytes).status().code(), CANARY_VERSION);
  EXPECT_NE(reason(bytes).find("version 9"), std::string::npos) << reason(bytes);
  bytes = encode(some_id());
  bytes[40] ^= 1;
  EXPECT_NE(reason(bytes).find("checksum"), std::string::npos);
  const auto short_one = decode_unique_id(std::span(bytes).first(127));
  EXPECT_NE(short_one.status().text().find("127 bytes"), std::string::npos);
}

// A right checksum over wrong fields: no believing those either.
TEST(UniqueIdBytes, FieldsAreCheckedBehindTheChecksum) {
  const UniqueIdBytes good = encode(some_id());
  const auto with = [&](std::size_t at, std::initializer_list<std::uint8_t> values) {
    UniqueIdBytes bytes = good;
    std::copy(values.begin(), values.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
    return reason(resealed(bytes));
  };
  EXPECT_EQ(reason(resealed(good)), "");
  EXPECT_NE(with(8, {0, 0, 0, 0, 0, 0, 0, 0}).find("token"), std::string::npos);
  EXPECT_NE(with(24, {0, 0}).find("port"), std::string::npos);
  EXPECT_NE(with(26, {0}).find("0 addresses"), std::string::npos);
  EXPECT_NE(with(26, {6}).find("6 addresses"), std::string::npos);
  EXPECT_NE(with(26, {1}).find("must be zero"), std::string::npos) << "the second address is left over";
  EXPECT_NE(with(26, {3}).find("address 2"), std::string::npos) << "there is no third";
  EXPECT_NE(with(27, {1}).find("must be zero"), std::string::npos);
  EXPECT_NE(with(28, {5}).find("family"), std::string::npos);
  EXPECT_NE(with(29, {33}).find("prefix"), std::string::npos);
  EXPECT_NE(with(30, {0, 0, 0, 0}).find("no address to dial"), std::string::npos);
  EXPECT_NE(with(40, {1}).find("must be zero"), std::string::npos) << "behind the four bytes of an IPv4 address";
  EXPECT_NE(with(120, {1}).find("must be zero"), std::string::npos);
}

TEST(UniqueIdText, WrongTextIsRefusedWithItsPlace) {
  std::string text = unique_id_text(encode(some_id()));
  const auto why = [](const std::string& t) { return parse_unique_id(t).status().text(); };
  EXPECT_NE(why("tcp://h:1").find("id:"), std::string::npos);
  EXPECT_NE(why(text.substr(0, text.size() - 1)).find("here are 255"), std::string::npos);
  EXPECT_NE(why("id:").find("here are 0"), std::string::npos);
  text[3 + 20] = 'g';
  EXPECT_NE(why(text).find("at digit 20"), std::string::npos) << why(text);
}

TEST(HostMark, TellsHostsApart) {
  EXPECT_EQ(host_mark("a/net:[1]"), host_mark("a/net:[1]"));
  EXPECT_NE(host_mark("a/net:[1]"), host_mark("a/net:[2]"));
}

}  // namespace
}  // namespace canarynet::control

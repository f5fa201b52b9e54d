#include "transport/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace canarynet::wire {
namespace {

Header example() {
  Header header;
  header.kind = Kind::kPiece;
  header.payload_bytes = 4096;
  header.flow = 7;
  header.epoch = 3;
  header.op = 41;
  header.signature = 0xdeadbeef;
  header.step = 5;
  header.source = 2;
  header.piece = 19;
  header.destination = 1;
  header.flags = kSequenced;
  header.lane_sequence = 77;
  header.payload_crc32 = 0x12345678;
  seal(header);
  return header;
}

TEST(Wire, SealedHeaderIsBelieved) { EXPECT_EQ(validate(example()), nullptr); }

// The bytes are the protocol: a change of this text is a change of the version.
TEST(Wire, HeaderBytesAreTheDocumentedOnes) {
  const Header header = example();
  unsigned char bytes[sizeof header];
  std::memcpy(bytes, &header, sizeof header);
  const unsigned char expected[40] = {0x9a, 0xca, 11,   2,    0x00, 0x10, 0, 0, 7,  0, 0, 0, 3, 0, 0, 0, 41, 0, 0, 0,
                                      0xef, 0xbe, 0xad, 0xde, 5,    0,    2, 0, 19, 0, 0, 0, 1, 0, 0, 1, 77, 0, 0, 0};
  EXPECT_EQ(std::memcmp(bytes, expected, sizeof expected), 0);
  EXPECT_EQ(std::memcmp(bytes + 40, "\x78\x56\x34\x12", 4), 0);
}

TEST(Wire, EverySingleFlippedBitIsNoticed) {
  const Header good = example();
  for (std::size_t bit = 0; bit < sizeof(Header) * 8; ++bit) {
    unsigned char bytes[sizeof good];
    std::memcpy(bytes, &good, sizeof good);
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1u << (bit % 8)));
    Header flipped;
    std::memcpy(&flipped, bytes, sizeof flipped);
    const char* reason = validate(flipped);
    ASSERT_NE(reason, nullptr) << "bit " << bit;
    if (bit < 16) {
      EXPECT_STREQ(reason, "magic");
    } else if (bit < 24) {
      EXPECT_STREQ(reason, "version");
    } else {
      EXPECT_STREQ(reason, "header crc");
    }
  }
}

TEST(Wire, SealedNonsenseIsNamed) {
  Header header = example();
  header.kind = static_cast<Kind>(0);
  seal(header);
  EXPECT_STREQ(validate(header), "kind");
  header.kind = static_cast<Kind>(200);
  seal(header);
  EXPECT_STREQ(validate(header), "kind");
  header = example();
  header.payload_bytes = kPayloadMax + 1;
  seal(header);
  EXPECT_STREQ(validate(header), "payload too large");
  header.payload_bytes = kPayloadMax;
  seal(header);
  EXPECT_EQ(validate(header), nullptr);
}

TEST(Wire, AllZeroBytesAreNotAHeader) {
  Header header;
  std::memset(static_cast<void*>(&header), 0, sizeof header);
  EXPECT_STREQ(validate(header), "magic");
}

TEST(Wire, PayloadCrcIsTheCastagnoliOne) {
  EXPECT_EQ(payload_crc("123456789", 9), 0xe3069283u);  // check value of CRC-32C
  EXPECT_EQ(payload_crc(nullptr, 0), 0u);
}

}  // namespace
}  // namespace canarynet::wire

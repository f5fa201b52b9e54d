#include "kernels/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/reduce.h"

namespace canarynet {
namespace {

// CRC32C by its definition, one bit at a time.
std::uint32_t bitwise(std::uint32_t crc, const unsigned char* data, std::size_t bytes) {
  crc = ~crc;
  for (std::size_t i = 0; i < bytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78U : 0);
  }
  return ~crc;
}

std::vector<unsigned char> random_bytes(std::size_t bytes) {
  Random random(bytes);
  std::vector<unsigned char> data(bytes);
  for (unsigned char& byte : data) byte = static_cast<unsigned char>(random.next() >> 32);
  return data;
}

class Crc32c : public testing::TestWithParam<KernelVariant> {
 protected:
  std::uint32_t of(const std::vector<unsigned char>& data) { return GetParam().crc32c(0, data.data(), data.size()); }
};

TEST_P(Crc32c, KnownVectors) {
  EXPECT_EQ(0xE3069283U, GetParam().crc32c(0, "123456789", 9));
  EXPECT_EQ(0U, GetParam().crc32c(0, "", 0));
  // RFC 3720, B.4.
  EXPECT_EQ(0x8A9136AAU, of(std::vector<unsigned char>(32, 0)));
  EXPECT_EQ(0x62A8AB43U, of(std::vector<unsigned char>(32, 0xFF)));
  std::vector<unsigned char> rising, falling;
  for (unsigned char i = 0; i < 32; ++i) {
    rising.push_back(i);
    falling.push_back(static_cast<unsigned char>(31 - i));
  }
  EXPECT_EQ(0x46DD794EU, of(rising));
  EXPECT_EQ(0x113FDB5CU, of(falling));
  EXPECT_EQ(0xD9963A56U,
            of({0x01, 0xC0, 0, 0,    0, 0, 0, 0,    0,    0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
                0,    0,    0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0,    0}));
}

TEST_P(Crc32c, MatchesTheBitwiseDefinitionForEveryLengthAndAlignment) {
  const std::vector<unsigned char> data = random_bytes(2200);
  for (std::size_t shift = 0; shift < 8; ++shift) {
    std::uint32_t expected = 0;
    for (std::size_t bytes = 0; bytes < 2100; ++bytes) {
      ASSERT_EQ(expected, GetParam().crc32c(0, data.data() + shift, bytes)) << bytes << " bytes, shift " << shift;
      expected = bitwise(expected, data.data() + shift + bytes, 1);
    }
  }
}

TEST_P(Crc32c, MatchesAroundItsBlockSizes) {
  const std::vector<unsigned char> data = random_bytes(300000);
  for (std::size_t around : {3 * 256, 3 * 4096, 6 * 4096, 3 * 4096 + 3 * 256, 65536, 131072, 299000}) {
    for (std::size_t bytes = around - 9; bytes <= around + 9; bytes += 3) {
      ASSERT_EQ(bitwise(0, data.data() + 1, bytes), GetParam().crc32c(0, data.data() + 1, bytes)) << bytes;
    }
  }
}

TEST_P(Crc32c, ContinuesFromAnEarlierPart) {
  const std::vector<unsigned char> data = random_bytes(30000);
  const std::uint32_t whole = bitwise(0, data.data(), data.size());
  for (std::size_t cut : {0, 1, 7, 48, 511, 512, 513, 4096, 12288, 29999, 30000}) {
    const std::uint32_t first = GetParam().crc32c(0, data.data(), cut);
    EXPECT_EQ(whole, GetParam().crc32c(first, data.data() + cut, data.size() - cut)) << cut;
  }
}

std::vector<KernelVariant> all_variants() {
  std::size_t count = 0;
  const KernelVariant* variants = kernel_variants(&count);
  return {variants, variants + count};
}
INSTANTIATE_TEST_SUITE_P(Variants, Crc32c, testing::ValuesIn(all_variants()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Crc32cChoice, UsesTheVariantInUse) { EXPECT_EQ(0xE3069283U, crc32c(0, "123456789", 9)); }

}  // namespace
}  // namespace canarynet

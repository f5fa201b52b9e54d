// One body of tests for all codecs: parameters x data x sizes. A new codec gets all of it by its name in kSpecs.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "compress/codec.h"
#include "compress/codec_test_util.h"
#include "compress/top_k.h"
#include "tests/allocation_counter.h"

namespace canarynet {
namespace {

using codec_test::Data;
using codec_test::kAllData;
using codec_test::make;
using codec_test::segment_of;
using codec_test::spec_of;
using codec_test::Trip;

constexpr const char* kSpecs[] = {"dense",
                                  "fp16",
                                  "bf16",
                                  "int8",
                                  "sketch:1",
                                  "sketch:2",
                                  "sketch:3",
                                  "sketch:5,mean",
                                  "sketch:8",
                                  "sketch:8,mean,or-dense",
                                  "topk:0.01",
                                  "topk:0.6",
                                  "lwtopk:0.05",
                                  "mstopk:0.02",
                                  "randomk:0.1,seed=3",
                                  "onebit",
                                  "signsgd",
                                  "terngrad,seed=1",
                                  "power:3",
                                  "power:2+sketch:8",
                                  "svd:2",
                                  "svd:2+sketch:6,mean",
                                  "int8,or-dense",
                                  "topk:0.1,or-dense"};
constexpr std::size_t kSizes[] = {0, 1, 2, 9, 1001, 150'000};  // the last is beyond every sample
const std::size_t kLayersOf1001[] = {1, 500, 3, 497};

Coding coding_of(const std::string& spec, std::size_t count) {
  Coding coding{spec_of(spec), segment_of(count)};
  coding.segment.round = 5;
  if (count == 1001) coding.segment.layers = kLayersOf1001;
  return coding;
}

std::vector<Piece> cut(std::size_t count, std::size_t piece) {
  std::vector<Piece> pieces;
  for (std::size_t begin = 0; begin < count; begin += piece) pieces.push_back({begin, std::min(piece, count - begin)});
  if (pieces.empty()) pieces.push_back({});
  std::reverse(pieces.begin(), pieces.end());  // pieces may come in any order
  return pieces;
}

double squares(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

// What each codec promises of its error.
void expect_close(const Coding& coding, const std::vector<float>& x, const std::vector<float>& y,
                  const std::string& what) {
  const CodecTraits traits = traits_of(coding.spec);
  double largest = 0, low = 0, high = 0;
  for (const float value : x) {
    largest = std::max(largest, std::fabs(static_cast<double>(value)));
    low = std::min(low, static_cast<double>(value));
    high = std::max(high, static_cast<double>(value));
  }
  std::vector<float> error(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_TRUE(std::isfinite(y[i])) << what << " element " << i;
    error[i] = static_cast<float>(static_cast<double>(x[i]) - y[i]);
    const double size = std::fabs(static_cast<double>(x[i])), off = std::fabs(static_cast<double>(error[i]));
    if (traits.lossless) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(x[i]), std::bit_cast<std::uint32_t>(y[i])) << what << " element " << i;
    }
    if (traits.sparsifier) {
      ASSERT_TRUE(y[i] == 0 || y[i] == x[i]) << what << " element " << i;
    }
    switch (coding.spec.kind) {
      case CodecKind::kF16:
        if (size <= 65504) {
          ASSERT_LE(off, std::max(std::ldexp(size, -11), 0x1p-25)) << what << " element " << i;
        } else {
          ASSERT_EQ(std::copysign(65504.0F, x[i]), y[i]) << what << " element " << i;
        }
        break;
      case CodecKind::kBf16:
        ASSERT_LE(off, std::max(std::ldexp(size, -8), 0x1p-134)) << what << " element " << i;
        break;
      case CodecKind::kInt8:
        ASSERT_LE(off, largest / 127 * 0.5001 + 0x1p-148) << what << " element " << i << " of " << x[i];
        break;
      case CodecKind::kSketch:
        ASSERT_TRUE(y[i] >= low && y[i] <= high) << what << " element " << i;
        ASSERT_TRUE(coding.spec.bits < 2 || x[i] != 0 || y[i] == 0) << what << ": zero became " << y[i];
        break;
      case CodecKind::kTernGrad:
        ASSERT_TRUE(y[i] == 0 || (std::fabs(y[i]) == static_cast<float>(largest) && (y[i] > 0) == (x[i] > 0)))
            << what << " element " << i;
        break;
      case CodecKind::kOneBit:
      case CodecKind::kSignSgd:
        ASSERT_LE(std::fabs(y[i]), largest * (1 + 1e-6)) << what << " element " << i;
        ASSERT_TRUE(y[i] == 0 || std::signbit(x[i]) == std::signbit(y[i])) << what << " element " << i;
        break;
      default:
        break;
    }
  }
  const bool factors = coding.spec.kind == CodecKind::kPower || coding.spec.kind == CodecKind::kSvd;
  // A projection never leaves more than there was. Numbers at the ends of the range of floats are cut instead.
  if (factors && coding.spec.factor_bits == 0 && largest > 1e-30 && largest < 1e30) {
    EXPECT_LE(squares(error), squares(x) * (1 + 1e-5)) << what;
  }
  if (coding.spec.kind == CodecKind::kTopK || coding.spec.kind == CodecKind::kMsTopK) {
    std::size_t zeros = 0;
    for (const float value : y) zeros += value == 0 ? 1 : 0;
    EXPECT_GE(zeros, x.size() - kept_of(x.size(), coding.spec.ratio_ppm)) << what;
  }
}

class CodecConformance : public testing::TestWithParam<const char*> {};

TEST_P(CodecConformance, DecodesWhatItEncodedWithinItsErrorAndItsBounds) {
  for (const std::size_t size : kSizes) {
    for (const Data data : kAllData) {
      if (size > 100'000 && data != Data::kGaussian && data != Data::kConstant && data != Data::kOneHuge) continue;
      const std::string what =
          std::string(GetParam()) + ", " + codec_test::name_of(data) + " x " + std::to_string(size);
      const std::vector<float> values = make(data, size, size + 1);
      Trip trip(coding_of(GetParam(), size));
      ASSERT_TRUE(check(trip.coding).ok()) << check(trip.coding).text();
      const Status status = trip.encode(values);
      ASSERT_TRUE(status.ok()) << what << ": " << status.text();
      std::vector<float> decoded;
      const Status back = trip.decode(&decoded);
      ASSERT_TRUE(back.ok()) << what << ": " << back.text();
      ASSERT_NO_FATAL_FAILURE(expect_close(trip.coding, values, decoded, what));

      std::vector<float> sum = make(Data::kGaussian, size, 99);
      const std::vector<float> held = sum;
      ASSERT_TRUE(trip.decode(&sum, true).ok()) << what;
      for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(held[i] + decoded[i], sum[i]) << what << " added, element " << i;

      Trip again(trip.coding);
      ASSERT_TRUE(again.encode(values).ok());
      ASSERT_EQ(trip.bytes, again.bytes) << what << ": not the same bytes the second time";
    }
  }
}

TEST_P(CodecConformance, PiecesInAnyOrderGiveWhatTheWholeGives) {
  constexpr char kFence = 0x3D;
  for (const std::size_t size : {std::size_t{0}, std::size_t{9}, std::size_t{1001}, std::size_t{150'000}}) {
    for (const Data data : {Data::kGaussian, Data::kSparse}) {
      const std::vector<float> values = make(data, size, 3);
      Trip whole(coding_of(GetParam(), size));
      ASSERT_TRUE(whole.encode(values).ok());
      std::vector<float> expected;
      ASSERT_TRUE(whole.decode(&expected).ok());
      for (const std::size_t piece_size : {std::size_t{1}, std::size_t{7}, std::size_t{4096}, std::size_t{65537}}) {
        if (size > 5000 && piece_size < 4096) continue;
        const Coding& coding = whole.coding;
        std::vector<std::byte> workspace(workspace_bytes(coding)), other(workspace_bytes(coding));
        std::vector<float> state(state_floats(coding));
        SegmentEncoder encoder(coding, workspace, state);
        SegmentDecoder decoder(coding, other);
        std::vector<std::uint8_t> head(head_bytes_max(coding));
        const Result<std::size_t> head_bytes = encoder.fit(values.data(), head);
        ASSERT_TRUE(head_bytes.ok());
        ASSERT_TRUE(decoder.open({head.data(), head_bytes.value()}).ok());
        std::vector<float> decoded(size);
        for (const Piece piece : cut(size, piece_size)) {
          const std::size_t most = body_bytes_max(coding, piece);
          std::vector<std::uint8_t> body(most + 16, kFence);
          const Result<std::size_t> bytes = encoder.encode(piece, values.data() + piece.begin, {body.data(), most});
          ASSERT_TRUE(bytes.ok());
          ASSERT_LE(bytes.value(), most);
          for (std::size_t i = most; i < body.size(); ++i) ASSERT_EQ(kFence, body[i]) << GetParam();
          std::vector<float> out(piece.count + 4, 7.5F);
          // An exact-size copy at an odd address: what lies behind must not be read.
          std::vector<std::uint8_t> copy(bytes.value() + 1);
          std::copy_n(body.begin(), bytes.value(), copy.begin() + 1);
          ASSERT_TRUE(decoder.decode(piece, {copy.data() + 1, bytes.value()}, out.data()).ok());
          for (std::size_t i = 0; i < 4; ++i) ASSERT_EQ(7.5F, out[piece.count + i]) << GetParam();
          std::copy_n(out.begin(), piece.count, decoded.begin() + static_cast<std::ptrdiff_t>(piece.begin));
        }
        for (std::size_t i = 0; i < size; ++i) {
          ASSERT_EQ(expected[i], decoded[i])
              << GetParam() << " x " << size << " in " << piece_size << ", element " << i;
        }
      }
    }
  }
}

TEST_P(CodecConformance, MessagesOfAnotherLengthAreRefusedWithTheReason) {
  const std::vector<float> values = make(Data::kGaussian, 1001, 4);
  Trip trip(coding_of(GetParam(), 1001));
  ASSERT_TRUE(trip.encode(values).ok());
  const std::vector<std::uint8_t> whole = trip.bytes;
  std::vector<float> out;
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += bytes < 40 ? 1 : 101) {
    trip.bytes.assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
    trip.bytes.shrink_to_fit();
    const Status status = trip.decode(&out);
    ASSERT_EQ(CANARY_MISMATCH, status.code()) << GetParam() << " cut to " << bytes;
    ASSERT_FALSE(status.text().empty());
  }
  trip.bytes = whole;
  trip.bytes.push_back(0);
  EXPECT_EQ(CANARY_MISMATCH, trip.decode(&out).code()) << GetParam();
}

TEST_P(CodecConformance, AValueThatIsNotFiniteIsNamedOrTravelsDense) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t where : {0, 17, 1000}) {
      std::vector<float> values = make(Data::kGaussian, 1001, 4);
      values[where] = bad;
      Trip trip(coding_of(GetParam(), 1001));
      const Status status = trip.encode(values);
      if (!trip.coding.spec.or_dense) {
        ASSERT_EQ(CANARY_INVALID_ARGUMENT, status.code()) << GetParam();
        EXPECT_NE(std::string::npos, status.text().find("element " + std::to_string(where) + " ")) << status.text();
        continue;
      }
      ASSERT_TRUE(status.ok()) << status.text();
      std::vector<float> decoded;
      ASSERT_TRUE(trip.decode(&decoded).ok());
      EXPECT_EQ(0, std::memcmp(values.data(), decoded.data(), values.size() * sizeof(float))) << GetParam();
    }
  }
}

TEST_P(CodecConformance, NothingIsAllocated) {
  if (!CANARYNET_COUNTS_MALLOC) GTEST_SKIP() << "the sanitizer brings its own allocator";
  const std::vector<float> values = make(Data::kGaussian, 150'000, 8);
  Trip trip(coding_of(GetParam(), values.size()));
  trip.bytes.resize(whole_bytes_max(trip.coding));
  std::vector<float> out(values.size());
  allocation_counter::arm();
  const Result<std::size_t> bytes = encode_whole(trip.coding, values.data(), trip.workspace, trip.state, trip.bytes);
  const Status status =
      decode_whole(trip.coding, {trip.bytes.data(), bytes.ok() ? bytes.value() : 0}, trip.workspace, out.data(), true);
  EXPECT_EQ(0, allocation_counter::disarm()) << GetParam();
  EXPECT_TRUE(status.ok());
}

INSTANTIATE_TEST_SUITE_P(All, CodecConformance, testing::ValuesIn(kSpecs), [](const auto& test) {
  std::string name = test.param;
  for (char& letter : name) letter = std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
  return name;
});

TEST(Codec, ShapesThatDoNotFitAreRefused) {
  const std::size_t layers[] = {3, 4}, empty[] = {7, 0};
  const auto status = [](const char* spec, const Segment& segment) { return check(Coding{spec_of(spec), segment}); };
  EXPECT_TRUE(status("lwtopk:0.1", {.count = 7, .layers = layers}).ok());
  EXPECT_FALSE(status("lwtopk:0.1", {.count = 8, .layers = layers}).ok());
  EXPECT_FALSE(status("lwtopk:0.1", {.count = 6, .layers = layers}).ok());
  EXPECT_FALSE(status("lwtopk:0.1", {.count = 7, .layers = empty}).ok());
  EXPECT_FALSE(status("power:2", {.count = 6}).ok());
  EXPECT_FALSE(status("power:2", {.count = 6, .rows = 2, .columns = 2}).ok());
  EXPECT_FALSE(status("int8", {.count = 6, .rows = 0, .columns = 2}).ok());
  EXPECT_FALSE(status("int8", {.count = std::size_t{1} << 32}).ok());
  EXPECT_TRUE(status("power:2", {.count = 6, .rows = 3, .columns = 2}).ok());
  EXPECT_TRUE(status("power:2", {}).ok());
}

TEST(Codec, Int8KeepsItsErrorWhereFloatsAreAsCoarseAsItsStep) {
  constexpr float kUnit = std::numeric_limits<float>::denorm_min();
  const std::vector<float> values = {178 * kUnit, -177 * kUnit, 3 * kUnit, kUnit, 0};
  Trip trip(Coding{spec_of("int8"), segment_of(values.size())});
  std::vector<float> decoded;
  ASSERT_TRUE(trip.encode(values).ok() && trip.decode(&decoded).ok());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_LE(std::fabs(values[i] - decoded[i]), kUnit) << i;
}

TEST(Codec, TheHeadsOfASketchCostLittle) {
  const Coding coding{spec_of("sketch:8"), segment_of(std::size_t{1} << 18)};  // 1 MiB of f32
  EXPECT_LE(static_cast<double>(whole_bytes_max(coding)), 0.26 * 4 * static_cast<double>(coding.segment.count));
}

TEST(Codec, HalfInputsAreWidenedExactly) {
  const std::vector<float> values = make(Data::kGaussian, 1001, 2);
  for (const DataType type : {CANARY_F16, CANARY_BF16}) {
    std::vector<std::uint16_t> narrow(values.size()), again(values.size());
    std::vector<float> wide(values.size());
    narrow_values(type, values.data(), values.size(), narrow.data());
    widen_values(type, narrow.data(), narrow.size(), wide.data());
    narrow_values(type, wide.data(), wide.size(), again.data());
    EXPECT_EQ(narrow, again);
  }
}

// The bodies of kAddBodies codecs are arrays that the reduction kernels add: the sum decodes to the sum.
TEST(Codec, BodiesThatMayBeAddedDecodeToTheSum) {
  for (const char* text : {"dense", "randomk:0.1,seed=3"}) {
    const std::vector<float> a = make(Data::kGaussian, 1001, 1), b = make(Data::kGaussian, 1001, 2);
    Trip first(coding_of(text, 1001)), second(coding_of(text, 1001));
    ASSERT_EQ(PartialSums::kAddBodies, traits_of(first.coding.spec).sums);
    ASSERT_TRUE(first.encode(a).ok() && second.encode(b).ok());
    std::vector<float> expected, summed;
    ASSERT_TRUE(first.decode(&expected).ok());
    ASSERT_TRUE(second.decode(&expected, true).ok());
    ASSERT_EQ(first.bytes.size(), second.bytes.size());
    for (std::size_t at = 4; at < first.bytes.size(); at += 4) {
      float x = 0, y = 0;
      std::memcpy(&x, &first.bytes[at], 4);
      std::memcpy(&y, &second.bytes[at], 4);
      x += y;
      std::memcpy(&first.bytes[at], &x, 4);
    }
    ASSERT_TRUE(first.decode(&summed).ok());
    EXPECT_EQ(expected, summed) << text;
  }
}

}  // namespace
}  // namespace canarynet

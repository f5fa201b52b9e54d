#include "compress/sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "compress/codec_test_util.h"

namespace canarynet {
namespace {

using codec_test::Data;
using codec_test::kAllData;
using codec_test::make;

struct Fitted {
  Fitted(const std::vector<float>& values, unsigned bits, bool member_mean = false, std::uint64_t seed = 1)
      : workspace(bytes_for(values.size())) {
    Carver carver(workspace);
    const SketchSpace space(&carver, values.size());
    EXPECT_TRUE(fit_sketch(values.data(), values.size(), bits, member_mean, seed, space));
    tables = space.tables;
    buckets = std::size_t{1} << bits;
  }
  static std::size_t bytes_for(std::size_t count) {
    Carver carver;
    SketchSpace(&carver, count);
    return carver.bytes();
  }
  std::size_t bucket_of(float value) const {
    std::size_t bucket = 0;
    while (bucket + 1 < buckets && value >= tables->cuts[bucket + 1]) ++bucket;
    return bucket;
  }
  // Of the bucket's closed range within the data.
  double width(std::size_t bucket) const {
    const float start = std::min(tables->cuts[bucket], tables->end);
    const float end = bucket + 1 < buckets ? std::min(tables->cuts[bucket + 1], tables->end) : tables->end;
    return static_cast<double>(end) - start;
  }
  std::vector<std::byte> workspace;
  SketchTables* tables;
  std::size_t buckets;
};

std::vector<float> back(const std::vector<float>& values, unsigned bits, const Fitted& fitted) {
  std::vector<std::uint8_t> body(sketch_body_bytes(values.size(), bits));
  encode_sketch(values.data(), values.size(), bits, *fitted.tables, body.data());
  std::vector<float> out(values.size());
  decode_sketch(body.data(), values.size(), bits, fitted.tables->codebook, out.data(), false);
  return out;
}

TEST(Sketch, EveryValueStaysWithinItsBucketAndInOrder) {
  for (unsigned bits = 1; bits <= 8; ++bits) {
    for (const Data data : kAllData) {
      for (const bool mean : {false, true}) {
        for (const std::size_t count : {1, 2, 3, 100, 5000}) {
          std::vector<float> values = make(data, count, bits);
          std::sort(values.begin(), values.end());
          const Fitted fitted(values, bits, mean);
          const std::vector<float> decoded = back(values, bits, fitted);
          for (std::size_t i = 0; i < count; ++i) {
            const std::string what = std::string(codec_test::name_of(data)) + " bits " + std::to_string(bits) +
                                     " element " + std::to_string(i) + " of " + std::to_string(count);
            const std::size_t bucket = fitted.bucket_of(values[i]);
            ASSERT_EQ(fitted.tables->codebook[bucket], decoded[i]) << what;
            ASSERT_LE(std::fabs(static_cast<double>(values[i]) - decoded[i]), fitted.width(bucket)) << what;
            if (i != 0) {
              ASSERT_LE(decoded[i - 1], decoded[i]) << what;
            }
          }
        }
      }
    }
  }
}

TEST(Sketch, BoundariesAreQuantiles) {
  constexpr double kRankError = 0.005;
  for (const std::size_t count : {std::size_t{10'000}, std::size_t{400'003}}) {
    for (const Data data : {Data::kGaussian, Data::kHeavyTail, Data::kDenormal}) {
      const std::vector<float> values = make(data, count, 11);
      std::vector<float> sorted(values);
      std::sort(sorted.begin(), sorted.end());
      if (std::binary_search(sorted.begin(), sorted.end(), 0.0F)) continue;  // shared out differently, see below
      const Fitted fitted(values, 8, false, count);
      for (std::size_t i = 1; i < 256; ++i) {
        const float cut = fitted.tables->cuts[i];
        const auto low = std::lower_bound(sorted.begin(), sorted.end(), cut) - sorted.begin();
        const auto high = std::upper_bound(sorted.begin(), sorted.end(), cut) - sorted.begin();
        const double wanted = static_cast<double>(i) / 256, n = static_cast<double>(count);
        const double exact = count <= kSketchSample ? 1 / n : kRankError;
        ASSERT_LE(static_cast<double>(low) / n, wanted + exact) << codec_test::name_of(data) << count << " cut " << i;
        ASSERT_GE(static_cast<double>(high) / n, wanted - exact) << codec_test::name_of(data) << count << " cut " << i;
      }
    }
  }
}

TEST(Sketch, TheSampleKeepsTheRankErrorForManySeeds) {
  const std::vector<float> values = make(Data::kGaussian, 300'000, 5);
  std::vector<float> sorted(values);
  std::sort(sorted.begin(), sorted.end());
  int beyond = 0;
  constexpr int kSeeds = 20;
  for (int seed = 0; seed < kSeeds; ++seed) {
    // Values in order are where a sample of a part would show.
    const Fitted fitted(seed % 2 == 0 ? values : sorted, 8, false, static_cast<std::uint64_t>(seed));
    double worst = 0;
    for (std::size_t i = 1; i < 256; ++i) {
      const auto rank = std::lower_bound(sorted.begin(), sorted.end(), fitted.tables->cuts[i]) - sorted.begin();
      worst = std::max(worst, std::fabs(static_cast<double>(rank) / 300'000 - static_cast<double>(i) / 256));
    }
    beyond += worst > 0.005 ? 1 : 0;
  }
  EXPECT_EQ(0, beyond) << "of " << kSeeds << " (one in a hundred is allowed)";
}

TEST(Sketch, ZerosHaveABucketOfTheirOwnAndTheOthersAreSharedOut) {
  for (unsigned bits = 2; bits <= 8; ++bits) {
    std::vector<float> values = make(Data::kSparse, 20'000, bits);
    const Fitted fitted(values, bits);
    const std::vector<float> decoded = back(values, bits, fitted);
    std::vector<std::size_t> members(fitted.buckets);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i] == 0, decoded[i] == 0) << bits << ": " << values[i];
      if (values[i] != 0) ++members[fitted.bucket_of(values[i])];
    }
    // About 1,000 values are on either side.
    for (std::size_t bucket = 0; bucket < fitted.buckets; ++bucket) {
      if (bucket == fitted.bucket_of(0)) continue;
      EXPECT_NEAR(2000.0 / static_cast<double>(fitted.buckets - 1), static_cast<double>(members[bucket]),
                  2000.0 / static_cast<double>(fitted.buckets - 1) * 0.6 + 2)
          << bits << " bucket " << bucket;
    }
  }
}

TEST(Sketch, AFrequentValueIsExact) {
  std::vector<float> values = make(Data::kGaussian, 10'000, 3);
  for (std::size_t i = 0; i < values.size(); i += 20) values[i] = 0.000321F;  // 5 %: a dozen buckets of 256
  const std::vector<float> decoded = back(values, 8, Fitted(values, 8));
  EXPECT_EQ(0.000321F, decoded[0]);
}

TEST(Sketch, TheMeanOfTheMembersHasTheLowerError) {
  for (const Data data : {Data::kGaussian, Data::kHeavyTail}) {
    const std::vector<float> values = make(data, 50'000, 21);
    double errors[2] = {};
    for (const bool mean : {false, true}) {
      const std::vector<float> decoded = back(values, 4, Fitted(values, 4, mean));
      for (std::size_t i = 0; i < values.size(); ++i) {
        errors[mean ? 1 : 0] += std::pow(static_cast<double>(values[i]) - decoded[i], 2);
      }
    }
    EXPECT_LT(errors[1], errors[0]) << codec_test::name_of(data);
  }
}

TEST(Sketch, CodebooksThatNoEncoderWritesAreRefused) {
  const Coding coding{codec_test::spec_of("sketch:2"), {.count = 4}};
  std::vector<std::byte> workspace(workspace_bytes(coding));
  SegmentDecoder decoder(coding, workspace);
  const auto open = [&](std::vector<float> codebook) {
    std::vector<std::uint8_t> head(codebook.size() * sizeof(float));
    std::memcpy(head.data(), codebook.data(), head.size());
    return decoder.open(head);
  };
  EXPECT_TRUE(open({-1, 0, 0, 2}).ok());
  EXPECT_NE(std::string::npos, open({-1, 0, -0.5F, 2}).text().find("ascend"));
  EXPECT_NE(std::string::npos, open({-1, 0, std::nanf(""), 2}).text().find("finite"));
  EXPECT_NE(std::string::npos, open({-1, 0, 1}).text().find("12 bytes instead of 16"));
}

}  // namespace
}  // namespace canarynet

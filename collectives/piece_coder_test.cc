// Encoded pieces by themselves: their sizes, what is refused, what no encoder makes.
#include "collectives/piece_coder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "collectives/executor.h"
#include "transport/wire.h"

namespace canarynet {
namespace {

CodecSpec spec(const char* text) { return parse_codec(text).value(); }

class PieceCoderTest : public testing::Test {
 protected:
  explicit PieceCoderTest(const char* codec = "int8")
      : program_(compile(PlannerId::kMesh, {.ranks = 2, .count = 1000, .reach = &reach_}, 0, 1024, spec(codec))),
        coder_(program_) {
    coder_.begin({.rank = 5, .round = 1, .ranks = 8});
  }
  std::vector<std::byte> encoded(std::uint32_t piece, const std::vector<float>& values) {
    std::uint32_t task = 0;
    while (program_.steps[program_.step_of_task[task]].kind != StepKind::kSend || program_.slot_of_task[task] != task)
      ++task;
    coder_.note(task, 0);
    const auto e = coder_.to_send(task, piece, values.data());
    return {e.data, e.data + e.bytes};
  }

  const Reachability reach_ = Reachability::full(2, 1);
  const Program program_;
  PieceCoder coder_;
};

TEST_F(PieceCoderTest, ARefusalTakesThePlaceOfTheSumThatItSpoils) {
  std::vector<float> values(256, 1.0F);
  values[9] = std::numeric_limits<float>::infinity();
  const std::vector<std::byte> refused = encoded(1, values);
  EXPECT_EQ(refused.size(), 17u);
  PieceCoder other(program_);
  other.begin({.rank = 6, .round = 1});
  std::vector<float> sum(256, 2.0F);
  ASSERT_TRUE(other.add(1, refused, sum.data()).ok());
  EXPECT_EQ(sum, std::vector<float>(256, 2.0F));
  EXPECT_EQ(other.text_of(other.refusal()),
            "element " + std::to_string(256 + 9) + " of rank 5 is inf, which codec int8 does not encode");
}

TEST_F(PieceCoderTest, OfTwoRefusalsTheFirstElementCounts) {
  std::vector<float> values(256, 1.0F);
  values[9] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::byte> later = encoded(0, values);
  PieceCoder other(program_);
  other.begin({.rank = 3, .round = 1});
  std::vector<float> own(256, 1.0F);
  own[4] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(other.add(0, later, own.data()).ok());
  own[4] = std::numeric_limits<float>::quiet_NaN();
  other.complete(0, 0, own.data(), 1);
  EXPECT_EQ(other.refusal().element, 4u);
  EXPECT_EQ(other.refusal().rank, 3u);
}

TEST_F(PieceCoderTest, WhatNoEncoderMakesIsAMismatch) {
  std::vector<float> values(256, 1.0F);
  const std::vector<std::byte> good = encoded(0, values);
  const auto code = [&](std::vector<std::byte> bytes) { return coder_.replace(0, bytes, values.data()).code(); };
  EXPECT_EQ(code(good), CANARY_OK);
  EXPECT_EQ(code({}), CANARY_MISMATCH);
  for (std::size_t bytes = 1; bytes < good.size(); ++bytes)
    EXPECT_EQ(code({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(bytes)}), CANARY_MISMATCH) << bytes;
  std::vector<std::byte> form = good;
  form[0] = std::byte{2};
  EXPECT_EQ(code(form), CANARY_MISMATCH);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::byte> refusal = encoded(0, values);
  EXPECT_EQ(code(refusal), CANARY_OK);
  const auto changed = [&](std::size_t at, auto value) {
    std::vector<std::byte> bytes = refusal;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return code(bytes);
  };
  EXPECT_EQ(changed(1, std::uint32_t{7}), CANARY_OK);
  EXPECT_EQ(changed(1, std::uint32_t{8}), CANARY_MISMATCH) << "a rank that the world does not have";
  EXPECT_EQ(changed(13, 1.0F), CANARY_MISMATCH) << "a number that the codec encodes";
  const std::uint64_t outside = 256;
  std::memcpy(refusal.data() + 5, &outside, sizeof outside);
  EXPECT_EQ(code(refusal), CANARY_MISMATCH) << "an element of another piece";
  refusal.push_back(std::byte{0});
  EXPECT_EQ(code(refusal), CANARY_MISMATCH);
}

TEST_F(PieceCoderTest, ZerosAreOneByteWhereNullPiecesMayBeSent) {
  std::vector<float> values(256);
  EXPECT_GT(encoded(0, values).size(), 1u) << "elsewhere they are values";
  std::vector<float> left_out(1000);
  coder_.begin({.rank = 5, .round = 1, .left_out = left_out, .ranks = 8}, true);
  const std::vector<std::byte> null = encoded(1, values);
  ASSERT_EQ(null.size(), 1u);
  EXPECT_EQ(left_out, std::vector<float>(1000));
  values.assign(256, 3.0F);
  ASSERT_TRUE(coder_.add(1, null, values.data()).ok());
  EXPECT_EQ(values, std::vector<float>(256, 3.0F));
  ASSERT_TRUE(coder_.replace(1, null, values.data()).ok());
  EXPECT_EQ(values, std::vector<float>(256));
  values[255] = -0.0F;
  EXPECT_GT(encoded(0, values).size(), 1u) << "its bytes are not all zero";
  EXPECT_EQ(coder_.replace(1, std::vector{null[0], std::byte{0}}, values.data()).code(), CANARY_MISMATCH);
}

TEST_F(PieceCoderTest, ANullPieceDoesNotHideARefusal) {
  std::vector<float> values(256, 1.0F);
  values[9] = std::numeric_limits<float>::infinity();
  const std::vector<std::byte> refused = encoded(1, values);
  PieceCoder other(program_);
  other.begin({.rank = 6, .round = 1}, true);
  std::vector<float> zeros(256);
  ASSERT_TRUE(other.add(1, refused, zeros.data()).ok());
  other.complete(0, 1, zeros.data(), 1);
  EXPECT_EQ(other.in_slot(0).size(), 17u) << "the next rank hears of it, too";
  EXPECT_EQ(other.refusal().rank, 5u);
}

TEST(CodedPieces, FillAFrameAndNoMore) {
  for (const char* text : {"fp16", "int8", "sketch:8", "sketch:1", "topk:0.001", "topk:1", "onebit", "int8,or-dense"}) {
    for (const std::uint32_t job : {1024u, 128u * 1024, 1u << 20}) {
      const std::uint32_t bytes = coded_piece_bytes(spec(text), job, 1 << 30);
      EXPECT_EQ(bytes % 128, 0u) << text;
      EXPECT_GE(bytes, 128u) << text;
      EXPECT_LE(bytes, 16 * job) << text;
      EXPECT_LE(encoded_bytes_max(spec(text), bytes / 4), wire::kPayloadMax) << text;
    }
  }
  // A codebook is worth its bytes: 26 % of f32 is the most that a sketch of 8 bits may take.
  for (const std::uint64_t part : {std::uint64_t{1} << 30, std::uint64_t{1} << 20, std::uint64_t{256} << 10}) {
    const std::uint32_t bytes = coded_piece_bytes(spec("sketch:8"), 128 * 1024, part);
    EXPECT_LE(encoded_bytes_max(spec("sketch:8"), bytes / 4), 0.26 * bytes) << part;
  }
}

TEST(CodedPieces, SeveralMakeAPartUnlessACodebookWouldWeighTooMuch) {
  const auto pieces = [](std::uint64_t part) {
    const std::uint64_t bytes = coded_piece_bytes(spec("sketch:8"), 128 * 1024, part);
    EXPECT_GE(bytes, 128u * 1024);
    return (part + bytes - 1) / bytes;
  };
  EXPECT_EQ(pieces(1 << 20), 4u);  // of 4 MiB among four ranks
  EXPECT_EQ(pieces(2 << 20), 4u);
  EXPECT_EQ(pieces(4 << 20), 4u);
  EXPECT_EQ(pieces(64 << 20), 64u);
  EXPECT_EQ(pieces(256 << 10), 1u);
}

TEST(CodedPrograms, AreNotCodedWhereNothingTravels) {
  const auto reach = Reachability::full(1, 1);
  const Program p = compile(PlannerId::kMesh, {.ranks = 1, .count = 10, .reach = &reach}, 0, 1024, spec("int8"));
  EXPECT_FALSE(p.coded());
}

}  // namespace
}  // namespace canarynet

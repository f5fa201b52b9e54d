// Frames as they may be read: each field that can be wrong is, one at a time.
#include "transport/frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "transport/decision_frames.h"
#include "transport/message_frames.h"

namespace canarynet::wire {
namespace {

std::span<const std::byte> bytes_of(const std::vector<std::byte>& v) { return v; }

template <typename Payload>
std::vector<std::byte> as_bytes(const Payload& payload) {
  const auto* data = reinterpret_cast<const std::byte*>(&payload);
  return {data, data + sizeof payload};
}

Header header_of(Kind kind, std::size_t bytes) {
  Header h;
  h.kind = kind;
  h.payload_bytes = static_cast<std::uint32_t>(bytes);
  if (shape_of(kind).sequenced) {
    h.flags = kSequenced;
    h.lane_sequence = 7;
  }
  return h;
}

// "": it is read. A frame that check() refuses is not read.
template <typename Frame>
std::string reason(const Header& h, const std::vector<std::byte>& payload, Frame* out) {
  if (const char* const why = check(h)) return why;
  const char* const why = read(h, bytes_of(payload), out);
  return why != nullptr ? why : "";
}
template <typename Frame>
std::string reason(const Header& h, const std::vector<std::byte>& payload) {
  Frame out;
  return reason(h, payload, &out);
}

constexpr Kind kKinds[] = {Kind::kHello, Kind::kPiece,   Kind::kSignature, Kind::kAck,  Kind::kHeartbeat,
                           Kind::kAbort, Kind::kGoodbye, Kind::kControl,   Kind::kVoid, Kind::kProbe};

TEST(Frames, EveryKindHasItsShapeAndNothingElse) {
  for (const Kind kind : kKinds) {
    const Shape shape = shape_of(kind);
    const Header good = header_of(kind, shape.bytes_min);
    const std::string name = "kind " + std::to_string(static_cast<int>(kind));
    EXPECT_EQ(check(good), nullptr) << name;
    for (int bit = 0; bit < 8; ++bit) {
      Header h = good;
      h.flags = static_cast<std::uint8_t>(h.flags | 1u << bit);
      h.payload_bytes = std::min(std::max<std::uint32_t>(h.payload_bytes, sizeof(SignaturePayload)), shape.bytes_max);
      const bool known = (shape.flags >> bit & 1) != 0;
      EXPECT_EQ(check(h) == nullptr, known) << name << ", flag " << bit;
    }
    Header h = good;
    h.flags ^= kSequenced;
    EXPECT_NE(check(h), nullptr) << name << ": sequenced or not is no choice";
    h = good;
    h.lane_sequence = 1;
    EXPECT_EQ(check(h) == nullptr, shape.sequenced) << name << ": a sequence";
    h = good;
    h.codec = 1;
    EXPECT_STREQ(check(h), "an unknown codec") << name;
    h = good;
    h.payload_bytes = shape.bytes_max + 1;
    EXPECT_STREQ(check(h), "a payload that is too long") << name;
    if (shape.bytes_min == 0) continue;
    h.payload_bytes = shape.bytes_min - 1;
    EXPECT_STREQ(check(h), "a payload that is too short") << name;
  }
}

TEST(Frames, AHelloSaysWhatForAndInWhichVersions) {
  const HelloPayload good{.engine = 3, .target = 9, .purpose = kHelloEndpoint, .paths = 2};
  const Header h = greeting(Kind::kHello, &good, sizeof good);
  EXPECT_EQ(validate(h), nullptr) << "although it is of the first version";
  EXPECT_EQ(h.version, kGreetingVersion);
  HelloPayload read_back;
  EXPECT_EQ(reason(h, as_bytes(good), &read_back), "");
  EXPECT_EQ(channel_name(read_back), 0x900000003u);
  const auto refused = [&](const std::function<void(HelloPayload&)>& change) {
    HelloPayload hello = good;
    change(hello);
    return reason<HelloPayload>(h, as_bytes(hello));
  };
  EXPECT_EQ(refused([](auto& f) { f.purpose = 0; }), "a purpose that is not known");
  EXPECT_EQ(refused([](auto& f) { f.purpose = 4; }), "a purpose that is not known");
  EXPECT_EQ(refused([](auto& f) { f.version_min = 12; }), "versions that end before they begin");
  EXPECT_EQ(refused([](auto& f) { f.purpose = kHelloChannel; }), "a count of paths where none is told");
  EXPECT_TRUE(speaks_our_version(good));
  EXPECT_FALSE(speaks_our_version({.version_min = 1, .version_max = 1}));
  EXPECT_EQ(describe_versions({.version_min = 1, .version_max = 1}),
            "the peer speaks protocol version 1..1, this side 11");
}

TEST(Frames, OfAnotherVersionOnlyGreetingsAreBelieved) {
  for (const Kind kind : kKinds) {
    Header h = header_of(kind, shape_of(kind).bytes_min);
    h.version = 1;
    seal(h);
    const bool greets = kind == Kind::kHello || kind == Kind::kAbort;
    EXPECT_EQ(validate(h) == nullptr, greets) << "kind " << static_cast<int>(kind);
    h.version = kVersion + 1;
    seal(h);
    ASSERT_STREQ(validate(h), "version");
    EXPECT_EQ(explain(validate(h), h), "the peer speaks protocol version 12, this side 11");
  }
}

TEST(Frames, AnAckHasTheWordsThatItTells) {
  AckPayload ack;
  std::vector<std::byte> bytes = as_bytes(ack);
  for (std::uint32_t words = 0; words <= kAckWordsMax; ++words) {
    for (std::uint32_t told : {words, words + 1, words - 1, 0xffffffffu}) {
      ack.words = told;
      bytes = as_bytes(ack);
      bytes.resize(kAckFixedBytes + 8 * words);
      EXPECT_EQ(reason<AckPayload>(header_of(Kind::kAck, bytes.size()), bytes).empty(), told == words);
    }
  }
  ack.words = 0;
  bytes = as_bytes(ack);
  bytes.resize(kAckFixedBytes + 3);
  EXPECT_NE(reason<AckPayload>(header_of(Kind::kAck, bytes.size()), bytes), "") << "part of a word";
}

TEST(Frames, AnAbortHasTheTextThatItTells) {
  AbortPayload fixed;
  fixed.text_bytes = 3;
  std::vector<std::byte> bytes = as_bytes(fixed);
  for (const char c : {'w', 'h', 'y'}) bytes.push_back(static_cast<std::byte>(c));
  AbortFrame abort;
  EXPECT_EQ(reason(header_of(Kind::kAbort, bytes.size()), bytes, &abort), "");
  EXPECT_EQ(abort.text, "why");
  bytes.pop_back();
  EXPECT_EQ(reason<AbortFrame>(header_of(Kind::kAbort, bytes.size()), bytes), "a text of another length than it tells");
}

SignaturePayload some_signature() {
  SignaturePayload s;
  s.members = 4;
  s.world_rank = 3;
  s.root = 3;
  return s;
}

TEST(Frames, ASignatureIsOfAGroupThatCanBe) {
  const Header h = header_of(Kind::kSignature, sizeof(SignaturePayload));
  EXPECT_EQ(reason<SignaturePayload>(h, as_bytes(some_signature())), "");
  const auto refused = [&](const std::function<void(SignaturePayload&)>& change) {
    SignaturePayload s = some_signature();
    change(s);
    return !reason<SignaturePayload>(h, as_bytes(s)).empty();
  };
  EXPECT_TRUE(refused([](auto& s) { s.members = 0; }));
  EXPECT_TRUE(refused([](auto& s) { s.members = kRanksMax + 1; }));
  EXPECT_TRUE(refused([](auto& s) { s.world_rank = kRanksMax; }));
  EXPECT_TRUE(refused([](auto& s) { s.root = 4; }));
  EXPECT_TRUE(refused([](auto& s) { s.root = -2; }));
  for (const std::size_t bytes : {std::size_t{0}, sizeof(SignaturePayload) - 1, sizeof(SignaturePayload) + 1}) {
    EXPECT_NE(reason<SignaturePayload>(header_of(Kind::kSignature, bytes), std::vector<std::byte>(bytes)), "");
  }
}

TEST(Frames, ASignedPieceIsItsElementsAndItsSignature) {
  std::vector<std::byte> bytes(10, std::byte{5});
  for (const std::byte b : as_bytes(some_signature())) bytes.push_back(b);
  Header h = header_of(Kind::kPiece, bytes.size());
  h.flags |= kSigned | kAckNow;
  h.op = 41;
  SignedPiece piece;
  ASSERT_EQ(reason(h, bytes, &piece), "");
  EXPECT_EQ(piece.elements.size(), 10u);
  EXPECT_EQ(piece.piece.payload_bytes, 10u);
  EXPECT_EQ(piece.piece.op, 41u);
  EXPECT_EQ(piece.piece.flags & kSigned, 0);
  EXPECT_NE(piece.piece.flags & kUnchecked, 0);
  EXPECT_EQ(piece.signature.world_rank, 3u);
  h.payload_bytes = sizeof(SignaturePayload) - 1;
  EXPECT_EQ(reason<SignedPiece>(h, std::vector<std::byte>(h.payload_bytes)), "no room for its signature");
  h.flags = kSequenced;
  h.payload_bytes = static_cast<std::uint32_t>(bytes.size());
  EXPECT_NE(reason<SignedPiece>(h, bytes), "") << "nothing says that it has one";
  h.flags |= kSigned;
  bytes.back() = std::byte{0};
  bytes[10 + offsetof(SignaturePayload, members)] = std::byte{0};
  EXPECT_NE(reason<SignedPiece>(h, bytes), "") << "what its signature says is looked at as well";
}

template <typename Payload>
std::string word_reason(MessageFrame frame, const Payload& payload, std::size_t cut = 0) {
  std::vector<std::byte> bytes = as_bytes(payload);
  bytes.resize(bytes.size() - cut);
  Header h = header_of(Kind::kSignature, bytes.size());
  h.step = static_cast<std::uint16_t>(frame);
  return reason<MessageWord>(h, bytes);
}

TEST(MessageFrames, EveryWordIsReadAsWhatItIs) {
  Header h = header_of(Kind::kSignature, 0);
  h.op = 12;
  MessageWord word;
  h.step = static_cast<std::uint16_t>(MessageFrame::kCredit);
  ASSERT_EQ(reason(h, {}, &word), "");
  EXPECT_EQ(std::get<Credit>(word).up_to, 12u);
  h.step = static_cast<std::uint16_t>(MessageFrame::kClose);
  ASSERT_EQ(reason(h, {}, &word), "");
  EXPECT_EQ(std::get<Close>(word).received, 12u);
  h.step = static_cast<std::uint16_t>(MessageFrame::kAbort);
  h.payload_bytes = 2;
  const std::vector<std::byte> no{std::byte{'n'}, std::byte{'o'}};
  ASSERT_EQ(reason(h, no, &word), "");
  EXPECT_EQ(std::get<GiveUp>(word).why, "no");
  EXPECT_EQ(word_reason(MessageFrame::kRefuse, RefusePayload{}), "");
  EXPECT_EQ(word_reason(MessageFrame::kOpen, OpenPayload{}), "");
  EXPECT_EQ(word_reason(MessageFrame::kOpened, OpenedPayload{}), "");
}

TEST(DecisionFrames, WordsThatCannotBeRightSayWhy) {
  const auto reason_of = [](DecisionFrame frame, std::uint32_t version, std::size_t bytes) {
    Header h = header_of(Kind::kSignature, bytes);
    h.step = static_cast<std::uint16_t>(frame);
    h.signature = version;
    DecisionWord word;
    const char* const why = read(h, std::vector<std::byte>(bytes), &word);
    return std::string(why != nullptr ? why : "");
  };
  constexpr std::size_t kLevel = sizeof(LinkLevel), kRow = sizeof(DecisionRow);
  EXPECT_EQ(reason_of(DecisionFrame::kReport, 0, kLevel), "");
  EXPECT_NE(reason_of(DecisionFrame::kReport, 0, 0), "");
  EXPECT_NE(reason_of(DecisionFrame::kReport, 0, kLevel + 1), "");
  EXPECT_NE(reason_of(DecisionFrame::kReport, 0, kLevel * (kLevelsPerReport + 1)), "");
  EXPECT_EQ(reason_of(DecisionFrame::kTimes, 0, sizeof(OperationTime)), "");
  EXPECT_NE(reason_of(DecisionFrame::kTimes, 0, 0), "");
  EXPECT_NE(reason_of(DecisionFrame::kTimes, 0, sizeof(OperationTime) + 1), "");
  EXPECT_NE(reason_of(DecisionFrame::kTimes, 0, sizeof(OperationTime) * (kTimesPerReport + 1)), "");
  EXPECT_EQ(reason_of(DecisionFrame::kTable, 1, 0), "");
  EXPECT_EQ(reason_of(DecisionFrame::kTable, 1, 2 * kRow), "");
  EXPECT_NE(reason_of(DecisionFrame::kTable, 0, kRow), "") << "without a version";
  EXPECT_NE(reason_of(DecisionFrame::kTable, 1, kRow - 1), "");
  EXPECT_NE(reason_of(DecisionFrame::kTable, 1, kRow * (kDecisionRowsMax + 1)), "");
  const auto reason_of_order = [](std::uint32_t ranks, std::size_t bytes) {
    Header h = header_of(Kind::kSignature, bytes);
    h.step = static_cast<std::uint16_t>(DecisionFrame::kTable);
    h.signature = 1;
    h.op = ranks;
    DecisionWord word;
    const char* const why = read(h, std::vector<std::byte>(bytes), &word);
    if (why != nullptr) return std::string(why);
    const auto& table = std::get<TableProposal>(word);
    return std::to_string(table.ring_order.size()) + " ranks, " + std::to_string(table.rows.size()) + " rows";
  };
  EXPECT_EQ(reason_of_order(3, 6 + 2 * kRow), "3 ranks, 2 rows");
  EXPECT_EQ(reason_of_order(kOrderedRanksMax, kOrderedRanksMax * 2), "64 ranks, 0 rows");
  EXPECT_EQ(reason_of_order(kOrderedRanksMax + 1, 1000), "an order of more ranks than are there");
  EXPECT_EQ(reason_of_order(4, 6), "an order of more ranks than are there");
  EXPECT_EQ(reason_of_order(0x80000001, 2), "an order of more ranks than are there");
  EXPECT_EQ(reason_of_order(3, kRow), "a list that ends within an entry");
  for (const auto frame : {DecisionFrame::kLimit, DecisionFrame::kCommit, DecisionFrame::kWithdraw}) {
    EXPECT_EQ(reason_of(frame, 1, 0), "");
    EXPECT_NE(reason_of(frame, 0, 0), "");
    EXPECT_NE(reason_of(frame, 1, 4), "");
  }
  EXPECT_NE(reason_of(DecisionFrame{6}, 1, 0), "");
}

TEST(MessageFrames, WordsThatCannotBeRightSayWhy) {
  const std::uint32_t something = 0;
  EXPECT_NE(word_reason(MessageFrame::kCredit, something), "");
  EXPECT_NE(word_reason(MessageFrame::kClose, something), "");
  EXPECT_NE(word_reason(MessageFrame::kRefuse, RefusePayload{}, 1), "");
  EXPECT_NE(word_reason(MessageFrame::kRefuse, RefusePayload{.unknown_tag = 2}), "");
  EXPECT_NE(word_reason(MessageFrame::kOpen, OpenPayload{}, 1), "");
  EXPECT_NE(word_reason(MessageFrame::kOpened, OpenedPayload{}, 1), "");
  EXPECT_NE(word_reason(MessageFrame::kOpened, OpenedPayload{.accepted = 2}), "");
  EXPECT_NE(word_reason(MessageFrame::kOpened, OpenedPayload{.reserved = 1}), "");
  OpenPayload endless;
  std::memset(endless.host, 'h', sizeof endless.host);
  EXPECT_EQ(word_reason(MessageFrame::kOpen, endless), "a host's name without an end");
  OpenedPayload endless_too;
  std::memset(endless_too.host, 'h', sizeof endless_too.host);
  EXPECT_EQ(word_reason(MessageFrame::kOpened, endless_too), "a host's name without an end");
  EXPECT_NE(word_reason(MessageFrame::kAbort, std::array<char, kAbortTextBytes + 1>{}), "");
  EXPECT_EQ(word_reason(MessageFrame::kAbort, std::array<char, kAbortTextBytes>{}), "");
  for (const int step : {0, 7, 0xffff}) {
    EXPECT_EQ(word_reason(static_cast<MessageFrame>(step), std::array<char, 88>{}), "a word that is not known");
  }
}

}  // namespace
}  // namespace canarynet::wire

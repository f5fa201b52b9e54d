#include "control/messages.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace canarynet::control {
namespace {

EngineInfo some_engine(std::uint32_t number) {
  EngineInfo e;
  e.engine = number;
  e.ranks = {static_cast<int>(2 * number), static_cast<int>(2 * number + 1)};
  e.host_id = "8f2c-" + std::to_string(number);
  e.host_name = "node";
  e.pid = 123456789;
  e.caller_driven = number % 2 == 1;
  e.cores = 300 + static_cast<int>(number);
  e.control = Address::ipv4(10, 9, 8, 7, 0, static_cast<std::uint16_t>(5000 + number));
  e.rails.push_back({"eth0", Address::ipv4(10, 0, 0, 7, 24, 4001), BytesPerSec::from_mbit(10'000)});
  Address v6;
  v6.family = Address::Family::kIPv6;
  v6.bytes = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8};
  v6.prefix_bits = 64;
  v6.port = 4002;
  e.rails.push_back({"eth1", v6, {}});
  Address memory;
  memory.family = Address::Family::kSharedMemory;
  memory.prefix_bits = 64;
  memory.port = 1;
  memory.bytes[15] = 9;
  e.rails[0].beyond = {Network::everything(Address::Family::kIPv4), Network::of(Address::ipv4(10, 61, 0, 0, 16))};
  e.rails[1].beyond = {Network::everything(Address::Family::kIPv6)};
  e.rails.push_back({"shm", memory, {}});
  return e;
}

std::vector<Message> one_of_each() {
  Join join;
  join.engine = some_engine(1);
  join.world_size = 8;
  join.must_agree = {"algo=ring", "piece_bytes=131072", "empty="};
  Welcome welcome;
  welcome.job = 0x1234567890abcdef;
  welcome.epoch_seed = 0xfedcba0987654321;
  welcome.world_size = 8;
  welcome.engines = 4;
  welcome.first = 1;
  welcome.piece_bytes = 131072;
  welcome.part = {some_engine(1), some_engine(2)};
  VerdictNote note;
  note.verdict = {.code = CANARY_PEER_DIED,
                  .rank = 3,
                  .op = 812,
                  .flow = 2,
                  .epoch = 1,
                  .reporter = 7,
                  .elapsed = 5_ms,
                  .text = "x"};
  PolicyWord word;
  word.kind = PolicyWord::Kind::kOpen;
  word.policy = {1, 7, 3};
  word.rank = 2;
  word.serial = 1;
  word.name = "ripples:smart";
  word.members = {0, 2, 5};
  word.hosts = {0, 0, 1};
  PolicyReply reply;
  reply.policy = {1, 7, 3};
  reply.rank = 2;
  reply.serial = 4;
  reply.heard = 9;
  reply.kind = sync::Answer::Kind::kGroup;
  reply.number = 12;
  reply.members = {0, 2, 3};
  return {join,
          welcome,
          Refuse{CANARY_MISMATCH, 2, "host", "text"},
          GroupRequest{5, 4, 3, {3, 1, 2}},
          GroupCreated{5, 17},
          GroupFailed{6, CANARY_ENTRY_TIMEOUT, -1, "", "why"},
          note,
          Death{3, "closed", false},
          Leave{{{{7, 1}, 3, 5}}},
          Left{2, {{{7, 1}, 3, 5}, {{8, 1}, 0, 6}}},
          Heartbeat{{1, 0xff00}},
          Rejoin{99, 3, 2, 1, 77},
          Rejoined{2},
          Retract{},
          MissReport{{{1, {}, Obstacle::kNone, ""},
                      {3, {{1, 1}, {7, 2}}, Obstacle::kThere, ": full"},
                      {4, {}, Obstacle::kHere, ""}}},
          EntryQuestion{{7, 1}},
          EntryState{{{7, 1}, {5, 0, 6}, {0, 2}}},
          ConnectRequest{3},
          word,
          reply,
          GroupKnown{{2, 7}, 9, {4, 2, 7}},
          Testified{}};
}

TEST(ControlMessages, EveryKindSurvivesItsEncoding) {
  const auto messages = one_of_each();
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    ASSERT_EQ(messages[i].index(), i);
    const auto bytes = encode(messages[i]);
    const auto back = decode(bytes);
    ASSERT_TRUE(back.ok()) << i << " " << back.status().text();
    EXPECT_EQ(back.value().index(), i);
    EXPECT_EQ(encode(back.value()), bytes);
  }
  const auto join = std::get<Join>(decode(encode(messages[0])).value());
  EXPECT_EQ(join.engine.rails[1].address, some_engine(1).rails[1].address);
  EXPECT_EQ(join.engine.rails[2].address, some_engine(1).rails[2].address);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(join.engine.rails[i].beyond, some_engine(1).rails[i].beyond) << i;
  EXPECT_EQ(join.engine.rails[0].nominal, BytesPerSec::from_mbit(10'000));
  EXPECT_EQ(join.engine.ranks, (std::vector<int>{2, 3}));
  EXPECT_EQ(join.must_agree[2], "empty=");
}

TEST(ControlMessages, WordsAndRepliesOfPoliciesSurviveInEveryKind) {
  PolicyWord word;
  word.question.kind = sync::Question::Kind::kIterated;
  word.question.number = 5;
  word.question.iterations = 78;
  word.question.capability = 30_ms;
  word.question.applied = 3;
  word.question.unsure = true;
  word.seen = 3;
  const auto asked = std::get<PolicyWord>(decode(encode(word)).value());
  EXPECT_EQ(asked.question.kind, word.question.kind);
  EXPECT_EQ(asked.question.iterations, 78);
  EXPECT_EQ(asked.question.capability, 30_ms);
  EXPECT_EQ(asked.question.applied, 3);
  EXPECT_EQ(asked.question.doubted, -1);
  EXPECT_TRUE(asked.question.unsure);
  EXPECT_EQ(asked.seen, 3u);
  word.kind = PolicyWord::Kind::kLeave;
  EXPECT_EQ(std::get<PolicyWord>(decode(encode(word)).value()).kind, PolicyWord::Kind::kLeave);
  word.kind = PolicyWord::Kind::kResume;
  word.name = "esync";
  word.asked = word.has_told = word.leaves = true;
  word.ago = 7_ms;
  word.told = {sync::Answer::Kind::kAggregate, 4, {0, 3}, true, 3, {0}};
  const auto resumed = std::get<PolicyWord>(decode(encode(word)).value());
  EXPECT_TRUE(resumed.asked && resumed.has_told && resumed.leaves && resumed.told.done && !resumed.open);
  EXPECT_EQ(resumed.ago, 7_ms);
  EXPECT_EQ(resumed.question.iterations, 78);
  EXPECT_EQ(resumed.told.number, 4);
  EXPECT_EQ(resumed.told.members, (std::vector<std::uint32_t>{0, 3}));
  EXPECT_EQ(resumed.told.source, 3);
  EXPECT_EQ(resumed.told.behind, std::vector<std::uint32_t>{0});
  const auto opened = std::get<PolicyWord>(decode(encode(one_of_each()[18])).value());
  EXPECT_EQ(opened.name, "ripples:smart");
  EXPECT_EQ(opened.members, (std::vector<int>{0, 2, 5}));
  EXPECT_EQ(opened.hosts, (std::vector<std::uint32_t>{0, 0, 1}));
  PolicyReply reply;
  reply.failed = CANARY_MISMATCH;
  reply.text = "names differ";
  const auto failed = std::get<PolicyReply>(decode(encode(reply)).value());
  EXPECT_EQ(failed.failed, CANARY_MISMATCH);
  EXPECT_EQ(failed.text, "names differ");
  reply.failed = CANARY_OK;
  reply.members = {2, 3};
  reply.source = 3;
  reply.counted = true;
  reply.behind = {2};
  const auto told = std::get<PolicyReply>(decode(encode(reply)).value());
  EXPECT_EQ(told.source, 3);
  EXPECT_TRUE(told.counted);
  EXPECT_EQ(told.behind, std::vector<std::uint32_t>{2});
  reply.members = {3, 2};
  EXPECT_NE(decode(encode(reply)).status().text().find("member"), std::string::npos) << "not in order";
}

TEST(ControlMessages, EveryTruncationIsRefused) {
  for (const Message& message : one_of_each()) {
    const auto bytes = encode(message);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(decode({bytes.data(), size}).ok()) << message.index() << " cut to " << size;
    }
    auto longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(decode(longer).ok());
  }
}

TEST(ControlMessages, WrongFieldIsNamed) {
  auto bytes = encode(GroupCreated{5, 17});
  bytes[6] = std::byte{0};
  EXPECT_NE(decode(bytes).status().text().find("flow"), std::string::npos);
  // With the bits that tell kinds of flows apart it would be a group's own messages.
  EXPECT_NE(decode(encode(GroupCreated{5, kFlowsMax + 1})).status().text().find("flow"), std::string::npos);
  EXPECT_TRUE(decode(encode(GroupCreated{5, kFlowsMax})).ok());
  bytes[1] = std::byte{9};
  EXPECT_NE(decode(bytes).status().text().find("format"), std::string::npos);
  bytes = encode(Leave{});
  bytes[0] = std::byte{200};
  EXPECT_NE(decode(bytes).status().text().find("kind"), std::string::npos);
}

// A length that promises more than there is must not reach an allocator.
TEST(ControlMessages, HugeCountsAreRefused) {
  for (const Message& message : one_of_each()) {
    const auto bytes = encode(message);
    for (std::size_t at = 2; at + 4 <= bytes.size(); ++at) {
      auto bad = bytes;
      for (std::size_t i = 0; i < 4; ++i) bad[at + i] = std::byte{0xff};
      const auto result = decode(bad);
      if (result.ok()) {
        EXPECT_LE(encode(result.value()).size(), bad.size());
      }
    }
  }
}

TEST(ControlMessages, RandomAndMutatedBytesNeverCrash) {
  Random random(1);
  const auto messages = one_of_each();
  std::size_t taken = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::vector<std::byte> bytes;
    if (round % 2 == 0) {
      bytes.resize(random.below(64));
      for (auto& b : bytes) b = static_cast<std::byte>(random.next());
      if (bytes.size() > 2) {
        bytes[0] = static_cast<std::byte>(1 + random.below(15));
        bytes[1] = std::byte{kFormat};
      }
    } else {
      bytes = encode(messages[random.below(messages.size())]);
      for (std::uint64_t flips = 1 + random.below(4); flips > 0; --flips) {
        bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
      }
    }
    const auto result = decode(bytes);
    if (!result.ok()) {
      EXPECT_FALSE(result.status().text().empty());
      continue;
    }
    ++taken;
    EXPECT_EQ(encode(result.value()), bytes);  // one encoding per message
  }
  EXPECT_GT(taken, 100u);
}

// All that a rank misses may be more than a frame holds, however many groups and engines that are.
TEST(ControlMessages, AReportOfMissedEnginesFitsOneFrame) {
  MissReport report;
  for (const std::uint32_t engines : {1u, 40u, kEnginesMax}) {
    report.missed.clear();
    for (std::uint32_t e = 0; e < engines; ++e) {
      Missed missed{e, {}, Obstacle::kHere, std::string(1000, 'x')};
      for (std::uint32_t g = 0; g < (engines == kEnginesMax ? 2u : 70'000u); ++g) missed.waiting.push_back({g, 1});
      report.missed.push_back(std::move(missed));
    }
    const auto bytes = encode(report);
    ASSERT_LE(bytes.size(), std::size_t{wire::kPayloadMax}) << engines;
    const auto back = decode(bytes);
    ASSERT_TRUE(back.ok()) << back.status().text();
    const auto& missed = std::get<MissReport>(back.value()).missed;
    ASSERT_EQ(missed.size(), engines);
    EXPECT_EQ(missed[0].waiting.size(), std::min<std::size_t>(report.missed[0].waiting.size(), kWaitingGroupsMax));
    EXPECT_EQ(missed.back().engine, engines - 1);
  }
}

TEST(ControlMessages, AMissedEngineIsSaidToBeDeafOrSilent) {
  for (const bool deaf : {false, true}) {
    const auto bytes = encode(MissReport{{{7, {{1, 2}}, Obstacle::kNone, "", deaf}}});
    const auto back = decode(bytes);
    ASSERT_TRUE(back.ok()) << back.status().text();
    EXPECT_EQ(std::get<MissReport>(back.value()).missed.at(0).deaf, deaf);
    auto wrong = bytes;
    wrong.back() = std::byte{2};
    EXPECT_NE(decode(wrong).status().text().find("who hears whom"), std::string::npos);
  }
}

TEST(ControlMessages, TextsArePrintable) {
  EXPECT_EQ(std::get<Death>(decode(encode(Death{1, "a\nb\x1b[2J"})).value()).why, "a?b?[2J");
  auto bytes = encode(Death{1, "closed"});
  bytes.back() = std::byte{'\n'};
  EXPECT_NE(decode(bytes).status().text().find("text"), std::string::npos) << "from an end that does not keep to it";
}

TEST(ControlMessages, PieceSizesThatNoFrameHoldsAreRefused) {
  for (const auto& [bytes, good] : {std::pair{-1ll, false}, {0, false}, {1 << 20, true}, {(1 << 20) + 1, false}}) {
    Welcome welcome = std::get<Welcome>(one_of_each()[1]);
    welcome.piece_bytes = bytes;
    EXPECT_EQ(decode(encode(welcome)).ok(), good) << bytes;
  }
}

TEST(ControlMessages, LongTextsAreCut) {
  const auto bytes = encode(Death{1, std::string(100'000, 'x')});
  const auto back = decode(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::get<Death>(back.value()).why.size(), kTextMax);
}

}  // namespace
}  // namespace canarynet::control

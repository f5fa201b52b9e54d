// Commands that make sense, and those that do not. For collectives, every way in which two small buffers can lie to
// each other is compared with marked bytes; for all commands, each field that may be wrong is, with its message.
#include "port/command_check.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"

namespace canarynet::port {
namespace {

constexpr std::size_t kElement = 4;
alignas(64) std::byte g_memory[4096];

// A rank of a group that asks for something, with a ticket that waits.
struct Caller {
  Caller(int size, int rank) : shape{rank, size} {}
  Status check(const Command& command) const { return check_command(command, {regions, 8, shape, true}); }
  Status check(const OpRequest& request) const { return check(operation({0, 1}, shape, request, {0, 1})); }
  Regions regions;
  MemberShape shape;
};

// Bytes of g_memory that a call reads, and writes.
struct Marks {
  std::vector<int> read = std::vector<int>(sizeof g_memory), written = std::vector<int>(sizeof g_memory);
  void mark(std::vector<int>& which, std::size_t begin, std::size_t bytes) {
    for (std::size_t i = begin; i < begin + bytes; ++i) ++which.at(i);
  }
  bool apart() const {
    for (std::size_t i = 0; i < read.size(); ++i) {
      if (written[i] > 1 || (written[i] == 1 && read[i] != 0)) return false;
    }
    return true;
  }
};

struct Case {
  Collective collective;
  bool input_blocks, output_blocks;                            // one per rank
  enum { kSame, kOwnOfInput, kOwnOfOutput, kNever } in_place;  // as canarynet.h has it
};
constexpr Case kCases[] = {
    {Collective::kAllReduce, false, false, Case::kSame},
    {Collective::kReduce, false, false, Case::kSame},
    {Collective::kBroadcast, false, false, Case::kSame},
    {Collective::kReduceScatter, true, false, Case::kOwnOfInput},
    {Collective::kScatter, true, false, Case::kOwnOfInput},
    {Collective::kAllGather, false, true, Case::kOwnOfOutput},
    {Collective::kGather, false, true, Case::kOwnOfOutput},
    {Collective::kAllToAll, true, true, Case::kNever},
};

TEST(CommandCheck, TakesBuffersThatAreApartOrInPlaceAndNoOthers) {
  int taken = 0, refused = 0;
  for (const Case& c : kCases) {
    for (int size = 1; size <= 4; ++size) {
      for (int rank = 0; rank < size; ++rank) {
        for (int root = 0; root < (has_root(c.collective) ? size : 1); ++root) {
          for (std::size_t count = 0; count <= 3; ++count) {
            const Caller caller(size, rank);
            const auto blocks = static_cast<std::size_t>(size);
            const bool reads = reads_input(c.collective, rank == root),
                       writes = writes_output(c.collective, rank == root);
            const std::size_t in = (c.input_blocks ? blocks : 1) * count * kElement;
            const std::size_t out = (c.output_blocks ? blocks : 1) * count * kElement;
            const std::size_t middle = sizeof g_memory / 2, own = static_cast<std::size_t>(rank) * count * kElement;
            for (std::size_t at = middle - in - out - 2; at <= middle + in + out + 2; ++at) {
              Marks marks;
              if (reads) marks.mark(marks.read, middle, in);
              if (writes) marks.mark(marks.written, at, out);
              const bool in_place = (c.in_place == Case::kSame && at == middle) ||
                                    (c.in_place == Case::kOwnOfInput && at == middle + own) ||
                                    (c.in_place == Case::kOwnOfOutput && at + own == middle);
              OpRequest request{c.collective, g_memory + middle, g_memory + at, count, CANARY_I32, CANARY_SUM, root};
              const Status status = caller.check(request);
              const std::string what = std::string(name_of(c.collective)) + " size " + std::to_string(size) + " rank " +
                                       std::to_string(rank) + " root " + std::to_string(root) + " count " +
                                       std::to_string(count) + " output at " + std::to_string(at) + ", input at " +
                                       std::to_string(middle) + ": " + status.text();
              ASSERT_EQ(status.ok(), marks.apart() || in_place) << what;
              ++(status.ok() ? taken : refused);
              if (status.ok()) continue;
              ASSERT_EQ(status.code(), CANARY_INVALID_ARGUMENT) << what;
              ASSERT_NE(status.text().find("input [0x"), std::string::npos) << what;
              ASSERT_NE(status.text().find("output [0x"), std::string::npos) << what;
            }
          }
        }
      }
    }
  }
  std::printf("%d calls taken, %d refused\n", taken, refused);
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(CommandCheck, TakesAllGatherVApartOrInPlace) {
  const std::vector<std::vector<std::uint64_t>> lists{{2, 1, 3}, {0, 2, 0}, {1, 0, 4}, {3, 3, 3}};
  for (const auto& counts : lists) {
    for (int rank = 0; rank < 3; ++rank) {
      const Caller caller(3, rank);
      std::size_t before = 0, all = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        if (static_cast<int>(i) < rank) before += counts[i] * kElement;
        all += counts[i] * kElement;
      }
      const std::size_t own = counts[static_cast<std::size_t>(rank)] * kElement, middle = sizeof g_memory / 2;
      for (std::size_t at = middle - 60; at <= middle + 60; ++at) {
        Marks marks;
        marks.mark(marks.read, middle, own);
        marks.mark(marks.written, at, all);
        OpRequest request{Collective::kAllGatherV, g_memory + middle, g_memory + at, all / kElement, CANARY_I32};
        request.counts = counts;
        const Status status = caller.check(request);
        ASSERT_EQ(status.ok(), marks.apart() || at + before == middle) << "rank " << rank << ": " << status.text();
      }
    }
  }
}

// Blocks in any order, with gaps, or one inside another; both buffers in one piece of memory.
TEST(CommandCheck, TakesAllToAllVWhoseBlocksAreApart) {
  Random random(7);
  int taken = 0, refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    const int size = 1 + static_cast<int>(random.below(4));
    const auto n = static_cast<std::size_t>(size);
    const Caller caller(size, static_cast<int>(random.below(static_cast<std::uint64_t>(size))));
    std::vector<std::uint64_t> counts(4 * n);  // send counts, where, receive counts, where
    for (std::size_t i = 0; i < n; ++i) {
      counts[i] = random.below(4);
      counts[n + i] = random.below(24);
      counts[2 * n + i] = random.below(4);
      counts[3 * n + i] = random.below(24);
    }
    counts[2 * n + static_cast<std::size_t>(caller.shape.rank)] = counts[static_cast<std::size_t>(caller.shape.rank)];
    const std::size_t input = 1024, output = 1024 + random.below(3) * 48 + random.below(5);
    Marks marks;
    for (std::size_t i = 0; i < n; ++i) {
      marks.mark(marks.read, input + counts[n + i] * kElement, counts[i] * kElement);
      marks.mark(marks.written, output + counts[3 * n + i] * kElement, counts[2 * n + i] * kElement);
    }
    OpRequest request{Collective::kAllToAllV, g_memory + input, g_memory + output, 0, CANARY_I32};
    request.counts = counts;
    const Status status = caller.check(request);
    ASSERT_EQ(status.ok(), marks.apart()) << "round " << round << ": " << status.text();
    ++(status.ok() ? taken : refused);
  }
  std::printf("%d calls taken, %d refused\n", taken, refused);
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(CommandCheck, NamesBothBuffersAndTheFormInPlace) {
  const Caller caller(4, 2);
  OpRequest request{Collective::kReduceScatter, g_memory, g_memory, 8, CANARY_I32};
  const std::string text = caller.check(request).text();
  EXPECT_NE(text.find("reduce_scatter: input [0x"), std::string::npos) << text;
  EXPECT_NE(text.find("in place is output == input + rank * count"), std::string::npos) << text;
}

// The message about a command that was good before `spoil`.
struct Flaw {
  const char* expected;
  std::function<void(Command*)> spoil;
};

void expect_refused(const Caller& caller, const Command& good, const std::vector<Flaw>& flaws) {
  ASSERT_TRUE(caller.check(good).ok()) << caller.check(good).text();
  for (const Flaw& flaw : flaws) {
    Command bad = good;
    flaw.spoil(&bad);
    const Status status = caller.check(bad);
    EXPECT_EQ(status.code(), CANARY_INVALID_ARGUMENT) << flaw.expected;
    EXPECT_EQ(status.text(), flaw.expected);
  }
}

TEST(CommandCheck, SaysWhichFieldOfAnOperationIsWrong) {
  const Caller caller(4, 1);
  const OpRequest reduce{Collective::kReduce, g_memory, g_memory + 64, 8, CANARY_I32, CANARY_SUM, 1};
  expect_refused(caller, operation({0, 1}, caller.shape, reduce, {0, 1}),
                 {{"command 0 does not exist", [](Command* c) { c->kind = Command::Kind::kNone; }},
                  {"command 99 does not exist", [](Command* c) { c->kind = static_cast<Command::Kind>(99); }},
                  {"command 12 is none of an engine's", [](Command* c) { c->kind = Command::Kind::kSendOn; }},
                  {"only receives of connections are followed by more", [](Command* c) { c->more_follows = 1; }},
                  {"collective 11 does not exist", [](Command* c) { c->collective = 11; }},
                  {"reduce: type 8 is not a canary_type", [](Command* c) { c->type = 8; }},
                  {"reduce: type -1 is not a canary_type", [](Command* c) { c->type = -1; }},
                  {"reduce: redop 5 is not a canary_redop", [](Command* c) { c->redop = 5; }},
                  {"reduce: root 4 is outside of a group of 4", [](Command* c) { c->rank = 4; }},
                  {"reduce: root -1 is outside of a group of 4", [](Command* c) { c->rank = -1; }},
                  {"reduce: a time limit of -5 ns", [](Command* c) { c->time_limit = -5; }},
                  {"reduce: a time limit of 9223372036854775807 ns", [](Command* c) { c->time_limit = INT64_MAX; }},
                  {"reduce: count 18446744073709551615 is too large", [](Command* c) { c->count = UINT64_MAX; }},
                  {"reduce: input has 32 bytes: the operation needs 36", [](Command* c) { c->count = 9; }},
                  {"reduce: output has 31 bytes: the operation needs 32", [](Command* c) { c->output.bytes = 31; }},
                  {"reduce: input is NULL", [](Command* c) { c->input = {}; }},
                  {"reduce: output is NULL", [](Command* c) { c->output = {}; }},
                  {"reduce: input of 32 bytes at 64 lies outside of region 3",
                   [](Command* c) { c->input = {.region = 3, .offset = 64, .bytes = 32}; }},
                  {"reduce: its list of counts has 8 bytes: takes 0, 0 numbers in a group of 4",
                   [](Command* c) { c->numbers.bytes = 8; }},
                  {"reduce: priority 2 is not a canary_priority", [](Command* c) { c->priority = 2; }},
                  {"only operations and messages have a priority",
                   [](Command* c) {
                     c->kind = Command::Kind::kAbort;
                     c->priority = 1;
                   }},
                  {"a command with bits of another version",
                   [](Command* c) {
                     c->connection = {0, 1};
                   }},
                  {"a command with bits of another version", [](Command* c) { c->output.reserved = 1; }}});
  const OpRequest coded{.collective = Collective::kAllReduce,
                        .input = g_memory,
                        .output = g_memory,
                        .count = 8,
                        .type = CANARY_F32,
                        .codec = 5,
                        .tensor = 3,
                        .momentum = 0.5F};
  const auto momentum = [](Command* c, float m) { c->numbers.reserved = std::bit_cast<std::uint32_t>(m); };
  expect_refused(
      caller, operation({0, 1}, caller.shape, coded, {0, 1}),
      {{"all_reduce: momentum without a tensor", [](Command* c) { c->numbers.offset = 0; }},
       {"all_reduce: a momentum of 1.000000, from 0 to below 1 is possible", [&](Command* c) { momentum(c, 1); }},
       {"all_reduce: a momentum of -0.500000, from 0 to below 1 is possible", [&](Command* c) { momentum(c, -0.5F); }},
       {"a command with bits of another version",
        [](Command* c) { c->collective = static_cast<std::uint8_t>(Collective::kReduce); }}});
  EXPECT_EQ(request_of(operation({0, 1}, caller.shape, coded, {0, 1}), caller.regions).momentum, 0.5F);
  OpRequest matrix = coded;
  matrix.rows = 4;
  EXPECT_EQ(request_of(operation({0, 1}, caller.shape, matrix, {0, 1}), caller.regions).rows, 4u);
  matrix.momentum = 0;
  EXPECT_TRUE(caller.check(operation({0, 1}, caller.shape, matrix, {0, 1})).ok());
  const auto rows = [](Command* c, std::uint64_t n) { c->numbers.bytes = n; };
  expect_refused(
      caller, operation({0, 1}, caller.shape, matrix, {0, 1}),
      {{"all_reduce: 8 elements are no matrix of 3 rows", [&](Command* c) { rows(c, 3); }},
       {"all_reduce: 8 elements are no matrix of 16 rows", [&](Command* c) { rows(c, 16); }},
       {"all_reduce: 8 elements are no matrix of 18446744073709551615 rows",
        [&](Command* c) { rows(c, ~std::uint64_t{0}); }},
       {"all_reduce: 8 elements are no matrix of 9223372036854775816 rows",
        [&](Command* c) { rows(c, (std::uint64_t{1} << 63) + 8); }},
       {"all_reduce: 4 rows without a codec", [](Command* c) { c->numbers.region = 0; }},
       {"all_reduce: count 18446744073709551612 is too large", [](Command* c) { c->count = ~std::uint64_t{0} - 3; }}});
  OpRequest part = coded;
  part.part_of = 100;
  part.part_begin = 92;
  const Command of_part = operation({0, 1}, caller.shape, part, {0, 1});
  EXPECT_TRUE(caller.check(of_part).ok());
  EXPECT_EQ(request_of(of_part, caller.regions).part_of, 100u);
  EXPECT_EQ(request_of(of_part, caller.regions).part_begin, 92u);
  EXPECT_EQ(request_of(of_part, caller.regions).rows, 0u);
  EXPECT_EQ(request_of(operation({0, 1}, caller.shape, coded, {0, 1}), caller.regions).part_of, 0u);
  const auto from = [](Command* c, std::uint64_t begin) { c->part = Command::kIsPart | begin; };
  expect_refused(
      caller, of_part,
      {{"all_reduce: elements 93 and the 8 from there on are no part of a tensor of 100",
        [&](Command* c) { from(c, 93); }},
       {"all_reduce: elements 9223372036854775807 and the 8 from there on are no part of a tensor of 100",
        [&](Command* c) { from(c, ~std::uint64_t{0}); }},
       {"all_reduce: elements 92 and the 8 from there on are no part of a tensor of 18446744073709551615",
        [](Command* c) { c->numbers.bytes = ~std::uint64_t{0}; }},
       {"all_reduce: a part without a tensor", [](Command* c) { c->numbers.offset = 0, c->numbers.reserved = 0; }},
       {"a command with bits of another version", [](Command* c) { c->part = 92; }}});
  const Command good = operation({0, 1}, caller.shape, reduce, {0, 1});
  EXPECT_EQ(check_command(good, {caller.regions, 8, {}, true}).text(), "reduce: its group has been destroyed");
  EXPECT_EQ(check_command(good, {caller.regions, 8, caller.shape, false}).text(), "reduce: nobody waits for ticket 0");
}

TEST(CommandCheck, SaysWhichWordOfASessionIsWrong) {
  const Regions regions;
  const auto said = [&](std::vector<std::uint64_t> words) {
    const Command c = open_session({}, 1, words, {});
    Surroundings here{regions, 4, MemberShape{1, 4}, true};
    return check_command(c, here).text();
  };
  EXPECT_EQ(said({3, 2, 0, 100, 18, kUsualLinger, 3, 2, 0, 10, 0, 20, 7}), "");
  EXPECT_EQ(said({3, 2, 0, 100, 18, kUsualLinger, 3, 2, 1}), "session_open: no colayers");
  EXPECT_EQ(said({3, 2, 0, 100, 18, kUsualLinger, 3, 1, 0, 10, 0}), "session_open: a backlog of 1 results (2 to 64)");
  EXPECT_EQ(said({3, 2, 2, 100, 18, kUsualLinger, 3, 2, 0, 10, 0}),
            "session_open: at the bound it neither waits nor drops");
  EXPECT_EQ(said({3, 2, 0, 100, 18, kUsualLinger, 3, 2, 2, 10, 0}),
            "session_open: after a death it neither ends nor goes on");
  EXPECT_EQ(said({3, 2, 1, 0, 18, 0, 3, 2, 0, 10, 0}), "session_open: a quorum of 0 percent of the workers (1 to 100)");
  EXPECT_EQ(said({3, 2, 1, 101, 18, 0, 3, 2, 0, 10, 0}),
            "session_open: a quorum of 101 percent of the workers (1 to 100)");
  EXPECT_EQ(said({3, 2, 1, 75, 0, 0, 3, 2, 0, 10, 0}),
            "session_open: a worker that may be absent from 0 steps in a row (1 to 1048576)");
  EXPECT_EQ(said({3, 2, 0, 100, 18, 1u << 20, 3, 2, 0, 10, 0, 0, 0}), "session_open: colayer 1 has no elements");
  EXPECT_EQ(said({3, 2, 0, 100, 18, 0, 3, 2, 0, std::uint64_t{1} << 44, 0, 1, 0}),
            "session_open: colayer 1 of 1 elements is too large");
  EXPECT_EQ(said({3, 2}), "session_open: its numbers have 16 bytes, takes 72 to 4168");
  EXPECT_EQ(said({UINT64_MAX - 1, 2, 0, 100, 18, 0, 3, 2, 0, 1, 0}), "session_open: a staleness bound of -2");
  EXPECT_EQ(said({3, 2, 0, 100, 18, 0, 3, 2, 0, 10, 0, 20}), "session_open: half a colayer");
  EXPECT_EQ(said({3, 2, 0, 100, 18, 0, 3, 2, 0, 10, std::uint64_t{1} << 32}),
            "session_open: colayer 0: a codec of number 4294967296");
  std::vector<float> gradient(4);
  Surroundings here{regions, 4, MemberShape{1, 4}, true};
  EXPECT_TRUE(check_command(push({}, 1, 0, gradient, {}), here).ok());
  Command c = push({}, 1, 0, gradient, {});
  ++c.input.offset;
  EXPECT_EQ(check_command(c, here).text(), "session_push: gradient is not aligned to 4 bytes");
}

TEST(CommandCheck, TakesABarrierWhateverItCounts) {
  EXPECT_TRUE(Caller(4, 1).check({Collective::kBarrier, nullptr, nullptr, 1000, CANARY_F64}).ok());
}

TEST(CommandCheck, SaysWhichCountsAreWrong) {
  const Caller caller(2, 0);
  std::array<std::uint64_t, 3> counts{1, 2, 0};
  OpRequest gather{Collective::kAllGatherV, g_memory, g_memory + 64, 3, CANARY_I32};
  gather.counts = {counts.data(), 2};
  expect_refused(
      caller, operation({0, 1}, caller.shape, gather, {0, 1}),
      {{"all_gather_v: count 4 is not the sum of the counts, 3", [](Command* c) { c->count = 4; }},
       {"all_gather_v: counts are NULL", [](Command* c) { c->numbers.offset = 0; }},
       {"all_gather_v: its list of counts is not aligned to 8 bytes", [](Command* c) { c->numbers.offset += 4; }},
       {"all_gather_v: its list of counts has 24 bytes: takes 16, 2 numbers in a group of 2",
        [](Command* c) { c->numbers.bytes = 24; }},
       {"all_gather_v: its list of counts lies outside of region 1", [](Command* c) { c->numbers.region = 1; }}});
}

// A region that is not the caller's address space has an end.
TEST(CommandCheck, TakesWhatLiesInsideOfItsRegionAndNothingBeyond) {
  const Regions regions({{0, 0}, {reinterpret_cast<std::uintptr_t>(g_memory), sizeof g_memory}});
  const MemberShape shape{0, 2};
  Command c = operation({0, 1}, shape, {Collective::kAllReduce, nullptr, nullptr, 4, CANARY_I32}, {0, 1});
  c.input = {.region = 1, .offset = 0, .bytes = 16};
  const auto check = [&] { return check_command(c, {regions, 2, shape, true}); };
  for (const std::uint64_t offset : {std::uint64_t{16}, std::uint64_t{sizeof g_memory - 16}}) {
    c.output = {.region = 1, .offset = offset, .bytes = 16};
    EXPECT_TRUE(check().ok()) << check().text();
    EXPECT_EQ(request_of(c, regions).output, g_memory + offset);
  }
  EXPECT_EQ(request_of(c, regions).input, g_memory);
  for (const std::uint64_t offset : {sizeof g_memory - 15, sizeof g_memory, UINT64_MAX - 15, UINT64_MAX}) {
    c.output.offset = offset;
    EXPECT_NE(check().text().find("lies outside of region 1"), std::string::npos) << offset << ": " << check().text();
  }
  c.output = {.region = 0, .offset = reinterpret_cast<std::uintptr_t>(g_memory), .bytes = 16};
  EXPECT_NE(check().text().find("lies outside of region 0"), std::string::npos) << check().text();
}

TEST(CommandCheck, SaysWhatIsWrongWithAGroup) {
  const Caller caller(8, 2);  // of a world of 8
  std::array<std::int32_t, 9> ranks{0, 2, 5, 8, -1, 2, 6, 7, 3};
  const auto at = [&](std::size_t first) { return memory_at(ranks.data() + first, 8); };
  expect_refused(caller, group(2, {ranks.data(), 3}, {0, 1}),
                 {{"only members call it, and rank 3 is not listed", [](Command* c) { c->rank = 3; }},
                  {"only members call it, and rank 8 is not listed", [](Command* c) { c->rank = 8; }},
                  {"rank 8 does not exist", [&](Command* c) { c->numbers = at(2); }},
                  {"rank -1 does not exist", [&](Command* c) { c->numbers = at(4); }},
                  {"rank 2 is listed twice", [&](Command* c) { c->numbers.bytes = 24, ranks[3] = 1, ranks[4] = 4; }},
                  {"count 0 in a world of 8", [](Command* c) { c->numbers.bytes = 0; }},
                  {"count 9 in a world of 8", [](Command* c) { c->numbers.bytes = 36; }},
                  {"count 3 in a world of 8", [](Command* c) { c->numbers.bytes = 13; }},
                  {"ranks are NULL", [](Command* c) { c->numbers.offset = 0; }},
                  {"its list of ranks is not aligned to 4 bytes", [](Command* c) { c->numbers.offset += 2; }},
                  {"its list of ranks lies outside of region 7", [](Command* c) { c->numbers.region = 7; }}});
}

TEST(CommandCheck, SaysWhatIsWrongWithAPolicysCall) {
  const Caller caller(2, 0);
  const std::uint64_t hosts[2] = {0, 1}, question[kQuestionWords] = {1, 2, 3, 4, 0, 1, 1};
  std::uint64_t bad[kQuestionWords] = {0, 2, 3, 4, 0, 0, 0};
  expect_refused(caller, open_policy({0, 1}, 7, "esync", hosts, {0, 1}),
                 {{"policy: a name of 0 bytes (1 to 255)", [](Command* c) { c->input.bytes = 0; }},
                  {"policy: a name of 256 bytes (1 to 255)", [](Command* c) { c->input.bytes = 256; }},
                  {"policy: hosts take 16 bytes, not 8", [](Command* c) { c->numbers.bytes = 8; }},
                  {"policy: hosts is NULL", [](Command* c) { c->numbers.offset = 0; }},
                  {"policy: host 2 of rank 1 (0 to 1)", [&](Command* c) { c->numbers = memory_at(bad, 16); }},
                  {"policy: step 5 of a policy does not exist", [](Command* c) { c->rank = kPolicySteps; }},
                  {"policy: step -1 of a policy does not exist", [](Command* c) { c->rank = -1; }}});
  std::uint64_t worse[kQuestionWords] = {5, 2, 3, 4, 0, 0, 0}, neither[kQuestionWords] = {1, 2, 3, 4, 0, 0, 2};
  expect_refused(
      caller, ask_policy({0, 1}, 7, question, {0, 1}),
      {{"policy: questions take 56 bytes, not 24", [](Command* c) { c->numbers.bytes = 24; }},
       {"policy: a question that does not exist", [&](Command* c) { c->numbers = memory_at(worse, 56); }},
       {"policy: a question that does not exist", [&](Command* c) { c->numbers = memory_at(neither, 56); }}});
  std::array<std::byte, policy_answer_bytes(2)> answer;
  expect_refused(caller, next_answer({0, 1}, 7, answer, true, {0, 1}),
                 {{"policy: an answer takes 56 bytes, not 31", [](Command* c) { c->output.bytes = 31; }},
                  {"policy: it waits or not, and not 2", [](Command* c) { c->type = 2; }},
                  {"policy: answer is NULL", [](Command* c) { c->output.offset = 0; }}});
}

TEST(CommandCheck, SaysWhatIsWrongWithAnAbortOrADeadline) {
  const Caller caller(2, 0);
  expect_refused(caller, abort({0, 1}, "enough"),
                 {{"abort: its reason lies outside of region 4", [](Command* c) { c->numbers.region = 4; }},
                  {"abort: its reason lies outside of region 0", [](Command* c) { c->numbers.offset = 0; }}});
  EXPECT_TRUE(caller.check(abort({0, 1}, "")).ok());
  EXPECT_EQ(check_command(abort({0, 1}, "x"), {caller.regions, 2, {}, true}).text(),
            "abort: its group has been destroyed");
  EXPECT_EQ(check_command(abort({0, 1}, "x", {3, 1}), {caller.regions, 2, caller.shape, false}).text(),
            "abort: nobody waits for ticket 3");
  expect_refused(caller, deadline({0, 1}, {0, 1}, 0_ns),
                 {{"deadline: -1 ns from now: takes 0 to 4611686018427387903", [](Command* c) { c->time_limit = -1; }},
                  {"deadline: 9223372036854775807 ns from now: takes 0 to 4611686018427387903",
                   [](Command* c) { c->time_limit = INT64_MAX; }}});
  EXPECT_TRUE(check_command(deadline({0, 1}, {0, 1}, 1_s), {caller.regions, 2, {}, false}).ok())
      << "of what has ended no deadline is missed";
}

TEST(Command, IsTwoCacheLinesOfPlainBytesAndComesBackAsItWasAsked) {
  std::array<std::uint64_t, 8> counts{1, 2, 0, 1, 1, 2, 0, 1};
  OpRequest request{Collective::kAllToAllV, g_memory, g_memory + 64, 0, CANARY_F64, CANARY_MAX, 1, 5_ms};
  request.counts = counts;
  const Command command = operation({7, 3}, {0, 2}, request, {9, 4});
  std::array<std::byte, 128> bytes;
  std::memcpy(bytes.data(), &command, sizeof command);
  Command read;
  std::memcpy(&read, bytes.data(), sizeof read);
  EXPECT_EQ(read.member, (MemberId{7, 3}));
  EXPECT_EQ(read.ticket, (TicketId{9, 4}));
  EXPECT_EQ(read.input.bytes, 24u) << "to the end of the last block";
  const OpRequest back = request_of(read, Regions());
  EXPECT_EQ(back.collective, request.collective);
  EXPECT_EQ(back.input, request.input);
  EXPECT_EQ(back.output, request.output);
  EXPECT_EQ(back.type, request.type);
  EXPECT_EQ(back.redop, request.redop);
  EXPECT_EQ(back.root, request.root);
  EXPECT_EQ(back.time_limit, request.time_limit);
  EXPECT_EQ(back.counts.data(), counts.data());
  EXPECT_EQ(back.counts.size(), counts.size());
}

}  // namespace
}  // namespace canarynet::port

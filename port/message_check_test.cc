// Messages and commands of connections that make sense, and receives that are a unit.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "port/command_check.h"

namespace canarynet::port {
namespace {

alignas(64) std::byte g_memory[4096];

struct Flaw {
  const char* expected;
  std::function<void(Command*)> spoil;
};

// An endpoint's, where all that a command names is there.
Surroundings endpoint(const Regions& regions) {
  Surroundings here{regions, 1, {}, true};
  here.endpoint = here.connection = here.connected = here.listener = true;
  here.stats_bytes = 64;
  return here;
}

void expect_refused(const Surroundings& here, const Command& good, const std::vector<Flaw>& flaws) {
  ASSERT_TRUE(check_command(good, here).ok()) << check_command(good, here).text();
  for (const Flaw& flaw : flaws) {
    Command bad = good;
    flaw.spoil(&bad);
    const Status status = check_command(bad, here);
    EXPECT_EQ(status.code(), CANARY_INVALID_ARGUMENT) << flaw.expected;
    EXPECT_EQ(status.text(), flaw.expected);
  }
}

TEST(MessageCheck, SaysWhichFieldOfAMembersMessageIsWrong) {
  const Regions regions;
  const Surroundings here{regions, 8, MemberShape{1, 4}, true};
  expect_refused(here, send({0, 1}, 3, g_memory, 8, CANARY_I32, {0, 1}, {CANARY_PRIORITY_URGENT, 1_s}),
                 {{"send: type 8 is not a canary_type", [](Command* c) { c->type = 8; }},
                  {"send: peer 4 is outside of a group of 4", [](Command* c) { c->rank = 4; }},
                  {"send: peer -1 is outside of a group of 4", [](Command* c) { c->rank = -1; }},
                  {"send: priority 2 is not a canary_priority", [](Command* c) { c->priority = 2; }},
                  {"send: a time limit of -5 ns", [](Command* c) { c->time_limit = -5; }},
                  {"send: a time limit of 9223372036854775807 ns", [](Command* c) { c->time_limit = INT64_MAX; }},
                  {"send: count 274877906944 is too large", [](Command* c) { c->count = std::uint64_t{1} << 38; }},
                  {"send: count 18446744073709551615 is too large", [](Command* c) { c->count = UINT64_MAX; }},
                  {"send: buffer is NULL", [](Command* c) { c->input.offset = 0; }},
                  {"send: buffer has 33 bytes: the message has 32", [](Command* c) { c->input.bytes = 33; }},
                  {"send: buffer has 32 bytes: the operation needs 36", [](Command* c) { c->count = 9; }},
                  {"send: buffer of 32 bytes at 64 lies outside of region 1",
                   [](Command* c) { c->input = {.region = 1, .offset = 64, .bytes = 32}; }},
                  {"only receives of connections are followed by more", [](Command* c) { c->more_follows = 1; }},
                  {"a command with bits of another version", [](Command* c) {
                     c->connection = {0, 1};
                   }}});
  expect_refused(here, receive({0, 1}, 0, g_memory, 8, CANARY_I32, {0, 1}),
                 {{"recv: peer 4 is outside of a group of 4", [](Command* c) { c->rank = 4; }},
                  {"recv: buffer is NULL", [](Command* c) { c->output = {}; }}});
  const Command good = send({0, 1}, 3, g_memory, 8, CANARY_I32, {6, 1});
  EXPECT_EQ(check_command(good, {regions, 8, {}, true}).text(), "send: its group has been destroyed");
  EXPECT_EQ(check_command(good, {regions, 8, MemberShape{1, 4}, false}).text(), "send: nobody waits for ticket 6");
  EXPECT_TRUE(check_command(send({0, 1}, 1, nullptr, 0, CANARY_F64, {6, 1}), here).ok()) << "nothing, to oneself";
}

TEST(MessageCheck, SaysWhichFieldOfAConnectionsMessageIsWrong) {
  const Regions regions;
  const Surroundings here = endpoint(regions);
  for (const bool sends : {true, false}) {
    const Command good = sends ? send(ConnectionId{0, 1}, g_memory, 32, 7, {0, 1})
                               : receive(ConnectionId{0, 1}, g_memory, 32, 7, {0, 1});
    const auto buffer = [sends](Command* c) -> MemoryRef& { return sends ? c->input : c->output; };
    expect_refused(here, good,
                   {{"data is NULL", [&](Command* c) { buffer(c).offset = 0; }},
                    {"1099511627776 bytes: a message has less than 1 TiB",
                     [&](Command* c) { buffer(c).bytes = std::uint64_t{1} << 40; }},
                    {"data of 32 bytes at 64 lies outside of region 2",
                     [&](Command* c) { buffer(c) = {.region = 2, .offset = 64, .bytes = 32}; }},
                    {"priority 9 is not a canary_priority", [](Command* c) { c->priority = 9; }},
                    {"a time limit of -1 ns", [](Command* c) { c->time_limit = -1; }},
                    {"only receives of connections are followed by more", [](Command* c) { c->more_follows = 2; }},
                    {"command 1 is none of an endpoint's", [](Command* c) { c->kind = Command::Kind::kOperation; }},
                    {"command 99 does not exist", [](Command* c) { c->kind = static_cast<Command::Kind>(99); }}});
    Surroundings without = here;
    without.ticket = false;
    EXPECT_EQ(check_command(good, without).text(), "nobody waits for ticket 0");
    without.connected = false;
    EXPECT_EQ(check_command(good, without).text(), "the connection is not made yet");
    without.connection = false;
    EXPECT_EQ(check_command(good, without).text(), "its connection has been closed");
  }
}

TEST(MessageCheck, SaysWhatIsWrongWithTheOtherCommandsOfAnEndpoint) {
  const Regions regions;
  const Surroundings here = endpoint(regions);
  const ConnectionId connection{0, 1};
  expect_refused(here, connect(connection, {g_memory, kHandleBytes}),
                 {{"a handle of 127 bytes: it has 128", [](Command* c) { c->numbers.bytes = 127; }},
                  {"handle is NULL", [](Command* c) { c->numbers.offset = 0; }},
                  {"its handle lies outside of region 9", [](Command* c) { c->numbers.region = 9; }},
                  {"only operations and messages have a priority", [](Command* c) { c->priority = 1; }}});
  expect_refused(here, abort_connection(connection, "enough"),
                 {{"abort: its reason lies outside of region 4", [](Command* c) { c->numbers.region = 4; }}});
  expect_refused(here, stats(g_memory, 64, {0, 1}),
                 {{"stats: output has 63 bytes: the operation needs 64", [](Command* c) { c->output.bytes = 63; }},
                  {"stats: output is NULL", [](Command* c) { c->output.offset = 0; }}});
  Surroundings nobody = here;
  nobody.connection = nobody.listener = false;
  EXPECT_EQ(check_command(close(connection), nobody).text(), "close: the connection has been closed");
  EXPECT_EQ(check_command(abort_connection(connection, ""), nobody).text(), "abort: its connection has been closed");
  EXPECT_EQ(check_command(connect(connection, {g_memory, kHandleBytes}), nobody).text(),
            "its connection has been closed");
  EXPECT_EQ(check_command(listen(ListenerId{0, 1}), nobody).text(), "the listener has been closed");
  EXPECT_EQ(check_command(close(ListenerId{0, 1}), nobody).text(), "the listener has been closed");
}

class Unit : public testing::Test {
 protected:
  void SetUp() override {
    for (std::uint32_t i = 0; i < kUnitMax; ++i) {
      unit_.push_back(receive(ConnectionId{3, 5}, g_memory + 64 * i, 64, i, {i, 1}));
      unit_.back().more_follows = 1;
    }
    unit_.back().more_follows = 0;
  }
  std::string said() const { return check_unit(unit_, Regions()).text(); }
  std::vector<Command> unit_;
};

TEST_F(Unit, IsOneCommandOrReceivesOfOneConnectionWithMoreToFollowButAfterTheLast) {
  EXPECT_TRUE(check_unit(unit_, Regions()).ok()) << said();
  EXPECT_TRUE(check_unit(std::span(unit_).last(1), Regions()).ok());
  const auto half = std::span<const Command>(unit_).first(3);
  EXPECT_EQ(check_unit(half, Regions()).text(), "entry 2 of 3 says that more follows");
  unit_[1].more_follows = 0;
  EXPECT_EQ(said(), "entry 1 of 8 says that it is the last");
  EXPECT_EQ(check_unit({}, Regions()).text(), "count 0: takes 1 to 8");
  unit_.push_back(unit_.back());
  EXPECT_EQ(said(), "count 9: takes 1 to 8");
}

TEST_F(Unit, NamesOneConnection) {
  unit_[4].connection = {4, 5};
  EXPECT_EQ(said(), "entries 0 and 4 differ in their connection, priority or time limit");
  unit_[4].connection = {3, 6};
  EXPECT_EQ(said(), "entries 0 and 4 differ in their connection, priority or time limit") << "another use of its place";
}

TEST_F(Unit, HasEntriesOfOneKindAndWithOneSetOfTerms) {
  unit_[7] = send(ConnectionId{3, 5}, g_memory, 8, 0, {20, 1});
  EXPECT_EQ(said(), "a unit of commands of different kinds");
  unit_[7] = receive(ConnectionId{3, 5}, g_memory + 1024, 8, 0, {20, 1}, {CANARY_PRIORITY_URGENT, {}});
  EXPECT_EQ(said(), "entries 0 and 7 differ in their connection, priority or time limit");
}

TEST_F(Unit, HasATicketAndAPlaceForEachEntry) {
  unit_[6].ticket = unit_[2].ticket;
  EXPECT_EQ(said(), "entries 2 and 6 have the same ticket");
  unit_[6].ticket = {40, 1};
  unit_[6].output.offset = unit_[0].output.offset + 63;
  EXPECT_EQ(said(), "entries 0 and 6 overlap");
  ++unit_[6].output.offset;
  unit_[6].output.bytes = 0;
  EXPECT_TRUE(check_unit(unit_, Regions()).ok()) << said();
}

}  // namespace
}  // namespace canarynet::port

// Commands that an endpoint refuses: they name something that has ended, memory that does not exist, or only half of
// what belongs together. A command that is refused has done nothing.
#include <array>

#include "sim/endpoint_test_util.h"

namespace canarynet {
namespace {

class EndpointCommands : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(pair_.open(2)); }
  Endpoint& here() { return net_.at(0); }
  Connection& connection(std::size_t i = 0) { return *pair_.connecting[i]; }
  port::Command receive(const Connection& c, std::size_t i, bool more) {
    port::Command command =
        port::receive(c.id, memory_.data() + 64 * i, 64, static_cast<std::uint32_t>(i), here().ticket_id(tickets_[i]));
    command.more_follows = more ? 1 : 0;
    return command;
  }
  void expect_refused(std::span<const port::Command> unit, const std::string& why) {
    const Status taken = here().submit(unit);
    EXPECT_EQ(taken.code(), CANARY_INVALID_ARGUMENT);
    EXPECT_EQ(taken.text(), why);
    EXPECT_FALSE(here().has_commands());
    here().poll(net_.fabric.now());
    EXPECT_EQ(here().messages_in_flight(), 0u);
  }

  Net net_{2, 1};
  Pair pair_{net_};
  std::array<std::byte, 1024> memory_{};
  std::array<OpTicket, 8> tickets_;
};

TEST_F(EndpointCommands, NoConnectionThatWasClosedIsTakenForTheNextOneInItsPlace) {
  const port::Command late = receive(connection(), 0, false);
  const port::ConnectionId closed = connection().id;
  pair_.close(0, connection());
  expect_refused({&late, 1}, "its connection has been closed");
  Connection& next = pair_.connect();
  ASSERT_EQ(next.id.place, closed.place) << "places are used again";
  ASSERT_TRUE(net_.until([&] { return next.state == Connection::State::kUp; }, 2_s));
  expect_refused({&late, 1}, "its connection has been closed");
  const port::Command close = port::close(closed), abort = port::abort_connection(closed, "enough");
  expect_refused({&close, 1}, "close: the connection has been closed");
  expect_refused({&abort, 1}, "abort: its connection has been closed");
  ASSERT_TRUE(net_.until([&] { return pair_.accept() != nullptr; }, 2_s));
  Connection* const other = pair_.accepted.back().get();
  pair_.send(*other, 40);
  pair_.receive(next, 64);
  pair_.expect_all(1_s);
}

TEST_F(EndpointCommands, OnesThatNameTheUseOfATicketBeforeAreRefused) {
  const port::Command late = receive(connection(), 0, false);
  tickets_[0].reset();
  expect_refused({&late, 1}, "nobody waits for ticket " + std::to_string(late.ticket.place));
}

TEST_F(EndpointCommands, AConnectionThatIsNotMadeTakesNoMessages) {
  Connection& opening = pair_.connect();
  const port::Command early = receive(opening, 0, false);
  EXPECT_EQ(here().submit(early).text(), "the connection is not made yet");
  ASSERT_TRUE(net_.until([&] { return opening.state == Connection::State::kUp; }, 2_s));
  EXPECT_TRUE(here().submit(early).ok());
}

TEST_F(EndpointCommands, MemoryOfARegionThatIsNotTheCallersIsRefused) {
  port::Command foreign = receive(connection(), 0, false);
  foreign.output.region = 1;
  const std::string where = std::to_string(foreign.output.offset) + " lies outside of region 1";
  expect_refused({&foreign, 1}, "data of 64 bytes at " + where);
}

TEST_F(EndpointCommands, HalfAUnitAndOneOfTwoConnectionsAreRefusedWhole) {
  const port::Command half[] = {receive(connection(), 0, true), receive(connection(), 1, true)};
  expect_refused(half, "entry 1 of 2 says that more follows");
  const port::Command mixed[] = {receive(connection(), 0, true), receive(connection(1), 1, false)};
  expect_refused(mixed, "entries 0 and 1 differ in their connection, priority or time limit");
  const port::Command whole[] = {receive(connection(), 0, true), receive(connection(), 1, false)};
  EXPECT_TRUE(here().submit(whole).ok());
  here().poll(net_.fabric.now());
  EXPECT_EQ(here().messages_in_flight(), 2u);
}

TEST_F(EndpointCommands, AnEnginesAreRefused) {
  const port::Command operation = port::abort(port::MemberId{0, 1}, "enough");
  expect_refused({&operation, 1}, "command 3 is none of an endpoint's");
}

TEST_F(EndpointCommands, AFullQueueHoldsUpItsConnectionAloneAndNoneOfAUnitIsTaken) {
  std::vector<OpTicket> many(Connection::kMessagesMax);
  for (std::size_t i = 0; i + 1 < many.size(); ++i) {
    const port::Command one = port::receive(connection().id, nullptr, 0, 0, here().ticket_id(many[i]));
    ASSERT_TRUE(here().submit(one).ok());
  }
  const port::Command two[] = {receive(connection(), 0, true), receive(connection(), 1, false)};
  EXPECT_EQ(here().submit(two).code(), CANARY_WOULD_BLOCK);
  EXPECT_TRUE(here().submit(receive(connection(1), 2, false)).ok()) << "another connection's";
  EXPECT_TRUE(here().submit(receive(connection(), 3, false)).ok()) << "there is room for one";
  here().poll(net_.fabric.now());
  EXPECT_EQ(here().messages_in_flight(), many.size() + 1);
  EXPECT_TRUE(here().submit(two).ok());
  pair_.close(0, connection());
  EXPECT_TRUE(tickets_[1].done()) << "what was called before a close ends with it";
  EXPECT_EQ(tickets_[1].code, CANARY_CLOSED);
  EXPECT_EQ(here().messages_in_flight(), 1u);
}

TEST_F(EndpointCommands, AHandleThatIsNoneIsRefusedAtOnce) {
  Connection nobody;
  here().add(nobody);
  std::array<std::byte, kHandleBytes> bytes{};
  EXPECT_EQ(here().submit(port::connect(nobody.id, bytes)).code(), CANARY_INVALID_ARGUMENT);
  EXPECT_FALSE(here().has_commands());
  EXPECT_TRUE(here().submit(port::close(nobody.id)).ok());
  here().poll(net_.fabric.now());
  EXPECT_TRUE(nobody.closed);
}

}  // namespace
}  // namespace canarynet

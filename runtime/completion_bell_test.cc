// A descriptor for completions, at the moments between which a wake-up could be lost.
#include "runtime/completion_bell.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "port/ticket.h"

namespace canarynet {
namespace {

bool readable(const CompletionBell& bell) {
  pollfd p{bell.fd(), POLLIN, 0};
  return poll(&p, 1, 0) == 1;
}

OpTicket& marking(OpTicket& ticket, CompletionBell& bell) {
  ticket.reset();
  ticket.news = &bell.news();
  return ticket;
}

TEST(CompletionBell, RingsOnceForAllThatATurnCompleted) {
  CompletionBell bell;
  ASSERT_TRUE(bell.open({}).ok());
  bell.ring_if_news();
  EXPECT_FALSE(readable(bell)) << "nothing has completed";
  OpTicket tickets[5];
  for (OpTicket& t : tickets) marking(t, bell).finish(Status());
  EXPECT_FALSE(readable(bell)) << "the turn goes on";
  bell.ring_if_news();
  EXPECT_TRUE(readable(bell));
  bell.drain();
  bell.ring_if_news();
  EXPECT_FALSE(readable(bell));
}

TEST(CompletionBell, RingsForWhatCompletesBeforeADrainAndIsAnnouncedAfterIt) {
  CompletionBell bell;
  ASSERT_TRUE(bell.open({}).ok());
  OpTicket first, second;
  marking(first, bell).finish(Status());
  bell.ring_if_news();
  marking(second, bell).finish(Status(CANARY_DEADLINE, "too late"));  // the engine's turn goes on
  bell.drain();
  bell.ring_if_news();
  EXPECT_TRUE(readable(bell));
}

TEST(CompletionBell, StaysReadableUntilItIsDrained) {
  CompletionBell bell;
  ASSERT_TRUE(bell.open({}).ok());
  OpTicket ticket;
  for (int turn = 0; turn < 3; ++turn) {
    marking(ticket, bell).finish(Status());
    bell.ring_if_news();
  }
  EXPECT_TRUE(readable(bell));
  EXPECT_TRUE(readable(bell));
  bell.drain();
  EXPECT_FALSE(readable(bell));
}

TEST(CompletionBell, IsHeardTogetherWithWhatIsPutBesideIt) {
  Descriptor other(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const int fds[] = {other.fd()};
  CompletionBell bell;
  ASSERT_TRUE(bell.open(fds).ok());
  EXPECT_FALSE(readable(bell));
  std::uint64_t count = 1;
  ASSERT_EQ(write(other.fd(), &count, sizeof count), 8);
  EXPECT_TRUE(readable(bell));
  bell.drain();
  EXPECT_TRUE(readable(bell)) << "drain() is for completions";
  ASSERT_EQ(read(other.fd(), &count, sizeof count), 8);
  EXPECT_FALSE(readable(bell));
  bell.ring();
  EXPECT_TRUE(readable(bell));
}

TEST(CompletionBell, TellsWhyItCanNotBeMade) {
  const int fds[] = {-1};
  CompletionBell bell;
  const Status status = bell.open(fds);
  EXPECT_EQ(status.code(), CANARY_SYSTEM);
  EXPECT_NE(status.text().find("epoll_ctl"), std::string::npos) << status.text();
  EXPECT_EQ(bell.fd(), -1);
}

}  // namespace
}  // namespace canarynet

// Event loops that hear of completions by a descriptor (canary_context_fd): through the public header alone, over real
// sockets and shared memory, with the library's thread and without. Also run under ThreadSanitizer.
#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>

#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;
using test::Strings;

constexpr int kPatienceMs = 20'000;

int descriptor_of(canary_context* context) {
  int fd = -1;
  EXPECT_EQ(canary_context_fd(context, &fd), CANARY_OK) << last_error().message;
  EXPECT_GE(fd, 0);
  return fd;
}

bool readable(int fd, int limit_ms) {
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, limit_ms) == 1 && (p.revents & POLLIN) != 0;
}

// As an event loop does: sleeps on the descriptor, drains, looks; until there is a result.
canary_status result_by_loop(canary_context* context, int fd, canary_op* op) {
  for (;;) {
    if (!readable(fd, kPatienceMs)) {
      ADD_FAILURE() << "the descriptor was not readable within " << kPatienceMs << " ms";
      return CANARY_WOULD_BLOCK;
    }
    EXPECT_EQ(canary_context_drain(context), CANARY_OK) << last_error().message;
    if (const canary_status status = canary_op_test(op); status != CANARY_WOULD_BLOCK) return status;
  }
}

// Tells all that is left, so that what makes it readable later is news: 100 ms hold all that small jobs still have
// to say.
void settle(canary_context* context, int fd) {
  for (const double until = test::now() + 0.1; test::now() < until;) {
    if (!readable(fd, 10)) continue;
    ASSERT_EQ(canary_context_drain(context), CANARY_OK);
  }
}

canary_op* start_all_reduce(canary_group* group, float* value) {
  canary_op* op = nullptr;
  EXPECT_EQ(canary_all_reduce(group, value, value, 1, CANARY_F32, CANARY_SUM, &op), CANARY_OK) << last_error().message;
  return op;
}

class CompletionFd : public testing::TestWithParam<const char*> {
 protected:
  // Without a thread, the descriptor also wakes the loop for what the engine has to do.
  bool has_thread() const { return std::string(GetParam()).find("progress_thread=1") == 0; }
};

TEST_P(CompletionFd, IsReadableOnceAnOperationHasCompletedAndNotBefore) {
  const Job job(2, {GetParam()});
  ASSERT_TRUE(job.joined());
  const int fd = descriptor_of(job.context(0));
  EXPECT_EQ(descriptor_of(job.context(0)), fd);
  EXPECT_NE(descriptor_of(job.context(1)), fd);
  float mine = 1, others = 2;
  canary_op* op = start_all_reduce(job.world(0), &mine);
  if (has_thread()) {
    EXPECT_FALSE(readable(fd, 100));
  }
  std::thread other([&] {
    EXPECT_EQ(canary_all_reduce(job.world(1), &others, &others, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK);
  });
  EXPECT_EQ(result_by_loop(job.context(0), fd, op), CANARY_OK) << last_error().message;
  other.join();
  EXPECT_EQ(mine, 3);
  settle(job.context(0), fd);
}

TEST_P(CompletionFd, TellsOfSendsAndReceives) {
  const Job job(2, {GetParam()});
  ASSERT_TRUE(job.joined());
  const int fds[] = {descriptor_of(job.context(0)), descriptor_of(job.context(1))};
  job.each([&](int r) {
    std::vector<float> v(300'000, static_cast<float>(r + 1));
    for (int round = 0; round < 10; ++round) {
      canary_op* op = nullptr;
      const bool sends = (round + r) % 2 == 0;
      ASSERT_EQ((sends ? canary_send(job.world(r), v.data(), v.size(), CANARY_F32, 1 - r, &op)
                       : canary_recv(job.world(r), v.data(), v.size(), CANARY_F32, 1 - r, &op)),
                CANARY_OK);
      ASSERT_EQ(result_by_loop(job.context(r), fds[r], op), CANARY_OK) << last_error().message;
      ASSERT_EQ(v.back(), 1);  // rank 0 sends first
    }
  });
}

// Where the library's thread drives, a quiet job wakes nobody's loop; without it heartbeats do, some times in a second.
TEST_P(CompletionFd, LetsTheLoopSleepWhileNothingHappens) {
  const Job job(2, {GetParam()});
  ASSERT_TRUE(job.joined());
  const int fds[] = {descriptor_of(job.context(0)), descriptor_of(job.context(1))};
  job.each([&](int r) {
    int wakes = 0;
    for (const double until = test::now() + 1; test::now() < until;) {
      if (!readable(fds[r], 100)) continue;
      ++wakes;
      ASSERT_EQ(canary_context_drain(job.context(r)), CANARY_OK);
    }
    EXPECT_LE(wakes, has_thread() ? 0 : 200);
  });
}

// Results that came before anybody asked for the descriptor are told, too; those that were told are not.
TEST_P(CompletionFd, ShowsResultsThatWaitAlready) {
  const Job job(2, {GetParam()});
  ASSERT_TRUE(job.joined());
  float mine[2] = {1, 1};
  canary_op* op = start_all_reduce(job.world(0), &mine[0]);
  canary_op* last = start_all_reduce(job.world(0), &mine[1]);
  std::thread other([&] {
    float others[2] = {2, 2};
    for (float& v : others) {
      EXPECT_EQ(canary_all_reduce(job.world(1), &v, &v, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK);
    }
  });
  ASSERT_EQ(canary_op_wait(last), CANARY_OK);
  other.join();
  const int fd = descriptor_of(job.context(0));
  EXPECT_TRUE(readable(fd, 0));
  EXPECT_EQ(result_by_loop(job.context(0), fd, op), CANARY_OK);
  EXPECT_FALSE(has_thread() && readable(descriptor_of(job.context(1)), 0)) << "rank 1 has nothing to tell";
}

TEST_P(CompletionFd, TellsOfFailures) {
  const Job job(2, {GetParam(), "entry_limit=30s"});
  ASSERT_TRUE(job.joined());
  const int fd = descriptor_of(job.context(0));
  float value = 1;
  canary_op* op = start_all_reduce(job.world(0), &value);
  ASSERT_EQ(canary_op_set_deadline(op, 150'000'000), CANARY_OK);  // nobody else calls
  EXPECT_EQ(result_by_loop(job.context(0), fd, op), CANARY_DEADLINE) << last_error().message;
}

TEST_P(CompletionFd, TellsOfAnAbortByAnotherRank) {
  const Job job(2, {GetParam()});
  ASSERT_TRUE(job.joined());
  const int fd = descriptor_of(job.context(0));
  float value = 1;
  canary_op* op = start_all_reduce(job.world(0), &value);
  settle(job.context(0), fd);
  std::thread other([&] { EXPECT_EQ(canary_group_abort(job.world(1), "enough"), CANARY_OK); });
  EXPECT_EQ(result_by_loop(job.context(0), fd, op), CANARY_ABORTED) << last_error().message;
  other.join();
}

TEST_P(CompletionFd, IsEachLocalRanksOwn) {
  constexpr int kRanks = 3;
  canary_context* contexts[kRanks] = {};
  const std::string join = test::join_url(test::free_port());
  test::on_threads(kRanks, [&](int r) {
    ASSERT_EQ(test::init(join, r, kRanks, {GetParam()}, &contexts[r], kRanks), CANARY_OK) << last_error().message;
  });
  int fds[kRanks];
  for (int r = 0; r < kRanks; ++r) fds[r] = descriptor_of(contexts[r]);
  EXPECT_TRUE(fds[0] != fds[1] && fds[1] != fds[2] && fds[0] != fds[2]);
  // One rank after the other calls; the last one completes all, and those that wait in their loops are told.
  float values[kRanks] = {1, 2, 3};
  canary_op* ops[kRanks] = {};
  for (int r = 0; r < kRanks; ++r) {
    if (has_thread()) {
      for (int fd : fds) EXPECT_FALSE(readable(fd, 10));
    }
    ops[r] = start_all_reduce(canary_world(contexts[r]), &values[r]);
  }
  test::on_threads(kRanks, [&](int r) {
    EXPECT_EQ(result_by_loop(contexts[r], fds[r], ops[r]), CANARY_OK) << last_error().message;
    EXPECT_EQ(values[r], 6);
  });
  // A rank's message to itself is nobody else's affair.
  if (has_thread()) {
    for (int r = 0; r < kRanks; ++r) settle(contexts[r], fds[r]);
    float out = 7, in = 0;
    canary_op *send = nullptr, *receive = nullptr;
    ASSERT_EQ(canary_recv(canary_world(contexts[1]), &in, 1, CANARY_F32, 1, &receive), CANARY_OK);
    ASSERT_EQ(canary_send(canary_world(contexts[1]), &out, 1, CANARY_F32, 1, &send), CANARY_OK);
    EXPECT_EQ(result_by_loop(contexts[1], fds[1], send), CANARY_OK);
    EXPECT_EQ(canary_op_wait(receive), CANARY_OK);
    EXPECT_FALSE(readable(fds[0], 20));
    EXPECT_FALSE(readable(fds[2], 20));
  }
  test::on_threads(kRanks, [&](int r) { EXPECT_EQ(canary_finalize(contexts[r]), CANARY_OK); });
}

// Operations on one thread, their results on another that knows only the descriptor. A wake-up that is lost would be
// hidden by the next one, so each burst is submitted when the one before has been told to its last operation, and
// heartbeats, which would make up for it, come later than the loop has patience.
TEST_P(CompletionFd, LosesNoWakeUpBetweenAThreadThatSubmitsAndOneThatSleeps) {
  const int total = test::sanitized() ? 2'000 : 10'000;
  const int patience_ms = 9'000;
  const Job job(2, {GetParam(), "heartbeat_interval=15s"});
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    std::mt19937 random(static_cast<unsigned>(71 + r));
    if (r == 1) {  // calls when it likes, without a descriptor
      for (int i = 0; i < total; ++i) {
        float v = 1;
        if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        ASSERT_EQ(canary_all_reduce(job.world(r), &v, &v, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK)
            << last_error().message;
      }
      return;
    }
    canary_context* const context = job.context(r);
    const int fd = descriptor_of(context);
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<canary_op*> open;
    std::array<float, 8> values{};
    int told = 0;
    std::atomic<bool> lost = false;
    std::thread loop([&] {
      const int epoll = epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{EPOLLIN, {}};
      ASSERT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
      while (told < total) {
        if (epoll_wait(epoll, &event, 1, patience_ms) != 1) {
          const std::lock_guard lock(mutex);
          ADD_FAILURE() << "nothing was heard for " << patience_ms << " ms after " << told << " of " << total
                        << " operations, with " << open.size() << " open";
          lost = true;
          break;
        }
        ASSERT_EQ(canary_context_drain(context), CANARY_OK);
        const std::lock_guard lock(mutex);
        std::erase_if(open, [&](canary_op* op) {
          const canary_status status = canary_op_test(op);
          if (status == CANARY_WOULD_BLOCK) return false;
          EXPECT_EQ(status, CANARY_OK) << last_error().message;
          ++told;
          return true;
        });
        changed.notify_one();
      }
      close(epoll);
      const std::lock_guard lock(mutex);
      changed.notify_one();
    });
    for (int submitted = 0; submitted < total && !lost;) {
      const int burst = std::min(total - submitted, 1 + static_cast<int>(random() % values.size()));
      for (int i = 0; i < burst; ++i) {
        if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
        float& v = values[static_cast<std::size_t>(i)] = 2;
        // The loop looks at the operations that it knows: one that completes before it is listed has to be told later.
        const std::lock_guard lock(mutex);
        open.push_back(start_all_reduce(job.world(r), &v));
      }
      submitted += burst;
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return told == submitted || lost; });
      for (int i = 0; i < burst; ++i) EXPECT_TRUE(lost || values[static_cast<std::size_t>(i)] == 3);
    }
    loop.join();
    if (!lost) return;
    canary_group_abort(job.world(r), "a wake-up was lost");  // rank 1 would wait for the rest
    for (canary_op* op : open) canary_op_wait(op);
  });
}

// A thread that sleeps in poll() is woken, and finds the descriptor readable or, a moment later, closed.
TEST_P(CompletionFd, WakesWhoeverSleepsOnItWhenTheContextEnds) {
  Job job(2, {GetParam()});
  ASSERT_TRUE(job.joined());
  const int fd = descriptor_of(job.context(0));
  settle(job.context(0), fd);
  std::atomic<bool> woken = false;
  std::thread sleeper([&] {
    pollfd p{fd, POLLIN, 0};
    woken = poll(&p, 1, kPatienceMs) == 1;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  job.leave(0);
  sleeper.join();
  EXPECT_TRUE(woken);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "finalizing closes the descriptor";
}

INSTANTIATE_TEST_SUITE_P(Driven, CompletionFd, testing::Values("progress_thread=1", "progress_thread=0"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           name[name.find('=')] = '_';
                           return name;
                         });

TEST(CompletionFdCalls, RefuseWhatIsWrong) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  EXPECT_EQ(canary_context_fd(job.context(0), nullptr), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_context_drain(job.context(0)), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(last_error().message.find("canary_context_fd"), std::string::npos) << last_error().message;
  int fd = -1;
  EXPECT_EQ(canary_context_fd(nullptr, &fd), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_context_drain(nullptr), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(fd, -1);
  canary_context* const ended = job.context(0);
  job.leave(0);
  EXPECT_EQ(canary_context_fd(ended, &fd), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_context_drain(ended), CANARY_INVALID_ARGUMENT);
}

TEST(CompletionFdCalls, WorkInAWorldOfOne) {
  const Job job(1);
  ASSERT_TRUE(job.joined());
  const int fd = descriptor_of(job.context(0));
  float value = 4;
  canary_op* op = start_all_reduce(job.world(0), &value);
  EXPECT_EQ(result_by_loop(job.context(0), fd, op), CANARY_OK);
  EXPECT_EQ(value, 4);
}

TEST(CompletionFdCalls, OneDrainIsEnoughForMany) {
  const Job job(2);
  ASSERT_TRUE(job.joined());
  const int fd = descriptor_of(job.context(0));
  constexpr std::size_t kMany = 40;
  std::array<float, kMany> mine{}, others{};
  std::vector<canary_op*> ops;
  for (float& v : mine) ops.push_back(start_all_reduce(job.world(0), &v));
  std::thread other([&] {
    for (float& v : others) {
      ASSERT_EQ(canary_all_reduce(job.world(1), &v, &v, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK);
    }
  });
  for (canary_op* op : ops) EXPECT_EQ(canary_op_wait(op), CANARY_OK) << last_error().message;
  other.join();
  // Results can be read before the turn of the engine that brought them ends, and that may be one turn for all.
  EXPECT_TRUE(readable(fd, 1000));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_EQ(canary_context_drain(job.context(0)), CANARY_OK);
  EXPECT_FALSE(readable(fd, 50));
}

TEST(CompletionFdCalls, SaysNothingOfCallsThatBlock) {
  const Job job(2);
  ASSERT_TRUE(job.joined());
  const int fds[] = {descriptor_of(job.context(0)), descriptor_of(job.context(1))};
  job.each([&](int r) {
    float v = 1;
    ASSERT_EQ(canary_all_reduce(job.world(r), &v, &v, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK);
  });
  for (int fd : fds) EXPECT_FALSE(readable(fd, 50));
}

// The next context in the same place begins with nothing.
TEST(CompletionFdCalls, NothingIsLeftToTheNextContext) {
  for (int i = 0; i < 3; ++i) {
    const Job job(2);
    ASSERT_TRUE(job.joined());
    const int fd = descriptor_of(job.context(0));
    EXPECT_FALSE(readable(fd, 20));
    float mine = 1, others = 1;
    canary_op* op = start_all_reduce(job.world(0), &mine);
    ASSERT_EQ(canary_all_reduce(job.world(1), &others, &others, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK);
    ASSERT_EQ(canary_op_wait(op), CANARY_OK);
  }
}

TEST(CompletionFdCalls, AForkedChildHasNoneOfIt) {
  const Job job(2);
  ASSERT_TRUE(job.joined());
  const int fd = descriptor_of(job.context(0));
  {
    test::Process child([&]() -> std::string {
      int other = -1;
      if (fcntl(fd, F_GETFD) != -1) return "open in the child";
      if (canary_context_fd(job.context(0), &other) != CANARY_INVALID_ARGUMENT) return "a child may ask";
      return "closed";
    });
    EXPECT_EQ(child.report(), "closed");
  }
  float mine = 1, others = 2;
  canary_op* op = start_all_reduce(job.world(0), &mine);
  ASSERT_EQ(canary_all_reduce(job.world(1), &others, &others, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK);
  EXPECT_EQ(result_by_loop(job.context(0), fd, op), CANARY_OK);
}

}  // namespace
}  // namespace canarynet

// A process that has a context and an endpoint: one thread, one listening socket on each NIC, one knowledge of it, and
// neither's end is the other's. Through the public headers alone, over loopback; the peers are processes of their own.
#include <dirent.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "embed/connections_test_util.h"

namespace canarynet {
namespace {

using test::Ends;
using test::Handle;
using test::Process;
using test::Strings;
using test::TestEndpoint;

const Strings kLoopback = {"rails=lo", "transports=tcp"};

std::set<std::string> library_threads() {
  std::set<std::string> out;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* d = readdir(tasks)) {
    std::ifstream file("/proc/self/task/" + std::string(d->d_name) + "/comm");
    std::string name;
    if (std::getline(file, name) && name.starts_with("canary")) out.insert(name + " " + d->d_name);
  }
  closedir(tasks);
  return out;
}

// TCP sockets of this process that listen.
int listening_sockets() {
  std::set<std::string> listening;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, skip, inode;
    words >> slot >> local >> remote >> state;
    for (int i = 0; i < 5; ++i) words >> skip;
    words >> inode;
    if (state == "0A") listening.insert("socket:[" + inode + "]");
  }
  int found = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    char target[64] = {};
    if (readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target - 1) > 0)
      found += static_cast<int>(listening.count(target));
  }
  return found;
}

// All-reduces of other numbers each time, from the job's operation `first` on.
bool reduces(canary_context* context, int ranks, int rank, int times, int first = 0) {
  std::vector<float> in(50'000), out(in.size());
  for (int i = first; i < first + times; ++i) {
    for (std::size_t k = 0; k < in.size(); ++k)
      in[k] = static_cast<float>((rank + 1) * (i + 1)) + static_cast<float>(k);
    std::fill(out.begin(), out.end(), -1.0f);
    if (canary_all_reduce(canary_world(context), in.data(), out.data(), in.size(), CANARY_F32, CANARY_SUM, nullptr) !=
        CANARY_OK)
      return false;
    for (std::size_t k = 0; k < in.size(); ++k) {
      const float expected =
          static_cast<float>(ranks * (ranks + 1) / 2 * (i + 1)) + static_cast<float>(ranks) * static_cast<float>(k);
      if (out[k] != expected) return false;
    }
  }
  return true;
}

// Messages of other bytes each time, both ways.
bool exchanges(const Ends& ends, int times) {
  for (int i = 0; i < times; ++i) {
    const auto there = test::bytes_of(static_cast<std::uint64_t>(i), 300'000);
    const auto back = test::bytes_of(static_cast<std::uint64_t>(i) + 1'000, 3'000);
    std::vector<std::uint8_t> got(there.size(), 1), answer(back.size(), 1);
    canary_request* const receives[] = {test::receive(ends.b, got.data(), got.size()),
                                        test::receive(ends.a, answer.data(), answer.size())};
    canary_request* const sends[] = {test::send(ends.a, there.data(), there.size()),
                                     test::send(ends.b, back.data(), back.size())};
    for (canary_request* r : {receives[0], receives[1], sends[0], sends[1]}) {
      if (test::wait(r) != CANARY_OK) return false;
    }
    if (got != there || answer != back) return false;
  }
  return true;
}

// Rank 1 of two, in a process of its own, with as many all-reduces; joins after `first`.
Process partner(
    const std::string& join, int times, const Strings& settings = kLoopback,
    const std::function<void()>& first = [] {}) {
  return Process([=]() -> std::string {
    first();
    canary_context* context = nullptr;
    if (test::init(join, 1, 2, settings, &context) != CANARY_OK) return test::last_error().message;
    const bool right = reduces(context, 2, 1, times);
    canary_finalize(context);
    return right ? "right" : "wrong";
  });
}

canary_context* join_as_first(const std::string& join, const Strings& settings = kLoopback) {
  canary_context* context = nullptr;
  EXPECT_EQ(test::init(join, 0, 2, settings, &context), CANARY_OK) << test::last_error().message;
  return context;
}

TEST(OneHost, OfAContextAndAnEndpointHasOneThreadAndListensOnce) {
  const std::string join = test::join_url(test::free_port());
  Process other = partner(join, 1);
  const TestEndpoint endpoint({"transports=tcp"});
  const auto threads = library_threads();
  const int sockets = listening_sockets();
  EXPECT_EQ(threads.size(), 1u);
  EXPECT_EQ(sockets, 1);
  canary_context* context = join_as_first(join);
  EXPECT_EQ(library_threads(), threads);
  EXPECT_EQ(listening_sockets(), sockets + 1) << "where the ranks meet";
  EXPECT_TRUE(reduces(context, 2, 0, 1));
  EXPECT_EQ(canary_finalize(context), CANARY_OK);
  EXPECT_EQ(library_threads(), threads) << "the endpoint's goes on";
  EXPECT_EQ(listening_sockets(), sockets);
  EXPECT_EQ(other.report(), "right");
}

TEST(OneHost, EndsItsThreadAndItsSocketsWithTheLastOfTheTwo) {
  const std::string join = test::join_url(test::free_port());
  Process other = partner(join, 2);
  {
    canary_context* context = join_as_first(join);
    TestEndpoint endpoint({"transports=tcp"});
    EXPECT_EQ(library_threads().size(), 1u);
    EXPECT_TRUE(reduces(context, 2, 0, 1));
    endpoint.destroy();
    EXPECT_EQ(library_threads().size(), 1u);
    EXPECT_TRUE(reduces(context, 2, 0, 1, 1)) << "without the endpoint";
    EXPECT_EQ(canary_finalize(context), CANARY_OK);
  }
  EXPECT_EQ(library_threads().size(), 0u);
  EXPECT_EQ(listening_sockets(), 0);
  EXPECT_EQ(other.report(), "right");
}

TEST(OneHost, ServesBothAtOnce) {
  constexpr int kTimes = 200;
  for (const char* spin : {"spin_budget=0", "spin_budget=1ms"}) {
    for (const char* transports : {"transports=tcp", "transports=tcp,shm"}) {
      const Strings settings = {"rails=lo", spin, transports};
      const std::string join = test::join_url(test::free_port());
      Process other = partner(join, kTimes, settings);
      TestEndpoint near(settings);
      canary_context* context = join_as_first(join, settings);
      TestEndpoint far(settings);  // of a host of its own
      EXPECT_EQ(library_threads().size(), 2u);
      const Ends there = test::join_ends(near, far), back = test::join_ends(far, near);
      bool right[3] = {};
      std::thread one([&] { right[0] = exchanges(there, kTimes / 4); });
      std::thread two([&] { right[1] = exchanges(back, kTimes / 4); });
      right[2] = reduces(context, 2, 0, kTimes);
      one.join();
      two.join();
      EXPECT_TRUE(right[0] && right[1] && right[2]) << right[0] << right[1] << right[2];
      EXPECT_EQ(canary_finalize(context), CANARY_OK);
      EXPECT_EQ(other.report(), "right");
    }
  }
}

// The caller inside of the all-reduce drives the lanes of both, and sleeps: its peer comes late.
TEST(OneHost, DeliversMessagesWhileACallerDrives) {
  const std::string join = test::join_url(test::free_port());
  Process other([&]() -> std::string {
    canary_context* context = nullptr;
    if (test::init(join, 1, 2, kLoopback, &context) != CANARY_OK) return test::last_error().message;
    usleep(1'000'000);
    const bool right = reduces(context, 2, 1, 1);
    canary_finalize(context);
    return right ? "right" : "wrong";
  });
  TestEndpoint near({"transports=tcp", "halt_poll=0"});
  canary_context* context = join_as_first(join);
  TestEndpoint far({"transports=tcp", "halt_poll=0"});
  const Ends ends = test::join_ends(near, far);
  std::atomic<bool> reduced{false};
  std::thread caller([&] {
    EXPECT_TRUE(reduces(context, 2, 0, 1));
    reduced = true;
  });
  usleep(100'000);
  std::vector<double> seconds;
  std::uint8_t sent = 1, got = 0;
  while (!reduced && seconds.size() < 100) {
    canary_request* const receipt = test::receive(ends.b, &got, 1);
    usleep(3'000);  // everybody sleeps
    const double began = test::now();
    canary_request* const request = test::send(ends.a, &sent, 1);
    EXPECT_EQ(test::wait(receipt), CANARY_OK);
    seconds.push_back(test::now() - began);
    EXPECT_EQ(test::wait(request), CANARY_OK);
    EXPECT_EQ(got, sent++);
  }
  caller.join();
  ASSERT_GT(seconds.size(), 20u);
  std::sort(seconds.begin(), seconds.end());
  EXPECT_LT(seconds[seconds.size() / 2], test::sanitized() ? 0.02 : 0.002) << "nobody wakes the sleeper";
  EXPECT_EQ(canary_finalize(context), CANARY_OK);
  EXPECT_EQ(other.report(), "right");
}

TEST(OneHost, KeepsOperationsGoingWhenTheEndpointEnds) {
  const std::string join = test::join_url(test::free_port());
  constexpr int kTimes = 300;
  Process other = partner(join, kTimes);
  canary_context* context = join_as_first(join);
  std::atomic<bool> done{false};
  std::thread ends([&] {
    while (!done) {
      TestEndpoint near({"transports=tcp"});
      EXPECT_EQ(library_threads().size(), 1u);
      TestEndpoint far({"transports=tcp"});
      EXPECT_TRUE(exchanges(test::join_ends(near, far), 2));
    }
  });
  EXPECT_TRUE(reduces(context, 2, 0, kTimes));
  done = true;
  ends.join();
  EXPECT_EQ(canary_finalize(context), CANARY_OK);
  EXPECT_EQ(other.report(), "right");
}

TEST(OneHost, KeepsMessagesGoingWhenJobsComeAndEnd) {
  constexpr int kJobs = 5;
  const std::string join = test::join_url(test::free_port());  // the same one: where a job met, the next one can
  auto* const turn =
      new (mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          std::atomic<int>(0);
  std::vector<Process> others;
  for (int i = 1; i <= kJobs; ++i) {
    others.push_back(partner(join, 3, kLoopback, [turn, i] {
      while (*turn != i) usleep(1'000);
    }));
  }
  TestEndpoint near({"transports=tcp"}), far({"transports=tcp"});
  const Ends ends = test::join_ends(near, far);
  std::atomic<bool> done{false};
  bool right = false;
  std::thread messages([&] {
    do {
      right = exchanges(ends, 5);
    } while (right && !done);
  });
  for (Process& other : others) {
    ++*turn;
    canary_context* context = join_as_first(join);
    if (context == nullptr) break;
    EXPECT_TRUE(reduces(context, 2, 0, 3));
    EXPECT_EQ(canary_finalize(context), CANARY_OK);
    EXPECT_EQ(other.report(), "right");
  }
  done = true;
  messages.join();
  EXPECT_TRUE(right);
}

// A killed rank's operations fail; the endpoint's links, over the same NIC, do not.
TEST(OneHost, TellsOfADeathOnlyWhereItMatters) {
  const std::string join = test::join_url(test::free_port());
  Process other([&]() -> std::string {
    canary_context* context = nullptr;
    if (test::init(join, 1, 2, kLoopback, &context) != CANARY_OK) return test::last_error().message;
    pause();
    return "";
  });
  TestEndpoint near({"transports=tcp"}), far({"transports=tcp"});
  canary_context* context = join_as_first(join);
  const Ends ends = test::join_ends(near, far);
  std::thread caller([&] {
    float x = 1;
    EXPECT_EQ(canary_all_reduce(canary_world(context), &x, &x, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_PEER_DIED);
    EXPECT_EQ(test::last_error().rank, 1);
  });
  usleep(50'000);
  other.kill();
  EXPECT_TRUE(exchanges(ends, 20));
  caller.join();
  EXPECT_TRUE(exchanges(ends, 20));
  EXPECT_EQ(canary_finalize(context), CANARY_OK);
  EXPECT_TRUE(exchanges(ends, 20));
}

TEST(OneHost, IsNotSharedWhereTheLanesAreOthers) {
  const std::string join = test::join_url(test::free_port());
  Process other = partner(join, 1, {"rails=lo", "transports=tcp,shm"});
  const TestEndpoint endpoint({"transports=tcp"});
  canary_context* context = join_as_first(join, {"rails=lo", "transports=tcp,shm"});
  EXPECT_EQ(library_threads().size(), 2u);
  EXPECT_TRUE(reduces(context, 2, 0, 1));
  EXPECT_EQ(canary_finalize(context), CANARY_OK);
  EXPECT_EQ(library_threads().size(), 1u);
  EXPECT_EQ(other.report(), "right");
}

}  // namespace
}  // namespace canarynet

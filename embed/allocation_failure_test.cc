// The n-th allocation of a rank fails, for every n: each call returns, with a status in words or the right bytes, and
// no thread is left waiting.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string_view>

#include "embed/connections_test_util.h"

namespace {

std::atomic<bool> g_armed{false};
std::atomic<long> g_left{0};
std::atomic<bool> g_none{false};         // from the n-th on all fail
std::atomic<const char*> g_of{nullptr};  // the allocations of threads of this name alone

bool counts() {
  if (!g_armed.load(std::memory_order_relaxed)) return false;
  const char* const of = g_of.load(std::memory_order_relaxed);
  char name[16] = "";
  return of == nullptr || (pthread_getname_np(pthread_self(), name, sizeof name) == 0 && std::string_view(name) == of);
}

void* allocate(std::size_t size, std::size_t alignment) {
  if (counts()) {
    const long left = g_left.fetch_sub(1, std::memory_order_relaxed);
    if (left == 1 || (left < 1 && g_none.load(std::memory_order_relaxed))) return nullptr;
  }
  if (alignment <= alignof(std::max_align_t)) return std::malloc(size != 0 ? size : 1);
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  if (void* p = allocate(size, alignment)) return p;
  throw std::bad_alloc();
}

// Inlined without its operator new, a free() looks to the compiler like one of something else's.
[[gnu::noinline]] void give_back(void* p) noexcept { std::free(p); }

}  // namespace

void* operator new(std::size_t size) { return allocate_or_throw(size, 1); }
void* operator new[](std::size_t size) { return allocate_or_throw(size, 1); }
void* operator new(std::size_t size, std::align_val_t a) {
  return allocate_or_throw(size, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t size, std::align_val_t a) {
  return allocate_or_throw(size, static_cast<std::size_t>(a));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void operator delete(void* p) noexcept { give_back(p); }
void operator delete[](void* p) noexcept { give_back(p); }
void operator delete(void* p, std::size_t) noexcept { give_back(p); }
void operator delete[](void* p, std::size_t) noexcept { give_back(p); }
void operator delete(void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { give_back(p); }

namespace canarynet {
namespace {

using test::last_error;
using test::Process;

enum class From { kInit, kReady };

// The limits below add up to some 12 s; what hangs is ended by Process.
constexpr double kEndsWithin = 40;

// A rank works until something fails, and then it leaves. It allocates nothing itself meanwhile: the n-th is the
// library's.
struct Outcome {
  const char* what = "all";
  canary_status status = CANARY_OK;
  bool right = true;
};
Outcome live(const std::string& url, int rank, From armed_from, long nth) {
  const auto arm = [&](From at) {
    if (nth == 0 || at != armed_from) return;
    g_left = nth;
    g_armed = true;
  };
  std::vector<float> data(70'000);
  const test::Strings settings = {"entry_limit=5s", "join_timeout=5s", "silence_limit=1s"};
  Outcome out;
  const auto well = [&](const char* what, canary_status status) {
    if (status == CANARY_OK) return true;
    if (out.status == CANARY_OK) out = {what, status, out.right};
    return false;
  };
  canary_context* context = nullptr;
  arm(From::kInit);
  canary_status status;
  try {
    status = test::init(url, rank, 2, settings, &context);
  } catch (const std::bad_alloc&) {  // the helper's own
    g_armed = false;
    return out;
  }
  if (!well("init", status)) {
    g_armed = false;
    return out;
  }
  arm(From::kReady);
  const auto sum = [&](canary_group* group) {
    std::fill(data.begin(), data.end(), static_cast<float>(rank + 1));
    canary_op* op = nullptr;
    if (!well("submit", canary_all_reduce(group, data.data(), data.data(), data.size(), CANARY_F32, CANARY_SUM, &op)))
      return false;
    if (!well("wait", canary_op_wait(op))) return false;
    out.right &= std::all_of(data.begin(), data.end(), [](float f) { return f == 3.0f; });
    return true;
  };
  const int ranks[] = {1, 0};
  for (int round = 0; round < 2; ++round) {
    canary_group* group = nullptr;
    if (!sum(canary_world(context)) || !well("group", canary_group_create(context, ranks, 2, &group)) || !sum(group) ||
        !well("destroy", canary_group_destroy(group)))
      break;
  }
  well("finalize", canary_finalize(context));
  g_armed = false;
  return out;
}

// What fails, by number: the first one and the distance to the next.
struct Sweep {
  long first;
  std::function<long(long)> next;
};
// Another part of a long sweep in each run: CANARY_TEST_SEED repeats one, CANARY_TEST_WHOLE=1 leaves nothing out.
Sweep every(long step) {
  if (std::getenv("CANARY_TEST_WHOLE") != nullptr) step = 1;
  const char* const given = std::getenv("CANARY_TEST_SEED");
  const long seed = given != nullptr ? std::atol(given)
                                     : static_cast<long>(std::chrono::steady_clock::now().time_since_epoch().count());
  const long first = 1 + (seed % step + step) % step;
  printf("every %ldth allocation from the %ldth on: CANARY_TEST_SEED=%ld\n", step, first, first - 1);
  return {first, [step](long n) { return n + step; }};
}

// Lets one allocation after another fail, each in processes of its own, several at a time: they mostly wait. A process
// ends its report with kFewer if it made no allocation of this number, which ends the sweep. True: it came to that end.
constexpr char kFewer[] = " fewer";
constexpr std::size_t kAtOnce = 8;
bool sweep(const Sweep& of, const std::function<void(std::vector<Process>&, long)>& start) {
  bool fewer = false;
  for (long n = of.first; n < 4000 && !fewer && !testing::Test::HasFailure();) {
    std::vector<std::pair<long, std::vector<Process>>> running(kAtOnce);
    for (auto& [number, processes] : running) {
      number = n;
      n = of.next(n);
      start(processes, number);
    }
    for (auto& [number, processes] : running) {
      for (Process& p : processes) {
        const std::string said = p.report();
        EXPECT_FALSE(said.empty()) << "a process ended without a word at allocation " << number;
        EXPECT_EQ(said.find("wrong bytes"), std::string::npos) << "allocation " << number << ": " << said;
        fewer |= said.ends_with(kFewer);
      }
    }
  }
  return fewer;
}

// Rank 1's n-th allocation fails.
void start_ranks(std::vector<Process>& processes, From from, long nth) {
  const std::string url = test::join_url(test::free_port());
  for (int r = 0; r < 2; ++r) {
    processes.emplace_back([=]() -> std::string {
      const auto began = std::chrono::steady_clock::now();
      const Outcome out = live(url, r, from, r == 1 ? nth : 0);
      const std::string said = std::string(out.what) + " " + std::to_string(out.status) +
                               (out.right ? "" : " wrong bytes") +
                               (out.status != CANARY_OK ? " " + last_error().message : "");
      EXPECT_LT(test::seconds_since(began), kEndsWithin) << "allocation " << nth << ", rank " << r << ": " << said;
      return said + (r == 1 && g_left.load() > 0 ? kFewer : " done");
    });
  }
}

TEST(AllocationFailure, OnTheWayIsAStatusOnEveryRankAndNothingHangs) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer brings its own operator new";
  const long step = std::getenv("CANARY_TEST_QUICK") != nullptr ? 37 : 3;
  EXPECT_TRUE(sweep(every(step), [](auto& processes, long n) { start_ranks(processes, From::kReady, n); }));
}

TEST(AllocationFailure, WhileJoiningIsAStatusOnEveryRankAndNothingHangs) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer brings its own operator new";
  const long step = std::getenv("CANARY_TEST_QUICK") != nullptr ? 211 : 31;
  EXPECT_TRUE(sweep(every(step), [](auto& processes, long n) { start_ranks(processes, From::kInit, n); }));
}

// Its process lives on and says nothing: only the end of its connections tells.
TEST(AllocationFailure, APeerHearsAtOnceOfARankThatRanOutOfMemory) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer brings its own operator new";
  const std::string url = test::join_url(test::free_port());
  int heard[2];
  ASSERT_EQ(pipe(heard), 0);
  std::vector<Process> processes;
  for (int r = 0; r < 2; ++r) {
    processes.emplace_back([&, r]() -> std::string {
      close(heard[r]);  // rank 0 writes
      const test::Strings settings = {"entry_limit=60s", "join_timeout=10s", "silence_limit=30s", "exchange_limit=60s"};
      canary_context* context = nullptr;
      if (test::init(url, r, 2, settings, &context) != CANARY_OK) return "init: " + last_error().message;
      std::vector<float> data(1000);
      const auto sum = [&] {
        return canary_all_reduce(canary_world(context), data.data(), data.data(), data.size(), CANARY_F32, CANARY_SUM,
                                 nullptr);
      };
      if (sum() != CANARY_OK) return "sum: " + last_error().message;
      if (r == 0) {
        const auto began = std::chrono::steady_clock::now();
        const canary_status status = sum();
        const double seconds = test::seconds_since(began);
        close(heard[1]);
        if (status != CANARY_PEER_DIED) return std::string(canary_status_name(status)) + ": " + last_error().message;
        return seconds < 10 ? "fine" : "after " + std::to_string(seconds) + " s";
      }
      g_left = 1;  // the next word of rank 0, which its own thread reads
      g_armed = true;
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (g_left.load() > 0 && std::chrono::steady_clock::now() < until) {
        const timespec moment{0, 1'000'000};
        nanosleep(&moment, nullptr);
      }
      g_armed = false;
      if (g_left.load() > 0) return "nothing was allocated";
      pollfd told{heard[0], POLLIN, 0};
      if (poll(&told, 1, 20'000) != 1) return "the peer heard nothing";
      const canary_status status = sum();
      canary_finalize(context);
      return status == CANARY_LIMIT ? "fine" : std::string(canary_status_name(status)) + ": " + last_error().message;
    });
  }
  for (const int end : heard) close(end);
  for (Process& p : processes) EXPECT_EQ(p.report(), "fine");
}

// Two endpoints of one process, of which one runs out of memory in its thread.
std::string live_with_two_endpoints(long n) {
  g_of = "canary-endpoint";
  test::TestEndpoint one({"silence_limit=1s", "join_timeout=3s", "exchange_limit=3s"});
  test::TestEndpoint two({"silence_limit=1s", "join_timeout=3s", "exchange_limit=3s"});
  test::Handle handle;
  canary_listener* const listener = two.listen(&handle);
  canary_connection* ends[2] = {};
  canary_request* requests[2] = {};
  std::vector<std::uint8_t> data(300'000), got(300'000);
  void* const at = got.data();
  const std::size_t size = got.size();
  const auto began = std::chrono::steady_clock::now();
  const auto result = [&](const auto& call) {
    canary_status status = CANARY_WOULD_BLOCK;
    while ((status = call()) == CANARY_WOULD_BLOCK && test::seconds_since(began) < kEndsWithin) usleep(50);
    EXPECT_NE(status, CANARY_WOULD_BLOCK) << "allocation " << n;
    return status == CANARY_OK;
  };
  g_left = n;
  g_armed = true;
  if (result([&] { return canary_connect(one.raw, handle.data(), &ends[0]); }) &&
      (ends[1] != nullptr || test::poll_until([&] {
         const canary_status s = canary_accept(listener, &ends[1]);
         return s != CANARY_WOULD_BLOCK || test::seconds_since(began) > 4;
       })) &&
      ends[1] != nullptr &&
      result([&] { return canary_isend(ends[0], data.data(), size, 0, nullptr, &requests[0]); }) &&
      result([&] { return canary_irecv(ends[1], 1, &at, &size, nullptr, nullptr, &requests[1]); })) {
    for (canary_request* r : requests) result([&] { return canary_test(r, nullptr); });
  }
  std::size_t count = 0;
  for (canary_endpoint* e : {one.raw, two.raw}) (void)canary_endpoint_stats(e, nullptr, 0, &count);
  for (canary_connection* c : ends) EXPECT_TRUE(c == nullptr || canary_close(c) == CANARY_OK);
  one.destroy();
  two.destroy();
  g_armed = false;
  return g_left > 0 ? kFewer : "done";
}

TEST(AllocationFailure, OfAnEndpointsThreadEndsItsConnectionsAndNothingElse) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer brings its own operator new";
  EXPECT_TRUE(sweep({1, [](long n) { return n + 1 + n / 8; }}, [](auto& processes, long n) {
    processes.emplace_back([n] { return live_with_two_endpoints(n); });
  }));
}

// A caller has no memory left for the message either.
TEST(AllocationFailure, OfEverythingFromSomePointOnIsAStatusToo) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer brings its own operator new";
  std::size_t all = 0;
  const canary_status whole = canary_list_nics(nullptr, nullptr, 0, &all);  // it may refuse this host's addresses
  g_none = true;
  long n = 0;
  for (bool failed = true; failed && !HasFailure(); failed = g_left <= 0) {
    std::size_t count = 0;
    g_left = ++n;
    g_armed = true;
    const canary_status status = canary_list_nics(nullptr, nullptr, 0, &count);
    g_armed = false;
    EXPECT_TRUE(status == CANARY_LIMIT || status == whole) << n << ": " << canary_status_name(status);
  }
  EXPECT_GT(n, 10);
  g_none = false;
}

// Its neighbours in the process, who wait for it to come.
std::string join_from_two_threads(const std::string& url, long n) {
  g_of = "second rank";
  canary_context* contexts[2] = {};
  canary_status statuses[2] = {};
  const auto began = std::chrono::steady_clock::now();
  test::on_threads(2, [&](int r) {
    canary_config config = CANARY_CONFIG_INIT;
    config.join = url.c_str();
    config.rank = r;
    config.world_size = 2;
    config.local_ranks = 2;
    const char* const limit = "join_timeout=15s";
    config.settings = &limit;
    config.settings_count = 1;
    if (r == 1) {
      usleep(100'000);  // behind the first one
      pthread_setname_np(pthread_self(), "second rank");
      g_left = n;
      g_armed = true;
    }
    statuses[r] = canary_init(&config, &contexts[r]);
    if (r == 1) g_armed = false;
  });
  const bool failed = g_left <= 0;
  EXPECT_LT(test::seconds_since(began), kEndsWithin) << "allocation " << n;
  for (const canary_status s : statuses) EXPECT_TRUE(s == CANARY_OK || (failed && s == CANARY_LIMIT)) << n << ": " << s;
  test::on_threads(2, [&](int r) { EXPECT_TRUE(contexts[r] == nullptr || canary_finalize(contexts[r]) == CANARY_OK); });
  return failed ? "done" : kFewer;
}

TEST(AllocationFailure, OfALocalRankThatJoinsIsToldToThoseThatWaitForIt) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer brings its own operator new";
  EXPECT_TRUE(sweep({1, [](long n) { return n + 1 + n / 16; }}, [](auto& processes, long n) {
    const std::string url = test::join_url(test::free_port());
    processes.emplace_back([=] { return join_from_two_threads(url, n); });
  }));
}

TEST(AllocationFailure, StatisticsThatCanNotBeHadAreAStatus) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer brings its own operator new";
  canary_context* context = nullptr;
  ASSERT_EQ(test::init(test::join_url(test::free_port()), 0, 1, {"progress_thread=0"}, &context), CANARY_OK);
  canary_nic_stats nics[16];
  for (const bool valid : {true, false}) {
    for (long n = 1; n < 20; ++n) {
      std::size_t count = 0;
      g_left = n;
      g_armed = true;
      const canary_status status = canary_stats(context, nics, 16, valid ? &count : nullptr);
      const bool failed = g_left.load() <= 0;
      g_armed = false;
      // A wrong argument stays one where only its text was lost.
      const canary_status expected = valid ? CANARY_OK : CANARY_INVALID_ARGUMENT;
      EXPECT_TRUE(status == expected || (failed && status == CANARY_LIMIT)) << n << ": " << status;
      EXPECT_FALSE(valid && failed && status == CANARY_OK) << n;
    }
  }
  EXPECT_EQ(canary_finalize(context), CANARY_OK);
}

}  // namespace
}  // namespace canarynet

// Handles that have ended, through the public headers alone: used after finalize, twice, from other threads at the
// worst moment, in a forked child. Told, and never a crash or a hang.
#include <barrier>
#include <cstring>
#include <optional>

#include "canarynet/canarynet.hpp"
#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using std::chrono::steady_clock;
using test::Job;
using test::Process;

::testing::AssertionResult invalid(canary_status status, const std::string& says) {
  if (status != CANARY_INVALID_ARGUMENT)
    return ::testing::AssertionFailure() << "it gave " << canary_status_name(status);
  const std::string message = test::last_error().message;
  if (message.find(says) == std::string::npos) return ::testing::AssertionFailure() << message;
  return ::testing::AssertionSuccess();
}

#define EXPECT_ENDED(call) EXPECT_TRUE(invalid(call, "ended")) << #call

JoinOptions alone() {
  JoinOptions options;
  options.rank = 0;
  options.world_size = 1;
  return options;
}

canary_context* single() {
  canary_config config = CANARY_CONFIG_INIT;
  config.rank = 0;
  config.world_size = 1;
  canary_context* context = nullptr;
  EXPECT_EQ(canary_init(&config, &context), CANARY_OK);
  return context;
}

// All that can be asked of a job's handles.
void use_all(canary_context* context, canary_group* world, canary_group* group, canary_op* op,
             const std::string& says) {
  float data[4] = {};
  std::size_t count = 0;
  canary_op* out = nullptr;
  canary_group* made = nullptr;
  canary_nic_stats nic;
  void* memory = nullptr;
  const int ranks[] = {0};
  EXPECT_TRUE(invalid(canary_op_test(op), says));
  EXPECT_TRUE(invalid(canary_op_set_deadline(op, 1), says));
  EXPECT_TRUE(invalid(canary_op_wait(op), says));
  for (canary_group* g : {group, world}) {
    EXPECT_TRUE(invalid(canary_all_reduce(g, data, data, 4, CANARY_F32, CANARY_SUM, nullptr), says));
    EXPECT_TRUE(invalid(canary_all_reduce(g, data, data, 4, CANARY_F32, CANARY_SUM, &out), says));
    EXPECT_TRUE(invalid(canary_barrier(g, nullptr), says));
    EXPECT_TRUE(invalid(canary_send(g, data, 4, CANARY_F32, 0, &out), says));
    EXPECT_TRUE(invalid(canary_recv(g, data, 4, CANARY_F32, 0, nullptr), says));
    EXPECT_TRUE(invalid(canary_group_abort(g, "why"), says));
    EXPECT_TRUE(invalid(canary_group_destroy(g), says));
    EXPECT_EQ(canary_group_rank(g), -1);
    EXPECT_EQ(canary_group_size(g), -1);
    EXPECT_STREQ(canary_group_algorithm(g), "");
    char why[64] = {};
    EXPECT_EQ(canary_explain(g, "all_reduce", 4096, why, sizeof why), CANARY_INVALID_ARGUMENT);
  }
  EXPECT_EQ(out, nullptr);
  EXPECT_TRUE(invalid(canary_group_create(context, ranks, 1, &made), says));
  EXPECT_TRUE(invalid(canary_stats(context, &nic, 1, &count), says));
  EXPECT_TRUE(invalid(canary_links(context, nullptr, 0, &count), says));
  EXPECT_TRUE(invalid(canary_mem_alloc(context, 1, &memory), says));
  EXPECT_TRUE(invalid(canary_mem_free(context, data), says));
  EXPECT_TRUE(invalid(canary_finalize(context), says));
  EXPECT_EQ(canary_rank(context), -1);
  EXPECT_EQ(canary_world_size(context), -1);
  EXPECT_EQ(canary_world(context), nullptr);
}

struct Handles {
  canary_context* context = nullptr;
  canary_group* world = nullptr;
  canary_group* group = nullptr;
  canary_op* op = nullptr;
};

// With a group, and an operation that has completed and not been waited for.
Handles make_handles() {
  Handles h;
  h.context = single();
  h.world = canary_world(h.context);
  const int ranks[] = {0};
  EXPECT_EQ(canary_group_create(h.context, ranks, 1, &h.group), CANARY_OK);
  EXPECT_EQ(canary_barrier(h.group, &h.op), CANARY_OK);
  return h;
}

TEST(Handles, AreToldToHaveEndedAfterFinalize) {
  const Handles h = make_handles();
  ASSERT_EQ(canary_finalize(h.context), CANARY_OK);
  use_all(h.context, h.world, h.group, h.op, "ended");
}

// The next job's objects lie where the last one's did; the old handles must not reach them.
TEST(Handles, OfAnOldJobDontReachANewOne) {
  for (int i = 0; i < 100; ++i) {
    const Handles old = make_handles();
    ASSERT_EQ(canary_finalize(old.context), CANARY_OK);
    const Handles now = make_handles();
    EXPECT_NE(old.context, now.context);
    use_all(old.context, old.world, old.group, old.op, "ended");
    EXPECT_EQ(canary_op_wait(now.op), CANARY_OK);
    EXPECT_EQ(canary_finalize(now.context), CANARY_OK);
  }
}

TEST(Handles, OfOperationsAndGroupsEndOnce) {
  canary_context* context = single();
  canary_op *first = nullptr, *second = nullptr;
  ASSERT_EQ(canary_barrier(canary_world(context), &first), CANARY_OK);
  ASSERT_EQ(canary_op_wait(first), CANARY_OK);
  EXPECT_ENDED(canary_op_wait(first));
  ASSERT_EQ(canary_barrier(canary_world(context), &second), CANARY_OK);
  EXPECT_NE(first, second);
  EXPECT_ENDED(canary_op_test(first)) << "it has the place of the second one";
  EXPECT_ENDED(canary_op_set_deadline(first, 1));
  EXPECT_EQ(canary_op_wait(second), CANARY_OK);
  const int ranks[] = {0};
  canary_group* group = nullptr;
  ASSERT_EQ(canary_group_create(context, ranks, 1, &group), CANARY_OK);
  ASSERT_EQ(canary_group_destroy(group), CANARY_OK);
  EXPECT_ENDED(canary_group_destroy(group));
  EXPECT_ENDED(canary_barrier(group, nullptr));
  EXPECT_TRUE(invalid(canary_group_destroy(canary_world(context)), "world"));
  ASSERT_EQ(canary_finalize(context), CANARY_OK);
  EXPECT_ENDED(canary_finalize(context));
}

TEST(Handles, ThatNeverWereAreRefused) {
  long long garbage[64] = {};
  std::memset(garbage, 0x5a, sizeof garbage);
  const Handles h = make_handles();
  const auto as_op = [](const void* p) { return static_cast<canary_op*>(const_cast<void*>(p)); };
  for (const void* wrong :
       {static_cast<const void*>(garbage), static_cast<const void*>(h.world), static_cast<const void*>(h.context),
        reinterpret_cast<const void*>(~std::uintptr_t{0}), reinterpret_cast<const void*>(std::uintptr_t{1})})
    EXPECT_ENDED(canary_op_wait(as_op(wrong)));
  EXPECT_EQ(canary_finalize(h.context), CANARY_OK);
}

// It runs wherever the library is at work, which must not be entered there once more.
TEST(Handles, AreOfNoUseInALogCallback) {
  struct Heard {
    canary_context* context;
    std::atomic<int> lines{0}, refused{0};
  };
  static Heard heard;
  heard.context = single();
  canary_set_log(
      [](void*, int, const char*, size_t) {
        ++heard.lines;
        heard.refused += canary_barrier(canary_world(heard.context), nullptr) == CANARY_INVALID_ARGUMENT &&
                         test::last_error().message.find("log callback") != std::string::npos;
        canary_set_log(nullptr, nullptr, 0);
      },
      nullptr, 4);
  { const Job job(2); }
  canary_set_log(nullptr, nullptr, 0);
  EXPECT_GT(heard.lines, 1);
  EXPECT_EQ(heard.lines, heard.refused);
  EXPECT_EQ(canary_finalize(heard.context), CANARY_OK);
}

// --- C++ objects -----------------------------------------------------------------------------------------------------

TEST(Objects, OutliveTheirContext) {
  std::vector<float> data(1000, 1.0f);
  Context context(alone());
  const int ranks[] = {0};
  Group group = context.create_group(ranks);
  Operation operation = group.all_reduce_async(data);
  context.finalize();  // the natural last line of main()
  try {
    group.all_reduce(data);
    ADD_FAILURE() << "a group of a finalized context";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), CANARY_INVALID_ARGUMENT) << e.what();
  }
  EXPECT_THROW(operation.wait(), Error);
  EXPECT_FALSE(operation.pending());
  EXPECT_EQ(group.size(), -1);
  EXPECT_EQ(group.algorithm(), "");
  EXPECT_EQ(context.rank(), -1);
  EXPECT_THROW(context.world().barrier(), Error);
  EXPECT_THROW((void)context.create_group(ranks), Error);
  EXPECT_NO_THROW(context.finalize());
  // And their destructors run.
}

TEST(Objects, ThatHaveMovedAwayAreRefused) {
  std::vector<float> data(4), other(4), more(8);
  const std::vector<std::size_t> counts{4};
  std::optional<Context> context(alone());
  const int ranks[] = {0};
  Group from = context->create_group(ranks);
  Group to = std::move(from);
  const auto refused = [](auto call) {
    try {
      call();
      ADD_FAILURE() << "it did something";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), CANARY_INVALID_ARGUMENT) << e.what();
      EXPECT_NE(std::string(e.what()).find("group"), std::string::npos) << e.what();
    }
  };
  refused([&] { from.all_reduce(data); });
  refused([&] { from.reduce_scatter(data, data); });
  refused([&] { from.all_gather(data, data); });
  refused([&] { from.all_gather_v(data, data, counts); });
  refused([&] { from.all_to_all(data, other); });
  refused([&] { from.all_to_all_v(data, counts, more, counts); });
  refused([&] { from.gather(data, data, 0); });
  refused([&] { from.scatter(data, data, 0); });
  refused([&] { from.broadcast(data, 0); });
  refused([&] { from.barrier(); });
  refused([&] { from.abort("why"); });
  Operation a = to.barrier_async();
  Operation b = std::move(a);
  EXPECT_NO_THROW(a.wait());  // nothing to do for an empty one
  EXPECT_TRUE(a.test());
  context.reset();  // before the group and the operation
  EXPECT_EQ(to.size(), -1);
}

TEST(Objects, OfConnectionsOutliveTheirEndpoint) {
  const std::vector<std::string> loopback{"socket_ifname=lo"};
  std::optional<Endpoint> server(loopback), client(loopback);
  auto listener = server->listen();
  auto connecting = client->connect(listener.address);
  std::optional<Connection> near, far;
  for (int i = 0; i < 10'000 && (!near || !far); ++i) {
    if (!near) near = connecting.test();
    if (!far) far = listener.accept();
    usleep(1000);
  }
  ASSERT_TRUE(near && far);
  EXPECT_THROW((void)connecting.test(), Error) << "another one";
  auto wrong = client->connect({});
  std::string first, second;
  for (std::string* what : {&first, &second}) {
    try {
      (void)wrong.test();
    } catch (const Error& e) {
      *what = e.what();
    }
  }
  EXPECT_NE(first, "");
  EXPECT_EQ(first, second);
  std::vector<float> in(100);
  auto request = far->receive(in);
  ASSERT_TRUE(request);
  auto another = client->connect(listener.address);
  canary_registration* registration = nullptr;
  ASSERT_EQ(canary_register(client->handle(), in.data(), 400, &registration), CANARY_OK);
  server.reset();
  client.reset();
  EXPECT_THROW((void)request->test(), Error);
  EXPECT_THROW((void)near->send(in), Error);
  EXPECT_THROW((void)far->receive(in), Error);
  EXPECT_THROW(near->abort("why"), Error);
  EXPECT_THROW((void)listener.accept(), Error);
  EXPECT_THROW((void)another.test(), Error);
  EXPECT_ENDED(canary_deregister(registration));
}

// --- connections in C ------------------------------------------------------------------------------------------------

TEST(Handles, OfConnectionsEndOnce) {
  const char* settings[] = {"socket_ifname=lo"};
  canary_config config = CANARY_CONFIG_INIT;
  config.settings = settings;
  config.settings_count = 1;
  canary_endpoint* endpoint = nullptr;
  ASSERT_EQ(canary_endpoint_create(&config, &endpoint), CANARY_OK);
  unsigned char address[CANARY_HANDLE_BYTES];
  canary_listener* listener = nullptr;
  ASSERT_EQ(canary_listen(endpoint, address, &listener), CANARY_OK);
  canary_connection *near = nullptr, *far = nullptr;
  bool made = false;
  for (int i = 0; i < 10'000 && (!made || far == nullptr); ++i) {
    if (!made) made = canary_connect(endpoint, address, &near) == CANARY_OK;
    if (far == nullptr) canary_accept(listener, &far);
    usleep(1000);
  }
  ASSERT_TRUE(made && far != nullptr);
  char out[64] = "x", in[64];
  void* const at = in;
  const std::size_t room = sizeof in;
  canary_request *sent = nullptr, *received = nullptr, *pending = nullptr;
  ASSERT_EQ(canary_isend(near, out, sizeof out, 0, nullptr, &sent), CANARY_OK);
  ASSERT_EQ(canary_irecv(far, 1, &at, &room, nullptr, nullptr, &received), CANARY_OK);
  canary_status status = CANARY_WOULD_BLOCK;
  for (int i = 0; i < 10'000 && (status = canary_test(sent, nullptr)) == CANARY_WOULD_BLOCK; ++i) usleep(1000);
  EXPECT_EQ(status, CANARY_OK);
  EXPECT_ENDED(canary_test(sent, nullptr));
  for (int i = 0; i < 10'000 && (status = canary_test(received, nullptr)) == CANARY_WOULD_BLOCK; ++i) usleep(1000);
  EXPECT_EQ(status, CANARY_OK);
  void* const entries[] = {in, in + 32};
  const std::size_t rooms[] = {33, 32};
  EXPECT_TRUE(invalid(canary_irecv(far, 2, entries, rooms, nullptr, nullptr, &pending), "entries 0 and 1 overlap"));
  ASSERT_EQ(canary_irecv(far, 1, &at, &room, nullptr, nullptr, &pending), CANARY_OK);
  EXPECT_EQ(canary_close(far), CANARY_OK);
  EXPECT_ENDED(canary_test(pending, nullptr));
  EXPECT_ENDED(canary_close(far));
  EXPECT_ENDED(canary_irecv(far, 1, &at, &room, nullptr, nullptr, &pending));
  EXPECT_ENDED(canary_abort_connection(far, "why"));
  EXPECT_EQ(canary_close(near), CANARY_OK);
  EXPECT_ENDED(canary_isend(near, out, sizeof out, 0, nullptr, &sent));
  canary_connection* stale = near;
  EXPECT_ENDED(canary_connect(endpoint, address, &stale));
  EXPECT_EQ(canary_close_listener(listener), CANARY_OK);
  EXPECT_ENDED(canary_close_listener(listener));
  EXPECT_ENDED(canary_accept(listener, &far));
  EXPECT_EQ(canary_endpoint_destroy(endpoint), CANARY_OK);
  EXPECT_ENDED(canary_endpoint_destroy(endpoint));
  EXPECT_ENDED(canary_listen(endpoint, address, &listener));
  std::size_t count = 0;
  EXPECT_ENDED(canary_endpoint_rails(endpoint, nullptr, 0, &count));
  EXPECT_ENDED(canary_endpoint_stats(endpoint, nullptr, 0, &count));
}

// --- other threads ---------------------------------------------------------------------------------------------------

// Rank 1 never calls: only the finalize can end the wait.
TEST(Threads, ThatWaitAreToldOfAFinalize) {
  for (const char* progress : {"progress_thread=1", "progress_thread=0"}) {
    Job job(2, {progress});
    ASSERT_TRUE(job.joined());
    std::vector<float> data(100'000);
    canary_op* op = nullptr;
    ASSERT_EQ(canary_all_reduce(job.world(0), data.data(), data.data(), data.size(), CANARY_F32, CANARY_SUM, &op),
              CANARY_OK);
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      EXPECT_EQ(canary_op_wait(op), CANARY_CLOSED);
      EXPECT_NE(test::last_error().message.find("finalized"), std::string::npos) << test::last_error().message;
    });
    threads.emplace_back([&] { EXPECT_EQ(canary_barrier(job.world(0), nullptr), CANARY_CLOSED); });
    threads.emplace_back([&] {
      canary_status status = CANARY_OK;
      while ((status = canary_op_test(op)) == CANARY_WOULD_BLOCK) usleep(100);
      EXPECT_EQ(status, CANARY_INVALID_ARGUMENT) << "ended by whoever waits, or with its context";
    });
    threads.emplace_back([&] {
      const int both[] = {0, 1};
      canary_group* group = nullptr;
      EXPECT_EQ(canary_group_create(job.context(0), both, 2, &group), CANARY_CLOSED);
    });
    usleep(100'000);
    const auto start = steady_clock::now();
    job.leave(0);
    EXPECT_LT(test::seconds_since(start), 5);
    for (auto& t : threads) t.join();
  }
}

// Threads that call whatever they like while the context ends: each call ends, and none touches what is gone.
TEST(Threads, MayCallWhileTheContextIsFinalized) {
  for (int round = 0; round < 10; ++round) {
    Handles h = make_handles();
    std::barrier start(5);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        float data[16] = {};
        std::size_t count = 0;
        start.arrive_and_wait();
        for (int n = 0; n < 300; ++n) {
          canary_op* op = nullptr;
          void* memory = nullptr;
          canary_group* g = i % 2 == 0 ? h.world : h.group;
          if (canary_all_reduce(g, data, data, 16, CANARY_F32, CANARY_SUM, i < 2 ? &op : nullptr) == CANARY_OK &&
              op != nullptr)
            (void)canary_op_wait(op);
          if (i == 1) canary_stats(h.context, nullptr, 0, &count);
          if (i == 2) canary_mem_alloc(h.context, 4096, &memory);
          if (i == 3) canary_group_rank(h.group);
          if (i == 3 && n == 20) canary_group_destroy(h.group);
        }
      });
    }
    int finalized = 0;
    threads.emplace_back([&] {
      start.arrive_and_wait();
      usleep(static_cast<useconds_t>(50 * round));
      if (canary_finalize(h.context) == CANARY_OK) ++finalized;
      if (canary_finalize(h.context) == CANARY_OK) ++finalized;
    });
    for (auto& t : threads) t.join();
    EXPECT_EQ(finalized, 1);
  }
}

// The place of an operation is taken by the next one, which must not hear of those that still ask for the first.
TEST(Threads, ThatWaitForOneOperationAreToldItsResultOnce) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  constexpr int kRounds = 200;
  std::thread other([&] {
    for (int i = 0; i < 2 * kRounds; ++i) ASSERT_EQ(canary_barrier(job.world(1), nullptr), CANARY_OK);
  });
  for (int i = 0; i < kRounds; ++i) {
    canary_op *op = nullptr, *next = nullptr;
    ASSERT_EQ(canary_barrier(job.world(0), &op), CANARY_OK);
    std::atomic<int> told{0}, ended{0};
    const auto count = [&](canary_status s) { ++(s == CANARY_OK ? told : ended); };
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) threads.emplace_back([&] { count(canary_op_wait(op)); });
    threads.emplace_back([&] {
      canary_status s = CANARY_OK;
      while ((s = canary_op_test(op)) == CANARY_WOULD_BLOCK) canary_op_set_deadline(op, 1'000'000'000'000);
      count(s);
    });
    while (told + ended == 0) std::this_thread::yield();
    ASSERT_EQ(canary_barrier(job.world(0), &next), CANARY_OK);
    for (auto& t : threads) t.join();
    ASSERT_EQ(told, 1);
    ASSERT_EQ(ended, 2);
    ASSERT_EQ(canary_op_wait(next), CANARY_OK) << test::last_error().message;
  }
  other.join();
}

TEST(Threads, OnlyOneOfTwoFinalizes) {
  for (int round = 0; round < 20; ++round) {
    canary_context* context = single();
    std::atomic<int> done = 0, refused = 0;
    test::on_threads(4, [&](int) {
      const canary_status status = canary_finalize(context);
      ++(status == CANARY_OK ? done : refused);
    });
    EXPECT_EQ(done, 1);
    EXPECT_EQ(refused, 3);
  }
}

// --- forked children -------------------------------------------------------------------------------------------------

TEST(ForkedChild, IsToldThatTheHandlesAreItsParents) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow a process that forks beside its threads";
#endif
  Job job(2);
  ASSERT_TRUE(job.joined());
  const int both[] = {0, 1};
  canary_group* groups[2] = {};
  job.each([&](int r) { ASSERT_EQ(canary_group_create(job.context(r), both, 2, &groups[r]), CANARY_OK); });
  float data[4] = {1, 2, 3, 4};
  canary_op* op = nullptr;
  ASSERT_EQ(canary_all_reduce(groups[0], data, data, 4, CANARY_F32, CANARY_SUM, &op), CANARY_OK);
  canary_group* const world = job.world(0);
  Process child([&]() -> std::string {
    use_all(job.context(0), world, groups[0], op, "parent");
    // A job of its own is another matter.
    const Handles own = make_handles();
    EXPECT_EQ(canary_op_wait(own.op), CANARY_OK);
    EXPECT_EQ(canary_finalize(own.context), CANARY_OK);
    return "lives";
  });
  EXPECT_EQ(child.report(), "lives");
  // And the parent goes on.
  float other[4] = {1, 2, 3, 4};
  std::thread second(
      [&] { EXPECT_EQ(canary_all_reduce(groups[1], other, other, 4, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK); });
  EXPECT_EQ(canary_op_wait(op), CANARY_OK);
  second.join();
  EXPECT_EQ(data[3], 8);
}

// exit() in a child of fork() destroys C++ objects that its parent uses on.
TEST(ForkedChild, DestroysInheritedObjectsWithoutAWord) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow a process that forks beside its threads";
#endif
  std::optional<Context> context(alone());
  const std::vector<std::string> loopback{"socket_ifname=lo"};
  std::optional<Endpoint> endpoint(loopback);
  const int ranks[] = {0};
  std::optional<Group> group(context->create_group(ranks));
  std::optional<Operation> operation(group->barrier_async());
  std::optional<Endpoint::Listener> listener(endpoint->listen());
  Process child([&]() -> std::string {
    const auto start = steady_clock::now();
    operation.reset();
    group.reset();
    listener.reset();
    endpoint.reset();
    context.reset();
    EXPECT_LT(test::seconds_since(start), 1);
    return "lives";
  });
  EXPECT_EQ(child.report(), "lives");
  EXPECT_NO_THROW(operation->wait());
  EXPECT_NO_THROW(group->barrier());
  EXPECT_NO_THROW(context->finalize());
}

}  // namespace
}  // namespace canarynet

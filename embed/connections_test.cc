// Connections without a group through the C ABI, over shared memory and (CANARY_TRANSPORTS=tcp) real TCP on loopback.
#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "embed/connections_test_util.h"
#include "tests/allocation_counter.h"

namespace canarynet {
namespace {

using test::Ends;
using test::Handle;
using test::last_error;
using test::TestEndpoint;

constexpr std::size_t kSizes[] = {0, 1, 100, 8192, 600 * 1024, (1 << 20) + 3, 16 << 20};

std::size_t open_files() {
  std::size_t n = 0;
  DIR* d = opendir("/proc/self/fd");
  while (readdir(d) != nullptr) ++n;
  closedir(d);
  return n;
}

bool over_tcp() {
  const char* transports = std::getenv("CANARY_TRANSPORTS");
  return transports != nullptr && std::string(transports) == "tcp";
}

TEST(Connections, CarryEverySizeBothWaysWhoeverCallsFirst) {
  TestEndpoint one, two({"lanes_per_rail=3"});
  const Ends e = test::join_ends(one, two);
  for (const std::size_t size : kSizes) {
    for (const bool receive_first : {true, false}) {
      const auto there = test::bytes_of(size, size), back = test::bytes_of(size + 1, size);
      std::vector<std::uint8_t> got(size + 16, 0xEE), got_back(size);
      canary_request *r = nullptr, *s = nullptr;
      if (receive_first) r = test::receive(e.b, got.data(), got.size());
      s = test::send(e.a, there.data(), size);
      if (!receive_first) r = test::receive(e.b, got.data(), got.size());
      canary_request* s2 = test::send(e.b, back.data(), size);
      canary_request* r2 = test::receive(e.a, got_back.data(), size);
      std::size_t length = 0, sent = 0;
      ASSERT_EQ(test::wait(r, &length), CANARY_OK) << last_error().message;
      ASSERT_EQ(test::wait(s, &sent), CANARY_OK) << last_error().message;
      ASSERT_EQ(test::wait(s2), CANARY_OK) << last_error().message;
      ASSERT_EQ(test::wait(r2), CANARY_OK) << last_error().message;
      EXPECT_EQ(length, size);
      EXPECT_EQ(sent, size);
      ASSERT_TRUE(std::equal(there.begin(), there.end(), got.begin())) << size;
      ASSERT_EQ(got[size], 0xEE);
      ASSERT_TRUE(back == got_back) << size;
    }
  }
}

TEST(Connections, AreTestedOldestFirstEightDeepAsNcclDoes) {
  TestEndpoint one, two;
  constexpr int kConnections = 4, kDepth = 8, kMessages = 40;
  struct Side {
    canary_connection* c;
    std::vector<std::vector<std::uint8_t>> buffers;
    canary_request* requests[kDepth] = {};
    int posted = 0, done = 0;
  };
  const std::size_t sizes[] = {1 << 20, 600 * 1024, 512 * 1024, 128 * 1024, 64 * 1024, 0};
  const auto size_of_message = [&](int c, int k) { return sizes[static_cast<std::size_t>(c + k) % std::size(sizes)]; };
  std::vector<Side> senders(kConnections), receivers(kConnections);
  for (int c = 0; c < kConnections; ++c) {
    const Ends e = test::join_ends(one, two);
    senders[static_cast<std::size_t>(c)].c = e.a;
    receivers[static_cast<std::size_t>(c)].c = e.b;
    senders[static_cast<std::size_t>(c)].buffers.resize(kDepth);
    receivers[static_cast<std::size_t>(c)].buffers.resize(kDepth, std::vector<std::uint8_t>(1 << 20));
  }
  // One loop plays both progress threads.
  const bool ended = test::poll_until([&] {
    bool all = true;
    for (int c = 0; c < kConnections; ++c) {
      Side &s = senders[static_cast<std::size_t>(c)], &r = receivers[static_cast<std::size_t>(c)];
      if (s.posted < kMessages && s.posted - s.done < kDepth) {
        const auto slot = static_cast<std::size_t>(s.posted % kDepth);
        s.buffers[slot] = test::bytes_of(static_cast<std::uint64_t>(c * 1000 + s.posted), size_of_message(c, s.posted));
        auto* poisoned = reinterpret_cast<canary_request*>(1);
        const auto status = canary_isend(s.c, s.buffers[slot].data(), s.buffers[slot].size(), 7, nullptr, &poisoned);
        EXPECT_EQ(status == CANARY_OK, poisoned != nullptr);
        if (status == CANARY_OK) s.requests[slot] = poisoned, ++s.posted;
      }
      if (r.posted < kMessages && r.posted - r.done < kDepth) {
        const auto slot = static_cast<std::size_t>(r.posted % kDepth);
        void* data = r.buffers[slot].data();
        const std::size_t room = r.buffers[slot].size();
        auto* poisoned = reinterpret_cast<canary_request*>(1);
        const auto status = canary_irecv(r.c, 1, &data, &room, nullptr, nullptr, &poisoned);
        EXPECT_EQ(status == CANARY_OK, poisoned != nullptr);
        if (status == CANARY_OK) r.requests[slot] = poisoned, ++r.posted;
      }
      if (s.done < s.posted && canary_test(s.requests[s.done % kDepth], nullptr) == CANARY_OK) ++s.done;
      std::size_t length = 0;
      if (r.done < r.posted && canary_test(r.requests[r.done % kDepth], &length) == CANARY_OK) {
        const auto expected = test::bytes_of(static_cast<std::uint64_t>(c * 1000 + r.done), size_of_message(c, r.done));
        EXPECT_EQ(length, expected.size());
        EXPECT_TRUE(
            std::equal(expected.begin(), expected.end(), r.buffers[static_cast<std::size_t>(r.done % kDepth)].begin()));
        ++r.done;
      }
      all = all && s.done == kMessages && r.done == kMessages;
    }
    return all || testing::Test::HasFailure();
  });
  EXPECT_TRUE(ended);
}

TEST(Connections, GroupedReceivesTellEachLength) {
  TestEndpoint one, two;
  const Ends e = test::join_ends(one, two);
  std::uint8_t a[10], b[20];
  void* const data[] = {a, b};
  const std::size_t room[] = {sizeof a, sizeof b};
  const std::uint32_t tags[] = {5, 6};
  canary_request* r = nullptr;
  ASSERT_EQ(canary_irecv(e.b, 2, data, room, tags, nullptr, &r), CANARY_OK);
  canary_request* s1 = test::send(e.a, "six", 3, 6);
  canary_request* s2 = test::send(e.a, "fives", 5, 5);
  std::size_t lengths[2] = {};
  ASSERT_EQ(test::wait(r, lengths), CANARY_OK) << last_error().message;
  EXPECT_EQ(lengths[0], 5u);
  EXPECT_EQ(lengths[1], 3u);
  EXPECT_EQ(std::memcmp(a, "fives", 5), 0);
  EXPECT_EQ(std::memcmp(b, "six", 3), 0);
  EXPECT_EQ(test::wait(s1), CANARY_OK);
  EXPECT_EQ(test::wait(s2), CANARY_OK);
}

TEST(Connections, OneEndpointMayConnectToItself) {
  TestEndpoint one;
  const Ends e = test::join_ends(one, one);
  const auto out = test::bytes_of(1, 3'000'000);
  std::vector<std::uint8_t> in(out.size());
  canary_request* r = test::receive(e.b, in.data(), in.size());
  canary_request* s = test::send(e.a, out.data(), out.size());
  ASSERT_EQ(test::wait(r), CANARY_OK);
  ASSERT_EQ(test::wait(s), CANARY_OK);
  EXPECT_EQ(in, out);
}

TEST(Connections, ByTheHundredsLeaveNothingBehind) {
  TestEndpoint one, two;
  std::size_t files = 0;
  for (int round = 0; round < 8; ++round) {
    std::vector<Ends> ends;
    for (int i = 0; i < 40; ++i) ends.push_back(test::join_ends(one, two));
    for (const Ends& e : ends) {
      std::uint8_t got[100];
      canary_request* r = test::receive(e.b, got, sizeof got);
      canary_request* s = test::send(e.a, "x", 1);
      ASSERT_EQ(test::wait(s), CANARY_OK);
      ASSERT_EQ(test::wait(r), CANARY_OK);
    }
    for (const Ends& e : ends) {
      ASSERT_EQ(canary_close(e.a), CANARY_OK);
      ASSERT_EQ(canary_close(e.b), CANARY_OK);
    }
    if (round == 0) files = open_files();
  }
  EXPECT_LE(open_files(), files) << "descriptors are left";
}

TEST(Connections, CloseAndDestroyAreQuickWithRequestsInFlight) {
  TestEndpoint one;
  auto two = std::make_unique<TestEndpoint>();
  const Ends e = test::join_ends(one, *two), f = test::join_ends(one, *two);
  std::vector<std::uint8_t> big(64 << 20), to(64 << 20), small(100);
  canary_request* waits = test::receive(e.b, to.data(), to.size());
  test::send(e.a, big.data(), big.size());
  test::receive(e.a, small.data(), small.size());
  auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(canary_close(e.a), CANARY_OK);
  EXPECT_LT(test::seconds_since(began), 1.0);
  EXPECT_EQ(test::wait(waits), CANARY_CLOSED) << last_error().message;
  canary_request* pending = test::receive(f.a, big.data(), big.size());
  test::send(f.b, big.data(), big.size());
  began = std::chrono::steady_clock::now();
  two->destroy();
  EXPECT_LT(test::seconds_since(began), 1.0);
  EXPECT_EQ(test::wait(pending), CANARY_CLOSED) << last_error().message;
}

TEST(Connections, ADeadProcessIsNamedWithinTwoSeconds) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  test::Process victim([&]() -> std::string {
    TestEndpoint e;
    Handle handle;
    canary_listener* l = e.listen(&handle);
    if (write(ends[1], handle.data(), handle.size()) != static_cast<ssize_t>(handle.size())) return "write";
    test::accept(l);
    std::this_thread::sleep_for(std::chrono::seconds(60));
    return "";
  });
  Handle handle;
  ASSERT_EQ(read(ends[0], handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
  TestEndpoint one;
  canary_connection* c = test::connect(one, handle);
  std::vector<std::uint8_t> data(1 << 20);
  canary_request* r = test::receive(c, data.data(), data.size());
  canary_request* s = test::send(c, data.data(), data.size());
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  victim.kill();
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(test::wait(r), CANARY_PEER_DIED) << last_error().message;
  EXPECT_LT(test::seconds_since(began), 2.0);
  const std::string text = last_error().message;
  EXPECT_NE(text.find("(pid " + std::to_string(victim.pid()) + ") died"), std::string::npos) << text;
  EXPECT_NE(text.find("2 messages with 2097152 bytes outstanding"), std::string::npos) << text;
  EXPECT_NE(text.find(over_tcp() ? "links lo>127.0.0.1:" : "links shm>shm:"), std::string::npos) << text;
  EXPECT_EQ(test::wait(s), CANARY_PEER_DIED);
  close(ends[0]);
  close(ends[1]);
}

TEST(Connections, ForeignBytesAndOtherMisuseAreRefused) {
  TestEndpoint one, two;
  Handle handle{};
  canary_connection* c = nullptr;
  EXPECT_EQ(canary_connect(one.raw, handle.data(), &c), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(c, nullptr);
  EXPECT_NE(last_error().message.find("none of Canary's"), std::string::npos) << last_error().message;

  Handle good;
  canary_listener* l = two.listen(&good);
  EXPECT_EQ(canary_accept(l, &c), CANARY_WOULD_BLOCK);
  EXPECT_EQ(c, nullptr);
  c = test::connect(one, good);
  canary_connection* b = test::accept(l);
  canary_connection* of_another = c;
  EXPECT_EQ(canary_connect(two.raw, good.data(), &of_another), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(last_error().message.find("belongs to another endpoint"), std::string::npos) << last_error().message;
  EXPECT_EQ(of_another, c);
  std::vector<std::uint8_t> memory(1000);
  canary_registration *mine = nullptr, *theirs = nullptr;
  ASSERT_EQ(canary_register(one.raw, memory.data(), memory.size(), &mine), CANARY_OK);
  ASSERT_EQ(canary_register(two.raw, memory.data(), memory.size(), &theirs), CANARY_OK);
  canary_request* r = nullptr;
  EXPECT_EQ(canary_isend(c, memory.data() + 1, 1000, 0, mine, &r), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_isend(c, memory.data() - 1, 10, 0, mine, &r), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_isend(c, memory.data(), 10, 0, theirs, &r), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_isend(c, nullptr, 10, 0, nullptr, &r), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(r, nullptr);
  void* data = memory.data();
  const std::size_t room = 10;
  EXPECT_EQ(canary_irecv(c, 0, &data, &room, nullptr, nullptr, &r), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_irecv(c, 9, &data, &room, nullptr, nullptr, &r), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_isend(c, memory.data(), 1000, 0, mine, &r), CANARY_OK);
  EXPECT_EQ(canary_irecv(b, 1, &data, &room, nullptr, &theirs, &r), CANARY_OK);
  EXPECT_EQ(test::wait(r), CANARY_MISMATCH);
  EXPECT_NE(last_error().message.find("1000 bytes were sent, the receive has room for 10"), std::string::npos)
      << last_error().message;
  EXPECT_EQ(canary_deregister(mine), CANARY_OK);

  // A listener that has gone, and a process that has.
  EXPECT_EQ(canary_close_listener(l), CANARY_OK);
  canary_connection* late = nullptr;
  canary_status s = CANARY_WOULD_BLOCK;
  EXPECT_TRUE(
      test::poll_until([&] { return (s = canary_connect(one.raw, good.data(), &late)) != CANARY_WOULD_BLOCK; }));
  EXPECT_EQ(s, CANARY_CLOSED) << last_error().message;
  EXPECT_EQ(late, nullptr);
}

// Without NICs there are none to refuse.
TEST(Connections, OfSharedMemoryAloneNeedNoNicAndNoWordOnSecurity) {
  const char* settings[] = {"transports=shm"};
  canary_config config = CANARY_CONFIG_INIT;
  config.settings = settings;
  config.settings_count = 1;
  TestEndpoint one({"transports=shm"}), two({"transports=shm"});
  two.destroy();
  ASSERT_EQ(canary_endpoint_create(&config, &two.raw), CANARY_OK) << last_error().message;
  std::size_t nics = 1;
  EXPECT_EQ(canary_endpoint_rails(two.raw, nullptr, 0, &nics), CANARY_OK);
  EXPECT_EQ(nics, 0u);
  EXPECT_EQ(canary_list_nics(&config, nullptr, 0, &nics), CANARY_OK);
  EXPECT_EQ(nics, 0u);
  const Ends e = test::join_ends(one, two);
  std::uint8_t in[4];
  canary_request* const r = test::receive(e.b, in, sizeof in);
  EXPECT_EQ(test::wait(test::send(e.a, "four", 4)), CANARY_OK);
  EXPECT_EQ(test::wait(r), CANARY_OK);
}

TEST(Connections, BeyondLoopbackNeedASetting) {
  canary_endpoint* e = nullptr;
  const char* settings[] = {"socket_ifname=no-such-nic"};
  canary_config c = CANARY_CONFIG_INIT;
  c.settings = settings;
  c.settings_count = 1;
  EXPECT_EQ(canary_endpoint_create(&c, &e), CANARY_INVALID_SETTING);
  EXPECT_NE(last_error().message.find("no-such-nic"), std::string::npos) << last_error().message;
}

TEST(Connections, TheirNicsAndSettingsAreKnownBeforeThereIsAnEndpoint) {
  const char* settings[] = {"rails=127.0.0.1,127.0.0.2", "piece_bytes=64KiB"};
  canary_config c = CANARY_CONFIG_INIT;
  c.settings = settings;
  c.settings_count = 2;
  canary_rail nics[1];
  std::size_t count = 0;
  ASSERT_EQ(canary_list_nics(&c, nics, 1, &count), CANARY_OK) << last_error().message;
  EXPECT_EQ(count, 2u) << "all are counted, as many as there is room for are told";
  EXPECT_STREQ(nics[0].address, "127.0.0.1");
  settings[0] = "rails=10.254.254.254";
  EXPECT_EQ(canary_list_nics(&c, nics, 1, &count), CANARY_INVALID_SETTING);
  std::int64_t value = 0;
  ASSERT_EQ(canary_get_setting(&c, "CANARY_PIECE_BYTES", &value), CANARY_OK) << last_error().message;
  EXPECT_EQ(value, 65536);
  ASSERT_EQ(canary_get_setting(&c, "heartbeat_interval", &value), CANARY_OK) << last_error().message;
  EXPECT_EQ(value, 200'000'000);
  ASSERT_EQ(canary_get_setting(&c, "lanes_per_rail", &value), CANARY_OK) << last_error().message;
  EXPECT_EQ(value, 1);
  ASSERT_EQ(canary_get_setting(&c, "progress_thread", &value), CANARY_OK) << last_error().message;
  EXPECT_EQ(value, 1);
  c.local_ranks = 3;
  ASSERT_EQ(canary_get_setting(&c, "local_ranks", &value), CANARY_OK) << last_error().message;
  EXPECT_EQ(value, 3);
  EXPECT_EQ(canary_get_setting(&c, "algo", &value), CANARY_INVALID_ARGUMENT) << "a text";
  EXPECT_EQ(canary_get_setting(&c, "no_such_one", &value), CANARY_INVALID_SETTING);
}

TEST(Connections, AHandleMayBeShortAndCarrySomebodyElsesWords) {
  TestEndpoint one, two;
  Handle handle;
  handle.fill(std::byte{0xEE});
  canary_listener* l = nullptr;
  EXPECT_EQ(canary_listen_short(two.raw, handle.data(), CANARY_HANDLE_BYTES_MIN - 1, &l), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_listen_short(two.raw, handle.data(), CANARY_HANDLE_BYTES + 1, &l), CANARY_INVALID_ARGUMENT);
  ASSERT_EQ(canary_listen_short(two.raw, handle.data(), CANARY_HANDLE_BYTES_MIN, &l), CANARY_OK);
  EXPECT_EQ(handle[CANARY_HANDLE_BYTES_MIN], std::byte{0xEE}) << "what lies behind it is the caller's";
  std::fill(handle.begin() + CANARY_HANDLE_BYTES_MIN, handle.end(), std::byte{0});
  EXPECT_NE(test::connect(one, handle), nullptr);
  EXPECT_NE(test::accept(l), nullptr);
}

TEST(Connections, DoNotTouchTheHeapOnceWarm) {
  if (!CANARYNET_COUNTS_MALLOC) GTEST_SKIP() << "the allocator can't be counted in this build";
  TestEndpoint one, two;
  const Ends e = test::join_ends(one, two);
  std::vector<std::uint8_t> out(1 << 20, 1), in(8 << 20);
  const auto round = [&] {
    for (const std::size_t size : {std::size_t{0}, std::size_t{100}, std::size_t{60'000}, std::size_t{1} << 20}) {
      canary_request *s[8], *r[8];
      for (int k = 0; k < 8; ++k) {
        s[k] = test::send(e.a, out.data(), size);
        r[k] = test::receive(e.b, in.data() + (k << 20), 1 << 20);
      }
      for (int k = 0; k < 8; ++k) {
        if (test::wait(s[k]) != CANARY_OK || test::wait(r[k]) != CANARY_OK) return false;
      }
    }
    return true;
  };
  bool ok = true;
  for (int i = 0; i < 30; ++i) ok = ok && round();
  allocation_counter::arm();
  for (int i = 0; i < 30; ++i) ok = ok && round();
  EXPECT_EQ(allocation_counter::disarm(), 0);
  EXPECT_TRUE(ok);
}

TEST(Connections, TakeLessThanAHundredthOfACoreWhenIdle) {
  TestEndpoint one, two;
  std::vector<Ends> ends;
  for (int i = 0; i < 16; ++i) ends.push_back(test::join_ends(one, two));
  std::vector<std::uint8_t> data(1000);
  for (const Ends& e : ends) test::receive(e.b, data.data(), data.size());
  const auto cpu = [] {
    rusage u{};
    getrusage(RUSAGE_SELF, &u);
    return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
  };
  const double before = cpu();
  std::this_thread::sleep_for(std::chrono::seconds(4));
  const double share = (cpu() - before) / 4;
  EXPECT_LT(share, test::sanitized() ? 0.1 : 0.01) << "both ends together";
  std::printf("idle: %.2f %% of a core\n", share * 100);
}

// The nice value of this process's thread of that name; 100: there is none.
int nice_of_thread(const std::string& wanted) {
  int nice = 100;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* d = readdir(tasks)) {
    std::ifstream file("/proc/self/task/" + std::string(d->d_name) + "/comm");
    std::string name;
    if (std::getline(file, name) && name == wanted)
      nice = getpriority(PRIO_PROCESS, static_cast<id_t>(std::stol(d->d_name)));
  }
  closedir(tasks);
  return nice;
}

TEST(Connections, AreServedByAThreadThatGoesBeforeItsCallersWhereThatIsAllowed) {
  const int ours = getpriority(PRIO_PROCESS, 0);
  bool allowed = false;
  std::thread([&] { allowed = setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), ours - 5) == 0; }).join();
  const TestEndpoint e;
  const int wanted = allowed ? std::max(-20, ours - 5) : ours;
  EXPECT_TRUE(test::poll_until([&] { return nice_of_thread("canary-endpoint") == wanted; }))
      << nice_of_thread("canary-endpoint") << " beside " << ours;
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), ours) << "the callers' own is left alone";
}

}  // namespace
}  // namespace canarynet

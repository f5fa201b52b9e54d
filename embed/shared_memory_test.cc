// Ranks of one host over shared memory through the C ABI: the ranks that meet there, memory that is sent by reference,
// and what a killed rank leaves.
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "discovery/host.h"
#include "embed/job_test_util.h"
#include "transport/shm/leftovers_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;
using test::Process;
using test::Strings;

std::map<std::string, canary_nic_stats> stats_of(canary_context* context) {
  canary_nic_stats nics[20];
  std::size_t count = 0;
  EXPECT_EQ(canary_stats(context, nics, 20, &count), CANARY_OK);
  std::map<std::string, canary_nic_stats> out;
  for (std::size_t i = 0; i < count; ++i) out[nics[i].device] = nics[i];
  return out;
}

void all_reduce_once(const Job& job, std::size_t count = 300'000) {
  job.each([&](int r) {
    std::vector<float> v(count, static_cast<float>(r + 1));
    ASSERT_EQ(canary_all_reduce(job.world(r), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, nullptr), CANARY_OK)
        << last_error().message;
    const auto n = static_cast<float>(job.ranks());
    EXPECT_TRUE(std::all_of(v.begin(), v.end(), [&](float x) { return x == n * (n + 1) / 2; }));
  });
}

// --- who meets where -------------------------------------------------------------------------------------------------

TEST(SharedMemory, CarriesEverythingBetweenRanksOfOneHostAndTheNicsNothing) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  all_reduce_once(job);
  for (int r = 0; r < 3; ++r) {
    auto stats = stats_of(job.context(r));
    ASSERT_EQ(stats.count("shm"), 1u);
    EXPECT_EQ(stats["shm"].lanes_up, 2u);
    EXPECT_GT(stats["shm"].transmit_bytes, 1'200'000u);
    EXPECT_EQ(stats["shm"].kernel_transmit_bytes, 0u);
    EXPECT_EQ(stats["lo"].lanes_up, 0u);
    EXPECT_EQ(stats["lo"].transmit_bytes, 0u);
  }
}

TEST(SharedMemory, IsUsedOnlyByThoseWhoAllAllowIt) {
  Job job({{}, {"transports=tcp"}, {}});
  ASSERT_TRUE(job.joined());
  all_reduce_once(job);
  EXPECT_EQ(stats_of(job.context(0))["shm"].lanes_up, 1u);
  EXPECT_EQ(stats_of(job.context(0))["lo"].lanes_up, 1u);
  EXPECT_EQ(stats_of(job.context(1)).count("shm"), 0u);
  EXPECT_EQ(stats_of(job.context(1))["lo"].lanes_up, 2u);
}

TEST(SharedMemory, EndsAtTheHostThatTheUserNames) {
  Job job({{"host_id=a"}, {"host_id=a"}, {"host_id=b"}});
  ASSERT_TRUE(job.joined());
  all_reduce_once(job);
  EXPECT_EQ(stats_of(job.context(0))["shm"].lanes_up, 1u);
  EXPECT_EQ(stats_of(job.context(0))["lo"].lanes_up, 1u);
  EXPECT_EQ(stats_of(job.context(2)).count("shm"), 0u);
}

TEST(SharedMemory, EndsAtTheNetworkNamespace) {
  const auto domain = [] {
    const Address a = shared_memory_name("same", 1);
    return std::string(reinterpret_cast<const char*>(a.bytes.data()), 8);
  };
  const std::string here = domain();
  EXPECT_EQ(here, domain());
  EXPECT_NE(here, std::string(reinterpret_cast<const char*>(shared_memory_name("other", 1).bytes.data()), 8));
  Process elsewhere([&]() -> std::string {
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return "not allowed";
    return domain();
  });
  const std::string there = elsewhere.report();
  if (there == "not allowed") GTEST_SKIP() << "no network namespace can be made here";
  EXPECT_NE(here, there);
}

// --- memory by reference ---------------------------------------------------------------------------------------------

TEST(SharedMemory, BuffersOfTheLibraryGiveTheSameResults) {
  Job job(4);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    constexpr std::size_t kCount = 1'000'003;
    void* memory = nullptr;
    ASSERT_EQ(canary_mem_alloc(job.context(r), 2 * kCount * sizeof(std::int32_t), &memory), CANARY_OK)
        << last_error().message;
    auto* in = static_cast<std::int32_t*>(memory);
    auto* out = in + kCount;
    EXPECT_TRUE(std::all_of(in, in + 2 * kCount, [](std::int32_t x) { return x == 0; }));
    for (int round = 0; round < 5; ++round) {
      for (std::size_t i = 0; i < kCount; ++i)
        in[i] = static_cast<std::int32_t>(i * static_cast<std::size_t>(r + round));
      ASSERT_EQ(canary_all_reduce(job.world(r), in, out, kCount, CANARY_I32, CANARY_SUM, nullptr), CANARY_OK)
          << last_error().message;
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(out[i], static_cast<std::int32_t>(i * static_cast<std::size_t>(6 + 4 * round))) << i;
      }
      // In place, and what was the input is overwritten at once afterwards.
      ASSERT_EQ(canary_all_reduce(job.world(r), out, out, kCount, CANARY_I32, CANARY_MAX, nullptr), CANARY_OK);
      std::fill(in, in + kCount, -1);
      ASSERT_EQ(out[kCount - 1], static_cast<std::int32_t>((kCount - 1) * static_cast<std::size_t>(6 + 4 * round)));
    }
    EXPECT_EQ(canary_mem_free(job.context(r), memory), CANARY_OK) << last_error().message;
  });
}

TEST(SharedMemory, MemoryIsHandedOutAndTakenBackWithClearErrors) {
  for (const char* transports : {"tcp", "tcp,shm"}) {
    canary_context* context = nullptr;
    ASSERT_EQ(test::init("", 0, 1, {std::string("transports=") + transports}, &context), CANARY_OK);
    void* memory = nullptr;
    EXPECT_EQ(canary_mem_alloc(nullptr, 1, &memory), CANARY_INVALID_ARGUMENT);
    EXPECT_EQ(canary_mem_alloc(context, 1, nullptr), CANARY_INVALID_ARGUMENT);
    EXPECT_EQ(canary_mem_alloc(context, ~std::size_t{0}, &memory), CANARY_INVALID_ARGUMENT);
    ASSERT_EQ(canary_mem_alloc(context, 0, &memory), CANARY_OK) << last_error().message;
    EXPECT_NE(memory, nullptr);
    int other = 0;
    EXPECT_EQ(canary_mem_free(context, &other), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find("canary_mem_free"), std::string::npos) << last_error().message;
    EXPECT_EQ(canary_mem_free(context, nullptr), CANARY_OK);
    EXPECT_EQ(canary_mem_free(context, memory), CANARY_OK);
    EXPECT_EQ(canary_mem_free(context, memory), CANARY_INVALID_ARGUMENT) << "twice";
    int made = 0;
    while (made < 1000 && canary_mem_alloc(context, 4096, &memory) == CANARY_OK) ++made;
    EXPECT_EQ(made, 256);
    EXPECT_EQ(last_error().code, CANARY_LIMIT);
    EXPECT_EQ(canary_finalize(context), CANARY_OK) << "what was not freed ends with the context";
  }
}

// --- frames that stop half way ---------------------------------------------------------------------------------------

// The bytes of a broadcast of that round; none is zero, which is what half a frame used to end with.
std::vector<std::uint8_t> broadcast_bytes(std::size_t count, int round) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>((i * 31 + i / 4096 + round) % 251 + 1);
  return bytes;
}

TEST(SharedMemory, AReceiverThatReadsLateGetsTheRightBytes) {
  // Caller-driven: nothing is read between the call and the wait, until the sender takes back what lies half written in
  // the ring.
  Job job(2, {"piece_bytes=1MiB", "progress_thread=0"});
  ASSERT_TRUE(job.joined());
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  // The first rounds tell the sender how fast its peer is: it takes back then what is unanswered for some 60 ms.
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    const auto want = broadcast_bytes(kBytes, round);
    job.each([&](int r) {
      std::vector<std::uint8_t> bytes(kBytes);
      canary_op* op = nullptr;
      ASSERT_EQ(canary_broadcast(job.world(r), want.data(), bytes.data(), kBytes, CANARY_U8, 0, &op), CANARY_OK);
      if (r == 1 && round >= kRounds - 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      ASSERT_EQ(canary_op_wait(op), CANARY_OK) << last_error().message;
      EXPECT_TRUE(bytes == want) << "rank " << r << ", round " << round;
      // A piece that was sent twice is acknowledged only by a rank that still drives.
      ASSERT_EQ(canary_barrier(job.world(r), nullptr), CANARY_OK) << last_error().message;
    });
  }
}

TEST(SharedMemory, ABroadcastThatSucceedsBesideAnAbortHasTheRightBytes) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  constexpr std::size_t kBytes = 1'100'000;
  const auto began = std::chrono::steady_clock::now();
  std::atomic<int> succeeded{0}, aborted{0};
  std::uint64_t random = 1;
  for (int round = 0; round < 300 && test::seconds_since(began) < 5; ++round) {
    const auto want = broadcast_bytes(kBytes, round);
    const int root = round % 3;
    random = random * 6364136223846793005u + 1442695040888963407u;
    const auto patience = std::chrono::microseconds(random >> 54);
    job.each([&](int r) {
      const int everybody[] = {0, 1, 2};
      canary_group* group = nullptr;
      ASSERT_EQ(canary_group_create(job.context(r), everybody, 3, &group), CANARY_OK) << last_error().message;
      std::vector<std::uint8_t> bytes(kBytes);
      canary_op* op = nullptr;
      canary_status status = canary_broadcast(group, want.data(), bytes.data(), kBytes, CANARY_U8, root, &op);
      if (r == root) {
        std::this_thread::sleep_for(patience);
        EXPECT_EQ(canary_group_abort(group, "enough"), CANARY_OK);
      }
      if (status == CANARY_OK) status = canary_op_wait(op);
      if (status == CANARY_OK) {
        EXPECT_TRUE(bytes == want) << "rank " << r << ", round " << round;
        ++succeeded;
      } else {
        EXPECT_EQ(status, CANARY_ABORTED);
        ++aborted;
      }
      EXPECT_EQ(canary_group_destroy(group), CANARY_OK);
    });
  }
  EXPECT_GT(aborted, 0) << "every abort came too late";
  std::printf("%d succeeded, %d aborted\n", succeeded.load(), aborted.load());
}

// --- death -----------------------------------------------------------------------------------------------------------

// Names of sockets and memory of ours that this process can see.
std::string leftovers() {
  std::string out;
  for (const char* path : {"/proc/net/unix", "/proc/self/maps"}) {
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
      if (line.find("canary-") != std::string::npos || line.find("@canarynet-") != std::string::npos)
        out += line + "\n";
    }
  }
  return out + test::descriptors_of_ours();
}

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

TEST(SharedMemory, KilledRanksAreNamedAndLeaveNothing) {
  const std::string before = leftovers();  // of other jobs on this machine, if any
  for (int round = 0; round < 4; ++round) {
    const std::string join = test::join_url(test::free_port());
    std::vector<Process> ranks;
    const int victim = round % 3;
    for (int r = 0; r < 3; ++r) {
      ranks.emplace_back([&, r]() -> std::string {
        canary_context* context = nullptr;
        if (test::init(join, r, 3, {}, &context) != CANARY_OK) return "join: " + last_error().message;
        void* memory = nullptr;
        canary_mem_alloc(context, 8 << 20, &memory);
        auto* v = static_cast<float*>(memory);
        canary_status status = CANARY_OK;
        for (int i = 0; status == CANARY_OK; ++i) {
          // At a moment of its own choice within the exchange: the progress thread is at work when it comes.
          canary_op* op = nullptr;
          status = canary_all_reduce(canary_world(context), v, v, 2 << 20, CANARY_F32, CANARY_MAX, &op);
          if (r == victim && i == 2 + round) {
            usleep(static_cast<useconds_t>(300 * round));
            raise(SIGKILL);
          }
          if (status == CANARY_OK) status = canary_op_wait(op);
        }
        const test::Error e = last_error();
        canary_finalize(context);
        return std::to_string(status) + " " + std::to_string(e.rank) + " " + std::to_string(lines(leftovers())) + " " +
               e.message;
      });
    }
    for (int r = 0; r < 3; ++r) {
      const std::string text = ranks[static_cast<std::size_t>(r)].report();
      if (r == victim) {
        EXPECT_EQ(text, "");
        continue;
      }
      std::istringstream in(text);
      int code = -1, rank = -1;
      in >> code >> rank;
      EXPECT_EQ(code, CANARY_PEER_DIED) << text;
      EXPECT_EQ(rank, victim) << text;
    }
  }
  // All have ended: neither names nor memory are left anywhere on the host.
  for (int i = 0; i < 50 && lines(leftovers()) > lines(before); ++i) usleep(20'000);
  EXPECT_LE(lines(leftovers()), lines(before)) << leftovers();
}

}  // namespace
}  // namespace canarynet

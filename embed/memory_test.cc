// A rank whose address space is used up: its operation ends on every rank with a status in words, and its process goes
// on.
#include <sys/resource.h>

#include <fstream>

#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::last_error;
using test::Process;

// No more than `bytes` beyond what is mapped now.
void leave_room(std::size_t bytes) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = pages * 4096 + bytes;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

TEST(Memory, UsedUpEndsTheOperationOnEveryRankAndNoProcess) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer reserves address space of its own";
  constexpr int kRanks = 3, kPoor = 1;
  constexpr std::size_t kCount = std::size_t{16} << 20;  // 64 MiB
  const std::string url = test::join_url(test::free_port());
  std::vector<Process> processes;
  for (int r = 0; r < kRanks; ++r) {
    processes.emplace_back([&, r]() -> std::string {
      canary_context* context = nullptr;
      EXPECT_EQ(test::init(url, r, kRanks, {"entry_limit=20s"}, &context), CANARY_OK) << last_error().message;
      std::vector<float> data(kCount, 1.0f);
      const canary_status before = canary_barrier(canary_world(context), nullptr);
      // The verdict may overtake the end of the barrier.
      EXPECT_TRUE(before == CANARY_OK || (r != kPoor && before == CANARY_LIMIT)) << last_error().message;
      if (r == kPoor) leave_room(std::size_t{4} << 20);
      const auto start = std::chrono::steady_clock::now();
      const canary_status status =
          canary_all_reduce(canary_world(context), data.data(), data.data(), kCount, CANARY_F32, CANARY_SUM, nullptr);
      EXPECT_EQ(status, CANARY_LIMIT) << last_error().message;
      EXPECT_NE(last_error().message.find("rank 1 has no memory left"), std::string::npos) << last_error().message;
      EXPECT_LT(test::seconds_since(start), 10) << "nobody waits for a limit";
      EXPECT_EQ(canary_barrier(canary_world(context), nullptr), CANARY_LIMIT) << "the group has ended";
      EXPECT_EQ(canary_finalize(context), CANARY_OK);
      return "done";
    });
  }
  for (Process& p : processes) EXPECT_EQ(p.report(), "done");
}

}  // namespace
}  // namespace canarynet

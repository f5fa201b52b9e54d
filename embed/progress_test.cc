// The exchange over real sockets is driven by the progress thread, a caller that waits, or one that only tests now and
// then.
#include <algorithm>

#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;
using test::now;

TEST(Progress, ARankThatRunsOnlyInsideCallsMayComputeBetweenThem) {
  const test::Strings threaded = {"silence_limit=300ms", "heartbeat_interval=50ms"};
  test::Strings driven = threaded;
  driven.push_back("progress_thread=0");
  for (const int slow : {0, 2}) {
    std::vector<test::Strings> settings(3, threaded);
    settings[static_cast<std::size_t>(slow)] = driven;
    Job job(settings);
    ASSERT_TRUE(job.joined());
    job.each([&](int r) {
      for (int round = 0; round < 2; ++round) {
        if (r == slow) std::this_thread::sleep_for(std::chrono::milliseconds(900));
        float value = 1;
        ASSERT_EQ(canary_all_reduce(job.world(r), &value, &value, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK)
            << last_error().message;
        ASSERT_EQ(value, 3);
      }
    });
  }
}

TEST(Progress, ARankThatOnlyTestsIsAsGoodAsOneThatWaits) {
  for (const char* setting : {"progress_thread=1", "progress_thread=0"}) {
    Job job(3, {setting});
    ASSERT_TRUE(job.joined());
    job.each([&](int r) {
      std::vector<float> v(300'000);
      for (int round = 0; round < 20; ++round) {
        std::fill(v.begin(), v.end(), static_cast<float>(r + round));
        canary_op* op = nullptr;
        ASSERT_EQ(canary_all_reduce(job.world(r), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, &op),
                  CANARY_OK);
        canary_status status = CANARY_WOULD_BLOCK;
        if (r == 2) {
          status = canary_op_wait(op);
        } else {
          while ((status = canary_op_test(op)) == CANARY_WOULD_BLOCK) std::this_thread::yield();
        }
        ASSERT_EQ(status, CANARY_OK) << last_error().message;
        ASSERT_EQ(v[299'999], static_cast<float>(3 + 3 * round));
      }
    });
  }
}

TEST(Progress, TheProgressThreadCompletesWhatNobodyLooksAt) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    std::vector<float> v(1 << 20, 1);
    canary_op* op = nullptr;
    ASSERT_EQ(canary_all_reduce(job.world(r), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, &op), CANARY_OK);
    // Reading the buffer before the library gave it back is the caller's fault: look at a counter instead.
    const double began = now();
    while (std::string(canary_group_algorithm(job.world(r))).empty() && now() - began < 20) usleep(1000);
    EXPECT_LT(now() - began, 20);
    EXPECT_EQ(canary_op_test(op), CANARY_OK) << last_error().message;
    EXPECT_EQ(v[12345], 2);
  });
}

}  // namespace
}  // namespace canarynet

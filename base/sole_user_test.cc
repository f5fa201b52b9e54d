#include "base/sole_user.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace canarynet {
namespace {

class SoleUserDeathTest : public ::testing::Test {
 protected:
  SoleUserDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // `entered` runs while another thread is inside.
  template <typename Fn>
  void beside_another(Fn entered) {
    std::atomic<bool> inside{false}, done{false};
    std::thread other([&] {
      const SoleUser::Use use(user_);
      inside = true;
      while (!done) std::this_thread::yield();
    });
    while (!inside) std::this_thread::yield();
    entered();
    done = true;
    other.join();
  }

  SoleUser user_;
};

TEST_F(SoleUserDeathTest, ASecondThreadIsStopped) {
  EXPECT_DEATH(beside_another([&] { const SoleUser::Use use(user_); }), "two threads use an object");
}

TEST_F(SoleUserDeathTest, ACallbackOfAnotherThreadIsStopped) {
  EXPECT_DEATH(beside_another([&] { user_.check(); }), "two threads use an object");
}

TEST(SoleUser, ThreadsMayTakeTurnsAndCallThemselves) {
  SoleUser user;
  for (int turn = 0; turn < 2; ++turn) {
    std::thread([&] {
      const SoleUser::Use outer(user);
      {
        const SoleUser::Use inner(user);
        user.check();
      }
      user.check();
    }).join();
    const SoleUser::Use here(user);
    user.check();
  }
}

}  // namespace
}  // namespace canarynet

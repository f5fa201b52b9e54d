#include "discovery/host.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace canarynet {
namespace {

class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(fork()) {
    if (pid_ == 0) {
      body();
      _exit(0);
    }
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  void stop() const {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }

 private:
  pid_t pid_;
};

TEST(Pulse, OfAProcessThatIsStoppedStandsStill) {
  const Child busy([] {
    for (;;) getppid();
  });
  ProcessPulse before = pulse_of(busy.pid());
  for (int i = 0; i < 1000 && before.ran_ns == 0; ++i, before = pulse_of(busy.pid())) usleep(10'000);
  EXPECT_TRUE(pulse_of(busy.pid()).wants_core);
  busy.stop();
  before = pulse_of(busy.pid());
  usleep(50'000);
  const ProcessPulse after = pulse_of(busy.pid());
  EXPECT_GT(before.ran_ns, 0u);
  EXPECT_EQ(after.ran_ns, before.ran_ns);
  EXPECT_FALSE(after.wants_core);
}

TEST(Pulse, OfAProcessThatWakesNowAndThenGoesOn) {
  const Child ticks([] {
    for (;;) usleep(1000);
  });
  const ProcessPulse before = pulse_of(ticks.pid());
  ProcessPulse after = before;
  for (int i = 0; i < 1000 && after.ran_ns == before.ran_ns; ++i, after = pulse_of(ticks.pid())) usleep(10'000);
  EXPECT_GT(after.ran_ns, before.ran_ns);
}

TEST(Pulse, OfNobodyIsNothing) {
  for (const pid_t pid : {-1, 0, getpid(), 0x7fffffff}) {
    EXPECT_EQ(pulse_of(pid).ran_ns, 0u);
    EXPECT_FALSE(pulse_of(pid).wants_core);
  }
}

}  // namespace
}  // namespace canarynet

// base/sole_user.h -- checks that an object which is not thread-safe is used by one thread at a time.
//
// What: the calls that its owner's thread makes open with a SoleUser::Use, which marks the object as in use until the
// call ends; calls within calls come from the same thread. Calls from within, such as callbacks, open with check(). A
// second thread stops the process with a message instead of spoiling what the first one is working on.
// Cost: a load and two stores, no read-modify-write. Two threads that enter in the very same moment may both get in;
// those that overlap for longer are found. Nothing here allocates.
#pragma once

#include <pthread.h>

#include <atomic>

#include "base/check.h"

namespace canarynet {

class SoleUser {
 public:
  class Use {
   public:
    explicit Use(SoleUser& of) : of_(of), before_(of.user_.load(std::memory_order_relaxed)) {
      CANARY_CHECK(before_ == 0 || before_ == this_thread(), "two threads use an object that is for one at a time");
      of_.user_.store(this_thread(), std::memory_order_relaxed);
    }
    ~Use() { of_.user_.store(before_, std::memory_order_relaxed); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    SoleUser& of_;
    const pthread_t before_;
  };

  // Nobody else may be using the object.
  void check() const {
    const pthread_t user = user_.load(std::memory_order_relaxed);
    CANARY_CHECK(user == 0 || user == this_thread(), "two threads use an object that is for one at a time");
  }

 private:
  // A register holds it; a thread-local variable of a shared library would cost a call.
  static pthread_t this_thread() { return pthread_self(); }

  std::atomic<pthread_t> user_{0};
};

}  // namespace canarynet

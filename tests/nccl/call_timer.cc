#include "tests/nccl/call_timer.h"

#include <fstream>

#include "tests/nccl/endpoint.h"
#include "tests/nccl/log.h"

namespace nccltest {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSlower = 4;
#else
constexpr std::uint64_t kSlower = 1;
#endif
constexpr std::uint64_t kServiceLimitNs = kSlower * 2'000'000'000;
constexpr std::uint64_t kProgressLimitNs = kSlower * 500'000'000;
constexpr std::uint64_t kSampleNs = 100'000'000;

struct Account {
  std::uint64_t sampled_at_ns = 0;
  std::uint64_t waited_ns = 0;  // time spent waiting for a core until then
  int slow = 0;
};
thread_local Account account;

// How long this thread has been ready without a core; 0 if the kernel does not say.
std::uint64_t waited_for_a_core_ns() {
  std::ifstream file("/proc/thread-self/schedstat");
  std::uint64_t ran = 0, waited = 0;
  file >> ran >> waited;
  return waited;
}

}  // namespace

std::uint64_t begin_call() {
  const std::uint64_t now = now_ns();
  // This is not done at each call, of which there are millions: a wait just before a slow call counts as a wait in it.
  if (now - account.sampled_at_ns > kSampleNs) {
    account.sampled_at_ns = now;
    account.waited_ns = waited_for_a_core_ns();
    return now_ns();
  }
  return now;
}

void end_call(CallOf thread, const char* name, std::uint64_t begin_ns) {
  const bool service = thread == CallOf::kService;
  const std::uint64_t limit = service ? kServiceLimitNs : kProgressLimitNs, took = now_ns() - begin_ns;
  if (took <= limit) return;
  const std::uint64_t waited = waited_for_a_core_ns() - account.waited_ns;
  if (took <= limit + waited) return;
  const double seconds = static_cast<double>(took - waited) / 1e9;
  if (service) {
    fail("%s blocked the service thread for %.1f s", name, seconds);
  } else if (++account.slow == 2) {
    fail("%s blocked the progress thread for %.2f s, and it is not the first call to do so", name, seconds);
  }
}

}  // namespace nccltest

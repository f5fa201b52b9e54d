// tests/nccl/call_timer.h -- how long the plugin's calls keep the thread that makes them, less the time in which it was
// ready and had no core (as the kernel accounts it per thread).
//
// Any thread may use it; each has an account of its own. A service thread's call that takes over two seconds is a
// failure. So is the second call of a progress thread that takes over half a second. A single one is not, since a
// process may be stopped, or a machine stand still, in the middle of any call. Limits are longer under sanitizers.
#pragma once

#include <cstdint>

#include "tests/nccl/net.h"

namespace nccltest {

enum class CallOf { kService, kProgress };

std::uint64_t begin_call();
void end_call(CallOf thread, const char* name, std::uint64_t begin_ns);

// Returns the result of `call`, once it is known how long the call took.
template <typename Call>
Result timed(CallOf thread, const char* name, const Call& call) {
  const std::uint64_t begin = begin_call();
  const Result result = call();
  end_call(thread, name, begin);
  return result;
}

}  // namespace nccltest

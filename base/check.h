// base/check.h -- CANARY_CHECK stops the process if an invariant of our own code is broken, rather than continue wrong.
//
// It is not for foreign input, settings or operating failures, which are a Status. It stays on in release builds.
#pragma once

namespace canarynet {

[[noreturn]] void check_failed(const char* expression, const char* file, int line, const char* why);

}  // namespace canarynet

#define CANARY_CHECK(expression, why)                 \
  (__builtin_expect(static_cast<bool>(expression), 1) \
       ? void(0)                                      \
       : ::canarynet::check_failed(#expression, __FILE__, __LINE__, why))

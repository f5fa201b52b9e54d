#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace canarynet {

void check_failed(const char* expression, const char* file, int line, const char* why) {
  // The process is about to end and no log sink can be trusted. This is the only place that writes to stderr itself.
  std::fprintf(stderr, "canary: broken invariant at %s:%d: %s (%s)\n", file, line, why, expression);
  std::abort();
}

}  // namespace canarynet

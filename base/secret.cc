#include "base/secret.h"

#include <sys/random.h>

#include <cerrno>

namespace canarynet {

// std::random_device would, linked into a plugin, ask for a newer C library than anything else here.
Result<std::uint64_t> draw_secret() {
  for (std::uint64_t secret = 0;;) {
    const ssize_t got = ::getrandom(&secret, sizeof secret, 0);
    if (got == static_cast<ssize_t>(sizeof secret) && secret != 0) return secret;
    if (got < 0 && errno != EINTR) return system_error("getrandom", errno);
  }
}

}  // namespace canarynet

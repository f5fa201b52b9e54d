// base/secret.h -- numbers that nobody can guess: job tokens, endpoints' tokens, names.
//
// Each secret is a draw of its own. None may follow from another, nor from anything that others can read: a socket's
// name stands in /proc/net/unix for every user of the machine. Engines draw none themselves; their makers hand them in,
// so that the simulator's come from its seed. Any thread.
#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"

namespace canarynet {

// Returns another secret with every call, never 0.
using SecretSource = std::function<std::uint64_t()>;

// 64 bits of the kernel's entropy, never 0. Fails only if the system has no getrandom(), and then every time.
Result<std::uint64_t> draw_secret();

}  // namespace canarynet

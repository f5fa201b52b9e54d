// embed/last_error.h -- what the families of C calls share: the thread's last error, words for wrong arguments, and
// settings out of a canary_config.
#pragma once

#include <cstddef>
#include <new>
#include <string>

#include "base/log.h"
#include "base/settings.h"
#include "base/status.h"
#include "canarynet/canarynet.h"

namespace canarynet {

// Keeps a failure for canary_last_error() of this thread; returns its code.
canary_status report(const Status& status);

// What makes no sense in a call.
inline Status bad(const std::string& what) { return Status(CANARY_INVALID_ARGUMENT, what); }
inline canary_status invalid(const std::string& what) { return report(bad(what)); }
// `init`: what callers begin with.
inline Status wrong_size(std::size_t size, std::size_t expected, const char* init) {
  return bad("struct_size is " + std::to_string(size) + ", expected " + std::to_string(expected) + " (use " + init +
             ")");
}

// No exception crosses the C ABI: only out-of-memory can come from below.
template <typename Fn>
canary_status guarded(Fn fn) {
  try {
    if (in_log_sink()) return invalid("a log callback can't call the library");
    return fn();
  } catch (const std::bad_alloc&) {
    return report(no_memory());
  }
}

// Copies what a caller built with this or an older header has filled in, over the defaults; `config` may be NULL.
Status copy_config(const canary_config* config, canary_config* out);

// Environment, then the config's own; `config` may be NULL.
Status read_settings(const canary_config* config, Settings* settings);

}  // namespace canarynet

// runtime/library_thread.h -- the library's own threads: named, without signals (those are the application's), refused
// in words.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace canarynet {

// Runs `body` in `*thread`. An error where the system has no thread left to give. `name`: at most 15 characters.
Status start_library_thread(const char* name, std::function<void()> body, std::thread* thread);

}  // namespace canarynet

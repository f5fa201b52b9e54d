// embed/in_turn.h -- calls of objects that one thread at a time may be in.
//
// What: runs a call of such an object, or refuses it where another thread is in one: that is the caller's mistake, and
// waiting would hide it. T: a handle's object (embed/context_handles.h) with a `mutex`.
// Threads: any. Memory: none of its own. Failure: the handle's, CANARY_INVALID_ARGUMENT out of turn, or the call's own.
#pragma once

#include <mutex>
#include <string>

#include "canarynet/canarynet.h"
#include "embed/context_handles.h"
#include "embed/last_error.h"

namespace canarynet {

// `name`: the call's. `body`: Status(T&).
template <typename T, typename Body>
canary_status in_turn(const char* name, T* handle, const Body& body) {
  return guarded([&]() -> canary_status {
    const Inside<T> object(handle);
    if (!object) return HandlePool<T>::refuse(name, handle);
    const std::unique_lock turn(object->mutex, std::try_to_lock);
    if (!turn.owns_lock()) {
      const std::string what = std::string("another thread is in a call of this ") + T::kName + ": one at a time";
      return report(bad(what).wrap(name));
    }
    const Status s = body(*object);
    return s.ok() ? CANARY_OK : report(s.wrap(name));
  });
}

}  // namespace canarynet

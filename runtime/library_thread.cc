#include "runtime/library_thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

namespace canarynet {

Status start_library_thread(const char* name, std::function<void()> body, std::thread* thread) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited
  Status status;
  try {
    *thread = std::thread(std::move(body));
    pthread_setname_np(thread->native_handle(), name);
  } catch (const std::system_error& e) {  // at the limit of processes
    status = system_error("a thread of the library", e.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace canarynet

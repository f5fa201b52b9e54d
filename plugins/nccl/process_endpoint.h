// plugins/nccl/process_endpoint.h -- the one endpoint of this process, shared by all communicators, devices and plugin
// versions.
//
// What: the first listen or connect makes it (never loading, so that a process may fork before), and it stops when the
// last context has ended and the last comm was closed. Without contexts (plugin versions before v11, which know no
// finalize) the comms alone decide.
// Threads: any; calls that make or stop it wait, all other calls do not. Memory: lives as long as the process; has no
// destructor.
// Fork: a child has none of its parent's threads. It starts anew; what it inherited is stale (see `generation`) and
// only forgotten.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "canarynet/canarynet.h"

namespace canarynet::nccl {

class ProcessEndpoint {
 public:
  static ProcessEndpoint& get();

  // Counts one context more; returns the generation that it counts in.
  std::uint64_t add_context();
  // Counts one context less, unless its generation is stale. Stops the endpoint if it was the last user: waits up to
  // half a second until peers have heard.
  void remove_context(std::uint64_t generation);

  // The endpoint and its generation: objects that another generation made must not be used.
  struct Use {
    canary_endpoint* endpoint = nullptr;
    std::uint64_t generation = 0;
  };
  // Counts one user more; makes the endpoint if there is none.
  canary_status acquire(Use* use);
  // Counts one user less, unless its generation is stale. Stops the endpoint like remove_context().
  void release(std::uint64_t generation);
  bool current(std::uint64_t generation) const { return generation == generation_.load(std::memory_order_relaxed); }

  // The settings and NICs that an endpoint made now would have; `nics` may be null.
  static canary_status list_nics(canary_rail* nics, std::size_t capacity, std::size_t* count);
  static canary_status setting(const char* name, std::int64_t* value);

 private:
  ProcessEndpoint();
  canary_status make();
  void stop_if_unused(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  canary_endpoint* endpoint_ = nullptr;
  int contexts_ = 0;
  int users_ = 0;
  std::atomic<std::uint64_t> generation_{1};
  // The affinity of the thread that first loaded us: the endpoint's thread must not inherit that of NCCL's helpers.
  cpu_set_t affinity_;
  bool affinity_known_ = false;
};

}  // namespace canarynet::nccl

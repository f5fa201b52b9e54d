#include "plugins/nccl/process_endpoint.h"

#include <pthread.h>

#include <cstdlib>
#include <string>

namespace canarynet::nccl {
namespace {

bool set(const char* name) { return std::getenv(name) != nullptr; }

// The values that NCCL's users expect where no setting of Canary's is given.
struct Config {
  Config() {
    // Its grammar is the same as ours.
    const char* theirs = std::getenv("NCCL_SOCKET_IFNAME");
    if (theirs != nullptr && *theirs != '\0' && !set("CANARY_SOCKET_IFNAME") && !set("CANARY_RAILS")) {
      ifname = std::string("socket_ifname=") + theirs;
      add(ifname.c_str());
    }
    config.settings = lines;
  }
  Config(const Config&) = delete;
  void add(const char* line) { lines[config.settings_count++] = line; }
  std::string ifname;
  const char* lines[1] = {};
  canary_config config = CANARY_CONFIG_INIT;
};

}  // namespace

ProcessEndpoint& ProcessEndpoint::get() {
  static ProcessEndpoint& one = *new ProcessEndpoint();  // never freed: its thread may outlive static objects
  return one;
}

ProcessEndpoint::ProcessEndpoint() {
  affinity_known_ = sched_getaffinity(0, sizeof affinity_, &affinity_) == 0;
  pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); },
                 [] {
                   ProcessEndpoint& self = get();
                   self.endpoint_ = nullptr;  // the parent's
                   self.users_ = 0;
                   self.contexts_ = 0;
                   self.generation_.fetch_add(1, std::memory_order_relaxed);
                   self.mutex_.unlock();
                 });
}

std::uint64_t ProcessEndpoint::add_context() {
  const std::lock_guard lock(mutex_);
  ++contexts_;
  return generation_.load(std::memory_order_relaxed);
}

void ProcessEndpoint::remove_context(std::uint64_t generation) {
  std::unique_lock lock(mutex_);
  if (!current(generation) || contexts_ == 0) return;
  --contexts_;
  stop_if_unused(lock);
}

canary_status ProcessEndpoint::acquire(Use* use) {
  const std::lock_guard lock(mutex_);
  if (endpoint_ == nullptr) {
    if (const canary_status s = make(); s != CANARY_OK) return s;
  }
  ++users_;
  *use = {endpoint_, generation_.load(std::memory_order_relaxed)};
  return CANARY_OK;
}

void ProcessEndpoint::release(std::uint64_t generation) {
  std::unique_lock lock(mutex_);
  if (!current(generation) || users_ == 0) return;
  --users_;
  stop_if_unused(lock);
}

canary_status ProcessEndpoint::make() {
  cpu_set_t before;
  const bool moved = affinity_known_ && sched_getaffinity(0, sizeof before, &before) == 0 &&
                     !CPU_EQUAL(&before, &affinity_) && sched_setaffinity(0, sizeof affinity_, &affinity_) == 0;
  const Config config;
  const canary_status s = canary_endpoint_create(&config.config, &endpoint_);
  if (moved) sched_setaffinity(0, sizeof before, &before);
  return s;
}

void ProcessEndpoint::stop_if_unused(std::unique_lock<std::mutex>& lock) {
  if (contexts_ != 0 || users_ != 0 || endpoint_ == nullptr) return;
  canary_endpoint* const ends = endpoint_;
  endpoint_ = nullptr;
  lock.unlock();  // a user that comes now gets a new one at once
  canary_endpoint_destroy(ends);
}

canary_status ProcessEndpoint::list_nics(canary_rail* nics, std::size_t capacity, std::size_t* count) {
  const Config config;
  return canary_list_nics(&config.config, nics, capacity, count);
}

canary_status ProcessEndpoint::setting(const char* name, std::int64_t* value) {
  const Config config;
  return canary_get_setting(&config.config, name, value);
}

}  // namespace canarynet::nccl

#include "plugins/nccl/contexts.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "plugins/nccl/report.h"

namespace canarynet::nccl {
namespace {

bool current(std::uint64_t generation) { return ProcessEndpoint::get().current(generation); }

}  // namespace

void ListenComm::close() {
  if (listener == nullptr) return;
  if (current(generation)) canary_close_listener(listener);
  listener = nullptr;
  ProcessEndpoint::get().release(generation);
}

Pending::~Pending() {
  if (connection != nullptr && current(use.generation)) canary_close(connection);
  ProcessEndpoint::get().release(use.generation);
}

Contexts& Contexts::get() {
  static Contexts& one = *new Contexts();  // never freed: calls may come while the process ends
  return one;
}

// The handlers are registered after the endpoint's, so that our mutex is taken before that one.
Contexts::Contexts() {
  ProcessEndpoint::get();
  shared_.one_communicator = false;
  pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); },
                 [] {
                   // No request is in flight here, so test() needs no check of its own.
                   for (Comm* comm : get().comms_) {
                     for (Request& r : comm->requests) r.inner = nullptr;
                   }
                   get().mutex_.unlock();
                 });
}

Context* Contexts::open() {
  auto made = std::make_unique<Context>();
  made->generation = ProcessEndpoint::get().add_context();
  return made.release();
}

void Contexts::close(Context* context) {
  std::vector<std::unique_ptr<Pending>> pending;
  std::vector<std::unique_ptr<ListenComm>> listeners;
  {
    const std::lock_guard lock(mutex_);
    for (Comm* comm : comms_) {
      if (comm->context == context) comm->context = nullptr;
    }
    for (auto& p : pending_) {
      if (p->context == context) pending.push_back(std::move(p));
    }
    std::erase(pending_, nullptr);
    for (ListenComm*& l : listeners_) {
      if (l->context == context) listeners.emplace_back(std::exchange(l, nullptr));
    }
    std::erase(listeners_, nullptr);
  }
  pending.clear();
  listeners.clear();
  const std::uint64_t generation = context->generation;
  delete context;
  ProcessEndpoint::get().remove_context(generation);
}

abi::Result Contexts::check(const char* call, const Context& context) {
  abi::Result failed;
  {
    const std::lock_guard lock(mutex_);
    failed = context.failed;
  }
  if (failed == abi::Result::kSuccess) return failed;
  return nccl::fail(here(), failed, "%s: the communicator has failed before: %s", call, context.why);
}

bool Contexts::add(ListenComm* listener) {
  const std::lock_guard lock(mutex_);
  if (listener->context->failed != abi::Result::kSuccess) return false;
  listeners_.push_back(listener);
  return true;
}

bool Contexts::add(Comm* comm) {
  const std::lock_guard lock(mutex_);
  if (comm->context->failed != abi::Result::kSuccess) return false;
  comms_.push_back(comm);
  return true;
}

bool Contexts::add(std::unique_ptr<Pending>& pending) {
  const std::lock_guard lock(mutex_);
  if (pending->context->failed != abi::Result::kSuccess) return false;
  pending->asked = Clock::now();
  pending_.push_back(std::move(pending));
  return true;
}

std::unique_ptr<Pending> Contexts::take(const HandleBytes& handle, const Context* context) {
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(pending_.begin(), pending_.end(), [&](const auto& o) {
    return o->handle == handle && o->context == context && current(o->use.generation);
  });
  if (at == pending_.end()) return nullptr;
  std::unique_ptr<Pending> found = std::move(*at);
  pending_.erase(at);
  return found;
}

void Contexts::remove(const ListenComm* listener) {
  const std::lock_guard lock(mutex_);
  std::erase(listeners_, listener);
}

void Contexts::remove(const Comm* comm) {
  const std::lock_guard lock(mutex_);
  std::erase(comms_, comm);
  const auto shares = [this](const auto& o) { return o->context == &shared_ && current(o->use.generation); };
  if (std::any_of(comms_.begin(), comms_.end(), shares) || std::any_of(pending_.begin(), pending_.end(), shares))
    return;
  const auto now = Clock::now();
  for (ListenComm* l : listeners_) {
    // NCCL may come back to it all the same, so the record stays.
    if (l->context == &shared_ && abandoned(l->asked, now)) l->close();
  }
}

canary_status Contexts::accept(ListenComm& listener, canary_connection** connection) {
  const std::lock_guard lock(mutex_);
  listener.asked = Clock::now();
  return listener.listener != nullptr ? canary_accept(listener.listener, connection) : CANARY_CLOSED;
}

// Peers that wait in its backlog believe that they are connected.
void Contexts::end_listener(ListenComm& listener, const char* why) {
  canary_connection* waiting = nullptr;
  while (canary_accept(listener.listener, &waiting) == CANARY_OK) {
    canary_abort_connection(waiting, why);
    canary_close(waiting);
  }
  listener.close();
}

void Contexts::fail(const Comm& comm, abi::Result result, const char* why, Cause cause) {
  fail(nullptr, &comm, result, why, cause);
}

void Contexts::fail(Context& context, abi::Result result, const char* why) {
  fail(&context, nullptr, result, why, Cause::kFailure);
}

// The context is the comm's, or the one given.
void Contexts::fail(Context* context, const Comm* comm, abi::Result result, const char* why, Cause cause) {
  char text[Context::kWhyBytes];  // `why` may be the library's last error, which the calls below may change
  std::snprintf(text, sizeof text, "%s", why);
  const std::lock_guard lock(mutex_);
  if (comm != nullptr) {
    if (current(comm->use.generation)) canary_abort_connection(comm->connection, text);
    context = comm->context;
  }
  if (context == nullptr || (cause == Cause::kClosedByPeer && !context->one_communicator)) return;
  for (const Comm* c : comms_) {
    if (c->context == context && current(c->use.generation)) canary_abort_connection(c->connection, text);
  }
  if (!context->one_communicator || context->failed != abi::Result::kSuccess) return;
  context->failed = result;
  std::snprintf(context->why, sizeof context->why, "%s", text);
  for (ListenComm* l : listeners_) {
    if (l->context == context && l->listener != nullptr && current(l->generation)) end_listener(*l, text);
  }
  for (auto& p : pending_) {
    if (p->context != context || !current(p->use.generation)) continue;
    canary_abort_connection(p->connection, text);
    p.reset();
  }
  std::erase(pending_, nullptr);
}

void Contexts::sweep() {
  std::vector<std::unique_ptr<Pending>> left;  // freed outside the lock: the endpoint may end with the last one
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  for (auto& p : pending_) {
    if (abandoned(p->asked, now)) left.push_back(std::move(p));
  }
  std::erase(pending_, nullptr);
}

void Contexts::set_join_timeout(std::chrono::nanoseconds limit) {
  const std::lock_guard lock(mutex_);
  join_timeout_ = limit;
}

std::chrono::nanoseconds Contexts::join_timeout() {
  const std::lock_guard lock(mutex_);
  return join_timeout_;
}

}  // namespace canarynet::nccl

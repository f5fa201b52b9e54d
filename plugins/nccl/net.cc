#include "plugins/nccl/net.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "plugins/nccl/handle.h"
#include "plugins/nccl/process_endpoint.h"
#include "plugins/nccl/report.h"

namespace canarynet::nccl {
namespace {

using abi::Result;
using Clock = std::chrono::steady_clock;

constexpr int kUnknownSpeedMbit = 10'000;  // what NCCL's own sockets assume of a NIC that does not tell
constexpr std::size_t kNicsMax = 16;

struct Context;

struct ListenComm {
  Context* context;
  canary_listener* listener;
  std::uint64_t generation;
  Clock::time_point waits_since{};  // of the first accept
};

// A connect that NCCL will ask for again, with the same handle.
struct Pending {
  HandleBytes handle;
  Context* context;
  ProcessEndpoint::Use use;
  canary_connection* connection;
};

struct Comm;

struct Request {
  canary_request* inner = nullptr;
  Comm* comm = nullptr;
  int count = 1;  // of lengths that test() tells
  Request* next = nullptr;
};

struct Comm {
  canary_connection* connection = nullptr;
  ProcessEndpoint::Use use;
  Context* context = nullptr;  // whose fate it shares; null: that has ended
  bool sends = false;
  Result failed = Result::kSuccess;
  Request* free = nullptr;
  Request requests[abi::kRequestsMax];

  Comm(canary_connection* its_connection, const ProcessEndpoint::Use& its_use, Context* its_context, bool it_sends)
      : connection(its_connection), use(its_use), context(its_context), sends(it_sends) {
    for (int i = abi::kRequestsMax; i-- > 0;) {
      requests[i].comm = this;
      give(&requests[i]);
    }
  }
  Request* take() {
    Request* r = free;
    if (r != nullptr) free = r->next;
    return r;
  }
  void give(Request* r) {
    r->inner = nullptr;
    r->next = free;
    free = r;
  }
};

struct Context {
  std::uint64_t comm = 0;
  std::vector<ListenComm*> listeners;  // some are never closed by NCCL
  std::vector<Comm*> comms;
};

// What the process knows beside the endpoint.
struct Plugin {
  Plugin();
  std::mutex mutex;  // everything below but the atomics
  Context without_context;
  std::vector<std::unique_ptr<Pending>> pending;
  CostModel model;
  std::atomic<int> speed_mbit{kUnknownSpeedMbit};
  std::atomic<bool> abort_on_error{false};
  std::atomic<std::int64_t> accept_limit_ns{120'000'000'000};
};

Plugin& plugin() {
  static Plugin& one = *new Plugin();  // calls may come while the process ends
  return one;
}

// Registered behind the endpoint's: its mutex is taken before that one.
Plugin::Plugin() {
  ProcessEndpoint::get();
  pthread_atfork([] { plugin().mutex.lock(); }, [] { plugin().mutex.unlock(); }, [] { plugin().mutex.unlock(); });
}

template <typename Fn>
Result guarded(Fn fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return fail(Result::kSystemError, "out of memory");
  }
}

Result check_device(const char* call, int device) {
  if (device == 0) return Result::kSuccess;
  return fail(Result::kInvalidArgument, "%s: there is no device %d, all NICs are device 0", call, device);
}

// The communicator is lost with the connection, and its other ranks wait for this one on theirs, maybe for ever: NCCL neither closes nor
// tells anything before its application aborts. Interfaces without contexts don't say what belongs together: there it is everything.
void give_up_all(const Context& context, const std::string& why) {
  for (const Comm* c : context.comms) {
    if (ProcessEndpoint::get().current(c->use.generation)) canary_abort_connection(c->connection, why.c_str());
  }
}

std::string last_error() {
  canary_error error{};
  error.struct_size = sizeof error;
  return canary_last_error(&error) == CANARY_OK ? error.message : "a connection has failed";
}

void abort_if_asked() {
  if (plugin().abort_on_error.load(std::memory_order_relaxed)) {
    warn("CANARY_ABORT_ON_ERROR=1: the process is aborted after that failure");
    std::abort();
  }
}

// NCCL can't repeat or repair what has failed on a connection, and its kernels spin until somebody aborts the communicator.
Result fatal(Comm& comm, Result result) {
  comm.failed = result;
  {
    const std::lock_guard lock(plugin().mutex);
    if (comm.context != nullptr) give_up_all(*comm.context, last_error());
  }
  abort_if_asked();
  return result;
}

// The same of a connection that was not made.
Result fatal(const Context& context, Result result, const std::string& why) {
  {
    const std::lock_guard lock(plugin().mutex);
    give_up_all(context, why);
  }
  abort_if_asked();
  return result;
}

Result usable(const char* call, const Comm& comm) {
  if (comm.failed != Result::kSuccess) return fail(comm.failed, "%s: the connection has failed before", call);
  if (!ProcessEndpoint::get().current(comm.use.generation))
    return fail(Result::kInvalidUsage,
                "%s: the connection belongs to the parent process: it can't be used after fork()", call);
  return Result::kSuccess;
}

Result post(Comm& comm, Request* r, canary_status status, const char* call, void** request) {
  if (status == CANARY_OK) {
    *request = r;
    return Result::kSuccess;
  }
  comm.give(r);
  return status == CANARY_WOULD_BLOCK ? Result::kSuccess : fatal(comm, fail(call, status));
}

// A connection that is made becomes a comm.
Result keep(canary_connection* connection, const ProcessEndpoint::Use& use, Context* context, bool sends, void** comm) {
  if (auto* const made = new (std::nothrow) Comm(connection, use, context, sends)) {
    const std::lock_guard lock(plugin().mutex);
    context->comms.push_back(made);
    *comm = made;
    return Result::kSuccess;
  }
  canary_close(connection);
  ProcessEndpoint::get().release(use.generation);
  return fail(Result::kSystemError, "out of memory");
}

void drop(Pending& p) {
  if (ProcessEndpoint::get().current(p.use.generation)) canary_close(p.connection);
  ProcessEndpoint::get().release(p.use.generation);
}

void close_listener(ListenComm* l) {
  if (ProcessEndpoint::get().current(l->generation)) canary_close_listener(l->listener);
  ProcessEndpoint::get().release(l->generation);
  delete l;
}

std::string describe(const CostModel& m) {
  if (!m.set()) return "none";
  return std::to_string(m.alpha_ns) + " ns and " + std::to_string(m.bytes_per_second) + " bytes/s";
}

}  // namespace

// --- life --------------------------------------------------------------------------------------------------------------------

Result net_init(void** context, std::uint64_t comm, abi::Logger logger) {
  // NCCL finalizes what lies there, whether init succeeds or not, and one plugin after another is asked with the same place.
  if (context != nullptr) *context = nullptr;
  return guarded([&] {
    set_logger(logger);
    ProcessEndpoint::get();  // notes where this thread may run
    Plugin& p = plugin();
    canary_rail nics[kNicsMax];
    std::size_t count = 0;
    if (const auto s = ProcessEndpoint::list_nics(nics, kNicsMax, &count); s != CANARY_OK) return fail("init", s);
    std::int64_t abort_on_error = 0, limit = 0;
    if (const auto s = ProcessEndpoint::setting("abort_on_error", &abort_on_error); s != CANARY_OK)
      return fail("init", s);
    if (const auto s = ProcessEndpoint::setting("join_timeout", &limit); s != CANARY_OK) return fail("init", s);
    p.abort_on_error.store(abort_on_error != 0, std::memory_order_relaxed);
    p.accept_limit_ns.store(limit, std::memory_order_relaxed);
    std::uint64_t speed = 0;
    std::string names;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t mbit = nics[i].speed_mbit;
      speed += mbit != 0 ? mbit : kUnknownSpeedMbit;
      names += (i != 0 ? ", " : "") + std::string(nics[i].device) + " " + nics[i].address;
    }
    p.speed_mbit.store(static_cast<int>(std::min<std::uint64_t>(speed, INT_MAX)), std::memory_order_relaxed);
    const CostModel model = read_model();
    {
      const std::lock_guard lock(p.mutex);
      p.model = model;
    }
    info(abi::kLogInit | abi::kLogNet, "%s: one device over %zu NIC%s: %s; %llu Mbit/s nominal", canary_version(),
         count, count == 1 ? "" : "s", names.c_str(), static_cast<unsigned long long>(speed));
    if (context == nullptr) return Result::kSuccess;
    auto made = std::make_unique<Context>();
    made->comm = comm;
    ProcessEndpoint::get().add_context();
    *context = made.release();
    return Result::kSuccess;
  });
}

Result net_finalize(void* context) {
  if (context == nullptr) return Result::kSuccess;  // its init has failed
  return guarded([&] {
    Context* const c = static_cast<Context*>(context);
    Plugin& p = plugin();
    std::vector<std::unique_ptr<Pending>> abandoned;
    std::vector<ListenComm*> listeners;
    {
      const std::lock_guard lock(p.mutex);
      listeners.swap(c->listeners);
      for (Comm* comm : c->comms) comm->context = nullptr;
      for (auto& pending : p.pending) {
        if (pending->context == c) abandoned.push_back(std::move(pending));
      }
      std::erase(p.pending, nullptr);
    }
    for (auto& pending : abandoned) drop(*pending);
    for (ListenComm* l : listeners) close_listener(l);
    delete c;
    ProcessEndpoint::get().remove_context();
    return Result::kSuccess;
  });
}

Result net_devices(int* count) {
  *count = 1;
  return Result::kSuccess;
}

Result net_speed_mbit(int device, int* speed) {
  *speed = plugin().speed_mbit.load(std::memory_order_relaxed);
  return check_device("getProperties", device);
}

// --- connections -------------------------------------------------------------------------------------------------------------

Result net_listen(void* context, int device, void* handle, void** listen_comm) {
  *listen_comm = nullptr;
  if (const Result r = check_device("listen", device); r != Result::kSuccess) return r;
  return guarded([&] {
    Plugin& p = plugin();
    Context* const c = context != nullptr ? static_cast<Context*>(context) : &p.without_context;
    auto made = std::make_unique<ListenComm>();
    ProcessEndpoint::Use use;
    if (const auto s = ProcessEndpoint::get().acquire(&use); s != CANARY_OK) return fail("listen", s);
    const std::span<std::byte, abi::kHandleBytes> bytes(static_cast<std::byte*>(handle), abi::kHandleBytes);
    if (const auto s = canary_listen_short(use.endpoint, bytes.data(), kEndpointBytes, &made->listener);
        s != CANARY_OK) {
      const Result r = fail("listen", s);
      ProcessEndpoint::get().release(use.generation);
      return r;
    }
    made->context = c;
    made->generation = use.generation;
    const std::lock_guard lock(p.mutex);
    write_trailer(p.model, bytes);
    c->listeners.push_back(made.get());
    *listen_comm = made.release();
    return Result::kSuccess;
  });
}

// NCCL repeats the call with the same bytes until there is a comm. They name the listener, so they are what a pending one is found by: no
// word of ours in the handle could be a stranger's.
Result net_connect(void* context, int device, const void* handle, void** send_comm) {
  *send_comm = nullptr;
  if (const Result r = check_device("connect", device); r != Result::kSuccess) return r;
  return guarded([&]() -> Result {
    Plugin& p = plugin();
    HandleBytes bytes;
    std::memcpy(bytes.data(), handle, bytes.size());
    std::unique_ptr<Pending> pending;
    CostModel mine;
    {
      const std::lock_guard lock(p.mutex);
      mine = p.model;
      const auto at = std::find_if(p.pending.begin(), p.pending.end(), [&](const auto& o) {
        return o->handle == bytes && (context == nullptr || o->context == context) &&
               ProcessEndpoint::get().current(o->use.generation);
      });
      if (at != p.pending.end()) {
        pending = std::move(*at);
        p.pending.erase(at);
      }
    }
    if (pending == nullptr) {
      CostModel theirs;
      if (const std::string wrong = read_trailer(bytes, &theirs); !wrong.empty())
        return fail(Result::kInvalidUsage, "connect: %s", wrong.c_str());
      if (!(theirs == mine)) {
        return fail(
            Result::kInvalidUsage,
            "connect: CANARY_NCCL_ALPHA and CANARY_NCCL_BANDWIDTH must be equal on all ranks, or each would choose "
            "other algorithms: here %s, at the peer %s",
            describe(mine).c_str(), describe(theirs).c_str());
      }
      pending = std::make_unique<Pending>();
      pending->handle = bytes;
      pending->context = context != nullptr ? static_cast<Context*>(context) : &p.without_context;
      pending->connection = nullptr;
      if (const auto s = ProcessEndpoint::get().acquire(&pending->use); s != CANARY_OK) return fail("connect", s);
    }
    const HandleBytes its_part = endpoint_part(bytes);
    const auto s = canary_connect(pending->use.endpoint, its_part.data(), &pending->connection);
    if (s == CANARY_WOULD_BLOCK) {
      const std::lock_guard lock(p.mutex);
      p.pending.push_back(std::move(pending));
      return Result::kSuccess;
    }
    if (s != CANARY_OK) {
      const Result r = s == CANARY_INVALID_ARGUMENT ? Result::kInvalidUsage : result_of(s);
      fail("connect", s);
      const std::string why = last_error();
      ProcessEndpoint::get().release(pending->use.generation);
      return r == Result::kInvalidUsage ? r : fatal(*pending->context, r, why);
    }
    return keep(pending->connection, pending->use, pending->context, true, send_comm);
  });
}

Result net_accept(void* listen_comm, void** receive_comm) {
  *receive_comm = nullptr;
  return guarded([&]() -> Result {
    ListenComm& l = *static_cast<ListenComm*>(listen_comm);
    ProcessEndpoint::Use use;
    if (!ProcessEndpoint::get().current(l.generation))
      return fail(Result::kInvalidUsage,
                  "accept: the listener belongs to the parent process: it can't be used after fork()");
    canary_connection* connection = nullptr;
    const auto s = canary_accept(l.listener, &connection);
    if (s == CANARY_WOULD_BLOCK) {
      const auto now = Clock::now();
      if (l.waits_since == Clock::time_point{}) l.waits_since = now;
      const std::chrono::nanoseconds limit(plugin().accept_limit_ns.load(std::memory_order_relaxed));
      if (now - l.waits_since <= limit) return Result::kSuccess;
      fail(Result::kRemoteError,
           "accept: nobody has connected within %lld s (CANARY_JOIN_TIMEOUT): has the peer loaded this plugin, and can "
           "it reach this host's NICs?",
           static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(limit).count()));
      return fatal(*l.context, Result::kRemoteError, "a connection of the communicator was not made in time");
    }
    if (s != CANARY_OK) {
      const Result r = fail("accept", s);
      return fatal(*l.context, r, last_error());
    }
    l.waits_since = {};
    if (const auto a = ProcessEndpoint::get().acquire(&use); a != CANARY_OK) return fail("accept", a);
    return keep(connection, use, l.context, false, receive_comm);
  });
}

Result net_close_listen(void* listen_comm) {
  if (listen_comm == nullptr) return Result::kSuccess;
  return guarded([&] {
    ListenComm* const l = static_cast<ListenComm*>(listen_comm);
    {
      const std::lock_guard lock(plugin().mutex);
      std::erase(l->context->listeners, l);
    }
    close_listener(l);
    return Result::kSuccess;
  });
}

Result net_close(void* comm) {
  if (comm == nullptr) return Result::kSuccess;
  return guarded([&] {
    const std::unique_ptr<Comm> c(static_cast<Comm*>(comm));
    {
      const std::lock_guard lock(plugin().mutex);
      if (c->context != nullptr) std::erase(c->context->comms, c.get());
    }
    if (ProcessEndpoint::get().current(c->use.generation)) canary_close(c->connection);
    ProcessEndpoint::get().release(c->use.generation);
    return Result::kSuccess;
  });
}

// --- memory ------------------------------------------------------------------------------------------------------------------

Result net_register(void* comm, void* data, std::size_t bytes, int type, void** registration) {
  *registration = nullptr;
  if (type != abi::kPointerHost)
    return fail(Result::kInvalidArgument, "regMr: memory of type %d: only host memory (1) is taken", type);
  return guarded([&] {
    const Comm& c = *static_cast<Comm*>(comm);
    canary_registration* made = nullptr;
    if (const auto s = canary_register(c.use.endpoint, data, bytes, &made); s != CANARY_OK) return fail("regMr", s);
    *registration = made;
    return Result::kSuccess;
  });
}

Result net_deregister(void* comm, void* registration) {
  if (registration == nullptr) return Result::kSuccess;
  if (!ProcessEndpoint::get().current(static_cast<Comm*>(comm)->use.generation)) return Result::kSuccess;
  const auto s = canary_deregister(static_cast<canary_registration*>(registration));
  return s == CANARY_OK ? Result::kSuccess : fail("deregMr", s);
}

// --- messages ----------------------------------------------------------------------------------------------------------------

Result net_isend(void* send_comm, void* data, std::size_t bytes, int tag, void* registration, void** request) {
  *request = nullptr;
  Comm& c = *static_cast<Comm*>(send_comm);
  if (const Result r = usable("isend", c); r != Result::kSuccess) return r;
  if (!c.sends) return fail(Result::kInternalError, "isend: the connection was made to receive");
  Request* const r = c.take();
  if (r == nullptr) return Result::kSuccess;
  const auto s = canary_isend(c.connection, data, bytes, static_cast<std::uint32_t>(tag),
                              static_cast<canary_registration*>(registration), &r->inner);
  return post(c, r, s, "isend", request);
}

Result net_irecv(void* receive_comm, int count, void** data, const std::size_t* bytes, const int* tags,
                 void** registrations, void** request) {
  *request = nullptr;  // NCCL may have left a hint (1) there: what is not taken must not stay
  Comm& c = *static_cast<Comm*>(receive_comm);
  if (const Result r = usable("irecv", c); r != Result::kSuccess) return r;
  if (c.sends) return fail(Result::kInternalError, "irecv: the connection was made to send");
  if (count < 1 || count > kReceivesMax)
    return fail(Result::kInvalidArgument, "irecv: %d receives in one request: 1 to %d are taken", count, kReceivesMax);
  Request* const r = c.take();
  if (r == nullptr) return Result::kSuccess;
  r->count = count;
  std::uint32_t its_tags[kReceivesMax];
  canary_registration* its_registrations[kReceivesMax];
  for (int i = 0; i < count; ++i) {
    its_tags[i] = tags != nullptr ? static_cast<std::uint32_t>(tags[i]) : 0;
    its_registrations[i] = registrations != nullptr ? static_cast<canary_registration*>(registrations[i]) : nullptr;
  }
  const auto s = canary_irecv(c.connection, count, data, bytes, its_tags, its_registrations, &r->inner);
  return post(c, r, s, "irecv", request);
}

Result net_iflush(void** request) {
  if (request != nullptr) *request = nullptr;
  return Result::kSuccess;
}

Result net_test(void* request, int* done, int* bytes) {
  *done = 0;
  Request* const r = static_cast<Request*>(request);
  Comm& c = *r->comm;
  if (r->inner == nullptr) return fail(Result::kInternalError, "test: the request is not in flight");
  std::size_t lengths[kReceivesMax] = {};
  const auto s = canary_test(r->inner, lengths);
  if (s == CANARY_WOULD_BLOCK) return Result::kSuccess;
  const int count = r->count;
  c.give(r);
  *done = 1;
  if (s != CANARY_OK) return fatal(c, fail(c.sends ? "send" : "receive", s));
  for (int i = 0; bytes != nullptr && i < count; ++i)
    bytes[i] = static_cast<int>(std::min<std::size_t>(lengths[i], INT_MAX));
  return Result::kSuccess;
}

}  // namespace canarynet::nccl

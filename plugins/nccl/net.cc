#include "plugins/nccl/net.h"

#include <net/if.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "plugins/nccl/contexts.h"
#include "plugins/nccl/report.h"

namespace canarynet::nccl {
namespace {

using abi::Result;

constexpr int kUnknownSpeedMbit = 10'000;  // NCCL's own sockets assume it for a NIC that does not tell
constexpr std::size_t kNicsMax = 16;

// The state of the process beside its contexts and the endpoint.
struct Plugin {
  Plugin();
  std::mutex mutex;
  CostModel model;  // under the mutex
  std::atomic<int> speed_mbit{kUnknownSpeedMbit};
  std::atomic<bool> abort_on_error{false};
};

Plugin& plugin() {
  static Plugin& one = *new Plugin();  // never freed: calls may come while the process ends
  return one;
}

Plugin::Plugin() {
  pthread_atfork([] { plugin().mutex.lock(); }, [] { plugin().mutex.unlock(); }, [] { plugin().mutex.unlock(); });
}

CostModel cost_model() {
  const std::lock_guard lock(plugin().mutex);
  return plugin().model;
}

Context* context_of(void* context) {
  return context != nullptr ? static_cast<Context*>(context) : Contexts::get().shared();
}

Result check_device(const char* call, int device) {
  if (device == 0) return Result::kSuccess;
  return fail(here(), Result::kInternalError, "%s: there is no device %d, all NICs are device 0", call, device);
}

Result inherited(const char* call, const char* what) {
  return fail(here(), Result::kInvalidUsage, "%s: the %s belongs to the parent process: it can't be used after fork()",
              call, what);
}

// The text of the call that has just failed; valid until the next one fails.
const char* last_error() {
  canary_error error{};
  error.struct_size = sizeof error;
  return canary_last_error(&error) == CANARY_OK ? error.message : "a connection has failed";
}

void abort_if_asked() {
  if (plugin().abort_on_error.load(std::memory_order_relaxed)) {
    warn(here(), "CANARY_ABORT_ON_ERROR=1: the process is aborted after that failure");
    std::abort();
  }
}

// NCCL can't repeat or repair a failed call on a connection, and its kernels spin until the application aborts the
// communicator.
Result fatal(Comm& comm, Result result, const char* why, Contexts::Cause cause = Contexts::Cause::kFailure) {
  if (comm.failed == Result::kSuccess) {
    comm.failed = result;
    std::snprintf(comm.why, sizeof comm.why, "%s", why);
  }
  Contexts::get().fail(comm, result, why, cause);
  abort_if_asked();
  return result;
}

// The same for a connection that was not made.
Result fatal(Context& context, Result result, const char* why) {
  Contexts::get().fail(context, result, why);
  abort_if_asked();
  return result;
}

template <typename Fn>
Result guarded(Fn fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return fail(here(), Result::kSystemError, "out of memory");
  }
}

// The same if a connection depends on it.
template <typename Owner, typename Fn>
Result guarded(Owner& owner, Fn fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return fatal(owner, fail(here(), Result::kSystemError, "out of memory"), "out of memory");
  }
}

Result usable(const char* call, const Comm& comm) {
  if (comm.failed != Result::kSuccess)
    return fail(here(), comm.failed, "%s: the connection has failed before: %s", call, comm.why);
  if (!ProcessEndpoint::get().current(comm.use.generation)) return inherited(call, "connection");
  return Result::kSuccess;
}

// The same for a call on a connection, with the library's reason.
Result fatal(Comm& comm, const char* call, canary_status status) {
  const auto cause = status == CANARY_CLOSED ? Contexts::Cause::kClosedByPeer : Contexts::Cause::kFailure;
  return fatal(comm, fail(call, status), last_error(), cause);
}

Result post(Comm& comm, Request* r, canary_status status, const char* call, void** request) {
  if (status == CANARY_OK) {
    *request = r;
    return Result::kSuccess;
  }
  comm.give(r);
  return status == CANARY_WOULD_BLOCK ? Result::kSuccess : fatal(comm, call, status);
}

// A connection that is made becomes a comm, unless its communicator has failed meanwhile.
Result keep(const char* call, canary_connection* connection, const ProcessEndpoint::Use& use, Context& context,
            bool sends, void** comm) {
  const auto give_up = [&](const char* why) {
    canary_abort_connection(connection, why);
    canary_close(connection);
    ProcessEndpoint::get().release(use.generation);
  };
  try {
    auto made = std::make_unique<Comm>(connection, use, &context, sends);
    if (Contexts::get().add(made.get())) {
      *comm = made.release();
      return Result::kSuccess;
    }
  } catch (const std::bad_alloc&) {
    give_up("out of memory");
    throw;
  }
  const Result r = Contexts::get().check(call, context);
  give_up(context.why);
  return r;
}

std::string describe(const CostModel& m) {
  if (!m.set()) return "none";
  return std::to_string(m.alpha_ns) + " ns and " + std::to_string(m.bytes_per_second) + " bytes/s";
}

// Whether the NIC is up with nothing at the other end of its cable. False if that is unknown, as for the loopback's
// aliases.
bool without_carrier(const char* device) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  ifreq request{};
  std::strncpy(request.ifr_name, device, sizeof request.ifr_name - 1);
  const bool known = ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  close(fd);
  return known && (request.ifr_flags & IFF_UP) != 0 && (request.ifr_flags & IFF_RUNNING) == 0;
}

struct Nics {
  std::uint64_t speed_mbit = 0;
  std::string names;
};

// Adds up the speeds of the NICs. One without a carrier stays a rail, as its cable may come back, and adds nothing. If
// all lack it they count as if they had one: there is nothing better to go by.
Nics describe(const canary_rail* nics, std::size_t count) {
  Nics out;
  std::uint64_t whole = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t mbit = nics[i].speed_mbit != 0 ? nics[i].speed_mbit : kUnknownSpeedMbit;
    const bool idle = without_carrier(nics[i].device);
    whole += mbit;
    if (!idle) out.speed_mbit += mbit;
    out.names += (i != 0 ? ", " : "") + std::string(nics[i].device) + " " + nics[i].address;
    if (idle) out.names += " (no carrier)";
  }
  if (out.speed_mbit == 0) out.speed_mbit = whole;
  return out;
}

}  // namespace

// --- life ------------------------------------------------------------------------------------------------------------

Result net_init(void** context, abi::Logger logger) {
  // NCCL finalizes what lies there, whether init succeeds or not, and asks one plugin after another with the same
  // place.
  if (context != nullptr) *context = nullptr;
  return guarded([&] {
    set_logger(logger);
    ProcessEndpoint::get();  // notes where this thread may run
    Plugin& p = plugin();
    canary_rail nics[kNicsMax];
    std::size_t count = 0;
    if (const auto s = ProcessEndpoint::list_nics(nics, kNicsMax, &count); s != CANARY_OK) return fail("init", s);
    count = std::min(count, kNicsMax);  // count is the number of NICs, even if there is no room for all
    std::int64_t abort_on_error = 0, limit = 0;
    if (const auto s = ProcessEndpoint::setting("abort_on_error", &abort_on_error); s != CANARY_OK)
      return fail("init", s);
    if (const auto s = ProcessEndpoint::setting("join_timeout", &limit); s != CANARY_OK) return fail("init", s);
    p.abort_on_error.store(abort_on_error != 0, std::memory_order_relaxed);
    Contexts::get().set_join_timeout(std::chrono::nanoseconds(limit));
    Contexts::get().sweep();
    const Nics found = describe(nics, count);
    p.speed_mbit.store(static_cast<int>(std::min<std::uint64_t>(found.speed_mbit, INT_MAX)), std::memory_order_relaxed);
    const CostModel model = read_model();
    {
      const std::lock_guard lock(p.mutex);
      p.model = model;
    }
    info(here(), abi::kLogInit | abi::kLogNet, "%s: one device over %zu NIC%s: %s; %llu Mbit/s nominal",
         canary_version(), count, count == 1 ? "" : "s", found.names.c_str(),
         static_cast<unsigned long long>(found.speed_mbit));
    if (context != nullptr) *context = Contexts::get().open();
    return Result::kSuccess;
  });
}

Result net_finalize(void* context) {
  if (context == nullptr) return Result::kSuccess;  // its init has failed
  return guarded([&] {
    Contexts::get().close(static_cast<Context*>(context));
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

// --- connections -----------------------------------------------------------------------------------------------------

Result net_listen(void* context, int device, void* handle, void** listen_comm) {
  *listen_comm = nullptr;
  if (const Result r = check_device("listen", device); r != Result::kSuccess) return r;
  Context& c = *context_of(context);
  return guarded(c, [&] {
    Contexts& contexts = Contexts::get();
    contexts.sweep();
    if (const Result r = contexts.check("listen", c); r != Result::kSuccess) return r;
    auto made = std::make_unique<ListenComm>();
    ProcessEndpoint::Use use;
    if (const auto s = ProcessEndpoint::get().acquire(&use); s != CANARY_OK)
      return fatal(c, fail("listen", s), last_error());
    const std::span<std::byte, abi::kHandleBytes> bytes(static_cast<std::byte*>(handle), abi::kHandleBytes);
    if (const auto s = canary_listen_short(use.endpoint, bytes.data(), kEndpointBytes, &made->listener);
        s != CANARY_OK) {
      const Result r = fatal(c, fail("listen", s), last_error());
      ProcessEndpoint::get().release(use.generation);
      return r;
    }
    made->context = &c;
    made->generation = use.generation;
    made->asked = Clock::now();
    write_trailer(cost_model(), bytes);
    if (!contexts.add(made.get())) return contexts.check("listen", c);
    *listen_comm = made.release();
    return Result::kSuccess;
  });
}

// NCCL repeats the call with the same bytes until there is a comm. The bytes name the listener, so they find a pending
// connect: the handle holds no word of ours that a stranger could have written.
Result net_connect(void* context, int device, const void* handle, void** send_comm) {
  *send_comm = nullptr;
  if (const Result r = check_device("connect", device); r != Result::kSuccess) return r;
  Context& c = *context_of(context);
  return guarded(c, [&]() -> Result {
    Contexts& contexts = Contexts::get();
    HandleBytes bytes;
    std::memcpy(bytes.data(), handle, bytes.size());
    std::unique_ptr<Pending> pending = contexts.take(bytes, &c);
    contexts.sweep();
    if (const Result r = contexts.check("connect", c); r != Result::kSuccess) {
      if (pending != nullptr) canary_abort_connection(pending->connection, c.why);
      return r;
    }
    if (pending == nullptr) {
      const CostModel mine = cost_model();
      CostModel theirs;
      if (const std::string wrong = read_trailer(bytes, &theirs); !wrong.empty())
        return fail(here(), Result::kInvalidUsage, "connect: %s", wrong.c_str());
      if (!(theirs == mine)) {
        return fail(
            here(), Result::kInvalidUsage,
            "connect: CANARY_NCCL_ALPHA and CANARY_NCCL_BANDWIDTH must be equal on all ranks, or each would choose "
            "other algorithms: here %s, at the peer %s",
            describe(mine).c_str(), describe(theirs).c_str());
      }
      pending = std::make_unique<Pending>();
      pending->handle = bytes;
      pending->context = &c;
      if (const auto s = ProcessEndpoint::get().acquire(&pending->use); s != CANARY_OK)
        return fatal(c, fail("connect", s), last_error());
    }
    const HandleBytes its_part = endpoint_part(bytes);
    const auto s = canary_connect(pending->use.endpoint, its_part.data(), &pending->connection);
    if (s == CANARY_WOULD_BLOCK) {
      if (contexts.add(pending)) return Result::kSuccess;
      canary_abort_connection(pending->connection, c.why);
      return contexts.check("connect", c);
    }
    if (s != CANARY_OK) {
      // An error in the handle or the settings leaves the other connections as they are.
      const Result r = s == CANARY_INVALID_ARGUMENT ? Result::kInvalidUsage : result_of(s);
      fail("connect", s);
      return r == Result::kInvalidUsage ? r : fatal(c, r, last_error());
    }
    return keep("connect", std::exchange(pending->connection, nullptr), std::exchange(pending->use, {}), c, true,
                send_comm);
  });
}

Result net_accept(void* listen_comm, void** receive_comm) {
  *receive_comm = nullptr;
  ListenComm& l = *static_cast<ListenComm*>(listen_comm);
  Context& c = *l.context;
  return guarded(c, [&]() -> Result {
    Contexts& contexts = Contexts::get();
    if (!ProcessEndpoint::get().current(l.generation)) return inherited("accept", "listener");
    if (const Result r = contexts.check("accept", c); r != Result::kSuccess) return r;
    canary_connection* connection = nullptr;
    const auto s = contexts.accept(l, &connection);
    if (s == CANARY_WOULD_BLOCK) {
      const auto now = Clock::now();
      if (l.waits_since == Clock::time_point{}) l.waits_since = now;
      const auto limit = contexts.join_timeout();
      if (now - l.waits_since <= limit) return Result::kSuccess;
      fail(here(), Result::kRemoteError,
           "accept: nobody has connected within %lld s (CANARY_JOIN_TIMEOUT): has the peer loaded this plugin, and can "
           "it reach this host's NICs?",
           static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(limit).count()));
      return fatal(c, Result::kRemoteError, "a connection of the communicator was not made in time");
    }
    if (s == CANARY_CLOSED) {  // by the end of its communicator a moment ago, or for want of calls
      if (const Result r = contexts.check("accept", c); r != Result::kSuccess) return r;
      return fail(here(), Result::kRemoteError,
                  "accept: nobody has called it for twice CANARY_JOIN_TIMEOUT, and the last connection has been closed "
                  "meanwhile: the listener was taken for abandoned");
    }
    if (s != CANARY_OK) return fatal(c, fail("accept", s), last_error());
    l.waits_since = {};
    ProcessEndpoint::Use use;
    if (const auto a = ProcessEndpoint::get().acquire(&use); a != CANARY_OK) {
      const Result r = fatal(c, fail("accept", a), last_error());
      canary_close(connection);
      return r;
    }
    return keep("accept", connection, use, c, false, receive_comm);
  });
}

Result net_close_listen(void* listen_comm) {
  if (listen_comm == nullptr) return Result::kSuccess;
  return guarded([&] {
    const std::unique_ptr<ListenComm> l(static_cast<ListenComm*>(listen_comm));
    Contexts::get().remove(l.get());
    return Result::kSuccess;
  });
}

Result net_close(void* comm) {
  if (comm == nullptr) return Result::kSuccess;
  return guarded([&] {
    const std::unique_ptr<Comm> c(static_cast<Comm*>(comm));
    Contexts::get().sweep();
    Contexts::get().remove(c.get());
    if (ProcessEndpoint::get().current(c->use.generation)) canary_close(c->connection);
    ProcessEndpoint::get().release(c->use.generation);
    return Result::kSuccess;
  });
}

Result net_end(void* comm, Result result, const char* why) {
  Comm& c = *static_cast<Comm*>(comm);
  return ProcessEndpoint::get().current(c.use.generation) ? fatal(c, result, why) : result;
}

// --- memory ----------------------------------------------------------------------------------------------------------

Result net_register(void* comm, void* data, std::size_t bytes, int type, void** registration) {
  *registration = nullptr;
  if (type != abi::kPointerHost)
    return fail(here(), Result::kInternalError, "regMr: memory of type %d: only host memory (1) is taken", type);
  return guarded([&] {
    const Comm& c = *static_cast<Comm*>(comm);
    if (!ProcessEndpoint::get().current(c.use.generation)) return inherited("regMr", "connection");
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

// --- messages --------------------------------------------------------------------------------------------------------

Result net_isend(void* send_comm, void* data, std::size_t bytes, int tag, void* registration, void** request) {
  *request = nullptr;
  Comm& c = *static_cast<Comm*>(send_comm);
  if (const Result r = usable("isend", c); r != Result::kSuccess) return r;
  if (!c.sends) {
    return fatal(c, fail(here(), Result::kInternalError, "isend: the connection was made to receive"),
                 "a send was posted on a connection that was made to receive");
  }
  Request* const r = c.take();
  if (r == nullptr) return Result::kSuccess;
  const auto s = canary_isend(c.connection, data, bytes, static_cast<std::uint32_t>(tag),
                              static_cast<canary_registration*>(registration), &r->inner);
  return post(c, r, s, "isend", request);
}

Result net_irecv(void* receive_comm, int count, void** data, const std::size_t* bytes, const int* tags,
                 void** registrations, void** request) {
  *request = nullptr;  // NCCL may have left a hint (1) there, which must not stay if the receive is not taken
  Comm& c = *static_cast<Comm*>(receive_comm);
  if (const Result r = usable("irecv", c); r != Result::kSuccess) return r;
  if (c.sends) {
    return fatal(c, fail(here(), Result::kInternalError, "irecv: the connection was made to send"),
                 "a receive was posted on a connection that was made to send");
  }
  if (count < 1 || count > kReceivesMax) {
    return fatal(c,
                 fail(here(), Result::kInternalError, "irecv: %d receives in one request: 1 to %d are taken", count,
                      kReceivesMax),
                 "too many receives were posted in one request");
  }
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
  if (r->inner == nullptr) {  // not in flight, or in a child of fork(), which finds all requests so
    if (const Result u = usable("test", c); u != Result::kSuccess) return u;
    return fatal(c, fail(here(), Result::kInternalError, "test: the request is not in flight"),
                 "a request was tested that was not in flight");
  }
  std::size_t lengths[kReceivesMax] = {};
  const auto s = canary_test(r->inner, lengths);
  if (s == CANARY_WOULD_BLOCK) return Result::kSuccess;
  const int count = r->count;
  c.give(r);
  *done = 1;
  if (s != CANARY_OK) return fatal(c, c.sends ? "send" : "receive", s);
  for (int i = 0; bytes != nullptr && i < count; ++i)
    bytes[i] = static_cast<int>(std::min<std::size_t>(lengths[i], INT_MAX));
  return Result::kSuccess;
}

}  // namespace canarynet::nccl

// The C ABI of connections without a group: making and ending them, memory that is registered, messages. The port
// checks what a call says (port/command_check.h), but for handles.
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "canarynet/canarynet.h"
#include "embed/endpoint_handles.h"
#include "embed/last_error.h"
#include "embed/op_options.h"
#include "runtime/endpoint_host.h"

using namespace canarynet;

static_assert(CANARY_HANDLE_BYTES == kHandleBytes && CANARY_RECEIVES_MAX == port::kUnitMax);

namespace {

bool covers(const canary_registration& r, const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(r.data), at = reinterpret_cast<std::uintptr_t>(data);
  return at >= begin && at - begin <= r.bytes && bytes <= r.bytes - (at - begin);
}

// Checks what the port can't know of a message's buffer: that it lies where its registration says.
canary_status check_registration(const char* call, const canary_connection& c, const void* data, std::size_t bytes,
                                 const canary_registration* registration) {
  if (registration == nullptr) return CANARY_OK;
  if (registration->endpoint != c.endpoint)
    return invalid(std::string(call) + ": the registration belongs to another endpoint");
  if (bytes != 0 && !covers(*registration, data, bytes))
    return invalid(std::string(call) + ": the buffer lies outside of its registration");
  return CANARY_OK;
}

// A registration may be NULL; one that has ended is not.
canary_status resolve(const char* call, const canary_registration* handle, const canary_registration** found) {
  *found = HandlePool<canary_registration>::find(handle);
  if (handle == nullptr || *found != nullptr) return CANARY_OK;
  return HandlePool<canary_registration>::refuse(call, handle);
}

canary_status check_usable(const char* call, const canary_connection* handle, const Alone<canary_connection>& found,
                           canary_request** request) {
  if (request != nullptr) *request = nullptr;
  if (handle == nullptr || request == nullptr) return invalid(std::string(call) + ": a NULL argument");
  if (!found) return Alone<canary_connection>::refuse(call, handle);
  if (!found->told) return invalid(std::string(call) + ": the connection is not made yet");
  return CANARY_OK;
}

// Gives back those that were taken for a call that came to nothing.
void give_back(canary_connection& c, canary_request* first) {
  while (first != nullptr) {
    canary_request* const following = first->also;
    c.give(first);
    first = following;
  }
}

// Hands it over, with a request for each; without room nothing has happened.
canary_status post(const char* call, canary_connection& c, std::span<port::Command> unit, canary_request** out) {
  EndpointHost& host = *c.endpoint->host;
  canary_request* first = nullptr;
  std::size_t i = unit.size();
  do {
    canary_request* const r = c.take();
    if (r == nullptr) {
      // Any will do for the check, but no two alike.
      for (std::size_t k = 0; k < unit.size(); ++k) unit[k].ticket = c.requests[k]->ticket.id();
      const Status wrong = host.endpoint().check(unit);
      give_back(c, first);
      return wrong.ok() ? CANARY_WOULD_BLOCK : report(wrong.wrap(call));
    }
    unit[--i].ticket = r->ticket.id();
    r->also = first;
    first = r;
  } while (i != 0);
  canary_request* const handle = HandlePool<canary_request>::open(*first);
  const Status taken = host.try_submit(unit);
  if (taken.ok()) {
    *out = handle;
    return CANARY_OK;
  }
  HandlePool<canary_request>::close(*first);
  give_back(c, first);
  return taken.code() == CANARY_WOULD_BLOCK ? CANARY_WOULD_BLOCK : report(taken.wrap(call));
}

}  // namespace

extern "C" {

CANARY_API canary_status canary_connect(canary_endpoint* from, const void* handle, canary_connection** connection) {
  return guarded([&]() -> canary_status {
    if (from == nullptr || connection == nullptr) return invalid("canary_connect: a NULL argument");
    canary_endpoint* const endpoint = HandlePool<canary_endpoint>::find(from);
    if (endpoint == nullptr) return HandlePool<canary_endpoint>::refuse("canary_connect", from);
    if (*connection == nullptr) {
      if (handle == nullptr) return invalid("canary_connect: handle is NULL");
      Kept<canary_connection> made(HandlePool<canary_connection>::take());
      canary_connection& c = *made;
      std::memcpy(c.handle.data(), handle, c.handle.size());
      c.core = std::make_unique<Connection>();
      EndpointHost& host = *endpoint->host;
      endpoint->prepare(c);
      host.endpoint().add(*c.core);
      canary_connection* const kept = endpoint->keep(std::move(made));
      if (Status s = host.submit(port::connect(c.core->id, c.handle)); !s.ok()) {
        retire(*endpoint, &c, endpoint->connections, endpoint->closing_connections);
        return report(s.wrap("canary_connect"));
      }
      *connection = kept;
      return CANARY_WOULD_BLOCK;
    }
    Alone<canary_connection> c(*connection);
    if (!c) return Alone<canary_connection>::refuse("canary_connect", *connection);
    if (c->endpoint != endpoint) return invalid("canary_connect: the connection belongs to another endpoint");
    switch (c->core->state.load(std::memory_order_acquire)) {
      case Connection::State::kOpening:
        if (!endpoint->host->over()) return CANARY_WOULD_BLOCK;
        c->core->failure = EndpointHost::why_over();
        break;
      case Connection::State::kUp:
        c->told = true;
        return CANARY_OK;
      case Connection::State::kFailed:
        break;
    }
    const Status why = c->core->failure.wrap("canary_connect");
    retire(*endpoint, &c.stay(), endpoint->connections, endpoint->closing_connections);
    *connection = nullptr;
    return report(why);
  });
}

CANARY_API canary_status canary_accept(canary_listener* handle, canary_connection** connection) {
  return guarded([&]() -> canary_status {
    if (handle == nullptr || connection == nullptr) return invalid("canary_accept: a NULL argument");
    *connection = nullptr;
    const Alone<canary_listener> listener(handle);
    if (!listener) return Alone<canary_listener>::refuse("canary_accept", handle);
    if (!listener->core->accepted.ready()) {
      const bool over = listener->endpoint->host->over();
      return over ? report(EndpointHost::why_over().wrap("canary_accept")) : CANARY_WOULD_BLOCK;
    }
    Kept<canary_connection> made(HandlePool<canary_connection>::take());
    listener->endpoint->prepare(*made);
    Connection* core = nullptr;
    if (!listener->core->accepted.pop(&core)) return CANARY_WOULD_BLOCK;
    made->core.reset(core);
    made->told = true;
    *connection = listener->endpoint->keep(std::move(made));
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_close(canary_connection* handle) {
  return guarded([&]() -> canary_status {
    Alone<canary_connection> found(handle);
    if (!found) return Alone<canary_connection>::refuse("canary_close", handle);
    canary_connection& c = found.stay();
    canary_endpoint& e = *c.endpoint;
    if (c.in_flight != 0) {
      c.close();
      // Their buffers are the caller's when this returns, so nothing may touch them any more.
      start_close(*e.host, c);
      await([&] { return is_closed(c); });
      drop(e, e.connections, &c);
    } else {
      retire(e, &c, e.connections, e.closing_connections);
    }
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_abort_connection(canary_connection* handle, const char* why) {
  return guarded([&]() -> canary_status {
    if (handle == nullptr || why == nullptr) return invalid("canary_abort_connection: a NULL argument");
    std::string text = why;
    canary_connection* const connection = HandlePool<canary_connection>::find(handle);
    if (connection == nullptr) return HandlePool<canary_connection>::refuse("canary_abort_connection", handle);
    // Beside a canary_connect that tells a failure, which ends the connection.
    const std::lock_guard lock(connection->endpoint->mutex);
    if (HandlePool<canary_connection>::find(handle) == nullptr)
      return HandlePool<canary_connection>::refuse("canary_abort_connection", handle);
    if (std::exchange(connection->aborted, true)) return CANARY_OK;
    connection->why_aborted = std::move(text);
    const port::Command command = port::abort_connection(connection->core->id, connection->why_aborted);
    return report(connection->endpoint->host->submit(command).wrap("canary_abort_connection"));
  });
}

CANARY_API canary_status canary_register(canary_endpoint* with, void* data, size_t bytes,
                                         canary_registration** registration) {
  return guarded([&]() -> canary_status {
    if (with == nullptr || registration == nullptr || (data == nullptr && bytes != 0))
      return invalid("canary_register: a NULL argument");
    canary_endpoint* const endpoint = HandlePool<canary_endpoint>::find(with);
    if (endpoint == nullptr) return HandlePool<canary_endpoint>::refuse("canary_register", with);
    Kept<canary_registration> r(HandlePool<canary_registration>::take());
    r->endpoint = endpoint;
    r->data = static_cast<const std::byte*>(data);
    r->bytes = bytes;
    const std::lock_guard lock(endpoint->mutex);
    endpoint->registrations.push_back(std::move(r));
    *registration = HandlePool<canary_registration>::open(*endpoint->registrations.back());
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_deregister(canary_registration* handle) {
  return guarded([&]() -> canary_status {
    canary_registration* const registration = HandlePool<canary_registration>::find(handle);
    if (registration == nullptr) return HandlePool<canary_registration>::refuse("canary_deregister", handle);
    canary_endpoint& e = *registration->endpoint;
    drop(e, e.registrations, registration);
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_isend(canary_connection* connection, const void* data, size_t bytes, uint32_t tag,
                                      canary_registration* registration, canary_request** request) {
  return canary_isend_with(connection, data, bytes, tag, registration, nullptr, request);
}

CANARY_API canary_status canary_isend_with(canary_connection* handle, const void* data, size_t bytes, uint32_t tag,
                                           canary_registration* registered, const canary_op_options* options,
                                           canary_request** request) {
  return guarded([&]() -> canary_status {
    const Alone<canary_connection> connection(handle);
    if (const auto s = check_usable("canary_isend", handle, connection, request); s != CANARY_OK) return s;
    OptionsRead read;
    if (Status s = read_options(options, /*takes_codec=*/false, &read); !s.ok()) return report(s.wrap("canary_isend"));
    const port::Terms terms{read.priority, read.time_limit};
    const canary_registration* registration = nullptr;
    if (const auto s = resolve("canary_isend", registered, &registration); s != CANARY_OK) return s;
    if (const auto s = check_registration("canary_isend", *connection, data, bytes, registration); s != CANARY_OK)
      return s;
    port::Command command = port::send(connection->core->id, data, bytes, tag, port::kNoTicket, terms);
    return post("canary_isend", *connection, {&command, 1}, request);
  });
}

CANARY_API canary_status canary_irecv(canary_connection* connection, int count, void* const* data, const size_t* bytes,
                                      const uint32_t* tags, canary_registration* const* registrations,
                                      canary_request** request) {
  return canary_irecv_with(connection, count, data, bytes, tags, registrations, nullptr, request);
}

CANARY_API canary_status canary_irecv_with(canary_connection* handle, int count, void* const* data, const size_t* bytes,
                                           const uint32_t* tags, canary_registration* const* registrations,
                                           const canary_op_options* options, canary_request** request) {
  return guarded([&]() -> canary_status {
    const Alone<canary_connection> connection(handle);
    if (const auto s = check_usable("canary_irecv", handle, connection, request); s != CANARY_OK) return s;
    OptionsRead read;
    if (Status s = read_options(options, /*takes_codec=*/false, &read); !s.ok()) return report(s.wrap("canary_irecv"));
    const port::Terms terms{read.priority, read.time_limit};
    if (count < 1 || count > CANARY_RECEIVES_MAX)
      return invalid("canary_irecv: count " + std::to_string(count) + ": takes 1 to " +
                     std::to_string(CANARY_RECEIVES_MAX));
    if (data == nullptr || bytes == nullptr) return invalid("canary_irecv: a NULL argument");
    std::array<port::Command, CANARY_RECEIVES_MAX> unit;
    for (int i = 0; i < count; ++i) {
      const canary_registration* registration = nullptr;
      const canary_registration* named = registrations != nullptr ? registrations[i] : nullptr;
      if (const auto s = resolve("canary_irecv", named, &registration); s != CANARY_OK) return s;
      if (const auto s = check_registration("canary_irecv", *connection, data[i], bytes[i], registration);
          s != CANARY_OK)
        return s;
      const std::uint32_t tag = tags != nullptr ? tags[i] : 0;
      port::Command& c = unit[static_cast<std::size_t>(i)];
      c = port::receive(connection->core->id, data[i], bytes[i], tag, port::kNoTicket, terms);
      c.more_follows = i + 1 < count ? 1 : 0;
    }
    return post("canary_irecv", *connection, std::span(unit).first(static_cast<std::size_t>(count)), request);
  });
}

CANARY_API canary_status canary_test(canary_request* handle, size_t* bytes) {
  canary_request* const request = HandlePool<canary_request>::find(handle);
  if (request == nullptr) return guarded([&] { return HandlePool<canary_request>::refuse("canary_test", handle); });
  for (const canary_request* r = request; r != nullptr; r = r->also) {
    if (!r->ticket.done() && !r->connection->endpoint->over.load(std::memory_order_acquire)) return CANARY_WOULD_BLOCK;
  }
  const Alone<canary_connection> connection(HandlePool<canary_connection>::handle_of(*request->connection));
  if (!connection || !HandlePool<canary_request>::close(*request, handle)) {
    return guarded([&] {
      if (HandlePool<canary_request>::find(handle) == nullptr)
        return HandlePool<canary_request>::refuse("canary_test", handle);
      return invalid("canary_test: another thread is in a call of this request's connection: one at a time");
    });
  }
  canary_status result = CANARY_OK;
  for (canary_request* r = request; r != nullptr;) {
    if (!r->ticket.done()) r->ticket.finish(EndpointHost::why_over());
    const auto code = static_cast<canary_status>(r->ticket.code.load(std::memory_order_relaxed));
    if (code != CANARY_OK && result == CANARY_OK) result = guarded([&] { return report(r->ticket.status); });
    if (bytes != nullptr) *bytes++ = r->ticket.bytes;
    canary_request* following = r->also;
    r->connection->give(r);
    r = following;
  }
  return result;
}

}  // extern "C"

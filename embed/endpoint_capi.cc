// The C ABI of connections without a group, over runtime/endpoint_host.h: handles, requests, arguments. All I/O is the
// endpoint's thread's.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "canarynet/canarynet.h"
#include "embed/handles.h"
#include "embed/last_error.h"
#include "embed/nic_stats.h"
#include "embed/op_options.h"
#include "runtime/endpoint_host.h"

using namespace canarynet;

static_assert(CANARY_HANDLE_BYTES == kHandleBytes && CANARY_RECEIVES_MAX == port::kUnitMax);

struct canary_registration : Handled {
  static constexpr std::uint8_t kKind = 0xC4;
  static constexpr const char* kName = "registration";
  static constexpr const char* kEnds = "it was deregistered, or its endpoint destroyed";
  canary_endpoint* endpoint = nullptr;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  void clear() {}
};

// One message. A grouped receive is a chain of them, the first one has the handle.
struct canary_request : Handled {
  static constexpr std::uint8_t kKind = 0xC5;
  static constexpr const char* kName = "request";
  static constexpr const char* kEnds = "its result was told, or its connection closed";
  canary_connection* connection = nullptr;
  OpTicket ticket;
  canary_request* also = nullptr;
  canary_request* next = nullptr;  // free, of its connection
  void clear() { ticket.leave_table(); }
};

struct canary_connection : Handled {
  static constexpr std::uint8_t kKind = 0xC6;
  static constexpr const char* kName = "connection";
  static constexpr const char* kEnds = "it was closed, or its endpoint destroyed";
  static constexpr std::size_t kRequests = 64;
  canary_endpoint* endpoint = nullptr;
  std::unique_ptr<Connection> core;
  std::vector<Kept<canary_request>> requests;  // of one thread at a time: no lock
  canary_request* free_requests = nullptr;
  std::size_t in_flight = 0;
  bool told = false;  // canary_connect has given its result
  // What commands refer to, until the endpoint has forgotten the connection.
  std::array<std::byte, kHandleBytes> handle{};
  std::atomic<bool> aborted{false};
  std::string why_aborted;

  void make_requests(Endpoint& at) {
    requests.reserve(kRequests);
    while (requests.size() < kRequests) {
      requests.emplace_back(HandlePool<canary_request>::take());
      requests.back()->connection = this;
      at.ticket_id(requests.back()->ticket);
      requests.back()->next = free_requests;
      free_requests = requests.back().get();
    }
  }
  canary_request* take() {
    canary_request* r = free_requests;
    if (r == nullptr) return nullptr;
    free_requests = r->next;
    ++in_flight;
    r->ticket.reset();
    r->also = nullptr;
    return r;
  }
  void give(canary_request* r) {
    r->next = free_requests;
    free_requests = r;
    --in_flight;
  }
  // Its requests end with it.
  void close() {
    HandlePool<canary_connection>::close(*this);
    for (const auto& r : requests) HandlePool<canary_request>::close(*r);
  }
  void clear() {
    requests.clear();
    core.reset();
    free_requests = nullptr;
    in_flight = 0;
    told = false;
    aborted = false;
    why_aborted.clear();
  }
};

struct canary_listener : Handled {
  static constexpr std::uint8_t kKind = 0xC7;
  static constexpr const char* kName = "listener";
  static constexpr const char* kEnds = "it was closed, or its endpoint destroyed";
  canary_endpoint* endpoint = nullptr;
  std::unique_ptr<Listener> core;
  void close() { HandlePool<canary_listener>::close(*this); }
  void clear() { core.reset(); }
};

struct canary_endpoint : Handled {
  static constexpr std::uint8_t kKind = 0xC8;
  static constexpr const char* kName = "endpoint";
  static constexpr const char* kEnds = "it was destroyed";
  std::unique_ptr<EndpointHost> host;
  std::mutex mutex;  // the lists only
  std::vector<Kept<canary_listener>> listeners;
  std::vector<Kept<canary_connection>> connections;
  std::vector<Kept<canary_registration>> registrations;
  // Closed by their users, until the endpoint's thread has forgotten them too: closing waits for nobody.
  std::vector<Kept<canary_listener>> closing_listeners;
  std::vector<Kept<canary_connection>> closing_connections;

  canary_connection* keep(Kept<canary_connection> c) {
    c->endpoint = this;
    c->make_requests(host->endpoint());
    const std::lock_guard lock(mutex);
    connections.push_back(std::move(c));
    return HandlePool<canary_connection>::open(*connections.back());
  }
  void clear() {
    closing_connections.clear();
    closing_listeners.clear();
    registrations.clear();
    connections.clear();
    listeners.clear();
    host.reset();
  }
};

namespace {

template <typename T>
void drop(canary_endpoint& e, std::vector<Kept<T>>& list, const T* which) {
  const std::lock_guard lock(e.mutex);
  const auto at = std::find_if(list.begin(), list.end(), [&](const auto& p) { return p.get() == which; });
  if (at == list.end()) return;
  std::swap(*at, list.back());
  list.pop_back();
}

// The endpoint's thread answers within a turn of its loop.
template <typename Done>
void await(const Done& done) {
  while (!done()) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

// Of what the endpoint knows, so it takes the command.
template <typename T>
void start_close(EndpointHost& host, const T& which) {
  const Status taken = host.submit(port::close(which.core->id));
  CANARY_CHECK(taken.ok(), taken.to_string().c_str());
}

template <typename T>
bool is_closed(const T& which) {
  return which.core->closed.load(std::memory_order_acquire);
}

// Says that it is closed and leaves it to be freed when the endpoint's thread has heard.
template <typename T>
void retire(canary_endpoint& e, T* which, std::vector<Kept<T>>& list, std::vector<Kept<T>>& closing) {
  which->close();
  start_close(*e.host, *which);
  const std::lock_guard lock(e.mutex);
  std::erase_if(closing, [](const auto& p) { return is_closed(*p); });
  const auto at = std::find_if(list.begin(), list.end(), [&](const auto& p) { return p.get() == which; });
  if (at == list.end()) return;
  closing.push_back(std::move(*at));
  std::swap(*at, list.back());
  list.pop_back();
}

void list(std::span<const Rail> from, canary_rail* rails, std::size_t capacity, std::size_t* count) {
  *count = from.size();
  for (std::size_t i = 0; i < std::min(capacity, from.size()); ++i) {
    canary_rail& r = rails[i];
    std::memset(&r, 0, sizeof r);
    Address address = from[i].address;
    address.port = 0;
    std::strncpy(r.device, from[i].device.c_str(), sizeof r.device - 1);
    std::strncpy(r.address, address.to_string().c_str(), sizeof r.address - 1);
    r.speed_mbit = static_cast<std::uint64_t>(from[i].nominal.count / BytesPerSec::from_mbit(1).count);
  }
}

bool covers(const canary_registration& r, const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(r.data), at = reinterpret_cast<std::uintptr_t>(data);
  return at >= begin && at - begin <= r.bytes && bytes <= r.bytes - (at - begin);
}

// What the port can't know of a message's buffer: it lies where its registration says.
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

canary_status usable(const char* call, const canary_connection* handle, canary_connection** found,
                     canary_request** request) {
  if (request != nullptr) *request = nullptr;
  if (handle == nullptr || request == nullptr) return invalid(std::string(call) + ": a NULL argument");
  *found = HandlePool<canary_connection>::find(handle);
  if (*found == nullptr) return HandlePool<canary_connection>::refuse(call, handle);
  if (!(*found)->told) return invalid(std::string(call) + ": the connection is not made yet");
  return CANARY_OK;
}

// Back go those that were taken for a call that came to nothing.
void give_back(canary_connection& c, canary_request* first) {
  while (first != nullptr) {
    canary_request* const following = first->also;
    c.give(first);
    first = following;
  }
}

// Hands it over; without room nothing has happened.
canary_status post(const char* call, canary_connection& c, std::span<const port::Command> unit, canary_request* first,
                   canary_request** out) {
  canary_request* const handle = HandlePool<canary_request>::open(*first);
  const Status taken = c.endpoint->host->try_submit(unit);
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

CANARY_API canary_status canary_endpoint_create(const canary_config* config, canary_endpoint** endpoint) {
  return guarded([&]() -> canary_status {
    if (endpoint == nullptr) return invalid("canary_endpoint_create: endpoint is NULL");
    Settings settings;
    if (Status s = read_settings(config, &settings); !s.ok()) return report(s);
    auto host = EndpointHost::create(std::move(settings));
    if (!host.ok()) return report(host.status());
    Kept<canary_endpoint> e(HandlePool<canary_endpoint>::take());
    e->host = host.take();
    *endpoint = HandlePool<canary_endpoint>::open(*e.release());
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_endpoint_destroy(canary_endpoint* handle) {
  return guarded([&]() -> canary_status {
    canary_endpoint* endpoint = HandlePool<canary_endpoint>::find(handle);
    if (endpoint == nullptr || !HandlePool<canary_endpoint>::close(*endpoint))
      return HandlePool<canary_endpoint>::refuse("canary_endpoint_destroy", handle);
    // First those that nobody has accepted, then what is left.
    for (auto& l : endpoint->listeners) start_close(*endpoint->host, *l);
    for (auto& c : endpoint->connections) start_close(*endpoint->host, *c);
    for (auto* list : {&endpoint->listeners, &endpoint->closing_listeners}) {
      for (auto& l : *list) await([&] { return is_closed(*l); });
    }
    for (auto* list : {&endpoint->connections, &endpoint->closing_connections}) {
      for (auto& c : *list) await([&] { return is_closed(*c); });
    }
    endpoint->host->stop();
    HandlePool<canary_endpoint>::give(endpoint);
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_endpoint_rails(canary_endpoint* handle, canary_rail* rails, size_t capacity,
                                               size_t* count) {
  return guarded([&]() -> canary_status {
    if (handle == nullptr || count == nullptr || (rails == nullptr && capacity != 0))
      return invalid("canary_endpoint_rails: a NULL argument");
    canary_endpoint* const endpoint = HandlePool<canary_endpoint>::find(handle);
    if (endpoint == nullptr) return HandlePool<canary_endpoint>::refuse("canary_endpoint_rails", handle);
    std::vector<Rail> nics;
    for (const Rail& rail : endpoint->host->endpoint().rails()) {
      if (!is_shared_memory(rail)) nics.push_back(rail);
    }
    list(nics, rails, capacity, count);
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_endpoint_stats(canary_endpoint* handle, canary_nic_stats* nics, size_t capacity,
                                               size_t* count) {
  return guarded([&]() -> canary_status {
    if (handle == nullptr || count == nullptr || (nics == nullptr && capacity != 0))
      return invalid("canary_endpoint_stats: a NULL argument");
    canary_endpoint* const endpoint = HandlePool<canary_endpoint>::find(handle);
    if (endpoint == nullptr) return HandlePool<canary_endpoint>::refuse("canary_endpoint_stats", handle);
    EndpointHost& host = *endpoint->host;
    const auto rails = host.endpoint().rails();
    *count = 0;
    std::vector<RailStats> stats(rails.size());
    OpTicket ticket;
    const port::TicketId id = host.endpoint().ticket_id(ticket);
    if (Status s = host.submit(port::stats(stats.data(), stats.size() * sizeof stats[0], id)); !s.ok())
      return report(s.wrap("canary_endpoint_stats"));
    await([&] { return ticket.done(); });
    for (std::size_t i = 0; i < rails.size(); ++i) {
      if (!is_listed(rails[i], stats[i])) continue;
      if (++*count > capacity) continue;
      nics[*count - 1] = nic_stats(rails[i], stats[i], host.kernel_tx_bytes(static_cast<int>(i)));
    }
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_list_nics(const canary_config* config, canary_rail* rails, size_t capacity,
                                          size_t* count) {
  return guarded([&]() -> canary_status {
    if (count == nullptr || (rails == nullptr && capacity != 0)) return invalid("canary_list_nics: a NULL argument");
    Settings settings;
    if (Status s = read_settings(config, &settings); !s.ok()) return report(s);
    const auto chosen = EndpointHost::choose(settings);
    if (!chosen.ok()) return report(chosen.status());
    list(chosen.value(), rails, capacity, count);
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_get_setting(const canary_config* config, const char* name, int64_t* value) {
  return guarded([&]() -> canary_status {
    if (name == nullptr || value == nullptr) return invalid("canary_get_setting: a NULL argument");
    Settings settings;
    if (Status s = read_settings(config, &settings); !s.ok()) return report(s);
    const auto number = settings.number(name);
    if (!number.ok()) return report(number.status());
    *value = number.value();
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_listen(canary_endpoint* endpoint, void* handle, canary_listener** listener) {
  return canary_listen_short(endpoint, handle, CANARY_HANDLE_BYTES, listener);
}

CANARY_API canary_status canary_listen_short(canary_endpoint* at, void* handle, size_t handle_bytes,
                                             canary_listener** listener) {
  return guarded([&]() -> canary_status {
    if (at == nullptr || handle == nullptr || listener == nullptr) return invalid("canary_listen: a NULL argument");
    canary_endpoint* const endpoint = HandlePool<canary_endpoint>::find(at);
    if (endpoint == nullptr) return HandlePool<canary_endpoint>::refuse("canary_listen", at);
    if (handle_bytes < CANARY_HANDLE_BYTES_MIN || handle_bytes > CANARY_HANDLE_BYTES)
      return invalid("canary_listen_short: handle_bytes " + std::to_string(handle_bytes) + ": takes " +
                     std::to_string(CANARY_HANDLE_BYTES_MIN) + " to " + std::to_string(CANARY_HANDLE_BYTES));
    Kept<canary_listener> made(HandlePool<canary_listener>::take());
    made->endpoint = endpoint;
    made->core = std::make_unique<Listener>();
    EndpointHost& host = *endpoint->host;
    host.endpoint().make_handle(made->core.get(), {static_cast<std::byte*>(handle), handle_bytes});
    const port::ListenerId id = made->core->id;
    canary_listener* const out = HandlePool<canary_listener>::open(*made);
    {
      const std::lock_guard lock(endpoint->mutex);
      endpoint->listeners.push_back(std::move(made));
    }
    if (Status s = host.submit(port::listen(id)); !s.ok()) return report(s.wrap("canary_listen"));
    *listener = out;
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_close_listener(canary_listener* handle) {
  return guarded([&]() -> canary_status {
    canary_listener* const listener = HandlePool<canary_listener>::find(handle);
    if (listener == nullptr) return HandlePool<canary_listener>::refuse("canary_close_listener", handle);
    canary_endpoint& e = *listener->endpoint;
    retire(e, listener, e.listeners, e.closing_listeners);
    return CANARY_OK;
  });
}

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
      host.endpoint().add(*c.core);
      canary_connection* const kept = endpoint->keep(std::move(made));
      if (Status s = host.submit(port::connect(c.core->id, c.handle)); !s.ok()) {
        retire(*endpoint, &c, endpoint->connections, endpoint->closing_connections);
        return report(s.wrap("canary_connect"));
      }
      *connection = kept;
      return CANARY_WOULD_BLOCK;
    }
    canary_connection* const found = HandlePool<canary_connection>::find(*connection);
    if (found == nullptr) return HandlePool<canary_connection>::refuse("canary_connect", *connection);
    canary_connection& c = *found;
    switch (c.core->state.load(std::memory_order_acquire)) {
      case Connection::State::kOpening:
        return CANARY_WOULD_BLOCK;
      case Connection::State::kUp:
        c.told = true;
        return CANARY_OK;
      case Connection::State::kFailed:
        break;
    }
    const Status why = c.core->failure.wrap("canary_connect");
    retire(*endpoint, &c, endpoint->connections, endpoint->closing_connections);
    *connection = nullptr;
    return report(why);
  });
}

CANARY_API canary_status canary_accept(canary_listener* handle, canary_connection** connection) {
  return guarded([&]() -> canary_status {
    if (handle == nullptr || connection == nullptr) return invalid("canary_accept: a NULL argument");
    *connection = nullptr;
    canary_listener* const listener = HandlePool<canary_listener>::find(handle);
    if (listener == nullptr) return HandlePool<canary_listener>::refuse("canary_accept", handle);
    Kept<canary_connection> made(HandlePool<canary_connection>::take());
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
    canary_connection* const connection = HandlePool<canary_connection>::find(handle);
    if (connection == nullptr) return HandlePool<canary_connection>::refuse("canary_close", handle);
    canary_endpoint& e = *connection->endpoint;
    if (connection->in_flight != 0) {
      connection->close();
      // Their buffers are the caller's when this returns, so nothing may touch them any more.
      start_close(*e.host, *connection);
      await([&] { return is_closed(*connection); });
      drop(e, e.connections, connection);
    } else {
      retire(e, connection, e.connections, e.closing_connections);
    }
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_abort_connection(canary_connection* handle, const char* why) {
  return guarded([&]() -> canary_status {
    if (handle == nullptr || why == nullptr) return invalid("canary_abort_connection: a NULL argument");
    canary_connection* const connection = HandlePool<canary_connection>::find(handle);
    if (connection == nullptr) return HandlePool<canary_connection>::refuse("canary_abort_connection", handle);
    std::string text = why;
    if (connection->aborted.exchange(true, std::memory_order_relaxed)) return CANARY_OK;
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
    canary_connection* connection = nullptr;
    if (const auto s = usable("canary_isend", handle, &connection, request); s != CANARY_OK) return s;
    port::Terms terms;
    if (Status s = read_options(options, &terms.priority, &terms.time_limit); !s.ok())
      return report(s.wrap("canary_isend"));
    const canary_registration* registration = nullptr;
    if (const auto s = resolve("canary_isend", registered, &registration); s != CANARY_OK) return s;
    if (const auto s = check_registration("canary_isend", *connection, data, bytes, registration); s != CANARY_OK)
      return s;
    canary_request* const r = connection->take();
    if (r == nullptr) return CANARY_WOULD_BLOCK;
    const port::Command command = port::send(connection->core->id, data, bytes, tag, r->ticket.id(), terms);
    return post("canary_isend", *connection, {&command, 1}, r, request);
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
    canary_connection* connection = nullptr;
    if (const auto s = usable("canary_irecv", handle, &connection, request); s != CANARY_OK) return s;
    port::Terms terms;
    if (Status s = read_options(options, &terms.priority, &terms.time_limit); !s.ok())
      return report(s.wrap("canary_irecv"));
    if (count < 1 || count > CANARY_RECEIVES_MAX)
      return invalid("canary_irecv: count " + std::to_string(count) + ": takes 1 to " +
                     std::to_string(CANARY_RECEIVES_MAX));
    if (data == nullptr || bytes == nullptr) return invalid("canary_irecv: a NULL argument");
    std::array<port::Command, CANARY_RECEIVES_MAX> unit;
    canary_request* first = nullptr;
    canary_status refused = CANARY_OK;
    for (int i = count; i-- > 0 && refused == CANARY_OK;) {
      const canary_registration* registration = nullptr;
      const canary_registration* named = registrations != nullptr ? registrations[i] : nullptr;
      refused = resolve("canary_irecv", named, &registration);
      if (refused != CANARY_OK) break;
      refused = check_registration("canary_irecv", *connection, data[i], bytes[i], registration);
      if (refused != CANARY_OK) break;
      canary_request* const r = connection->take();
      if (r == nullptr) {
        refused = CANARY_WOULD_BLOCK;
        break;
      }
      const std::uint32_t tag = tags != nullptr ? tags[i] : 0;
      port::Command& c = unit[static_cast<std::size_t>(i)];
      c = port::receive(connection->core->id, data[i], bytes[i], tag, r->ticket.id(), terms);
      c.more_follows = i + 1 < count ? 1 : 0;
      r->also = first;
      first = r;
    }
    if (refused != CANARY_OK) {
      give_back(*connection, first);
      return refused;
    }
    const auto entries = std::span<const port::Command>(unit).first(static_cast<std::size_t>(count));
    return post("canary_irecv", *connection, entries, first, request);
  });
}

CANARY_API canary_status canary_test(canary_request* handle, size_t* bytes) {
  canary_request* const request = HandlePool<canary_request>::find(handle);
  if (request == nullptr) return guarded([&] { return HandlePool<canary_request>::refuse("canary_test", handle); });
  for (const canary_request* r = request; r != nullptr; r = r->also) {
    if (!r->ticket.done()) return CANARY_WOULD_BLOCK;
  }
  HandlePool<canary_request>::close(*request);
  canary_status result = CANARY_OK;
  for (canary_request* r = request; r != nullptr;) {
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

// The C ABI of connections without a group, over runtime/endpoint_host.h: handles, requests, arguments. All I/O is the
// endpoint's thread's.
#include <algorithm>
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

static_assert(CANARY_HANDLE_BYTES == kHandleBytes);

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
  MessageRequest message;
  canary_request* also = nullptr;
  canary_request* next = nullptr;  // free, of its connection
  void clear() {}
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

  void make_requests() {
    requests.reserve(kRequests);
    while (requests.size() < kRequests) {
      requests.emplace_back(HandlePool<canary_request>::take());
      requests.back()->connection = this;
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
    c->make_requests();
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
void await(const std::atomic<bool>& flag) {
  while (!flag.load(std::memory_order_acquire)) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

void start_close(EndpointHost& host, canary_connection& c) {
  EndpointCommand command;
  command.kind = EndpointCommand::Kind::kClose;
  command.connection = c.core.get();
  host.submit(command);
}

void start_close(EndpointHost& host, canary_listener& l) {
  EndpointCommand command;
  command.kind = EndpointCommand::Kind::kCloseListener;
  command.listener = l.core.get();
  host.submit(command);
}

const std::atomic<bool>& closed_flag(const canary_connection& c) { return c.core->closed; }
const std::atomic<bool>& closed_flag(const canary_listener& l) { return l.core->closed; }

// Says that it is closed and leaves it to be freed when the endpoint's thread has heard.
template <typename T>
void retire(canary_endpoint& e, T* which, std::vector<Kept<T>>& list, std::vector<Kept<T>>& closing) {
  which->close();
  start_close(*e.host, *which);
  const std::lock_guard lock(e.mutex);
  std::erase_if(closing, [](const auto& p) { return closed_flag(*p).load(std::memory_order_acquire); });
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

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return a_bytes != 0 && b_bytes != 0 && (x <= y ? y - x < a_bytes : x - y < b_bytes);
}

canary_status check_buffer(const char* call, const canary_connection& c, const void* data, std::size_t bytes,
                           const canary_registration* registration) {
  if (data == nullptr && bytes != 0) return invalid(std::string(call) + ": data is NULL");
  if (bytes > wire::kMessageBytesMax)
    return invalid(std::string(call) + ": " + std::to_string(bytes) + " bytes: a message has less than 1 TiB");
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

// Hands it over; without room nothing has happened.
canary_status post(canary_connection& c, canary_request* first, canary_request** out) {
  EndpointCommand command;
  command.kind = EndpointCommand::Kind::kPost;
  command.message = &first->message;
  canary_request* const handle = HandlePool<canary_request>::open(*first);
  if (c.endpoint->host->try_submit(command)) {
    *out = handle;
    return CANARY_OK;
  }
  HandlePool<canary_request>::close(*first);
  while (first != nullptr) {
    canary_request* following = first->also;
    c.give(first);
    first = following;
  }
  return CANARY_WOULD_BLOCK;
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
      for (auto& l : *list) await(closed_flag(*l));
    }
    for (auto* list : {&endpoint->connections, &endpoint->closing_connections}) {
      for (auto& c : *list) await(closed_flag(*c));
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
    EndpointStats stats;
    stats.rails.resize(rails.size());
    EndpointCommand command;
    command.kind = EndpointCommand::Kind::kStats;
    command.stats = &stats;
    host.submit(command);
    await(stats.filled);
    for (std::size_t i = 0; i < rails.size(); ++i) {
      if (!is_listed(rails[i], stats.rails[i])) continue;
      if (++*count > capacity) continue;
      nics[*count - 1] = nic_stats(rails[i], stats.rails[i], host.kernel_tx_bytes(static_cast<int>(i)));
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
    EndpointCommand command;
    command.kind = EndpointCommand::Kind::kListen;
    command.listener = made->core.get();
    canary_listener* const out = HandlePool<canary_listener>::open(*made);
    {
      const std::lock_guard lock(endpoint->mutex);
      endpoint->listeners.push_back(std::move(made));
    }
    host.submit(command);
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
      auto remote =
          decode_handle(std::span<const std::byte, kHandleBytes>(static_cast<const std::byte*>(handle), kHandleBytes));
      if (!remote.ok()) return report(remote.status().wrap("canary_connect"));
      Kept<canary_connection> made(HandlePool<canary_connection>::take());
      made->core = std::make_unique<Connection>();
      made->core->remote = remote.take();
      EndpointCommand command;
      command.kind = EndpointCommand::Kind::kConnect;
      command.connection = made->core.get();
      canary_connection* kept = endpoint->keep(std::move(made));
      endpoint->host->submit(command);
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
      await(connection->core->closed);
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
    Connection& core = *connection->core;
    std::string text = why;
    if (core.aborted.exchange(true, std::memory_order_relaxed)) return CANARY_OK;
    core.why_aborted = std::move(text);
    EndpointCommand command;
    command.kind = EndpointCommand::Kind::kAbort;
    command.connection = &core;
    connection->endpoint->host->submit(command);
    return CANARY_OK;
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
    canary_priority priority = CANARY_PRIORITY_NORMAL;
    Nanos time_limit;
    if (Status s = read_options(options, &priority, &time_limit); !s.ok()) return report(s.wrap("canary_isend"));
    const canary_registration* registration = nullptr;
    if (const auto s = resolve("canary_isend", registered, &registration); s != CANARY_OK) return s;
    if (const auto s = check_buffer("canary_isend", *connection, data, bytes, registration); s != CANARY_OK) return s;
    canary_request* r = connection->take();
    if (r == nullptr) return CANARY_WOULD_BLOCK;
    MessageRequest& m = r->message;
    // The engine only reads a send's buffer.
    m.data = static_cast<std::byte*>(const_cast<void*>(data));
    m.bytes = bytes;
    m.tag = tag;
    m.sends = true;
    m.priority = priority;
    m.time_limit = time_limit;
    m.flow = &connection->core->flow;
    m.also = nullptr;
    m.ticket = &r->ticket;
    return post(*connection, r, request);
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
    canary_priority priority = CANARY_PRIORITY_NORMAL;
    Nanos time_limit;
    if (Status s = read_options(options, &priority, &time_limit); !s.ok()) return report(s.wrap("canary_irecv"));
    if (count < 1 || count > CANARY_RECEIVES_MAX)
      return invalid("canary_irecv: count " + std::to_string(count) + ": takes 1 to " +
                     std::to_string(CANARY_RECEIVES_MAX));
    if (data == nullptr || bytes == nullptr) return invalid("canary_irecv: a NULL argument");
    for (int i = 0; i < count; ++i) {
      const canary_registration* registration = nullptr;
      const canary_registration* named = registrations != nullptr ? registrations[i] : nullptr;
      if (const auto s = resolve("canary_irecv", named, &registration); s != CANARY_OK) return s;
      if (const auto s = check_buffer("canary_irecv", *connection, data[i], bytes[i], registration); s != CANARY_OK)
        return s;
      for (int j = 0; j < i; ++j) {
        if (overlap(data[i], bytes[i], data[j], bytes[j]))
          return invalid("canary_irecv: entries " + std::to_string(j) + " and " + std::to_string(i) + " overlap");
      }
    }
    canary_request* first = nullptr;
    for (int i = count; i-- > 0;) {
      canary_request* r = connection->take();
      if (r == nullptr) {
        while (first != nullptr) {
          canary_request* following = first->also;
          connection->give(first);
          first = following;
        }
        return CANARY_WOULD_BLOCK;
      }
      MessageRequest& m = r->message;
      m.data = static_cast<std::byte*>(data[i]);
      m.bytes = bytes[i];
      m.tag = tags != nullptr ? tags[i] : 0;
      m.sends = false;
      m.priority = priority;
      m.time_limit = time_limit;
      m.flow = &connection->core->flow;
      m.also = first != nullptr ? &first->message : nullptr;
      m.ticket = &r->ticket;
      r->also = first;
      first = r;
    }
    return post(*connection, first, request);
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
    if (bytes != nullptr) *bytes++ = r->message.sends ? r->message.bytes : r->message.received_bytes;
    canary_request* following = r->also;
    r->connection->give(r);
    r = following;
  }
  return result;
}

}  // extern "C"

// The C ABI of connections without a group, over embed/endpoint_host.h: handles, requests, arguments. All I/O is the endpoint's thread's.
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
#include "embed/endpoint_host.h"
#include "embed/last_error.h"
#include "embed/nic_stats.h"

using namespace canarynet;

static_assert(CANARY_HANDLE_BYTES == kHandleBytes);

struct canary_registration {
  canary_endpoint* endpoint = nullptr;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// One message. A grouped receive is a chain of them, the first one is the handle.
struct canary_request {
  canary_connection* connection = nullptr;
  OpTicket ticket;
  MessageRequest message;
  canary_request* also = nullptr;
  canary_request* next_free = nullptr;
};

struct canary_connection {
  static constexpr std::size_t kRequests = 64;
  canary_endpoint* endpoint = nullptr;
  std::unique_ptr<Connection> core;
  std::unique_ptr<canary_request[]> requests;  // of one thread at a time: no lock
  canary_request* free_requests = nullptr;
  std::size_t in_flight = 0;
  bool told = false;  // canary_connect has given its result

  void make_requests() {
    requests = std::make_unique<canary_request[]>(kRequests);
    for (std::size_t i = kRequests; i-- > 0;) {
      requests[i].connection = this;
      requests[i].next_free = free_requests;
      free_requests = &requests[i];
    }
  }
  canary_request* take() {
    canary_request* r = free_requests;
    if (r == nullptr) return nullptr;
    free_requests = r->next_free;
    ++in_flight;
    r->ticket.reset();
    r->also = nullptr;
    return r;
  }
  void give(canary_request* r) {
    r->next_free = free_requests;
    free_requests = r;
    --in_flight;
  }
};

struct canary_listener {
  canary_endpoint* endpoint = nullptr;
  Listener core;
};

struct canary_endpoint {
  std::unique_ptr<EndpointHost> host;
  std::mutex mutex;  // the lists only
  std::vector<std::unique_ptr<canary_listener>> listeners;
  std::vector<std::unique_ptr<canary_connection>> connections;
  std::vector<std::unique_ptr<canary_registration>> registrations;
  // Closed by their users, until the endpoint's thread has forgotten them too: closing waits for nobody.
  std::vector<std::unique_ptr<canary_listener>> closing_listeners;
  std::vector<std::unique_ptr<canary_connection>> closing_connections;

  canary_connection* keep(std::unique_ptr<canary_connection> c) {
    c->endpoint = this;
    c->make_requests();
    const std::lock_guard lock(mutex);
    connections.push_back(std::move(c));
    return connections.back().get();
  }
};

namespace {

template <typename T>
void drop(canary_endpoint& e, std::vector<std::unique_ptr<T>>& list, const T* which) {
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
  command.listener = &l.core;
  host.submit(command);
}

const std::atomic<bool>& closed_flag(const canary_connection& c) { return c.core->closed; }
const std::atomic<bool>& closed_flag(const canary_listener& l) { return l.core.closed; }

// Says that it is closed and leaves it to be freed when the endpoint's thread has heard.
template <typename T>
void retire(canary_endpoint& e, T* which, std::vector<std::unique_ptr<T>>& list,
            std::vector<std::unique_ptr<T>>& closing) {
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

canary_status usable(const char* call, const canary_connection* c, canary_request** request) {
  if (request != nullptr) *request = nullptr;
  if (c == nullptr || request == nullptr) return invalid(std::string(call) + ": a NULL argument");
  if (!c->told) return invalid(std::string(call) + ": the connection is not made yet");
  return CANARY_OK;
}

// Hands it over; without room nothing has happened.
canary_status post(canary_connection& c, canary_request* first, canary_request** out) {
  EndpointCommand command;
  command.kind = EndpointCommand::Kind::kPost;
  command.message = &first->message;
  if (c.endpoint->host->try_submit(command)) {
    *out = first;
    return CANARY_OK;
  }
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
    auto e = std::make_unique<canary_endpoint>();
    e->host = host.take();
    *endpoint = e.release();
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_endpoint_destroy(canary_endpoint* endpoint) {
  if (endpoint == nullptr) return invalid("canary_endpoint_destroy: endpoint is NULL");
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
  delete endpoint;
  return CANARY_OK;
}

CANARY_API canary_status canary_endpoint_rails(canary_endpoint* endpoint, canary_rail* rails, size_t capacity,
                                               size_t* count) {
  return guarded([&]() -> canary_status {
    if (endpoint == nullptr || count == nullptr || (rails == nullptr && capacity != 0))
      return invalid("canary_endpoint_rails: a NULL argument");
    list(endpoint->host->endpoint().rails(), rails, capacity, count);
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_endpoint_stats(canary_endpoint* endpoint, canary_nic_stats* nics, size_t capacity,
                                               size_t* count) {
  return guarded([&]() -> canary_status {
    if (endpoint == nullptr || count == nullptr || (nics == nullptr && capacity != 0))
      return invalid("canary_endpoint_stats: a NULL argument");
    EndpointHost& host = *endpoint->host;
    const auto rails = host.endpoint().rails();
    *count = rails.size();
    if (capacity == 0) return CANARY_OK;
    EndpointStats stats;
    stats.rails.resize(rails.size());
    EndpointCommand command;
    command.kind = EndpointCommand::Kind::kStats;
    command.stats = &stats;
    host.submit(command);
    await(stats.filled);
    for (std::size_t i = 0; i < std::min(capacity, rails.size()); ++i)
      nics[i] = nic_stats(rails[i], stats.rails[i], host.kernel_tx_bytes(static_cast<int>(i)));
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

CANARY_API canary_status canary_listen_short(canary_endpoint* endpoint, void* handle, size_t handle_bytes,
                                             canary_listener** listener) {
  return guarded([&]() -> canary_status {
    if (endpoint == nullptr || handle == nullptr || listener == nullptr)
      return invalid("canary_listen: a NULL argument");
    if (handle_bytes < CANARY_HANDLE_BYTES_MIN || handle_bytes > CANARY_HANDLE_BYTES)
      return invalid("canary_listen_short: handle_bytes " + std::to_string(handle_bytes) + ": takes " +
                     std::to_string(CANARY_HANDLE_BYTES_MIN) + " to " + std::to_string(CANARY_HANDLE_BYTES));
    auto made = std::make_unique<canary_listener>();
    made->endpoint = endpoint;
    EndpointHost& host = *endpoint->host;
    host.endpoint().make_handle(&made->core, {static_cast<std::byte*>(handle), handle_bytes});
    EndpointCommand command;
    command.kind = EndpointCommand::Kind::kListen;
    command.listener = &made->core;
    canary_listener* const out = made.get();
    {
      const std::lock_guard lock(endpoint->mutex);
      endpoint->listeners.push_back(std::move(made));
    }
    host.submit(command);
    *listener = out;
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_close_listener(canary_listener* listener) {
  if (listener == nullptr) return invalid("canary_close_listener: listener is NULL");
  canary_endpoint& e = *listener->endpoint;
  return guarded([&]() -> canary_status {
    retire(e, listener, e.listeners, e.closing_listeners);
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_connect(canary_endpoint* endpoint, const void* handle, canary_connection** connection) {
  return guarded([&]() -> canary_status {
    if (endpoint == nullptr || connection == nullptr) return invalid("canary_connect: a NULL argument");
    if (*connection == nullptr) {
      if (handle == nullptr) return invalid("canary_connect: handle is NULL");
      auto remote =
          decode_handle(std::span<const std::byte, kHandleBytes>(static_cast<const std::byte*>(handle), kHandleBytes));
      if (!remote.ok()) return report(remote.status().wrap("canary_connect"));
      auto made = std::make_unique<canary_connection>();
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
    canary_connection& c = **connection;
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

CANARY_API canary_status canary_accept(canary_listener* listener, canary_connection** connection) {
  return guarded([&]() -> canary_status {
    if (listener == nullptr || connection == nullptr) return invalid("canary_accept: a NULL argument");
    *connection = nullptr;
    Connection* core = nullptr;
    if (!listener->core.accepted.pop(&core)) return CANARY_WOULD_BLOCK;
    auto made = std::make_unique<canary_connection>();
    made->core.reset(core);
    made->told = true;
    *connection = listener->endpoint->keep(std::move(made));
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_close(canary_connection* connection) {
  if (connection == nullptr) return invalid("canary_close: connection is NULL");
  canary_endpoint& e = *connection->endpoint;
  return guarded([&]() -> canary_status {
    if (connection->in_flight != 0) {
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

CANARY_API canary_status canary_abort_connection(canary_connection* connection, const char* why) {
  if (connection == nullptr || why == nullptr) return invalid("canary_abort_connection: a NULL argument");
  return guarded([&]() -> canary_status {
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

CANARY_API canary_status canary_register(canary_endpoint* endpoint, void* data, size_t bytes,
                                         canary_registration** registration) {
  return guarded([&]() -> canary_status {
    if (endpoint == nullptr || registration == nullptr || (data == nullptr && bytes != 0))
      return invalid("canary_register: a NULL argument");
    auto r = std::make_unique<canary_registration>();
    *r = {endpoint, static_cast<const std::byte*>(data), bytes};
    const std::lock_guard lock(endpoint->mutex);
    endpoint->registrations.push_back(std::move(r));
    *registration = endpoint->registrations.back().get();
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_deregister(canary_registration* registration) {
  if (registration == nullptr) return invalid("canary_deregister: registration is NULL");
  canary_endpoint& e = *registration->endpoint;
  drop(e, e.registrations, registration);
  return CANARY_OK;
}

CANARY_API canary_status canary_isend(canary_connection* connection, const void* data, size_t bytes, uint32_t tag,
                                      canary_registration* registration, canary_request** request) {
  return guarded([&]() -> canary_status {
    if (const auto s = usable("canary_isend", connection, request); s != CANARY_OK) return s;
    if (const auto s = check_buffer("canary_isend", *connection, data, bytes, registration); s != CANARY_OK) return s;
    canary_request* r = connection->take();
    if (r == nullptr) return CANARY_WOULD_BLOCK;
    MessageRequest& m = r->message;
    // The engine only reads a send's buffer.
    m.data = static_cast<std::byte*>(const_cast<void*>(data));
    m.bytes = bytes;
    m.tag = tag;
    m.sends = true;
    m.flow = &connection->core->flow;
    m.also = nullptr;
    m.ticket = &r->ticket;
    return post(*connection, r, request);
  });
}

CANARY_API canary_status canary_irecv(canary_connection* connection, int count, void* const* data, const size_t* bytes,
                                      const uint32_t* tags, canary_registration* const* registrations,
                                      canary_request** request) {
  return guarded([&]() -> canary_status {
    if (const auto s = usable("canary_irecv", connection, request); s != CANARY_OK) return s;
    if (count < 1 || count > CANARY_RECEIVES_MAX)
      return invalid("canary_irecv: count " + std::to_string(count) + ": takes 1 to " +
                     std::to_string(CANARY_RECEIVES_MAX));
    if (data == nullptr || bytes == nullptr) return invalid("canary_irecv: a NULL argument");
    for (int i = 0; i < count; ++i) {
      const auto* registration = registrations != nullptr ? registrations[i] : nullptr;
      if (const auto s = check_buffer("canary_irecv", *connection, data[i], bytes[i], registration); s != CANARY_OK)
        return s;
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
      m.flow = &connection->core->flow;
      m.also = first != nullptr ? &first->message : nullptr;
      m.ticket = &r->ticket;
      r->also = first;
      first = r;
    }
    return post(*connection, first, request);
  });
}

CANARY_API canary_status canary_test(canary_request* request, size_t* bytes) {
  if (request == nullptr) return invalid("canary_test: request is NULL");
  for (const canary_request* r = request; r != nullptr; r = r->also) {
    if (!r->ticket.done()) return CANARY_WOULD_BLOCK;
  }
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

// The C ABI of endpoints and their listeners, over runtime/endpoint_host.h. All I/O is the endpoint's thread's.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "canarynet/canarynet.h"
#include "embed/endpoint_handles.h"
#include "embed/last_error.h"
#include "embed/nic_stats.h"
#include "runtime/endpoint_host.h"

using namespace canarynet;

namespace {

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

}  // namespace

extern "C" {

CANARY_API canary_status canary_endpoint_create(const canary_config* config, canary_endpoint** endpoint) {
  return guarded([&]() -> canary_status {
    if (endpoint == nullptr) return invalid("canary_endpoint_create: endpoint is NULL");
    Settings settings;
    if (Status s = read_settings(config, &settings); !s.ok()) return report(s);
    Kept<canary_endpoint> e(HandlePool<canary_endpoint>::take());
    e->over = false;
    auto host = EndpointHost::create(std::move(settings), e->over);
    if (!host.ok()) return report(host.status());
    e->host = host.take();
    *endpoint = HandlePool<canary_endpoint>::open(*e.release());
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_endpoint_destroy(canary_endpoint* handle) {
  return guarded([&]() -> canary_status {
    canary_endpoint* endpoint = HandlePool<canary_endpoint>::find(handle);
    if (endpoint == nullptr || !HandlePool<canary_endpoint>::close(*endpoint, handle))
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
    await([&] { return ticket.done() || host.over(); });
    if (!ticket.done()) return report(host.why_over().wrap("canary_endpoint_stats"));
    for (std::size_t i = 0; i < rails.size(); ++i) {
      if (!is_listed(rails[i], stats[i])) continue;
      if (++*count > capacity) continue;
      nics[*count - 1] = nic_stats(rails[i], stats[i], host.kernel_tx_bytes(static_cast<int>(i)));
    }
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_endpoint_fd(canary_endpoint* handle, int* fd) {
  return guarded([&]() -> canary_status {
    if (fd == nullptr) return invalid("canary_endpoint_fd: fd is NULL");
    canary_endpoint* const endpoint = HandlePool<canary_endpoint>::find(handle);
    if (endpoint == nullptr) return HandlePool<canary_endpoint>::refuse("canary_endpoint_fd", handle);
    const std::lock_guard lock(endpoint->mutex);
    const auto opened = endpoint->host->open_bell();
    if (!opened.ok()) return report(opened.status().wrap("canary_endpoint_fd"));
    *fd = opened.value();
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_endpoint_drain(canary_endpoint* handle) {
  return guarded([&]() -> canary_status {
    canary_endpoint* const endpoint = HandlePool<canary_endpoint>::find(handle);
    if (endpoint == nullptr) return HandlePool<canary_endpoint>::refuse("canary_endpoint_drain", handle);
    if (!endpoint->host->has_bell())
      return invalid("canary_endpoint_drain: this endpoint has no descriptor: canary_endpoint_fd makes it");
    endpoint->host->drain_bell();
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
    list(chosen.value().rails, rails, capacity, count);
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
    Alone<canary_listener> listener(handle);
    if (!listener) return Alone<canary_listener>::refuse("canary_close_listener", handle);
    canary_endpoint& e = *listener->endpoint;
    retire(e, &listener.stay(), e.listeners, e.closing_listeners);
    return CANARY_OK;
  });
}

}  // extern "C"

// embed/endpoint_handles.h -- what C callers hold of an endpoint: itself, its listeners, connections, requests and
// registrations, and how each of them ends.
//
// Memory: an object and what commands refer to in it (handles, reasons, tickets) stay until the endpoint's thread has
// forgotten it. Threads: as canarynet.h says of each call.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "canarynet/canarynet.h"
#include "embed/handles.h"
#include "runtime/endpoint_host.h"

struct canary_registration : canarynet::Handled {
  static constexpr std::uint8_t kKind = 0xC4;
  static constexpr const char* kName = "registration";
  static constexpr const char* kEnds = "it was deregistered, or its endpoint destroyed";
  canary_endpoint* endpoint = nullptr;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  void clear() {}
};

// One message. A grouped receive is a chain of them, the first one has the handle.
struct canary_request : canarynet::Handled {
  static constexpr std::uint8_t kKind = 0xC5;
  static constexpr const char* kName = "request";
  static constexpr const char* kEnds = "its result was told, or its connection closed";
  canary_connection* connection = nullptr;
  canarynet::OpTicket ticket;
  canary_request* also = nullptr;
  canary_request* next = nullptr;  // free, of its connection
  void clear() {
    ticket.leave_table();
    ticket.news = nullptr;
  }
};

struct canary_connection : canarynet::Handled {
  static constexpr std::uint8_t kKind = 0xC6;
  static constexpr const char* kName = "connection";
  static constexpr const char* kEnds = "it was closed, or its endpoint destroyed";
  static constexpr std::size_t kRequests = 64;
  canary_endpoint* endpoint = nullptr;
  std::unique_ptr<canarynet::Connection> core;
  std::vector<canarynet::Kept<canary_request>> requests;  // of one thread at a time: no lock
  canary_request* free_requests = nullptr;
  std::size_t in_flight = 0;
  bool told = false;  // canary_connect has given its result
  // Commands refer to these until the endpoint has forgotten the connection.
  std::array<std::byte, canarynet::kHandleBytes> handle{};
  bool aborted = false;
  std::string why_aborted;

  void make_requests(canarynet::EndpointHost& host) {
    requests.reserve(kRequests);
    while (requests.size() < kRequests) {
      requests.emplace_back(canarynet::HandlePool<canary_request>::take());
      requests.back()->connection = this;
      requests.back()->ticket.news = &host.news();
      host.endpoint().ticket_id(requests.back()->ticket);
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
    canarynet::HandlePool<canary_connection>::close(*this);
    for (const auto& r : requests) canarynet::HandlePool<canary_request>::close(*r);
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

struct canary_listener : canarynet::Handled {
  static constexpr std::uint8_t kKind = 0xC7;
  static constexpr const char* kName = "listener";
  static constexpr const char* kEnds = "it was closed, or its endpoint destroyed";
  canary_endpoint* endpoint = nullptr;
  std::unique_ptr<canarynet::Listener> core;
  void close() { canarynet::HandlePool<canary_listener>::close(*this); }
  void clear() { core.reset(); }
};

struct canary_endpoint : canarynet::Handled {
  static constexpr std::uint8_t kKind = 0xC8;
  static constexpr const char* kName = "endpoint";
  static constexpr const char* kEnds = "it was destroyed";
  std::unique_ptr<canarynet::EndpointHost> host;
  std::atomic<bool> over{false};  // the host's: threads that test a request read it beside the endpoint's end
  std::mutex mutex;               // the lists, and that what is closed or aborted is still in them
  std::vector<canarynet::Kept<canary_listener>> listeners;
  std::vector<canarynet::Kept<canary_connection>> connections;
  std::vector<canarynet::Kept<canary_registration>> registrations;
  // Closed by their users, until the endpoint's thread has forgotten them too: closing waits for nobody.
  std::vector<canarynet::Kept<canary_listener>> closing_listeners;
  std::vector<canarynet::Kept<canary_connection>> closing_connections;

  // All that may fail for want of memory, before the endpoint knows the connection.
  void prepare(canary_connection& c) {
    c.endpoint = this;
    c.make_requests(*host);
    const std::lock_guard lock(mutex);
    if (connections.size() == connections.capacity()) connections.reserve(connections.size() * 2 + 8);
  }
  // After prepare().
  canary_connection* keep(canarynet::Kept<canary_connection> c) {
    const std::lock_guard lock(mutex);
    try {
      connections.push_back(std::move(c));
    } catch (...) {
      (void)c->core.release();  // another thread took the room: the endpoint knows it, so it can't go
      throw;
    }
    return canarynet::HandlePool<canary_connection>::open(*connections.back());
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

namespace canarynet {

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

// The endpoint knows `which`, so it takes the command.
template <typename T>
void start_close(EndpointHost& host, const T& which) {
  const Status taken = host.submit(port::close(which.core->id));
  CANARY_CHECK(taken.ok() || host.over(), taken.to_string().c_str());
}

// True also where nobody is there to close it.
template <typename T>
bool is_closed(const T& which) {
  return which.core->closed.load(std::memory_order_acquire) || which.endpoint->host->over();
}

// Says that it is closed and leaves it to be freed when the endpoint's thread has heard. A caller that finds it open
// with the mutex held may use it until then.
template <typename T>
void retire(canary_endpoint& e, T* which, std::vector<Kept<T>>& list, std::vector<Kept<T>>& closing) {
  const std::lock_guard lock(e.mutex);
  which->close();
  start_close(*e.host, *which);
  std::erase_if(closing, [](const auto& p) { return is_closed(*p); });
  const auto at = std::find_if(list.begin(), list.end(), [&](const auto& p) { return p.get() == which; });
  if (at == list.end()) return;
  closing.push_back(std::move(*at));
  std::swap(*at, list.back());
  list.pop_back();
}

}  // namespace canarynet

// sim/endpoint_test_util.h -- for tests: endpoints on a simulated network, and connections between two of them with
// known bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/endpoint.h"
#include "sim/sim_fabric.h"

namespace canarynet {

inline void fill(std::vector<std::byte>* data, std::uint64_t seed) {
  Random r(seed);
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < data->size(); ++i) {
    if (i % 8 == 0) word = r.next();
    (*data)[i] = static_cast<std::byte>(word >> (i % 8 * 8));
  }
}

// Settings with a short silence limit.
inline Settings impatient() {
  Settings s = Settings::defaults();
  s.silence_limit = 1_s;
  return s;
}

// Endpoints on a simulated network, polled when they have something to do.
class Net {
 public:
  using Amend = std::function<void(int host, EndpointOptions*)>;
  explicit Net(int hosts, int rails, FabricOptions options = quick(), Settings settings = Settings::defaults(),
               std::size_t accepted_links_max = EndpointOptions{}.accepted_links_max)
      : Net(Wiring::flat(hosts, rails), options, settings,
            [=](int, EndpointOptions* e) { e->accepted_links_max = accepted_links_max; }) {}
  Net(const Wiring& wiring, FabricOptions options, const Settings& settings, const Amend& amend)
      : fabric(options, wiring) {
    for (int h = 0; h < fabric.hosts(); ++h) {
      EndpointOptions e;
      e.settings = settings;
      e.host_name = "host-" + std::to_string(h);
      e.pid = 1000 + h;
      e.secret = [random = Random(options.seed * 100 + static_cast<std::uint64_t>(h))]() mutable {
        return random.next();
      };
      e.channel_records = 512;
      amend(h, &e);
      endpoints.push_back(std::make_unique<Endpoint>(std::move(e), fabric.factory(h)));
    }
  }
  static FabricOptions quick() {
    FabricOptions o;
    o.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(1000));
    return o;
  }
  Endpoint& at(int host) { return *endpoints[static_cast<std::size_t>(host)]; }
  void submit(int host, std::span<const port::Command> unit) {
    Status taken = at(host).submit(unit);
    if (taken.code() == CANARY_WOULD_BLOCK) {
      at(host).poll(fabric.now());
      taken = at(host).submit(unit);
    }
    ASSERT_TRUE(taken.ok()) << taken.to_string();
  }
  void submit(int host, const port::Command& c) { submit(host, {&c, 1}); }

  void step(Nanos limit) {
    Nanos t = std::min(fabric.next_event(), limit);
    for (std::size_t h = 0; h < endpoints.size(); ++h) {
      if (!endpoints[h] || fabric.frozen(static_cast<int>(h))) continue;
      t = std::min(t, endpoints[h]->has_commands() ? fabric.now() : endpoints[h]->next_deadline());
    }
    t = std::max(t, fabric.now());
    fabric.advance_to(t);
    fabric.take_ready_hosts(&ready_);
    std::size_t work = 0;
    for (std::size_t h = 0; h < endpoints.size(); ++h) {
      if (endpoints[h] && !fabric.frozen(static_cast<int>(h))) work += endpoints[h]->poll(fabric.now());
    }
    idle_ = work == 0 && t <= last_ ? idle_ + 1 : 0;  // a deadline that is always now would stop the clock
    ASSERT_LT(idle_, 1000) << "an endpoint is never satisfied";
    last_ = t;
  }
  bool until(const std::function<bool()>& condition, Nanos span) {
    const Nanos limit = fabric.now() + span;
    while (!condition()) {
      if (fabric.now() >= limit || testing::Test::HasFatalFailure()) return condition();
      step(limit);
    }
    return true;
  }
  void pass(Nanos span) {
    until([] { return false; }, span);
  }
  void kill(int host, CrashKind kind) {
    fabric.crash(host, kind);
    endpoints[static_cast<std::size_t>(host)].reset();
  }

  SimFabric fabric;
  std::vector<std::unique_ptr<Endpoint>> endpoints;

 private:
  std::vector<int> ready_;
  Nanos last_;
  int idle_ = 0;
};

struct Half {
  std::vector<std::byte> data;
  std::uint64_t seed = 0;
  OpTicket ticket;
  bool sends = false;
  MessageEnd* end = nullptr;
};

// A listener on host 1 and connections from host 0 to it. Declare it after the Net, so that it is destroyed first.
class Pair {
 public:
  explicit Pair(Net& net, int from = 0, int to = 1) : net_(net), from_(from), to_(to) {
    net.at(to).make_handle(&listener_, handle);
    net.submit(to, port::listen(listener_.id));
  }
  ~Pair() {
    while (accept() != nullptr) continue;  // the listener's user owns those that nobody has accepted
  }
  Connection& connect() {
    auto& c = connecting.emplace_back(std::make_unique<Connection>());
    net_.at(from_).add(*c);
    net_.submit(from_, port::connect(c->id, handle));
    return *c;
  }
  void open(int connections = 1) {
    for (int i = 0; i < connections; ++i) connect();
    ASSERT_TRUE(net_.until(
        [&] {
          Connection* got = nullptr;
          while (listener_.accepted.pop(&got)) accepted.emplace_back(got);
          const bool up = std::all_of(connecting.begin(), connecting.end(),
                                      [](const auto& c) { return c->state == Connection::State::kUp; });
          return up && accepted.size() == connecting.size();
        },
        2_s));
  }
  Connection* accept() {
    Connection* got = nullptr;
    if (!listener_.accepted.pop(&got)) return nullptr;
    accepted.emplace_back(got);
    return got;
  }
  void close_listener() {
    net_.submit(to_, port::close(listener_.id));
    ASSERT_TRUE(net_.until([&] { return listener_.closed.load(); }, 10_ms));
  }
  void close(int host, Connection& connection) {
    net_.submit(host, port::close(connection.id));
    ASSERT_TRUE(net_.until([&] { return connection.closed.load(); }, 10_ms)) << "close must not wait";
  }
  void abort(int host, Connection& connection, const std::string& why) {
    net_.submit(host, port::abort_connection(connection.id, reasons_.emplace_back(why)));
  }
  // The k-th message of a direction on a connection has the bytes of its seed on both sides.
  Half& send(Connection& c, std::uint64_t bytes, std::uint32_t tag = 0, std::uint64_t seed = 0) {
    Half& h = add(c, bytes, true, seed);
    fill(&h.data, h.seed);
    net_.submit(host_of(c), command(c, h, tag));
    return h;
  }
  Half& receive(Connection& c, std::uint64_t room) {
    Half& h = add(c, room, false, 0);
    net_.submit(host_of(c), command(c, h, 0));
    return h;
  }
  std::vector<Half*> receive_group(Connection& c, const std::vector<std::pair<std::uint64_t, std::uint32_t>>& entries) {
    std::vector<Half*> group;
    std::vector<port::Command> unit;
    for (const auto& [room, tag] : entries) {
      group.push_back(&add(c, room, false, 0));
      unit.push_back(command(c, *group.back(), tag));
      unit.back().more_follows = 1;
    }
    unit.back().more_follows = 0;
    net_.submit(host_of(c), unit);
    return group;
  }
  void expect_all(Nanos span) {
    ASSERT_TRUE(net_.until(
        [&] { return std::all_of(halves.begin(), halves.end(), [](const Half& h) { return h.ticket.done(); }); }, span))
        << "messages did not end";
    for (const Half& h : halves) ASSERT_EQ(h.ticket.code, CANARY_OK) << h.ticket.status.to_string();
    ASSERT_NO_FATAL_FAILURE(expect_bytes());
  }
  void expect_bytes() {
    for (const Half& h : halves) {
      if (h.sends || h.ticket.code != CANARY_OK) continue;
      std::vector<std::byte> expected(h.ticket.bytes);
      fill(&expected, h.seed);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), h.data.begin())) << "message of " << expected.size();
      for (std::size_t i = expected.size(); i < h.data.size(); ++i)
        ASSERT_EQ(h.data[i], std::byte{0xEE}) << "behind its end";
    }
  }

  std::array<std::byte, kHandleBytes> handle{};
  std::vector<std::unique_ptr<Connection>> connecting, accepted;
  std::deque<Half> halves;
  canary_priority priority = CANARY_PRIORITY_NORMAL;  // of what is posted from now on

 private:
  int host_of(const Connection& c) const { return c.end.me == 0 ? from_ : to_; }
  Half& add(Connection& c, std::uint64_t bytes, bool sends, std::uint64_t seed) {
    Half& h = halves.emplace_back();
    const bool from_dialler = (c.end.me == 0) == sends;
    const std::uint64_t k = ++count_[{c.end.flow, from_dialler, sends}];
    h.seed = seed != 0 ? seed : std::uint64_t{c.end.flow} << 20 | k << 1 | (from_dialler ? 1 : 0);
    h.data.resize(bytes, std::byte{0xEE});
    h.sends = sends;
    h.end = &c.end;
    return h;
  }
  port::Command command(const Connection& c, Half& h, std::uint32_t tag) {
    const port::TicketId ticket = net_.at(host_of(c)).ticket_id(h.ticket);
    const port::Terms terms{priority, {}};
    if (h.sends) return port::send(c.id, h.data.data(), h.data.size(), tag, ticket, terms);
    return port::receive(c.id, h.data.data(), h.data.size(), tag, ticket, terms);
  }
  Net& net_;
  int from_, to_;
  Listener listener_;
  std::map<std::tuple<std::uint32_t, bool, bool>, std::uint64_t> count_;
  std::deque<std::string> reasons_;
};

}  // namespace canarynet

// The way in of what callers ask of an endpoint: a queue of messages per connection, and one for all other commands.
//
// Messages are read first: a close or an abort comes after what its caller has handed in before. Connections that were
// called stand in a list, so that a cycle looks at those alone.
#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "engine/endpoint.h"
#include "engine/endpoint_link.h"
#include "port/command_check.h"

namespace canarynet {
namespace {

using Kind = port::Command::Kind;

// Per cycle, so that lanes need not wait for long: what is left over is due at once.
constexpr int kCommandsPerCycle = 1024;
constexpr int kPostedPerCycle = 1024;
static_assert(std::is_trivially_copyable_v<RailStats>);

bool is_message(Kind kind) { return kind == Kind::kSendOn || kind == Kind::kReceiveOn; }

Result<EndpointHandle> handle_of(const port::Command& c, const port::Regions& regions) {
  return decode_handle(std::span<const std::byte, kHandleBytes>(regions.at(c.numbers), kHandleBytes));
}

}  // namespace

// --- any thread ------------------------------------------------------------------------------------------------------

Status Endpoint::check(const port::Command& c) const {
  port::Surroundings here{regions_, 1, {}, false};
  here.endpoint = true;
  if (c.kind == Kind::kListen || c.kind == Kind::kCloseListener) {
    here.listener = listener(c.listener()) != nullptr;
  } else if (const Connection* const to = connection(c.connection); to != nullptr) {
    here.connection = true;
    here.connected = to->state.load(std::memory_order_acquire) == Connection::State::kUp;
  }
  const OpTicket* const ticket = tickets_->at(c.ticket.place);
  here.ticket = ticket != nullptr && ticket->id() == c.ticket;
  here.stats_bytes = factory_.rails().size() * sizeof(RailStats);
  if (Status wrong = port::check_command(c, here); !wrong.ok()) return wrong;
  return c.kind == Kind::kConnect ? handle_of(c, regions_).status() : Status();
}

Status Endpoint::check(std::span<const port::Command> unit) const {
  for (const port::Command& c : unit) {
    if (Status wrong = check(c); !wrong.ok()) return wrong;
  }
  return port::check_unit(unit, regions_);
}

Status Endpoint::submit(std::span<const port::Command> unit) {
  if (Status wrong = check(unit); !wrong.ok()) return wrong;
  if (!is_message(unit[0].kind)) return commands_.push(unit[0]) ? Status() : Status(CANARY_WOULD_BLOCK, "");
  Connection& c = *connection(unit[0].connection);
  if (!c.called.push_all(unit)) return Status(CANARY_WOULD_BLOCK, "");
  if (c.listed.exchange(true, std::memory_order_acq_rel)) return {};
  c.next_called = called_.load(std::memory_order_relaxed);
  while (!called_.compare_exchange_weak(c.next_called, &c, std::memory_order_release, std::memory_order_relaxed)) {
  }
  return {};
}

// --- the endpoint's thread -------------------------------------------------------------------------------------------

void Endpoint::take_commands() {
  post_messages();
  port::Command c;
  for (int i = 0; i < kCommandsPerCycle && commands_.pop(&c); ++i) obey(c);
}

// A command that names something closed since then has nothing to say any more.
void Endpoint::obey(const port::Command& c) {
  switch (c.kind) {
    case Kind::kListen:
      if (Listener* const l = listener(c.listener())) listeners_.push_back(l);
      return;
    case Kind::kCloseListener:
      if (Listener* const l = listener(c.listener())) close_listener(*l);
      return;
    case Kind::kConnect: {
      Connection* const to = connection(c.connection);
      const bool made = to != nullptr && (to->link != nullptr || to->state != Connection::State::kOpening);
      if (to == nullptr || made) return;
      // Read again: another process may have changed its bytes since they were checked.
      auto remote = handle_of(c, regions_);
      if (!remote.ok()) return refuse(*to, remote.status());
      connect(*to, std::move(remote).value());
      return;
    }
    case Kind::kCloseConnection:
      if (Connection* const to = connection(c.connection)) close(*to);
      return;
    case Kind::kAbortConnection: {
      Connection* const to = connection(c.connection);
      if (to == nullptr || to->link == nullptr) return;
      const std::string why(reinterpret_cast<const char*>(regions_.at(c.numbers)), c.numbers.bytes);
      return give_up(*to, Status(CANARY_ABORTED,
                                 why + " (so the connection with " + to->link->describe() + " was given up here)"));
    }
    case Kind::kStats:
      return tell_stats(c);
    default:
      break;
  }
  CANARY_CHECK(false, "a command that no queue of commands takes");
}

void Endpoint::tell_stats(const port::Command& c) {
  std::byte* out = regions_.at(c.output);
  for (std::size_t rail = 0; rail < rails().size(); ++rail) {
    const RailStats r = rail_stats(static_cast<int>(rail));
    std::memcpy(out + rail * sizeof r, &r, sizeof r);
  }
  OpTicket* const ticket = tickets_->at(c.ticket.place);
  CANARY_CHECK(ticket != nullptr, "a ticket ended before its command");
  ticket->finish(Status());
}

// --- messages --------------------------------------------------------------------------------------------------------

void Endpoint::take_called() {
  const auto known = static_cast<std::ptrdiff_t>(calling_.size());
  for (Connection* c = called_.exchange(nullptr, std::memory_order_acquire); c != nullptr; c = c->next_called)
    calling_.push_back(c);
  std::reverse(calling_.begin() + known, calling_.end());
}

void Endpoint::post_messages() {
  take_called();
  std::ptrdiff_t taken = 0;
  for (int budget = kPostedPerCycle; budget > 0 && taken != static_cast<std::ptrdiff_t>(calling_.size()); ++taken) {
    Connection& c = *calling_[static_cast<std::size_t>(taken)];
    c.listed.exchange(false, std::memory_order_acq_rel);  // whoever calls from now on lists it anew
    budget -= post_messages(c);
  }
  calling_.erase(calling_.begin(), calling_.begin() + taken);
}

// Posts as many as there may be when it begins. Returns how many there were.
int Endpoint::post_messages(Connection& connection) {
  std::array<MessageOrder, port::kUnitMax> orders;
  std::size_t unit = 0;
  int taken = 0;
  port::Command c;
  while ((unit != 0 || taken < static_cast<int>(Connection::kMessagesMax)) && connection.called.pop(&c)) {
    ++taken;
    OpTicket* const ticket = tickets_->at(c.ticket.place);
    CANARY_CHECK(ticket != nullptr, "a ticket ended before its message");
    orders[unit++] = Messages::order_of(c, regions_, ticket);
    if (c.more_follows != 0) continue;
    messages_.post(connection.end, {orders.data(), unit}, now_);
    unit = 0;
  }
  CANARY_CHECK(unit == 0, "half a unit was taken");
  return taken;
}

}  // namespace canarynet

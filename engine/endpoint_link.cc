#include "engine/endpoint_link.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kGenerationShift = 14;
static_assert(wire::kConnectionSlots == 1u << kGenerationShift);
constexpr std::size_t kAnswersMax = 4096;  // that wait to be said, when another request is heard

std::uint32_t slot_of(std::uint32_t flow) { return flow & (wire::kConnectionSlots - 1); }
std::uint16_t generation_of(std::uint32_t flow) {
  return static_cast<std::uint16_t>((flow & ~wire::kConnectionFlow) >> kGenerationShift);
}

}  // namespace

EndpointLink::EndpointLink(Endpoint& endpoint, std::uint64_t its_name, bool dials)
    : name(its_name), dialled(dials), endpoint_(endpoint), words_(this, FlowClass::kControl) {
  rounds.set_flow(this);
}

void EndpointLink::start(std::vector<PathSpec> paths, std::uint64_t token, std::span<const Rail> theirs, Nanos now) {
  ChannelOptions c;
  c.job = token;
  c.my_engine = static_cast<std::uint32_t>(name);
  c.peer_engine = static_cast<std::uint32_t>(name >> 32);
  c.dialer = dialled;
  c.purpose = wire::kHelloEndpoint;
  c.paths = std::move(paths);
  c.piece_bytes = endpoint_.options_.settings.piece_bytes;
  label = remote_text;
  idle_since = now;
  endpoint_.peers_.add(*this, now);
  endpoint_.peers_.connect(*this, std::move(c), nullptr, *this, *this, endpoint_.factory_.rails(), theirs, now);
}

bool EndpointLink::add(Connection& connection) {
  if (free_.empty()) {
    if (slots_.size() == wire::kConnectionSlots) return false;
    free_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  slots_[slot].connection = &connection;
  ++slots_[slot].generation;
  ++used_;
  connection.end.flow =
      wire::kConnectionFlow | static_cast<std::uint32_t>(slots_[slot].generation) << kGenerationShift | slot;
  return true;
}

bool EndpointLink::add(Connection& connection, std::uint32_t flow) {
  const std::uint32_t index = slot_of(flow);
  if (index >= slots_.size()) slots_.resize(index + 1);
  Slot& slot = slots_[index];
  // Generations of a slot only grow (modulo 2^16): whatever is not ahead has been opened before.
  if (static_cast<std::int16_t>(generation_of(flow) - slot.generation) <= 0) return false;
  if (slot.connection != nullptr) {  // the word of its end is still on its way
    Connection& old = *slot.connection;
    endpoint_.fail(old, Status(CANARY_CLOSED, describe() + " has closed the connection"));
    displaced_.push_back(&old);
  }
  slot.generation = generation_of(flow);
  slot.connection = &connection;
  ++used_;
  connection.end.flow = flow;
  return true;
}

void EndpointLink::remove(Connection& connection) {
  const std::uint32_t index = slot_of(connection.end.flow);
  if (index < slots_.size() && slots_[index].connection == &connection) {
    release(index);
  } else if (std::erase(displaced_, &connection) != 0 && --used_ == 0) {
    idle_since = endpoint_.now_;
  }
}

void EndpointLink::abandon(Connection& connection) {
  const std::uint32_t index = slot_of(connection.end.flow);
  slots_[index].connection = nullptr;
  slots_[index].abandoned = true;
}

bool EndpointLink::is_abandoned(std::uint32_t flow) const {
  const std::uint32_t slot = slot_of(flow);
  return slot < slots_.size() && slots_[slot].abandoned && slots_[slot].generation == generation_of(flow);
}

void EndpointLink::hold(Nanos span) {
  messages->last_progress += span;
  for_each([&](Connection& c) { c.end.hold(span); });
}

void EndpointLink::forget_abandoned() {
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].abandoned) release(i);
  }
}

void EndpointLink::release(std::uint32_t slot) {
  slots_[slot].connection = nullptr;
  slots_[slot].abandoned = false;
  CANARY_CHECK(used_ != 0, "a connection's slot is released twice");
  if (dialled) free_.push_back(slot);
  if (--used_ == 0) idle_since = endpoint_.now_;
}

Connection* EndpointLink::find(std::uint32_t flow) const {
  const std::uint32_t index = slot_of(flow);
  if (index >= slots_.size()) return nullptr;
  Connection* c = slots_[index].connection;
  return c != nullptr && c->end.flow == flow ? c : nullptr;
}

void EndpointLink::say(wire::MessageFrame frame, std::uint32_t flow, const void* payload, std::uint32_t bytes,
                       std::uint32_t op) {
  if (gone || !channel) return;
  Control c{frame, flow, op, bytes, {}};
  if (bytes != 0) std::memcpy(c.payload, payload, bytes);
  controls_.push(c);
  mux->make_ready(words_);
}

void EndpointLink::learn_peer(std::int64_t its_pid, const char* its_host) {
  pid = its_pid;
  host.assign(its_host, strnlen(its_host, wire::kHostTextBytes));
  make_printable(&host);
  label = host + ":" + std::to_string(pid);
  const auto rails = endpoint_.factory_.rails();
  neighbour = endpoint_.watch_.sees_pulses() &&
              std::any_of(channel->paths().begin(), channel->paths().end(), [&](const Path& p) {
                return p.spec.local_rail >= 0 && rails[static_cast<std::size_t>(p.spec.local_rail)].address.family ==
                                                     Address::Family::kSharedMemory;
              });
}

void EndpointLink::came_from(std::uint16_t remote_rail, std::string where) {
  if (remote_rail > kRailsMax) return;  // shared memory comes behind the NICs
  if (remote_rail >= origins_.size()) origins_.resize(remote_rail + 1);
  origins_[remote_rail] = std::move(where);
  remote_text.clear();
  for (const std::string& origin : origins_) {
    if (!origin.empty()) remote_text += (remote_text.empty() ? "" : ", ") + origin;
  }
  if (host.empty()) label = remote_text;
}

std::string EndpointLink::who() const {
  if (!host.empty()) return "the peer on host " + host + " (pid " + std::to_string(pid) + ")";
  return remote_text.empty() ? "the peer" : "the peer at " + remote_text;
}

std::string EndpointLink::describe() const { return host.empty() ? who() : who() + " at " + remote_text; }

std::string EndpointLink::where() const { return host.empty() ? "" : "; at " + remote_text; }

// --- Flow ------------------------------------------------------------------------------------------------------------

bool EndpointLink::next_frame(Mux&, Turn& turn, OutPiece* out) {
  if (gone) return false;
  if (&turn != &words_) return endpoint_.messages_.next_frame(static_cast<MessageRound&>(turn), out);
  if (controls_.empty()) return false;
  said_ = controls_.pop();
  const Control& c = said_;
  out->header.kind = wire::Kind::kSignature;
  out->header.flow = c.flow;
  out->header.op = c.op;
  out->header.step = static_cast<std::uint16_t>(c.frame);
  out->header.source = dialled ? 0 : 1;
  out->header.destination = dialled ? 1 : 0;
  out->header.payload_bytes = c.bytes;
  out->payload = c.payload;  // small: copied before the next call
  return true;
}

void EndpointLink::on_done(Mux&, std::uint64_t cookie) {
  // With the peer's farewell the channel counts as done what nobody has acknowledged: nobody knows, so it is not.
  if (!channel->peer_left()) endpoint_.messages_.on_done(cookie, endpoint_.now_);
}

Messages::Where EndpointLink::where_is(const wire::Header& h) const {
  Connection* c = find(h.flow);
  if (c == nullptr || gone || h.source != c->end.other || h.destination != c->end.me) return {nullptr, true};
  // Frames that overtake the answer to our request are kept: credits as they are, small messages parked.
  const bool opening = c->end.piece_bytes == 0;
  if (opening && h.kind == wire::Kind::kPiece) return {nullptr, false};
  return {&c->end, false};
}

Landing EndpointLink::landing_for(Mux&, const wire::Header& h) {
  return endpoint_.messages_.landing_for(*messages, where_is(h), h);
}

bool EndpointLink::on_arrival(Mux& from, const wire::Header& h, const Arrival& arrival) {
  if (gone) return true;
  if (h.kind != wire::Kind::kSignature)
    return endpoint_.messages_.on_arrival(*messages, where_is(h), h, arrival, endpoint_.now_);
  wire::MessageWord word;
  if (!from.is_read(h, arrival.payload, &word)) return true;
  if (const auto* open = std::get_if<wire::Open>(&word)) return on_open(h.flow, *open);
  if (const auto* opened = std::get_if<wire::Opened>(&word)) {
    on_opened(h.flow, *opened);
  } else if (const auto* close = std::get_if<wire::Close>(&word)) {
    on_close(h.flow, *close);
  } else if (const auto* give_up = std::get_if<wire::GiveUp>(&word)) {
    on_give_up(h.flow, *give_up);
  } else {
    return endpoint_.messages_.on_word(where_is(h), word, endpoint_.now_);
  }
  return true;
}

bool EndpointLink::on_open(std::uint32_t flow, const wire::Open& word) {
  const bool ours = (flow & wire::kConnectionFlow) == wire::kConnectionFlow;
  if (dialled || !ours) return true;
  // A peer that asks without reading the answers has to wait: its request is not acknowledged, and comes again.
  if (controls_.size() + endpoint_.opens_.size() >= kAnswersMax) return false;
  endpoint_.on_open(*this, flow, word.terms);
  return true;
}

void EndpointLink::on_opened(std::uint32_t flow, const wire::Opened& word) {
  if (!dialled) return;
  if (is_abandoned(flow)) {
    say(wire::MessageFrame::kClose, flow, nullptr, 0);
    return release(slot_of(flow));
  }
  Connection* c = find(flow);
  if (c != nullptr) c->answered = true;
  if (c == nullptr || c->end.piece_bytes != 0 || !c->end.failure.ok()) return;
  const wire::OpenedPayload& opened = word.terms;
  learn_peer(opened.pid, opened.host);
  const auto mine = static_cast<std::uint32_t>(endpoint_.options_.settings.piece_bytes.count);
  if (opened.accepted == 0 || opened.piece_bytes < 1024 || opened.piece_bytes > mine) {
    endpoint_.fail(*c, Status(CANARY_CLOSED, describe() + " does not listen under this handle any more"));
    return;
  }
  messages->eager_budget = std::min<std::uint64_t>(messages->eager_budget, opened.eager_bytes);
  endpoint_.messages_.open(c->end, opened.piece_bytes);
  endpoint_.come_up(*c);
}

void EndpointLink::on_close(std::uint32_t flow, const wire::Close& word) {
  if (is_abandoned(flow)) release(slot_of(flow));
  Connection* c = find(flow);
  if (c == nullptr || !c->end.failure.ok()) return;
  channel->cancel_flow(flow);
  endpoint_.messages_.settle_sends(c->end, word.received, endpoint_.now_);
  endpoint_.fail(*c, Status(CANARY_CLOSED, describe() + " has closed the connection"));
}

void EndpointLink::on_give_up(std::uint32_t flow, const wire::GiveUp& word) {
  Connection* c = find(flow);
  if (c == nullptr || !c->end.failure.ok()) return;
  std::string why(word.why);
  make_printable(&why);
  // The cause first: it may be passed on from peer to peer, and is cut at the end.
  endpoint_.fail(*c, Status(CANARY_ABORTED, why + "; told by " + who() + ", which gave the connection up"));
}

void EndpointLink::on_landing_lost(Mux&, const wire::Header& h, std::uint64_t cookie) {
  endpoint_.messages_.on_landing_lost(*messages, where_is(h), h, cookie);
}

void EndpointLink::on_path_event(Mux&, const std::string& what) {
  log(LogLevel::kInfo, "path to %s: %s", who().c_str(), what.c_str());
}

}  // namespace canarynet

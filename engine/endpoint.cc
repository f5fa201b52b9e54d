#include "engine/endpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/duration_text.h"
#include "base/log.h"
#include "engine/endpoint_link.h"

namespace canarynet {
namespace {

constexpr std::size_t kCommands = 4096;
constexpr std::uint16_t kLanesMax = 16;  // of a pair of rails, as CANARY_LANES_PER_RAIL
// Per link: pairs of rails times lanes. A link that was accepted reserves 0.5 MB for records, as much for copies, and
// 112 KB per path that has had a lane: at most 30 MB of address space, where the peer keeps 256 sockets open for it.
// Pages come as they are used.
constexpr std::size_t kPathsMax = std::size_t{kRailsMax} * kLanesMax;
constexpr std::size_t kPastMax = 1024;
constexpr Nanos kLinger = 5_s;  // a link without connections is kept so long: the next one finds it warm

// Requests that were handed in and are not done, of one connection or of all of a link.
struct Outstanding {
  std::uint64_t messages = 0, bytes = 0;
  void add(const Connection& c) {
    for (const MessageList* list : {&c.end.sends, &c.end.receives}) {
      for (const MessageRequest* r = list->head; r != nullptr; r = r->next) {
        ++messages;
        bytes += r->whole() - r->moved(c.end.piece_bytes);
      }
    }
  }
  std::string text() const { return std::to_string(messages) + " messages with " + std::to_string(bytes) + " bytes"; }
};

void put_text(char (&out)[wire::kHostTextBytes], const std::string& text) {
  std::memset(out, 0, sizeof out);
  std::memcpy(out, text.data(), std::min(text.size(), sizeof out - 1));
}

}  // namespace

Endpoint::Endpoint(const EndpointOptions& options, LaneFactory& factory)
    : Endpoint(options, std::make_shared<SharedRails>(factory, options.strangers_max)) {}

Endpoint::Endpoint(EndpointOptions options, std::shared_ptr<SharedRails> rails)
    : options_(std::move(options)),
      rails_(std::move(rails)),
      factory_(rails_->factory),
      token_(options_.secret()),
      commands_(kCommands),
      messages_(*this),
      greeter_(rails_->greeter),
      peers_(options_.settings, {options_.channel_records, options_.channel_copies}, *rails_),
      watch_(options_.settings, peers_, *this) {
  past_.reserve(kPastMax);
  calling_.reserve(64);
  watch_.set_host(options_.host_name, options_.pulse_of);
  greeter_.serve(*this);
}

Endpoint::~Endpoint() { greeter_.leave(*this); }

void Endpoint::make_handle(Listener* listener, std::span<std::byte> out) {
  const auto place = listener_ids_.add(listener);
  listener->id = {place.place, place.use};
  listener->number = next_listener_.fetch_add(1, std::memory_order_relaxed);
  EndpointHandle h;
  h.token = token_;
  h.listener = listener->number;
  for (const Rail& rail : factory_.rails()) h.rails.push_back(rail.address);
  const std::size_t told = encode(h, out);
  if (told < h.rails.size()) {
    log(LogLevel::kWarn, "a handle has room for %zu of %zu rails: peers will not use the others", told, h.rails.size());
  }
}

// --- listeners and connections that are made here --------------------------------------------------------------------

// The endpoint may have ended before it heard of the listener's end.
Listener::~Listener() {
  for (Connection* c = nullptr; accepted.pop(&c);) delete c;
}

void Endpoint::close_listener(Listener& listener) {
  std::erase(listeners_, &listener);
  listener_ids_.remove(listener.id.place);
  // Those that nobody has accepted, and nobody will.
  for (Connection* c = nullptr; listener.accepted.pop(&c);) {
    close(*c);
    delete c;
  }
  listener.closed.store(true, std::memory_order_release);
}

void Endpoint::add(Connection& c) {
  const auto place = connections_.add(&c);
  c.id = {place.place, place.use};
}

EndpointLink* Endpoint::dialled_link(const EndpointHandle& remote, Status* why) {
  for (auto& link : links_) {
    if (link->dialled && !link->gone && link->remote_token == remote.token && !link->channel->peer_left())
      return link.get();
  }
  std::vector<Rail> theirs;
  // A handle says nothing of routes: those of this side decide, and the way back shows when it connects.
  for (const Address& a : remote.rails) theirs.push_back({"", a, {}, {Network::everything(a.family)}});
  const auto pairing = parse_rail_pairing(options_.settings.rail_pairing).value_or(RailPairing::kAuto);
  const auto mine = factory_.rails();
  std::vector<PathSpec> paths = peers_.paths(mine, theirs, pairing);
  if (paths.empty()) {
    std::string here;
    for (const Rail& r : mine) here += (here.empty() ? "" : ", ") + r.device + " " + r.address.to_string();
    *why = Status(CANARY_UNREACHABLE,
                  "no NIC of this host (" + here + ") is on a network of the peer's (" + remote.text() +
                      ") or has a route there; CANARY_RAIL_PAIRING=" + name_of(pairing) +
                      " decides which NICs meet, CANARY_TRANSPORTS of both whether they meet in shared memory");
    return nullptr;
  }
  auto link = std::make_unique<EndpointLink>(*this, options_.secret(), true);
  link->remote_token = remote.token;
  link->remote_text = remote.text();
  links_.push_back(std::move(link));
  links_.back()->start(std::move(paths), remote.token, theirs, now_);
  return links_.back().get();
}

void Endpoint::connect(Connection& c, const EndpointHandle& remote) {
  c.began = now_;
  Status why;
  EndpointLink* link = leaving_ ? nullptr : dialled_link(remote, &why);
  if (leaving_) why = Status(CANARY_CLOSED, "the endpoint has ended");
  if (link != nullptr && !link->add(c)) {
    why = Status(CANARY_LIMIT, link->describe() + " has " + std::to_string(wire::kConnectionSlots) +
                                   " connections from here already");
    link = nullptr;
  }
  if (link == nullptr) return refuse(c, why);
  c.link = link;
  c.end.tagged = true;
  c.end.me = 0;
  c.end.other = 1;
  c.end.owner = &c;
  c.end.rounds = &link->rounds;
  c.end.peer = link->messages.get();
  c.end.received.reset(1);
  wire::OpenPayload open;
  open.listener = remote.listener;
  open.piece_bytes = static_cast<std::uint32_t>(options_.settings.piece_bytes.count);
  open.eager_bytes = static_cast<std::uint32_t>(MessagePeer::eager_bytes(options_.settings));
  open.pid = options_.pid;
  put_text(open.host, options_.host_name);
  link->say(wire::MessageFrame::kOpen, c.end.flow, &open, sizeof open);
}

// Nothing of its user's is touched afterwards.
void Endpoint::close(Connection& c) {
  take_called();
  post_messages(c);  // they end with the others
  std::erase(calling_, &c);
  if (EndpointLink* link = c.link) {
    const bool unanswered = !c.answered;
    fail(c, Status(CANARY_CLOSED, "the connection was closed here"));
    // If it is unanswered, the channel still holds the request, which must go out; pieces that land now are forgotten
    // when they are there.
    link->messages->parked.for_each([&](EagerStore::Entry& e) {
      if (e.header.flow == c.end.flow && e.complete) link->messages->parked.release(&e);
    });
    messages_.forget(c.end);
    if (unanswered && !link->gone) {
      link->abandon(c);  // the request may still be overtaken by whatever is said now
    } else if (c.told_of_abort) {
      link->remove(c);  // the peer knows, and must not hear of an ordinary end first
    } else {
      const std::uint64_t received = c.end.received.base() - 1;
      link->say(wire::MessageFrame::kClose, c.end.flow, nullptr, 0, static_cast<std::uint32_t>(received));
      link->remove(c);
    }
    c.link = nullptr;
  }
  connections_.remove(c.id.place);
  c.closed.store(true, std::memory_order_release);  // last: its user may free it now
}

// Fails it at both ends.
void Endpoint::give_up(Connection& c, const Status& why) {
  if (!c.end.failure.ok() || c.link == nullptr) return;
  if (c.answered) {
    std::string_view text(why.text());
    if (text.size() > wire::kAbortTextBytes) {
      std::size_t end = wire::kAbortTextBytes;
      while (end != 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not inside a character
      text = text.substr(0, end);
    }
    c.link->say(wire::MessageFrame::kAbort, c.end.flow, text.data(), static_cast<std::uint32_t>(text.size()));
    c.told_of_abort = true;
  }
  fail(c, why);
}

// Every request ends; what is parked whole can still be received.
void Endpoint::fail(Connection& c, const Status& why) {
  if (!c.end.failure.ok()) return;
  if (c.link != nullptr && c.end.piece_bytes != 0) {
    MessagePeer& peer = *c.link->messages;
    if (Channel* const channel = peer.mux.channel()) channel->cancel_flow(c.end.flow);
    peer.parked.for_each([&](EagerStore::Entry& e) {
      if (e.header.flow == c.end.flow && !e.complete) peer.parked.release(&e);
    });
  }
  messages_.fail(c.end, why, now_);
  if (c.state.load(std::memory_order_relaxed) == Connection::State::kOpening) refuse(c, why);
}

// Its messages may come.
void Endpoint::come_up(Connection& c) {
  c.state.store(Connection::State::kUp, std::memory_order_release);
  tell_news();
}

// It will not be made.
void Endpoint::refuse(Connection& c, const Status& why) {
  c.failure = why;
  c.state.store(Connection::State::kFailed, std::memory_order_release);
  tell_news();
}

void Endpoint::tell_news() {
  if (options_.news != nullptr) options_.news->store(true, std::memory_order_relaxed);
}

void Endpoint::on_mismatch(MessageEnd& end, const Status& why, bool) {
  Connection& c = *static_cast<Connection*>(end.owner);
  fail(c, c.link != nullptr ? Status(why.code(), why.text() + " (connection with " + c.link->describe() + ")") : why);
}

// --- accepting -------------------------------------------------------------------------------------------------------

void Endpoint::on_hello(std::unique_ptr<Lane>& lane, const wire::Header&, const wire::HelloPayload& hello) {
  if (hello.job != token_) {
    greeter_.turn_away(*lane, "another process was meant");
    return;
  }
  const auto rails = factory_.rails();
  const auto of_nics = [&] { return rails[hello.peer_rail].address.family != Address::Family::kSharedMemory; };
  if (hello.peer_rail >= rails.size() || hello.rail > kRailsMax || (hello.rail == kRailsMax && of_nics()) ||
      hello.lane >= kLanesMax) {
    greeter_.turn_away(*lane, "its hello names a lane that cannot be");
    return;
  }
  const std::uint64_t name = wire::channel_name(hello);
  EndpointLink* link = nullptr;
  std::size_t accepted = 0;
  for (auto& l : links_) {
    if (l->dialled) continue;
    if (l->name == name) link = l.get();
    accepted += l->channel != nullptr;
  }
  // A link that this side has given up is not taken up again: its connections have failed here.
  if (link == nullptr && std::find(past_.begin(), past_.end(), name) != past_.end()) return;
  if (leaving_ || (link != nullptr && link->gone) || hello.paths == 0 || hello.paths > kPathsMax) return;
  std::string from = lane->description();
  if (link == nullptr) {
    if (accepted >= options_.accepted_links_max) {
      greeter_.turn_away(*lane, (std::to_string(accepted) + " peers have a link to this endpoint already").c_str());
      return;
    }
    links_.push_back(std::make_unique<EndpointLink>(*this, name, false));
    link = links_.back().get();
    link->start(std::vector<PathSpec>(hello.paths, PathSpec{-1, -1, 0, {}}), token_, {}, now_);
  }
  if (const char* why = link->channel->adopt(lane, hello, now_); why != nullptr) return greeter_.turn_away(*lane, why);
  link->came_from(hello.rail, std::move(from));
}

void Endpoint::on_open(EndpointLink& link, std::uint32_t flow, const wire::OpenPayload& open) {
  link.learn_peer(open.pid, open.host);
  opens_.push_back({&link, flow, open, commands_.claimed()});
}

// After the commands that were submitted before the request came. One of them may wait behind another thread's, which
// has claimed its place in the ring and not filled it yet.
void Endpoint::answer_opens() {
  for (const Open& open : opens_) {
    if (open.link->gone || waits(open)) continue;
    wire::OpenedPayload answer;
    answer.pid = options_.pid;
    put_text(answer.host, options_.host_name);
    const auto at = std::find_if(listeners_.begin(), listeners_.end(),
                                 [&](const Listener* l) { return l->number == open.payload.listener; });
    auto c = std::make_unique<Connection>();
    c->end.tagged = true;
    c->end.me = 1;
    c->end.other = 0;
    c->end.owner = c.get();
    c->end.rounds = &open.link->rounds;
    c->end.peer = open.link->messages.get();
    c->began = now_;
    c->answered = true;
    if (!open.link->add(*c, open.flow)) continue;  // heard twice
    c->link = open.link;
    const auto& s = options_.settings;
    answer.piece_bytes = std::min(open.payload.piece_bytes, static_cast<std::uint32_t>(s.piece_bytes.count));
    answer.eager_bytes = std::min(open.payload.eager_bytes, static_cast<std::uint32_t>(MessagePeer::eager_bytes(s)));
    const bool sane = answer.piece_bytes >= 1024 && answer.piece_bytes % 128 == 0;
    if (sane) {
      open.link->messages->eager_budget =
          std::min<std::uint64_t>(open.link->messages->eager_budget, answer.eager_bytes);
      messages_.open(c->end, answer.piece_bytes);
      c->state.store(Connection::State::kUp, std::memory_order_relaxed);
    }
    add(*c);
    if (sane && at != listeners_.end() && (*at)->accepted.push(c.get())) {
      answer.accepted = 1;
      static_cast<void>(c.release());  // the accepting side's: the queue holds it now
      tell_news();
    } else {
      open.link->remove(*c);
      connections_.remove(c->id.place);
    }
    open.link->say(wire::MessageFrame::kOpened, open.flow, &answer, sizeof answer);
  }
  std::erase_if(opens_, [this](const Open& open) { return !waits(open); });
}

// --- life and death of links -----------------------------------------------------------------------------------------

void Endpoint::end_link(EndpointLink& link, canary_status code, const std::string& why) {
  if (link.gone) return;
  Outstanding left;
  link.for_each([&](const Connection& c) { left.add(c); });
  const std::string links = link.channel->describe_paths();
  ErrorDetail d;
  d.device = links;
  d.phase = "exchange";
  const bool heard = link.channel->ever_up();
  d.elapsed = now_ - (heard ? link.channel->last_heard() : link.met);
  const std::string age = heard ? "last heard " + milliseconds(d.elapsed) + " ago" : "never heard";
  const Status status(
      code, link.who() + " " + why + "; " + age + ", " + left.text() + " outstanding, links " + links + link.where(),
      d);
  // A peer that is done and leaves first is no trouble.
  if (link.connections() != 0) log(left.messages != 0 ? LogLevel::kWarn : LogLevel::kInfo, "%s", status.text().c_str());
  link.for_each([&](Connection& c) { fail(c, status); });
  link.forget_abandoned();
  link.gone = true;
}

void Endpoint::check_links(Nanos now) {
  const Settings& s = options_.settings;
  const Nanos looked = std::exchange(last_check_, now);
  for (auto& link : links_) {
    if (link->gone) continue;
    link->speaks = link->channel->ever_up();
    link->idle = link->connections() == 0;
    judge(*link, now);
  }
  watch_.warn(now);
  for (auto& owned : links_) {
    EndpointLink& link = *owned;
    if (link.gone || !link.speaks) continue;
    check_deadlines(link, now);
    if (watch_.unheard(link, now)) {  // its time is no time without progress
      link.hold(std::clamp(now - looked, Nanos{}, kLooksEvery * 2));
      continue;
    }
    const std::string stall = link.stalls.check(link, now, s.stall_warning);
    if (!stall.empty()) log(LogLevel::kWarn, "%s", stall.c_str());
    if (link.idle && link.dialled && now - link.idle_since > kLinger) {
      link.channel->goodbye(now);
      link.channel->pump(now);
      link.gone = true;
      continue;
    }
    check_connections(link, now);
  }
}

void Endpoint::judge(EndpointLink& link, Nanos now) {
  using Fate = SilenceWatch::Fate;
  switch (watch_.judge(link, now)) {
    case Fate::kLives:
      return;
    case Fate::kLeft:
      return end_link(link, CANARY_CLOSED, "has ended (farewell)");
    case Fate::kRefuses:
      return end_link(link, CANARY_PEER_DIED,
                      "has ended: it refuses every connection" + link.channel->describe_failures());
    case Fate::kNotMet:
      return end_link(link, CANARY_NO_PATH,
                      "could not be reached within " + milliseconds(options_.settings.join_timeout) +
                          link.channel->describe_failures());
    case Fate::kHungUp:
      return end_link(link, CANARY_PEER_DIED, "died: it closed every connection");
    case Fate::kSilent:
      return end_link(link, CANARY_PEER_SILENT, "is silent on every link for longer than " + watch_.limit_text());
  }
}

SilenceHost::Names Endpoint::names_of(std::span<const Peer* const> peers) const {
  const auto& first = static_cast<const EndpointLink&>(*peers.front());
  std::vector<std::int64_t> pids;  // a process may have two links to this one
  for (const Peer* p : peers) pids.push_back(p->pid);
  std::sort(pids.begin(), pids.end());
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
  if (pids.size() == 1) return {first.who(), first.where()};
  std::string list;
  for (const std::int64_t pid : pids) list += (list.empty() ? "" : ", ") + std::to_string(pid);
  return {"the peers on host " + first.host + " (pids " + list + ")", ""};
}

// Those that callers have set, whatever is known of the peer.
void Endpoint::check_deadlines(EndpointLink& link, Nanos now) {
  link.for_each([&](Connection& c) {
    for (const MessageList* list : {&c.end.sends, &c.end.receives}) {
      for (const MessageRequest* r = list->head; r != nullptr; r = r->next) {
        if (now < r->deadline) continue;
        ErrorDetail d;
        d.device = link.channel->describe_paths();
        d.phase = "exchange";
        d.elapsed = now - r->entered;
        give_up(c, Status(CANARY_DEADLINE,
                          std::string("the caller's deadline of ") + (r->sends ? "send" : "receive") + " #" +
                              std::to_string(r->group_first) + " passed after " + milliseconds(d.elapsed) +
                              " (connection with " + link.describe() + ")",
                          d));
        return;
      }
    }
  });
}

// Finds what heartbeats don't tell: the peer answers, and still a message does not move, or a connection is not made.
void Endpoint::check_connections(EndpointLink& link, Nanos now) {
  const Settings& s = options_.settings;
  link.for_each([&](Connection& c) {
    if (!c.end.failure.ok()) return;
    if (!c.answered) {
      if (now - c.began > s.join_timeout)
        fail(c, Status(CANARY_NO_PATH, link.describe() + " answers, but not to this connection: nothing for " +
                                           milliseconds(s.join_timeout)));
      return;
    }
    const Nanos since = Messages::stuck_since(c.end);
    // Connections share a link: while others move on it, a turn may be long in coming.
    const Nanos limit = now - link.messages->last_progress > s.exchange_limit ? s.exchange_limit : s.exchange_limit * 4;
    if (since == Nanos::max() || now - since <= limit) return;
    Outstanding left;
    left.add(c);
    const std::string links = link.channel->describe_paths();
    const std::string limits = " (CANARY_EXCHANGE_LIMIT " + milliseconds(s.exchange_limit) + ")";
    const std::string text = link.who() + " answers, but a message has not moved for " + milliseconds(now - since) +
                             limits + "; " + left.text() + " outstanding, links " + links + link.where();
    ErrorDetail d;
    d.device = links;
    d.phase = "exchange";
    d.elapsed = now - since;
    give_up(c, Status(CANARY_EXCHANGE_TIMEOUT, text, d));
  });
}

// The lanes of links that have ended, which tells the peer if it lives; and the links, once their connections were
// closed: until then what is parked can be received.
void Endpoint::bury_links() {
  for (auto& link : links_) {
    if (!link->gone || !link->channel) continue;
    link->for_each([&](Connection& c) { messages_.forget(c.end); });
    peers_.disconnect(*link);
    if (link->dialled) continue;
    if (past_.size() < kPastMax) {
      past_.push_back(link->name);
    } else {
      past_[next_past_++ % kPastMax] = link->name;
    }
  }
  // A request that came with its link's end may still wait for this endpoint's commands: nobody is there to hear the
  // answer.
  std::erase_if(opens_, [](const Open& open) { return open.link->gone; });
  std::erase_if(links_, [this](const auto& link) {
    const bool over = link->gone && link->connections() == 0;
    if (over) peers_.remove(*link);
    return over;
  });
}

Endpoint::Counters Endpoint::counters() const {
  Counters out;
  for (const auto& link : links_) {
    out.peers += !link->gone;
    out.connections += link->connections();
  }
  return out;
}

bool Endpoint::drained() const {
  return std::all_of(links_.begin(), links_.end(), [](const auto& link) { return link->gone || link->drained(); });
}

void Endpoint::leave(Nanos now) {
  const SoleUser::Use use(user_);
  leaving_ = true;
  now_ = now;
  for (auto& link : links_) {
    if (link->gone) continue;
    link->channel->flush_acks(now, true);
    link->channel->goodbye(now);
    link->channel->pump(now);
    end_link(*link, CANARY_CLOSED, "is left: the endpoint ends");
  }
}

void Endpoint::abandon() noexcept {
  for (auto& link : links_) peers_.disconnect(*link);
  greeter_.leave(*this);
  greeter_.abandon();
}

// --- the loop --------------------------------------------------------------------------------------------------------

std::size_t Endpoint::poll(Nanos now) {
  begin_poll(now);
  const std::size_t moved = factory_.poll(now);
  return moved + end_poll(now);
}

void Endpoint::begin_poll(Nanos now) {
  const SoleUser::Use use(user_);
  now_ = now;
  greeter_.set_time(now);
  if (const Nanos missed = peers_.begin_cycle(now); missed.count != 0) {
    for (auto& link : links_) {
      if (link->channel) link->hold(missed);
    }
  }
}

std::size_t Endpoint::end_poll(Nanos now) {
  const SoleUser::Use use(user_);
  if (!greeter_.empty()) greeter_.sweep();
  std::size_t work = 0;
  if (has_commands()) {
    take_commands();
    ++work;
  }
  if (!opens_.empty()) answer_opens();
  peers_.on_timers(now);
  work += peers_.pump(now);
  if (now >= next_check_) {
    next_check_ = now + kLooksEvery;
    check_links(now);
    if (!leaving_) bury_links();
  }
  return work;
}

Nanos Endpoint::next_deadline() const {
  if (has_commands()) return {};
  Nanos t = factory_.next_deadline();
  if (!links_.empty() || !greeter_.empty()) t = std::min(t, next_check_);
  return std::min(t, peers_.next_deadline());
}

}  // namespace canarynet

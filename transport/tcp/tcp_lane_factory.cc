#include "transport/tcp/tcp_lane_factory.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "base/check.h"
#include "topology/shared_subnet.h"
#include "transport/strangers.h"
#include "transport/tcp/tcp_lane.h"

namespace canarynet {
namespace {

constexpr int kBacklog = 1024;

static_assert(LaneTable<TcpLane>::kFirstKey == std::uint64_t{1} << 32, "keys below are the factory's own");

int open_reserve() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

Result<std::unique_ptr<TcpLaneFactory>> TcpLaneFactory::create(TcpOptions options) {
  std::unique_ptr<TcpLaneFactory> factory(new TcpLaneFactory(std::move(options)));
  Status status = factory->start();
  if (!status.ok()) return status;
  return factory;
}

TcpLaneFactory::TcpLaneFactory(TcpOptions options)
    : options_(std::move(options)), discard_(std::make_unique_for_overwrite<std::byte[]>(kDiscardBytes)) {}

Status TcpLaneFactory::start() {
  if (options_.rails.size() > static_cast<std::size_t>(kRailsMax)) {
    return Status(CANARY_LIMIT, "tcp: " + std::to_string(options_.rails.size()) + " rails, the limit is " +
                                    std::to_string(kRailsMax));
  }
  if (options_.queue_frames == 0 || options_.slot_bytes == 0 || options_.slot_bytes > wire::kPayloadMax) {
    return Status(CANARY_INVALID_ARGUMENT, "tcp: queue_frames and slot_bytes (at most 1 MiB) must be positive");
  }
  for (const Rail& rail : options_.rails) {
    if (!rail.address.valid()) return Status(CANARY_INVALID_ARGUMENT, "tcp: rail " + rail.device + " has no address");
    Status allowed = check_allowed(rail.address, "rail");
    if (!allowed.ok()) return allowed;
  }
  Status status = open_epoll();
  if (!status.ok()) return status;
  reserve_ = Socket(open_reserve());
  if (options_.bind_device) announcer_ = ArpAnnouncer(options_.rails);
  for (std::size_t i = 0; i < options_.rails.size(); ++i) {
    Address bound;
    status = add_rail_listener(static_cast<int>(i), &bound);
    if (!status.ok()) return status.wrap("rail " + std::to_string(i) + " (" + options_.rails[i].device + ")");
    options_.rails[i].address.port = bound.port;
  }
  return {};
}

TcpLaneFactory::~TcpLaneFactory() {
  lanes_.for_each([](TcpLane& lane) {
    lane.factory_ = nullptr;
    lane.state_ = TcpLane::State::kDown;
    lane.queue_.clear();
    lane.socket_.close();
  });
}

Status TcpLaneFactory::check_allowed(const Address& address, const char* what) const {
  return tcp_address_allowed(address, what, options_.allow_non_loopback);
}

Status tcp_address_allowed(const Address& address, const char* what, bool allow_non_loopback) {
  if (allow_non_loopback || address.loopback()) return {};
  return Status(
      CANARY_INSECURE,
      std::string("tcp: ") + what + " address " + address.to_string() +
          " is not a loopback address; traffic is neither encrypted nor authenticated yet, so anybody there could "
          "read and forge gradients: set CANARY_INSECURE=1 to accept that");
}

Status TcpLaneFactory::add_rail_listener(int rail, Address* bound) {
  const Address& at = options_.rails[static_cast<std::size_t>(rail)].address;
  const std::string device = device_of(rail);
  if (!options_.bind_device || device.empty() || at.loopback()) return add_listener(at, rail, {}, bound);
  // Bound to its device, a listener answers by it even where two share a subnet; the SYN-ACK would else leave by
  // whichever comes first in the routing table, and a dialler bound to its own device would never see it.
  Status status = add_listener(at, rail, {.only_device = device}, bound);
  if (status.ok()) {
    if (announcer_.serves(rail)) listen_for_strays(rail, *bound);
    return status;
  }
  Status unbound = add_listener(at, rail, {}, bound);
  if (!unbound.ok()) return unbound;
  note(status.text() + ": routing by address decides");
  if (const auto r = static_cast<std::size_t>(rail); shares_subnet(options_.rails, r)) {
    warn_of_shared_subnet(describe_shared_subnet(options_.rails, r) + ", and lanes can't be kept apart: " +
                          status.text() + " (before Linux 5.7 that takes CAP_NET_RAW)");
  }
  return unbound;
}

// Without it a peer that was told the wrong hardware address would be refused by the kernel, and nobody here would know
// that there is something to tell it.
void TcpLaneFactory::listen_for_strays(int rail, const Address& at) {
  Address bound;
  auto made = listen_on(at, {.backlog = kBacklog, .beside = &listeners_.back()->socket});
  Status status = made.ok() ? add_listener(made.take(), rail, &bound) : made.status();
  if (status.ok()) {
    listeners_.back()->for_strays = true;
  } else {
    note(status.text() + ": peers that were told a wrong hardware address are not noticed");
  }
}

Status TcpLaneFactory::add_listener(const Address& at, int rail, ListenOptions how, Address* bound) {
  how.scope_device = device_of(rail);
  how.backlog = kBacklog;
  auto made = listen_on(at, how);
  if (!made.ok()) return made.status();
  return add_listener(made.take(), rail, bound);
}

Status TcpLaneFactory::add_listener(Socket socket, int rail, Address* bound) {
  // Accepted connections inherit these, and the device.
  note(tune(socket.fd(), {options_.congestion, options_.notsent_lowat, ""}));
  *bound = local_address(socket.fd());
  return EpollFactory::add_listener(std::move(socket), rail);
}

Result<Address> TcpLaneFactory::listen_control(const Address& at) {
  if (!at.valid()) return Status(CANARY_INVALID_ARGUMENT, "tcp: the control address is empty");
  Status status = check_allowed(at, "control");
  if (!status.ok()) return status;
  Address bound;
  status = lent_control_.open() ? add_listener(std::move(lent_control_), kControlRail, &bound)
                                : add_listener(at, kControlRail, {}, &bound);
  if (!status.ok()) return status;
  Address result = at;
  result.port = bound.port;
  return result;
}

void TcpLaneFactory::close_control() {
  lent_control_ = {};
  close_listeners(kControlRail);
}

Result<std::unique_ptr<Lane>> TcpLaneFactory::dial(int rail, const Address& to, LaneSink& sink) {
  if (rail != kControlRail && (rail < 0 || static_cast<std::size_t>(rail) >= options_.rails.size())) {
    return Status(CANARY_INVALID_ARGUMENT, "tcp: there is no rail " + std::to_string(rail));
  }
  if (!to.valid() || to.port == 0) {
    return Status(CANARY_INVALID_ARGUMENT, "tcp: cannot dial \"" + to.to_string() + "\": address or port is missing");
  }
  Status status = check_allowed(to, "peer");
  if (!status.ok()) return status;
  auto made = make_stream_socket(to.family);
  if (!made.ok()) return made.status();
  Socket socket = made.take();
  // A peer on this host is reached through lo, whatever device carries its address. Linux takes such a packet for one
  // that came in by the device of the address, so that the peer's listener hears it; but the answer finds back only to
  // an address of that device, and to a socket that is bound to none.
  const bool own_host = rail != kControlRail && !to.loopback() && is_own_address(to);
  SocketTuning tuning{options_.congestion, options_.notsent_lowat, ""};
  if (options_.bind_device && rail != kControlRail && !own_host && !to.loopback()) tuning.bind_device = device_of(rail);
  note(tune(socket.fd(), tuning));
  if (rail != kControlRail) {
    Address from = options_.rails[static_cast<std::size_t>(rail)].address;
    if (from.family != to.family) {
      return Status(CANARY_INVALID_ARGUMENT, "tcp: rail address " + from.to_string() + " and peer address " +
                                                 to.to_string() + " are of different families");
    }
    if (own_host) from = to;
    from.port = 0;
    // The port is then chosen at connect(), per destination: many lanes don't use up the ephemeral range.
    const int on = 1;
    ::setsockopt(socket.fd(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    const SocketAddress source = to_socket_address(from, device_of(rail));
    if (::bind(socket.fd(), source.get(), source.length) != 0) {
      return system_error("tcp: cannot bind to rail address " + from.to_string(), errno);
    }
  }
  const SocketAddress target = to_socket_address(to, device_of(rail));
  int error_number = 0;
  if (::connect(socket.fd(), target.get(), target.length) != 0) error_number = errno;
  const bool refused = error_number == ECONNREFUSED;
  if (error_number != 0 && error_number != EINPROGRESS && error_number != EINTR && !refused) {
    return system_error("tcp: cannot connect to " + to.to_string(), error_number);
  }
  auto adopted = adopt(std::move(socket), /*connecting=*/true, rail, to);
  if (!adopted.ok()) return adopted.status();
  std::unique_ptr<TcpLane> lane = adopted.take();
  lane->set_sink(&sink);
  if (refused) {
    lane->break_down(system_error("cannot connect", error_number), true);
  } else {
    connecting_.push_back(lane->key_);
  }
  return std::unique_ptr<Lane>(std::move(lane));
}

std::string TcpLaneFactory::device_of(int rail) const {
  return rail == kControlRail ? std::string() : options_.rails[static_cast<std::size_t>(rail)].device;
}

void TcpLaneFactory::note(const std::string& text) {
  if (text.empty() || std::find(notes_.begin(), notes_.end(), text) != notes_.end()) return;
  notes_.push_back(text);
}

Result<std::unique_ptr<TcpLane>> TcpLaneFactory::adopt(Socket socket, bool connecting, int rail, const Address& peer) {
  const int fd = socket.fd();
  if (const auto r = static_cast<std::size_t>(rail);
      rail >= 0 && r < options_.pacing.size() && options_.pacing[r].count > 0)
    note(pace(fd, options_.pacing[r]));
  auto lane = std::make_unique<TcpLane>(
      *this, TcpLane::Setup{.socket = std::move(socket),
                            .state = connecting ? TcpLane::State::kConnecting : TcpLane::State::kUp,
                            .rail = rail,
                            .device = device_of(rail),
                            .peer = peer,
                            .queue_frames = options_.queue_frames,
                            .slot_bytes = options_.slot_bytes});
  lanes_.add(*lane);
  lane->interest_ = connecting ? EPOLLIN | EPOLLOUT : EPOLLIN;
  Status status = watch(fd, lane->interest_, lane->key_);
  if (!status.ok()) return status;
  return lane;
}

void TcpLaneFactory::schedule(TcpLane& lane) {
  if (lanes_.schedule(lane) && !in_poll_) ring();
}

std::size_t TcpLaneFactory::poll(Nanos now) {
  const SoleUser::Use use(user_);
  CANARY_CHECK(!in_poll_, "poll() was called from within poll()");
  in_poll_ = true;
  handled_ = 0;
  resume_listeners(now);
  epoll_event events[kEventsPerPoll];
  const int count = ::epoll_wait(epoll_.fd(), events, kEventsPerPoll, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t key = events[i].data.u64;
    if (key == kDoorbellKey) continue;
    if (key < kDoorbellKey) {
      accept_some(*listeners_[key], now);
      continue;
    }
    const std::uint32_t ready = events[i].events;
    handled_ += lanes_.visit(key, [ready](TcpLane& lane) { return lane.on_ready(ready); });
  }
  handled_ += lanes_.run_pending();
  if (!connecting_.empty()) check_connecting(now);
  in_poll_ = false;
  if (lanes_.pending()) ring();
  return handled_;
}

void TcpLaneFactory::check_connecting(Nanos now) {
  // By index: a callback may dial and so append.
  for (std::size_t i = 0; i < connecting_.size();) {
    const std::uint64_t key = connecting_[i];
    TcpLane* lane = lanes_.find(key);
    if (lane != nullptr && lane->state_ == TcpLane::State::kConnecting) {
      // dial() is not told the time: the limit runs from the first poll() after it.
      if (lane->connect_deadline_ == Nanos::max()) {
        lane->connect_deadline_ = now + options_.connect_timeout;
        // The answer may go astray as well, and nobody but the kernels would ever see it.
        if (may_be_misled(*lane)) announcer_.announce(lane->rail(), now);
      }
      if (now < lane->connect_deadline_) {
        ++i;
        continue;
      }
      handled_ +=
          lanes_.visit(key, [this](TcpLane& late) { return late.on_connect_timeout(options_.connect_timeout); });
    }
    connecting_[i] = connecting_.back();
    connecting_.pop_back();
  }
}

Nanos TcpLaneFactory::next_deadline() const {
  Nanos next = next_resumption();
  for (std::uint64_t key : connecting_) {
    const TcpLane* lane = lanes_.find(key);
    if (lane == nullptr || lane->state_ != TcpLane::State::kConnecting) continue;
    if (lane->connect_deadline_ == Nanos::max()) return {};  // at once: its limit has to be set
    next = std::min(next, lane->connect_deadline_);
  }
  return next;
}

void TcpLaneFactory::accept_some(Listener& listener, Nanos now) {
  for (int i = 0; i < kAcceptsPerPoll; ++i) {
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    const int fd =
        ::accept4(listener.socket.fd(), reinterpret_cast<sockaddr*>(&storage), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      const int error_number = errno;
      const bool no_descriptor = error_number == EMFILE || error_number == ENFILE;
      if (!no_descriptor && error_number != ENOBUFS && error_number != ENOMEM)
        continue;  // EINTR, or an error of the one connection that was next: accept() has dropped it
      note_trouble(system_error("tcp: connections can't be accepted", error_number), now);
      if (no_descriptor && shed_one(listener.socket.fd())) continue;
      return pause(listener, now);
    }
    Socket socket(fd);
    ++handled_;
    if (listener.for_strays) {
      turn_away_stray(socket, listener.rail, to_address(storage), now);
      continue;
    }
    if (announcer_.serves(listener.rail)) stray_watch_.arrived(listener.rail, to_address(storage));
    if (acceptor_ == nullptr || lanes_.size() >= options_.lanes_max) {
      if (acceptor_ != nullptr) turn_away(socket, "it has " + std::to_string(lanes_.size()) + " connections already");
      ++accepts_refused_;
      continue;
    }
    auto adopted = adopt(std::move(socket), /*connecting=*/false, listener.rail, to_address(storage));
    if (!adopted.ok()) {
      ++accepts_refused_;
      continue;
    }
    trouble_.clear();
    acceptor_->on_accept(adopted.take());
  }
}

bool TcpLaneFactory::may_be_misled(const TcpLane& lane) const {
  return announcer_.serves(lane.rail()) &&
         Network::of(options_.rails[static_cast<std::size_t>(lane.rail())].address).contains(lane.remote());
}

void TcpLaneFactory::turn_away_stray(const Socket& socket, int rail, const Address& peer, Nanos now) {
  ++strays_;
  const Rail& own = options_.rails[static_cast<std::size_t>(rail)];
  turn_away(socket,
            "it came in by another NIC than " + own.device + ", which has the address; the right one was announced");
  announcer_.announce(rail, now);
  if (!stray_watch_.strayed(rail, peer, now)) return;
  Address from = peer;
  from.port = 0;
  warn_of_shared_subnet(describe_shared_subnet(options_.rails, static_cast<std::size_t>(rail)) +
                        ", and what comes from " + from.to_string() + " for " + own.device +
                        " keeps arriving at another NIC, whatever is announced by ARP");
}

// Tells the peer why, as far as that goes without waiting. What it has said already is read: a close with unread bytes
// is a reset.
void TcpLaneFactory::turn_away(const Socket& socket, const std::string& why) {
  char scrap[512];
  while (::recv(socket.fd(), scrap, sizeof scrap, MSG_DONTWAIT) == static_cast<ssize_t>(sizeof scrap)) {
  }
  const std::vector<std::byte> frame = refusal_frame(why);
  [[maybe_unused]] const ssize_t sent = ::send(socket.fd(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

// Out of descriptors, a waiting connection would keep the listener readable and poll() spinning: it is taken with the
// reserve and closed, so that the peer learns at once.
bool TcpLaneFactory::shed_one(int listener_fd) {
  if (!reserve_.open()) reserve_ = Socket(open_reserve());
  if (!reserve_.open()) return false;
  reserve_.close();
  Socket shed(::accept4(listener_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const bool done = shed.open();
  if (done) {
    turn_away(shed, trouble_);
    ++accepts_refused_;
    ++handled_;
  }
  shed.close();
  reserve_ = Socket(open_reserve());
  return done;
}

std::uint64_t TcpLaneFactory::kernel_tx_bytes(int rail) const {
  if (rail < 0 || static_cast<std::size_t>(rail) >= options_.rails.size()) return 0;
  const std::string& device = options_.rails[static_cast<std::size_t>(rail)].device;
  if (device.empty() || device.find('/') != std::string::npos) return 0;
  const Socket file(::open(("/sys/class/net/" + device + "/statistics/tx_bytes").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.open()) return 0;
  char text[32];
  const ssize_t n = ::read(file.fd(), text, sizeof text);
  std::uint64_t value = 0;
  if (n > 0) std::from_chars(text, text + n, value);
  return value;
}

}  // namespace canarynet

#include "transport/tcp/tcp_lane.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/duration_text.h"
#include "transport/tcp/tcp_lane_factory.h"
#include "transport/tcp/way_losses.h"

namespace canarynet {
namespace {

// Per lane and poll(); level-triggered epoll brings a busy lane back after the others had their turn.
constexpr int kReadsPerPoll = 16;
constexpr std::size_t kReadBytesPerPoll = std::size_t{1} << 20;
constexpr std::size_t kWriteBytesPerFlush = std::size_t{4} << 20;
constexpr std::size_t kWriteIovMax = 64;
constexpr std::size_t kReceiveLowatMin = std::size_t{8} << 10;
constexpr std::size_t kReceiveLowatMax = std::size_t{128} << 10;
constexpr std::size_t kDrainBytes = std::size_t{8} << 20;  // unread ones thrown away before a close (see ~TcpLane)

bool is_hangup(int error_number) {
  return error_number == ECONNRESET || error_number == EPIPE || error_number == ECONNREFUSED;
}

bool would_block(int error_number) {
  // Buffer memory comes back as well; EPOLLOUT says when.
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ENOBUFS || error_number == ENOMEM;
}

}  // namespace

TcpLane::TcpLane(TcpLaneFactory& factory, Setup setup)
    : factory_(&factory),
      socket_(std::move(setup.socket)),
      state_(setup.state),
      rail_(setup.rail),
      queue_(setup.queue_frames),
      reader_(setup.slot_bytes, factory.discard()),
      peer_(setup.peer),
      device_(std::move(setup.device)) {
  describe();
}

TcpLane::~TcpLane() {
  // A close with unread bytes makes Linux throw away what was written but not yet sent (a goodbye, for example) and
  // send a reset instead of a FIN. They are copied: sanitizers take MSG_TRUNC without a buffer for writes at address 0.
  if ((state_ == State::kUp || state_ == State::kDeaf) && factory_ != nullptr) {
    const std::span<std::byte> scrap = factory_->discard();
    for (std::size_t drained = 0; drained < kDrainBytes;) {
      const ssize_t n = ::recv(socket_.fd(), scrap.data(), scrap.size(), MSG_DONTWAIT);
      if (n <= 0) break;
      drained += static_cast<std::size_t>(n);
    }
  }
  if (factory_ == nullptr) return;
  factory_->leave_epoll(socket_);
  factory_->lanes_.remove(*this);
}

void TcpLane::describe() {
  const Address local = local_address(socket_.fd());
  description_ = "tcp " + local.to_string() + ">" + peer_.to_string();
  if (!device_.empty()) description_ += " on " + device_;
}

bool TcpLane::send(const wire::Header& header, const std::byte* payload, std::uint64_t cookie) {
  if (state_ != State::kUp && state_ != State::kDeaf) return false;
  if (queue_.push(header, payload, cookie)) return true;
  // The owner may wait for on_writable without another flush(): the socket has to call us.
  refused_ = true;
  set_interest(EPOLLIN | EPOLLOUT);
  return false;
}

bool TcpLane::backs_off() const {
  return (state_ == State::kUp || state_ == State::kDeaf) && retransmits(socket_.fd());
}

Lane::Progress TcpLane::progress() const {
  Progress out;
  if (state_ == State::kUp || state_ == State::kDeaf) ask_progress(socket_.fd(), &out.acknowledged, &out.received);
  return out;
}

std::string TcpLane::look_at_losses() {
  WayLosses losses;
  if (state_ != State::kUp || !ask_losses(socket_.fd(), &losses)) return {};
  counters_.segments_sent = losses.segments;
  counters_.segments_resent = losses.resent;
  if (!losses_.look(losses) || advised_) return {};
  advised_ = true;
  const std::string congestion = congestion_of(socket_.fd());
  const bool takes_loss_for_congestion = congestion == "cubic" || congestion == "reno";
  return takes_loss_for_congestion && may_use_bbr() ? loss_advice(losses, congestion) : std::string();
}

void TcpLane::flush(Nanos) {
  if (state_ == State::kDeaf) return write_queue();  // nothing tells when there is room again
  if (state_ != State::kUp) return;
  if (!full_) write_queue();
  if (refused_ && state_ == State::kUp && queue_.size() < queue_.capacity()) factory_->schedule(*this);
}

bool TcpLane::cancel(std::uint64_t cookie) {
  const bool dropped = queue_.cancel(cookie);
  if (dropped && refused_ && state_ == State::kUp) factory_->schedule(*this);
  return dropped;
}

void TcpLane::write_queue() {
  iovec iov[kWriteIovMax];
  for (std::size_t written = 0; !queue_.empty();) {
    if (written >= kWriteBytesPerFlush) {
      set_interest(EPOLLIN | EPOLLOUT);
      return;
    }
    std::size_t offered = 0;
    msghdr message{};
    message.msg_iov = iov;
    message.msg_iovlen = queue_.gather(iov, kWriteIovMax, &offered);
    const ssize_t n = ::sendmsg(socket_.fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (would_block(errno)) {
        full_ = true;
        set_interest(EPOLLIN | EPOLLOUT);
      } else {
        break_down(system_error("write failed", errno), is_hangup(errno));
      }
      return;
    }
    const auto taken = static_cast<std::size_t>(n);
    written += taken;
    counters_.bytes_sent += taken;
    counters_.frames_sent += queue_.advance(taken);
    if (taken < offered) {
      full_ = true;
      set_interest(EPOLLIN | EPOLLOUT);
      return;
    }
  }
  // EPOLLOUT stays as it is: on_ready() takes it back when it fires with nothing to write. A sender that refills its
  // queue in between then costs no epoll_ctl at all.
}

std::size_t TcpLane::on_ready(std::uint32_t epoll_events) {
  if (state_ == State::kConnecting) return finish_connect();
  std::size_t handled = 0;
  if ((epoll_events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) handled += receive();
  if ((epoll_events & EPOLLOUT) != 0 && state_ == State::kUp) {
    full_ = false;
    if (queue_.empty() && !refused_) {
      set_interest(EPOLLIN);
    } else {
      const std::size_t before = queue_.bytes();
      write_queue();
      if (queue_.bytes() != before) ++handled;
      handled += tell_writable();
    }
  }
  return handled;
}

std::size_t TcpLane::on_pending() {
  if (state_ == State::kUp) return tell_writable();
  if (state_ != State::kBroken) return 0;
  std::size_t handled = receive();
  if (state_ == State::kBroken) factory_->schedule(*this);  // more to read than one turn's share
  return handled + 1;
}

std::size_t TcpLane::tell_writable() {
  if (!refused_ || state_ != State::kUp || queue_.size() == queue_.capacity()) return 0;
  refused_ = false;
  if (sink_ != nullptr) sink_->on_writable(*this);
  return 1;
}

std::size_t TcpLane::receive() {
  std::size_t handled = 0;
  std::size_t received = 0;
  iovec iov[FrameReader::kIovMax];
  for (int reads = 0; reads < kReadsPerPoll && received < kReadBytesPerPoll; ++reads) {
    if (state_ != State::kUp && state_ != State::kBroken) return handled;
    std::size_t wanted = 0;
    msghdr message{};
    message.msg_iov = iov;
    message.msg_iovlen = reader_.prepare(iov, &wanted);
    const ssize_t n = ::recvmsg(socket_.fd(), &message, MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (state_ == State::kBroken) {
        go_down(broken_reason_, broken_hangup_);  // EAGAIN, too: nothing more will come on a broken connection
      } else if (!would_block(errno)) {
        go_down(system_error("read failed", errno), is_hangup(errno));
      } else {
        break;
      }
      return handled + 1;
    }
    if (n == 0) {
      if (state_ == State::kBroken) {
        go_down(broken_reason_, broken_hangup_);
      } else {
        go_down(Status(CANARY_PEER_DIED, reader_.mid_frame() ? "the peer closed the connection in the middle of a frame"
                                                             : "the peer closed the connection"),
                true);
      }
      return handled + 1;
    }
    const auto got = static_cast<std::size_t>(n);
    received += got;
    counters_.bytes_received += got;
    ++handled;
    if (const char* reason = reader_.consume(got, *this, counters_)) {
      const bool other_protocol = std::strcmp(reason, "magic") == 0 || std::strcmp(reason, "version") == 0;
      go_deaf(
          Status(other_protocol ? CANARY_VERSION : CANARY_SYSTEM,
                 std::string("a frame header can't be believed (") + wire::explain(reason, reader_.header()) + ")"));
      return handled;
    }
    if (got < wanted && state_ == State::kUp) break;  // drained; epoll tells of more
  }
  if (state_ == State::kUp) set_receive_lowat();
  return handled;
}

// Nothing can be done with a part of a payload: the socket wakes us when the rest is there, instead of with every
// packet.
void TcpLane::set_receive_lowat() {
  const std::size_t rest = std::min(reader_.rest_of_payload(), kReceiveLowatMax);
  const std::size_t wanted = rest >= kReceiveLowatMin ? rest : 1;
  if (wanted == receive_lowat_) return;
  const int value = static_cast<int>(wanted);
  // Refused, it would only cost wake-ups.
  if (::setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value) == 0) receive_lowat_ = wanted;
}

std::size_t TcpLane::finish_connect() {
  int error_number = 0;
  socklen_t length = sizeof error_number;
  if (::getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error_number, &length) != 0) error_number = errno;
  if (error_number != 0) {
    go_down(system_error("cannot connect", error_number), is_hangup(error_number));
    return 1;
  }
  if (!peer_address(socket_.fd()).valid()) return 0;  // still on its way
  if (peer_address(socket_.fd()) == local_address(socket_.fd())) {
    // Dialling a free port of this very host may be given that port as its source, and TCP then connects to itself.
    go_down(system_error("cannot connect", ECONNREFUSED), true);
    return 1;
  }
  state_ = State::kUp;
  describe();
  if (sink_ != nullptr) sink_->on_up(*this);
  return 1;
}

std::size_t TcpLane::on_connect_timeout(Nanos limit) {
  go_down(Status(CANARY_SYSTEM, "no answer to the connection request within " + milliseconds(limit)), false);
  return 1;
}

void TcpLane::break_down(Status reason, bool hangup) {
  if (state_ == State::kDeaf) {  // on_down has come, and nothing is read
    state_ = State::kDown;
    queue_.clear();
    return;
  }
  state_ = State::kBroken;
  broken_reason_ = std::move(reason);
  broken_hangup_ = hangup;
  refused_ = false;
  queue_.clear();
  set_interest(0);
  factory_->schedule(*this);
}

// The queue stays as it is: a frame may be half written. Nothing of it is sent, as nobody calls flush() any more.
void TcpLane::go_deaf(const Status& reason) {
  if (state_ != State::kUp) return go_down(reason, false);
  state_ = State::kDeaf;
  refused_ = false;
  factory_->leave_epoll(socket_);
  if (sink_ != nullptr) sink_->on_down(*this, reason.wrap(description_), false);
}

void TcpLane::go_down(const Status& reason, bool hangup) {
  if (state_ == State::kDown) return;
  state_ = State::kDown;
  refused_ = false;
  queue_.clear();
  factory_->leave_epoll(socket_);
  socket_.close();
  if (sink_ != nullptr) sink_->on_down(*this, reason.wrap(description_), hangup);
}

void TcpLane::set_interest(std::uint32_t epoll_events) {
  if (interest_ == epoll_events || state_ == State::kDeaf) return;
  interest_ = epoll_events;
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = key_;
  const int rc = ::epoll_ctl(factory_->poll_fd(), EPOLL_CTL_MOD, socket_.fd(), &event);
  CANARY_CHECK(rc == 0, "a lane's own descriptor must be in its factory's epoll set");
}

Landing TcpLane::landing_for(const wire::Header& header) {
  return sink_ != nullptr ? sink_->landing_for(*this, header) : Landing{};
}

void TcpLane::on_frame(const wire::Header& header, const Arrival& arrival) {
  if (sink_ != nullptr) sink_->on_frame(*this, header, arrival);
}

}  // namespace canarynet

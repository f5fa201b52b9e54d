#include "transport/shm/shm_lane.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/duration_text.h"
#include "base/log.h"
#include "transport/shm/shm_lane_factory.h"

namespace canarynet {
namespace {

using shm::Io;
using shm::Message;
using shm::MessageKind;

// Per lane and poll(): the others have their turn in between.
constexpr std::size_t kReadBytesPerPoll = std::size_t{1} << 20;
constexpr std::size_t kWriteBytesPerFlush = std::size_t{4} << 20;
constexpr int kMessagesPerPoll = 64;
// One that has a reference in its hands for longer has been stopped. By the clock: how long a yield takes is the other
// processes' affair.
constexpr Nanos kReaderLimit = 10_ms;

Status unexpected() { return Status(CANARY_SYSTEM, "shm: the peer sent a message that has no place here"); }
Status gone(bool mid_frame) {
  return Status(CANARY_PEER_DIED, mid_frame ? "the peer closed the connection in the middle of a frame"
                                            : "the peer closed the connection");
}

}  // namespace

ShmLane::ShmLane(ShmLaneFactory& factory, Setup setup)
    : factory_(&factory),
      socket_(std::move(setup.socket)),
      bell_(std::move(setup.bell)),
      state_(setup.state),
      rail_(setup.rail),
      peer_pid_(setup.peer_pid),
      slot_bytes_(setup.slot_bytes),
      queue_(setup.queue_frames),
      description_("shm pid " + std::to_string(::getpid()) + ">pid " + std::to_string(setup.peer_pid)) {}

ShmLane::~ShmLane() {
  if (writer_) writer_->revoke_all();
  if (factory_ == nullptr) return;
  factory_->leave_epoll(socket_);
  factory_->leave_epoll(bell_);
  factory_->lanes_.remove(*this);
}

// --- handshake -------------------------------------------------------------------------------------------------------

void ShmLane::open_rings(int send_ring) {
  peer_arenas_ = std::make_unique<shm::PeerArenas>();
  shm::ReferenceSource* source = factory_->arenas() != nullptr ? this : nullptr;
  writer_.emplace(segment_.ring(send_ring), peer_bell_.fd(), source);
  reader_.emplace(segment_.ring(1 - send_ring), peer_bell_.fd(), slot_bytes_);
  state_ = State::kUp;
  factory_->schedule(*this);  // what is there already rang no bell
}

Status ShmLane::offer(std::size_t ring_bytes) {
  shm::Descriptor memory;
  auto made = shm::Segment::create(ring_bytes, &memory);
  if (!made.ok()) return made.status();
  segment_ = made.take();
  Message message;
  message.kind = MessageKind::kOffer;
  message.bytes = ring_bytes;
  const int descriptors[] = {memory.fd(), bell_.fd()};
  if (shm::send_message(socket_.fd(), message, descriptors, 2) == Io::kDone) return {};
  return system_error("shm: the offer could not be sent", errno);
}

Status ShmLane::take_offer(shm::Received& received) {
  if (received.message.kind != MessageKind::kOffer) return unexpected();
  auto opened = shm::Segment::open(received.descriptors[0].fd(), received.message.bytes);
  if (!opened.ok()) return opened.status();
  peer_bell_ = std::move(received.descriptors[1]);
  if (Status status = shm::check_bell(peer_bell_.fd()); !status.ok()) return status;
  segment_ = opened.take();
  Message answer;
  answer.kind = MessageKind::kAccept;
  const int bell = bell_.fd();
  switch (shm::send_message(socket_.fd(), answer, &bell, 1)) {
    case Io::kDone:
      break;
    case Io::kClosed:
      return gone(false);  // it has another lane by now, or has given up
    default:
      return system_error("shm: the answer could not be sent", errno);
  }
  open_rings(1);
  return {};
}

Status ShmLane::take_answer(shm::Received& received) {
  if (received.message.kind != MessageKind::kAccept) return unexpected();
  peer_bell_ = std::move(received.descriptors[0]);
  if (Status status = shm::check_bell(peer_bell_.fd()); !status.ok()) return status;
  open_rings(0);
  if (sink_ != nullptr) sink_->on_up(*this);
  return {};
}

// --- sending ---------------------------------------------------------------------------------------------------------

bool ShmLane::send(const wire::Header& header, const std::byte* payload, std::uint64_t cookie) {
  if (state_ != State::kUp) return false;
  if (queue_.push(header, payload, cookie)) return true;
  // The owner may wait for on_writable without another flush().
  refused_ = true;
  if (!full_) factory_->schedule(*this);
  return false;
}

void ShmLane::flush(Nanos) {
  if (state_ != State::kUp) return;
  if (!full_) write_queue();
  if (refused_ && state_ == State::kUp && queue_.size() < queue_.capacity()) factory_->schedule(*this);
}

bool ShmLane::cancel(std::uint64_t cookie) {
  bool dropped = queue_.cancel(cookie);
  if (writer_ && writer_->revoke(cookie, counters_)) dropped = true;
  if (dropped && refused_ && state_ == State::kUp) factory_->schedule(*this);
  return dropped;
}

void ShmLane::redirect(std::uint64_t cookie) {
  if (reader_) reader_->redirect(cookie);
}

void ShmLane::write_queue() {
  const char* reason = writer_->write(queue_, kWriteBytesPerFlush, counters_, &full_);
  if (reason != nullptr) {
    return break_down(
        Status(CANARY_SYSTEM, std::string(reason) + " (" + std::to_string(writer_->ring_bytes()) + " bytes)"), false);
  }
  if (!full_ && !queue_.empty()) factory_->schedule(*this);  // more than one turn's share
}

std::size_t ShmLane::tell_writable() {
  if (!refused_ || state_ != State::kUp || queue_.size() == queue_.capacity()) return 0;
  refused_ = false;
  if (sink_ != nullptr) sink_->on_writable(*this);
  // Its owner need not flush what it sent just now.
  if (state_ == State::kUp && !full_ && !queue_.empty()) factory_->schedule(*this);
  return 1;
}

bool ShmLane::locate(const std::byte* data, std::uint32_t bytes, Place* place) {
  if (factory_ == nullptr) return false;
  const shm::ArenaStore::Arena* arena = factory_->arenas()->find(data, bytes);
  if (arena == nullptr) return false;
  std::uint32_t& told = announced_[shm::place_of(arena->id)];
  if (told != arena->id) {
    Message message;
    message.kind = MessageKind::kArena;
    message.arena = arena->id;
    message.bytes = arena->bytes;
    const int memory = arena->memory.fd();
    if (shm::send_message(socket_.fd(), message, &memory, 1) != Io::kDone) return false;
    told = arena->id;
  }
  *place = {arena->id, static_cast<std::uint64_t>(data - arena->base)};
  return true;
}

void ShmLane::arena_is_gone(std::uint32_t id) {
  std::uint32_t& told = announced_[shm::place_of(id)];
  if (told != id || state_ != State::kUp) return;
  told = 0;
  Message message;
  message.kind = MessageKind::kArenaGone;
  message.arena = id;
  // Unsaid, it costs the peer the pages until the place is used again or the lane ends.
  shm::send_message(socket_.fd(), message, nullptr, 0);
}

bool ShmLane::give_up_on_reader(const Place& place, std::uint32_t tries) {
  if (state_ != State::kUp || factory_ == nullptr) return true;
  if (tries % 16 == 0) {
    pollfd end{socket_.fd(), 0, 0};
    if (::poll(&end, 1, 0) == 1) return true;  // hung up: a process closes its descriptors after its memory is gone
  }
  const Nanos now = SystemClock().now();
  if (tries == 0) {
    wait_began_ = now;
    wait_warned_ = false;
  }
  if (now - wait_began_ < kReaderLimit) return false;
  const int error_number = factory_->arenas()->detach(place.arena);
  if (error_number == 0) return true;
  // Letting go could give the reader torn bytes: it is waited for after all, and this thread does nothing else.
  wait_began_ = now;
  if (!std::exchange(wait_warned_, true)) {
    log(LogLevel::kWarn, "shm: a reader that stands still is waited for: no private pages for its arena: error %d",
        error_number);
  }
  return false;
}

// --- receiving -------------------------------------------------------------------------------------------------------

bool ShmLane::ready() const { return state_ == State::kUp && (reader_->ready() || (full_ && writer_->ready())); }

bool ShmLane::sleep() {
  if (state_ != State::kUp) return true;
  const bool nothing_to_read = reader_->sleep();
  return (!full_ || writer_->sleep()) && nothing_to_read;
}

std::size_t ShmLane::on_rings() {
  if (state_ != State::kUp) return 0;
  std::size_t handled = receive();
  if (state_ == State::kUp && full_ && !writer_->ready()) return handled + tell_writable();
  if (state_ == State::kUp && !queue_.empty()) {
    const std::size_t before = queue_.bytes();
    write_queue();
    if (queue_.bytes() != before) ++handled;
  } else {
    full_ = false;
  }
  return handled + tell_writable();
}

std::size_t ShmLane::on_pending() {
  if (state_ == State::kBroken) {
    // Frames that the peer wrote before are still read; its goodbye may be among them.
    if (reader_) receive();
    if (state_ == State::kBroken) go_down(broken_reason_, broken_hangup_);
    return 1;
  }
  if (state_ == State::kEnding) return receive();
  return on_rings();
}

std::size_t ShmLane::receive() {
  std::size_t handled = 0;
  std::size_t received = 0;
  while (state_ == State::kUp || state_ == State::kEnding || state_ == State::kBroken) {
    if (received >= kReadBytesPerPoll && state_ != State::kBroken) {
      factory_->schedule(*this);
      return handled;
    }
    std::size_t taken = 0;
    if (const char* reason = reader_->read(kReadBytesPerPoll, *this, counters_, &taken)) {
      go_down(Status(CANARY_SYSTEM,
                     std::string("a frame can't be believed (") + wire::explain(reason, reader_->header()) + ")"),
              false);
      return handled + 1;
    }
    received += taken;
    if (taken != 0) {
      ++handled;
      continue;
    }
    if (state_ == State::kEnding) {
      go_down(gone(reader_->mid_frame()), true);
      return handled + 1;
    }
    if (state_ != State::kUp || !reader_->ready()) return handled;
  }
  return handled;
}

std::size_t ShmLane::on_socket() {
  std::size_t handled = 0;
  for (int i = 0; i < kMessagesPerPoll; ++i) {
    if (state_ != State::kGreeting && state_ != State::kOffered && state_ != State::kUp) break;
    shm::Received received;
    std::string why;
    switch (shm::receive_message(socket_.fd(), &received, &why)) {
      case Io::kAgain:
        return handled;
      case Io::kClosed:
        if (state_ != State::kUp) {
          go_down(gone(false), true);
          return handled + 1;
        }
        state_ = State::kEnding;
        queue_.clear();
        refused_ = false;
        return handled + receive();
      case Io::kFailed:
        go_down(Status(CANARY_SYSTEM, why), false);
        return handled + 1;
      case Io::kDone:
        break;
    }
    ++handled;
    const Status status = take_message(received);
    if (status.ok()) continue;
    go_down(status, status.code() == CANARY_PEER_DIED);
    return handled;
  }
  return handled;
}

Status ShmLane::take_message(shm::Received& received) {
  if (state_ == State::kGreeting) return take_offer(received);
  if (state_ == State::kOffered) return take_answer(received);
  if (received.message.kind == MessageKind::kArena)
    return peer_arenas_->add(received.message.arena, received.descriptors[0].fd(), received.message.bytes);
  if (received.message.kind != MessageKind::kArenaGone) return unexpected();
  peer_arenas_->remove(received.message.arena);
  return {};
}

// A reference's arena was announced before the reference: at the latest now the message is there.
const std::byte* ShmLane::arena_at(std::uint32_t arena, std::uint64_t offset, std::uint32_t bytes) {
  const std::byte* found = peer_arenas_->at(arena, offset, bytes);
  for (int i = 0; found == nullptr && i < kMessagesPerPoll; ++i) {
    shm::Received received;
    std::string why;
    if (shm::receive_message(socket_.fd(), &received, &why) != Io::kDone || !take_message(received).ok()) break;
    found = peer_arenas_->at(arena, offset, bytes);
  }
  return found;
}

Landing ShmLane::landing_for(const wire::Header& header) {
  return sink_ != nullptr ? sink_->landing_for(*this, header) : Landing{};
}

void ShmLane::on_frame(const wire::Header& header, const Arrival& arrival) {
  if (sink_ != nullptr) sink_->on_frame(*this, header, arrival);
}

// --- going down ------------------------------------------------------------------------------------------------------

std::size_t ShmLane::on_time_out(Nanos limit) {
  go_down(Status(CANARY_SYSTEM, "no answer through shared memory within " + milliseconds(limit)), false);
  return 1;
}

void ShmLane::break_down(Status reason, bool hangup) {
  state_ = State::kBroken;
  broken_reason_ = std::move(reason);
  broken_hangup_ = hangup;
  refused_ = false;
  queue_.clear();
  factory_->schedule(*this);
}

void ShmLane::go_down(const Status& reason, bool hangup) {
  if (state_ == State::kDown) return;
  if (writer_) writer_->revoke_all();
  state_ = State::kDown;
  refused_ = false;
  queue_.clear();
  factory_->leave_epoll(socket_);
  factory_->leave_epoll(bell_);
  socket_.close();
  bell_.close();
  if (sink_ != nullptr) return sink_->on_down(*this, reason.wrap(description_), hangup);
  broken_reason_ = reason;  // nobody's yet: the factory's to know
  broken_hangup_ = hangup;
}

}  // namespace canarynet

// transport/lane.h -- a lane moves frames to one peer over one rail and never loses one silently while it is up.
//
// What: Lane (one connection), LaneSink (who hears of its frames), LaneFactory (dials, accepts, drives all lanes of an
// engine).
// Units: bytes; times are monotonic Nanos handed in.
// Memory: see send() and landing_for().
// Threads: a factory, its lanes and their sink belong to one thread at a time (the engine's owner). No call sleeps,
// starts a thread or, after set-up, allocates.
// Failure: a lane goes down once, with a reason (on_down); it is then only good for destruction. A dead NIC usually
// gives no error at all: the channel decides from missing acks. One that is down because it can't believe its peer's
// stream is deaf: nothing is read any more, but its connection stands until it is destroyed, and what send() and
// flush() take still goes, so that its owner can tell the peer before the end does. (Not in shared memory, which
// carries no control: there the end comes at once.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "topology/rails.h"
#include "transport/wire.h"

namespace canarynet {

class Lane;

inline constexpr std::size_t kInlinePayloadBytes = 1024;  // payloads up to this are copied by send()

// Where the payload of an announced frame goes. The header has been validated (its CRC too).
//   kSpan     the lane writes payload_bytes there, directly; the memory stays valid until on_frame() or redirect() of
//             this frame or the lane's end.
//   kSlot     the lane keeps the payload in its own slot (kPayloadMax bytes) and shows it to on_frame().
//   kDiscard  the lane reads past it; on_frame() follows with an empty payload and Arrival::discarded set.
struct Landing {
  enum class Kind : std::uint8_t { kSpan, kSlot, kDiscard };
  Kind kind = Kind::kDiscard;
  std::byte* data = nullptr;  // kSpan only
  std::uint64_t cookie = 0;   // handed back in Arrival, and so is the second word
  std::uint64_t owner = 0;    // whose place it is
};

struct Arrival {
  std::span<const std::byte> payload;  // valid during on_frame() only (kSlot), or the landing's own span
  std::uint64_t cookie = 0;            // of the Landing, both words
  std::uint64_t owner = 0;
  bool intact = false;     // payload CRC is right, and the sender has not given the frame up
  bool discarded = false;  // landed nowhere, no CRC was checked
};

// Implemented by the channel layer. Calls come from within LaneFactory::poll() only. A sink must not destroy a lane
// inside a callback of that lane (nor of another lane of the factory): it collects and destroys after poll().
class LaneSink {
 public:
  virtual ~LaneSink() = default;
  // The connection stands in both directions (dialled lanes only; accepted ones are up when they are handed over).
  virtual void on_up(Lane& lane) = 0;
  // Asked once for every frame, empty ones included.
  virtual Landing landing_for(Lane& lane, const wire::Header& header) = 0;
  virtual void on_frame(Lane& lane, const wire::Header& header, const Arrival& arrival) = 0;
  // After send() refused: there is room again.
  virtual void on_writable(Lane& lane) = 0;
  // The lane is down. `hangup`: the peer's end was closed, reset or refused the dial (evidence of a death), not a local
  // failure, a time-out or a stream that can't be believed.
  virtual void on_down(Lane& lane, const Status& reason, bool hangup) = 0;
};

// Things known to keep lanes from coming up, by more than waiting in vain, which may be mere slowness.
enum class Obstacle : std::uint8_t {
  kNone,
  kHere,   // dialling failed at this end: no descriptor is left, or no route leads there
  kThere,  // the peer turned the connection away and said why
};

struct LaneCounters {
  std::uint64_t bytes_sent = 0;  // headers and payloads handed to the kernel (or wire)
  std::uint64_t bytes_received = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t header_errors = 0;   // frames refused by validate(); of a path, and those that frames.h refused
  std::uint64_t payload_errors = 0;  // payload CRC wrong
  // TCP's counts as of the last look (Lane::look_at_losses): packets with payload that were sent, and sent again.
  std::uint64_t segments_sent = 0;
  std::uint64_t segments_resent = 0;
};

class Lane {
 public:
  // Destruction closes the connection at once; nothing is delivered after it.
  virtual ~Lane() = default;

  // Queues one frame. `header` is complete and sealed; header.payload_bytes bytes at `payload` follow it. Up to
  // kInlinePayloadBytes are copied. More is borrowed: it must stay unchanged until the peer acked the frame or
  // cancel(cookie) returned. False when the queue is full or the lane is down, not just deaf: nothing was taken. After
  // a full queue on_writable follows, but on a deaf lane, which calls nobody any more. Frames leave in the order of
  // send(), except that those of a kind that wire::overtakes() go before all others not yet begun.
  virtual bool send(const wire::Header& header, const std::byte* payload, std::uint64_t cookie) = 0;
  // Writes as much of the queue as goes without waiting. The factory's poll() does so as well when the lane becomes
  // writable.
  virtual void flush(Nanos now) = 0;
  // Gives back every borrowed payload queued under `cookie`: frames not begun are dropped; one half written is given
  // up: it keeps its place and its length in the stream, and the peer learns that it is not what its header announced
  // (`intact` is false there). Header-only and inline frames under that cookie are dropped too, unless begun. Returns
  // whether there was any frame that the peer does not get because of this.
  virtual bool cancel(std::uint64_t cookie) = 0;
  // The rest of a kSpan landing with this cookie, if one is in progress here, goes to the discard buffer.
  virtual void redirect(std::uint64_t cookie) = 0;

  // Bytes taken by send() and not yet handed to the kernel or wire.
  virtual std::size_t queued_bytes() const = 0;
  virtual bool up() const = 0;
  // The peer's kernel does not acknowledge what was sent, and the connection sends it again, ever more rarely: when
  // it gets through is decided by that back-off, which may last as long again as the outage did. False where the peer's
  // kernel answers, be its process asleep, and where nothing tells. May cost a system call.
  virtual bool backs_off() const { return false; }
  // How far the connection itself has got, whole frames or not. Only what both are compared with an earlier look tells
  // anything: a lane that is merely slow gets on, a dead one does not.
  struct Progress {
    std::uint64_t acknowledged = 0;  // bytes of ours that the peer's kernel has
    std::uint64_t received = 0;      // bytes of the peer's that are here, read or not
  };
  // Zeroes where nothing tells. Costs a system call.
  virtual Progress progress() const { return {}; }
  virtual const LaneCounters& counters() const = 0;
  // Brings the counters of what the connection itself sent again up to date. Returns a sentence for the log where the
  // way loses so much that another setting would serve this lane better, else "". For about once per second: costs a
  // system call.
  virtual std::string look_at_losses() { return {}; }
  // Text for messages: "tcp 10.0.0.1:4000>10.0.0.2:5000 on nic0".
  virtual std::string description() const = 0;
  // Local rail number; -1 for a control lane.
  virtual int rail() const = 0;
  // Where the other end is, as the kernel says: the port of a dialling end is of no interest. Family kNone: not known.
  virtual Address remote() const { return {}; }
  // Set by the sink's owner, unread by the lane.
  void* owner = nullptr;

  void set_sink(LaneSink* sink) { sink_ = sink; }
  LaneSink* sink() const { return sink_; }

 protected:
  LaneSink* sink_ = nullptr;
};

// Gets lanes that peers dialled. It must set_sink() before it returns, or drop the lane.
class LaneAcceptor {
 public:
  virtual ~LaneAcceptor() = default;
  virtual void on_accept(std::unique_ptr<Lane> lane) = 0;
};

inline constexpr int kControlRail = -1;

class LaneFactory {
 public:
  virtual ~LaneFactory() = default;
  // This host's rails, with the ports their listeners got.
  virtual std::span<const Rail> rails() const = 0;
  // Starts to connect from local rail `rail` (source address and device bound; kControlRail: as the system routes) to
  // `to`. on_up or on_down of `sink` follows from poll(). An error means nothing was started.
  virtual Result<std::unique_ptr<Lane>> dial(int rail, const Address& to, LaneSink& sink) = 0;
  // Accepts control lanes on `at` (any address of this host when it is a wildcard); port 0 picks one. Returns the bound
  // address.
  virtual Result<Address> listen_control(const Address& at) = 0;
  virtual void set_acceptor(LaneAcceptor* acceptor) = 0;
  // Moves bytes, calls sinks. Returns the number of events handled (0: nothing was there). Bounded work.
  virtual std::size_t poll(Nanos now) = 0;
  // When poll() wants to be called even if poll_fd() stays silent (connect time-outs); Nanos::max() for never, 0 for at
  // once.
  virtual Nanos next_deadline() const = 0;
  // One epoll descriptor that becomes readable when poll() has something to do and prepare_to_sleep() was called since
  // the last poll(); -1 in the simulator.
  virtual int poll_fd() const = 0;
  // Before every wait for poll_fd(): peers that need no kernel to bring their bytes are asked to wake it. False: there
  // is work already, don't wait. A caller that polls continuously does not pay for wake-ups.
  virtual bool prepare_to_sleep() { return true; }
  // "tcp", "sim".
  virtual const char* name() const = 0;
  // The reason why it did not accept the last connection that came, for messages; "" when that went well.
  virtual std::string trouble() const { return {}; }
  // The kernel's own tx_bytes of a rail's device, or 0 where there is no kernel NIC. May cost a system call: not for
  // the data path.
  virtual std::uint64_t kernel_tx_bytes(int rail) const = 0;
};

}  // namespace canarynet

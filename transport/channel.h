// transport/channel.h -- all lanes to one peer engine: identity, acks, lane choice per piece, failover, heartbeats.
//
// What: pulls pieces from its client when a lane has room, puts each on the lane expected to deliver it first, resends
// what a dead or silent lane held over the others, and retries dead lanes in the background. Knows nothing of
// gradients: step and codec numbers pass through unread.
// Memory: a piece's payload is borrowed from next_piece() until on_done() or cancel_flow(); up to kCopiedPieceBytes are
// copied and done at once (unless OutPiece::borrow). Pools are fixed at construction; what of them was never used has
// no pages.
// Thread: the engine's owner; no call blocks or, after construction, allocates (dialling a lane does, and the first
// lane of a path that only the peer knew).
// Failures: a dead lane is the channel's own business; whether the *peer* is dead is the engine's (last_heard(),
// paths_up()).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/growing_pool.h"
#include "base/sole_user.h"
#include "base/units.h"
#include "transport/frames.h"
#include "transport/lane.h"
#include "transport/lane_shares.h"
#include "transport/path.h"
#include "transport/rail_rates.h"

namespace canarynet {

class Channel;

inline constexpr std::uint32_t kCopiedPieceBytes = 8192;
// The driver of channels begins a cycle at least so often, also when there is nothing to do.
inline constexpr Nanos kLooksEvery = 50_ms;
inline constexpr std::uint64_t kNoCookie = ~std::uint64_t{0};

// The order in which pieces leave. Each class has a queue of its own in the channel, so a piece that waits for a lane
// holds up none of the class before it.
enum class PieceClass : std::uint8_t { kFirst, kBulk };
inline constexpr std::size_t kPieceClasses = 2;

struct OutPiece {
  wire::Header header;  // identity, payload_bytes, kSigned; the channel fills other flags, lane_sequence and CRCs
  bool has_payload_crc = false;  // header.payload_crc32 is right already
  const std::byte* payload = nullptr;
  // The last of the header's payload_bytes lie here, the others at `payload`. Such a frame is copied, so it is no
  // longer than kCopiedPieceBytes.
  std::span<const std::byte> behind;
  std::uint64_t owner = 0;           // for on_done
  std::uint64_t cookie = kNoCookie;  // likewise; kNoCookie: nobody wants to know
  int rail = -1;                     // preferred local rail
  bool borrow = false;               // never copied: on_done comes with the acknowledgement, however small it is
  bool encoded = false;              // both ends compute for every such piece: the next one, and acks, may take long
  bool urgent = false;               // its user waits for it while others are under way: they leave it room
};

class ChannelClient {
 public:
  virtual ~ChannelClient() = default;
  // The next frame of the class for this peer; false: nothing is ready (call Channel::wake() when it is).
  virtual bool next_piece(Channel& channel, PieceClass which, OutPiece* out) = 0;
  // False: next_piece() would say so, too. Asked before room is made for a piece.
  virtual bool has_piece(const Channel&, PieceClass) const { return true; }
  // About how many payload bytes next_piece() would give now, one after the other, of the class and those before it. A
  // slow lane takes only what it delivers before the others would have delivered all of it.
  virtual std::uint64_t waiting_bytes(const Channel& channel, PieceClass which) const = 0;
  // A sequenced frame's payload was acknowledged or copied: the memory is the client's again.
  virtual void on_done(Channel& channel, std::uint64_t owner, std::uint64_t cookie) = 0;
  virtual Landing landing_for(Channel& channel, const wire::Header& header) = 0;
  // A piece or signature arrived whole and valid (or was discarded on the client's own word). True: acknowledge it
  // (also when it is a duplicate). False: there was no place for it; the peer sends it again.
  virtual bool on_arrival(Channel& channel, const wire::Header& header, const Arrival& arrival) = 0;
  // A landing in a span, which was given these two words, began and will not finish (lane down, CRC wrong, or
  // redirect_landing()): its place is free again.
  virtual void on_landing_lost(Channel& channel, const wire::Header& header, std::uint64_t owner,
                               std::uint64_t cookie) = 0;
  virtual void on_heartbeat(Channel& channel, const wire::Header& header) = 0;
  // Fills group fields (flow, epoch, op, source) of an outgoing heartbeat.
  virtual void fill_heartbeat(Channel& channel, wire::Header* header) = 0;
  virtual void on_abort(Channel& channel, const wire::Header& header, const wire::AbortFrame& abort) = 0;
  // A path came up or went down (text for the log: "nic0>nic0 up").
  virtual void on_path_event(Channel& channel, const Path& path, const std::string& what) = 0;
};

struct ChannelOptions {
  std::uint64_t job = 0;
  std::uint32_t my_engine = 0;
  std::uint32_t peer_engine = 0;
  bool dialer = false;                          // this side dials (the lower engine number)
  std::uint16_t purpose = wire::kHelloChannel;  // of its hellos
  std::vector<PathSpec> paths;
  Bytes piece_bytes;
  Nanos heartbeat_interval;
  Nanos silence_limit;
  std::uint32_t records = 2048;  // at most so many sequenced frames in flight over all lanes
  std::uint32_t copies = 256;    // at most, of kCopiedPieceBytes
  RailRates* rails = nullptr;    // shared by the channels of a process; outlives them. Null: the channel has its own
  bool probes = false;           // links are measured while they are idle (CANARY_PROBES)
  bool check_memory = true;      // payloads have their CRC also where every path is shared memory
};

// Whether two headers name the same piece.
inline bool same_piece(const wire::Header& a, const wire::Header& b) {
  return a.flow == b.flow && a.epoch == b.epoch && a.op == b.op && a.step == b.step && a.source == b.source &&
         a.destination == b.destination && a.piece == b.piece && a.kind == b.kind;
}

class Channel final : public LaneSink {
 public:
  Channel(ChannelOptions options, LaneFactory& factory, ChannelClient& client);
  ~Channel() override;

  std::uint32_t me() const { return options_.my_engine; }
  std::uint32_t peer() const { return options_.peer_engine; }
  // Pieces travel with the CRC of their payloads.
  bool checked() const { return checked_; }
  void start(Nanos now);
  // Sets the time that callbacks of this cycle see. Before LaneFactory::poll().
  void begin_cycle(Nanos now) { now_ = now; }
  // Nobody looked for so long (base/attention.h), and what came meanwhile is read by the poll that follows: no lane and
  // no peer was silent.
  void move_clocks(Nanos missed);
  // There may be something to send.
  void wake() {
    awake_ = true;
    for (Waiting& w : waiting_) w.dry = false;
  }
  // Something to do before the deadline: call pump().
  bool active() const { return awake_ || acks_waiting_ || flush_waiting_ || !graveyard_.empty(); }
  // Places pieces on lanes, sends acks that are due, flushes. Bounded by lanes' room.
  std::size_t pump(Nanos now);
  // Sends the acks that wait for company; without `all` not those of copies, which nobody waits for: they go when they
  // are due.
  void flush_acks(Nanos now, bool all);
  // Timers: heartbeats, stalls, redials, delayed acks. Call when now >= next_deadline().
  void on_timer(Nanos now);
  Nanos next_deadline() const { return next_timer_; }

  // An accepted lane whose Hello named this engine. A reason in a few words: it is not one of ours, and stays the
  // caller's. Its rail, and the address it comes from where the path's rails share a subnet, must be those of the path
  // that the hello names. Paths whose rails are not known (local_rail -1) take the first hello that names none of the
  // others. A lane that works is not given up for it: the peer dials again when its own end is gone, and then the old
  // lane falls silent or hangs up; until it does, the newcomer waits.
  const char* adopt(std::unique_ptr<Lane>& lane, const wire::HelloPayload& hello, Nanos now);

  // Takes back everything queued or unacked of a flow (its epoch is dead): no memory of it is referenced afterwards,
  // neither as a source nor as a landing.
  void cancel_flow(std::uint32_t flow);
  // Another lane completed this piece: the landing in progress on whatever lane goes to the discard buffer.
  void redirect_landing(const wire::Header& piece);
  // Does the same by where it lands: for pieces of which two that go to one place may differ in what names them.
  void redirect_landing(const std::byte* place);
  // The client can't make sense of the frame that on_arrival() brings: counted, and told to the log now and then.
  void note_malformed(const char* why);
  // The peer left on purpose (its Goodbye, or word of it over control): everything sent to it is done.
  void peer_departed();
  // The peer is dead: it is not dialled any more, and a connection under way says nothing. A process that has its port
  // now would hear the job's token.
  void peer_died() { peer_died_ = true; }
  // Sends a best-effort frame on every lane that is up.
  void broadcast(const wire::Header& header, const void* payload, Nanos now);
  // Says goodbye on every lane: what follows is not a failure.
  void goodbye(Nanos now);

  int paths_up() const;
  bool stands() const;  // a lane is up, or on probation: the peer's process answers
  bool ever_up() const { return ever_up_; }
  // Records in flight or waiting for a lane.
  bool drained() const { return records_.used() == 0; }
  // Their headers. Looks at every record.
  void for_each_unacknowledged(const std::function<void(const wire::Header&)>& visit) const;
  bool peer_left() const { return peer_left_; }
  // Every lane's end was closed by the peer at least once since a lane was last up: hint of a death.
  bool hung_up() const { return hung_up_; }
  // Since when every dial of every path has been refused or hung up on: nobody is there. Nanos::max(): that is not so.
  Nanos refused_since() const;
  Nanos last_heard() const { return last_heard_; }
  // When the youngest frame left here that the peer is known to have heard, by an acknowledgement or an echo. A peer
  // that is heard may itself hear nothing, where one direction is cut.
  Nanos last_heard_by_peer() const { return heard_by_peer_; }
  std::span<const Path> paths() const { return paths_; }
  // "nic0>nic0, nic1>nic1": for messages.
  std::string describe_paths() const;
  // Why the last tries to get lanes failed, each reason once: ": no answer", or "" where there is nothing to tell.
  std::string describe_failures() const;
  Obstacle obstacle() const;
  bool dials() const { return options_.dialer; }
  void set_rail_names(std::vector<std::string> local, std::vector<std::string> remote);
  // The peer's name of the rail that a path leads to; "" where it was not told.
  const std::string& remote_name(const Path& path) const;

  // LaneSink
  void on_up(Lane& lane) override;
  Landing landing_for(Lane& lane, const wire::Header& header) override;
  void on_frame(Lane& lane, const wire::Header& header, const Arrival& arrival) override;
  void on_writable(Lane& lane) override;
  void on_down(Lane& lane, const Status& reason, bool hangup) override;

 private:
  struct Record {
    enum class State : std::uint8_t {
      kFree,
      kWaiting,  // in its class's queue of frames that wait for a lane
      kInFlight,
      kZombie,  // done while it waited: freed when it is popped
    };
    OutPiece piece;
    State state = State::kFree;
    PieceClass piece_class = PieceClass::kBulk;
    bool hedged = false;
    Resend resent = Resend::kNone;    // it goes again, and why
    std::uint32_t copy = 0xffffffff;  // slot of the copy pool
    std::uint32_t next = 0xffffffff;  // queue of frames that wait for a lane
    std::uint8_t placements = 0;      // lanes that still hold it
  };

  // Frames of one class that wait for a lane, the oldest first.
  struct Waiting {
    std::uint32_t head = 0xffffffff, tail = 0xffffffff;
    bool dry = false;  // the client has said that it has no more
  };

  struct Copy {
    std::byte bytes[kCopiedPieceBytes];
  };

  void redirect_landing(Path& path);
  Path& path_of(Lane& lane) { return *static_cast<Path*>(lane.owner); }
  void earlier(Nanos t) { next_timer_ = std::min(next_timer_, t); }
  Nanos first_patience() const;
  void dial(Path& path, Nanos now);
  void send_hello(Path& path, Lane& lane);
  void come_up(Path& path);
  void fail_path(Path& path, const std::string& why);
  void bury(Path& path);
  bool belongs(const Path& path, const Lane& lane) const;
  void take(Path& path, std::unique_ptr<Lane> lane);
  void settle_candidate(Path& path, Nanos now);
  void drop_candidate(Path& path);
  void dial_beside(Path& path, Nanos now);
  void drop_successor(Path& path);
  void succeed(Path& path);
  void successor_down(Path& path, const Status& reason, bool hangup);
  void note_hangup();
  bool send_frame(Path& path, wire::Header header, const void* payload, std::uint64_t cookie);
  bool is_worth_a_ride(const Path& path) const;
  void send_ack(Path& path);
  void send_heartbeat(Path& path, Path::BeatFor why = Path::BeatFor::kLife);
  void note_echo(Path& path, const Path::Beat* beat, Nanos round_trip);
  void watch_link(Path& path);
  void look_at_losses(Path& path);
  bool is_greeted(const wire::Header& header, const Arrival& arrival, std::string* why_not) const;
  template <typename Frame>
  bool is_read(const wire::Header& header, const Arrival& arrival, Frame* out);
  void note_sequenced(Path& path, const wire::Header& header);
  void handle_ack(Path& path, const wire::AckPayload& ack);
  struct Acked;
  void entry_acked(Path& path, std::uint32_t sequence, Acked* acked);
  void forget_probe(Path& path, Path::InFlight& e);
  void finish_record(std::uint32_t index);
  void take_back(std::uint32_t index);
  void requeue(std::uint32_t index);
  void append(Waiting& queue, std::uint32_t index);
  void fill_hole(Path& path, std::uint32_t sequence);
  void declare_lost(Path& path, std::uint32_t sequence);
  bool pull(PieceClass which);
  bool place_next(PieceClass which, PieceClass room);
  std::uint32_t take_record();
  void free_record(std::uint32_t index);
  void make_zombie(Record& record);
  void count_urgent_out(Record& record);
  Path* choose_path(std::uint32_t bytes, int rail, PieceClass which);
  bool usable(const Path& path) const;
  BytesPerSec promise_of(const Path& path) const;
  BytesPerSec capacity_of(const Path& path) const;
  BytesPerSec believed_rate(const Path& path) const;
  void settle_home();
  std::uint64_t first_window(const Path& path) const;
  static std::uint64_t short_window(const Path& path);
  std::uint64_t trial_window(const Path& path) const;
  std::uint64_t window_of(const Path& path, PieceClass which) const;
  bool has_room(Path& path, std::uint32_t bytes, PieceClass which) const;
  Nanos arrival(const Path& path, std::uint64_t bytes) const;
  Nanos arrival_at(BytesPerSec rate, const Path& path, std::uint64_t bytes) const;
  Nanos all_delivered(std::uint64_t bytes) const;
  void try_lanes();
  bool on_trial(Path& path) const;
  bool send_probe(Path& path, std::uint32_t bytes, bool measures);
  void beat_in_pause(Path& path);
  void answer_in_pause(Path& path);
  void answer_question(Path& path);
  bool carries_nothing(const Path& path) const;
  void begin_train(Path& path);
  BytesPerSec seen_of_train(const Path& path) const;
  std::uint64_t train_window(const Path& path, BytesPerSec seen, std::uint32_t frame) const;
  void go_on_with_train(Path& path);
  void end_train(Path& path, bool counts);
  bool place(std::uint32_t index, Path& path, bool last_for_now);
  Path::InFlight& note_sent(Path& path, std::uint32_t payload_bytes, bool prompt);
  void hedge(Nanos now);
  bool hedge_over(Path& idle, Path& busy, Nanos now);
  Nanos due(const Path::InFlight& frame, const Path& path) const;
  static Nanos late_after(Nanos due_at, const Path& path);
  bool anything_late(Nanos now);
  bool check_stall(Path& path, Nanos now);
  bool gets_on(Path& path, Nanos now);
  bool still_brings(Path& path, Nanos now, Nanos silence);
  void end_stall(Path& path);
  Nanos stall_after(const Path& path) const;
  std::string path_name(const Path& path) const;
  // To the log, for who wants to know why a lane carries what it does.
  void tell(const Path& path, const std::string& what) const;
  void tell_shares();

  ChannelOptions options_;
  bool checked_ = true;
  LaneFactory& factory_;
  ChannelClient& client_;
  SoleUser user_;
  std::vector<Path> paths_;
  std::vector<std::string> local_names_, remote_names_;
  GrowingPool<Record> records_;
  std::array<Waiting, kPieceClasses> waiting_;
  std::int64_t first_lead_ = 0;  // bytes of PieceClass::kFirst beyond bulk's part, up to limits::kFirstLead
  GrowingPool<Copy> copies_;
  LaneShares shares_;                             // as told to the log
  std::vector<std::unique_ptr<Lane>> graveyard_;  // lanes that may be inside a callback

  Nanos now_;
  Nanos next_timer_ = Nanos::max();
  Nanos last_heard_, heard_by_peer_;
  RailRates own_rails_;
  RailRates* rails_ = nullptr;
  std::uint64_t placed_bytes_ = 0;  // payloads entrusted to lanes so far
  bool trying_ = false;             // some lane is being tried that was never busy
  // About the lanes that a piece may go to now (settle_home()): whether one has proved its rate, and the one that is
  // trusted without, since when.
  bool any_proved_ = false;
  bool any_rate_ = false;  // or something of it
  bool by_capacity_ = false;
  bool long_ = false;  // operations of some length were there
  const Path* home_ = nullptr;
  Path* arriving_ = nullptr;  // of the frame that came last
  Nanos home_since_;
  Path::State wanted_ = Path::State::kUp;
  bool awake_ = false;
  bool acks_waiting_ = false;
  bool flush_waiting_ = false;
  bool ever_up_ = false;
  bool peer_left_ = false;
  bool peer_died_ = false;
  bool leaving_ = false;
  bool hung_up_ = false;
};

}  // namespace canarynet

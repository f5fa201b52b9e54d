// sim/sim_fabric.h -- hosts, NICs and wires in virtual time: the simulator's implementation of transport/lane.h.
//
// What: SimFabric holds the clock, the events, every host's NICs and one LaneFactory per host. The product's code
// (channels, membership, engines) runs on it unchanged. The caller steps it: next_event() says when something happens,
// advance_to() makes it happen, take_ready_hosts() says which factories have something to poll.
// Model: a NIC sends one frame at a time, its lanes taking turns, and receives at its own rate; a frame is seen when
// its last bit is there. A lane is a reliable stream (FabricOptions::stream, like TCP: a lost frame comes late, and a
// dead wire stops the lane once its window is full) or a string of packets (a lost frame is lost). Control lanes have a
// network of their own, without limits. Hosts with one Wiring::machine number have one rail more behind their NICs:
// shared memory. Its lanes need no payload CRC, and a ring bounds what its sender has begun: the rest of a frame that
// does not fit waits until the reader has polled. A stream's or a ring's large payload is read from the sender's memory
// as late as possible: half of it when its header is shown, the rest when it is whole. That exposes a sender that
// changes it before the acknowledgement. cancel() gives up what has not left by then; a lane's end cuts it.
// Units: Nanos, bytes, parts per million. Memory: packets' payloads are copied when they begin; pools grow to the
// high-water mark, then nothing allocates but connection set-up. Lanes that outlive the fabric are dead objects.
// Threads: one owner thread for the fabric and everything that runs on it. Determinism: all randomness comes from one
// seed; hash() covers every event that was shown to a sink, so that runs can be compared.
// Failures: only those that the caller injects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "sim/event_queue.h"
#include "sim/frame_pool.h"
#include "topology/rails.h"
#include "transport/lane.h"

namespace canarynet {

class SimLane;
class SimLaneFactory;

// One direction of a NIC. Faults of the sender's `out` and of the receiver's `in` both apply.
struct DirectionOptions {
  Nanos latency{10'000};
  Nanos jitter;      // uniform in [0, jitter]; frames of a lane keep their order
  BytesPerSec rate;  // 0: unlimited
  // A stream lane gets no more than this, however fast the NIC is: what congestion control makes of losses that are too
  // many and small to be simulated one by one (sim/lossy_stream.h). 0: the NIC's rate. The NIC is free meanwhile.
  BytesPerSec stream_rate{};
  std::int64_t bucket = 0;     // after a pause a sender's shaper passes so many bytes at kWireRate, as tc-tbf does
  std::uint32_t loss_ppm = 0;  // per frame
  // Longer frames are lost, as on a path whose MTU is smaller than that of its ends; 0: no limit.
  std::int64_t frame_bytes_max = 0;
  std::uint32_t duplicate_ppm = 0;  // the copy comes up to reorder_delay later, also on stream lanes
  std::uint32_t reorder_ppm = 0;    // held up by up to reorder_delay while later frames pass, also on stream lanes
  Nanos reorder_delay{1'000'000};
  std::uint32_t corrupt_ppm = 0;  // one to three bits flipped anywhere in header and payload

  static constexpr BytesPerSec kWireRate = BytesPerSec::from_mbit(10'000);
  // Plain 64-bit arithmetic: frames are at most 1 MiB, and this runs once or twice per frame.
  Nanos time_for(std::int64_t bytes) const;
};

struct NicOptions {
  DirectionOptions out;
  DirectionOptions in;
  // A link with this latency in all, and this rate in each direction.
  static NicOptions link(Nanos latency, BytesPerSec rate = {});
};

// The way from one host to another, beside what their NICs say of it.
struct PathOptions {
  Nanos latency;
  BytesPerSec stream_rate{};  // as DirectionOptions has it
};

// The NICs that share a network: networks[host][rail]. NICs of one network meet; hosts meet over shared networks only.
struct Wiring {
  std::vector<std::vector<std::uint32_t>> networks;
  // machine[host]: hosts of equal numbers are processes that share memory; empty: none do.
  std::vector<int> machine = {};

  // Rail r of every host on network r.
  static Wiring flat(int hosts, int rails);
  // A wire between every two hosts (hosts - 1 NICs each, at most kRailsMax): the rail of host a to host b is b's place
  // among the others.
  static Wiring mesh(int hosts);
  // BCube(r, levels): r^levels hosts; rail l joins hosts that differ in digit l (base r) only.
  static Wiring bcube(int r, int levels);
};

struct FabricOptions {
  std::uint64_t seed = 1;
  NicOptions nic;                                                                  // every NIC, until set_nic()
  NicOptions memory = NicOptions::link(Nanos{2'000}, BytesPerSec{4'000'000'000});  // shared memory's rail
  std::int64_t ring_bytes = 1 << 20;                                               // of its lanes, per direction
  Nanos control_latency{50'000};
  bool control_over_rails = false;  // no control network: the control address of a host is that of its rail 0
  // Control lanes over NICs lose no frame, keep their order and carry nothing twice, as TCP does. Without it they are
  // treated like the others, which asks more of them.
  bool reliable_control = false;
  bool stream = true;             // see above
  bool bad_header_resets = true;  // a header that validate() refuses makes the lane deaf; false: the frame is dropped
  bool early_headers = true;      // stream lanes at a finite rate ask for the landing when the header is there
  Nanos retransmit_delay{200'000'000};  // of stream lanes: after a loss, and between tries on a dead wire
  // The tries become rarer, twice as far apart each time, as TCP's do. If one direction is cut, nothing gets through
  // the other either, since no acknowledgement comes back.
  bool retransmit_backs_off = false;
  Nanos connect_timeout{3'000'000'000};
  std::uint32_t queue_frames = 256;     // per lane, not begun
  std::int64_t window_bytes = 1 << 20;  // per lane: begun and not yet taken by the receiver's poll()
  std::uint32_t poll_budget = 256;      // events per LaneFactory::poll()
};

enum class NicDeath : std::uint8_t {
  kSilent,    // frames stop arriving, nobody is told
  kLocal,     // the lanes of the host itself go down (not a hang-up); peers hear nothing
  kBothEnds,  // the peers' lanes go down as well
};
enum class CrashKind : std::uint8_t {
  kHangup,  // the process ends: its kernel closes every connection, and refuses new ones
  kSilent,  // the machine ends: nothing answers any more
};
// The kinds of frames that a block() stops.
inline constexpr std::uint8_t kBlockRails = 1;
inline constexpr std::uint8_t kBlockControl = 2;
inline constexpr std::uint8_t kBlockAll = 3;

struct NicCounters {
  std::uint64_t tx_bytes = 0;
  std::uint64_t rx_bytes = 0;
  std::uint64_t tx_frames = 0;
  std::uint64_t rx_frames = 0;
};
struct FabricCounters {
  std::uint64_t events = 0;
  std::uint64_t delivered = 0;  // frames shown to sinks
  std::uint64_t lost = 0;       // frames taken by loss, dead wires and blocks (streams: delayed)
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t corrupted = 0;
  // Frames whose borrowed payload no longer matched their CRC when it was read: the lender broke its promise.
  std::uint64_t changed = 0;
  std::uint64_t given_up = 0;  // taken back half written
};

class SimFabric {
 public:
  explicit SimFabric(FabricOptions options, const Wiring& wiring);
  ~SimFabric();
  SimFabric(const SimFabric&) = delete;
  SimFabric& operator=(const SimFabric&) = delete;

  int hosts() const { return static_cast<int>(hosts_.size()); }
  LaneFactory& factory(int host);
  // The address of `host` on the control network (port 0: fill in the one that its listen_control() returned).
  Address control_address(int host) const;
  int host_of(const Address& address) const;  // -1: nobody has it

  // --- the clock ---
  Nanos now() const { return now_; }
  // The time at which something happens next; now() while some host still has events to poll.
  Nanos next_event() const;
  // Runs all events up to and including `t`; the clock then shows `t` (which must not be before now()).
  void advance_to(Nanos t);
  // Hosts whose factory has something to poll (except frozen and crashed ones), in the order in which they got it.
  // Moves the list out into *hosts. A host whose poll() leaves work behind gets ready again.
  void take_ready_hosts(std::vector<int>* hosts);

  // --- faults ---
  NicOptions& nic(int host, int rail);  // changes apply to frames that begin from now on
  PathOptions& path(int from, int to);  // likewise; over all NICs
  void nic_down(int host, int rail, NicDeath death);
  void nic_up(int host, int rail);
  bool nic_is_up(int host, int rail) const;
  // Lanes of `host` to `peer` that are up, oldest first; rail kControlRail for control lanes. For kill_lane().
  void lanes_between(int host, int peer, std::vector<Lane*>* lanes) const;
  // Announced: both ends go down (`hangup` as told). Silent: the lane stays up and carries nothing.
  void kill_lane(Lane& lane, bool announced, bool hangup = false);
  // Frames from host a to host b vanish, and with `both_ways` those from b to a.
  void block(int a, int b, std::uint8_t what = kBlockAll, bool both_ways = true);
  void unblock(int a, int b, std::uint8_t what = kBlockAll, bool both_ways = true);
  // Undoes every block and brings every NIC back.
  void heal();
  // A frozen host polls nothing (SIGSTOP); frames for it wait.
  void freeze(int host);
  void thaw(int host);
  bool frozen(int host) const;
  // Frames to `host` take `times` as long as they would (1: normal).
  void slow(int host, std::int64_t times);
  // The engine of `host` ends. Its lanes are dead objects from now on: destroy it, and no callback comes. restart()
  // lets a new one dial and listen on the same factory.
  void crash(int host, CrashKind kind);
  void restart(int host);
  bool crashed(int host) const;

  const FabricOptions& options() const { return options_; }
  const FabricCounters& counters() const { return counters_; }
  const NicCounters& nic_counters(int host, int rail) const;
  std::uint64_t hash() const { return hash_; }
  Random& random() { return random_; }
  std::size_t frames_in_use() const { return frames_.in_use(); }
  // Whether some frame lies in a ring that has no room for the rest of it.
  bool half_written() const;

 private:
  friend class SimLane;
  friend class SimLaneFactory;

  enum EventKind : std::uint32_t { kTxDone, kHead, kBody, kConnect, kConnected, kRefused, kConnectTimeout, kRetry };
  struct InboxEntry {
    enum Kind : std::uint8_t { kFrame, kHead, kAccept, kUp, kDown, kWritable };
    Kind kind;
    std::uint32_t frame;  // kFrame: the inbox's own; kHead: lives as long as the lane does
    SlotRef lane;
  };
  // Queue of what a host's poll() will show; grows by doubling, never shrinks.
  class Inbox {
   public:
    bool empty() const { return head_ == tail_; }
    void push(const InboxEntry& entry);
    InboxEntry pop() { return ring_[head_++ & (ring_.size() - 1)]; }

   private:
    std::vector<InboxEntry> ring_;
    std::size_t head_ = 0, tail_ = 0;
  };
  struct Nic {
    int host = 0;
    int rail = 0;
    std::uint32_t network = 0;
    bool shared = false;  // memory, not a NIC
    NicOptions options;
    bool up = true;
    bool announced_down = false;  // down, and the host itself knows
    Nanos tx_free_at;             // a frame is being sent until then
    std::int64_t tokens = 0;      // of its shaper's bucket, when it was last looked at
    Nanos tokens_at{-(1'000_s).count};
    bool tx_event = false;  // kTxDone is set: some lane waits for that moment
    Nanos rx_free_at;
    std::uint32_t waiting_head = kNoSlot, waiting_tail = kNoSlot;  // lanes with something to send, taking turns
    std::int64_t turn_bytes = 0;  // sent so far by the lane at the head, which has not had all of its turn
    NicCounters counters;
  };
  struct Host {
    std::unique_ptr<SimLaneFactory> factory;
    std::uint32_t first_nic = 0;
    std::vector<Rail> rails;
    Inbox inbox;
    bool ready = false;  // in ready_
    bool frozen = false;
    bool crashed = false;
    bool silent = false;  // crashed without a word
    std::int64_t slowness = 1;
    std::uint16_t control_port = 0;  // 0: does not listen
  };
  struct LaneSlot {
    SimLane* lane = nullptr;
    std::uint32_t generation = 1;
  };

  // The way from `host` to an address; from_nic kNoSlot: over the control network.
  struct Route {
    int to_host = -1;
    std::uint32_t from_nic = kNoSlot, to_nic = kNoSlot;
    int to_rail = kControlRail;  // of the listener
  };
  Result<Route> route(int host, int rail, const Address& to) const;

  SimLane* resolve(SlotRef ref) const;
  SlotRef add_lane(SimLane* lane);
  void remove_lane(SlotRef ref);
  void wake(int host, const InboxEntry& entry);
  void make_ready(int host);

  void kick(SimLane& lane);
  void serve(std::uint32_t nic);
  void wait_for_nic(SimLane& lane);
  Nanos time_through(Nic& nic, std::int64_t bytes) const;
  void leave_nic(SimLane& lane);
  void begin_frame(SimLane& lane, bool at_once);
  void send_fin(SimLane& lane);
  void push_end(std::uint32_t index, Frame::Kind kind, Nanos at);
  void corrupt(Frame& frame);
  void push_copy(Frame& frame, Nanos at);
  void on_head(std::uint32_t index);
  void arrive(std::uint32_t index);
  void on_body(std::uint32_t index);
  void hold(SimLane& lane, std::uint32_t index, Nanos until);
  void retry(SlotRef ref);
  void discard(std::uint32_t index);
  void give_back(std::uint32_t index);
  void link_live(SimLane& lane, std::uint32_t index);
  void unlink_live(Frame& frame);
  void copy_payload(Frame& frame, std::uint32_t bytes);
  void look_for_change(const Frame& frame, const std::byte* data);
  std::uint32_t left_of(const Frame& frame) const;
  bool take_back(SimLane& lane, std::uint64_t cookie);
  void cut(SimLane& lane);
  void make_room(SimLane& sender);
  void finish_flight(Frame& frame);
  void answer_reset(const Frame& frame);
  bool blocked(std::uint16_t from, std::uint16_t to, std::uint32_t from_nic, std::uint32_t to_nic) const;
  // The same for a lane's frame.
  bool lane_blocked(std::uint16_t from, std::uint16_t to, std::uint32_t from_nic, std::uint32_t to_nic) const {
    return blocked(from, to, from_nic, to_nic) ||
           (options_.stream && options_.retransmit_backs_off && blocked(to, from, to_nic, from_nic));
  }
  Nanos latency(std::uint32_t from_nic, std::uint32_t to_nic) const;
  // nullptr: no path was ever asked for.
  const PathOptions* path_between(std::uint32_t from_nic, std::uint32_t to_nic) const;
  std::vector<PathOptions> paths_;  // [from * hosts + to], or empty
  bool window_open(const SimLane& lane);
  void drop_lists(SimLane& lane);
  void forget_unflushed(SimLane& lane, std::uint32_t at_most);
  void close(SimLane& lane);
  void on_connect(SlotRef dialler);
  void down(SimLane& lane, Status why, bool hangup);
  void deafen(SimLane& lane, Status why);
  void tell_down(SimLane& lane, Status why, bool hangup);
  void add_shared_memory(int host, int machine, std::uint32_t networks);
  void set_block(int a, int b, std::uint8_t what, bool on);
  Nic& nic_at(int host, int rail) {
    return nics_[hosts_[static_cast<std::size_t>(host)].first_nic + static_cast<std::uint32_t>(rail)];
  }
  const Nic& nic_at(int host, int rail) const {
    return nics_[hosts_[static_cast<std::size_t>(host)].first_nic + static_cast<std::uint32_t>(rail)];
  }
  void note(Nanos at, int host, std::uint64_t lane, std::uint64_t kind, const wire::Header* header);

  FabricOptions options_;
  Random random_;
  Nanos now_;
  EventQueue events_;
  FramePool frames_;
  std::vector<Nic> nics_;
  std::vector<Host> hosts_;
  std::vector<LaneSlot> lanes_;
  std::vector<std::uint32_t> free_lanes_;
  std::uint64_t lanes_made_ = 0;
  std::vector<int> ready_;
  struct Located {
    Address address;  // without port and prefix
    int host;
    int rail;  // kControlRail: the control address
  };
  std::vector<Located> located_;      // sorted by address
  std::vector<std::uint8_t> blocks_;  // [from * hosts + to]; empty until the first block
  FabricCounters counters_;
  std::uint64_t hash_ = 0xcbf29ce484222325ull;
  bool closing_ = false;
};

}  // namespace canarynet

// transport/shm/shm_lane.h -- one connection through shared memory as a Lane. Made by ShmLaneFactory; the contract is
// transport/lane.h.
//
// States: greeting (accepted; the offer is awaited) or offered (dialled; the answer is awaited) -> up -> ending (the
// peer is gone; what it had written is still read) -> down. Broken: an end that was found outside of poll(), which
// reports it.
// Thread: the factory's. Nothing allocates between on_up and on_down but the text of the latter, and nothing enters the
// kernel but the bell for a peer that sleeps and, once per arena and peer, the message that hands it over.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "transport/frame_queue.h"
#include "transport/lane.h"
#include "transport/lane_table.h"
#include "transport/shm/arena.h"
#include "transport/shm/ipc.h"
#include "transport/shm/ring_reader.h"
#include "transport/shm/ring_writer.h"
#include "transport/shm/segment.h"

namespace canarynet {

class ShmLaneFactory;

class ShmLane final : public Lane, private shm::RingHandler, private shm::ReferenceSource {
 public:
  enum class State : std::uint8_t { kGreeting, kOffered, kUp, kEnding, kBroken, kDown };
  struct Setup {
    shm::Descriptor socket;
    shm::Descriptor bell;  // ours: the peer rings it
    State state = State::kGreeting;
    int rail = kControlRail;
    int peer_pid = 0;
    std::uint32_t queue_frames = 0;
    std::size_t slot_bytes = 0;
  };

  ShmLane(ShmLaneFactory& factory, Setup setup);
  ~ShmLane() override;

  bool send(const wire::Header& header, const std::byte* payload, std::uint64_t cookie) override;
  void flush(Nanos now) override;
  bool cancel(std::uint64_t cookie) override;
  void redirect(std::uint64_t cookie) override;
  std::size_t queued_bytes() const override { return queue_.bytes(); }
  bool up() const override { return state_ == State::kUp; }
  const LaneCounters& counters() const override { return counters_; }
  std::string description() const override { return description_; }
  int rail() const override { return rail_; }
  Address remote() const override { return {.family = Address::Family::kSharedMemory}; }  // some process of this user

 private:
  friend class ShmLaneFactory;
  friend class LaneTable<ShmLane>;

  // For the factory, from within its poll(). Each returns the number of events it handled.
  std::size_t on_socket();
  std::size_t on_rings();
  std::size_t on_pending();
  // The peer has moved a counter that we wait for. Looks at memory only.
  bool ready() const;
  // Asks for the bell when it does. False: it has.
  bool sleep();
  std::size_t on_time_out(Nanos limit);

  // Dialling side: makes the memory and offers it.
  Status offer(std::size_t ring_bytes);
  Status take_offer(shm::Received& message);
  Status take_answer(shm::Received& message);
  void open_rings(int send_ring);
  Status take_message(shm::Received& message);
  std::size_t receive();
  void write_queue();
  std::size_t tell_writable();
  void break_down(Status reason, bool hangup);
  void go_down(const Status& reason, bool hangup);
  void arena_is_gone(std::uint32_t id);

  Landing landing_for(const wire::Header& header) override;
  void on_frame(const wire::Header& header, const Arrival& arrival) override;
  const std::byte* arena_at(std::uint32_t arena, std::uint64_t offset, std::uint32_t bytes) override;
  bool locate(const std::byte* data, std::uint32_t bytes, Place* place) override;
  bool give_up_on_reader(const Place& place, std::uint32_t tries) override;

  ShmLaneFactory* factory_;  // null once the factory is gone
  shm::Descriptor socket_;
  shm::Descriptor bell_;       // ours
  shm::Descriptor peer_bell_;  // theirs
  shm::Segment segment_;
  State state_;
  bool refused_ = false;  // send() said no: on_writable is owed
  bool full_ = false;     // the ring had no room: half of it is awaited
  bool pending_ = false;  // has asked the factory for a turn
  bool broken_hangup_ = false;
  const int rail_;
  const int peer_pid_;
  const std::size_t slot_bytes_;
  std::uint64_t key_ = 0;  // the factory's name for this lane
  Nanos deadline_ = Nanos::max();
  Nanos wait_began_;  // for a reader that has one of our references in its hands
  bool wait_warned_ = false;
  Status broken_reason_;
  FrameQueue queue_;
  std::optional<shm::RingReader> reader_;
  std::optional<shm::RingWriter> writer_;
  std::unique_ptr<shm::PeerArenas> peer_arenas_;
  std::array<std::uint32_t, shm::kArenasMax> announced_{};  // arenas that the peer was told of, by their place
  LaneCounters counters_;
  std::string description_;
};

}  // namespace canarynet

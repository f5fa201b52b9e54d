// transport/tcp/tcp_lane.h -- one TCP connection as a Lane. Made by TcpLaneFactory; see transport/lane.h for the
// contract.
//
// States: connecting -> up -> broken -> down, or any -> down, or up -> deaf. Broken: a write failed outside poll();
// what the peer sent before is still read (its goodbye may be among it), then on_down follows. The descriptor is closed
// on the way down. Deaf: a header could not be believed, and on_down has come; the connection stands, out of epoll, and
// each flush() writes what goes.
// Thread: the factory's. Nothing allocates between on_up and on_down but the text of the latter.
#pragma once

#include <cstdint>
#include <string>

#include "transport/frame_queue.h"
#include "transport/lane.h"
#include "transport/lane_table.h"
#include "transport/loss_watch.h"
#include "transport/tcp/frame_reader.h"
#include "transport/tcp/socket.h"

namespace canarynet {

class TcpLaneFactory;

class TcpLane final : public Lane, private FrameHandler {
 public:
  enum class State : std::uint8_t { kConnecting, kUp, kBroken, kDeaf, kDown };
  struct Setup {
    Socket socket;
    State state = State::kUp;
    int rail = kControlRail;
    std::string device;
    Address peer;
    std::uint32_t queue_frames = 0;
    std::size_t slot_bytes = 0;
  };

  TcpLane(TcpLaneFactory& factory, Setup setup);
  ~TcpLane() override;

  bool send(const wire::Header& header, const std::byte* payload, std::uint64_t cookie) override;
  void flush(Nanos now) override;
  bool cancel(std::uint64_t cookie) override;
  void redirect(std::uint64_t cookie) override { reader_.redirect(cookie); }
  std::size_t queued_bytes() const override { return queue_.bytes(); }
  bool up() const override { return state_ == State::kUp; }
  bool backs_off() const override;
  Progress progress() const override;
  const LaneCounters& counters() const override { return counters_; }
  std::string look_at_losses() override;
  std::string description() const override { return description_; }
  int rail() const override { return rail_; }
  Address remote() const override { return peer_; }

 private:
  friend class TcpLaneFactory;
  friend class LaneTable<TcpLane>;

  // For the factory, from within its poll(). Each returns the number of events it handled.
  std::size_t on_ready(std::uint32_t epoll_events);
  std::size_t on_pending();
  std::size_t on_connect_timeout(Nanos limit);

  std::size_t finish_connect();
  std::size_t receive();
  void set_receive_lowat();
  std::size_t tell_writable();
  void write_queue();
  void break_down(Status reason, bool hangup);
  void go_deaf(const Status& reason);
  void go_down(const Status& reason, bool hangup);
  void set_interest(std::uint32_t epoll_events);
  void describe();

  Landing landing_for(const wire::Header& header) override;
  void on_frame(const wire::Header& header, const Arrival& arrival) override;

  TcpLaneFactory* factory_;  // null once the factory is gone
  Socket socket_;
  State state_;
  bool refused_ = false;  // send() said no: on_writable is owed
  bool full_ = false;     // the kernel took less than was offered: EPOLLOUT is awaited, asking before costs a call
  bool pending_ = false;  // has asked the factory for a turn
  bool broken_hangup_ = false;
  std::uint32_t interest_ = 0;
  std::size_t receive_lowat_ = 1;
  const int rail_;
  std::uint64_t key_ = 0;  // the factory's name for this lane
  Nanos connect_deadline_ = Nanos::max();
  Status broken_reason_;
  FrameQueue queue_;
  FrameReader reader_;
  LaneCounters counters_;
  LossWatch losses_;
  bool advised_ = false;
  Address peer_;
  std::string device_;
  std::string description_;
};

}  // namespace canarynet

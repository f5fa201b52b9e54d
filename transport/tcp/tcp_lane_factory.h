// transport/tcp/tcp_lane_factory.h -- dials, accepts and drives all TCP lanes of an engine on one epoll descriptor.
//
// What: LaneFactory over TCP/IPv4 and IPv6: a listener per rail, bound to the rail's address; lanes bound to address
// and device.
// Memory: lanes belong to whoever got them; they may be destroyed at any time outside their own callbacks, also after
// the factory.
// Thread: one owner; poll() does bounded work per lane and never waits.
// Failure: create() and dial() return a Status; what the system refused but lanes can do without is in notes().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/epoll_factory.h"
#include "transport/lane_table.h"
#include "transport/tcp/arp_announcer.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/stray_watch.h"

namespace canarynet {

class TcpLane;

struct TcpOptions {
  std::vector<Rail> rails;          // address.port 0: the system picks one
  std::string congestion;           // "" = the system's default; an unknown name falls back to it, with a note
  Bytes notsent_lowat{128 * 1024};  // 0 = the system's default
  std::vector<BytesPerSec> pacing;  // per rail: the most that one of its lanes sends; 0 or missing: no limit
  Nanos connect_timeout = 3_s;
  bool allow_non_loopback = false;  // CANARY_INSECURE=1
  bool bind_device = true;          // SO_BINDTODEVICE on lanes that leave this host
  std::size_t slot_bytes = wire::kPayloadMax;
  std::uint32_t queue_frames = 512;  // per lane
  std::uint32_t lanes_max = 8192;    // accepted connections beyond are closed at once
};

// CANARY_INSECURE, naming `what`, where the address is not loopback's and that is not allowed.
Status tcp_address_allowed(const Address& address, const char* what, bool allow_non_loopback);

class TcpLaneFactory final : public EpollFactory {
 public:
  static Result<std::unique_ptr<TcpLaneFactory>> create(TcpOptions options);
  ~TcpLaneFactory() override;

  std::span<const Rail> rails() const override { return options_.rails; }
  Result<std::unique_ptr<Lane>> dial(int rail, const Address& to, LaneSink& sink) override;
  Result<Address> listen_control(const Address& at) override;
  // The next listen_control() takes this socket, which listens already, instead of opening one: peers may be waiting in
  // its queue.
  void lend_control(Socket listener) { lent_control_ = std::move(listener); }
  // Ends what listen_control() began, and a socket that was lent for it.
  void close_control();
  std::size_t poll(Nanos now) override;
  Nanos next_deadline() const override;
  const char* name() const override { return "tcp"; }
  std::uint64_t kernel_tx_bytes(int rail) const override;

  // Sentences about what was asked for and refused by the system, each once.
  const std::vector<std::string>& notes() const { return notes_; }
  // Connections closed at once for want of descriptors or beyond lanes_max.
  std::uint64_t accepts_refused() const { return accepts_refused_; }
  // Connections turned away because they came in by another NIC than that of the address they were meant for: a peer
  // was told the wrong hardware address. It has been told the right one, and dials again.
  std::uint64_t strays() const { return strays_; }

 private:
  friend class TcpLane;

  static constexpr std::size_t kDiscardBytes = 32 * 1024;

  explicit TcpLaneFactory(TcpOptions options);
  Status start();
  Status check_allowed(const Address& address, const char* what) const;
  Status add_rail_listener(int rail, Address* bound);
  Status add_listener(const Address& at, int rail, ListenOptions how, Address* bound);
  Status add_listener(Socket socket, int rail, Address* bound);
  void listen_for_strays(int rail, const Address& at);
  void turn_away_stray(const Socket& socket, int rail, const Address& peer, Nanos now);
  // A dial by a rail that shares its subnet with others, to a peer there.
  bool may_be_misled(const TcpLane& lane) const;
  void accept_some(Listener& listener, Nanos now);
  bool shed_one(int listener_fd);
  static void turn_away(const Socket& socket, const std::string& why);
  void check_connecting(Nanos now);
  Result<std::unique_ptr<TcpLane>> adopt(Socket socket, bool connecting, int rail, const Address& peer);
  std::string device_of(int rail) const;
  void note(const std::string& text);

  // Lanes use these.
  std::span<std::byte> discard() const { return {discard_.get(), kDiscardBytes}; }
  void schedule(TcpLane& lane);

  TcpOptions options_;
  Socket lent_control_;
  Socket reserve_;  // given up for a moment to accept and close a connection when descriptors ran out
  LaneTable<TcpLane> lanes_;
  std::vector<std::uint64_t> connecting_;
  std::unique_ptr<std::byte[]> discard_;
  std::vector<std::string> notes_;
  std::uint64_t accepts_refused_ = 0;
  std::uint64_t strays_ = 0;
  ArpAnnouncer announcer_;
  StrayWatch stray_watch_;
};

}  // namespace canarynet

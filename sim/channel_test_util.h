// sim/channel_test_util.h -- for tests: two ends with a channel between them, which know nothing of engines or groups,
// over simulated lanes or over TCP on loopback.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "sim/sim_fabric.h"
#include "transport/channel.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_lane_factory.h"

namespace canarynet {

inline constexpr std::uint64_t kJob = 4711;
inline constexpr std::uint64_t kAckOnly = 0, kFresh = 1;  // landing cookies
inline constexpr std::uint32_t kFlow = 7;

inline std::byte pattern(std::uint32_t flow, std::uint32_t piece, std::size_t i) {
  return static_cast<std::byte>(flow * 131 + piece * 31 + i * 7 + (i >> 8));
}

// Memory that can be taken away: code that still touches it crashes.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_((bytes + 4095) / 4096 * 4096 + 4096) {
    data_ = static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  std::byte* data() { return data_; }
  void take_away() { mprotect(data_, bytes_, PROT_NONE); }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

// One end: a channel, its client, and the acceptor that hands it its lanes.
class End final : public ChannelClient, public LaneAcceptor, public LaneSink {
 public:
  End(LaneFactory& factory, std::uint32_t number) : factory_(factory), number_(number) { factory.set_acceptor(this); }
  ~End() override { factory_.set_acceptor(nullptr); }

  void open(std::span<const Rail> remote, Nanos now, int rails) {
    ChannelOptions o;
    o.job = kJob;
    o.my_engine = number_;
    o.peer_engine = 1 - number_;
    o.dialer = number_ == 0;
    for (int r = 0; r < rails; ++r) o.paths.push_back({r, r, 0, remote[static_cast<std::size_t>(r)].address});
    o.piece_bytes = Bytes{128 * 1024};
    o.heartbeat_interval = 100_ms;
    o.silence_limit = 1_s;
    o.rails = rates;
    channel = std::make_unique<Channel>(std::move(o), factory_, *this);
    channel->start(now);
  }
  void send(std::uint32_t flow, std::uint32_t piece, std::uint32_t bytes) {
    Out out{flow, piece, bytes, std::make_unique<Pages>(bytes)};
    for (std::size_t i = 0; i < bytes; ++i) out.memory->data()[i] = pattern(flow, piece, i);
    sent.push_back(std::move(out));
    channel->wake();
  }
  std::size_t poll(Nanos now) {
    now_ = now;
    if (channel) channel->begin_cycle(now);
    std::size_t work = factory_.poll(now);
    std::erase_if(waiting_, [](const auto& lane) { return lane == nullptr; });
    if (!channel) return work;
    if (now >= channel->next_deadline()) channel->on_timer(now);
    if (channel->active()) work += channel->pump(now);
    return work;
  }
  Nanos deadline() const {
    if (!channel) return Nanos::max();
    return channel->active() ? now_ : channel->next_deadline();
  }
  std::size_t done() const {
    std::size_t n = 0;
    for (const Out& o : sent) n += o.done ? 1 : 0;
    return n;
  }
  std::uint64_t frames_sent() const {
    std::uint64_t n = 0;
    for (const Path& p : channel->paths()) n += p.counters().frames_sent;
    return n;
  }

  // ChannelClient
  std::uint64_t waiting_bytes(const Channel&, PieceClass which) const override {
    if (which != PieceClass::kBulk) return 0;
    std::uint64_t bytes = 0;
    for (std::size_t i = next_; i != sent.size(); ++i) bytes += sent[i].cancelled ? 0 : sent[i].bytes;
    return bytes;
  }
  bool next_piece(Channel&, PieceClass which, OutPiece* out) override {
    if (which != PieceClass::kBulk) return false;
    while (next_ != sent.size() && sent[next_].cancelled) ++next_;
    if (next_ == sent.size()) return false;
    Out& o = sent[next_];
    out->header = {};
    out->header.flow = o.flow;
    out->header.epoch = 1;
    out->header.op = 1;
    out->header.piece = o.piece;
    out->header.payload_bytes = o.bytes;
    out->payload = o.memory->data();
    out->cookie = next_++;
    out->rail = rail;
    return true;
  }
  void on_done(Channel&, std::uint64_t, std::uint64_t cookie) override {
    EXPECT_FALSE(sent[cookie].done) << "done twice";
    EXPECT_FALSE(sent[cookie].cancelled) << "done after it was taken back";
    sent[cookie].done = true;
    sent[cookie].memory->take_away();  // the client's again: nothing may read it any more
  }
  Landing landing_for(Channel&, const wire::Header& h) override {
    if (refuse.contains(h.flow)) return {Landing::Kind::kDiscard, nullptr, kAckOnly};
    In& in = got[{h.flow, h.piece}];
    if (in.arrived) return {Landing::Kind::kDiscard, nullptr, kAckOnly};
    if (in.landing) return {Landing::Kind::kSlot, nullptr, kFresh};
    if (!in.memory) in.memory = std::make_unique<Pages>(h.payload_bytes);
    in.landing = true;
    return {Landing::Kind::kSpan, in.memory->data(), kFresh};
  }
  bool on_arrival(Channel& c, const wire::Header& h, const Arrival& arrival) override {
    if (arrival.discarded) return true;
    In& in = got[{h.flow, h.piece}];
    if (in.arrived) return true;
    const bool elsewhere = in.landing && arrival.payload.data() != in.memory->data();
    in.arrived = true;
    in.landing = false;
    ++arrived;
    for (std::size_t i = 0; i < h.payload_bytes; ++i) {
      if (arrival.payload[i] != pattern(h.flow, h.piece, i)) {
        ADD_FAILURE() << "piece " << h.piece << " differs at byte " << i;
        break;
      }
    }
    if (elsewhere) c.redirect_landing(h);
    in.memory->take_away();  // complete: nobody may write there any more
    return true;
  }
  void on_landing_lost(Channel&, const wire::Header& h, std::uint64_t, std::uint64_t cookie) override {
    EXPECT_EQ(cookie, kFresh);
    got[{h.flow, h.piece}].landing = false;
  }
  void on_heartbeat(Channel&, const wire::Header&) override { ++beats; }
  void fill_heartbeat(Channel&, wire::Header*) override {}
  void on_abort(Channel&, const wire::Header&, const wire::AbortFrame&) override {}
  void on_path_event(Channel&, const Path&, const std::string& what) override { events += what + "\n"; }

  // LaneAcceptor, and LaneSink of lanes whose hello has not come
  void on_accept(std::unique_ptr<Lane> lane) override {
    lane->set_sink(this);
    waiting_.push_back(std::move(lane));
  }
  void on_up(Lane&) override {}
  Landing landing_for(Lane&, const wire::Header&) override { return {Landing::Kind::kSlot, nullptr, 0}; }
  void on_frame(Lane& lane, const wire::Header& h, const Arrival& arrival) override {
    wire::HelloPayload hello;
    ASSERT_EQ(h.kind, wire::Kind::kHello);
    std::memcpy(&hello, arrival.payload.data(), sizeof hello);
    ASSERT_EQ(hello.job, kJob);
    for (auto& w : waiting_) {
      if (w.get() == &lane && channel) channel->adopt(w, hello, now_);
    }
  }
  void on_writable(Lane&) override {}
  void on_down(Lane&, const Status&, bool) override {}

  struct Out {
    std::uint32_t flow, piece, bytes;
    std::unique_ptr<Pages> memory;
    bool done = false;
    bool cancelled = false;
  };
  struct In {
    std::unique_ptr<Pages> memory;
    bool landing = false;
    bool arrived = false;
  };
  std::unique_ptr<Channel> channel;
  std::vector<Out> sent;
  std::map<std::pair<std::uint32_t, std::uint32_t>, In> got;
  std::set<std::uint32_t> refuse;  // flows that are over
  RailRates* rates = nullptr;      // shared with other channels; to be set before open()
  std::int32_t rail = -1;          // of the plan that its pieces are for
  std::size_t arrived = 0;
  std::uint64_t beats = 0;
  std::string events;

 private:
  LaneFactory& factory_;
  std::uint32_t number_;
  std::size_t next_ = 0;
  std::vector<std::unique_ptr<Lane>> waiting_;
  Nanos now_;
};

// Two ends and the network between them.
class Pair {
 public:
  virtual ~Pair() = default;
  virtual LaneFactory& factory(int side) = 0;
  virtual Nanos now() const = 0;
  // Lets time pass, at most until `limit`.
  virtual void step(Nanos limit) = 0;

  // The dialling end opens `later` than the other; it may share `rates` with other channels.
  void open(int rails, Nanos later = {}, RailRates* rates = nullptr) {
    for (int side = 0; side < 2; ++side)
      end_[side] = std::make_unique<End>(factory(side), static_cast<std::uint32_t>(side));
    a().rates = rates;
    b().open(factory(0).rails(), now(), rails);
    pass(later);
    a().open(factory(1).rails(), now(), rails);
    ASSERT_TRUE(until([&] { return a().channel->paths_up() == rails && b().channel->paths_up() == rails; }, 5_s));
  }
  End& end(int side) { return *end_[side]; }
  End& a() { return *end_[0]; }
  End& b() { return *end_[1]; }
  bool until(const std::function<bool()>& condition, Nanos span) {
    const Nanos limit = now() + span;
    while (!condition()) {
      if (now() >= limit) return false;
      step(limit);
    }
    return true;
  }
  void pass(Nanos span) {
    until([] { return false; }, span);
  }
  // Expects that everything sent was done and arrived once.
  void expect_all(Nanos span) {
    ASSERT_TRUE(until([&] { return a().done() == a().sent.size() && b().arrived == a().sent.size(); }, span))
        << a().done() << " done and " << b().arrived << " arrived of " << a().sent.size() << "\n"
        << a().events << b().events;
    EXPECT_TRUE(until([&] { return a().channel->drained(); }, span)) << "records are left";
  }
  void close() {
    for (auto& e : end_) e.reset();
  }

 private:
  std::unique_ptr<End> end_[2];
};

class SimPair final : public Pair {
 public:
  explicit SimPair(int rails, FabricOptions options = quick(), int hosts = 2)
      : fabric(options, Wiring::flat(hosts, rails)) {}
  ~SimPair() override { close(); }
  static FabricOptions quick() {
    FabricOptions o;
    o.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(1000));
    return o;
  }
  LaneFactory& factory(int side) override { return fabric.factory(side); }
  Nanos now() const override { return fabric.now(); }
  void step(Nanos limit) override {
    const Nanos t = std::min({fabric.next_event(), a().deadline(), b().deadline(), limit});
    fabric.advance_to(std::max(t, fabric.now()));
    fabric.take_ready_hosts(&ready_);
    const std::size_t work = a().poll(fabric.now()) + b().poll(fabric.now());
    // A deadline that is always now would stop the clock.
    if (work == 0 && t <= fabric.now() && ++idle_ > 1000) FAIL() << "an end is never satisfied";
    if (work != 0 || t > last_) idle_ = 0;
    last_ = t;
  }
  SimFabric fabric;

 private:
  std::vector<int> ready_;
  Nanos last_;
  int idle_ = 0;
};

class TcpPair final : public Pair {
 public:
  explicit TcpPair(int rails) {
    TcpOptions o;
    Rail rail;
    rail.device = "lo";
    rail.address = Address::parse("127.0.0.1:0").value();
    rail.address.prefix_bits = 8;
    o.rails.assign(static_cast<std::size_t>(rails), rail);
    for (auto& f : factories_) f = TcpLaneFactory::create(o).take();
  }
  ~TcpPair() override { close(); }
  LaneFactory& factory(int side) override { return *factories_[side]; }
  Nanos now() const override { return clock_.now(); }
  void step(Nanos) override {
    const Nanos t = now();
    if (a().poll(t) + b().poll(t) != 0) return;
    pollfd fds[2] = {{factories_[0]->poll_fd(), POLLIN, 0}, {factories_[1]->poll_fd(), POLLIN, 0}};
    ::poll(fds, 2, 1);
  }
  // Ends the connection under a lane of this process, as a reset on the way would.
  static bool cut(const Lane& lane) {
    for (int fd = 3; fd < 1024; ++fd) {
      sockaddr_storage any;
      socklen_t length = sizeof any;
      if (::getpeername(fd, reinterpret_cast<sockaddr*>(&any), &length) != 0) continue;
      if (lane.description().find(local_address(fd).to_string() + ">") == std::string::npos) continue;
      return ::shutdown(fd, SHUT_RDWR) == 0;
    }
    return false;
  }

 private:
  SystemClock clock_;
  std::unique_ptr<TcpLaneFactory> factories_[2];
};

}  // namespace canarynet

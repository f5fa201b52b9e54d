// Channels alone, which a test opens by address between two ends that know nothing of engines or groups: over simulated
// lanes with their faults, and over TCP on loopback.
#include "transport/channel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "sim/sim_fabric.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_lane_factory.h"

namespace canarynet {
namespace {

constexpr std::uint64_t kJob = 4711;
constexpr std::uint64_t kAckOnly = 0, kFresh = 1;  // landing cookies
constexpr std::uint32_t kFlow = 7;

std::byte pattern(std::uint32_t flow, std::uint32_t piece, std::size_t i) {
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
    out->rail = -1;
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

  // The dialling end opens `later` than the other.
  void open(int rails, Nanos later = {}) {
    for (int side = 0; side < 2; ++side)
      end_[side] = std::make_unique<End>(factory(side), static_cast<std::uint32_t>(side));
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

struct Kind {
  const char* name;
  std::unique_ptr<Pair> (*make)(int rails);
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class ChannelOver : public ::testing::TestWithParam<Kind> {
 protected:
  void open(int rails) {
    pair = GetParam().make(rails);
    pair->open(rails);
  }
  std::unique_ptr<Pair> pair;
};

constexpr std::uint32_t kSizes[] = {1, 48, 1000, 1024, 1025, 8192, 8193, 65'536, 131'072, 1 << 20};

TEST_P(ChannelOver, EveryPieceArrivesOnceAndItsMemoryIsGivenBack) {
  open(2);
  for (std::uint32_t i = 0; i < 60; ++i) pair->a().send(kFlow, i, kSizes[i % std::size(kSizes)]);
  pair->expect_all(20_s);
}

TEST_P(ChannelOver, SmallPiecesAreCopiedAndDoneAtOnce) {
  open(1);
  for (std::uint32_t i = 0; i < 20; ++i) pair->a().send(kFlow, i, kCopiedPieceBytes);
  pair->a().channel->pump(pair->now());
  EXPECT_EQ(pair->a().done(), 20u);  // and their memory is gone; what the lanes still send is the copy
  EXPECT_FALSE(pair->a().channel->drained());
  pair->expect_all(5_s);
}

TEST_P(ChannelOver, AcksComeForManyFramesAtOnce) {
  open(1);
  for (std::uint32_t i = 0; i < 2000; ++i) pair->a().send(kFlow, i, 64);
  const std::uint64_t before = pair->b().frames_sent();
  const Nanos began = pair->now();
  pair->expect_all(10_s);
  const auto beats = static_cast<std::uint64_t>((pair->now() - began).count / (100_ms).count) + 2;
  EXPECT_LT(pair->b().frames_sent() - before, 2000 / 8 + beats);
}

TEST_P(ChannelOver, ACancelledFlowLeavesNoReference) {
  open(2);
  for (std::uint32_t i = 0; i < 24; ++i) pair->a().send(kFlow, i, 512 * 1024);
  ASSERT_TRUE(pair->until([&] { return pair->b().arrived >= 4; }, 5_s));
  ASSERT_LT(pair->b().arrived, 24u);
  for (End* end : {&pair->a(), &pair->b()}) end->channel->cancel_flow(kFlow);
  for (End::Out& o : pair->a().sent) {
    o.cancelled = !o.done;
    o.memory->take_away();
  }
  pair->b().refuse.insert(kFlow);
  for (auto& [key, in] : pair->b().got) {
    if (in.memory) in.memory->take_away();
  }
  const std::size_t over = pair->b().arrived, done = pair->a().done();
  for (std::uint32_t i = 0; i < 40; ++i) pair->a().send(kFlow + 1, i, kSizes[i % std::size(kSizes)]);
  ASSERT_TRUE(pair->until([&] { return pair->b().arrived == over + 40; }, 10_s))
      << pair->b().arrived << " after " << over;
  ASSERT_TRUE(pair->until([&] { return pair->a().channel->drained(); }, 5_s));
  EXPECT_GE(pair->a().done(), done + 40);
}

TEST_P(ChannelOver, AGoodbyeIsNoFailure) {
  open(2);
  for (std::uint32_t i = 0; i < 10; ++i) pair->a().send(kFlow, i, 100'000);
  pair->expect_all(5_s);
  pair->a().channel->goodbye(pair->now());
  pair->a().channel->pump(pair->now());
  ASSERT_TRUE(pair->until([&] { return pair->b().channel->peer_left(); }, 2_s));
  pair->a().channel.reset();
  pair->pass(300_ms);
  EXPECT_EQ(pair->b().events.find("down"), std::string::npos) << pair->b().events;
  EXPECT_TRUE(pair->b().channel->drained());
}

TEST_P(ChannelOver, ALaneThatCarriesNothingIsHeardAllTheSameHoweverLateItCame) {
  pair = GetParam().make(1);
  pair->open(1, 250_ms);
  pair->pass(1_s);
  for (End* end : {&pair->a(), &pair->b()}) {
    EXPECT_LT(pair->now() - end->channel->last_heard(), 500_ms) << "its peer's heartbeats are 100 ms apart";
  }
}

TEST_P(ChannelOver, APeerThatComesBackGetsWhatItHadNotAcked) {
  open(2);
  for (std::uint32_t i = 0; i < 40; ++i) pair->a().send(kFlow, i, 300'000);
  ASSERT_TRUE(pair->until([&] { return pair->b().arrived >= 5; }, 5_s));
  ASSERT_LT(pair->b().arrived, 40u);
  pair->b().channel.reset();  // every lane ends
  for (auto& [key, in] : pair->b().got) in.landing = false;
  pair->pass(50_ms);
  EXPECT_EQ(pair->a().channel->paths_up(), 0);
  pair->b().open(pair->factory(0).rails(), pair->now(), 2);
  pair->expect_all(20_s);
}

INSTANTIATE_TEST_SUITE_P(
    Lanes, ChannelOver,
    ::testing::Values(Kind{"sim", [](int rails) -> std::unique_ptr<Pair> { return std::make_unique<SimPair>(rails); }},
                      Kind{"tcp", [](int rails) -> std::unique_ptr<Pair> { return std::make_unique<TcpPair>(rails); }}),
    [](const auto& kind) { return std::string(kind.param.name); });

TEST(ChannelOverTcp, AResetLanesPiecesGoToTheOther) {
  TcpPair pair(2);
  pair.open(2);
  for (std::uint32_t i = 0; i < 60; ++i) pair.a().send(kFlow, i, 500'000);
  ASSERT_TRUE(pair.until([&] { return pair.b().arrived >= 10; }, 5_s));
  ASSERT_LT(pair.b().arrived, 60u);
  ASSERT_TRUE(TcpPair::cut(*pair.a().channel->paths()[1].lane));
  pair.expect_all(10_s);
  ASSERT_TRUE(pair.until([&] { return pair.a().events.find("rail1>rail1 up again") != std::string::npos; }, 5_s))
      << pair.a().events;
  EXPECT_EQ(pair.a().channel->paths()[1].failovers, 1u);
}

// --- faults, in virtual time -----------------------------------------------------------------------------------------

TEST(ChannelFaults, LossDuplicatesReorderingAndFlippedBitsCostTimeOnly) {
  for (const bool stream : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      FabricOptions o = SimPair::quick();
      o.seed = seed;
      o.stream = stream;
      o.bad_header_resets = false;  // a flipped header is a lost frame here
      o.retransmit_delay = 5_ms;
      SimPair pair(2, o);
      pair.open(2);
      for (int host = 0; host < 2; ++host) {
        for (int rail = 0; rail < 2; ++rail) {
          DirectionOptions& out = pair.fabric.nic(host, rail).out;
          out.loss_ppm = 50'000;
          out.duplicate_ppm = 50'000;
          out.reorder_ppm = 50'000;
          out.corrupt_ppm = 20'000;
        }
      }
      for (std::uint32_t i = 0; i < 150; ++i) pair.a().send(kFlow, i, kSizes[i % 9]);
      pair.expect_all(60_s);
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << (stream ? ", streams" : ", packets");
    }
  }
}

TEST(ChannelFaults, ADeadRailCostsAStallAndIsUsedAgainAfterProbation) {
  for (const NicDeath death : {NicDeath::kSilent, NicDeath::kLocal, NicDeath::kBothEnds}) {
    SimPair pair(2);
    pair.open(2);
    for (std::uint32_t i = 0; i < 200; ++i) pair.a().send(kFlow, i, 131'072);  // 105 ms over both
    pair.pass(20_ms);
    pair.fabric.nic_down(1, 0, death);
    pair.expect_all(500_ms);
    pair.pass(1_s);
    ASSERT_EQ(pair.a().channel->paths_up(), 1) << pair.a().events;
    EXPECT_EQ(pair.a().channel->paths()[0].failovers, 1u);
    pair.fabric.nic_up(1, 0);
    ASSERT_TRUE(pair.until([&] { return pair.a().channel->paths_up() == 2 && pair.b().channel->paths_up() == 2; }, 2_s))
        << pair.a().events;
    const auto before = pair.fabric.nic_counters(0, 0).tx_bytes;
    for (std::uint32_t i = 200; i < 400; ++i) pair.a().send(kFlow, i, 131'072);
    pair.expect_all(1_s);
    EXPECT_GT(pair.fabric.nic_counters(0, 0).tx_bytes - before, 200u * 131'072 / 3);
  }
}

TEST(ChannelFaults, ALaneOnProbationCarriesDataWhenThereIsNoOther) {
  SimPair pair(1);
  pair.open(1);
  for (int flap = 0; flap < 5; ++flap) {  // each return that fails doubles the probation: 1.6 s now
    pair.fabric.nic_down(1, 0, NicDeath::kBothEnds);
    pair.pass(150_ms);
    pair.fabric.nic_up(1, 0);
    ASSERT_TRUE(pair.until([&] { return pair.a().channel->paths()[0].state == Path::State::kProbation; }, 2_s));
    EXPECT_TRUE(pair.a().channel->stands());
    EXPECT_EQ(pair.a().channel->paths_up(), 0);
  }
  pair.fabric.nic_down(1, 0, NicDeath::kBothEnds);
  ASSERT_TRUE(pair.until([&] { return !pair.a().channel->stands(); }, 1_s));
  for (std::uint32_t i = 0; i < 4; ++i) pair.a().send(kFlow, i, 100'000);  // while there is no lane at all
  pair.pass(150_ms);
  pair.fabric.nic_up(1, 0);
  ASSERT_TRUE(pair.until([&] { return pair.a().channel->paths()[0].state == Path::State::kProbation; }, 2_s));
  EXPECT_GT(pair.a().channel->paths()[0].probation_until, pair.now() + 1_s);
  pair.expect_all(100_ms);
}

// The one lane that is up dies silently while the other serves a long probation: traffic does not wait for its end.
TEST(ChannelFaults, ALaneOnProbationTakesOverFromTheLastOneThatFallsSilent) {
  SimPair pair(2);
  pair.open(2);
  for (int flap = 0; flap < 5; ++flap) {
    pair.fabric.nic_down(1, 0, NicDeath::kBothEnds);
    pair.pass(150_ms);
    pair.fabric.nic_up(1, 0);
    ASSERT_TRUE(pair.until([&] { return pair.a().channel->paths()[0].state == Path::State::kProbation; }, 2_s));
  }
  ASSERT_GT(pair.a().channel->paths()[0].probation_until, pair.now() + 1_s);
  for (std::uint32_t i = 0; i < 60; ++i) pair.a().send(kFlow, i, 131'072);
  pair.pass(10_ms);
  pair.fabric.nic_down(1, 1, NicDeath::kSilent);
  pair.expect_all(400_ms);
}

TEST(ChannelFaults, AStalledLaneIsTriedAgainWhenItIsTheOnlyOneLeft) {
  FabricOptions o = SimPair::quick();
  o.stream = false;  // what a dead wire takes is gone, a void as well
  SimPair pair(2, o);
  pair.open(2);
  for (std::uint32_t i = 0; i < 60; ++i) pair.a().send(kFlow, i, 131'072);
  pair.pass(10_ms);
  pair.fabric.nic_down(1, 0, NicDeath::kSilent);
  ASSERT_TRUE(pair.until([&] { return pair.a().channel->paths()[0].stalled; }, 500_ms));
  pair.pass(5_ms);  // the void that asks for a sign of life is lost, too
  pair.fabric.nic_down(1, 1, NicDeath::kBothEnds);
  for (std::uint32_t i = 60; i < 64; ++i) pair.a().send(kFlow, i, 131'072);
  pair.fabric.nic_up(1, 0);
  pair.expect_all(5_s);
}

// The other lane had not taken over yet. The pieces that the stalled lane holds are on their way, and it is not given
// them a second time.
TEST(ChannelFaults, ALaneThatWasOnlyHeldUpIsNotGivenItsPiecesAgain) {
  SimPair pair(2);
  pair.open(2);
  for (std::uint32_t i = 0; i < 100; ++i) pair.a().send(kFlow, i, 131'072);
  pair.expect_all(1_s);
  pair.fabric.nic(0, 1).out.rate = BytesPerSec::from_mbit(40);
  for (std::uint32_t i = 100; i < 160; ++i) pair.a().send(kFlow, i, 131'072);
  pair.pass(2_ms);
  const Path& held_up = pair.a().channel->paths()[0];
  pair.fabric.nic_down(1, 0, NicDeath::kSilent);
  ASSERT_TRUE(pair.until([&] { return held_up.stalled; }, 500_ms));
  pair.fabric.nic_up(1, 0);
  ASSERT_TRUE(pair.until([&] { return !held_up.stalled; }, 1_s));
  EXPECT_EQ(held_up.failovers, 0u);
  pair.expect_all(5_s);
  EXPECT_EQ(held_up.resends[static_cast<std::size_t>(Resend::kStalled) - 1], 0u);
}

TEST(ChannelFaults, ASlowLanesPiecesAreSentOnTheIdleOneToo) {
  SimPair pair(2);
  pair.open(2);
  for (std::uint32_t i = 0; i < 100; ++i) pair.a().send(kFlow, i, 131'072);
  pair.expect_all(1_s);
  // Rail 0 becomes 200 times slower with pieces on it.
  for (std::uint32_t i = 100; i < 104; ++i) pair.a().send(kFlow, i, 131'072);
  pair.fabric.nic(0, 0).out.rate = BytesPerSec::from_mbit(5);
  const Nanos began = pair.now();
  pair.expect_all(2_s);
  EXPECT_LT(pair.now() - began, 300_ms) << "two pieces at 5 Mbit/s take 420 ms";
}

// --- taking a lane's place -------------------------------------------------------------------------------------------

// Dials one end by hand and says the hello of one of the other's lanes; it knows the job's token.
class Newcomer final : public LaneSink {
 public:
  Newcomer(SimPair& pair, int host, int rail, std::uint16_t claimed_rail) : claimed_(claimed_rail) {
    lane = pair.fabric.factory(host)
               .dial(rail, pair.fabric.factory(1).rails()[static_cast<std::size_t>(rail)].address, *this)
               .take();
  }
  void on_up(Lane& l) override {
    const wire::HelloPayload hello{
        .job = kJob, .engine = 0, .target = 1, .rail = claimed_, .peer_rail = claimed_, .purpose = wire::kHelloChannel};
    const auto* bytes = reinterpret_cast<const std::byte*>(&hello);
    wire::Header h;
    h.kind = wire::Kind::kHello;
    h.payload_bytes = sizeof hello;
    h.payload_crc32 = wire::payload_crc(bytes, sizeof hello);
    wire::seal(h);
    EXPECT_TRUE(l.send(h, bytes, kNoCookie));
    l.flush({});
    said = true;
  }
  Landing landing_for(Lane&, const wire::Header&) override { return {Landing::Kind::kSlot, nullptr, 0}; }
  void on_frame(Lane&, const wire::Header&, const Arrival&) override { ++frames; }
  void on_writable(Lane&) override {}
  void on_down(Lane&, const Status&, bool) override { down = true; }

  std::unique_ptr<Lane> lane;
  int frames = 0;
  bool said = false, down = false;

 private:
  std::uint16_t claimed_;
};

TEST(ChannelNewcomers, DoNotTakeThePlaceOfALaneThatSpeaks) {
  SimPair pair(2);
  pair.open(2);
  Newcomer newcomer(pair, 0, 0, 0);
  for (std::uint32_t i = 0; i < 20; ++i) pair.a().send(kFlow, i, 131'072);
  ASSERT_TRUE(pair.until([&] { return newcomer.down; }, 1_s));
  pair.expect_all(1_s);
  pair.pass(2_s);
  EXPECT_TRUE(newcomer.said);
  EXPECT_EQ(newcomer.frames, 0);
  for (int side = 0; side < 2; ++side) {
    EXPECT_EQ(pair.end(side).channel->paths_up(), 2);
    EXPECT_EQ(pair.end(side).channel->paths()[0].failovers, 0u) << pair.end(side).events;
  }
}

TEST(ChannelNewcomers, TakeThePlaceOfALaneThatEndedAtThePeerAlone) {
  SimPair pair(2);
  pair.open(2);
  pair.pass(1_s);
  std::vector<Lane*> lanes;
  pair.fabric.lanes_between(1, 0, &lanes);
  ASSERT_EQ(lanes[0]->rail(), 0);
  pair.fabric.kill_lane(*lanes[0], false);  // nothing comes any more, not even the news that it has ended
  pair.fabric.nic_down(0, 0, NicDeath::kLocal);
  pair.pass(10_ms);
  ASSERT_EQ(pair.a().channel->paths_up(), 1);
  ASSERT_EQ(pair.b().channel->paths_up(), 2) << "it has not heard of it";
  pair.fabric.nic_up(0, 0);
  const Nanos back = pair.now();
  ASSERT_TRUE(pair.until([&] { return pair.b().events.find("rail0>rail0 down") != std::string::npos; }, 2_s));
  EXPECT_GE(pair.now() - back, 150_ms) << "it is heard out: " << pair.b().events;
  EXPECT_LE(pair.now() - back, 500_ms);
  ASSERT_TRUE(pair.until([&] { return pair.a().channel->paths_up() == 2 && pair.b().channel->paths_up() == 2; }, 1_s));
}

TEST(ChannelNewcomers, AreTakenOnlyFromTheRailAndTheAddressThatTheirHelloNames) {
  SimPair pair(2, SimPair::quick(), 3);
  pair.open(2);
  pair.fabric.nic_down(0, 0, NicDeath::kBothEnds);
  pair.pass(10_ms);
  ASSERT_EQ(pair.b().channel->paths()[0].lane, nullptr);
  Newcomer other_rail(pair, 0, 1, 0), other_host(pair, 2, 0, 0);
  pair.until(
      [&] {
        pair.fabric.factory(2).poll(pair.now());
        return false;
      },
      1_s);
  for (const Newcomer* n : {&other_rail, &other_host}) {
    EXPECT_TRUE(n->said);
    EXPECT_EQ(n->frames, 0);
  }
  EXPECT_EQ(pair.b().channel->paths()[0].lane, nullptr);
  EXPECT_EQ(pair.b().channel->paths()[0].candidate, nullptr);
}

TEST(AckState, CountsAcrossTheEndOf32Bits) {
  AckState state;
  state.reset(0xfffffff0);
  wire::AckPayload ack;
  const auto mark = [&](std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t s = from; s != to; ++s) ASSERT_TRUE(state.mark(s)) << s;
  };
  mark(0xfffffff1, 0xfffffff8);
  mark(0xfffffffa, 8);  // two are missing
  EXPECT_EQ(state.encode(&ack), wire::kAckFixedBytes + 8);
  EXPECT_EQ(ack.cumulative, 0xfffffff7);
  EXPECT_EQ(ack.bitmap[0], 0xfffcu);
  mark(0xfffffff8, 0xfffffffa);
  EXPECT_EQ(state.encode(&ack), wire::kAckFixedBytes);
  EXPECT_EQ(ack.cumulative, 7u);
  EXPECT_TRUE(state.mark(0xffffffff)) << "a late copy";
  EXPECT_FALSE(state.mark(8 + AckState::kWindow)) << "beyond the window";
  mark(8, 3000);
  state.encode(&ack);
  EXPECT_EQ(ack.cumulative, 2999u);
}

}  // namespace
}  // namespace canarynet

// The conformance suite over TCP, and what only TCP can get wrong: strangers, exhausted descriptors, refused options.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "transport/tcp/tcp_fixture.h"

namespace canarynet {

INSTANTIATE_TEST_SUITE_P(
    Tcp, LaneConformance,
    ::testing::Values(LaneKind{"ipv4", [] { return std::unique_ptr<LaneFixture>(new TcpFixture(loopback_options())); }},
                      LaneKind{"ipv6",
                               [] { return std::unique_ptr<LaneFixture>(new TcpFixture(loopback_options(true))); }},
                      LaneKind{"system_defaults",
                               [] {
                                 TcpOptions options = loopback_options();
                                 options.notsent_lowat = Bytes{0};
                                 return std::unique_ptr<LaneFixture>(new TcpFixture(options));
                               }}),
    lane_kind_name);

namespace {

using lane_test::Doorman;
using lane_test::make_header;
using lane_test::pattern_bytes;
using lane_test::Recorder;

// A factory, and raw sockets that talk to it.
class TcpLaneTest : public ::testing::Test {
 protected:
  void start(TcpOptions options = loopback_options()) {
    auto made = TcpLaneFactory::create(std::move(options));
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    factory_ = made.take();
    factory_->set_acceptor(&doorman_);
  }
  void TearDown() override { doorman_.lanes.clear(); }
  bool run_until(const std::function<bool()>& done, Nanos limit = 20_s) {
    const Nanos end = clock_.now() + limit;
    while (!done()) {
      if (clock_.now() >= end) return false;
      if (factory_->poll(clock_.now()) == 0) wait(1);
    }
    return true;
  }
  void wait(int ms) {
    pollfd entry{factory_->poll_fd(), POLLIN, 0};
    ::poll(&entry, 1, ms);
  }
  Socket stranger() {
    const Address to = factory_->rails()[0].address;
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience{10, 0};
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const SocketAddress native = to_socket_address(to, "");
    EXPECT_EQ(::connect(socket.fd(), native.get(), native.length), 0);
    return socket;
  }
  Socket accepted_stranger() {
    Socket socket = stranger();
    const std::size_t before = doorman_.lanes.size();
    EXPECT_TRUE(run_until([&] { return doorman_.lanes.size() == before + 1; }));
    return socket;
  }
  static void write_all(const Socket& socket, const void* data, std::size_t bytes) {
    ASSERT_EQ(::send(socket.fd(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }

  SystemClock clock_;
  Recorder sink_;
  Doorman doorman_{&sink_};
  std::unique_ptr<TcpLaneFactory> factory_;
};

// --- strangers ------------------------------------------------------------------------------------------

TEST_F(TcpLaneTest, GarbageFromAStrangerBringsTheLaneDownWithTheReason) {
  start();
  Socket socket = accepted_stranger();
  const std::string request =
      "GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: something long enough for a header\r\n\r\n";
  write_all(socket, request.data(), request.size());
  ASSERT_TRUE(run_until([&] { return sink_.downs == 1; }));
  EXPECT_NE(sink_.reason.find("magic"), std::string::npos) << sink_.reason;
  EXPECT_NE(sink_.reason.find("127.0.0.1"), std::string::npos) << "the reason names the connection: " << sink_.reason;
  EXPECT_FALSE(sink_.hangup);
  EXPECT_EQ(sink_.landings, 0) << "nothing is believed before the header's CRC";
  EXPECT_EQ(doorman_.lanes[0]->counters().header_errors, 1u);
  char byte;
  EXPECT_EQ(::recv(socket.fd(), &byte, 1, MSG_DONTWAIT), -1) << "the end comes with the lane's";
  doorman_.lanes.clear();
  EXPECT_LE(::recv(socket.fd(), &byte, 1, 0), 0) << "the stranger is disconnected";
}

TEST_F(TcpLaneTest, FlippedHeaderBitInMidStreamStopsTheLane) {
  start();
  Socket socket = accepted_stranger();
  const auto payload = pattern_bytes(1, 100);
  wire::Header header = make_header(1, payload);
  write_all(socket, &header, sizeof header);
  write_all(socket, payload.data(), payload.size());
  header.piece ^= 4;  // the identity: believed, it would overwrite another piece
  write_all(socket, &header, sizeof header);
  write_all(socket, payload.data(), payload.size());
  ASSERT_TRUE(run_until([&] { return sink_.downs == 1; }));
  EXPECT_EQ(sink_.frames, 1);
  EXPECT_EQ(sink_.landings, 1);
  EXPECT_NE(sink_.reason.find("header crc"), std::string::npos) << sink_.reason;
}

TEST_F(TcpLaneTest, WhoBelievesThePeerNoMoreCanStillTellIt) {
  start();
  Socket socket = accepted_stranger();
  const int small = 4096;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  const auto payload = pattern_bytes(1, 1000);
  wire::Header header = make_header(1, payload);
  Lane& lane = *doorman_.lanes[0];
  // More than the connection takes at once: what follows stands behind it.
  std::size_t sent = 0;
  while (lane.send(header, payload.data(), 1)) ++sent;
  lane.flush(clock_.now());
  header.piece ^= 4;
  write_all(socket, &header, sizeof header);
  ASSERT_TRUE(run_until([&] { return sink_.downs == 1; }));
  EXPECT_FALSE(sink_.hangup);
  EXPECT_FALSE(lane.up());
  header.piece ^= 4;
  std::vector<char> bytes(sizeof header + payload.size());
  for (std::size_t i = 0; i < sent + 1; ++i) {
    if (i == 1) {
      ASSERT_TRUE(lane.send(header, payload.data(), 1));
    }
    lane.flush(clock_.now());
    ASSERT_EQ(::recv(socket.fd(), bytes.data(), bytes.size(), MSG_WAITALL), static_cast<ssize_t>(bytes.size())) << i;
    EXPECT_EQ(std::memcmp(bytes.data() + sizeof header, payload.data(), payload.size()), 0);
  }
  EXPECT_EQ(factory_->poll(clock_.now()), 0u) << "nothing is read any more";
  ::shutdown(socket.fd(), SHUT_RDWR);
  run_until([] { return false; }, 20_ms);
  while (lane.send(header, payload.data(), 1)) lane.flush(clock_.now());
  EXPECT_EQ(sink_.downs, 1) << "told twice";
}

TEST_F(TcpLaneTest, ByteByByteArrivalMakesTheSameFrames) {
  start();
  Socket socket = accepted_stranger();
  const int on = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto payload = pattern_bytes(i, i * 30);
    const wire::Header header = make_header(i, payload);
    std::vector<std::byte> bytes(sizeof header);
    std::memcpy(bytes.data(), &header, sizeof header);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    for (std::byte b : bytes) {
      write_all(socket, &b, 1);
      factory_->poll(clock_.now());
    }
  }
  ASSERT_TRUE(run_until([&] { return sink_.frames == 3; }));
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(sink_.received[i].intact);
    EXPECT_TRUE(sink_.received[i].payload == pattern_bytes(i, i * 30));
  }
}

TEST_F(TcpLaneTest, SilentStrangerCostsNothingAndLeavesQuietly) {
  start();
  Socket socket = accepted_stranger();
  while (factory_->poll(clock_.now()) != 0) {
  }
  pollfd entry{factory_->poll_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0) << "an idle connection must not keep the engine awake";
  EXPECT_EQ(factory_->next_deadline(), Nanos::max());
  EXPECT_EQ(sink_.downs, 0);
  socket.close();
  ASSERT_TRUE(run_until([&] { return sink_.downs == 1; }));
  EXPECT_TRUE(sink_.hangup);
  EXPECT_EQ(sink_.frames, 0);
}

TEST_F(TcpLaneTest, HalfAHeaderThenTheEndSaysSo) {
  start();
  Socket socket = accepted_stranger();
  const wire::Header header = make_header(1, {});
  write_all(socket, &header, 20);
  socket.close();
  ASSERT_TRUE(run_until([&] { return sink_.downs == 1; }));
  EXPECT_NE(sink_.reason.find("middle of a frame"), std::string::npos) << sink_.reason;
  EXPECT_TRUE(sink_.hangup);
  EXPECT_EQ(sink_.landings, 0);
}

TEST_F(TcpLaneTest, ResetIsAHangup) {
  start();
  Socket socket = accepted_stranger();
  const linger abortive{1, 0};
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &abortive, sizeof abortive);
  socket.close();
  ASSERT_TRUE(run_until([&] { return sink_.downs == 1; }));
  EXPECT_TRUE(sink_.hangup) << sink_.reason;
}

// The peer says goodbye, closes, and resets because it never read what we wrote. A write of ours notices the reset
// first; the goodbye still has to be heard.
TEST_F(TcpLaneTest, LastWordsBeforeAResetAreHeardWhenAWriteFailsFirst) {
  start();
  Socket socket = accepted_stranger();
  Lane& lane = *doorman_.lanes[0];
  const auto payload = pattern_bytes(1, 5000);
  ASSERT_TRUE(lane.send(make_header(1, payload), payload.data(), 1));
  lane.flush(clock_.now());
  const wire::Header goodbye = make_header(7, {});
  write_all(socket, &goodbye, sizeof goodbye);
  socket.close();  // with unread bytes: a reset
  // No poll() in between: it would see the end of the stream first.
  const Nanos end = clock_.now() + 10_s;
  while (lane.up() && clock_.now() < end) {
    lane.send(make_header(2, payload), payload.data(), 2);
    lane.flush(clock_.now());
  }
  ASSERT_FALSE(lane.up());
  EXPECT_EQ(sink_.downs, 0) << "sinks are called from poll() only";
  wait(5000);
  pollfd entry{factory_->poll_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 1) << "somebody has to wake up for on_down";
  factory_->poll(clock_.now());
  EXPECT_EQ(sink_.frames, 1);
  EXPECT_EQ(sink_.downs, 1);
  EXPECT_TRUE(sink_.hangup);
}

TEST_F(TcpLaneTest, PeerThatNeverReadsStopsTheSenderNotTheEngine) {
  start();
  Socket socket = accepted_stranger();
  Lane& lane = *doorman_.lanes[0];
  const auto payload = pattern_bytes(1, 100'000);
  int taken = 0;
  for (int i = 0; i < 5000; ++i) {
    taken += lane.send(make_header(1, payload), payload.data(), 1);
    lane.flush(clock_.now());
  }
  EXPECT_LT(taken, 5000);
  EXPECT_TRUE(lane.up());
  EXPECT_GT(lane.queued_bytes(), 0u);
  while (factory_->poll(clock_.now()) != 0) {
  }
  pollfd entry{factory_->poll_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 20), 0) << "a full socket must not spin";

  // Room by cancelling: the socket, still full, will not wake anybody.
  EXPECT_TRUE(lane.cancel(1));
  EXPECT_EQ(::poll(&entry, 1, 0), 1) << "somebody has to wake up for on_writable";
  EXPECT_EQ(sink_.writables, 0);
  factory_->poll(clock_.now());
  EXPECT_EQ(sink_.writables, 1);
}

// Linux answers a close with unread bytes by a reset and forgets what it had still to send.
TEST_F(TcpLaneTest, WhatWasFlushedArrivesAlthoughTheLaneNeverReadItsMail) {
  start();
  Socket socket = accepted_stranger();
  Lane& lane = *doorman_.lanes[0];
  const auto payload = pattern_bytes(1, 1u << 20);
  while (lane.send(make_header(1, payload), payload.data(), 1)) {
  }
  lane.flush(clock_.now());
  const wire::Header mail = make_header(7, {});
  write_all(socket, &mail, sizeof mail);
  const std::uint64_t flushed = lane.counters().bytes_sent;
  ASSERT_GT(flushed, 100'000u);
  doorman_.lanes.clear();
  std::uint64_t arrived = 0;
  std::vector<std::byte> buffer(1u << 16);
  for (ssize_t n = 1; n > 0; arrived += static_cast<std::uint64_t>(std::max<ssize_t>(n, 0))) {
    n = ::recv(socket.fd(), buffer.data(), buffer.size(), 0);
  }
  EXPECT_EQ(arrived, flushed);
}

// --- limits and refusals -----------------------------------------------------------------------------------------

TEST_F(TcpLaneTest, OutOfDescriptorsTheConnectionIsShedAndAcceptDoesNotSpin) {
  start();
  Socket waiting = stranger();
  rlimit saved{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &saved), 0);
  rlimit tight = saved;
  tight.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::vector<Socket> hogs;
  for (;;) {
    Socket hog(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!hog.open()) break;
    hogs.push_back(std::move(hog));
  }
  EXPECT_TRUE(run_until([&] { return factory_->accepts_refused() == 1; }));
  EXPECT_TRUE(doorman_.lanes.empty());
  pollfd entry{factory_->poll_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0) << "the listener would wake the engine for ever";
  hogs.clear();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &saved), 0);
  std::string told;
  char part[2048];
  for (ssize_t n = 0; (n = ::recv(waiting.fd(), part, sizeof part, 0)) > 0;)
    told.append(part, static_cast<std::size_t>(n));
  EXPECT_NE(told.find("raise ulimit -n"), std::string::npos) << "the one shed learns at once, and why";
  EXPECT_NE(factory_->trouble().find("raise ulimit -n"), std::string::npos);
  Socket next = accepted_stranger();
  EXPECT_EQ(doorman_.lanes.size(), 1u);
  EXPECT_EQ(factory_->trouble(), "");
}

TEST_F(TcpLaneTest, WithoutItsReserveTheListenerPausesAndComesBack) {
  start();
  Socket first = stranger();
  rlimit saved{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &saved), 0);
  rlimit none = saved;
  none.rlim_cur = 3;  // even the number that the reserve gives back is beyond it
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  factory_->poll(clock_.now());
  pollfd entry{factory_->poll_fd(), POLLIN, 0};
  const Nanos deadline = factory_->next_deadline();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &saved), 0);
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  EXPECT_LT(deadline, Nanos::max());
  EXPECT_TRUE(doorman_.lanes.empty());
  EXPECT_TRUE(run_until([&] { return doorman_.lanes.size() == 1; })) << "the listener never came back";
}

TEST_F(TcpLaneTest, ConnectionsBeyondTheLimitAreClosed) {
  TcpOptions options = loopback_options();
  options.lanes_max = 2;
  start(options);
  Socket a = accepted_stranger();
  Socket b = accepted_stranger();
  Socket c = stranger();
  ASSERT_TRUE(run_until([&] { return factory_->accepts_refused() == 1; }));
  EXPECT_EQ(doorman_.lanes.size(), 2u);
  doorman_.lanes.pop_back();
  Socket d = accepted_stranger();
  EXPECT_EQ(doorman_.lanes.size(), 2u);
}

TEST_F(TcpLaneTest, UnknownCongestionControlFallsBackWithANote) {
  TcpOptions options = loopback_options();
  options.congestion = "no_such_thing";
  start(options);
  ASSERT_EQ(factory_->notes().size(), 1u);
  EXPECT_NE(factory_->notes()[0].find("no_such_thing"), std::string::npos) << factory_->notes()[0];
  Recorder near_sink;
  auto lane = factory_->dial(0, factory_->rails()[0].address, near_sink);
  ASSERT_TRUE(lane.ok());
  EXPECT_TRUE(run_until([&] { return near_sink.ups == 1 && doorman_.lanes.size() == 1; }));
  EXPECT_EQ(factory_->notes().size(), 1u) << "said once, not once per lane";
  lane.value().reset();
}

TEST_F(TcpLaneTest, NonLoopbackIsRefusedInSoManyWords) {
  TcpOptions options = loopback_options();
  options.rails[0].address = Address::parse("192.0.2.77").value();
  auto made = TcpLaneFactory::create(options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), CANARY_INSECURE);
  EXPECT_NE(made.status().text().find("192.0.2.77"), std::string::npos) << made.status().text();
  EXPECT_NE(made.status().text().find("CANARY_INSECURE=1"), std::string::npos);
  EXPECT_NE(made.status().text().find("neither encrypted nor authenticated"), std::string::npos);
  EXPECT_EQ(made.status().text().find("key"), std::string::npos) << "there are none yet";

  start();
  EXPECT_EQ(factory_->listen_control(Address::parse("0.0.0.0").value()).status().code(), CANARY_INSECURE);
  EXPECT_EQ(factory_->dial(0, Address::parse("192.0.2.77:99").value(), sink_).status().code(), CANARY_INSECURE);
}

TEST_F(TcpLaneTest, ImpossibleDialsAreErrorsAtOnce) {
  start();
  EXPECT_EQ(factory_->dial(1, factory_->rails()[0].address, sink_).status().code(), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(factory_->dial(0, Address::parse("127.0.0.1").value(), sink_).status().code(), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(factory_->dial(0, Address::parse("[::1]:5").value(), sink_).status().code(), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(factory_->dial(0, Address{}, sink_).status().code(), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(factory_->next_deadline(), Nanos::max());
}

TEST_F(TcpLaneTest, RailPortInUseIsAnErrorThatNamesIt) {
  start();
  TcpOptions options = loopback_options();
  options.rails[0].address.port = factory_->rails()[0].address.port;
  auto made = TcpLaneFactory::create(options);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().text().find(std::to_string(options.rails[0].address.port)), std::string::npos);
  EXPECT_NE(made.status().text().find("lo"), std::string::npos);
}

TEST_F(TcpLaneTest, DialTimesOutByTheClockItIsGiven) {
  // A listener whose backlog is full answers nobody: the only silence to be had on loopback.
  Address at = Address::parse("127.0.0.1").value();
  Socket deaf = listen_on(at, {}).take();
  at = local_address(deaf.fd());
  std::vector<Socket> fillers;
  for (int i = 0; i < 3; ++i) {
    Socket filler = make_stream_socket(Address::Family::kIPv4).take();
    const SocketAddress native = to_socket_address(at, "");
    (void)::connect(filler.fd(), native.get(), native.length);
    fillers.push_back(std::move(filler));
  }
  TcpOptions options = loopback_options();
  options.connect_timeout = 700_ms;
  start(options);
  auto lane = factory_->dial(0, at, sink_);
  ASSERT_TRUE(lane.ok());
  EXPECT_LE(factory_->next_deadline(), Nanos{1'000_s}) << "the first poll() has to come to start the clock";
  factory_->poll(1'000_s);
  EXPECT_EQ(factory_->next_deadline(), 1'000_s + 700_ms);
  factory_->poll(1'000_s + 699_ms);
  EXPECT_EQ(sink_.downs, 0);
  factory_->poll(1'000_s + 700_ms);
  EXPECT_EQ(sink_.downs, 1);
  EXPECT_FALSE(sink_.hangup) << "silence is no evidence of a death";
  EXPECT_NE(sink_.reason.find("700 ms"), std::string::npos) << sink_.reason;
  EXPECT_EQ(factory_->next_deadline(), Nanos::max());
  lane.value().reset();
}

TEST_F(TcpLaneTest, PayloadBeyondASmallSlotStopsTheLane) {
  TcpOptions options = loopback_options();
  options.slot_bytes = 4096;
  start(options);
  Socket socket = accepted_stranger();
  const auto payload = pattern_bytes(1, 4097);
  const wire::Header header = make_header(1, payload);
  write_all(socket, &header, sizeof header);
  write_all(socket, payload.data(), payload.size());
  ASSERT_TRUE(run_until([&] { return sink_.downs == 1; }));
  EXPECT_NE(sink_.reason.find("slot"), std::string::npos) << sink_.reason;
}

// --- the factory itself ------------------------------------------------------------------------------------------

TEST_F(TcpLaneTest, LaneOutlivesItsFactory) {
  start();
  Socket socket = accepted_stranger();
  Lane& lane = *doorman_.lanes[0];
  const auto payload = pattern_bytes(1, 5000);
  ASSERT_TRUE(lane.send(make_header(1, payload), payload.data(), 1));
  factory_.reset();
  EXPECT_FALSE(lane.up());
  EXPECT_FALSE(lane.send(make_header(1, payload), payload.data(), 1));
  lane.flush(clock_.now());
  lane.cancel(1);
  doorman_.lanes.clear();
}

TEST_F(TcpLaneTest, LoudLaneDoesNotStarveAQuietOne) {
  start();
  Socket loud = accepted_stranger();
  Socket quiet = accepted_stranger();
  std::atomic<bool> stop{false};
  std::thread flood([&] {
    const auto payload = pattern_bytes(1, 1u << 20);
    const wire::Header header = make_header(1, payload);
    while (!stop) {
      for (auto [data, bytes] :
           {std::pair<const void*, std::size_t>{&header, sizeof header}, {payload.data(), payload.size()}}) {
        for (std::size_t done = 0; done < bytes && !stop;) {
          const void* rest = static_cast<const char*>(data) + done;
          const ssize_t n = ::send(loud.fd(), rest, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
          if (n > 0) done += static_cast<std::size_t>(n);
        }
      }
    }
  });
  sink_.keep = false;
  EXPECT_TRUE(run_until([&] { return sink_.frames > 3; }));
  const wire::Header header = make_header(4242, {});
  write_all(quiet, &header, sizeof header);
  bool heard = false;
  sink_.frame_hook = [&](Lane&, const wire::Header& got, const Arrival&) { heard |= got.piece == 4242; };
  for (int polls = 0; polls < 3 && !heard; ++polls) factory_->poll(clock_.now());
  stop = true;
  flood.join();
  EXPECT_TRUE(heard) << "one turn of the loud lane must be bounded";
}

TEST_F(TcpLaneTest, OneTurnIsBounded) {
  start();
  Socket socket = accepted_stranger();
  Lane& lane = *doorman_.lanes[0];
  const int room = 8 << 20;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  const auto payload = pattern_bytes(1, 1u << 20);
  const wire::Header header = make_header(1, payload);
  sink_.keep = false;
  std::uint64_t most = 0;
  for (int i = 0; i < 200; ++i) {
    (void)::send(socket.fd(), &header, sizeof header, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
    (void)::send(socket.fd(), payload.data(), payload.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    const std::uint64_t before = lane.counters().bytes_received;
    factory_->poll(clock_.now());
    most = std::max(most, lane.counters().bytes_received - before);
    if (sink_.downs != 0) break;  // a cut-off send() has broken the framing: enough was seen
  }
  EXPECT_GT(most, 0u);
  EXPECT_LE(most, std::uint64_t{2} << 20);
}

TEST_F(TcpLaneTest, ProgressCountsPartsOfFrames) {
  start();
  Socket socket = accepted_stranger();
  Lane& lane = *doorman_.lanes[0];
  const Lane::Progress before = lane.progress();
  const auto payload = pattern_bytes(1, 1000);
  const wire::Header header = make_header(1, payload);
  write_all(socket, &header, sizeof header);
  write_all(socket, payload.data(), 500);
  ASSERT_TRUE(lane.send(make_header(2, payload), payload.data(), 7));
  lane.flush(clock_.now());
  // The stranger reads nothing: its kernel has it.
  for (int i = 0; i < 2000 && lane.progress().acknowledged < before.acknowledged + sizeof header + 1000; ++i) {
    factory_->poll(clock_.now());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(lane.progress().acknowledged, before.acknowledged + sizeof header + 1000);
  EXPECT_EQ(lane.progress().received, before.received + sizeof header + 500);
}

TEST_F(TcpLaneTest, KernelCountsWhatTheDeviceSent) {
  start();
  const std::uint64_t before = factory_->kernel_tx_bytes(0);
  Socket socket = accepted_stranger();
  const auto payload = pattern_bytes(1, 1000);
  const wire::Header header = make_header(1, payload);
  write_all(socket, &header, sizeof header);
  write_all(socket, payload.data(), payload.size());
  ASSERT_TRUE(run_until([&] { return sink_.frames == 1; }));
  EXPECT_GE(factory_->kernel_tx_bytes(0), before + 1048);
  EXPECT_EQ(factory_->kernel_tx_bytes(kControlRail), 0u);
  EXPECT_EQ(factory_->kernel_tx_bytes(99), 0u);
}

TEST_F(TcpLaneTest, SocketOptionsAreSetOnBothEnds) {
  TcpOptions options = loopback_options();
  options.congestion = "reno";
  options.notsent_lowat = Bytes{77'777};
  start(options);
  EXPECT_TRUE(factory_->notes().empty());
  const auto check = [](int fd) {
    int value = 0;
    socklen_t length = sizeof value;
    EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length), 0);
    EXPECT_NE(value, 0);
    EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &value, &length), 0);
    EXPECT_EQ(value, 77'777);
    char name[32] = {};
    length = sizeof name - 1;
    EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
    EXPECT_STREQ(name, "reno");
  };
  Socket socket = make_stream_socket(Address::Family::kIPv4).take();
  EXPECT_EQ(tune(socket.fd(), {"reno", Bytes{77'777}, ""}), "");
  check(socket.fd());
  Recorder near_sink;
  auto lane = factory_->dial(0, factory_->rails()[0].address, near_sink);
  ASSERT_TRUE(lane.ok());
  ASSERT_TRUE(run_until([&] { return near_sink.ups == 1 && doorman_.lanes.size() == 1; }));
  // The lanes keep their descriptors to themselves; they are found among the process's own by their addresses.
  const std::uint16_t port = factory_->rails()[0].address.port;
  int found = 0;
  for (int fd = 3; fd < 200; ++fd) {
    const Address peer = peer_address(fd);
    if (!peer.valid() || (peer.port != port && local_address(fd).port != port)) continue;
    check(fd);
    ++found;
  }
  EXPECT_EQ(found, 2);
  lane.value().reset();
}

// The rate at which each connection on our listener's port, or towards it, may send: 0 where it is not paced.
std::vector<std::uint64_t> pacing_of_connections(std::uint16_t port) {
  std::vector<std::uint64_t> rates;
  for (int fd = 3; fd < 200; ++fd) {
    const Address peer = peer_address(fd);
    if (!peer.valid() || (peer.port != port && local_address(fd).port != port)) continue;
    std::uint64_t rate = 0;
    socklen_t length = sizeof rate;
    EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &length), 0);
    rates.push_back(rate == ~std::uint64_t{0} ? 0 : rate);
  }
  return rates;
}

TEST_F(TcpLaneTest, LanesOfAPacedRailArePacedAtBothEndsOthersNot) {
  TcpOptions options = loopback_options();
  options.rails.push_back(options.rails[0]);
  options.pacing = {BytesPerSec{12'345'678}, BytesPerSec{0}};
  start(options);
  EXPECT_TRUE(factory_->notes().empty());
  for (const int rail : {0, 1}) {
    Recorder near_sink;
    const Address to = factory_->rails()[static_cast<std::size_t>(rail)].address;
    auto lane = factory_->dial(rail, to, near_sink);
    ASSERT_TRUE(lane.ok());
    ASSERT_TRUE(run_until([&] { return near_sink.ups == 1 && !doorman_.lanes.empty(); }));
    const std::uint64_t rate = rail == 0 ? 12'345'678 : 0;
    EXPECT_EQ(pacing_of_connections(to.port), (std::vector<std::uint64_t>{rate, rate})) << "rail " << rail;
    lane.value().reset();
    doorman_.lanes.clear();
  }
  const auto control = factory_->listen_control(Address::ipv4(127, 0, 0, 1));
  ASSERT_TRUE(control.ok());
  Recorder near_sink;
  auto lane = factory_->dial(kControlRail, control.value(), near_sink);
  ASSERT_TRUE(lane.ok());
  ASSERT_TRUE(run_until([&] { return near_sink.ups == 1 && !doorman_.lanes.empty(); }));
  EXPECT_EQ(pacing_of_connections(control.value().port), (std::vector<std::uint64_t>{0, 0}));
}

// The system picked the port and connections wait before the factory knows of them.
TEST_F(TcpLaneTest, ALentListenerServesControl) {
  Socket listener = listen_on(Address::ipv4(127, 0, 0, 1), {.backlog = 16}).take();
  const Address at = local_address(listener.fd());
  Socket early(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress native = to_socket_address(at, "");
  ASSERT_EQ(::connect(early.fd(), native.get(), native.length), 0);
  start();
  factory_->lend_control(std::move(listener));
  const auto bound = factory_->listen_control(at);
  ASSERT_TRUE(bound.ok()) << bound.status().text();
  EXPECT_EQ(bound.value().port, at.port);
  ASSERT_TRUE(run_until([&] { return doorman_.lanes.size() == 1; }));
  EXPECT_FALSE(factory_->listen_control(at).ok()) << "lent once: the port is taken now";
}

TEST_F(TcpLaneTest, RefusedDeviceIsNotedAndLivedWith) {
  Socket socket = make_stream_socket(Address::Family::kIPv4).take();
  const std::string notes = tune(socket.fd(), {"", Bytes{0}, "no_such_nic"});
  EXPECT_NE(notes.find("no_such_nic"), std::string::npos) << notes;
}

}  // namespace
}  // namespace canarynet

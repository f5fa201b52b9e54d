// Once lanes are up, sending, receiving, cancelling and accepting nothing must not touch the heap. malloc itself is
// counted, so that operator new, the C library and everything else is seen; the sanitizers bring a malloc of their own
// and skip this.
#include "tests/allocation_counter.h"
#include "transport/tcp/tcp_fixture.h"

namespace canarynet {
namespace {

class CountingSink final : public LaneSink {
 public:
  void on_up(Lane&) override { ++ups; }
  Landing landing_for(Lane& lane, const wire::Header& header) override {
    // In the middle of a span now and then: another lane had the piece first.
    if (header.piece % 5 == 3) lane.redirect(header.piece);
    const auto kind = static_cast<Landing::Kind>(header.piece % 3);
    return {.kind = kind, .data = kind == Landing::Kind::kSpan ? memory.data() : nullptr, .cookie = header.piece};
  }
  void on_frame(Lane&, const wire::Header&, const Arrival& arrival) override {
    ++frames;
    broken += !arrival.discarded && !arrival.intact;
  }
  void on_writable(Lane&) override { ++writables; }
  void on_down(Lane&, const Status&, bool) override { ++downs; }

  std::vector<std::byte> memory = std::vector<std::byte>(wire::kPayloadMax);
  int ups = 0, frames = 0, writables = 0, downs = 0, broken = 0;
};

class OneLane final : public LaneAcceptor {
 public:
  explicit OneLane(LaneSink& sink) : sink_(sink) {}
  void on_accept(std::unique_ptr<Lane> accepted) override {
    accepted->set_sink(&sink_);
    lane = std::move(accepted);
  }
  std::unique_ptr<Lane> lane;

 private:
  LaneSink& sink_;
};

TEST(TcpAllocation, TheCounterCounts) {
  if (!CANARYNET_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer owns malloc";
  allocation_counter::arm();
  const auto one = std::make_unique<std::string>(100, 'x');
  EXPECT_GE(allocation_counter::disarm(), 2);
  EXPECT_EQ(one->size(), 100u);
}

TEST(TcpAllocation, NothingIsAllocatedOnceLanesAreUp) {
  if (!CANARYNET_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer owns malloc";
  CountingSink near_sink, far_sink;
  OneLane acceptor(far_sink);
  TcpFixture fixture(loopback_options());
  fixture.factory(1)->set_acceptor(&acceptor);
  auto near = fixture.factory(0)->dial(0, fixture.factory(1)->rails()[0].address, near_sink).take();
  while (near_sink.ups == 0 || acceptor.lane == nullptr) fixture.step();

  const std::size_t sizes[] = {0, 8, 1024, 1025, 70'000, 131'072, 1u << 20};
  std::vector<std::vector<std::byte>> payloads;
  for (std::size_t size : sizes) payloads.push_back(lane_test::pattern_bytes(size, size));
  std::vector<wire::Header> headers;
  for (std::uint32_t i = 0; i < 3000; ++i) headers.push_back(lane_test::make_header(i, payloads[i % payloads.size()]));

  allocation_counter::arm();
  int sent = 0, dropped = 0;
  const Nanos end = fixture.now() + 30_s;
  for (std::uint32_t i = 0; i < headers.size() && near_sink.downs == 0 && fixture.now() < end;) {
    // Bursts past the queue's capacity, so that refusals and on_writable are among it.
    while (i < headers.size() && near->send(headers[i], payloads[i % payloads.size()].data(), i % 97)) ++i, ++sent;
    if (near->cancel(i % 97)) ++dropped;
    near->flush(fixture.now());
    for (int k = 0; k < 20; ++k) fixture.step();
  }
  while (near->queued_bytes() > 0 && fixture.now() < end) fixture.step();
  EXPECT_EQ(allocation_counter::disarm(), 0);
  EXPECT_EQ(sent, 3000);
  EXPECT_GT(dropped, 0);
  EXPECT_GT(near_sink.writables, 0);
  EXPECT_GT(far_sink.frames, 1000);
  EXPECT_EQ(far_sink.downs, 0);
  near.reset();
  acceptor.lane.reset();
}

}  // namespace
}  // namespace canarynet

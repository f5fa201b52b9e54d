#include <gtest/gtest.h>

#include <algorithm>

#include "sim/sim_fabric.h"
#include "tests/lane_conformance.h"

namespace canarynet {
namespace {

class SimFixture final : public LaneFixture {
 public:
  explicit SimFixture(FabricOptions options) : fabric_(options, Wiring::flat(2, 1)) {}
  // No NICs: rail 0 is the memory that both hosts share.
  SimFixture(FabricOptions options, std::int64_t ring_bytes)
      : takes_unchecked_(true), fabric_(with_ring(options, ring_bytes), {.networks = {{}, {}}, .machine = {0, 0}}) {}

  LaneFactory* factory(int side) override { return &fabric_.factory(side); }
  Nanos now() const override { return fabric_.now(); }
  // Moves to the next event (or 20 us on, if there is none), then polls both hosts, as a cluster would.
  void step() override {
    advance();
    fabric_.factory(0).poll(fabric_.now());
    fabric_.factory(1).poll(fabric_.now());
  }
  void step_far() override {
    advance();
    fabric_.factory(1).poll(fabric_.now());
  }
  bool takes_unchecked() const override { return takes_unchecked_; }
  Address nobody() override {
    Address address = fabric_.factory(1).rails()[0].address;
    address.port = 9;
    return address;
  }

 private:
  static FabricOptions with_ring(FabricOptions options, std::int64_t ring_bytes) {
    options.ring_bytes = ring_bytes;
    return options;
  }
  void advance() {
    const Nanos next = fabric_.next_event();
    fabric_.advance_to(std::min(next, fabric_.now() + 20_us));
    fabric_.take_ready_hosts(&ready_);
  }
  const bool takes_unchecked_ = false;
  SimFabric fabric_;
  std::vector<int> ready_;
};

FabricOptions of_rate(std::int64_t mbit) {
  FabricOptions options;
  options.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(mbit));
  return options;
}

std::unique_ptr<LaneFixture> make_unlimited() { return std::make_unique<SimFixture>(of_rate(0)); }
std::unique_ptr<LaneFixture> make_gigabit() { return std::make_unique<SimFixture>(of_rate(1000)); }
std::unique_ptr<LaneFixture> make_fast_with_jitter() {
  FabricOptions options = of_rate(25'000);
  options.nic.in.jitter = 50_us;
  return std::make_unique<SimFixture>(options);
}
std::unique_ptr<LaneFixture> make_lossy_stream() {
  FabricOptions options = of_rate(10'000);
  options.nic.out.loss_ppm = 20'000;
  return std::make_unique<SimFixture>(options);
}
std::unique_ptr<LaneFixture> make_memory() { return std::make_unique<SimFixture>(of_rate(0), 2 << 20); }
std::unique_ptr<LaneFixture> make_small_rings() { return std::make_unique<SimFixture>(of_rate(0), 64 << 10); }
std::unique_ptr<LaneFixture> make_packets() {
  FabricOptions options = of_rate(10'000);
  options.stream = false;
  return std::make_unique<SimFixture>(options);
}

INSTANTIATE_TEST_SUITE_P(Sim, LaneConformance,
                         ::testing::Values(LaneKind{"unlimited", make_unlimited}, LaneKind{"gigabit", make_gigabit},
                                           LaneKind{"fast_with_jitter", make_fast_with_jitter},
                                           LaneKind{"lossy_stream", make_lossy_stream},
                                           LaneKind{"packets", make_packets}, LaneKind{"memory", make_memory},
                                           LaneKind{"memory_small_rings", make_small_rings}),
                         lane_kind_name);

}  // namespace
}  // namespace canarynet

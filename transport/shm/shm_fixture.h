// transport/shm/shm_fixture.h -- two shared-memory lane factories in one thread, in real time; for tests only.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <memory>
#include <random>

#include "base/clock.h"
#include "tests/lane_conformance.h"
#include "transport/shm/shm_lane_factory.h"

namespace canarynet {

inline Address shm_test_name() {
  Address name;
  name.family = Address::Family::kSharedMemory;
  name.prefix_bits = 64;
  std::random_device entropy;
  for (std::size_t i = 0; i < name.bytes.size(); ++i)
    name.bytes[i] = i < 8 ? 0x7e : static_cast<std::uint8_t>(entropy());
  return name;
}

inline ShmOptions shm_test_options(shm::ArenaStore* arenas = nullptr) {
  ShmOptions options;
  options.name = shm_test_name();
  options.arenas = arenas;
  return options;
}

class ShmFixture final : public LaneFixture {
 public:
  explicit ShmFixture(std::size_t ring_bytes) {
    for (int side = 0; side < 2; ++side) {
      ShmOptions options = shm_test_options(&arenas_[side]);
      options.ring_bytes = ring_bytes;
      auto made = ShmLaneFactory::create(options);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      if (made.ok()) factories_[side] = made.take();
    }
  }
  ShmLaneFactory* factory(int side) override { return factories_[side].get(); }
  shm::ArenaStore& arenas(int side) { return arenas_[side]; }
  Nanos now() const override { return clock_.now(); }
  void step() override {
    std::size_t handled = 0;
    for (auto& factory : factories_) handled += factory->poll(now());
    if (handled != 0) return;
    if (!factories_[0]->prepare_to_sleep() || !factories_[1]->prepare_to_sleep()) return;
    pollfd entries[2] = {{factories_[0]->poll_fd(), POLLIN, 0}, {factories_[1]->poll_fd(), POLLIN, 0}};
    ::poll(entries, 2, 1);
  }
  void step_far() override { factories_[1]->poll(now()); }
  bool takes_unchecked() const override { return true; }
  Address nobody() override {
    Address address = factories_[1]->rails()[0].address;
    address.port = 999;
    return address;
  }

 private:
  SystemClock clock_;
  shm::ArenaStore arenas_[2];
  std::unique_ptr<ShmLaneFactory> factories_[2];
};

}  // namespace canarynet

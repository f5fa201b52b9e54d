// transport/tcp/tcp_fixture.h -- two TCP lane factories in one thread over loopback, in real time; for tests only.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <memory>

#include "base/clock.h"
#include "tests/lane_conformance.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_lane_factory.h"

namespace canarynet {

inline TcpOptions loopback_options(bool ipv6 = false) {
  TcpOptions options;
  Rail rail;
  rail.device = "lo";
  rail.address = Address::parse(ipv6 ? "[::1]:0" : "127.0.0.1").value();
  rail.address.prefix_bits = ipv6 ? 128 : 8;
  options.rails = {rail};
  return options;
}

class TcpFixture final : public LaneFixture {
 public:
  explicit TcpFixture(TcpOptions options) {
    for (auto& factory : factories_) {
      auto made = TcpLaneFactory::create(options);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      if (made.ok()) factory = made.take();
    }
    // Bound and not listening: the port is ours, and a dial is refused.
    Address at = options.rails.at(0).address;
    at.port = 0;
    closed_ = make_stream_socket(at.family).take();
    const SocketAddress native = to_socket_address(at, "lo");
    EXPECT_EQ(::bind(closed_.fd(), native.get(), native.length), 0);
  }
  TcpLaneFactory* factory(int side) override { return factories_[side].get(); }
  Nanos now() const override { return clock_.now(); }
  void step() override {
    std::size_t handled = 0;
    for (auto& factory : factories_) handled += factory->poll(now());
    if (handled != 0) return;
    pollfd entries[2] = {{factories_[0]->poll_fd(), POLLIN, 0}, {factories_[1]->poll_fd(), POLLIN, 0}};
    ::poll(entries, 2, 1);
  }
  void step_far() override {
    if (factories_[1]->poll(now()) != 0) return;
    pollfd entry{factories_[1]->poll_fd(), POLLIN, 0};
    ::poll(&entry, 1, 1);
  }
  Address nobody() override { return local_address(closed_.fd()); }

 private:
  SystemClock clock_;
  std::unique_ptr<TcpLaneFactory> factories_[2];
  Socket closed_;
};

}  // namespace canarynet

// sim/sim_test_util.h -- for tests: one host's acceptor and sink, which records what it is shown, and a step function
// for several of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/sim_fabric.h"

namespace canarynet {

class TestHost final : public LaneSink, public LaneAcceptor {
 public:
  struct Got {
    Nanos at;
    Lane* lane;
    wire::Header header;
    bool intact;
    bool discarded;
  };
  TestHost(SimFabric& fabric, int host) : fabric_(fabric), host_(host) { fabric.factory(host).set_acceptor(this); }

  // Dials `peer` over rail `rail` of both (flat wiring).
  Lane& dial(int rail, const Address& to) {
    auto lane = fabric_.factory(host_).dial(rail, to, *this);
    CANARY_CHECK(lane.ok(), lane.ok() ? "" : lane.status().text().c_str());
    lanes.push_back(lane.take());
    return *lanes.back();
  }
  std::size_t poll() { return fabric_.factory(host_).poll(fabric_.now()); }

  void on_accept(std::unique_ptr<Lane> lane) override {
    lane->set_sink(this);
    lanes.push_back(std::move(lane));
  }
  void on_up(Lane&) override { ++ups; }
  Landing landing_for(Lane&, const wire::Header& header) override {
    ++landings;
    if (landing.kind == Landing::Kind::kSpan) landing.cookie = header.piece;
    return landing;
  }
  void on_frame(Lane& lane, const wire::Header& header, const Arrival& arrival) override {
    got.push_back({fabric_.now(), &lane, header, arrival.intact, arrival.discarded});
    last_payload.assign(arrival.payload.begin(), arrival.payload.end());
  }
  void on_writable(Lane&) override { ++writables; }
  void on_down(Lane&, const Status& reason, bool hangup) override {
    ++downs;
    hangups += hangup ? 1 : 0;
    down_text = reason.text();
    down_at = fabric_.now();
  }

  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<Got> got;
  std::vector<std::byte> last_payload;
  Landing landing{Landing::Kind::kSlot, nullptr, 0};
  int ups = 0, downs = 0, hangups = 0, writables = 0, landings = 0;
  std::string down_text;
  Nanos down_at;

 private:
  SimFabric& fabric_;
  int host_;
};

inline wire::Header piece_header(std::uint32_t piece, const std::byte* payload, std::uint32_t bytes) {
  wire::Header header;
  header.flow = 1;
  header.piece = piece;
  header.payload_bytes = bytes;
  header.payload_crc32 = wire::payload_crc(payload, bytes);
  wire::seal(header);
  return header;
}

// Runs the network up to `until`, polling each host that has something.
inline void run(SimFabric& fabric, const std::vector<TestHost*>& hosts, Nanos until) {
  std::vector<int> ready;
  while (fabric.next_event() <= until) {
    fabric.advance_to(fabric.next_event());
    fabric.take_ready_hosts(&ready);
    for (const int host : ready) hosts[static_cast<std::size_t>(host)]->poll();
  }
  fabric.advance_to(until);
}

}  // namespace canarynet

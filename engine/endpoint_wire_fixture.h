// engine/endpoint_wire_fixture.h -- for tests: lanes whose other end is the test, byte by byte, and the buffers of a
// user that look at what is done to them.
//
// Bytes reach the lane's sink through the frame reader of the TCP lane; what is sent goes through the frame queue of
// the product, where its headers and checksums are looked at. One thread, no sockets, no clock.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/endpoint.h"
#include "transport/frame_queue.h"
#include "transport/tcp/frame_reader.h"

namespace canarynet {

constexpr std::size_t kWireLanes = 40;  // in all
constexpr std::size_t kTextMax = 1200;  // of a status: what the peer says is cut, and it is named by the lanes it has

inline bool printable(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](unsigned char b) { return b < 0x20 || b == 0x7f; });
}

inline void check_text(const Status& status) {
  CANARY_CHECK(printable(status.text()), "control characters in a message for users");
  CANARY_CHECK(status.text().size() <= kTextMax, "a message for users that nobody will read");
}

class WireFactory;

// A lane whose other end is the input.
class WireLane final : public Lane, private FrameHandler {
 public:
  WireLane(WireFactory& factory, int its_rail, bool is_dialled);
  ~WireLane() override;

  bool send(const wire::Header& header, const std::byte* payload, std::uint64_t cookie) override {
    if (!up_) return false;
    if (queue_.push(header, payload, cookie)) return true;
    refused_ = true;
    return false;
  }
  void flush(Nanos) override {
    if (up_ && !stuck) write();
  }
  bool cancel(std::uint64_t cookie) override { return queue_.cancel(cookie); }
  void redirect(std::uint64_t cookie) override { reader_.redirect(cookie); }
  std::size_t queued_bytes() const override { return queue_.bytes(); }
  bool up() const override { return up_; }
  const LaneCounters& counters() const override { return counters_; }
  std::string description() const override {
    return "wire 10.0.0.9:" + std::to_string(4000 + number_) + " on nic" + std::to_string(rail_);
  }
  int rail() const override { return rail_; }

  void come_up() {
    up_ = true;
    if (sink_ != nullptr) sink_->on_up(*this);
  }
  void go_down(bool hangup) {
    if (down_) return;
    down_ = true;
    up_ = false;
    queue_.clear();
    if (sink_ != nullptr) sink_->on_down(*this, Status(CANARY_PEER_DIED, "gone"), hangup);
  }
  // From the factory's poll().
  void work() {
    while (up_ && allowed != 0 && read_ != inbound.size()) {
      iovec iov[FrameReader::kIovMax];
      std::size_t wanted = 0;
      const std::size_t entries = reader_.prepare(iov, &wanted);
      std::size_t given = 0;
      const std::size_t most = std::min({wanted, allowed, inbound.size() - read_});
      for (std::size_t i = 0; i < entries && given < most; ++i) {
        const std::size_t n = std::min(iov[i].iov_len, most - given);
        std::memcpy(iov[i].iov_base, inbound.data() + read_ + given, n);
        given += n;
      }
      read_ += given;
      allowed -= given;
      if (reader_.consume(given, *this, counters_) != nullptr) return go_down(false);
    }
    if (hang_up_due) go_down(true);
    if (!up_ || stuck) return;
    write();
    if (refused_ && sink_ != nullptr) {
      refused_ = false;
      sink_->on_writable(*this);
    }
  }

  const bool dialled;
  bool stuck = false;  // the peer does not read
  bool hang_up_due = false;
  std::vector<std::byte> inbound;
  std::size_t allowed = 0;  // bytes that may be read now
  std::uint32_t sequence = 1;
  std::uint32_t seen = 0;  // last sequence that the endpoint sent
  std::uint64_t answers = 0;

 private:
  Landing landing_for(const wire::Header& h) override {
    return sink_ != nullptr ? sink_->landing_for(*this, h) : Landing{};
  }
  void on_frame(const wire::Header& h, const Arrival& arrival) override {
    if (sink_ != nullptr) sink_->on_frame(*this, h, arrival);
  }
  void write() {
    while (!queue_.empty()) {
      const FrameQueue::Front f = queue_.front();
      wire::Header h;
      std::memcpy(&h, f.header, sizeof h);
      CANARY_CHECK(wire::validate(h) == nullptr, "a header that can't be believed was sent");
      CANARY_CHECK(h.payload_bytes == f.payload_bytes, "a payload of another length was sent");
      CANARY_CHECK(wire::payload_crc(f.payload, f.payload_bytes) == h.payload_crc32,
                   "a payload changed before it left: it was not lent any more");
      if ((h.flags & wire::kSequenced) != 0) seen = h.lane_sequence;
      if (h.kind == wire::Kind::kSignature && h.step == static_cast<std::uint16_t>(wire::MessageFrame::kOpened))
        ++answers;
      queue_.advance(sizeof h + f.payload_bytes);
    }
  }

  WireFactory& factory_;
  const int rail_;
  std::size_t number_ = 0;
  bool up_ = false, down_ = false, refused_ = false;
  FrameQueue queue_{12};
  FrameReader reader_;
  std::size_t read_ = 0;
  LaneCounters counters_;
};

class WireFactory final : public LaneFactory {
 public:
  WireFactory() {
    rails_.push_back({"nic0", Address::ipv4(10, 0, 0, 1, 24, 4000), {}});
    rails_.push_back({"nic1", Address::ipv4(10, 0, 1, 1, 24, 4001), {}});
  }
  std::span<const Rail> rails() const override { return rails_; }
  Result<std::unique_ptr<Lane>> dial(int rail, const Address&, LaneSink& sink) override {
    if (made == kWireLanes) return Status(CANARY_SYSTEM, "no more lanes");
    auto lane = std::make_unique<WireLane>(*this, rail, true);
    lane->set_sink(&sink);
    return std::unique_ptr<Lane>(std::move(lane));
  }
  Result<Address> listen_control(const Address&) override { return Status(CANARY_SYSTEM, "no control lanes"); }
  void set_acceptor(LaneAcceptor* acceptor) override { acceptor_ = acceptor; }
  std::size_t poll(Nanos) override {
    for (auto& lane : accepted_) acceptor_->on_accept(std::move(lane));
    accepted_.clear();
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      WireLane& lane = *lanes[i];
      if (lane.dialled && !lane.up() && !dials_hang) refuse_dials ? lane.go_down(true) : greet(lane);
      lane.work();
    }
    return lanes.size();
  }
  Nanos next_deadline() const override { return Nanos::max(); }
  int poll_fd() const override { return -1; }
  const char* name() const override { return "wire"; }
  std::uint64_t kernel_tx_bytes(int) const override { return 0; }

  WireLane* accept(int rail) {
    if (made == kWireLanes) return nullptr;
    accepted_.push_back(std::make_unique<WireLane>(*this, rail, false));
    accepted_.back()->come_up();
    return accepted_.back().get();
  }
  std::vector<WireLane*> lanes;  // alive
  std::size_t made = 0;
  bool refuse_dials = false, dials_hang = false, dials_greeted = true;
  std::vector<std::byte> discard = std::vector<std::byte>(32 * 1024);

 private:
  // A dialled lane stands, and the peer says hello.
  void greet(WireLane& lane) {
    lane.come_up();
    if (!dials_greeted) return;
    const wire::HelloPayload hello{.purpose = wire::kHelloEndpoint};
    const wire::Header h = wire::greeting(wire::Kind::kHello, &hello, sizeof hello);
    std::vector<std::byte> bytes(sizeof h + sizeof hello);
    std::memcpy(bytes.data(), &h, sizeof h);
    std::memcpy(bytes.data() + sizeof h, &hello, sizeof hello);
    lane.inbound.insert(lane.inbound.begin(), bytes.begin(), bytes.end());
    lane.allowed += bytes.size();
  }
  std::vector<Rail> rails_;
  LaneAcceptor* acceptor_ = nullptr;
  std::vector<std::unique_ptr<WireLane>> accepted_;
};

inline WireLane::WireLane(WireFactory& factory, int its_rail, bool is_dialled)
    : dialled(is_dialled),
      factory_(factory),
      rail_(its_rail),
      number_(factory.made++),
      reader_(wire::kPayloadMax, factory.discard) {
  factory.lanes.push_back(this);
}
inline WireLane::~WireLane() { std::erase(factory_.lanes, this); }

// A send or a receive in a block of its own, between guards.
struct Posted {
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kGuarded{0xA5}, kEmpty{0xEE}, kGivenBack{0xDD};

  Posted(Connection& c, std::size_t bytes, bool its_sends, std::uint32_t its_tag)
      : connection(&c), block(bytes + 2 * kGuard, kGuarded), sends(its_sends), tag(its_tag) {
    std::fill_n(data(), bytes, sends ? std::byte{0x55} : kEmpty);
  }
  port::Command command(Endpoint& at) {
    if (sends) return port::send(connection->id, data(), bytes(), tag, at.ticket_id(ticket));
    return port::receive(connection->id, data(), bytes(), tag, at.ticket_id(ticket));
  }
  std::byte* data() { return block.data() + kGuard; }
  std::size_t bytes() const { return block.size() - 2 * kGuard; }
  bool guarded() const {
    const auto whole = [](std::byte b) { return b == kGuarded; };
    return std::all_of(block.begin(), block.begin() + kGuard, whole) &&
           std::all_of(block.end() - kGuard, block.end(), whole);
  }
  // The ticket is done: looks at what has come, then takes the memory back.
  void look() {
    CANARY_CHECK(guarded(), "bytes around a buffer were written");
    check_text(ticket.status);
    if (!sends && ticket.code == CANARY_OK) {
      const std::size_t came = ticket.bytes;
      CANARY_CHECK(came <= bytes(), "more was received than there is room for");
      CANARY_CHECK(std::all_of(data(), data() + came, [](std::byte b) { return b < std::byte{0x80}; }),
                   "a receive is done and bytes of it have not come");
      CANARY_CHECK(std::all_of(data() + came, data() + bytes(), [](std::byte b) { return b == kEmpty; }),
                   "bytes behind a message were written");
    }
    std::fill_n(data(), bytes(), kGivenBack);
    ticket.reset();
    done = true;
  }
  void look_again() const {
    CANARY_CHECK(!ticket.done(), "a ticket was done twice");
    CANARY_CHECK(guarded(), "bytes around a buffer were written");
    CANARY_CHECK(std::all_of(block.begin() + kGuard, block.end() - kGuard, [](std::byte b) { return b == kGivenBack; }),
                 "a buffer was written after it was given back");
  }

  Connection* connection;
  std::vector<std::byte> block;
  const bool sends;
  const std::uint32_t tag;
  OpTicket ticket;
  bool done = false;
};

}  // namespace canarynet

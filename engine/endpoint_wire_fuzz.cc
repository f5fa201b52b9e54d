// engine/endpoint_wire_fuzz.cc -- an Endpoint against foreign frames: any sequence of hellos, frames of connections and
// of channels, cuts, lost lanes, commands of its user and steps of its clock.
//
// The peer is the input. Its bytes reach the endpoint through the frame reader of the TCP lane, so landings, their
// limits and redirects are those of the product; what the endpoint sends leaves through the product's frame queue and
// is looked at. Checked, beyond what sanitizers see: no byte is written around a buffer, behind a message's end or
// after its ticket was done; what a done receive holds has come whole; a ticket is done once; sends are read only while
// they are lent; text for users has no control characters; once the peer is silent every request ends, and no link,
// connection or request is left.
//
// Input: one byte of set-up (bit 0: a connection was accepted, 1: one was made, 2: both have requests, 3: nothing
// follows, and the peer asks without reading), then operations: a byte (low five bits: which one, high bit: the
// endpoint is not polled after it) and its arguments, see Fuzzer::operation(). Missing bytes are zeroes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "engine/endpoint.h"
#include "engine/endpoint_wire_fixture.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);

namespace canarynet {
namespace {

constexpr std::uint32_t kPiece = 1024;
constexpr std::size_t kOperations = 400;
constexpr std::size_t kRequests = 96;
constexpr std::size_t kConnections = 24;

class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return at_ == bytes_.size(); }
  std::uint8_t u8() { return empty() ? 0 : bytes_[at_++]; }
  std::uint16_t u16() {
    const std::uint8_t low = u8();
    return static_cast<std::uint16_t>(low | u8() << 8);
  }
  std::uint32_t u32() {
    const std::uint32_t low = u16();
    return low | std::uint32_t{u16()} << 16;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

struct User {
  std::unique_ptr<Connection> connection = std::make_unique<Connection>();
  bool closing = false;
  bool aborted = false;
};

class Fuzzer {
 public:
  explicit Fuzzer(Input input) : input_(input), endpoint_(options(), factory_) { listen(); }
  void run() {
    set_up(input_.u8());
    for (std::size_t i = 0; i < kOperations && !input_.empty(); ++i) {
      const std::uint8_t byte = input_.u8();
      operation(byte & 0x1f);
      if ((byte & 0x80) == 0) poll(100_us);
    }
    poll({});
    end();
  }

 private:
  static EndpointOptions options() {
    EndpointOptions o;
    o.settings = Settings::defaults();
    o.settings.piece_bytes = Bytes{kPiece};
    o.settings.eager_bytes = Bytes{8 * 1024};
    o.settings.join_timeout = 1_s;
    o.settings.exchange_limit = 500_ms;
    o.settings.stall_warning = 100_ms;
    o.settings.silence_limit = 1_s;
    o.host_name = "here";
    o.pid = 12;
    o.secret = [random = Random(1)]() mutable { return random.next(); };
    o.channel_records = 32;
    o.channel_copies = 8;
    return o;
  }

  void set_up(std::uint8_t what) {
    if ((what & 1) != 0) {
      say_hello(0);
      say_hello(4);
      wire::OpenPayload open;
      open.listener = listener_.number;
      open.piece_bytes = kPiece;
      open.eager_bytes = 8 * 1024;
      frame(lane(0), wire::MessageFrame::kOpen, flow_of(1, 0), &open, sizeof open);
      poll(100_us);
      poll(100_us);
      accept();
    }
    if ((what & 2) != 0) {
      connect();
      poll(100_us);
      poll(100_us);
      WireLane* dialled = nullptr;
      for (WireLane* l : factory_.lanes) dialled = l->dialled ? l : dialled;
      wire::OpenedPayload opened;
      opened.accepted = 1;
      opened.piece_bytes = kPiece;
      opened.eager_bytes = 8 * 1024;
      frame(dialled, wire::MessageFrame::kOpened, users_.back().connection->end.flow, &opened, sizeof opened);
      poll(100_us);
    }
    if ((what & 8) != 0 && input_.empty()) ask_much();
    if ((what & 4) == 0) return;
    for (std::size_t i = 0; i < users_.size(); ++i) {
      post(i, 100, false, 0);
      post_group(i, 3, 0b10'01'10, 2500);
      post(i, 3000, false, 0);
      post(i, 500, true, 7);
      post(i, 5000, true, 1);
    }
    poll(100_us);
  }

  void operation(unsigned which) {
    static constexpr Nanos kSteps[] = {{},    100_us, 1_ms,   5_ms,   20_ms,  60_ms,
                                       51_ms, 100_ms, 200_ms, 240_ms, 500_ms, 1_s};
    switch (which) {
      case 0:
        return poll(kSteps[input_.u8() % std::size(kSteps)]);
      case 1:
        return say_hello(input_.u8());
      case 2:
        return piece();
      case 3:
        return control();
      case 4:
        return ack();
      case 5:
        return other_frame();
      case 6: {
        WireLane* const l = lane(input_.u8());
        if (l != nullptr) l->allowed += input_.u16();
        return;
      }
      case 7:
        return treat_lane();
      case 8:
        return post(input_.u8(), input_.u16() % 9000, false, input_.u8());
      case 9: {
        const std::uint8_t user = input_.u8();
        const std::uint8_t size = input_.u8();
        return post_group(user, 1 + size % 4, input_.u8(), input_.u16() % 9000);
      }
      case 10: {
        const std::uint8_t user = input_.u8();
        const std::size_t bytes = input_.u16() % 9000;
        return post(user, bytes, true, input_.u8());
      }
      case 11:
        return accept();
      case 12:
        return close(input_.u8());
      case 13:
        return abort(input_.u8());
      case 14:
        return connect();
      case 15:
        return endpoint_work();
      case 16:
        return raw();
      default:
        return;
    }
  }

  // --- the peer ---

  static std::uint32_t flow_of(std::uint32_t generation, std::uint32_t slot) {
    return wire::kConnectionFlow | generation << 14 | slot;
  }
  WireLane* lane(std::size_t i) { return factory_.lanes.empty() ? nullptr : factory_.lanes[i % factory_.lanes.size()]; }
  std::uint32_t some_flow() {
    const std::uint8_t b = input_.u8();
    if (b < 128 && !users_.empty()) return users_[b % users_.size()].connection->end.flow;
    if (b < 240) return flow_of((b >> 3) & 7, b & 7);
    return input_.u32();
  }

  // Seals a frame and hands it to the lane: all of it, or, with bit 6 of `how`, cut after some bytes. how: 0 not
  // sequenced, 1 its header is damaged, 2 its payload is, 3 an odd sequence, 4 no ack-now, 5 another length is told, 6
  // cut.
  void put(WireLane* l, wire::Header h, const void* payload, std::uint8_t how) {
    if (l == nullptr) return;
    const std::size_t bytes = h.payload_bytes;
    h.payload_crc32 = wire::payload_crc(payload, bytes);
    if ((how & 1) == 0) {
      h.flags = wire::kSequenced;
      h.lane_sequence = (how & 8) != 0 ? input_.u32() : l->sequence++;
    }
    if ((how & 16) == 0) h.flags |= wire::kAckNow;
    if ((how & 4) != 0) h.payload_crc32 ^= 1;
    if ((how & 32) != 0) h.payload_bytes = input_.u32() % (wire::kPayloadMax + 2);
    wire::seal(h);
    if ((how & 2) != 0) h.header_crc32 ^= 1;
    const std::size_t before = l->inbound.size();
    l->inbound.resize(before + sizeof h + bytes);
    std::memcpy(l->inbound.data() + before, &h, sizeof h);
    if (bytes != 0) std::memcpy(l->inbound.data() + before + sizeof h, payload, bytes);
    l->allowed += (how & 64) != 0 ? std::min<std::size_t>(sizeof h + input_.u16(), sizeof h + bytes) : sizeof h + bytes;
  }
  void frame(WireLane* l, wire::MessageFrame kind, std::uint32_t flow, const void* payload, std::uint32_t bytes,
             std::uint32_t op = 0, std::uint8_t how = 0) {
    wire::Header h;
    h.kind = wire::Kind::kSignature;
    h.flow = flow;
    h.op = op;
    h.step = static_cast<std::uint16_t>(kind);
    h.payload_bytes = bytes;
    direct(l, &h, how);
    put(l, h, payload, how);
  }
  // With bit 7 of `how`: from the wrong end.
  static void direct(const WireLane* l, wire::Header* h, std::uint8_t how) {
    const bool from_listener = (l != nullptr && l->dialled) != ((how & 128) != 0);
    h->source = from_listener ? 1 : 0;
    h->destination = from_listener ? 0 : 1;
  }

  void say_hello(std::uint8_t b) {
    WireLane* const l = factory_.accept((b >> 2) & 1);
    if (l == nullptr) return;
    static constexpr std::uint32_t kPaths[] = {2, 1, 0, 300};
    wire::HelloPayload hello;
    hello.job = token_ + (b >> 6 == 2 ? 1 : 0);
    hello.engine = b & 3;
    hello.target = 77;
    hello.rail = hello.peer_rail = (b >> 2) & 1;
    hello.lane = (b >> 3) & 1;
    hello.purpose = b >> 6 == 3 ? wire::kHelloChannel : wire::kHelloEndpoint;
    hello.paths = kPaths[(b >> 4) & 3];
    wire::Header h;
    h.kind = wire::Kind::kHello;
    h.payload_bytes = sizeof hello;
    put(l, h, &hello, 1 | 16);
  }

  void piece() {
    WireLane* const l = lane(input_.u8());
    const std::uint8_t how = input_.u8();
    wire::Header h;
    h.kind = wire::Kind::kPiece;
    h.flow = some_flow();
    h.op = input_.u8();
    if (h.op >= 250) h.op = h.op == 255 ? input_.u32() : h.op - 256;
    h.piece = input_.u8();
    if (h.piece == 255) h.piece = input_.u32();
    std::uint64_t length = input_.u16();
    if (length == 0xffff) length = std::uint64_t{input_.u32()} << 8;
    const std::uint8_t tag = input_.u8();
    h.epoch = tag & 15;
    wire::set_message_length(&h, length, tag >> 4);
    const std::uint64_t at = std::uint64_t{h.piece} * kPiece;
    h.payload_bytes = at < length ? static_cast<std::uint32_t>(std::min<std::uint64_t>(length - at, kPiece)) : 0;
    direct(l, &h, how);
    std::array<std::byte, kPiece> payload;
    for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>((h.op * 31 + i) & 0x7f);
    put(l, h, payload.data(), how);
  }

  void control() {
    WireLane* const l = lane(input_.u8());
    const std::uint8_t how = input_.u8();
    const std::uint32_t flow = some_flow();
    const std::uint8_t b = input_.u8();
    std::uint32_t op = b >> 3;
    if (op == 31) op = input_.u32();
    const std::uint8_t size_off = (how & 1) != 0 ? input_.u8() & 1 : 0;
    switch (const auto kind = static_cast<wire::MessageFrame>(b & 7)) {
      case wire::MessageFrame::kOpen: {
        static constexpr std::uint32_t kPieces[] = {kPiece, 128 * 1024, 1000, 0, 1025, 2048, 0xffffffff, 1};
        const std::uint8_t c = input_.u8();
        wire::OpenPayload open;
        open.listener = listener_.number + (c >> 6 == 3 ? 1 : 0);
        open.piece_bytes = kPieces[c & 7];
        open.eager_bytes = (c >> 3 & 3) * 4096u;
        open.pid = c;
        std::memset(open.host, c, c % 65);
        return frame(l, kind, flow, &open, sizeof open - size_off, op, how);
      }
      case wire::MessageFrame::kOpened: {
        static constexpr std::uint32_t kPieces[] = {kPiece, 1025, 1000, 0, 0xffffffff, 1, kPiece, kPiece};
        const std::uint8_t c = input_.u8();
        wire::OpenedPayload opened;
        opened.accepted = c >> 6 != 3;
        opened.piece_bytes = kPieces[c & 7];
        opened.eager_bytes = (c >> 3 & 3) * 4096u;
        std::memset(opened.host, c, c % 65);
        return frame(l, kind, flow, &opened, sizeof opened - size_off, op, how);
      }
      case wire::MessageFrame::kRefuse: {
        wire::RefusePayload refusal;
        refusal.tag = refusal.unknown_tag = input_.u8() & 1;
        refusal.message_bytes = ~std::uint64_t{0};
        return frame(l, kind, flow, &refusal, sizeof refusal - size_off, op, how);
      }
      case wire::MessageFrame::kAbort: {
        std::array<std::byte, wire::kAbortTextBytes + 8> text;
        text.fill(static_cast<std::byte>(input_.u8()));
        return frame(l, kind, flow, text.data(), static_cast<std::uint32_t>(input_.u16() % (text.size() + 1)), op, how);
      }
      default:
        return frame(l, kind, flow, nullptr, 0, op, how);
    }
  }

  bool standing(WireLane* l) const {
    return std::find(factory_.lanes.begin(), factory_.lanes.end(), l) != factory_.lanes.end();
  }

  // Asks for far more connections than it reads answers for, then reads: what was kept for it is bounded. It takes
  // time: of one input only.
  void ask_much() {
    WireLane* const l = lane(0);
    if (l == nullptr || l->dialled) return;
    wire::OpenPayload open;  // of no listener
    for (std::uint32_t i = 0; i < 10'000 && standing(l); ++i) {
      const std::uint32_t sequence = l->sequence;
      frame(l, wire::MessageFrame::kOpen, flow_of(1 + i / 16, i % 16), &open, sizeof open);
      l->sequence = sequence;
      if (i % 500 == 0) poll({});
    }
    poll({});
    std::uint64_t answers = 0;
    for (std::uint64_t before = 1; before != answers && standing(l);) {
      before = answers;
      for (int i = 0; i < 2 && standing(l); ++i) {
        const std::uint64_t had = l->answers;
        wire::AckPayload ack;
        ack.cumulative = l->seen;
        wire::Header h;
        h.kind = wire::Kind::kAck;
        h.payload_bytes = wire::kAckFixedBytes;
        put(l, h, &ack, 1 | 16);
        poll({});
        if (standing(l)) answers += l->answers - had;
      }
    }
    CANARY_CHECK(answers <= 4096 + 16, "answers are kept for a peer that does not read them");
  }

  void ack() {
    WireLane* const l = lane(input_.u8());
    if (l == nullptr) return;
    wire::AckPayload ack;
    ack.cumulative = l->seen;
    const std::uint8_t b = input_.u8();
    if ((b & 1) != 0) ack.cumulative -= input_.u8();
    if ((b & 2) != 0) ack.cumulative += input_.u32();
    ack.words = b >> 5;
    if ((b & 4) != 0) ack.words = input_.u32();
    ack.arrived_ns = b * 0x0123456789abcdefu;
    ack.nic_received = b * 0xfedcba9876543210u;
    for (std::uint32_t i = 0; i < std::min<std::uint32_t>(ack.words, 16); ++i) {
      ack.bitmap[i] = std::uint64_t{input_.u8()} << (input_.u8() % 57);
    }
    wire::Header h;
    h.kind = wire::Kind::kAck;
    h.payload_bytes = wire::kAckFixedBytes + 8 * std::min<std::uint32_t>(ack.words, 16);
    put(l, h, &ack, 1 | 16 | ((b & 8) != 0 ? 4 : 0));
  }

  void other_frame() {
    WireLane* const l = lane(input_.u8());
    const std::uint8_t how = input_.u8();
    wire::Header h;
    h.kind = static_cast<wire::Kind>(input_.u8() % 12);
    std::array<std::byte, 32> payload{};
    if (h.kind == wire::Kind::kHeartbeat || h.kind == wire::Kind::kHello) {
      h.payload_bytes = h.kind == wire::Kind::kHello ? 32 : 24;
      for (std::size_t i = 0; i < 3; ++i) {
        const std::uint64_t word = input_.u8() == 1 ? std::uint64_t{input_.u32()} << 16 : 0;
        std::memcpy(payload.data() + 8 * i, &word, sizeof word);
      }
    }
    h.flow = some_flow();
    put(l, h, payload.data(), how);
  }

  // Any header with a right CRC.
  void raw() {
    WireLane* const l = lane(input_.u8());
    if (l == nullptr) return;
    std::array<std::uint32_t, sizeof(wire::Header) / 4> words{};
    for (std::size_t i = 1; i < words.size(); ++i) words[i] = input_.u16() * (i % 2 == 0 ? 1u : 0x10001u);
    wire::Header h;
    const wire::Header first = h;
    std::memcpy(static_cast<void*>(&h), words.data(), sizeof h);  // not from bytes: g++ asks
    h.magic = first.magic;
    h.version = first.version;
    h.kind = static_cast<wire::Kind>(input_.u8());
    h.payload_bytes %= 100;
    const std::array<std::byte, 100> payload{};
    const std::uint8_t flags = h.flags;
    put(l, h, payload.data(), static_cast<std::uint8_t>(1 | 16 | (flags & 4)));
  }

  void treat_lane() {
    const std::uint8_t b = input_.u8();
    WireLane* const l = lane(b >> 3);
    switch (b & 7) {
      case 0:
        if (l != nullptr) l->hang_up_due = true;
        break;
      case 1:
      case 2:
        if (l != nullptr) l->stuck = !l->stuck;
        break;
      case 3:
        factory_.refuse_dials = !factory_.refuse_dials;
        break;
      case 4:
        factory_.dials_hang = !factory_.dials_hang;
        break;
      case 5:
        factory_.dials_greeted = !factory_.dials_greeted;
        break;
      default:  // a connection that says nothing yet
        factory_.accept(b >> 7);
        break;
    }
  }

  // --- its user ---

  void submit(std::span<const port::Command> unit) {
    if (endpoint_.submit(unit).ok()) return;
    poll(100_us);
    const Status taken = endpoint_.submit(unit);
    CANARY_CHECK(taken.ok(), "a polled endpoint takes a command");
  }
  void submit(const port::Command& c) { submit({&c, 1}); }
  void listen() {
    endpoint_.make_handle(&listener_, theirs_);
    EndpointHandle other = decode_handle(theirs_).value();
    token_ = other.token++;
    theirs_ = {};
    encode(other, theirs_);
    submit(port::listen(listener_.id));
    listening_ = true;
  }
  void connect() {
    if (users_.size() >= kConnections) return;
    User& u = users_.emplace_back();
    endpoint_.add(*u.connection);
    submit(port::connect(u.connection->id, theirs_));
  }
  void accept() {
    Connection* got = nullptr;
    if (users_.size() >= kConnections || !listener_.accepted.pop(&got)) return;
    users_.emplace_back().connection.reset(got);
  }
  User* user(std::size_t i) {
    if (users_.empty()) return nullptr;
    User& u = users_[i % users_.size()];
    return u.closing ? nullptr : &u;
  }
  void close(std::size_t i) {
    User* const u = user(i);
    if (u == nullptr) return;
    u->closing = true;
    submit(port::close(u->connection->id));
  }
  void abort(std::size_t i) {
    User* const u = user(i);
    if (u == nullptr || u->aborted) return;
    u->aborted = true;
    submit(port::abort_connection(u->connection->id, std::string_view(reason_).substr(0, input_.u16() % 700)));
  }
  Posted* add(std::size_t i, std::size_t bytes, bool sends, std::uint32_t tag) {
    User* const u = user(i);
    if (u == nullptr || u->connection->state != Connection::State::kUp || posted_.size() >= kRequests) return nullptr;
    return posted_.emplace_back(std::make_unique<Posted>(*u->connection, bytes, sends, tag)).get();
  }
  void post(std::size_t i, std::size_t bytes, bool sends, std::uint8_t tag) {
    if (Posted* p = add(i, bytes, sends, tag & 15)) submit(p->command(endpoint_));
  }
  // Two bits of `tags` each.
  void post_group(std::size_t i, int size, unsigned tags, std::size_t bytes) {
    Posted* const first = add(i, bytes, false, tags & 3);
    if (first == nullptr) return;
    std::vector<port::Command> unit{first->command(endpoint_)};
    for (int k = 1; k < size; ++k) {
      Posted* const p = add(i, bytes / static_cast<std::size_t>(k), false, (tags >> (2 * k)) & 3);
      if (p == nullptr) break;
      unit.back().more_follows = 1;
      unit.push_back(p->command(endpoint_));
    }
    submit(unit);
  }
  void endpoint_work() {
    const std::uint8_t b = input_.u8();
    switch (b & 7) {
      case 0:
        if (!listening_) {
          if (listener_.closed.exchange(false)) listen();
          return;
        }
        listening_ = false;
        return submit(port::close(listener_.id));
      case 1:  // more than are looked at in one cycle
        for (int i = 0; i < 1100; ++i) ask_stats();
        return;
      case 2:
        if (b < 0x80) return;  // once in a while
        endpoint_.leave(now_);
        left_ = true;
        return;
      default:
        return ask_stats();
    }
  }
  void ask_stats() { submit(port::stats(stats_.data(), sizeof stats_, endpoint_.ticket_id(asked_))); }

  void poll(Nanos step) {
    now_ += step;
    endpoint_.poll(now_);
    CANARY_CHECK(endpoint_.next_deadline() >= Nanos{}, "a deadline before the beginning");
    CANARY_CHECK(endpoint_.links() <= factory_.made + users_.size(), "there are more links than there were lanes");
    for (auto& p : posted_) {
      if (!p->done && p->ticket.done()) p->look();
    }
    for (User& u : users_) {
      if (u.connection->state == Connection::State::kFailed) check_text(u.connection->failure);
      if (!u.connection->closed) continue;
      for (const auto& p : posted_) {
        if (p->connection == u.connection.get()) CANARY_CHECK(p->done, "a closed connection has requests");
      }
    }
    std::erase_if(users_, [](const User& u) { return u.connection->closed.load(); });
  }

  // The peer is silent from here on: everything must end.
  void end() {
    factory_.dials_hang = true;
    // Silence begins anew with a lane that takes a silent one's place, and a step counts as far as nothing was due in
    // it.
    for (int i = 0; i < 20; ++i) poll(240_ms);
    for (const auto& p : posted_) CANARY_CHECK(p->done, "a request outlives its link");
    for (std::size_t i = 0; i < users_.size(); ++i) close(i);
    if (listening_) {
      submit(port::close(listener_.id));
    }
    for (int i = 0; i < 4; ++i) poll(240_ms);
    CANARY_CHECK(users_.empty(), "a connection is not closed");
    CANARY_CHECK(endpoint_.messages_in_flight() == 0, "requests are left");
    CANARY_CHECK(endpoint_.message_counters().sending_bytes == 0, "bytes are left");
    CANARY_CHECK(endpoint_.counters().connections == 0, "connections are left");
    CANARY_CHECK(left_ || endpoint_.links() == 0, "links are left");
    for (const auto& p : posted_) p->look_again();
    for (Connection* c = nullptr; listener_.accepted.pop(&c);) delete c;
  }

  Input input_;
  WireFactory factory_;
  Listener listener_;
  std::array<RailStats, 2> stats_;
  OpTicket asked_;
  const std::string reason_ = std::string(700, 'w');
  std::uint64_t token_ = 0;
  std::array<std::byte, kHandleBytes> theirs_{};  // the handle of an endpoint that is not there
  std::vector<User> users_;
  std::vector<std::unique_ptr<Posted>> posted_;
  Endpoint endpoint_;
  Nanos now_ = 1_s;
  bool listening_ = false;
  bool left_ = false;
};

void check_line(void*, LogLevel, std::string_view line) {
  CANARY_CHECK(printable(line), "control characters in a line of the log");
}

}  // namespace
}  // namespace canarynet

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  using namespace canarynet;
  set_log_sink(check_line, nullptr, LogLevel::kDebug);
  const auto fuzzer = std::make_unique<Fuzzer>(Input({data, bytes}));
  fuzzer->run();
  return 0;
}

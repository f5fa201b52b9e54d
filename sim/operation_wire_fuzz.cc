// sim/operation_wire_fuzz.cc -- engines with a group in the middle of operations against frames that lie.
//
// Two engines of the simulator share a job. The liar is honest itself, but its lanes to the other one carry, beside
// its own frames, those of the input: pieces, signed pieces, signatures, words about tables, acks, heartbeats, aborts,
// voids, probes, of any place in any order. A forged piece carries wrong elements and at least one false thing: its
// CRC, its signature hash, its rank, group, length or place; all else is as the honest engine would send it. Beyond
// what sanitizers see, the fuzzer checks that an operation that is reported as done has the right result; that nothing
// is written around a buffer, or after it was given back; that every operation ends, well or badly, soon after the
// input has; and that users get no control characters.
//
// Input: one byte of set-up (bits 0 to 2: which operation both ranks have called already, 3: only the honest one has,
// 4: only the other one, 5: the liar is the first rank, whose tables decide), then operations: a byte (low four bits:
// which one, high bit: no time passes after it) and its arguments, see Fuzzer::operation(). Missing bytes are zeroes.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "compress/codec_ask.h"
#include "compress/spec.h"
#include "sim/cluster.h"
#include "sim/lent_memory.h"
#include "sim/oracle.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);

namespace canarynet {
namespace {

constexpr std::size_t kOperations = 200;
constexpr std::size_t kCalls = 24;

bool printable(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](unsigned char b) { return b < 0x20 || b == 0x7f; });
}

class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return at_ == bytes_.size(); }
  std::uint8_t u8() { return empty() ? 0 : bytes_[at_++]; }
  std::uint32_t u32() {
    std::uint32_t out = 0;
    for (int i = 0; i < 4; ++i) out |= std::uint32_t{u8()} << (8 * i);
    return out;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

oracle::Shape shape_of(std::uint8_t which) {
  oracle::Shape s;
  s.ranks = 2;
  s.salt = 1 + which / 8;
  switch (which % 8) {
    case 0:
      s.count = 1;
      break;
    case 1:
      s.count = 200;
      break;
    case 2:
      s.count = 3000;
      break;
    case 3:
      s.count = 20'000;
      break;
    case 4:
      s.collective = Collective::kBroadcast;
      s.root = 1;
      s.count = 5000;
      break;
    case 5:
      s.collective = Collective::kAllGather;
      s.count = 700;
      break;
    case 6:
      s.collective = Collective::kReduceScatter;
      s.count = 1500;
      break;
    default:
      s.collective = Collective::kAllToAll;
      s.count = 900;
      break;
  }
  return s;
}

// One rank's call. Its buffers are judged and overwritten as soon as it is done.
class Call {
 public:
  Call(const oracle::Shape& shape, int rank)
      : shape_(shape),
        rank_(rank),
        input_(oracle::input_bytes(shape, rank)),
        output_(oracle::output_bytes(shape, rank)) {
    oracle::fill_input(shape, rank, input_.data());
  }
  void submit(Cluster& cluster) {
    cluster.submit(cluster.world(rank_),
                   {.collective = shape_.collective,
                    .input = input_.size() != 0 ? input_.data() : nullptr,
                    .output = output_.size() != 0 ? output_.data() : nullptr,
                    .count = shape_.count,
                    .type = shape_.type,
                    .redop = shape_.redop,
                    .root = shape_.root},
                   &ticket_);
  }
  bool done() const { return settled_; }
  void look() {
    if (settled_ || !ticket_.done()) return;
    settled_ = true;
    CANARY_CHECK(printable(ticket_.status.text()), "control characters in a message for users");
    if (ticket_.code == CANARY_OK)
      CANARY_CHECK(oracle::compare(shape_, rank_, output_.data()).empty(), "a wrong result was reported as right");
    input_.take_back();
    output_.take_back();
  }
  void look_again() const {
    CANARY_CHECK(input_.trespass().empty() && output_.trespass().empty(), "bytes were written that nobody had lent");
  }

 private:
  const oracle::Shape shape_;
  const int rank_;
  LentMemory input_, output_;
  OpTicket ticket_;
  bool settled_ = false;
};

class Fuzzer final : public PollWatcher {
 public:
  explicit Fuzzer(Input input) : input_(input), cluster_(options()), set_up_(input_.u8()) {
    if ((set_up_ & 32) != 0) std::swap(liar_, victim_);
    cluster_.add_watcher(this);
  }
  ~Fuzzer() override { cluster_.remove_watcher(this); }
  void run() {
    CANARY_CHECK(cluster_.join(), "two honest engines join");
    group_ = cluster_.world(victim_)->group;
    set_up(set_up_);
    for (std::size_t i = 0; i < kOperations && !input_.empty(); ++i) {
      const std::uint8_t byte = input_.u8();
      operation(byte & 15);
      if ((byte & 0x80) == 0) cluster_.run_for(30_us);
    }
    // No rank calls any more: a rank that waits for the other has waited in vain.
    const auto all_done = [this] {
      return std::all_of(calls_.begin(), calls_.end(), [](const auto& c) { return c->done(); });
    };
    CANARY_CHECK(cluster_.run_until(all_done, 30_s), "an operation does not end");
    cluster_.run_for(10_ms);
    for (const auto& call : calls_) call->look_again();
  }

  // PollWatcher
  void polled(int) override {
    for (const auto& call : calls_) call->look();
  }

 private:
  static ClusterOptions options() {
    ClusterOptions o;
    o.wiring = Wiring::flat(2, 2);
    o.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
    o.settings.measured_choice = true;
    o.settings.piece_bytes = Bytes{4096};
    o.settings.eager_bytes = Bytes{16 * 1024};
    o.settings.entry_limit = 500_ms;
    o.settings.exchange_limit = 500_ms;
    o.settings.silence_limit = 1_s;
    o.amend = [](int, EngineOptions* e) {
      e->channel_records = 64;
      e->channel_copies = 16;
    };
    return o;
  }

  void set_up(std::uint8_t what) {
    const std::uint8_t shape = what & 7;
    if ((what & 16) == 0) call(liar_, shape);
    if ((what & 8) == 0) call(victim_, shape);
    cluster_.run_for(10_us);
  }

  void operation(unsigned which) {
    static constexpr Nanos kSteps[] = {10_us, 50_us, 200_us, 1_ms, 5_ms, 50_ms, 200_ms, 600_ms};
    switch (which) {
      case 0:
        return cluster_.run_for(kSteps[input_.u8() % std::size(kSteps)]);
      case 1: {
        const std::uint8_t shape = input_.u8();
        call(liar_, shape);
        return call(victim_, shape);
      }
      case 2:
        return call(victim_, input_.u8());
      case 3:
        return call(liar_, input_.u8());
      case 4:
      case 5:
        return piece(false);
      case 6:
      case 7:
        return piece(true);
      case 8:
        return signature();
      case 9:
        return ack();
      case 10:
        return heartbeat();
      case 11:
        return abort();
      case 12:
        return other();
      case 13:
        return raw();
      case 14:
        return decision();
      default:
        return;
    }
  }

  // --- the callers: both call the same operations in the same order ---

  void call(int rank, std::uint8_t which) {
    std::size_t& called = called_[rank];
    if (called == shapes_.size() && shapes_.size() < kCalls) shapes_.push_back(shape_of(which));
    if (called == shapes_.size()) return;
    calls_.push_back(std::make_unique<Call>(shapes_[called++], rank));
    calls_.back()->submit(cluster_);
  }

  // --- the lies ---

  Channel* channel() { return cluster_.engine(liar_).mux(victim_)->channel(); }

  // Bit 0 of `how` takes a sequence that has not come yet, bit 1 any; bit 2 sends over the other lane.
  void put(wire::Header h, std::vector<std::byte> payload, std::uint8_t how, bool payload_intact = true) {
    Channel* const to = channel();
    if (to == nullptr || to->paths().empty()) return;
    const Path& path = to->paths()[(how >> 2 & 1) % to->paths().size()];
    if (!path.lane || !path.lane->up()) return;
    if ((h.flags & wire::kSequenced) != 0) {
      h.lane_sequence = path.next_sequence - 1;
      if ((how & 1) != 0) h.lane_sequence += input_.u8();
      if ((how & 2) != 0) h.lane_sequence = input_.u32();
    }
    h.payload_bytes = static_cast<std::uint32_t>(payload.size());
    h.payload_crc32 = wire::payload_crc(payload.data(), payload.size()) ^ (payload_intact ? 0 : 1);
    wire::seal(h);
    payloads_.push_back(std::move(payload));  // it may be borrowed
    path.lane->send(h, payloads_.back().data(), ~std::uint64_t{0});
    path.lane->flush(cluster_.now());
  }

  wire::Header header(wire::Kind kind) {
    const GroupMember& victim = *cluster_.world(victim_);
    const std::uint8_t b = input_.u8();
    wire::Header h;
    h.kind = kind;
    h.flow = group_->flow;
    h.epoch = group_->epoch;
    h.op = victim.entered + 2 - (b & 3);
    if ((b & 0xf0) == 0xf0) h.op = input_.u32();
    h.source = liar_;
    h.destination = victim_;
    return h;
  }
  // The caller's arguments in that operation, as far as anybody has called it.
  wire::SignaturePayload signature_of(std::uint32_t op) {
    const GroupMember& liar = *cluster_.world(liar_);
    const GroupMember& known = op <= liar.entered ? liar : *cluster_.world(victim_);
    wire::SignaturePayload s = known.history[op % GroupMember::kHistory];
    s.world_rank = liar_;
    return s;
  }

  void piece(bool is_signed) {
    wire::Header h = header(wire::Kind::kPiece);
    wire::SignaturePayload signature = signature_of(h.op);
    h.signature = signature_hash(signature);
    const std::uint8_t place = input_.u8();
    h.step = place & 3;
    h.piece = place >> 2 & 7;
    static constexpr std::uint32_t kLengths[] = {4, 800, 4096, 2800, 3000, 3600, 0, 6000};
    std::uint32_t bytes = kLengths[place >> 5];
    const std::uint8_t lie = input_.u8();
    const std::uint8_t how = input_.u8();
    h.flags = wire::kSequenced;
    if ((how & 8) != 0) h.flags |= wire::kAckNow;
    if (is_signed) h.flags |= wire::kSigned;
    bool intact = true;
    switch (lie & 15) {
      case 0:
        intact = false;
        break;
      case 1:
        h.signature ^= 1 + input_.u8();
        break;
      case 2:
        h.source = victim_;
        break;
      case 3:
        h.destination = liar_;
        break;
      case 4:
        h.epoch += 1 + input_.u8();
        break;
      case 5:
        h.flow += 1 + input_.u8();
        break;
      case 6:
        bytes = bytes / 4 * 4 + 1;  // no operation here has such elements
        break;
      case 7:
        h.piece += 10'000;
        break;
      case 8:
        h.codec = 1 + input_.u8() % 255;
        break;
      case 9:
        h.flags |= static_cast<std::uint8_t>(0x10u << (input_.u8() & 3));
        break;
      case 10:
        h.flags &= static_cast<std::uint8_t>(~wire::kSequenced);
        break;
      case 11:
        h.source = static_cast<std::uint16_t>(2 + input_.u8());
        break;
      case 12:
        h.step = static_cast<std::uint16_t>(h.step + 1000);
        break;
      case 13:
        h.flow |= wire::kMessageFlow;
        break;
      case 14:
        h.flow |= wire::kConnectionFlow;
        break;
      default:
        h.flags |= wire::kUnchecked;  // a flag for memory lanes only
        break;
    }
    std::vector<std::byte> payload(bytes, std::byte{0x42});
    if (is_signed) {
      if ((how & 16) != 0) spoil(&signature);
      const auto* raw = reinterpret_cast<const std::byte*>(&signature);
      payload.insert(payload.end(), raw, raw + sizeof signature);
      if ((how & 32) != 0) payload.resize(input_.u8());
    }
    put(h, std::move(payload), how, intact);
  }

  // A signature other than the honest one ends the group.
  void spoil(wire::SignaturePayload* signature) {
    auto* const bytes = reinterpret_cast<std::uint8_t*>(signature);
    const std::uint8_t at = input_.u8();
    bytes[at % sizeof *signature] ^= input_.u8();
  }

  void signature() {
    wire::Header h = header(wire::Kind::kSignature);
    h.flags = wire::kSequenced;
    wire::SignaturePayload payload = signature_of(h.op);
    const std::uint8_t how = input_.u8();
    if ((how & 8) != 0) spoil(&payload);
    if ((how & 16) != 0) h.source = input_.u8();
    if ((how & 32) != 0) h.epoch += 1;
    const auto* raw = reinterpret_cast<const std::byte*>(&payload);
    std::vector<std::byte> bytes(raw, raw + sizeof payload);
    if ((how & 64) != 0) bytes.resize(input_.u8());
    put(h, std::move(bytes), how, (how & 128) == 0);
  }

  void ack() {
    Channel* const to = channel();
    if (to == nullptr) return;
    const std::uint8_t how = input_.u8();
    wire::AckPayload ack;
    ack.cumulative = input_.u32();
    if ((how & 8) != 0) ack.cumulative = input_.u8();
    ack.words = how >> 6;
    ack.bitmap[0] = input_.u32();
    ack.arrived_ns = ack.bitmap[0] * 0x0123456789abcdefu;
    ack.nic_received = ack.bitmap[0] * 0xfedcba9876543210u;
    const auto* raw = reinterpret_cast<const std::byte*>(&ack);
    std::vector<std::byte> bytes(raw, raw + wire::kAckFixedBytes + 8 * (how >> 4 & 3));
    wire::Header h;
    h.kind = wire::Kind::kAck;
    put(h, std::move(bytes), how);
  }

  void heartbeat() {
    wire::Header h = header(wire::Kind::kHeartbeat);
    const std::uint8_t how = input_.u8();
    h.source = how >> 6;
    wire::HeartbeatPayload beat;
    beat.sent_ns = input_.u32();
    beat.echo_ns = input_.u32();
    beat.echo_held_ns = std::uint64_t{input_.u8()} << 56;
    const auto* raw = reinterpret_cast<const std::byte*>(&beat);
    std::vector<std::byte> bytes(raw, raw + sizeof beat);
    if ((how & 8) != 0) bytes.resize(input_.u8());
    put(h, std::move(bytes), how);
  }

  void abort() {
    wire::Header h = header(wire::Kind::kAbort);
    const std::uint8_t how = input_.u8();
    h.op = 0;
    if ((how & 8) != 0) h.flow = input_.u8();
    if ((how & 16) != 0) h.epoch += 1;
    wire::AbortPayload fixed;
    fixed.code = input_.u8();
    fixed.rank = input_.u8() - 128;
    fixed.text_bytes = input_.u8();
    const auto* raw = reinterpret_cast<const std::byte*>(&fixed);
    std::vector<std::byte> bytes(raw, raw + sizeof fixed);
    bytes.resize(bytes.size() + ((how & 32) != 0 ? input_.u8() : fixed.text_bytes), std::byte{input_.u8()});
    put(h, std::move(bytes), how);
  }

  // Kinds that say little, and kinds that have no business here.
  void other() {
    static constexpr wire::Kind kKinds[] = {wire::Kind::kVoid,  wire::Kind::kProbe,   wire::Kind::kGoodbye,
                                            wire::Kind::kHello, wire::Kind::kControl, wire::Kind::kVoid};
    const std::uint8_t how = input_.u8();
    wire::Header h = header(kKinds[(how >> 4) % std::size(kKinds)]);
    const bool sequenced = h.kind == wire::Kind::kVoid || h.kind == wire::Kind::kProbe;
    if (sequenced != ((how & 8) != 0)) h.flags = wire::kSequenced;
    put(h, std::vector<std::byte>(input_.u8()), how);
  }

  // Any word about the group's table: from its parent, or from a child, in its tree.
  void decision() {
    wire::Header h = header(wire::Kind::kSignature);
    h.flags = wire::kSequenced;
    h.flow |= wire::kDecisionFlow;
    const std::uint8_t what = input_.u8(), how = input_.u8();
    h.step = what & 7;
    h.signature = 1 + (what >> 3 & 3);
    if ((how & 32) != 0) h.epoch += 1;
    if ((what & 0x80) != 0) h.op += input_.u8();
    const std::size_t entries = what >> 5 & 3;
    std::vector<std::byte> bytes;
    const auto append = [&](auto entry) {
      if ((how & 8) != 0) reinterpret_cast<std::uint8_t*>(&entry)[input_.u8() % sizeof entry] ^= input_.u8();
      const auto* raw = reinterpret_cast<const std::byte*>(&entry);
      bytes.insert(bytes.end(), raw, raw + sizeof entry);
    };
    const bool table = h.step == static_cast<std::uint16_t>(wire::DecisionFrame::kTable);
    if (table) h.op = 0;
    if (table && (how & 16) != 0) {
      for (; h.op < 2; ++h.op) append(static_cast<std::uint16_t>(1 - h.op));  // of two ranks
    }
    for (std::size_t i = 0; i < entries; ++i) {
      if (table) {
        wire::DecisionRow row;
        row.in_order = how >> 6 & 1;
        row.size_class = static_cast<std::uint8_t>(i);
        row.planner = static_cast<std::uint8_t>(input_.u8() % kPlannerCount);
        if ((how & 4) != 0) {  // a row that chooses a codec
          static const std::uint32_t asked[] = {number_asked("auto").value(), number_asked("sketch:8,auto").value(),
                                                number_asked("artopk:star:0.01,auto").value(),
                                                codec_number(parse_codec("int8").value()).value(), 0xffffffff};
          row.asked = asked[input_.u8() % std::size(asked)];
          row.runner_up = static_cast<std::uint8_t>(input_.u8() & 3);
        }
        append(row);
      } else if (h.step == static_cast<std::uint16_t>(wire::DecisionFrame::kReport)) {
        wire::LinkLevel level;
        level.from = static_cast<std::uint16_t>(liar_);
        level.to = static_cast<std::uint16_t>(victim_);
        level.rail = static_cast<std::uint16_t>(i);
        level.serial = input_.u8();
        level.alpha_us = input_.u32();
        level.beta_kbps = input_.u32();
        append(level);
      }
    }
    if ((how & 16) != 0) bytes.resize(input_.u8());
    put(h, std::move(bytes), how, (how & 64) == 0);
  }

  // Any header with a right CRC. Pieces of the group are left to piece(), which knows that they lie.
  void raw() {
    wire::Header h;
    h.kind = static_cast<wire::Kind>(input_.u8() % 12);
    h.flow = input_.u8() < 128 ? group_->flow : input_.u32();
    h.epoch = input_.u32();
    h.op = input_.u32();
    h.signature = input_.u32();
    h.step = input_.u8();
    h.source = input_.u8();
    h.piece = input_.u8();
    h.destination = input_.u8();
    h.flags = input_.u8();
    h.codec = input_.u8() & 1;
    if (h.epoch == group_->epoch) h.epoch += 1;
    const std::uint8_t how = input_.u8();
    put(h, std::vector<std::byte>(input_.u8()), how, (how & 8) == 0);
  }

  Input input_;
  std::uint16_t liar_ = 1, victim_ = 0;
  std::vector<oracle::Shape> shapes_;
  std::deque<std::vector<std::byte>> payloads_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::size_t called_[2] = {0, 0};
  Cluster cluster_;
  const std::uint8_t set_up_;
  const Group* group_ = nullptr;
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

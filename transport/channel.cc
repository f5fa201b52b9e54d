// The sending half: records, placing, acknowledgements, loss. Which lane takes a piece is decided in channel_choice.cc;
// lanes' births and deaths are in channel_paths.cc.
#include "transport/channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/serial.h"
#include "transport/channel_limits.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kNone = 0xffffffff;

}  // namespace

Channel::Channel(ChannelOptions options, LaneFactory& factory, ChannelClient& client)
    : options_(std::move(options)),
      factory_(factory),
      client_(client),
      records_(options_.records),
      copies_(options_.copies) {
  paths_.resize(options_.paths.size());
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    paths_[i].spec = options_.paths[i];
    // Paths that only the peer knows cost nothing where they never come: adopt() gives the others their room.
    if (paths_[i].spec.local_rail >= 0) paths_[i].in_flight.reserve(AckState::kWindow);
  }
  rails_ = options_.rails != nullptr ? options_.rails : &own_rails_;
  for (const Path& path : paths_) rails_->mention(path.spec.local_rail);
  checked_ = options_.check_memory || std::any_of(options_.paths.begin(), options_.paths.end(), [](const PathSpec& p) {
               return p.remote.family != Address::Family::kSharedMemory;
             });
  graveyard_.reserve(64);
}

// Lanes first: until they have ended they may read the pieces that were copied here.
Channel::~Channel() {
  for (Path& path : paths_) end_train(path, false);
  for (const Path& path : paths_) {
    rails_->add_probes(path.spec.local_rail, -static_cast<std::int64_t>(path.probes_unacked));
    rails_->leave(path.spec.local_rail, path.unacked_bytes);
  }
  for (std::uint32_t i = 0; i < records_.made(); ++i) {
    if (records_[i].state != Record::State::kFree) count_urgent_out(records_[i]);
  }
  graveyard_.clear();
  paths_.clear();
}

// --- records ---------------------------------------------------------------------------------------------------------

std::uint32_t Channel::take_record() {
  const std::uint32_t index = records_.take();
  if (index != kNone) records_[index] = Record{};
  return index;
}

void Channel::count_urgent_out(Record& r) {
  if (std::exchange(r.piece.urgent, false)) rails_->add_urgent(-1, now_);
}

// Still linked in its queue: freed when it is popped.
void Channel::make_zombie(Record& r) {
  count_urgent_out(r);
  r.state = Record::State::kZombie;
  r.piece.payload = nullptr;
}

void Channel::free_record(std::uint32_t index) {
  Record& r = records_[index];
  CANARY_CHECK(r.state != Record::State::kFree, "a record is freed once");
  count_urgent_out(r);
  if (r.copy != kNone) copies_.give_back(r.copy);
  r.copy = kNone;
  r.state = Record::State::kFree;
  records_.give_back(index);
}

// Puts it at the tail of its class's queue of frames that wait for a lane.
void Channel::requeue(std::uint32_t index) {
  Record& r = records_[index];
  Waiting& queue = waiting_[static_cast<std::size_t>(r.piece_class)];
  r.state = Record::State::kWaiting;
  r.next = kNone;
  append(queue, index);
  awake_ = true;
}

void Channel::append(Waiting& queue, std::uint32_t index) {
  (queue.tail != kNone ? records_[queue.tail].next : queue.head) = index;
  queue.tail = index;
}

// Takes the frames of `index` off every lane. Rare: only records that were placed twice have any left when they are
// done.
void Channel::take_back(std::uint32_t index) {
  for (Path& path : paths_) {
    if (!path.lane) continue;
    const bool dropped = path.lane->cancel(index);
    for (std::uint32_t s = path.first_unacked; s != path.next_sequence; ++s) {
      Path::InFlight& e = path.entry(s);
      if (e.record != index || e.bytes == 0) continue;
      e.record = kNone;
      if (!dropped) continue;
      // The acknowledgement of what goes in its place proves nothing of the lane.
      path.unacked_bytes -= e.bytes - sizeof(wire::Header);
      rails_->leave(path.spec.local_rail, e.bytes - sizeof(wire::Header));
      e.bytes = sizeof(wire::Header);
      e.departure.prompt = e.departure.dated = false;
      // The sequence must still count at the receiver, or its cumulative ack would stop here.
      fill_hole(path, s);
    }
  }
}

void Channel::fill_hole(Path& path, std::uint32_t sequence) {
  wire::Header h;
  h.kind = wire::Kind::kVoid;
  h.flags = wire::kSequenced;
  h.lane_sequence = sequence;
  send_frame(path, h, nullptr, kNoCookie);
}

void Channel::finish_record(std::uint32_t index) {
  Record& r = records_[index];
  if (r.placements > 1) take_back(index);
  r.placements = 0;
  const std::uint64_t owner = r.piece.owner, cookie = r.piece.cookie;
  if (r.state == Record::State::kWaiting) {
    make_zombie(r);
  } else {
    free_record(index);
  }
  if (cookie != kNoCookie) client_.on_done(*this, owner, cookie);
}

// --- placing ---------------------------------------------------------------------------------------------------------

bool Channel::send_frame(Path& path, wire::Header header, const void* payload, std::uint64_t cookie) {
  if (header.kind != wire::Kind::kPiece && header.kind != wire::Kind::kSignature) {
    header.payload_crc32 = wire::payload_crc(payload, header.payload_bytes);
  }
  wire::seal(header);
  if (!path.lane->send(header, static_cast<const std::byte*>(payload), cookie)) {
    path.blocked = true;
    return false;
  }
  path.last_sent = now_;
  path.needs_flush = true;
  flush_waiting_ = true;
  return true;
}

bool Channel::place(std::uint32_t index, Path& path, bool last_for_now) {
  Record& r = records_[index];
  wire::Header h = r.piece.header;
  // Nobody waits for the ack of small pieces, which were copied: it comes with the next frame this way.
  const bool awaited = r.piece.cookie != kNoCookie;
  const bool small = h.payload_bytes <= kCopiedPieceBytes;
  const bool ack_due = path.ack_wanted || awaited || now_ - path.ack_asked >= limits::kAskInterval;
  const bool ask = (last_for_now && ack_due) || (awaited && small);
  path.ack_wanted = !ask && (path.ack_wanted || awaited);
  if (ask) path.ack_asked = now_;
  h.flags = static_cast<std::uint8_t>((h.flags & wire::kSigned) | wire::kSequenced | (ask ? wire::kAckNow : 0) |
                                      (checked_ ? 0 : wire::kUnchecked));
  h.lane_sequence = path.next_sequence;
  if (!send_frame(path, h, r.piece.payload, index)) return false;
  Path::InFlight& e = note_sent(path, h.payload_bytes, ask || h.payload_bytes >= limits::kAckBytes);
  e.record = index;
  r.state = Record::State::kInFlight;
  ++r.placements;
  if (r.resent != Resend::kNone) {
    ++path.resends[static_cast<std::size_t>(r.resent) - 1];
    r.resent = Resend::kNone;
  }
  if (paths_.size() > 1) earlier(late_after(due(e, path), path));
  return true;
}

// A sequenced frame has been given to the path's lane. `prompt`: its ack comes at once.
Path::InFlight& Channel::note_sent(Path& path, std::uint32_t payload_bytes, bool prompt) {
  const bool idle = path.first_unacked == path.next_sequence;
  if (idle) path.last_progress = now_;
  Path::InFlight& e = path.in_flight.append(path.first_unacked, path.next_sequence);
  e.record = kNone;
  e.probe = e.measures = false;
  e.bytes = payload_bytes + static_cast<std::uint32_t>(sizeof(wire::Header));
  // What measures the link does not count: the estimator of the lane does not hear of its acknowledgement.
  const std::uint64_t others = path.unacked_bytes - path.measuring_bytes;
  const bool limited = path.measuring_bytes != 0 || others < static_cast<std::uint64_t>(options_.piece_bytes.count);
  path.unacked_bytes += e.bytes;
  e.departure =
      path.estimator.depart(now_, others == 0, limited, prompt, Bytes{static_cast<std::int64_t>(path.unacked_bytes)});
  e.departure.nic = rails_->carried(path.spec.local_rail);
  e.departure.queue = rails_->join(path.spec.local_rail, e.bytes, now_);
  ++path.next_sequence;
  earlier(path.last_progress + stall_after(path));
  return e;
}

bool Channel::pull(PieceClass which) {
  if (!client_.has_piece(*this, which)) return false;
  // A piece that nobody waits for must be copied: without a place for the copy nothing is taken (an ack frees one).
  const std::uint32_t copy = copies_.take();
  if (copy == kNone) return false;
  const std::uint32_t index = take_record();
  if (index == kNone || !client_.next_piece(*this, which, &records_[index].piece)) {
    copies_.give_back(copy);
    if (index != kNone) records_.give_back(index);
    return false;
  }
  Record& r = records_[index];
  r.piece_class = which;
  if (r.piece.urgent) rails_->add_urgent(1, now_);
  const std::uint32_t bytes = r.piece.header.payload_bytes;
  CANARY_CHECK(bytes <= wire::kPayloadMax, "piece larger than a frame may be");
  const std::uint64_t cookie = r.piece.cookie;
  const bool copied = bytes <= kCopiedPieceBytes && !r.piece.borrow;
  const std::span<const std::byte> behind = std::exchange(r.piece.behind, {});
  CANARY_CHECK(behind.empty() || (copied && behind.size() <= bytes), "a frame of two parts is copied");
  if (copied) r.piece.cookie = kNoCookie;
  if (copied && bytes != 0) {
    std::byte* const place = copies_[copy].bytes;
    const std::size_t before = bytes - behind.size();
    if (before != 0) std::memcpy(place, r.piece.payload, before);
    if (!behind.empty()) std::memcpy(place + before, behind.data(), behind.size());
    r.piece.payload = place;
    r.copy = copy;
  } else {
    copies_.give_back(copy);
  }
  if (checked_ && !r.piece.has_payload_crc) r.piece.header.payload_crc32 = wire::payload_crc(r.piece.payload, bytes);
  requeue(index);
  if (r.piece.cookie == kNoCookie && cookie != kNoCookie) client_.on_done(*this, r.piece.owner, cookie);
  return true;
}

// The next frame of the class goes to a lane that has room as `room` has it. False: there is none, or no lane has.
bool Channel::place_next(PieceClass which, PieceClass room) {
  Waiting& queue = waiting_[static_cast<std::size_t>(which)];
  for (;;) {
    while (queue.head != kNone && records_[queue.head].state == Record::State::kZombie) {
      const std::uint32_t zombie = queue.head;
      queue.head = records_[zombie].next;
      if (queue.head == kNone) queue.tail = kNone;
      free_record(zombie);
    }
    // One frame of look-ahead tells whether the receiver should ack at once or may wait for more.
    while (!queue.dry && (queue.head == kNone || records_[queue.head].next == kNone)) queue.dry = !pull(which);
    const std::uint32_t index = queue.head;
    if (index == kNone) return false;
    Record& r = records_[index];
    if (r.state == Record::State::kZombie) continue;
    Path* path = choose_path(r.piece.header.payload_bytes, r.piece.rail, room);
    if (path == nullptr) return false;
    const std::uint32_t next = r.next;
    if (!place(index, *path, next == kNone)) continue;  // blocked: the other lanes may have room
    path->chosen_at = now_;
    rails_->trains().note_traffic(path->spec.local_rail, now_);
    placed_bytes_ += r.piece.header.payload_bytes;
    const std::int64_t bytes = r.piece.header.payload_bytes + std::int64_t{sizeof(wire::Header)};
    first_lead_ += which == PieceClass::kFirst ? bytes : -bytes * limits::kFirstToBulk;
    first_lead_ = std::clamp<std::int64_t>(first_lead_, 0, limits::kFirstLead);
    r.next = kNone;
    queue.head = next;
    if (next == kNone) queue.tail = kNone;
    return true;
  }
}

std::size_t Channel::pump(Nanos now) {
  const SoleUser::Use use(user_);
  now_ = now;
  std::size_t work = 0;
  graveyard_.clear();
  if (awake_) {
    wake();
    // First pieces that became ready meanwhile go before the next piece of bulk, unless bulk has not had its part.
    const auto place_one = [this] {
      using enum PieceClass;
      if (first_lead_ == limits::kFirstLead && place_next(kBulk, kFirst)) return true;
      return place_next(kFirst, kFirst) || place_next(kBulk, kBulk);
    };
    while (place_one()) ++work;
    awake_ = false;
    if (paths_.size() > 1) {
      const bool idle =
          std::all_of(waiting_.begin(), waiting_.end(), [](const Waiting& w) { return w.dry && w.head == kNone; });
      if (idle) hedge(now);
      try_lanes();
    }
  }
  if (rails_->trains().running()) {
    for (Path& path : paths_) go_on_with_train(path);
  }
  if (acks_waiting_) {
    acks_waiting_ = false;
    for (Path& path : paths_) {
      if (path.ack_pending_frames == 0 || !path.lane || path.blocked) continue;
      if (path.ack_now || now >= path.ack_due || (path.needs_flush && is_worth_a_ride(path))) send_ack(path);
    }
  }
  if (flush_waiting_) {
    flush_waiting_ = false;
    for (Path& path : paths_) {
      if (!path.needs_flush || !path.lane) continue;
      path.needs_flush = false;
      path.lane->flush(now);
    }
  }
  return work;
}

// An ack in the same write as other frames wakes nobody, but costs both ends its instructions: that of a few copies,
// which nobody waits for, stays until it would soon have to go by itself.
bool Channel::is_worth_a_ride(const Path& path) const {
  return path.ack_pending_frames >= limits::kAckFramesInCompany || path.ack_pending_bytes > kCopiedPieceBytes / 2 ||
         now_ >= path.ack_due - limits::kAckDelay / 2;
}

void Channel::flush_acks(Nanos now, bool all) {
  bool any = false;
  for (Path& path : paths_) {
    if (all ? path.ack_pending_frames == 0 : path.ack_pending_bytes <= kCopiedPieceBytes) continue;
    path.ack_now = any = true;
  }
  if (!any) return;
  acks_waiting_ = true;
  pump(now);
}

// --- acknowledgements ------------------------------------------------------------------------------------------------

void Channel::send_ack(Path& path) {
  wire::AckPayload ack;
  wire::Header h;
  h.kind = wire::Kind::kAck;
  h.payload_bytes = path.received.encode(&ack);
  ack.arrived_ns = static_cast<std::uint64_t>(path.arrived_at.count);
  ack.nic_received = static_cast<std::uint64_t>(path.nic_received.count);
  if (!send_frame(path, h, &ack, kNoCookie)) return;  // on_writable tries again
  path.ack_pending_frames = 0;
  path.ack_pending_bytes = 0;
  path.ack_now = false;
  path.ack_due = Nanos::max();
}

// What one acknowledgement covers: all of it, and what the estimator of the lane hears of.
struct Channel::Acked {
  struct Part {
    std::uint64_t bytes = 0;
    PathEstimator::Departure last;  // the youngest
  };
  Part all, pieces;
  Acked() { all.last.sent = pieces.last.sent = Nanos{-1}; }
};

void Channel::entry_acked(Path& path, std::uint32_t sequence, Acked* acked) {
  Path::InFlight& e = path.entry(sequence);
  if (e.bytes == 0) return;
  for (Acked::Part* part : {&acked->all, &acked->pieces}) {
    if (e.measures && part == &acked->pieces) continue;
    part->bytes += e.bytes;
    if (e.departure.sent >= part->last.sent) part->last = e.departure;
  }
  CANARY_CHECK(e.bytes <= path.unacked_bytes, "more is acknowledged than is in flight");
  path.unacked_bytes -= e.bytes;
  rails_->leave(path.spec.local_rail, e.bytes);
  if (e.probe) forget_probe(path, e);
  e.bytes = 0;
  const std::uint32_t record = e.record;
  e.record = kNone;
  if (record != kNone) finish_record(record);
}

void Channel::forget_probe(Path& path, Path::InFlight& e) {
  e.probe = false;
  if (std::exchange(e.measures, false)) path.measuring_bytes -= e.bytes;
  CANARY_CHECK(e.bytes <= path.probes_unacked, "a probe is forgotten twice");
  path.probes_unacked -= e.bytes;
  rails_->add_probes(path.spec.local_rail, -std::int64_t{e.bytes});
}

void Channel::handle_ack(Path& path, const wire::AckPayload& ack) {
  // It acknowledges from none to all of what is in flight. Any other number is older than an ack that was heard
  // already, or was never sent: ignoring it leaves everything unacked, which is safe, and no loop here runs further
  // than the window.
  const std::uint32_t acked = ack.cumulative + 1 - path.first_unacked;
  if (acked > path.next_sequence - path.first_unacked || ack.words > wire::kAckWordsMax) return;
  Acked now;
  const std::uint32_t behind = ack.cumulative + 1;
  for (std::uint32_t s = path.first_unacked; s != behind; ++s) entry_acked(path, s, &now);
  std::uint32_t highest = ack.cumulative;
  for (std::uint32_t w = 0; w < ack.words; ++w) {
    for (std::uint64_t bits = ack.bitmap[w]; bits != 0; bits &= bits - 1) {
      const std::uint32_t s = ack.cumulative + 1 + 64 * w + static_cast<std::uint32_t>(__builtin_ctzll(bits));
      if (later(path.first_unacked, s) || !later(path.next_sequence, s)) continue;
      entry_acked(path, s, &now);
      if (later(s, highest)) highest = s;
    }
  }
  while (path.first_unacked != path.next_sequence && path.entry(path.first_unacked).bytes == 0) ++path.first_unacked;
  // Holes well behind what arrived are losses (a payload that failed its CRC, a simulated drop).
  for (std::uint32_t s = path.first_unacked; later(highest, s + limits::kReorderFrames); ++s) {
    if (path.entry(s).bytes != 0) declare_lost(path, s);
  }
  if (now.all.bytes == 0) return;
  heard_by_peer_ = std::max(heard_by_peer_, now.all.last.sent);
  rails_->add_acked(path.spec.local_rail, now.all.bytes, now_);
  const PathEstimator::NicBytes nic = rails_->carried(path.spec.local_rail);
  if (now.pieces.bytes != 0) {
    now.pieces.last.dated &= now.pieces.last.sent == now.all.last.sent;
    const Nanos queued = path.link.queued(now_, now.pieces.last, ack.arrived_ns);
    path.estimator.on_acked(now_, now.pieces.bytes, now.pieces.last, path.window_was_full, nic);
    path.best.note(now_, path.estimator.rate());
    path.window_was_full = false;
    path.link.on_acked(now_, now.pieces.bytes, now.pieces.last, {queued, ack.nic_received, nic});
  } else {
    path.link.on_round_trip(now_, now.all.last, nic);
  }
  if (rails_->trains().is(&path)) {
    // An ack may have stood behind others: when its frames came tells the rate, not when it came itself.
    const Nanos came = path.link.queued(now_, now.all.last, ack.arrived_ns) + path.link.alpha() * 2;
    rails_->trains().note_acked(now.all.last.sent + came, now.all.bytes - now.pieces.bytes, now.all.last.sent);
  }
  watch_link(path);
  if (now.pieces.bytes != 0) beat_in_pause(path);
  if (const BytesPerSec capacity = path.estimator.capacity(); capacity.count != 0) {
    rails_->note_capacity(path.spec.local_rail, std::max(capacity, limits::kSlowestRate));
  }
  if (path.estimator.was_busy()) rails_->note(path.spec.local_rail, path.estimator.rate());
  path.last_progress = now_;
  end_stall(path);
  path.stalls = 0;
  awake_ = true;
}

void Channel::declare_lost(Path& path, std::uint32_t sequence) {
  Path::InFlight& e = path.entry(sequence);
  // Twice within a round trip says nothing new.
  if (now_ - e.departure.sent < path.estimator.rtt_min() / 2) return;
  e.departure.sent = now_;
  e.departure.nic = rails_->carried(path.spec.local_rail);
  e.departure.prompt = e.departure.dated = false;  // the ack may be the first frame's: it tells no round trip
  path.link.note_lost();
  if (e.probe) forget_probe(path, e);
  const std::uint32_t record = e.record;
  e.record = kNone;
  // Should the frame still sit in the lane's queue, its payload must not be referenced once another copy is acked.
  if (record != kNone) path.lane->cancel(record);
  fill_hole(path, sequence);
  if (record == kNone) return;
  Record& r = records_[record];
  --r.placements;
  r.resent = Resend::kLost;
  if (r.placements == 0 && r.state == Record::State::kInFlight) requeue(record);
}

// --- taking back -----------------------------------------------------------------------------------------------------

void Channel::cancel_flow(std::uint32_t flow) {
  for (Path& path : paths_) {
    if (path.landing && path.landing_header.flow == flow && path.lane) {
      path.lane->redirect(path.landing_cookie);
      path.landing = false;
    }
  }
  for (std::uint32_t i = 0; i < records_.made(); ++i) {
    Record& r = records_[i];
    if (r.state == Record::State::kFree || r.state == Record::State::kZombie || r.piece.header.flow != flow) continue;
    if (r.placements > 0) take_back(i);
    r.placements = 0;
    if (r.state == Record::State::kWaiting) {
      make_zombie(r);
    } else {
      free_record(i);
    }
  }
  awake_ = true;
}

void Channel::for_each_unacknowledged(const std::function<void(const wire::Header&)>& visit) const {
  for (std::uint32_t i = 0; i < records_.made(); ++i) {
    const Record& r = records_[i];
    if (r.state != Record::State::kFree && r.state != Record::State::kZombie) visit(r.piece.header);
  }
}

// The peer left on purpose, so all it had to get has arrived: what is unacked lacks only the ack.
void Channel::peer_departed() {
  if (peer_left_) return;
  peer_left_ = true;
  for (std::uint32_t i = 0; i < records_.made(); ++i) {
    Record& r = records_[i];
    if (r.state == Record::State::kFree || r.state == Record::State::kZombie) continue;
    if (r.placements > 0) take_back(i);
    r.placements = 0;
    finish_record(i);
  }
  awake_ = true;  // the client may count as sent what it kept back
}

void Channel::redirect_landing(const wire::Header& piece) {
  for (Path& path : paths_) {
    if (path.landing && path.lane && same_piece(path.landing_header, piece)) redirect_landing(path);
  }
}

void Channel::redirect_landing(const std::byte* place) {
  for (Path& path : paths_) {
    if (path.landing && path.lane && path.landing_place == place) redirect_landing(path);
  }
}

void Channel::redirect_landing(Path& path) {
  path.lane->redirect(path.landing_cookie);
  path.landing = false;
  // Nothing writes there any more.
  client_.on_landing_lost(*this, path.landing_header, path.landing_owner, path.landing_cookie);
}

}  // namespace canarynet

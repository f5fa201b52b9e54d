// transport/probe_train.h -- a train of probes over an idle link: who may send one, how long it is, and what it proves.
//
// What: a link that carries nothing shows no rate. Now and then one path of a process sends a train: probe frames in a
// row, which the peer acknowledges one by one. How far apart they arrived, of which the acknowledgements tell, is the
// rate of the link. A shaper (token bucket) lets the first bytes after a pause pass at the speed of the wire, so
// - a full train goes on beyond PathEstimator::kBurstBytes, the largest bucket that is expected, and only what lies
//   beyond it is a rate;
// - a short train, which is all that a slow link's share pays for, proves no rate. Its end can confirm the one that is
//   known, it shows that the link is slower (a bucket makes it faster, never slower), and it may differ from the end of
//   the last short train. A full one follows then. A bucket larger than a short train hides a rise from it.
// A link may hold more than anybody knows. The window of a full train doubles for as long as the bucket is used up and
// what leaves last meets no queue, and the train becomes as much longer.
// Limits: trains take a hundredth of a rail's time, counted at the rate that they find, with at most ten seconds' worth
// in a row and as much in advance; one train at a time per process, kGap after another, so that the cost does not grow
// with the number of peers. A train is stopped when its rail carries anything else.
// Units: ns, bytes. Plain data, one owner thread. Allocates with the first mention of a rail and the first train.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/units.h"
#include "transport/path_estimator.h"
#include "transport/train_meter.h"

namespace canarynet {

// What a path remembers from one train to the next.
struct TrainMemory {
  Nanos due;                     // no train before
  bool wanted = false;           // the last one contradicts what is known: a full one may go on credit
  BytesPerSec tail;              // of the last short train
  std::uint64_t tail_bytes = 0;  // its length
};

// The trains of a process.
class ProbeTrains {
 public:
  static constexpr std::int64_t kShare = 100;  // one part in so many of a rail's time
  static constexpr Nanos kSaved = 10_s;        // whose share may be spent at once, or in advance
  static constexpr Nanos kGap = 500_ms;
  static constexpr Nanos kQuiet = 500_ms;    // a rail that carried anything within so long is not idle
  static constexpr Nanos kSettled = 2_s;     // nor is a path that came up within so long
  static constexpr Nanos kPeriod = 4_s;      // what is known of an idle path is confirmed so often
  static constexpr Nanos kConfirm = 450_ms;  // or contradicted a second time
  static constexpr Nanos kLongest = 1_s;
  static constexpr std::uint64_t kBeyondMin = 128 * 1024;
  static constexpr std::uint64_t kBeyondMax = 1280 * 1024;
  static constexpr Nanos kBeyond = 10_ms;  // of the link's time, of which late wake-ups are a small part
  static constexpr std::uint64_t kShortMin = 64 * 1024;
  static constexpr std::uint64_t kShortMax = 128 * 1024;
  static constexpr Nanos kShort = 80_ms;
  static constexpr std::uint64_t kBurst = PathEstimator::kBurstBytes;
  static constexpr std::uint64_t kFull = kBurst + kBeyondMax;  // it ends when enough is seen, at last here
  // Beyond that it goes on for so many windows, with which a link that holds more is filled: a little more than what a
  // window that doubles each time sends before the link is full, and once more that.
  static constexpr std::uint64_t kMoreWindows = 4;
  static constexpr std::uint64_t kWindowMost = 16 << 20;
  static constexpr Nanos kNoQueue = 5_ms;    // who waited for less found a link that may hold more
  static constexpr Nanos kLookEvery = 1_ms;  // whether enough was seen

  void note_traffic(int rail, Nanos now) { at(rail).busy = now; }
  // Probes of a peer came over the rail: two trains at once would find each other.
  void note_probe(int rail, Nanos now) { at(rail).heard = now; }

  // How long a train may be now on a path of this rail whose rate is `beta` (0: not known); 0: none may go.
  std::uint64_t length(int rail, Nanos now, BytesPerSec beta, const TrainMemory& path) const {
    const Rail r = known(rail) ? rails_[static_cast<std::size_t>(rail)] : Rail{};
    if (sender_ != nullptr || now < next_ || now < path.due) return 0;
    if (now - r.busy < kQuiet || now - r.heard < kQuiet) return 0;
    const Nanos saved = std::min(now - r.paid, kSaved) / kShare;
    if (beta.count == 0) return saved.count > 0 ? kFull : 0;
    if (path.wanted) return saved > Nanos{} - kSaved / kShare ? kFull : 0;
    const auto pays_for = [&](std::uint64_t bytes) {
      return beta.time_for(Bytes{static_cast<std::int64_t>(bytes)}) <= saved;
    };
    if (pays_for(kBurst + part(beta, kBeyond, kBeyondMin, kBeyondMax))) return kFull;
    const std::uint64_t bytes = part(beta, kShort, kShortMin, kShortMax);
    return pays_for(bytes) ? bytes : 0;
  }
  // `sender` is only compared.
  void begin(const void* sender, int rail, Nanos now, std::uint64_t length, Nanos round_trip) {
    sender_ = sender;
    rail_ = rail;
    began_ = now;
    length_ = length;
    sent_ = acked_ = window_ = 0;
    full_since_ = Nanos::max();
    round_trip_ = round_trip;
    looked_at_ = now;
    meter_.begin(round_trip);
  }
  bool is(const void* sender) const { return sender != nullptr && sender_ == sender; }
  bool running() const { return sender_ != nullptr; }
  Nanos began() const { return began_; }
  std::uint64_t length() const { return length_; }
  std::uint64_t left() const { return most() - std::min(sent_, most()); }
  std::uint64_t acked() const { return acked_; }
  // What it has found that the link holds at least; 0: nothing yet.
  std::uint64_t window() const { return window_; }
  // A full one ends as soon as enough came beyond the bucket.
  bool is_whole(Nanos now) {
    if (acked_ >= most()) return true;
    if (acked_ < kBurst + kBeyondMin || now - looked_at_ < kLookEvery) return false;
    looked_at_ = now;
    const TrainMeter::Found found = meter_.beyond(kBurst);
    return found.bytes >= kBeyondMax || (found.bytes >= kBeyondMin && found.time >= kBeyond);
  }
  // Something else goes over its rail.
  bool is_in_the_way() const { return known(rail_) && rails_[static_cast<std::size_t>(rail_)].busy >= began_; }
  bool meets_another() const { return known(rail_) && rails_[static_cast<std::size_t>(rail_)].heard >= began_; }
  void note_sent(std::uint64_t bytes) { sent_ += bytes; }
  // No more may go before some of the `window` bytes that are under way are acknowledged.
  void note_full(Nanos now, std::uint64_t window) {
    if (full_since_ != Nanos::max()) return;
    full_since_ = now;
    full_window_ = window;
  }
  void note_acked(Nanos now, std::uint64_t bytes, Nanos sent) {
    acked_ += bytes;
    meter_.note(now, acked_, sent);
    // What left after a whole window met no queue: the link carries more than that in a round trip. It was no bucket
    // that let it pass, since the bucket had been used up.
    if (acked_ < kBurst || full_since_ > sent || now - sent - round_trip_ >= kNoQueue) return;
    window_ = std::min(full_window_ * 2, kWindowMost);
    full_since_ = Nanos::max();
  }
  // It is over, whole or not. `found`: the link's rate as far as anything is known of it. What was sent is paid for.
  void end(Nanos now, BytesPerSec found) {
    Rail& r = at(rail_);
    const Nanos took = found.count == 0 ? now - began_ : found.time_for(Bytes{static_cast<std::int64_t>(sent_)});
    r.paid = std::max(r.paid, now - kSaved) + std::min(took, kLongest * 4) * kShare;
    sender_ = nullptr;
    // Not in step with other processes that probe the same peer.
    mix_ = mix_ * 6364136223846793005ULL + static_cast<std::uint64_t>(now.count) + 1442695040888963407ULL;
    next_ = now + kGap + Nanos{static_cast<std::int64_t>((mix_ >> 33) % static_cast<std::uint64_t>((kGap / 4).count))};
  }
  const TrainMeter& meter() const { return meter_; }

 private:
  struct Rail {
    Nanos busy{-(3600_s).count};
    Nanos heard{-(3600_s).count};
    Nanos paid{-(3600_s).count};  // its share of the time before is spent
  };
  std::uint64_t most() const { return length_ < kFull ? length_ : length_ + kMoreWindows * window_; }
  static std::uint64_t part(BytesPerSec rate, Nanos span, std::uint64_t least, std::uint64_t most) {
    return std::clamp(static_cast<std::uint64_t>(rate.bytes_in(span).count), least, most);
  }
  bool known(int rail) const { return rail >= 0 && static_cast<std::size_t>(rail) < rails_.size(); }
  Rail& at(int rail) {
    const auto i = static_cast<std::size_t>(std::max(rail, 0));
    if (i >= rails_.size()) rails_.resize(i + 1);
    return rails_[i];
  }

  std::vector<Rail> rails_;
  const void* sender_ = nullptr;  // of the train that is under way
  int rail_ = 0;
  Nanos began_, next_, looked_at_, round_trip_;
  std::uint64_t length_ = 0, sent_ = 0, acked_ = 0;
  std::uint64_t window_ = 0, full_window_ = 0;
  Nanos full_since_ = Nanos::max();  // that window is under way
  TrainMeter meter_;
  std::uint64_t mix_ = 0;
};

}  // namespace canarynet

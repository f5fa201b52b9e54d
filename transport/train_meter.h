// transport/train_meter.h -- the rate that the acknowledgements of one train of probes prove (transport/probe_train.h).
//
// What: a shaper lets as much as its bucket holds pass at the speed of the wire, and the bucket fills again while
// nothing comes: before the train, and between the flights in which TCP sends until its window is as large as the link.
// So bytes count only while the link was busy and the largest bucket that is expected was used up before. The rate is
// the better half of the longest such run, since a late wake-up stretches one half only.
// Units: ns, bytes. One owner thread. Allocates with the first train.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/units.h"

namespace canarynet {

class TrainMeter {
 public:
  static constexpr std::size_t kSamplesMax = 512;

  // What came while the link was busy and its bucket empty.
  struct Found {
    BytesPerSec rate;  // 0: it is not known
    std::uint64_t bytes = 0;
    Nanos time;
  };

  void begin(Nanos round_trip) {
    samples_.resize(kSamplesMax);  // once: most processes have one, but each channel by itself would pay for its own
    count_ = 0;
    apart_ = kApart;
    round_trip_ = round_trip;
  }
  // So many bytes of it were acknowledged by now, in all; the youngest of them left at `sent`.
  void note(Nanos now, std::uint64_t bytes, Nanos sent) {
    Sample next{now, bytes, false};
    if (count_ != 0) {
      Sample& last = samples_[count_ - 1];
      if (last.at == now) {
        last.bytes = bytes;
        return;
      }
      // The link was done with what came before, and waited for this.
      const Nanos idle = sent - (last.at - round_trip_);
      next.dense = idle <= (now - last.at) / 4;
      if (count_ > 1 && next.dense && now - samples_[count_ - 2].at < apart_) {
        last = {now, bytes, last.dense};
        return;
      }
    }
    if (count_ == kSamplesMax) thin_out();
    samples_[count_++] = next;
  }
  // The bucket holds no more than `bucket` bytes. It fills again as fast as the link is at most: that is found first
  // without it.
  Found beyond(std::uint64_t bucket) const {
    const Found most = longest_run(bucket, {});
    return most.rate.count == 0 ? most : longest_run(bucket, most.rate);
  }
  // Of what came after the first `from` bytes, a bucket or not.
  BytesPerSec rate_after(std::uint64_t from) const { return longest_run(from, {}).rate; }

 private:
  static constexpr Nanos kApart = 100_us;  // acknowledgements closer than that are looked at together
  static constexpr Nanos kSpanMin = 2_ms;  // late wake-ups are a small part of it
  struct Sample {
    Nanos at;
    std::uint64_t bytes = 0;
    bool dense = false;  // the link was busy since the one before, as far as what left tells
  };

  Found longest_run(std::uint64_t bucket, BytesPerSec refill) const {
    if (count_ == 0) return {};
    std::uint64_t credit = bucket - std::min(bucket, samples_[0].bytes);
    std::size_t first = 0, longest_first = 0, longest_last = 0;
    for (std::size_t k = 1; k < count_; ++k) {
      const std::uint64_t moved = samples_[k].bytes - samples_[k - 1].bytes;
      const Nanos span = samples_[k].at - samples_[k - 1].at;
      const auto filled = static_cast<std::uint64_t>(refill.bytes_in(span).count);
      // TCP pauses while its window grows, although the bytes have left here.
      const bool idle = !samples_[k].dense || (span > kSpanMin && moved < filled / 4);
      if (idle) credit = std::min(bucket, credit + filled);
      if (idle || credit != 0) {
        credit -= std::min(credit, moved);
        first = k;
      } else if (samples_[k].bytes - samples_[first].bytes >
                 samples_[longest_last].bytes - samples_[longest_first].bytes) {
        longest_first = first;
        longest_last = k;
      }
    }
    const Sample &a = samples_[longest_first], &b = samples_[longest_last];
    return {better_half(longest_first, longest_last), b.bytes - a.bytes, b.at - a.at};
  }
  BytesPerSec better_half(std::size_t first, std::size_t last) const {
    BytesPerSec best{};
    const std::uint64_t half = (samples_[last].bytes - samples_[first].bytes) / 2;
    for (std::size_t end = first; first < last; ++first) {
      const auto enough = [&] {
        return samples_[end].bytes - samples_[first].bytes >= half && samples_[end].at - samples_[first].at >= kSpanMin;
      };
      while (end < last && !enough()) ++end;
      if (!enough()) break;
      const std::uint64_t bytes = samples_[end].bytes - samples_[first].bytes;
      best = std::max(best,
                      BytesPerSec::of(Bytes{static_cast<std::int64_t>(bytes)}, samples_[end].at - samples_[first].at));
    }
    return best;
  }
  // A long train over a slow link has more of them.
  void thin_out() {
    for (std::size_t k = 1; k < count_ / 2; ++k)
      samples_[k] = {samples_[2 * k].at, samples_[2 * k].bytes, samples_[2 * k].dense && samples_[2 * k - 1].dense};
    count_ /= 2;
    apart_ = apart_ * 2;
  }

  std::vector<Sample> samples_;  // empty before the first train
  std::size_t count_ = 0;
  Nanos apart_, round_trip_;
};

}  // namespace canarynet

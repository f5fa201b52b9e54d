// transport/train_meter.h -- the rate that the acknowledgements of one train of probes prove (transport/probe_train.h).
//
// What: a shaper lets as much as its bucket holds pass at the speed of the wire, and the bucket fills again while
// nothing comes: before the train, and between the flights in which TCP sends until its window is as large as the link.
// So bytes count only while the link was busy and the largest bucket that is expected was used up before. The rate is
// that of the longest such run, or of the better one of its halves, since a late wake-up stretches one only.
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
  // So many bytes of it had come by `now`, in all; the youngest of them left at `sent`.
  void note(Nanos now, std::uint64_t bytes, Nanos sent) {
    // The peer says when frames came, and may say anything.
    if (count_ != 0) now = std::max(now, samples_[count_ - 1].at);
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
  static constexpr Nanos kApart = 100_us;           // acknowledgements closer than that are looked at together
  static constexpr Nanos kSpanMin = 2_ms;           // late wake-ups are a small part of it
  static constexpr std::int64_t kHalvesDiffer = 8;  // by less than this part they are the same
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
    return {rate_of(longest_first, longest_last), b.bytes - a.bytes, b.at - a.at};
  }
  // Of a run: frames come in lumps, as large as a sender's segmentation makes them, so where it begins and ends within
  // one must matter little. A late wake-up stretches one half only.
  BytesPerSec rate_of(std::size_t first, std::size_t last) const {
    const std::uint64_t half = (samples_[first].bytes + samples_[last].bytes) / 2;
    std::size_t middle = first;
    while (middle < last && samples_[middle].bytes < half) ++middle;
    const BytesPerSec whole = fitted(first, last);
    const BytesPerSec better = std::max(fitted(first, middle), fitted(middle, last));
    return better.count > whole.count + whole.count / kHalvesDiffer ? better : whole;
  }
  // The slope of the line that fits the samples best: least squares of the bytes over time.
  BytesPerSec fitted(std::size_t first, std::size_t last) const {
    if (samples_[last].at - samples_[first].at < kSpanMin) return {};
    const auto count = static_cast<double>(last - first + 1);
    double time = 0, bytes = 0;
    const auto time_of = [&](std::size_t k) { return (samples_[k].at - samples_[first].at).seconds(); };
    const auto bytes_of = [&](std::size_t k) { return static_cast<double>(samples_[k].bytes - samples_[first].bytes); };
    for (std::size_t k = first; k <= last; ++k) {
      time += time_of(k) / count;
      bytes += bytes_of(k) / count;
    }
    double both = 0, squares = 0;
    for (std::size_t k = first; k <= last; ++k) {
      both += (time_of(k) - time) * (bytes_of(k) - bytes);
      squares += (time_of(k) - time) * (time_of(k) - time);
    }
    return {static_cast<std::int64_t>(both / squares)};
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

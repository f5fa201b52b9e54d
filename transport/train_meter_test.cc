#include "transport/train_meter.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace canarynet {
namespace {

constexpr std::uint64_t kFrame = 16'432;
constexpr Nanos kWay = 2_ms;  // a round trip

// A train whose frames never leave the link idle.
class Train {
 public:
  Train() { meter_.begin(kWay); }
  // So many frames arrive together, the last one 100 us after the first, as a receiver reads them.
  void lump(Nanos at, int frames) {
    for (int i = 0; i < frames; ++i) {
      const Nanos now = at + 100_us * i / std::max(1, frames - 1);
      meter_.note(now, bytes_ += kFrame, last_ - kWay);
      last_ = now;
    }
  }
  double mbyte(std::uint64_t bucket = 0) const { return static_cast<double>(meter_.beyond(bucket).rate.count) * 1e-6; }
  const TrainMeter& meter() const { return meter_; }

 private:
  TrainMeter meter_;
  std::uint64_t bytes_ = 0;
  Nanos last_;
};

TEST(TrainMeter, FramesAtEqualDistancesTellTheRate) {
  Train train;
  for (int i = 0; i < 20; ++i) train.lump(1_ms * i, 1);
  EXPECT_NEAR(train.mbyte(), 16.4, 0.1);
}

// A shaper passes what a sender's segmentation made one packet at once.
TEST(TrainMeter, LumpsOfAnySizeTellTheRate) {
  for (int shift = 0; shift < 4; ++shift) {
    Train train;
    int frames = 0;
    for (int i = 0; frames < 14; ++i) {
      const int size = 1 + (i + shift) % 4;
      frames += size;
      train.lump(1_ms * frames, size);  // once its last byte is through
    }
    EXPECT_NEAR(train.mbyte(), 16.4, 1.6) << "first lump of " << 1 + shift % 4;
  }
}

TEST(TrainMeter, ALateWakeUpStretchesOneHalfOnly) {
  Train train;
  for (int i = 0; i < 20; ++i) train.lump(1_ms * i + (i >= 10 ? 2'500_us : 0_us), 1);
  EXPECT_NEAR(train.mbyte(), 16.4, 0.4);
}

TEST(TrainMeter, WhatABucketLetsPassIsLeftOut) {
  Train train;
  for (int i = 0; i < 20; ++i) train.lump(50_us * i, 1);
  for (int i = 0; i < 20; ++i) train.lump(1_ms * (i + 2), 1);
  EXPECT_NEAR(train.mbyte(20 * kFrame), 16.4, 0.3);
  EXPECT_GT(train.mbyte(), 20) << "otherwise it shows nothing";
}

// A peer says when frames came, and may say anything.
TEST(TrainMeter, NoTimesMakeARateNegative) {
  for (std::uint64_t seed = 1; seed <= 2'000; ++seed) {
    Random random(seed);
    TrainMeter meter;
    meter.begin(kWay);
    std::uint64_t bytes = 0;
    for (int i = 0; i < 12; ++i)
      meter.note(Nanos{static_cast<std::int64_t>(random.below(100'000'000))}, bytes += 1 + random.below(kFrame), {});
    ASSERT_GE(meter.rate_after(0).count, 0) << "seed " << seed;
    ASSERT_GE(meter.beyond(0).rate.count, 0) << "seed " << seed;
  }
}

TEST(TrainMeter, WhatIsOverWithinAWakeUpTellsNothing) {
  Train train;
  for (int i = 0; i < 20; ++i) train.lump(50_us * i, 1);
  EXPECT_EQ(train.meter().beyond(0).rate.count, 0);
}

}  // namespace
}  // namespace canarynet

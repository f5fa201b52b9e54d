#include "collectives/bundle_tuner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace canarynet {
namespace {

// How far the ends of messages are from where this a would have put them, on average.
double misses_by(const BundleTimes& times, double total, double a) {
  const double b = (times.whole_seconds - a) / total;
  double free = 0, seen = 0, sum = 0;
  for (std::size_t t = 0; t < times.bytes.size(); ++t) {
    if (times.bytes[t] == 0) continue;
    free = std::max(free, times.ready[t]) + a + b * static_cast<double>(times.bytes[t]);
    seen = std::max(seen, times.ends[t]);  // messages leave in order, and may overtake
    sum += std::abs(free - seen);
  }
  return sum;
}

}  // namespace

AffineTime fit_transfer_time(const BundleTimes& times) {
  const auto total = static_cast<double>(std::accumulate(times.bytes.begin(), times.bytes.end(), std::uint64_t{0}));
  if (total <= 0 || times.whole_seconds <= 0) return {};
  // From a millionth of the whole on by powers, then closer between the neighbours of the best.
  constexpr int kPowers = 80;
  const auto power = [&](int k) { return k < 0 ? 0.0 : times.whole_seconds * std::exp2((k - kPowers) / 4.0); };
  int best = -1;
  double least = misses_by(times, total, 0);
  for (int k = 0; k <= kPowers; ++k) {
    const double misses = misses_by(times, total, power(k));
    if (misses >= least) continue;
    least = misses;
    best = k;
  }
  double low = power(best - 1), high = power(std::min(best + 1, kPowers));
  for (int i = 0; i < 60; ++i) {
    const double a = low + (high - low) / 3, b = high - (high - low) / 3;
    const bool nearer_low = misses_by(times, total, a) <= misses_by(times, total, b);
    (nearer_low ? high : low) = nearer_low ? b : a;
  }
  const double a = least <= misses_by(times, total, low) ? power(best) : low;
  return {a, (times.whole_seconds - a) / total};
}

BundleTuner::BundleTuner(std::vector<std::uint64_t> bytes, MergePolicy policy)
    : bytes_(std::move(bytes)), policy_(policy), report_(3 * bytes_.size() + 1), plan_(bytes_.size() + kHead) {
  ends_.reserve(bytes_.size());
  last_plan_.reserve(bytes_.size());
  begin(Phase::kEachCold);
}

void BundleTuner::begin(Phase phase) {
  phase_ = phase;
  if (phase == Phase::kEachCold) {
    ends_.resize(bytes_.size());
    std::iota(ends_.begin(), ends_.end(), 1u);
  } else if (phase == Phase::kWholeCold) {
    ends_.assign(1, static_cast<std::uint32_t>(bytes_.size()));
  }
}

BundleTuner::Then BundleTuner::end_iteration(const Times& times) {
  switch (phase_) {
    case Phase::kEachCold:
      begin(Phase::kEach);
      return Then::kGoOn;
    case Phase::kEach:
      note_ready(times, 0);
      for (std::size_t t = 0; t < bytes_.size(); ++t)
        report_[2 * bytes_.size() + t] = (times.done[t] - times.began).count;
      begin(Phase::kWholeCold);
      return Then::kGoOn;
    case Phase::kWholeCold:
      begin(Phase::kWhole);
      return Then::kGoOn;
    case Phase::kWhole:
      note_ready(times, bytes_.size());
      report_.back() = (times.done[0] - *std::max_element(times.submitted.begin(), times.submitted.end())).count;
      return Then::kPlan;
    case Phase::kPlanned:
      break;
  }
  recent_[iterations_ % kRecent] = *std::max_element(times.done.begin(), times.done.end()) - times.began;
  return ++iterations_ % kIterationsPerPlan == 0 ? Then::kJudge : Then::kGoOn;
}

// From report_[at] on. A tensor is ready when those before it are as well.
void BundleTuner::note_ready(const Times& times, std::size_t at) {
  Nanos ready{};
  for (std::size_t t = 0; t < bytes_.size(); ++t) {
    ready = std::max(ready, times.submitted[t] - times.began);
    report_[at + t] = -ready.count;
  }
}

void BundleTuner::make_plan() {
  const std::size_t count = bytes_.size();
  BundleTimes times{bytes_, {}, {}, Nanos{report_.back()}.seconds()};
  BackwardPass pass;
  pass.layers.resize(count);  // the other way round: the last tensor belongs to the first layer
  double before = 0;
  for (std::size_t t = 0; t < count; ++t) {
    times.ready.push_back(Nanos{-report_[t]}.seconds());
    times.ends.push_back(Nanos{report_[2 * count + t]}.seconds());
    const double ready = std::max(before, Nanos{-(report_[t] + report_[count + t]) / 2}.seconds());
    pass.layers[count - 1 - t] = {ready - before, bytes_[t]};
    before = ready;
  }
  const AffineTime time = fit_transfer_time(times);
  const MergePlan made = plan_merges(policy_, pass, time);
  std::fill(plan_.begin(), plan_.end(), 0);
  plan_[0] = Nanos::from_seconds(made.iteration_seconds).count;
  plan_[1] = std::bit_cast<std::int64_t>(time.a);
  plan_[2] = std::bit_cast<std::int64_t>(time.b);
  for (std::size_t g = 0; g < made.groups.size(); ++g)
    plan_[kHead + g] = static_cast<std::int64_t>(count - made.groups[g].first);
}

Status BundleTuner::adopt() {
  const std::span<const std::int64_t> ends = std::span(plan_).subspan(kHead);
  const auto groups = static_cast<std::size_t>(std::find(ends.begin(), ends.end(), 0) - ends.begin());
  bool rises = groups != 0 && ends[0] > 0 && ends[groups - 1] == static_cast<std::int64_t>(bytes_.size());
  for (std::size_t g = 1; g < groups; ++g) rises = rises && ends[g - 1] < ends[g];
  if (!rises) {
    return Status(CANARY_MISMATCH, "rank 0 sent a plan that is not for " + std::to_string(bytes_.size()) + " tensors");
  }
  ends_.resize(groups);
  for (std::size_t g = 0; g < groups; ++g) ends_[g] = static_cast<std::uint32_t>(ends[g]);
  time_ = {std::bit_cast<double>(plan_[1]), std::bit_cast<double>(plan_[2])};
  // The same again although iterations took another time: then that is what it takes.
  const bool again = ends_ == last_plan_ && iterations_ != 0;
  expected_ = again ? Nanos::from_seconds(median_seconds()) : Nanos{plan_[0]};
  last_plan_ = ends_;
  iterations_ = 0;
  ++plans_;
  phase_ = Phase::kPlanned;
  return {};
}

double BundleTuner::median_seconds() const {
  const std::size_t count = std::min<std::size_t>(iterations_, kRecent);
  if (count == 0) return 0;
  std::array<Nanos, kRecent> sorted = recent_;
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
  return sorted[count / 2].seconds();
}

void BundleTuner::judge() {
  const double expected = expected_.seconds();
  verdict_ = std::abs(median_seconds() - expected) > kTolerance * expected ? 1 : 0;
}

void BundleTuner::obey() {
  if (verdict_ != 0) begin(Phase::kEachCold);
}

}  // namespace canarynet

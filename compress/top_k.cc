#include "compress/top_k.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "kernels/codec.h"

namespace canarynet {
namespace {

constexpr std::size_t kDirect = 4096;  // so few values are selected from directly

std::uint32_t magnitude_of(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU; }

// Which of the sample's largest bounds the k-th of all from below: its expected rank and four standard deviations.
std::size_t bound_rank(std::size_t count, std::size_t k) {
  const double expected = static_cast<double>(sample_of(count)) * static_cast<double>(k) / static_cast<double>(count);
  return static_cast<std::size_t>(expected + 4 * std::sqrt(expected)) + 8;
}

// Candidates above the bound that there is room for: twice what is expected.
std::size_t room_for(std::size_t count, std::size_t k) {
  if (count <= kDirect || bound_rank(count, k) >= sample_of(count) / 2) return k;
  const double expected =
      static_cast<double>(bound_rank(count, k)) * static_cast<double>(count) / static_cast<double>(sample_of(count));
  return std::min(count, std::max(k, static_cast<std::size_t>(2 * expected) + 1024));
}

void take_magnitudes(const float* values, std::size_t count, std::uint64_t seed, std::uint32_t* magnitudes) {
  const std::size_t sample = sample_of(count);
  for (std::size_t j = 0; j < sample; ++j) magnitudes[j] = magnitude_of(values[sampled_position(j, count, seed)]);
}

// Calls `take(index, value)` for each value of at least this magnitude, in order, until it returns false.
template <typename Take>
void for_each_from(const float* values, std::size_t count, std::uint32_t magnitude, Take take) {
  constexpr std::size_t kStretch = 1024;
  std::uint32_t indices[kStretch + kSelectSlack];
  float chosen[kStretch + kSelectSlack];
  for (std::size_t begin = 0; begin < count; begin += kStretch) {
    const std::size_t stretch = std::min(count - begin, kStretch);
    const std::size_t found = codec_kernels().select(values + begin, stretch, magnitude,
                                                     static_cast<std::uint32_t>(begin), indices, chosen, kStretch);
    for (std::size_t i = 0; i < found; ++i) {
      if (!take(indices[i], chosen[i])) return;
    }
  }
}

// The k-th largest magnitude, digit by digit from the top; and how many are larger.
std::uint32_t kth_magnitude(const float* values, std::size_t count, std::size_t k, std::size_t* larger) {
  constexpr unsigned kShifts[] = {20, 10, 0};  // 11 bits, then 10 and 10
  std::uint32_t prefix = 0;
  std::size_t above = 0;
  for (unsigned digit = 0; digit < 3; ++digit) {
    std::size_t counters[2048] = {};
    const unsigned shift = kShifts[digit];
    const unsigned prefix_shift = digit == 0 ? 31 : kShifts[digit - 1];
    const std::uint32_t mask = digit == 0 ? 0x7FFU : 0x3FFU;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t magnitude = magnitude_of(values[i]);
      if (magnitude >> prefix_shift == prefix) ++counters[magnitude >> shift & mask];
    }
    std::uint32_t at = mask;
    while (above + counters[at] < k) above += counters[at--];
    prefix = digit == 0 ? at : prefix << 10 | at;
  }
  *larger = above;
  return prefix;
}

void choose_by_radix(const float* values, std::size_t count, std::size_t k, std::uint32_t first_index,
                     const TopKSpace& space) {
  std::size_t larger = 0;
  const std::uint32_t threshold = kth_magnitude(values, count, k, &larger);
  std::size_t ties = k - larger, found = 0;
  for_each_from(values, count, threshold, [&](std::uint32_t index, float value) {
    if (magnitude_of(value) == threshold) {
      if (ties == 0) return true;
      --ties;
    }
    space.chosen.indices[found] = first_index + index;
    space.chosen.values[found] = value;
    return ++found < k;
  });
}

// Thresholds of MSTopK, as magnitudes: `upper` has at most k values at or above it, `lower` at least k (0 has all).
struct Thresholds {
  std::uint32_t upper = 0x7FFFFFFF;
  std::uint32_t lower = 0;
  std::size_t above_upper = 0;
};

template <typename Count>
Thresholds search(double mean, double maximum, std::size_t k, Count count_from) {
  Thresholds found;
  std::size_t fewest_above = ~std::size_t{0};
  double left = 0, right = 1;
  for (int round = 0; round < kMsTopKRounds; ++round) {
    const double middle = left + (right - left) / 2;
    const std::uint32_t threshold = magnitude_of(static_cast<float>(mean + middle * (maximum - mean)));
    const std::size_t above = count_from(threshold);
    if (above <= k) {
      right = middle;
      if (above >= found.above_upper) {
        found.above_upper = above;
        found.upper = threshold;
      }
    }
    if (above > k || above == k) {
      if (above > k) left = middle;
      if (above < fewest_above) {
        fewest_above = above;
        found.lower = threshold;
      }
    }
  }
  return found;
}

}  // namespace

std::size_t sample_of(std::size_t count) {
  if (count <= kDirect) return count;
  return std::clamp(std::bit_floor(count / 32), kDirect, std::size_t{1} << 16);
}

std::size_t sampled_position(std::size_t j, std::size_t count, std::uint64_t seed) {
  if (count <= kDirect) return j;
  // The sample is a power of two: no division.
  const int shift = std::countr_zero(sample_of(count));
  const std::size_t begin = (j * count) >> shift, end = ((j + 1) * count) >> shift;
  return begin + random_below(RandomNumbers(seed, 0).at(j), end - begin);
}

std::size_t kept_of(std::size_t count, std::uint32_t ratio_ppm) {
  if (count == 0) return 0;
  const std::uint64_t kept = (static_cast<std::uint64_t>(count) * ratio_ppm + 500'000) / 1'000'000;
  return std::clamp<std::size_t>(kept, 1, count);
}

TopKSpace::TopKSpace(Carver* carver, std::size_t count, std::size_t k)
    : room(count == 0 ? 0 : room_for(count, k)),
      chosen{carver->take<std::uint32_t>(room + kSelectSlack), carver->take<float>(room + kSelectSlack)},
      magnitudes(carver->take<std::uint32_t>(std::max(room, sample_of(count)))) {}

void choose_top_k(const float* values, std::size_t count, std::size_t k, std::uint32_t first_index,
                  const TopKSpace& space) {
  const std::size_t sample = sample_of(count), rank = bound_rank(count, k);
  if (count <= kDirect || rank >= sample / 2) return choose_by_radix(values, count, k, first_index, space);
  take_magnitudes(values, count, 0, space.magnitudes);
  std::nth_element(space.magnitudes, space.magnitudes + rank, space.magnitudes + sample, std::greater<>());
  const std::uint32_t bound = space.magnitudes[rank];
  const auto [indices, chosen] = space.chosen;
  const std::size_t found = codec_kernels().select(values, count, bound, first_index, indices, chosen, space.room);
  if (found < k || found > space.room) return choose_by_radix(values, count, k, first_index, space);

  for (std::size_t i = 0; i < found; ++i) space.magnitudes[i] = magnitude_of(chosen[i]);
  std::nth_element(space.magnitudes, space.magnitudes + (k - 1), space.magnitudes + found, std::greater<>());
  const std::uint32_t threshold = space.magnitudes[k - 1];
  std::size_t ties = k;
  for (std::size_t i = 0; i < k; ++i) ties -= space.magnitudes[i] > threshold ? 1 : 0;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < found && kept < k; ++i) {
    const std::uint32_t magnitude = magnitude_of(chosen[i]);
    if (magnitude < threshold || (magnitude == threshold && ties == 0)) continue;
    if (magnitude == threshold) --ties;
    indices[kept] = indices[i];
    chosen[kept++] = chosen[i];
  }
}

void choose_ms_top_k(const float* values, std::size_t count, std::size_t k, std::uint64_t seed,
                     const TopKSpace& space) {
  const CodecKernels& kernels = codec_kernels();
  const std::size_t sample = sample_of(count);
  const std::size_t sample_k =
      static_cast<std::size_t>(static_cast<double>(k) * static_cast<double>(sample) / static_cast<double>(count));
  Thresholds found;
  bool enclosed = false;
  if (sample < count && sample_k >= 256) {
    take_magnitudes(values, count, seed, space.magnitudes);
    double sum = 0;
    std::uint32_t greatest = 0;
    for (std::size_t i = 0; i < sample; ++i) {
      sum += std::bit_cast<float>(space.magnitudes[i]);
      greatest = std::max(greatest, space.magnitudes[i]);
    }
    // The signs are gone, so the magnitudes are floats that the kernel can count.
    const auto* magnitudes = reinterpret_cast<const float*>(space.magnitudes);
    const auto count_sample = [&](std::uint32_t threshold) {
      return kernels.count_from(magnitudes, sample, threshold);
    };
    const auto margin = static_cast<std::size_t>(3 * std::sqrt(static_cast<double>(sample_k)));
    const double mean = sum / static_cast<double>(sample);
    found = search(mean, std::bit_cast<float>(greatest), sample_k - margin, count_sample);
    found.lower = search(mean, std::bit_cast<float>(greatest), sample_k + margin, count_sample).lower;
    found.above_upper = kernels.count_from(values, count, found.upper);
    enclosed = found.above_upper <= k && kernels.count_from(values, count, found.lower) >= k;
  }
  if (!enclosed) {
    const SignSums sums = kernels.sum_signs(values, count);
    found = search((sums.positive - sums.negative) / static_cast<double>(count), std::bit_cast<float>(sums.greatest), k,
                   [&](std::uint32_t threshold) { return kernels.count_from(values, count, threshold); });
  }
  const std::size_t between = kernels.count_from(values, count, found.lower) - found.above_upper;
  std::size_t fill = k - found.above_upper;
  std::size_t skip = random_below(RandomNumbers(seed, 1).at(0), between - fill + 1);
  std::size_t kept = 0;
  for_each_from(values, count, found.lower, [&](std::uint32_t index, float value) {
    if (magnitude_of(value) < found.upper) {
      if (skip != 0 || fill == 0) {
        skip -= skip != 0 ? 1 : 0;
        return true;
      }
      --fill;
    }
    space.chosen.indices[kept] = index;
    space.chosen.values[kept] = value;
    return ++kept < k;
  });
}

std::size_t random_position(std::size_t j, std::size_t k, std::size_t count, std::uint64_t seed, std::uint64_t round) {
  // count, k < 2^32, so the products fit.
  const std::size_t begin = j * count / k, end = (j + 1) * count / k;
  return begin + random_below(RandomNumbers(seed, round).at(j), end - begin);
}

}  // namespace canarynet

#include "sim/oracle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/reduce.h"

namespace canarynet::oracle {
namespace {

// The part of mix() that does not depend on its third argument.
std::uint64_t mix_of_two(std::uint64_t a, std::uint64_t b) {
  return a * 0x9e3779b97f4a7c15ull + b * 0xbf58476d1ce4e5b9ull;
}
std::uint64_t mix_third(std::uint64_t two, std::uint64_t c) {
  std::uint64_t z = two + c * 0x94d049bb133111ebull;
  z ^= z >> 31;
  z *= 0xd6e8feb86659fd93ull;
  return z ^ (z >> 32);
}
std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c) { return mix_third(mix_of_two(a, b), c); }

bool is_float(DataType type) {
  return type == CANARY_F32 || type == CANARY_F64 || type == CANARY_F16 || type == CANARY_BF16;
}

// IEEE 754: sign, exponent, fraction.
struct FloatLayout {
  int exponent_bits, fraction_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
constexpr FloatLayout kF64{11, 52}, kF32{8, 23}, kF16{5, 10}, kBf16{8, 7};
FloatLayout layout_of(DataType type) {
  switch (type) {
    case CANARY_F64:
      return kF64;
    case CANARY_F16:
      return kF16;
    case CANARY_BF16:
      return kBf16;
    default:
      return kF32;
  }
}

std::uint64_t float_bits(FloatLayout f, bool negative, int exponent, std::uint64_t fraction) {
  return (std::uint64_t{negative} << (f.exponent_bits + f.fraction_bits)) |
         static_cast<std::uint64_t>(exponent + f.bias()) << f.fraction_bits | fraction;
}

// Encodes a value that the type holds exactly, as a normal number or zero. The processor knows the two usual types.
std::uint64_t encode(FloatLayout f, double v) {
  if (v == 0) return 0;
  if (f.fraction_bits == kF32.fraction_bits) return std::bit_cast<std::uint32_t>(static_cast<float>(v));
  const auto bits = std::bit_cast<std::uint64_t>(v);
  if (f.fraction_bits == kF64.fraction_bits) return bits;
  const int exponent = static_cast<int>(bits >> kF64.fraction_bits & 0x7ff) - kF64.bias();
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << kF64.fraction_bits) - 1);
  return float_bits(f, v < 0, exponent, fraction >> (kF64.fraction_bits - f.fraction_bits));
}

double decode(FloatLayout f, std::uint64_t bits) {
  if (f.fraction_bits == kF32.fraction_bits) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  if (f.fraction_bits == kF64.fraction_bits) return std::bit_cast<double>(bits);
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << f.fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> f.fraction_bits & ((std::uint64_t{1} << f.exponent_bits) - 1));
  const bool negative = (bits >> (f.exponent_bits + f.fraction_bits) & 1) != 0;
  if (exponent == (1 << f.exponent_bits) - 1) return fraction != 0 ? std::nan("") : negative ? -HUGE_VAL : HUGE_VAL;
  if (exponent == 0) {
    const double magnitude = std::ldexp(static_cast<double>(fraction), 1 - f.bias() - f.fraction_bits);
    return negative ? -magnitude : magnitude;
  }
  return std::bit_cast<double>(
      float_bits(kF64, negative, exponent - f.bias(), fraction << (kF64.fraction_bits - f.fraction_bits)));
}

// As many elements as the loops below take at a time: their intermediate values stay in the first-level cache.
constexpr std::size_t kBlock = 512;
using Bits = std::array<std::uint64_t, kBlock>;
using Values = std::array<double, kBlock>;

// Calls f(first, n) for blocks of the elements from `begin` on.
template <typename F>
void in_blocks(std::uint64_t begin, std::uint64_t count, F&& f) {
  for (std::uint64_t done = 0; done < count; done += kBlock)
    f(begin + done, static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, count - done)));
}

void encode_all(FloatLayout f, const Values& values, std::size_t n, Bits* bits) {
  if (f.fraction_bits == kF32.fraction_bits) {
    for (std::size_t i = 0; i < n; ++i) (*bits)[i] = std::bit_cast<std::uint32_t>(static_cast<float>(values[i]));
  } else {
    for (std::size_t i = 0; i < n; ++i) (*bits)[i] = encode(f, values[i]);
  }
}

// A rank's input, a block of elements at a time. What depends on the kind and the type is chosen once for a block, and
// the inner loops have no call and no division: the simulations draw and judge billions of elements, and spent four
// fifths of their time here.
class Input {
 public:
  Input(const Shape& s, int rank)
      : two_(mix_of_two(s.salt, static_cast<std::uint64_t>(rank))),
        rank_(rank),
        layout_(layout_of(s.type)),
        redop_(s.redop) {
    if (!reduces(s.collective)) {
      kind_ = Kind::kBits;
    } else if (!is_float(s.type)) {
      kind_ = s.redop == CANARY_PROD ? Kind::kOddIntegers : Kind::kBits;
    } else if (s.rounds) {
      kind_ = Kind::kFractions;
    } else if (s.redop == CANARY_PROD) {
      kind_ = Kind::kPowersOfTwo;
    } else {
      kind_ = Kind::kWholeNumbers;
      // The most integers, as a power of two, whose sum over all ranks the type holds exactly, in whatever order they
      // are added.
      const auto exact = std::uint64_t{1} << (layout_.fraction_bits + 1);
      const bool adds = s.redop == CANARY_SUM || s.redop == CANARY_AVG;
      const std::uint64_t most = adds ? exact / static_cast<std::uint64_t>(s.ranks) : exact;
      range_ = std::bit_floor(std::clamp(most, std::uint64_t{1}, std::uint64_t{1} << 50));
    }
  }

  // Writes the n elements from `first` on, as the type's bits; above those of an integer is anything.
  void bits(std::uint64_t first, std::size_t n, Bits* out) const {
    switch (kind_) {
      case Kind::kBits:
        return each_hash(first, n, [out](std::size_t i, std::uint64_t h) { (*out)[i] = h; });
      case Kind::kOddIntegers:  // an odd factor is invertible, so it loses nothing of the product so far
        return each_hash(first, n, [out](std::size_t i, std::uint64_t h) { (*out)[i] = h | 1; });
      case Kind::kFractions:
        return each_hash(first, n, [this, out](std::size_t i, std::uint64_t h) { (*out)[i] = fraction(h); });
      case Kind::kPowersOfTwo:
      case Kind::kWholeNumbers:
        break;
    }
    Values exact;
    values(first, n, &exact);
    encode_all(layout_, exact, n, out);
  }

  // Writes what the n elements from `first` on are worth, if they are floats.
  void values(std::uint64_t first, std::size_t n, Values* out) const {
    if (kind_ == Kind::kWholeNumbers)
      return each_hash(first, n, [out, mask = range_ - 1](std::size_t i, std::uint64_t h) {
        const auto magnitude = static_cast<std::int64_t>(1 + (h >> 1 & mask));
        const std::int64_t sign = -static_cast<std::int64_t>(h & 1);  // 0 or all bits; a branch would guess wrong
        (*out)[i] = static_cast<double>((magnitude ^ sign) - sign);
      });
    // f16 can hold every product of these powers of two; only the factors of late ranks do not change its size.
    if (kind_ == Kind::kPowersOfTwo)
      return each_hash(first, n, [out, early = rank_ < 14](std::size_t i, std::uint64_t h) {
        const double sign = (h & 1) != 0 ? -1 : 1;
        (*out)[i] = early ? sign * ((h & 2) != 0 ? 2 : 0.5) : -1;
      });
    each_hash(first, n, [this, out](std::size_t i, std::uint64_t h) { (*out)[i] = decode(layout_, fraction(h)); });
  }

 private:
  enum class Kind { kBits, kOddIntegers, kFractions, kPowersOfTwo, kWholeNumbers };

  template <typename F>
  void each_hash(std::uint64_t first, std::size_t n, F&& f) const {
    for (std::size_t i = 0; i < n; ++i) f(i, mix_third(two_, first + i));
  }

  // All bits of the fraction are random. The size is such that no sum or product overflows or underflows.
  std::uint64_t fraction(std::uint64_t h) const {
    std::uint64_t fraction = (h >> 8) & ((std::uint64_t{1} << layout_.fraction_bits) - 1);
    const bool negative = (h & 1) != 0, above = (h & 2) != 0;
    if (redop_ == CANARY_PROD) {  // in [7/8, 1) or [1, 9/8)
      const std::uint64_t low = fraction >> (above ? 3 : 2);
      fraction = above ? low : low | std::uint64_t{3} << (layout_.fraction_bits - 2);
    }
    return float_bits(layout_, negative, above ? 0 : -1, fraction);
  }

  Kind kind_;
  std::uint64_t two_;
  int rank_;
  FloatLayout layout_;
  ReduceOp redop_;
  std::uint64_t range_ = 1;
};

template <typename T>
void store(const Bits& bits, std::size_t n, std::byte* at) {
  for (std::size_t i = 0; i < n; ++i) {
    const T v = static_cast<T>(bits[i]);
    std::memcpy(at + i * sizeof(T), &v, sizeof(T));
  }
}
// Writes n elements of the type, from the buffer's element `begin` on.
void put(DataType type, void* buffer, std::uint64_t begin, std::size_t n, const Bits& bits) {
  std::byte* const at = static_cast<std::byte*>(buffer) + begin * size_of(type);
  switch (size_of(type)) {
    case 1:
      return store<std::uint8_t>(bits, n, at);
    case 2:
      return store<std::uint16_t>(bits, n, at);
    case 4:
      return store<std::uint32_t>(bits, n, at);
    default:
      return store<std::uint64_t>(bits, n, at);
  }
}
std::uint64_t get(DataType type, const void* at, std::uint64_t i) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(at) + i * size_of(type), size_of(type));
  return bits;
}

std::int64_t as_integer(DataType type, std::uint64_t bits) {
  switch (type) {
    case CANARY_I8:
      return static_cast<std::int8_t>(bits);
    case CANARY_U8:
      return static_cast<std::uint8_t>(bits);
    case CANARY_I32:
      return static_cast<std::int32_t>(bits);
    default:
      return static_cast<std::int64_t>(bits);
  }
}

// One step of a reduction of n values; AVG adds.
template <typename T>
void combine(ReduceOp op, std::size_t n, std::array<T, kBlock>* sum, const std::array<T, kBlock>& next) {
  switch (op) {
    case CANARY_SUM:
    case CANARY_AVG:
      for (std::size_t i = 0; i < n; ++i) (*sum)[i] += next[i];
      return;
    case CANARY_MIN:
      for (std::size_t i = 0; i < n; ++i) (*sum)[i] = std::min((*sum)[i], next[i]);
      return;
    case CANARY_MAX:
      for (std::size_t i = 0; i < n; ++i) (*sum)[i] = std::max((*sum)[i], next[i]);
      return;
    case CANARY_PROD:
      for (std::size_t i = 0; i < n; ++i) (*sum)[i] *= next[i];
  }
}

std::vector<Input> inputs_of(const Shape& s) {
  std::vector<Input> out;
  for (int r = 0; r < s.ranks; ++r) out.emplace_back(s, r);
  return out;
}

// The n elements from `first` on of the exact reduction over `inputs`, one for each rank; AVG is not yet divided.
void reduced(const Shape& s, const std::vector<Input>& inputs, std::uint64_t first, std::size_t n, Bits* out) {
  if (is_float(s.type)) {
    Values sum, next;
    inputs[0].values(first, n, &sum);
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      inputs[r].values(first, n, &next);
      combine(s.redop, n, &sum, next);
    }
    return encode_all(layout_of(s.type), sum, n, out);
  }
  inputs[0].bits(first, n, out);
  Bits next;
  if (s.redop != CANARY_MIN && s.redop != CANARY_MAX) {
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      inputs[r].bits(first, n, &next);
      combine(s.redop, n, out, next);
    }
    return;
  }
  std::array<std::int64_t, kBlock> best, other;
  for (std::size_t i = 0; i < n; ++i) best[i] = as_integer(s.type, (*out)[i]);
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    inputs[r].bits(first, n, &next);
    for (std::size_t i = 0; i < n; ++i) other[i] = as_integer(s.type, next[i]);
    combine(s.redop, n, &best, other);
  }
  for (std::size_t i = 0; i < n; ++i) (*out)[i] = static_cast<std::uint64_t>(best[i]);
}

// Compares the errors of n elements of `output`, from `begin` on, against the real numbers with the most that this many
// roundings may cost in any order (Higham, "Accuracy and Stability of Numerical Algorithms", 4.2). Calls wrong(i) with
// the place in `output` of each that is not within.
template <typename F>
void check_rounding(const Shape& s, const std::vector<Input>& inputs, std::uint64_t first, std::size_t n,
                    const void* output, std::uint64_t begin, F&& wrong) {
  const FloatLayout f = layout_of(s.type);
  const double unit = std::ldexp(1.0, -f.fraction_bits - 1);
  const double steps = s.ranks - 1 + (s.redop == CANARY_AVG ? 1 : 0);
  const double gamma = steps * unit / (1 - steps * unit);
  const double smallest = std::ldexp(1.0, 1 - f.bias() - f.fraction_bits);  // a quotient may be subnormal
  std::array<long double, kBlock> exact, magnitude;
  exact.fill(s.redop == CANARY_PROD ? 1 : 0);
  magnitude.fill(0);
  Values v;
  for (const Input& input : inputs) {
    input.values(first, n, &v);
    for (std::size_t i = 0; i < n; ++i) {
      exact[i] = s.redop == CANARY_PROD ? exact[i] * v[i] : exact[i] + v[i];
      magnitude[i] += std::fabs(v[i]);
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (s.redop == CANARY_PROD) magnitude[i] = std::fabs(exact[i]);
    if (s.redop == CANARY_AVG) {
      exact[i] /= s.ranks;
      magnitude[i] /= s.ranks;
    }
    // The reference rounds, too: a few parts in 2^64 a step.
    const long double own = magnitude[i] * std::ldexp(1.0L, -60) * s.ranks;
    const long double got = decode(f, get(s.type, output, begin + i));
    if (!(std::fabs(got - exact[i]) <= gamma * magnitude[i] + smallest + own)) wrong(begin + i);
  }
}

// Writes `count` elements of a rank's input, from `first` on, to the buffer's element `at` and those behind it.
void put_input(const Shape& s, const Input& input, std::uint64_t first, std::uint64_t count, void* buffer,
               std::uint64_t at) {
  Bits bits;
  in_blocks(0, count, [&](std::uint64_t begin, std::size_t n) {
    input.bits(first + begin, n, &bits);
    put(s.type, buffer, at + begin, n, bits);
  });
}

std::uint64_t ranks_of(const Shape& s) { return static_cast<std::uint64_t>(s.ranks); }

// Elements of the block from `source` to `target`, for collectives whose blocks differ.
std::uint64_t block(const Shape& s, int source, int target) {
  if (s.collective == Collective::kAllGatherV) return s.counts[static_cast<std::size_t>(source)];
  if (s.collective == Collective::kAllToAllV)
    return s.counts[static_cast<std::size_t>(source) * ranks_of(s) + static_cast<std::size_t>(target)];
  return s.count;
}

// Elements in the blocks before `end`, of rank's output by source, or of its input by target.
std::uint64_t received_before(const Shape& s, int rank, int end) {
  std::uint64_t sum = 0;
  for (int i = 0; i < end; ++i) sum += block(s, i, rank);
  return sum;
}
std::uint64_t sent_before(const Shape& s, int rank, int end) {
  std::uint64_t sum = 0;
  for (int i = 0; i < end; ++i) sum += block(s, rank, i);
  return sum;
}

}  // namespace

void draw_counts(Shape* s, std::uint64_t mean) {
  if (!has_counts(s->collective)) return;
  const auto n = ranks_of(*s);
  s->counts.resize(is_pairwise(s->collective) ? n * n : n);
  for (std::size_t i = 0; i < s->counts.size(); ++i) {
    const std::uint64_t h = mix(s->salt, 77, i);
    s->counts[i] = h % 5 == 0 ? 0 : (h >> 8) % (2 * mean + 1);
  }
}

std::vector<std::uint64_t> counts_of(const Shape& s, int rank) {
  if (s.collective == Collective::kAllGatherV) return s.counts;
  if (s.collective != Collective::kAllToAllV) return {};
  std::vector<std::uint64_t> out;
  for (int i = 0; i < s.ranks; ++i) out.push_back(block(s, rank, i));
  for (int i = 0; i < s.ranks; ++i) out.push_back(sent_before(s, rank, i));
  for (int i = 0; i < s.ranks; ++i) out.push_back(block(s, i, rank));
  for (int i = 0; i < s.ranks; ++i) out.push_back(received_before(s, rank, i));
  return out;
}

bool can_be_in_place(const Shape& s) { return !is_pairwise(s.collective); }

std::size_t input_bytes(const Shape& s, int rank) {
  if (s.collective == Collective::kBarrier || !reads_input(s.collective, rank == s.root)) return 0;
  return size_of(s.type) * (input_in_blocks(s.collective) ? sent_before(s, rank, s.ranks) : block(s, rank, rank));
}

std::size_t output_bytes(const Shape& s, int rank) {
  if (s.collective == Collective::kBarrier || !writes_output(s.collective, rank == s.root)) return 0;
  return size_of(s.type) * (output_in_blocks(s.collective) ? received_before(s, rank, s.ranks) : block(s, rank, rank));
}

// The rank's own block of the larger buffer, if it has that buffer.
std::size_t in_place_input(const Shape& s, int rank) {
  const bool inside = output_in_blocks(s.collective) && output_bytes(s, rank) != 0;
  return inside ? received_before(s, rank, rank) * size_of(s.type) : 0;
}
std::size_t in_place_output(const Shape& s, int rank) {
  const bool inside = input_in_blocks(s.collective) && input_bytes(s, rank) != 0;
  return inside ? sent_before(s, rank, rank) * size_of(s.type) : 0;
}

void fill_input(const Shape& s, int rank, void* input) {
  const std::uint64_t n = input_bytes(s, rank) / size_of(s.type);
  put_input(s, Input(s, rank), 0, n, input, 0);
}

void expected_output(const Shape& s, int rank, void* output) {
  if (output_bytes(s, rank) == 0) return;
  // In these collectives every rank has a block of one buffer.
  const std::uint64_t own_block = s.count * static_cast<std::uint64_t>(rank);
  switch (s.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kReduceScatter: {
      const std::vector<Input> inputs = inputs_of(s);
      const std::uint64_t first = s.collective == Collective::kReduceScatter ? own_block : 0;
      Bits bits;
      in_blocks(0, s.count, [&](std::uint64_t begin, std::size_t n) {
        reduced(s, inputs, first + begin, n, &bits);
        put(s.type, output, begin, n, bits);
      });
      if (s.redop == CANARY_AVG) divide(s.type, output, s.count, static_cast<std::uint32_t>(s.ranks));
      return;
    }
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kAllGatherV:
    case Collective::kAllToAll:
    case Collective::kAllToAllV: {
      std::uint64_t at = 0;
      for (int r = 0; r < s.ranks; ++r) {
        const std::uint64_t first = is_pairwise(s.collective) ? sent_before(s, r, rank) : 0;
        const std::uint64_t count = block(s, r, rank);
        put_input(s, Input(s, r), first, count, output, at);
        at += count;
      }
      return;
    }
    case Collective::kBroadcast:
    case Collective::kScatter: {
      put_input(s, Input(s, s.root), s.collective == Collective::kScatter ? own_block : 0, s.count, output, 0);
      return;
    }
    case Collective::kBarrier:
      return;
  }
}

bool rounds(const Shape& s) {
  return s.rounds && reduces(s.collective) && is_float(s.type) && s.redop != CANARY_MIN && s.redop != CANARY_MAX;
}

bool same_on_all(Collective c) {
  return c == Collective::kAllReduce || c == Collective::kAllGather || c == Collective::kAllGatherV ||
         c == Collective::kBroadcast;
}

std::string compare(const Shape& s, int rank, const void* output) {
  const std::size_t bytes = output_bytes(s, rank), element_bytes = size_of(s.type);
  const std::uint64_t n = bytes / element_bytes;
  std::uint64_t wrong = 0, first = 0;
  const auto count = [&](std::uint64_t i) {
    if (wrong++ == 0) first = i;
  };
  if (rounds(s)) {
    const std::uint64_t begin = input_in_blocks(s.collective) ? s.count * static_cast<std::uint64_t>(rank) : 0;
    const std::vector<Input> inputs = inputs_of(s);
    in_blocks(0, n, [&](std::uint64_t at, std::size_t some) {
      check_rounding(s, inputs, begin + at, some, output, at, count);
    });
  } else {
    std::vector<std::byte> expected(bytes);
    expected_output(s, rank, expected.data());
    if (expected.empty() || std::memcmp(expected.data(), output, bytes) == 0) return "";
    for (std::uint64_t i = 0; i < n; ++i) {
      if (get(s.type, expected.data(), i) != get(s.type, output, i)) count(i);
    }
  }
  if (wrong == 0) return "";
  return to_string(s) + ": rank " + std::to_string(rank) + " has " + std::to_string(wrong) + " wrong elements of " +
         std::to_string(n) + ", the first is " + std::to_string(first);
}

std::uint64_t digest(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  const auto step = [](std::uint64_t h, std::uint64_t word) {
    h = (h ^ word) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
  };
  // Four at a time: each step of one waits for its multiplication.
  std::array<std::uint64_t, 4> h{bytes, 1, 2, 3}, words;
  std::size_t left = bytes;
  for (; left >= sizeof(words); at += sizeof(words), left -= sizeof(words)) {
    std::memcpy(words.data(), at, sizeof(words));
    for (std::size_t i = 0; i < h.size(); ++i) h[i] = step(h[i], words[i]);
  }
  words.fill(0);
  if (left != 0) std::memcpy(words.data(), at, left);
  for (std::size_t i = 0; i < h.size(); ++i) h[i] = step(h[i], words[i]);
  return mix(mix(h[0], h[1], h[2]), h[3], left);
}

std::string Judge::check(int rank, const void* output) {
  const std::size_t bytes = output_bytes(shape_, rank);
  if (bytes == 0) return "";
  if (!same_on_all(shape_.collective) || first_rank_ < 0) {
    if (std::string wrong = compare(shape_, rank, output); !wrong.empty()) return wrong;
    if (!same_on_all(shape_.collective)) return "";
    first_rank_ = rank;
    const auto* at = static_cast<const std::byte*>(output);
    first_.assign(at, at + bytes);
    return "";
  }
  if (std::memcmp(first_.data(), output, bytes) == 0) return "";
  if (std::string wrong = compare(shape_, rank, output); !wrong.empty()) return wrong;
  return to_string(shape_) + ": ranks " + std::to_string(first_rank_) + " and " + std::to_string(rank) +
         " have different bits";
}

std::string to_string(const Shape& s) {
  return std::string(name_of(s.collective)) + " " + std::string(name_of(s.type)) + " " + std::string(name_of(s.redop)) +
         " n=" + std::to_string(s.ranks) + " count=" + std::to_string(s.counts.empty() ? s.count : s.counts[0]) +
         " root=" + std::to_string(s.root) + (rounds(s) ? " random" : "");
}

}  // namespace canarynet::oracle

#include "sim/oracle.h"

#include <bit>
#include <cstring>

#include "kernels/reduce.h"

namespace canarynet::oracle {
namespace {

std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t z = a * 0x9e3779b97f4a7c15ull + b * 0xbf58476d1ce4e5b9ull + c * 0x94d049bb133111ebull;
  z ^= z >> 31;
  z *= 0xd6e8feb86659fd93ull;
  return z ^ (z >> 32);
}

// Products stay powers of two that f16 can hold: at most eight ranks contribute a 2.
std::int64_t element(const Shape& s, int rank, std::uint64_t i) {
  const std::uint64_t h = mix(s.salt, static_cast<std::uint64_t>(rank), i);
  if (s.redop == CANARY_PROD) return rank < 8 && (h & 1) != 0 ? 2 : 1;
  return static_cast<std::int64_t>(h % 4);
}

// Non-negative integers below 2048, exact in f16 (bf16: below 256, and even numbers and powers of two beyond as they occur here).
std::uint16_t half_of(std::int64_t v) {
  if (v == 0) return 0;
  const int e = 63 - std::countl_zero(static_cast<std::uint64_t>(v));
  const auto fraction = static_cast<std::uint64_t>(v) << (52 - e) & ((std::uint64_t{1} << 52) - 1);
  return static_cast<std::uint16_t>((e + 15) << 10 | static_cast<int>(fraction >> 42));
}

void put(DataType type, void* at, std::uint64_t i, std::int64_t v) {
  const auto store = [&](auto x) { std::memcpy(static_cast<std::byte*>(at) + i * sizeof x, &x, sizeof x); };
  switch (type) {
    case CANARY_F32:
      return store(static_cast<float>(v));
    case CANARY_F64:
      return store(static_cast<double>(v));
    case CANARY_F16:
      return store(half_of(v));
    case CANARY_BF16:
      return store(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(v)) >> 16));
    case CANARY_I8:
      return store(static_cast<std::int8_t>(v));
    case CANARY_U8:
      return store(static_cast<std::uint8_t>(v));
    case CANARY_I32:
      return store(static_cast<std::int32_t>(v));
    case CANARY_I64:
      return store(v);
  }
}

std::int64_t reduced(const Shape& s, std::uint64_t i) {
  std::int64_t out = element(s, 0, i);
  for (int r = 1; r < s.ranks; ++r) {
    const std::int64_t v = element(s, r, i);
    switch (s.redop) {
      case CANARY_SUM:
      case CANARY_AVG:
        out += v;
        break;
      case CANARY_MIN:
        out = std::min(out, v);
        break;
      case CANARY_MAX:
        out = std::max(out, v);
        break;
      case CANARY_PROD:
        out *= v;
        break;
    }
  }
  return out;
}

std::uint64_t ranks_of(const Shape& s) { return static_cast<std::uint64_t>(s.ranks); }

// Elements of the block from `source` to `target`, where they differ.
std::uint64_t block(const Shape& s, int source, int target) {
  if (s.collective == Collective::kAllGatherV) return s.counts[static_cast<std::size_t>(source)];
  if (s.collective == Collective::kAllToAllV)
    return s.counts[static_cast<std::size_t>(source) * ranks_of(s) + static_cast<std::size_t>(target)];
  return s.count;
}

// Elements in the blocks before `end`: of rank's output by source, or of its input by target.
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

// The own block of the larger buffer, where the rank has that.
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
  for (std::uint64_t i = 0; i < n; ++i) put(s.type, input, i, element(s, rank, i));
}

void expected_output(const Shape& s, int rank, void* output) {
  if (output_bytes(s, rank) == 0) return;
  switch (s.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
      for (std::uint64_t i = 0; i < s.count; ++i) put(s.type, output, i, reduced(s, i));
      break;
    case Collective::kReduceScatter:
      for (std::uint64_t i = 0; i < s.count; ++i)
        put(s.type, output, i, reduced(s, i + s.count * static_cast<std::uint64_t>(rank)));
      break;
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kAllGatherV:
    case Collective::kAllToAll:
    case Collective::kAllToAllV: {
      std::uint64_t at = 0;
      for (int r = 0; r < s.ranks; ++r) {
        const std::uint64_t first = is_pairwise(s.collective) ? sent_before(s, r, rank) : 0;
        for (std::uint64_t i = 0; i < block(s, r, rank); ++i) put(s.type, output, at++, element(s, r, first + i));
      }
      return;
    }
    case Collective::kBroadcast:
      for (std::uint64_t i = 0; i < s.count; ++i) put(s.type, output, i, element(s, s.root, i));
      return;
    case Collective::kScatter:
      for (std::uint64_t i = 0; i < s.count; ++i)
        put(s.type, output, i, element(s, s.root, i + s.count * static_cast<std::uint64_t>(rank)));
      return;
    case Collective::kBarrier:
      return;
  }
  if (s.redop == CANARY_AVG) divide(s.type, output, s.count, static_cast<std::uint32_t>(s.ranks));
}

std::string compare(const Shape& s, int rank, const void* output) {
  std::vector<std::byte> expected(output_bytes(s, rank));
  expected_output(s, rank, expected.data());
  if (expected.empty() || std::memcmp(expected.data(), output, expected.size()) == 0) return "";
  const std::size_t element = size_of(s.type);
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < expected.size(); i += element) {
    if (std::memcmp(expected.data() + i, static_cast<const std::byte*>(output) + i, element) == 0) continue;
    if (wrong++ == 0) first = i / element;
  }
  return to_string(s) + ": rank " + std::to_string(rank) + " has " + std::to_string(wrong) +
         " wrong elements, the first is " + std::to_string(first);
}

std::string to_string(const Shape& s) {
  return std::string(name_of(s.collective)) + " " + std::string(name_of(s.type)) + " " + std::string(name_of(s.redop)) +
         " n=" + std::to_string(s.ranks) + " count=" + std::to_string(s.counts.empty() ? s.count : s.counts[0]) +
         " root=" + std::to_string(s.root);
}

}  // namespace canarynet::oracle

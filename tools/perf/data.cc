#include "tools/perf/data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tools/perf/options.h"

namespace canarynet::perf {
namespace {

std::uint64_t mix(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

bool is_integer(canary_type type) { return type >= CANARY_I8; }

// Whole numbers up to this magnitude are exact in the type.
std::int64_t exact_limit(canary_type type) {
  switch (type) {
    case CANARY_F32:
      return 1 << 24;
    case CANARY_F64:
      return std::int64_t{1} << 53;
    case CANARY_F16:
      return 1 << 11;
    case CANARY_BF16:
      return 1 << 8;
    case CANARY_I8:
      return 127;
    case CANARY_U8:
      return 255;
    case CANARY_I32:
      return (std::int64_t{1} << 31) - 1;
    case CANARY_I64:
      return std::int64_t{1} << 53;
  }
  return 0;
}

// Element `index` of a rank's input.
std::int64_t input_value(canary_type type, canary_redop redop, int ranks, int rank, int pattern, std::size_t index) {
  const auto key = static_cast<std::uint64_t>(pattern) * kPeriod + index;
  const auto random = mix(key * 4096 + static_cast<std::uint64_t>(rank));
  const bool is_signed = type != CANARY_U8;
  if (redop == CANARY_PROD) {
    // At most two ranks contribute a 2, the others ±1, so the product stays a small power of two.
    const auto n = static_cast<std::uint64_t>(ranks), self = static_cast<std::uint64_t>(rank);
    const bool two = mix(key) % n == self || mix(~key) % n == self;
    return (two ? 2 : 1) * (is_signed && (random & 1) != 0 ? -1 : 1);
  }
  std::int64_t limit = exact_limit(type);
  if (redop == CANARY_SUM || redop == CANARY_AVG) {
    if (is_integer(type) && redop == CANARY_SUM) {
      return static_cast<std::int64_t>(random);  // integers may wrap
    }
    // Any partial sum must be exact; if ranks outnumber the room for it, only the first ones contribute.
    if (rank >= limit) return 0;
    limit = std::max<std::int64_t>(1, limit / ranks);
  }
  limit = std::min<std::int64_t>(limit, 1 << 20);
  const auto span = static_cast<std::uint64_t>(is_signed ? 2 * limit + 1 : limit + 1);
  return static_cast<std::int64_t>(random % span) - (is_signed ? limit : 0);
}

void store(canary_type type, double exact, std::int64_t integer, std::byte* to) {
  switch (type) {
    case CANARY_F32: {
      const auto v = static_cast<float>(exact);
      std::memcpy(to, &v, sizeof v);
      return;
    }
    case CANARY_F64:
      std::memcpy(to, &exact, sizeof exact);
      return;
    case CANARY_F16: {
      const auto v = to_f16(static_cast<float>(exact));
      std::memcpy(to, &v, sizeof v);
      return;
    }
    case CANARY_BF16: {
      const auto v = to_bf16(static_cast<float>(exact));
      std::memcpy(to, &v, sizeof v);
      return;
    }
    case CANARY_I8:
    case CANARY_U8:
    case CANARY_I32:
    case CANARY_I64:
      std::memcpy(to, &integer, element_bytes(type));
      return;  // little-endian: the low bytes, wrapped
  }
}

static_assert(std::endian::native == std::endian::little, "integers are stored by their low bytes");

Table make_table(canary_type type) {
  const auto element = element_bytes(type);
  return {std::vector<std::byte>(kPeriod * element), element};
}

// The value of the wrapped integer, as the type holds it.
std::int64_t wrapped(canary_type type, std::int64_t v) {
  switch (type) {
    case CANARY_I8:
      return static_cast<std::int8_t>(v);
    case CANARY_U8:
      return static_cast<std::uint8_t>(v);
    case CANARY_I32:
      return static_cast<std::int32_t>(v);
    default:
      return v;
  }
}

}  // namespace

std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const float magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  // In units of the last place of a binary16 with this exponent; nearbyint rounds to nearest even.
  const int exponent = std::max(std::ilogb(magnitude), -14);
  auto mantissa = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  // A mantissa that rounded up to 2048 carries into the exponent by itself, as does a denormal that became normal.
  const auto biased = static_cast<std::uint32_t>(exponent + 14);
  return static_cast<std::uint16_t>(sign + (biased << 10) + mantissa);
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

Table input_table(canary_type type, canary_redop redop, int ranks, int rank, int pattern) {
  Table table = make_table(type);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    const auto v = input_value(type, redop, ranks, rank, pattern, i);
    store(type, static_cast<double>(v), v, table.bytes.data() + i * table.element);
  }
  return table;
}

Table reduced_table(canary_type type, canary_redop redop, int ranks, int pattern) {
  Table table = make_table(type);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    auto total = wrapped(type, input_value(type, redop, ranks, 0, pattern, i));
    for (int rank = 1; rank < ranks; ++rank) {
      const auto v = wrapped(type, input_value(type, redop, ranks, rank, pattern, i));
      switch (redop) {
        case CANARY_SUM:
        case CANARY_AVG:
          total = static_cast<std::int64_t>(static_cast<std::uint64_t>(total) + static_cast<std::uint64_t>(v));
          break;
        case CANARY_MIN:
          total = std::min(total, v);
          break;
        case CANARY_MAX:
          total = std::max(total, v);
          break;
        case CANARY_PROD:
          total *= v;
          break;
      }
    }
    double exact = static_cast<double>(total);
    if (redop == CANARY_AVG) {
      total /= ranks;  // truncates toward zero
      // It is divided in the precision of the type's arithmetic: rounding through a wider one would round twice.
      exact = type == CANARY_F64 ? exact / ranks : static_cast<float>(exact) / static_cast<float>(ranks);
    }
    store(type, exact, total, table.bytes.data() + i * table.element);
  }
  return table;
}

void fill(const Table& table, std::size_t first, std::byte* output, std::size_t count) {
  for (std::size_t done = 0; done < count;) {
    const auto at = (first + done) % kPeriod;
    const auto run = std::min(count - done, kPeriod - at);
    std::memcpy(output + done * table.element, table.bytes.data() + at * table.element, run * table.element);
    done += run;
  }
}

std::size_t count_wrong(const Table& table, std::size_t first, const std::byte* data, std::size_t count) {
  std::size_t wrong = 0;
  for (std::size_t done = 0; done < count;) {
    const auto at = (first + done) % kPeriod;
    const auto run = std::min(count - done, kPeriod - at);
    const std::byte* got = data + done * table.element;
    const std::byte* expected = table.bytes.data() + at * table.element;
    if (std::memcmp(got, expected, run * table.element) != 0) {
      for (std::size_t i = 0; i < run; ++i) {
        wrong += std::memcmp(got + i * table.element, expected + i * table.element, table.element) != 0;
      }
    }
    done += run;
  }
  return wrong;
}

std::uint64_t hash_of(const std::byte* data, std::size_t bytes) {
  std::uint64_t hash = mix(bytes);
  for (std::size_t at = 0; at < bytes; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, std::min<std::size_t>(8, bytes - at));
    hash = (std::rotl(hash, 29) ^ word) * 0x9e3779b97f4a7c15ull;
  }
  return mix(hash);
}

}  // namespace canarynet::perf

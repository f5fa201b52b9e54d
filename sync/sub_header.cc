#include "sync/sub_header.h"

namespace canarynet::sync {
namespace {

constexpr std::uint8_t kNull = 1;
constexpr std::uint8_t kWholeSet = 2;
constexpr std::uint8_t kOpening = 4;
constexpr std::size_t kNumberBytesMax = 5;  // 31 bits, seven a byte

std::size_t padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }
std::size_t bitmap_bytes(int workers) { return (static_cast<std::size_t>(workers) + 7) / 8; }

template <typename T>
void put(std::uint8_t* at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

template <typename T>
T get(const std::uint8_t* at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value | (static_cast<T>(at[i]) << (8 * i)));
  return value;
}

std::size_t put_number(std::uint8_t* at, Iteration value) {
  std::size_t n = 0;
  for (; value >= 0x80; value >>= 7) at[n++] = static_cast<std::uint8_t>((value & 0x7f) | 0x80);
  at[n++] = static_cast<std::uint8_t>(value);
  return n;
}

// A reader that stays at its first failure.
struct Reader {
  std::span<const std::uint8_t> bytes;
  std::size_t at;
  const char* why = nullptr;

  Iteration number() {
    Iteration value = 0;
    for (std::size_t n = 0; n < kNumberBytesMax; ++n) {
      if (at == bytes.size()) return fail("the contributors are cut short");
      const std::uint8_t byte = bytes[at++];
      value |= static_cast<Iteration>(byte & 0x7f) << (7 * n);
      if ((byte & 0x80) != 0) continue;
      if (byte == 0 && n > 0) return fail("a number is longer than it needs to be");
      return value > kIterationMax ? fail("a number is too large") : value;
    }
    return fail("a number has no end");
  }
  Iteration fail(const char* reason) {
    if (why == nullptr) why = reason;
    return 0;
  }
};

}  // namespace

std::size_t sub_header_bytes_max(int workers) {
  return padded(kSubHeaderFixedBytes + bitmap_bytes(workers) + static_cast<std::size_t>(workers) * 2 * kNumberBytesMax);
}

std::size_t encode(const SubHeader& header, const Contributors& set, std::span<std::uint8_t> out) {
  const int workers = set.set().workers();
  CANARY_CHECK(out.size() >= sub_header_bytes_max(workers), "no room for a sub-header");
  CANARY_CHECK(header.newest >= set.newest() && header.newest >= header.iteration && header.newest <= kIterationMax,
               "a piece newer than the newest iteration");
  CANARY_CHECK(!header.opening || set.empty(), "a notice with contributors");
  const bool null = set.empty();
  const bool whole = header.whole_set && !null;
  out[0] = kSubHeaderVersion;
  out[1] = static_cast<std::uint8_t>((null ? kNull : 0) | (whole ? kWholeSet : 0) | (header.opening ? kOpening : 0));
  put(&out[2], header.colayer);
  put(&out[4], header.layout);
  put(&out[6], static_cast<std::uint16_t>(workers));
  put(&out[8], header.round);
  put(&out[12], static_cast<std::uint32_t>(header.newest));
  put(&out[16], static_cast<std::uint32_t>(header.iteration));
  put(&out[20], set.hash());
  std::size_t at = kSubHeaderFixedBytes;
  if (whole) {
    for (std::size_t i = 0; i < bitmap_bytes(workers); ++i) {
      out[at++] = static_cast<std::uint8_t>(set.set().bits(i / 8) >> (8 * (i % 8)));
    }
    for (int w = set.set().next(); w >= 0; w = set.set().next(w + 1)) {
      const IterationRange range = set.of(w);
      at += put_number(&out[at], header.newest - range.last);
      at += put_number(&out[at], range.last - range.first);
    }
  }
  while (at != padded(at)) out[at++] = 0;
  return at;
}

const char* decode(std::span<const std::uint8_t> bytes, const SubHeaderBounds& bounds, SubHeader* header,
                   Contributors* set, std::size_t* used) {
  if (bytes.size() < kSubHeaderFixedBytes) return "shorter than a sub-header";
  if (bytes[0] != kSubHeaderVersion) return "another version of the sub-header";
  const std::uint8_t flags = bytes[1];
  if ((flags & ~(kNull | kWholeSet | kOpening)) != 0) return "unknown flags";
  header->null = (flags & kNull) != 0;
  header->whole_set = (flags & kWholeSet) != 0;
  header->opening = (flags & kOpening) != 0;
  header->colayer = get<std::uint16_t>(&bytes[2]);
  header->layout = get<std::uint16_t>(&bytes[4]);
  header->round = get<std::uint32_t>(&bytes[8]);
  header->newest = get<std::uint32_t>(&bytes[12]);
  header->iteration = get<std::uint32_t>(&bytes[16]);
  header->set_hash = get<std::uint32_t>(&bytes[20]);
  if (header->layout != bounds.layout) return "another layout of the colayers";
  if (header->colayer >= bounds.colayers) return "no such colayer";
  if (get<std::uint16_t>(&bytes[6]) != bounds.workers) return "another number of workers";
  if (header->round == 0) return "rounds count from 1";
  if (header->newest > kIterationMax) return "an iteration beyond the limit";
  if (header->iteration == 0 || header->iteration > header->newest) return "an iteration newer than the newest";
  if (header->null != (header->set_hash == 0)) return "a null piece with contributors, or a sum of nobody's";
  if (header->null && header->whole_set) return "a null piece with contributors";
  if (header->opening && !header->null) return "a notice that is part of a round";

  Reader reader{bytes, kSubHeaderFixedBytes};
  if (header->whole_set) {
    const std::size_t map = bitmap_bytes(bounds.workers);
    if (bytes.size() - reader.at < map) return "the contributors are cut short";
    reader.at += map;
    set->clear();
    for (std::size_t bit = 0; bit < map * 8; ++bit) {
      if (((bytes[kSubHeaderFixedBytes + bit / 8] >> (bit % 8)) & 1) == 0) continue;
      if (bit >= static_cast<std::size_t>(bounds.workers)) return "a contributor outside of the session";
      const Iteration last = header->newest - reader.number();
      const Iteration first = last - reader.number();
      if (reader.why != nullptr) return reader.why;
      if (first < 1) return "a contribution from before the first iteration";
      set->add(static_cast<int>(bit), {first, last});
    }
    if (set->hash() != header->set_hash) return "the contributors do not match their hash";
  }
  *used = padded(reader.at);
  if (bytes.size() < *used) return "the padding is cut short";
  for (std::size_t i = reader.at; i < *used; ++i) {
    if (bytes[i] != 0) return "the padding is not zero";
  }
  return nullptr;
}

}  // namespace canarynet::sync

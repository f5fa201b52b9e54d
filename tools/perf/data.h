// tools/perf/data.h -- the numbers that are exchanged, and the results that they must give.
//
// Inputs are small whole numbers (all reductions are exact in every type and order; integers may wrap), pseudo-random
// with a period of kPeriod elements, so that the exact result is known from one period and compared as bytes. kPeriod
// is a prime, so swapped blocks and pieces do not go unnoticed. Two patterns differ everywhere it matters, so that a
// stale output does not pass for a fresh one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "canarynet/types.h"

namespace canarynet::perf {

inline constexpr std::size_t kPeriod = 1021;

// One period of elements, as bytes.
struct Table {
  std::vector<std::byte> bytes;
  std::size_t element = 0;  // bytes each
};

// The input of `rank` of `ranks` for a reduction by `redop`. Operations that do not reduce use CANARY_MAX's.
Table input_table(canary_type type, canary_redop redop, int ranks, int rank, int pattern);
// The result of the reduction.
Table reduced_table(canary_type type, canary_redop redop, int ranks, int pattern);

// output[i] = table[(first + i) mod kPeriod].
void fill(const Table& table, std::size_t first, std::byte* output, std::size_t count);
// Counts how many of `count` elements differ from that.
std::size_t count_wrong(const Table& table, std::size_t first, const std::byte* data, std::size_t count);

// A hash of the bytes; the same on all machines of one byte order.
std::uint64_t hash_of(const std::byte* data, std::size_t bytes);

// Rounds to nearest even; takes finite values within the type's range.
std::uint16_t to_f16(float value);
std::uint16_t to_bf16(float value);

}  // namespace canarynet::perf

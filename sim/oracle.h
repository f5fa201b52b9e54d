// sim/oracle.h -- what a collective must give: fills inputs with small integers whose result is exact in every type, and compares.
//
// Element i of rank r is a small integer made from (salt, r, i); sums, averages, minima, maxima and products of it over up to 64 ranks
// are exact in every type but for AVG and wrapped integers, whose expected value goes through the same final step (divide(), two's
// complement). Results are compared bit by bit. Pure; allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"

namespace canarynet::oracle {

struct Shape {
  Collective collective = Collective::kAllReduce;
  int ranks = 1;
  std::uint64_t count = 0;  // as the caller counts
  DataType type = CANARY_F32;
  ReduceOp redop = CANARY_SUM;
  int root = 0;
  std::uint64_t salt = 0;
  // all_gather_v: of each rank's block. all_to_all_v: [source * ranks + target].
  std::vector<std::uint64_t> counts = {};
};

// Uneven counts for the collectives that have them, some of them 0, about `mean` each; from the salt.
void draw_counts(Shape* shape, std::uint64_t mean);
// What rank passes as OpRequest::counts (all_to_all_v: places behind one another). Empty for collectives without.
std::vector<std::uint64_t> counts_of(const Shape& shape, int rank);
// Whether the collective may be called in place.
bool can_be_in_place(const Shape& shape);

// Of one rank (group rank); 0 where the operation reads or writes nothing.
std::size_t input_bytes(const Shape& shape, int rank);
std::size_t output_bytes(const Shape& shape, int rank);
// In place: how far into the shared memory a rank's input and output begin. The memory is as long as the larger of them.
std::size_t in_place_input(const Shape& shape, int rank);
std::size_t in_place_output(const Shape& shape, int rank);
// Input of one rank, input_bytes() long.
void fill_input(const Shape& shape, int rank, void* input);
// The one right output of a rank, output_bytes() long.
void expected_output(const Shape& shape, int rank, void* output);
// "" when equal, else which element differs and how.
std::string compare(const Shape& shape, int rank, const void* output);
std::string to_string(const Shape& shape);

}  // namespace canarynet::oracle

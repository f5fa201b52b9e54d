// sim/oracle.h -- the right results of collectives: fills inputs, knows the right outputs, and judges what has come.
//
// Inputs follow from (salt, rank, element). If nothing is reduced they are random bits. Integers are random in their
// whole range: sums and products wrap, which no order changes, and a contribution that is missing, doubled or another
// element's shows. Floats are one of two kinds. Whole numbers (products: powers of two) are exact in every order and
// compared bit by bit. With Shape::rounds they are random fractions: the result depends on the order of reduction, must
// be within the error that so many roundings allow, and must have the same bits on all ranks and on every run of the
// same schedule.
// The end of AVG is the library's own divide(). Pure; allocates.
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
  bool rounds = false;  // floats are random fractions, not whole numbers
  // all_gather_v: of each rank's block. all_to_all_v: [source * ranks + target].
  std::vector<std::uint64_t> counts = {};
};

// Draws uneven counts from the salt, some of them 0, about `mean` each, for the collectives that have them.
void draw_counts(Shape* shape, std::uint64_t mean);
// The counts that rank passes as OpRequest::counts (all_to_all_v: places behind one another); empty if there are none.
std::vector<std::uint64_t> counts_of(const Shape& shape, int rank);
// Whether the collective may be called in place.
bool can_be_in_place(const Shape& shape);

// Bytes of one rank (group rank); 0 if the operation reads or writes nothing there.
std::size_t input_bytes(const Shape& shape, int rank);
std::size_t output_bytes(const Shape& shape, int rank);
// In place: how far into the shared memory a rank's input and output begin. The memory is as long as the longer of the
// two.
std::size_t in_place_input(const Shape& shape, int rank);
std::size_t in_place_output(const Shape& shape, int rank);
// Fills the input of one rank, input_bytes() long.
void fill_input(const Shape& shape, int rank, void* input);
// Writes the one right output of a rank, output_bytes() long.
void expected_output(const Shape& shape, int rank, void* output);
// Whether the bits of the result depend on the order of reduction. Then compare() allows for rounding, and
// expected_output() does not apply.
bool rounds(const Shape& shape);
// Whether every rank gets the same output.
bool same_on_all(Collective collective);
// Returns "" if the output is right, else which element is wrong and how.
std::string compare(const Shape& shape, int rank, const void* output);
// A hash of bytes, to see whether they are those of another time or place.
std::uint64_t digest(const void* data, std::size_t bytes);

// Judges all outputs of one operation, each shown once, in any order: each must be right in itself, and have the same
// bits as the others if all ranks get the same.
class Judge {
 public:
  explicit Judge(const Shape& shape) : shape_(shape) {}
  // Like compare().
  std::string check(int rank, const void* output);

 private:
  Shape shape_;
  int first_rank_ = -1;
  std::vector<std::byte> first_;  // the first output, if all must be the same
};

std::string to_string(const Shape& shape);

}  // namespace canarynet::oracle

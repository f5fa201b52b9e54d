// collectives/piece_coder.h -- the encoded pieces of one operation whose values travel through a codec.
//
// Every piece is a segment of its own (compress/codec.h), so a program with a codec runs on the piece grid like any
// other one: what a piece's dependencies say holds for its encoding as well. An encoded piece begins with one byte that
// tells its form: values as encode_whole() makes them, or a *refusal* in their place, which names the element that the
// codec does not encode. A refusal takes the way of the sum that it spoils, so all ranks get the same one. Where null
// pieces may be sent (collectives/null_piece.h), that byte alone is a piece of zeros, of which nothing is left out.
//
// Slots: a task that makes or receives an encoded piece has a slot for it. A piece that is complete is encoded once, by
// the rank that completes it, and the same bytes go everywhere: all ranks decode the same.
// What is left out: the difference between what this rank encoded and what that decodes to. Given back to this rank's
// next input it is late, not lost: over all ranks, inputs = result + what was left out.
//
// Memory: workspace and slots are reserved address space, whose pages come with their first use. Thread: one.
// Throws std::bad_alloc from the constructor, nothing else allocates but the text of a failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/reserved.h"
#include "base/status.h"
#include "collectives/program.h"
#include "compress/codec.h"

namespace canarynet {

// What an operation with a codec has beside its buffers.
struct CodedCall {
  std::uint32_t rank = 0;                // of the caller in the world, for refusals
  std::uint64_t round = 0;               // equal on all ranks, another one for every operation
  std::span<const float> residual = {};  // is added to the input; empty: nothing is
  std::span<float> left_out = {};        // to which is added what this rank's encodings leave out; empty: nobody asks
  std::uint32_t ranks = ~std::uint32_t{0};  // in the world: no refusal names another one
};

// An element that the codec does not encode: which one, of whose input.
struct Refusal {
  std::uint64_t element = ~std::uint64_t{0};
  std::uint32_t rank = ~std::uint32_t{0};
  float value = 0;
  bool there() const { return element != ~std::uint64_t{0}; }
  bool before(const Refusal& other) const {
    return element != other.element ? element < other.element : rank < other.rank;
  }
};

class PieceCoder {
 public:
  struct Encoded {
    const std::byte* data = nullptr;
    std::uint32_t bytes = 0;
    bool null = false;
  };
  struct Totals {
    std::uint64_t value_bytes = 0, encoded_bytes = 0;  // of the pieces that this rank encoded
    double energy = 0, sent_energy = 0;  // sums of squares, before and after; where what is left out counts
    double left_energy = 0;              // of what is left out
  };

  explicit PieceCoder(const Program& program);

  // `null_pieces`: zeros are encoded as a null piece.
  void begin(const CodedCall& call, bool null_pieces = false);
  // output = input + residual
  void take_input(const float* input, float* output, std::uint64_t count) const;

  // The slot of a task. What lands there whole is told to note().
  std::byte* slot(std::uint32_t task) const { return slots_.begin() + std::size_t{task} * stride_; }
  void note(std::uint32_t task, std::uint32_t bytes) { length_[task] = bytes; }
  std::span<const std::byte> in_slot(std::uint32_t task) const { return {slot(task), length_[task]}; }
  // The bytes that a send of `piece` takes, whose values lie at `values`; encodes them where that has not been done.
  Encoded to_send(std::uint32_t task, std::uint32_t piece, const float* values);
  std::uint32_t crc_of(std::uint32_t task);
  void note_crc(std::uint32_t task, std::optional<std::uint32_t> crc) { crc_[slot_task(task)] = crc; }

  // Encodes a piece that is complete into the task's slot and replaces its values by what everybody else will decode.
  // `weight`: how many times as much of the inputs is missing as the values lack (averages: the number of ranks).
  void complete(std::uint32_t task, std::uint32_t piece, float* values, float weight);
  // Adds an arrived partial sum to `values`, or replaces them by a complete piece.
  Status add(std::uint32_t piece, std::span<const std::byte> encoded, float* values);
  Status replace(std::uint32_t piece, std::span<const std::byte> encoded, float* values);

  // The first element that was refused, once all pieces are complete. The same on all ranks.
  Refusal refusal() const;
  // "element 7 of rank 2 is nan, which codec int8 does not encode".
  std::string text_of(const Refusal& refusal) const;
  const Totals& totals() const { return totals_; }

 private:
  std::uint32_t slot_task(std::uint32_t task) const { return program_.slot_of_task[task]; }
  bool is_null(std::uint32_t task) const;
  Coding coding(std::uint32_t piece) const;
  std::uint64_t first_element(std::uint32_t piece) const;
  void encode(std::uint32_t task, std::uint32_t piece, const float* values);
  void leave_out(std::uint32_t piece, const float* values, const float* sent, float weight);
  Status decode(std::uint32_t piece, std::span<const std::byte> encoded, float* out, bool add, Refusal* refusal);

  const Program& program_;
  std::size_t stride_ = 0;
  Reserved slots_;
  Reserved workspace_memory_;
  std::span<std::byte> workspace_;
  Reserved sent_memory_;               // a piece as it decodes
  std::vector<std::uint32_t> length_;  // per task, of what is in its slot; 0: nothing
  std::vector<std::optional<std::uint32_t>> crc_;
  std::vector<Refusal> refusals_;  // per piece
  CodedCall call_;
  bool null_pieces_ = false;
  Totals totals_;
};

// Bytes of values that a piece should have, for a job whose pieces have `piece_bytes` otherwise, where `part_bytes` go
// from one rank to another: enough to make a codebook worth its bytes, no more than encode to a frame, and a part has
// several pieces, or the one that it is would travel by one NIC, and if late, whole by another one as well. A multiple
// of 128.
std::uint32_t coded_piece_bytes(const CodecSpec& spec, std::uint32_t piece_bytes, std::uint64_t part_bytes);
// A bound for an encoded piece of so many elements.
std::size_t encoded_bytes_max(const CodecSpec& spec, std::size_t elements);

}  // namespace canarynet

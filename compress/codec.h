// compress/codec.h -- gradient codecs: f32 values to bytes and back, segment by segment, piece by piece.
//
// A *segment* is what is fitted as one: a range of the bucket, one tensor, or one colayer. Its *head* holds what all of
// its pieces share (a codebook, a scale, factors) and travels once. A *piece* is any range of the segment's elements;
// its *body* is encoded and decoded by itself, in any order, while other pieces are under way. So the steps are
//
//   SegmentEncoder: fit (reads all values, writes the head), then encode for each piece
//   SegmentDecoder: open (checks the head), then decode or decode_add for each piece
//
// and encode_whole / decode_whole for a segment in one message: head length (u32), head, body. Bytes are little-endian.
//
// Memory: everything is the caller's. The workspace (workspace_bytes, any alignment) is written by fit or open and only
// read by encode and decode; it must stay where it is in between. Sizes of heads and bodies have bounds that are known
// before anything runs. Nothing allocates except the text of a failure.
// Threads: fit and open alone; afterwards pieces may be encoded, or decoded, by several threads at once.
// Errors: values that are NaN or infinite fail with CANARY_INVALID_ARGUMENT and name the first one's index (or the
// segment travels dense: CodecSpec::or_dense). Bytes that no encoder can have written fail with CANARY_MISMATCH and the
// reason; whatever the bytes, nothing outside the given buffers is read or written. After a failed decode the output is
// unspecified (partly written or added).
// Floating-point environment: that of kernels/reduce.h (DenormalGuard).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "base/types.h"
#include "compress/spec.h"

namespace canarynet {

inline constexpr std::size_t kSegmentElementsMax = 0xFFFFFFFF;  // indices travel as u32

struct Segment {
  std::size_t count = 0;  // elements
  // Its shape where it is a matrix, row by row: rows * columns == count. 0 x 0: a vector. power and svd need a shape.
  std::size_t rows = 0;
  std::size_t columns = 0;
  // Elements of its layers, in order, none empty: their sum is `count`. Empty: one layer. Only lwtopk looks at it. The
  // caller's memory.
  std::span<const std::size_t> layers = {};
  std::uint64_t round = 0;  // number of the exchange, the same at both ends: what is random differs from round to round
};

// What both ends must agree on. Part of the operation's signature.
struct Coding {
  CodecSpec spec;
  Segment segment;
};

// OK, or which part of the spec or of the segment's shape does not fit.
Status check(const Coding& coding);

struct Piece {  // of a segment, in elements
  std::size_t begin = 0;
  std::size_t count = 0;
};

// How sums of several ranks' values may travel.
enum class PartialSums : std::uint8_t {
  // Bodies of equal pieces are arrays of `element`: reduce_kernel(element, CANARY_SUM) adds them without decoding.
  kAddBodies,
  // Each hop decodes, adds in f32, fits and encodes again; every hop adds its own error.
  kRecode,
  // Ranks keep different values, so a sum has more of them than a rank may send: gather all bodies, decode_add each.
  kGather,
  // Factors are summed in two all-reduces (low_rank.h: power_left, power_right); or like kGather.
  kFactors,
};

struct CodecTraits {
  bool lossless = false;    // decode(encode(x)) == x for all finite x
  bool sparsifier = false;  // a decoded value is exactly the input's, or 0
  bool has_head = false;    // false: heads are empty (unless or_dense) and need not be sent
  bool pieces = true;       // false: everything travels in the head, bodies are empty
  bool fitted = true;       // false: encode takes values that fit has not seen, and checks them
  PartialSums sums = PartialSums::kRecode;
  DataType element = CANARY_F32;  // of kAddBodies
};
CodecTraits traits_of(const CodecSpec& spec);

// Bounds. They hold for every input; `coding` must be good.
std::size_t head_bytes_max(const Coding& coding);
std::size_t body_bytes_max(const Coding& coding, Piece piece);
std::size_t workspace_bytes(const Coding& coding);
std::size_t whole_bytes_max(const Coding& coding);
// Numbers that the codec carries from one fit of a tensor to the next (power's warm start); zeros to begin with. 0 for
// all other codecs.
std::size_t state_floats(const Coding& coding);

class SegmentEncoder {
 public:
  // `coding` must be good (CANARY_CHECK), `workspace` have workspace_bytes and `state` state_floats, or be empty: then
  // every fit begins cold.
  SegmentEncoder(const Coding& coding, std::span<std::byte> workspace, std::span<float> state = {});

  // Reads all `segment.count` values and writes the head; returns its bytes. `head` has head_bytes_max.
  Result<std::size_t> fit(const float* values, std::span<std::uint8_t> head);
  // `values` is the piece's first value. Returns the bytes of the body; `body` has body_bytes_max. For a codec whose
  // `fitted` is true, the values are those given to fit: a sparsifier takes them from its selection.
  Result<std::size_t> encode(Piece piece, const float* values, std::span<std::uint8_t> body) const;
  // After fit: the segment travels dense, as or_dense asks for.
  bool dense() const { return dense_; }

 private:
  Coding coding_;
  std::span<std::byte> workspace_;
  std::span<float> state_;
  bool dense_ = false;
  bool fitted_ = false;
};

class SegmentDecoder {
 public:
  SegmentDecoder(const Coding& coding, std::span<std::byte> workspace);

  Status open(std::span<const std::uint8_t> head);
  // `out` is the piece's first element. decode overwrites all piece.count elements, decode_add adds to them.
  Status decode(Piece piece, std::span<const std::uint8_t> body, float* out) const;
  Status decode_add(Piece piece, std::span<const std::uint8_t> body, float* out) const;

 private:
  Status decode(Piece piece, std::span<const std::uint8_t> body, float* out, bool add) const;

  Coding coding_;
  std::span<std::byte> workspace_;
  bool dense_ = false;
  bool opened_ = false;
};

// A segment in one message. `out` has whole_bytes_max.
Result<std::size_t> encode_whole(const Coding& coding, const float* values, std::span<std::byte> workspace,
                                 std::span<float> state, std::span<std::uint8_t> out);
Status decode_whole(const Coding& coding, std::span<const std::uint8_t> bytes, std::span<std::byte> workspace,
                    float* out, bool add);

// Index of the first value that is NaN or infinite; `count` if there is none.
std::size_t first_not_finite(const float* values, std::size_t count);

// Inputs of other types go through f32: `type` is CANARY_F32, CANARY_F16 or CANARY_BF16. widen_values is exact;
// narrow_values rounds to nearest and keeps to the greatest finite number.
void widen_values(DataType type, const void* values, std::size_t count, float* out);
void narrow_values(DataType type, const float* values, std::size_t count, void* out);

}  // namespace canarynet

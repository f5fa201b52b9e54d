// compress/method.h -- one codec's part behind codec.h; internal to compress/.
//
// A Method has no state. codec.cc has checked the coding, the piece's range, the sizes of workspace and output, and
// handles dense segments; a method checks heads and bodies, which come from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "compress/codec.h"

namespace canarynet {

// Hands out parts of a workspace, aligned to cache lines, in the order of the calls: the same calls find the same parts
// again. With no memory behind it, it only counts, and its pointers lead nowhere.
class Carver {
 public:
  Carver() = default;
  explicit Carver(std::span<std::byte> memory)
      : at_((reinterpret_cast<std::uintptr_t>(memory.data()) + kLine - 1) / kLine * kLine) {}

  template <typename T>
  T* take(std::size_t count) {
    const std::uintptr_t part = at_ + used_;
    used_ += (count * sizeof(T) + kLine - 1) / kLine * kLine;
    return reinterpret_cast<T*>(part);
  }
  // What a workspace must have for these parts, wherever it begins.
  std::size_t bytes() const { return used_ == 0 ? 0 : used_ + kLine; }

 private:
  static constexpr std::size_t kLine = 64;
  std::uintptr_t at_ = kLine;
  std::size_t used_ = 0;
};

class Method {
 public:
  virtual CodecTraits traits() const = 0;
  virtual Status check(const Coding& /*coding*/) const { return {}; }
  virtual std::size_t head_max(const Coding& /*coding*/) const { return 0; }
  virtual std::size_t body_max(const Coding& coding, Piece piece) const = 0;
  virtual std::size_t workspace(const Coding& /*coding*/) const { return 0; }
  virtual std::size_t state_floats(const Coding& /*coding*/) const { return 0; }
  // Returns the bytes of the head, or refused() if a value is not finite.
  virtual Result<std::size_t> fit(const Coding& /*coding*/, const float* /*values*/, std::span<std::byte> /*workspace*/,
                                  std::span<float> /*state*/, std::uint8_t* /*head*/) const {
    return std::size_t{0};
  }
  virtual Result<std::size_t> encode(const Coding& coding, Piece piece, const float* values,
                                     std::span<std::byte> workspace, std::uint8_t* body) const = 0;
  virtual Status open(const Coding& coding, std::span<const std::uint8_t> head, std::span<std::byte> workspace) const;
  virtual Status decode(const Coding& coding, Piece piece, std::span<const std::uint8_t> body,
                        std::span<std::byte> workspace, float* out, bool add) const = 0;

 protected:
  ~Method() = default;  // methods are constants
};

// One of each kind.
const Method& dense_method();
const Method& f16_method();
const Method& bf16_method();
const Method& int8_method();
const Method& sketch_method();
const Method& top_k_method();
const Method& layer_top_k_method();
const Method& ms_top_k_method();
const Method& random_k_method();
const Method& one_bit_method();
const Method& sign_sgd_method();
const Method& tern_grad_method();
const Method& power_method();
const Method& svd_method();

// CANARY_INVALID_ARGUMENT: "value 7 of 100 is nan, which int8 does not encode". `first` is added to the index.
Status refused(const CodecSpec& spec, const float* values, std::size_t count, std::size_t first = 0);
// CANARY_MISMATCH: "int8 head: why".
Status malformed(const CodecSpec& spec, const char* part, const std::string& why);
// OK if a head or body has the bytes that it must have.
Status expect_bytes(const CodecSpec& spec, const char* part, std::size_t bytes, std::size_t expected);

template <typename T>
T load(const std::uint8_t* bytes, std::size_t index = 0) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void store(std::uint8_t* bytes, T value, std::size_t index = 0) {
  std::memcpy(bytes + index * sizeof(T), &value, sizeof(T));
}

// A random number that depends on (seed, round, index) alone, so that each piece finds its own: SplitMix64's finisher
// over the three.
constexpr std::uint64_t mixed(std::uint64_t word) {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ULL;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBULL;
  return word ^ (word >> 31);
}
class RandomNumbers {
 public:
  constexpr RandomNumbers(std::uint64_t seed, std::uint64_t round) : base_(mixed(mixed(seed + kStep) + round)) {}
  constexpr std::uint64_t at(std::uint64_t index) const { return mixed(base_ + index * kStep); }

 private:
  static constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ULL;
  std::uint64_t base_;
};
// Uniform in [0, bound).
inline std::uint64_t random_below(std::uint64_t random, std::uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(random) * bound) >> 64);
}

}  // namespace canarynet

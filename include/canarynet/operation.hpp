// canarynet/operation.hpp -- an operation in flight: the buffers that it takes, how it is to be done, and its failure.
//
// canarynet.hpp includes this header, and its rules hold here: handles clean up, failures throw Error, and threads are
// as in canarynet.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "canarynet/canarynet.h"

namespace canarynet {
// An inline namespace keeps these symbols apart from those of another version and those inside the library.
inline namespace v0 {

// The bits of 16-bit floats, for which C++20 has no types. There is no arithmetic: convert with your framework's.
struct f16 {
  std::uint16_t bits = 0;
  bool operator==(const f16&) const = default;
};
struct bf16 {
  std::uint16_t bits = 0;
  bool operator==(const bf16&) const = default;
};

namespace detail {

template <typename T>
struct TypeOf {};
template <canary_type kType>
struct Known {
  static constexpr canary_type value = kType;
};
// clang-format off
template <> struct TypeOf<float> : Known<CANARY_F32> {};
template <> struct TypeOf<double> : Known<CANARY_F64> {};
template <> struct TypeOf<f16> : Known<CANARY_F16> {};
template <> struct TypeOf<bf16> : Known<CANARY_BF16> {};
template <> struct TypeOf<std::int8_t> : Known<CANARY_I8> {};
template <> struct TypeOf<std::uint8_t> : Known<CANARY_U8> {};
template <> struct TypeOf<std::int32_t> : Known<CANARY_I32> {};
template <> struct TypeOf<std::int64_t> : Known<CANARY_I64> {};
// clang-format on

template <typename R>
using ElementOf = std::remove_cv_t<std::ranges::range_value_t<R>>;

// The list that a call with the arguments (list, capacity, &count) fills.
template <typename T, typename Call>
std::vector<T> listed(Call call) {
  std::size_t count = 0;
  std::vector<T> list(8);
  call(list.data(), list.size(), &count);
  if (count > list.size()) {
    list.resize(count);
    call(list.data(), list.size(), &count);
  }
  list.resize(count < list.size() ? count : list.size());
  return list;
}

}  // namespace detail

// Element types that have a wire type.
template <typename T>
concept Element = requires {
  detail::TypeOf<T>::value;
};
template <Element T>
inline constexpr canary_type type_of = detail::TypeOf<T>::value;

// A buffer to read, and one to write, of such elements.
template <typename R>
concept InputBuffer = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> && Element<detail::ElementOf<R>>;
template <typename R>
concept OutputBuffer = InputBuffer<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;
template <typename In, typename Out>
concept SameElement = std::is_same_v<detail::ElementOf<In>, detail::ElementOf<Out>>;

// A failure, with the fields of canary_error as values of its own.
class Error : public std::runtime_error {
 public:
  // The calling thread's last failure. `code` is used if the library has nothing to say about it.
  static Error last(canary_status code) {
    canary_error raw{};
    raw.struct_size = sizeof raw;
    if (canary_last_error(&raw) != CANARY_OK || raw.code != code) {
      raw = {};
      raw.code = code;
      raw.op_number = -1;
      raw.rank = -1;
    }
    return Error(raw);
  }
  Error(canary_status code, const std::string& message) : std::runtime_error(message), code_(code) {}

  canary_status code() const { return code_; }
  const std::string& op() const { return op_; }          // "all_reduce" or ""
  std::int64_t op_number() const { return op_number_; }  // -1: none
  std::uint32_t group() const { return group_; }
  std::uint32_t epoch() const { return epoch_; }
  int rank() const { return rank_; }  // the culprit's world rank; -1: unknown
  const std::string& host() const { return host_; }
  const std::string& device() const { return device_; }
  const std::string& phase() const { return phase_; }
  std::chrono::nanoseconds elapsed() const { return elapsed_; }

 private:
  static std::string text(const char* s) { return s != nullptr ? s : ""; }
  explicit Error(const canary_error& raw)
      : std::runtime_error(raw.message != nullptr && raw.message[0] != 0 ? raw.message : canary_status_name(raw.code)),
        code_(raw.code),
        op_(text(raw.op)),
        op_number_(raw.op_number),
        group_(raw.group),
        epoch_(raw.epoch),
        rank_(raw.rank),
        host_(text(raw.host)),
        device_(text(raw.device)),
        phase_(text(raw.phase)),
        elapsed_(static_cast<std::int64_t>(raw.elapsed_ns)) {}

  canary_status code_;
  std::string op_;
  std::int64_t op_number_ = -1;
  std::uint32_t group_ = 0;
  std::uint32_t epoch_ = 0;
  int rank_ = -1;
  std::string host_, device_, phase_;
  std::chrono::nanoseconds elapsed_{};
};

// Throws Error unless `status` is CANARY_OK. Use it for calls of canarynet.h made beside this header.
inline void check(canary_status status) {
  if (status != CANARY_OK) throw Error::last(status);
}

// How one operation is to be done.
struct OpOptions {
  canary_priority priority = CANARY_PRIORITY_NORMAL;  // for this rank alone; see canary_op_options
  std::chrono::nanoseconds deadline{};                // from the call on, as Operation::set_deadline(); 0: none
  std::uint32_t codec = 0;                            // all_reduce: of codec(); see canary_op_options
  std::uint64_t tensor = 0;                           // with a codec: whose error feedback takes what is left out
  float momentum = 0;                                 // with a tensor and a sparse codec; see canary_op_options
  std::uint64_t rows = 0;                             // with power or svd: of the matrix; see canary_op_options
};

// Which ranks reduce together, see canary_partial. `ranks` is read within the call.
struct Among {
  std::span<const int> ranks;         // of the group, the caller among them
  std::uint64_t number = 0;           // of this exchange, on which they agree
  std::optional<double> weight = {};  // this rank's; none: weights do not count
};

// The number of a codec; see canary_codec.
inline std::uint32_t codec(const char* text) {
  std::uint32_t number = 0;
  check(canary_codec(text, &number));
  return number;
}

// A codec that keeps more in the first steps; see canary_codec_warm_up.
inline std::uint32_t warm_up(std::uint32_t codec, double first, std::uint64_t step, std::uint64_t steps) {
  std::uint32_t now = 0;
  check(canary_codec_warm_up(codec, first, step, steps, &now));
  return now;
}

namespace detail {

inline canary_op_options raw(const OpOptions& options) {
  canary_op_options out = CANARY_OP_OPTIONS_INIT;
  out.priority = options.priority;
  // A deadline that has passed already becomes the shortest there is.
  if (options.deadline.count() != 0)
    out.deadline = options.deadline.count() > 0 ? static_cast<std::uint64_t>(options.deadline.count()) : 1;
  out.codec = options.codec;
  out.tensor = options.tensor;
  out.momentum = options.momentum;
  out.rows = options.rows;
  return out;
}

}  // namespace detail

// An operation in flight. It can be moved, and is empty after completion.
class [[nodiscard]] Operation {
 public:
  Operation() = default;
  explicit Operation(canary_op* handle) : handle_(handle) {}
  Operation(Operation&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Operation& operator=(Operation&& other) noexcept {
    if (this != &other) {
      finish();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Operation() { finish(); }

  bool pending() const { return handle_ != nullptr; }
  // Gives up the bare handle, which is now the caller's.
  canary_op* release() { return std::exchange(handle_, nullptr); }
  // Returns true once it has completed, false while it runs. Throws its failure.
  bool test() {
    if (handle_ == nullptr) return true;
    const canary_status status = canary_op_test(handle_);
    if (status == CANARY_WOULD_BLOCK) return false;
    handle_ = nullptr;
    check(status);
    return true;
  }
  // Returns once it has completed, at once if it is empty. Throws its failure.
  void wait() {
    if (handle_ != nullptr) check(canary_op_wait(std::exchange(handle_, nullptr)));
  }
  // The time counts from now; past it the operation fails with CANARY_DEADLINE.
  void set_deadline(std::chrono::nanoseconds from_now) {
    if (handle_ == nullptr) return;
    check(canary_op_set_deadline(handle_, from_now.count() > 0 ? static_cast<std::uint64_t>(from_now.count()) : 0));
  }

 private:
  // Its buffers may be about to go away, so the handle can't simply be dropped.
  void finish() noexcept {
    if (handle_ != nullptr) (void)canary_op_wait(std::exchange(handle_, nullptr));
  }
  canary_op* handle_ = nullptr;
};

}  // namespace v0
}  // namespace canarynet

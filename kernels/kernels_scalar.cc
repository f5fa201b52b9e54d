// The specification: plain C++, element by element. Every other variant must give the same bits (but for NaN payloads).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/half.h"
#include "kernels/variant.h"

namespace canarynet::kernels_scalar {
namespace {

struct Sum {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};

struct Prod {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(static_cast<U>(a) * static_cast<U>(b)));
    } else {
      return a * b;
    }
  }
};

struct Min {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a || b != b) return a + b;  // quiet NaN
      if (a == b) return std::signbit(a) ? a : b;
    }
    return b < a ? b : a;
  }
};

struct Max {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a || b != b) return a + b;
      if (a == b) return std::signbit(a) ? b : a;
    }
    return a < b ? b : a;
  }
};

// memcpy because only element alignment is promised for the type behind void*, and its dynamic type is the caller's.
template <typename T>
T load(const void* base, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + index * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void store(void* base, std::size_t index, T value) {
  std::memcpy(static_cast<char*>(base) + index * sizeof(T), &value, sizeof(T));
}

template <typename T, typename Op>
void reduce_all(void* dst, const void* a, const void* b, std::size_t elements) {
  for (std::size_t i = 0; i < elements; ++i) {
    if constexpr (std::is_arithmetic_v<T>) {
      store<T>(dst, i, Op::combine(load<T>(a, i), load<T>(b, i)));
    } else {
      T result;
      narrow(Op::combine(widen(load<T>(a, i)), widen(load<T>(b, i))), &result);
      store<T>(dst, i, result);
    }
  }
}

template <typename T>
void divide_all(void* data, std::size_t elements, std::uint32_t divisor) {
  for (std::size_t i = 0; i < elements; ++i) {
    if constexpr (std::is_integral_v<T>) {  // i64 holds every value of the narrower types and of the divisor
      store<T>(data, i,
               static_cast<T>(static_cast<std::int64_t>(load<T>(data, i)) / static_cast<std::int64_t>(divisor)));
    } else if constexpr (std::is_floating_point_v<T>) {
      store<T>(data, i, load<T>(data, i) / static_cast<T>(divisor));
    } else {
      T result;
      narrow(widen(load<T>(data, i)) / static_cast<float>(divisor), &result);
      store<T>(data, i, result);
    }
  }
}

template <typename T>
VariantReduceFn reduce_for(canary_redop op) {
  switch (op) {
    case CANARY_SUM:
    case CANARY_AVG:
      return reduce_all<T, Sum>;
    case CANARY_MIN:
      return reduce_all<T, Min>;
    case CANARY_MAX:
      return reduce_all<T, Max>;
    case CANARY_PROD:
      return reduce_all<T, Prod>;
  }
  return nullptr;
}

}  // namespace

VariantReduceFn reduce(canary_type type, canary_redop op) {
  switch (type) {
    case CANARY_F32:
      return reduce_for<float>(op);
    case CANARY_F64:
      return reduce_for<double>(op);
    case CANARY_F16:
      return reduce_for<Half>(op);
    case CANARY_BF16:
      return reduce_for<Brain>(op);
    case CANARY_I8:
      return reduce_for<std::int8_t>(op);
    case CANARY_U8:
      return reduce_for<std::uint8_t>(op);
    case CANARY_I32:
      return reduce_for<std::int32_t>(op);
    case CANARY_I64:
      return reduce_for<std::int64_t>(op);
  }
  return nullptr;
}

VariantDivideFn divide(canary_type type) {
  switch (type) {
    case CANARY_F32:
      return divide_all<float>;
    case CANARY_F64:
      return divide_all<double>;
    case CANARY_F16:
      return divide_all<Half>;
    case CANARY_BF16:
      return divide_all<Brain>;
    case CANARY_I8:
      return divide_all<std::int8_t>;
    case CANARY_U8:
      return divide_all<std::uint8_t>;
    case CANARY_I32:
      return divide_all<std::int32_t>;
    case CANARY_I64:
      return divide_all<std::int64_t>;
  }
  return nullptr;
}

}  // namespace canarynet::kernels_scalar

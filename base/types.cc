#include "base/types.h"

#include <array>

namespace canarynet {
namespace {

constexpr std::array<std::string_view, kDataTypeCount> kTypes = {"f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64"};
constexpr std::array<std::string_view, kReduceOpCount> kOps = {"sum", "avg", "min", "max", "prod"};
constexpr std::array<std::string_view, kCollectiveCount> kCollectives = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast",    "barrier",     "reduce",
    "gather",     "scatter",        "all_to_all", "all_gather_v", "all_to_all_v"};

template <typename T, std::size_t N>
bool find(const std::array<std::string_view, N>& names, std::string_view name, T* out) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) return *out = static_cast<T>(i), true;
  }
  return false;
}

template <std::size_t N>
std::string_view at(const std::array<std::string_view, N>& names, std::size_t i) {
  return i < N ? names[i] : std::string_view("?");
}

}  // namespace

std::string_view name_of(DataType type) { return at(kTypes, static_cast<std::size_t>(type)); }
std::string_view name_of(ReduceOp op) { return at(kOps, static_cast<std::size_t>(op)); }
std::string_view name_of(Collective op) { return at(kCollectives, static_cast<std::size_t>(op)); }
bool parse(std::string_view name, DataType* type) { return find(kTypes, name, type); }
bool parse(std::string_view name, ReduceOp* op) { return find(kOps, name, op); }
bool parse(std::string_view name, Collective* op) { return find(kCollectives, name, op); }

}  // namespace canarynet

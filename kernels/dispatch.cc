#include "kernels/dispatch.h"

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/check.h"
#include "kernels/codec.h"
#include "kernels/crc32c.h"
#include "kernels/reduce.h"
#include "kernels/variant.h"

#if CANARYNET_KERNELS_X86
#include <cpuid.h>
#include <xmmintrin.h>
#endif

namespace canarynet {
namespace {

constexpr std::string_view kKnownNames = "scalar, sse4, avx2, avx512";

struct VariantList {
  std::array<KernelVariant, 4> variants{};
  std::size_t count = 0;

  void add(const KernelVariant& variant) { variants[count++] = variant; }
};

#if CANARYNET_KERNELS_X86

// A variant may use whatever its compiler flags in CMakeLists.txt allow, so every flag is asked for here.
bool has_sse4() {
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes") &&
         __builtin_cpu_supports("popcnt");
}
bool has_avx2() {
  unsigned eax, ebx, ecx = 0, edx;  // F16C by hand: not every compiler's __builtin_cpu_supports knows it
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return has_sse4() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && f16c;
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#endif

const VariantList& variant_list() {
  static const VariantList list = [] {
    VariantList found;
#if CANARYNET_KERNELS_X86
    __builtin_cpu_init();
    if (has_avx512()) {
      const bool folds = __builtin_cpu_supports("vpclmulqdq");
      found.add({"avx512", kernels_avx512::reduce, folds ? kernels_avx512::crc32c : kernels_sse4::crc32c,
                 kernels_avx512::divide, kernels_avx512::codec});
    }
    if (has_avx2()) {
      found.add({"avx2", kernels_avx2::reduce, kernels_sse4::crc32c, kernels_avx2::divide, kernels_avx2::codec});
    }
    if (has_sse4()) {
      found.add({"sse4", kernels_sse4::reduce, kernels_sse4::crc32c, kernels_sse4::divide, kernels_sse4::codec});
    }
#endif
    found.add(
        {"scalar", kernels_scalar::reduce, kernels_scalar::crc32c, kernels_scalar::divide, kernels_scalar::codec});
    return found;
  }();
  return list;
}

const KernelChoice& choice() {
  static const KernelChoice made = choose_kernels(std::getenv("CANARY_KERNELS"));
  return made;
}

}  // namespace

KernelChoice choose_kernels(const char* wanted) {
  const VariantList& list = variant_list();
  if (wanted == nullptr || *wanted == '\0') return {&list.variants[0], Status()};
  std::string here;
  for (std::size_t i = 0; i < list.count; ++i) {
    if (std::string_view(wanted) == list.variants[i].name) return {&list.variants[i], Status()};
    here += (i == 0 ? "" : ", ") + std::string(list.variants[i].name);
  }
  const std::string text = "CANARY_KERNELS=" + std::string(wanted) + ": this machine runs " + here + " (of " +
                           std::string(kKnownNames) + ")";
  return {&list.variants[0], Status(CANARY_INVALID_SETTING, text)};
}

ReduceFn reduce_kernel(DataType type, ReduceOp op) {
  const ReduceFn kernel = choice().variant->reduce(type, op);
  CANARY_CHECK(kernel != nullptr, "type and reduction were checked when the operation was submitted");
  return kernel;
}

void divide(DataType type, void* data, std::size_t elements, std::uint32_t divisor) {
  CANARY_CHECK(divisor != 0, "AVG divides by the number of ranks");
  DivideFn kernel = choice().variant->divide(type);
  if (kernel == nullptr) kernel = kernels_scalar::divide(type);
  CANARY_CHECK(kernel != nullptr, "the type was checked when the operation was submitted");
  kernel(data, elements, divisor);
}

std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) {
  return choice().variant->crc32c(crc, data, bytes);
}

const CodecKernels& codec_kernels() { return choice().variant->codec(); }

const char* kernels_name() { return choice().variant->name; }

const KernelVariant* kernel_variants(std::size_t* count) {
  *count = variant_list().count;
  return variant_list().variants.data();
}

Status kernels_status() { return choice().status; }

#if CANARYNET_KERNELS_X86
namespace {
constexpr unsigned kDefaultControl = 0x1F80;  // all exceptions masked, round to nearest, no DAZ, no FTZ
}  // namespace
DenormalGuard::DenormalGuard() : saved_(_mm_getcsr()) { _mm_setcsr(kDefaultControl); }
DenormalGuard::~DenormalGuard() { _mm_setcsr(saved_); }
#else
DenormalGuard::DenormalGuard() : saved_(0) {}
DenormalGuard::~DenormalGuard() = default;
#endif

}  // namespace canarynet

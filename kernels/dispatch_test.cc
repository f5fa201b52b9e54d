// How a variant is chosen. ctest runs KernelChoice.* again in processes with CANARY_KERNELS set (see CMakeLists.txt).
#include "kernels/dispatch.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace canarynet {
namespace {

bool runs_here(const std::string& name) {
  std::size_t count = 0;
  const KernelVariant* variants = kernel_variants(&count);
  for (std::size_t i = 0; i < count; ++i) {
    if (name == variants[i].name) return true;
  }
  return false;
}

TEST(KernelChoice, FollowsTheEnvironment) {
  std::size_t count = 0;
  const std::string best = kernel_variants(&count)[0].name;
  const char* asked = std::getenv("CANARY_KERNELS");
  if (asked == nullptr || *asked == '\0') {
    EXPECT_EQ(best, kernels_name());
    EXPECT_TRUE(kernels_status().ok());
  } else if (runs_here(asked)) {
    EXPECT_STREQ(asked, kernels_name());
    EXPECT_TRUE(kernels_status().ok());
  } else {
    EXPECT_EQ(best, kernels_name());
    EXPECT_EQ(CANARY_INVALID_SETTING, kernels_status().code());
  }
  const float a = 1.5F, b = 2.25F;
  float sum = 0;
  reduce_kernel(CANARY_F32, CANARY_AVG)(&sum, &a, &b, 1);
  EXPECT_EQ(3.75F, sum);
}

TEST(KernelVariants, ScalarIsAlwaysTheLast) {
  std::size_t count = 0;
  const KernelVariant* variants = kernel_variants(&count);
  ASSERT_GE(count, 1U);
  EXPECT_STREQ("scalar", variants[count - 1].name);
}

TEST(KernelVariants, EachCanBeAskedFor) {
  std::size_t count = 0;
  const KernelVariant* variants = kernel_variants(&count);
  for (std::size_t i = 0; i < count; ++i) {
    const KernelChoice choice = choose_kernels(variants[i].name);
    EXPECT_TRUE(choice.status.ok());
    EXPECT_STREQ(variants[i].name, choice.variant->name);
  }
  EXPECT_STREQ(variants[0].name, choose_kernels(nullptr).variant->name);
  EXPECT_STREQ(variants[0].name, choose_kernels("").variant->name);
}

TEST(KernelVariants, AnUnknownNameIsAnErrorThatNamesTheVariable) {
  const KernelChoice choice = choose_kernels("neon");
  EXPECT_EQ(CANARY_INVALID_SETTING, choice.status.code());
  EXPECT_NE(std::string::npos, choice.status.text().find("CANARY_KERNELS=neon"));
  EXPECT_NE(std::string::npos, choice.status.text().find("scalar"));
  ASSERT_NE(nullptr, choice.variant);
}

#if defined(__x86_64__)
TEST(DenormalGuard, KeepsDenormalsAndRestoresTheCallersMode) {
  const unsigned before = _mm_getcsr();
  constexpr unsigned kFlushAndZero = 0x8040;  // FTZ and DAZ
  _mm_setcsr(before | kFlushAndZero);
  const unsigned set = _mm_getcsr();
  const float denormals[2] = {1e-41F, 2e-41F};
  std::uint32_t guarded[2];  // as integers: a comparison of floats would itself run with DAZ
  std::uint32_t unguarded[2];
  std::size_t count = 0;
  const KernelVariant* variants = kernel_variants(&count);
  variants[0].reduce(CANARY_F32, CANARY_SUM)(unguarded, denormals, denormals, 2);
  {
    const DenormalGuard guard;
    variants[0].reduce(CANARY_F32, CANARY_SUM)(guarded, denormals, denormals, 2);
  }
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(set & ~0x3FU, after & ~0x3FU);
  EXPECT_EQ(0U, unguarded[0]) << "the test's own premise: flushed without the guard";
  EXPECT_NE(0U, guarded[0]);
  EXPECT_NE(0U, guarded[1]);
}
#endif

}  // namespace
}  // namespace canarynet

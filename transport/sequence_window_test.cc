#include "transport/sequence_window.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

TEST(SequenceWindow, HasNoMemoryBeforeItIsReservedAndUsesAFewPlacesAtFirst) {
  SequenceWindow<int> window;
  EXPECT_FALSE(window.reserved());
  window.reserve(2048);
  EXPECT_TRUE(window.reserved());
  window.append(1, 1) = 5;
  EXPECT_EQ(window[1], 5);
  EXPECT_EQ(window.ring(), 16u);
}

TEST(SequenceWindow, ALongRowThroughANarrowWindowUsesNoMorePlaces) {
  SequenceWindow<std::uint32_t> window;
  window.reserve(2048);
  for (std::uint32_t s = 1; s < 1000; ++s) {
    const std::uint32_t first = s < 16 ? 1 : s - 15;
    window.append(first, s) = s;
    for (std::uint32_t k = first; k <= s; ++k) ASSERT_EQ(window[k], k);
  }
  EXPECT_EQ(window.ring(), 16u);
}

TEST(SequenceWindow, KeepsAllWhenItGrowsAcrossTheEndOf32Bits) {
  SequenceWindow<std::uint32_t> window;
  window.reserve(1024);
  const std::uint32_t first = 0xffffffff - 100;
  for (std::uint32_t s = first; s != 900; ++s) {
    window.append(first, s) = s;
    for (std::uint32_t k = first; k != s + 1; ++k) ASSERT_EQ(window[k], k) << "at " << s;
  }
  EXPECT_EQ(window.ring(), 1024u);
}

}  // namespace
}  // namespace canarynet

#include "transport/sequence_window.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

TEST(SequenceWindow, HasNoMemoryBeforeTheFirst) {
  SequenceWindow<int> window;
  EXPECT_EQ(window.capacity(), 0u);
  window.append(1, 1) = 5;
  EXPECT_EQ(window[1], 5);
  EXPECT_EQ(window.capacity(), 16u);
}

TEST(SequenceWindow, ALongRowThroughANarrowWindowTakesNoMoreMemory) {
  SequenceWindow<std::uint32_t> window;
  for (std::uint32_t s = 1; s < 1000; ++s) {
    const std::uint32_t first = s < 16 ? 1 : s - 15;
    window.append(first, s) = s;
    for (std::uint32_t k = first; k <= s; ++k) ASSERT_EQ(window[k], k);
  }
  EXPECT_EQ(window.capacity(), 16u);
}

TEST(SequenceWindow, KeepsAllWhenItGrowsAcrossTheEndOf32Bits) {
  SequenceWindow<std::uint32_t> window;
  const std::uint32_t first = 0xffffffff - 100;
  for (std::uint32_t s = first; s != 900; ++s) {
    window.append(first, s) = s;
    for (std::uint32_t k = first; k != s + 1; ++k) ASSERT_EQ(window[k], k) << "at " << s;
  }
  EXPECT_EQ(window.capacity(), 1024u);
}

}  // namespace
}  // namespace canarynet

#include "base/reserved.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>
#include <vector>

namespace canarynet {
namespace {

// Counts the pages of the row that are resident.
std::ptrdiff_t resident(const void* row, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(row) / page * page;
  const std::size_t pages = (reinterpret_cast<std::uintptr_t>(row) + bytes - begin + page - 1) / page;
  std::vector<unsigned char> there(pages);
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(begin), pages * page, there.data()), 0);
  return std::count_if(there.begin(), there.end(), [](unsigned char p) { return (p & 1) != 0; });
}

TEST(Reserved, TakesPagesWhereItIsWritten) {
  const Reserved row(1 << 20);
  EXPECT_EQ(resident(row.begin(), row.bytes()), 0);
  row.begin()[500'000] = std::byte{1};
  EXPECT_EQ(resident(row.begin(), row.bytes()), 1);
}

TEST(Reserved, OfNothingIsNothing) {
  const Reserved row(0);
  EXPECT_EQ(row.begin(), nullptr);
}

TEST(Reserved, ThrowsWhereThereIsNoAddressSpace) {
  EXPECT_THROW(Reserved(std::numeric_limits<std::uint64_t>::max() / 2), std::bad_alloc);
}

TEST(ReservedAllocator, TakesPagesWhereAVectorIsFilled) {
  if (!reserved::kMapped) GTEST_SKIP() << "a sanitizer watches the ends of what comes from the heap";
  std::vector<std::uint64_t, ReservedAllocator<std::uint64_t>> row;
  row.reserve(100'000);
  EXPECT_EQ(resident(row.data(), row.capacity() * sizeof row[0]), 0);
  row.push_back(7);
  EXPECT_EQ(resident(row.data(), row.capacity() * sizeof row[0]), 1);
}

TEST(ReservedAllocator, GivesBackTheAddressSpace) {
  if (!reserved::kMapped) GTEST_SKIP() << "a sanitizer watches the ends of what comes from the heap";
  constexpr std::size_t kBytes = reserved::kLeast + 100;
  std::byte* const row = ReservedAllocator<std::byte>().allocate(kBytes);
  row[kBytes - 1] = std::byte{1};
  EXPECT_EQ(resident(row, kBytes), 1);
  ReservedAllocator<std::byte>().deallocate(row, kBytes);
  unsigned char there[16] = {};
  EXPECT_EQ(::mincore(row, kBytes, there), -1);
  EXPECT_EQ(errno, ENOMEM);
}

TEST(ReservedAllocator, SaysWhenMoreIsAskedForThanCanBeCounted) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  EXPECT_THROW((void)ReservedAllocator<std::uint64_t>().allocate(kMost / 4), std::bad_alloc);
}

TEST(ReservedAllocator, KeepsWhatAVectorHoldsWhileItGrowsOutOfTheHeap) {
  std::vector<std::uint64_t, ReservedAllocator<std::uint64_t>> row;
  for (std::uint64_t i = 0; i < 10'000; ++i) row.push_back(i * i);
  auto moved = std::move(row);
  for (std::uint64_t i = 0; i < 10'000; ++i) ASSERT_EQ(moved[i], i * i);
}

// Elements that are a cache line long, in rows from the heap and in mapped ones.
TEST(ReservedAllocator, AlignsAsItsElementsAsk) {
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  for (const std::size_t count : {std::size_t{3}, reserved::kLeast / sizeof(Line)}) {
    Line* row = ReservedAllocator<Line>().allocate(count);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(row) % 64, 0u);
    ReservedAllocator<Line>().deallocate(row, count);
  }
}

}  // namespace
}  // namespace canarynet

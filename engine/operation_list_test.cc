// A member's operations in flight: found by number, in order, whichever of them ends.
#include "engine/operation_list.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>

#include "base/random.h"

namespace canarynet {
namespace {

struct Record {
  std::uint32_t number = 0;
  std::uint64_t value = 0;
};

TEST(OperationList, FindsWhatIsInFlightAndNothingElse) {
  // From the last numbers of 32 bits to the first ones.
  for (const std::uint32_t first : {1u, 0xffff'ff00u}) {
    OperationList<Record> list;
    list.reserve(100);
    std::map<std::uint64_t, std::uint64_t> expected;  // by how many were added before
    Random random(3);
    std::uint64_t added = 0;
    for (int i = 0; i < 20'000; ++i) {
      if (random.below(2) == 0 && list.size() < 100) {
        list.make_room();
        Record& r = list.add(first + static_cast<std::uint32_t>(added));
        ASSERT_EQ(r.value, 0u) << "it has something of the one before";
        r.value = added * 7;
        expected[added] = added * 7;
        ++added;
      } else if (!expected.empty()) {
        // Mostly the oldest, as it is; at times any.
        auto at = expected.begin();
        std::advance(at, random.below(3) == 0 ? random.below(expected.size()) : 0);
        list.remove(*list.find(first + static_cast<std::uint32_t>(at->first)));
        expected.erase(at);
      }
      ASSERT_EQ(list.size(), expected.size());
      ASSERT_EQ(list.empty(), expected.empty());
      auto at = expected.begin();
      for (const Record& r : list) {
        ASSERT_EQ(r.number, first + static_cast<std::uint32_t>(at->first));
        ASSERT_EQ(r.value, (at++)->second);
      }
      if (!expected.empty()) {
        ASSERT_EQ(list.front().value, expected.begin()->second);
      }
      for (std::uint64_t n = added - std::min<std::uint64_t>(added, 150); n < added + 3; ++n) {
        const Record* const found = list.find(first + static_cast<std::uint32_t>(n));
        ASSERT_EQ(found != nullptr, expected.count(n) != 0) << n;
        if (found != nullptr) {
          ASSERT_EQ(found->value, n * 7);
        }
      }
    }
  }
}

TEST(OperationList, ARecordStaysWhereItIsAndTheOneFreedLastIsTakenFirst) {
  OperationList<Record> list;
  list.reserve(4);
  Record* records[3];
  for (std::uint32_t n = 0; n < 3; ++n) {
    list.make_room();
    records[n] = &list.add(n);
  }
  list.remove(*records[1]);
  EXPECT_EQ(list.find(0), records[0]);
  EXPECT_EQ(list.find(2), records[2]);
  list.make_room();
  EXPECT_EQ(&list.add(3), records[1]);
}

}  // namespace
}  // namespace canarynet

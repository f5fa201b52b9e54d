// Which buffers a collective takes: every way in which two small ones can lie to each other, against bytes marked one
// by one.
#include "embed/collective_call.h"

#include <gtest/gtest.h>

#include <string>

#include "base/random.h"

namespace canarynet {
namespace {

constexpr std::size_t kElement = 4;
alignas(64) std::byte g_memory[4096];

// A rank of a group, as far as arguments are concerned.
struct Caller {
  Caller(int size, int rank) {
    for (int i = 0; i < size; ++i) group.members.push_back(i);
    member.group = &group;
    member.rank = rank;
  }
  Group group;
  GroupMember member;
};

// Bytes of g_memory that a call reads, and writes.
struct Marks {
  std::vector<int> read = std::vector<int>(sizeof g_memory), written = std::vector<int>(sizeof g_memory);
  void mark(std::vector<int>& which, std::size_t begin, std::size_t bytes) {
    for (std::size_t i = begin; i < begin + bytes; ++i) ++which.at(i);
  }
  bool apart() const {
    for (std::size_t i = 0; i < read.size(); ++i) {
      if (written[i] > 1 || (written[i] == 1 && read[i] != 0)) return false;
    }
    return true;
  }
};

struct Case {
  Collective collective;
  bool input_blocks, output_blocks;                            // one per rank
  enum { kSame, kOwnOfInput, kOwnOfOutput, kNever } in_place;  // as canarynet.h has it
};
constexpr Case kCases[] = {
    {Collective::kAllReduce, false, false, Case::kSame},
    {Collective::kReduce, false, false, Case::kSame},
    {Collective::kBroadcast, false, false, Case::kSame},
    {Collective::kReduceScatter, true, false, Case::kOwnOfInput},
    {Collective::kScatter, true, false, Case::kOwnOfInput},
    {Collective::kAllGather, false, true, Case::kOwnOfOutput},
    {Collective::kGather, false, true, Case::kOwnOfOutput},
    {Collective::kAllToAll, true, true, Case::kNever},
};

TEST(CollectiveCall, TakesBuffersThatAreApartOrInPlaceAndNoOthers) {
  int taken = 0, refused = 0;
  for (const Case& c : kCases) {
    for (int size = 1; size <= 4; ++size) {
      for (int rank = 0; rank < size; ++rank) {
        for (int root = 0; root < (has_root(c.collective) ? size : 1); ++root) {
          for (std::size_t count = 0; count <= 3; ++count) {
            const Caller caller(size, rank);
            const auto blocks = static_cast<std::size_t>(size);
            const bool reads = reads_input(c.collective, rank == root),
                       writes = writes_output(c.collective, rank == root);
            const std::size_t in = (c.input_blocks ? blocks : 1) * count * kElement;
            const std::size_t out = (c.output_blocks ? blocks : 1) * count * kElement;
            const std::size_t middle = sizeof g_memory / 2, own = static_cast<std::size_t>(rank) * count * kElement;
            for (std::size_t at = middle - in - out - 2; at <= middle + in + out + 2; ++at) {
              Marks marks;
              if (reads) marks.mark(marks.read, middle, in);
              if (writes) marks.mark(marks.written, at, out);
              const bool in_place = (c.in_place == Case::kSame && at == middle) ||
                                    (c.in_place == Case::kOwnOfInput && at == middle + own) ||
                                    (c.in_place == Case::kOwnOfOutput && at + own == middle);
              OpRequest request{c.collective, g_memory + middle, g_memory + at, count, CANARY_I32, CANARY_SUM, root};
              const Status status = check_call(caller.member, request);
              const std::string what = std::string(name_of(c.collective)) + " size " + std::to_string(size) + " rank " +
                                       std::to_string(rank) + " root " + std::to_string(root) + " count " +
                                       std::to_string(count) + " output at " + std::to_string(at) + ", input at " +
                                       std::to_string(middle) + ": " + status.text();
              ASSERT_EQ(status.ok(), marks.apart() || in_place) << what;
              ++(status.ok() ? taken : refused);
              if (status.ok()) continue;
              ASSERT_EQ(status.code(), CANARY_INVALID_ARGUMENT) << what;
              ASSERT_NE(status.text().find("input [0x"), std::string::npos) << what;
              ASSERT_NE(status.text().find("output [0x"), std::string::npos) << what;
            }
          }
        }
      }
    }
  }
  std::printf("%d calls taken, %d refused\n", taken, refused);
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(CollectiveCall, TakesAllGatherVApartOrInPlace) {
  const std::vector<std::vector<std::uint64_t>> lists{{2, 1, 3}, {0, 2, 0}, {1, 0, 4}, {3, 3, 3}};
  for (const auto& counts : lists) {
    for (int rank = 0; rank < 3; ++rank) {
      const Caller caller(3, rank);
      std::size_t before = 0, all = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        if (static_cast<int>(i) < rank) before += counts[i] * kElement;
        all += counts[i] * kElement;
      }
      const std::size_t own = counts[static_cast<std::size_t>(rank)] * kElement, middle = sizeof g_memory / 2;
      for (std::size_t at = middle - 60; at <= middle + 60; ++at) {
        Marks marks;
        marks.mark(marks.read, middle, own);
        marks.mark(marks.written, at, all);
        OpRequest request{Collective::kAllGatherV, g_memory + middle, g_memory + at, all / kElement, CANARY_I32};
        request.counts = counts;
        const Status status = check_call(caller.member, request);
        ASSERT_EQ(status.ok(), marks.apart() || at + before == middle) << "rank " << rank << ": " << status.text();
      }
    }
  }
}

// Blocks in any order, with gaps, or one inside another; both buffers in one piece of memory.
TEST(CollectiveCall, TakesAllToAllVWhoseBlocksAreApart) {
  Random random(7);
  int taken = 0, refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    const int size = 1 + static_cast<int>(random.below(4));
    const auto n = static_cast<std::size_t>(size);
    const Caller caller(size, static_cast<int>(random.below(static_cast<std::uint64_t>(size))));
    std::vector<std::uint64_t> counts(4 * n);  // send counts, where, receive counts, where
    for (std::size_t i = 0; i < n; ++i) {
      counts[i] = random.below(4);
      counts[n + i] = random.below(24);
      counts[2 * n + i] = random.below(4);
      counts[3 * n + i] = random.below(24);
    }
    counts[2 * n + static_cast<std::size_t>(caller.member.rank)] = counts[static_cast<std::size_t>(caller.member.rank)];
    const std::size_t input = 1024, output = 1024 + random.below(3) * 48 + random.below(5);
    Marks marks;
    for (std::size_t i = 0; i < n; ++i) {
      marks.mark(marks.read, input + counts[n + i] * kElement, counts[i] * kElement);
      marks.mark(marks.written, output + counts[3 * n + i] * kElement, counts[2 * n + i] * kElement);
    }
    OpRequest request{Collective::kAllToAllV, g_memory + input, g_memory + output, 0, CANARY_I32};
    request.counts = counts;
    const Status status = check_call(caller.member, request);
    ASSERT_EQ(status.ok(), marks.apart()) << "round " << round << ": " << status.text();
    ++(status.ok() ? taken : refused);
  }
  std::printf("%d calls taken, %d refused\n", taken, refused);
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(CollectiveCall, NamesBothBuffersAndTheFormInPlace) {
  const Caller caller(4, 2);
  OpRequest request{Collective::kReduceScatter, g_memory, g_memory, 8, CANARY_I32};
  const std::string text = check_call(caller.member, request).text();
  EXPECT_NE(text.find("reduce_scatter: input [0x"), std::string::npos) << text;
  EXPECT_NE(text.find("in place is output == input + rank * count"), std::string::npos) << text;
}

}  // namespace
}  // namespace canarynet

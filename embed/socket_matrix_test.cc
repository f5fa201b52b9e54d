// Every planner and every number of ranks over real sockets, some through shared memory; operations, types, reductions,
// sizes and ways of calling in such a choice that each pair of values of any two of them meets (for each planner and
// number of ranks). Results are compared with the oracle's.
#include <algorithm>
#include <cstring>
#include <memory>

#include "embed/job_test_util.h"
#include "sim/oracle.h"

namespace canarynet {
namespace {

using test::Job;

// --- pairs -----------------------------------------------------------------------------------------------------------

using Row = std::vector<int>;

// Greedy: each row takes, dimension by dimension, the value that covers most pairs not met yet. Same rows on every run.
std::vector<Row> all_pairs(const std::vector<int>& sizes) {
  const std::size_t d = sizes.size();
  // missing[a][b][x][y]: value x of a and y of b have not met.
  std::vector<std::vector<std::vector<std::vector<char>>>> missing(d, std::vector<std::vector<std::vector<char>>>(d));
  int left = 0;
  for (std::size_t a = 0; a < d; ++a) {
    for (std::size_t b = 0; b < d; ++b) {
      missing[a][b].assign(static_cast<std::size_t>(sizes[a]),
                           std::vector<char>(static_cast<std::size_t>(sizes[b]), a != b));
      if (a < b) left += sizes[a] * sizes[b];
    }
  }
  std::vector<Row> rows;
  while (left > 0) {
    Row row(d, -1);
    // Begin with a pair that nobody has, so that every row brings something.
    bool begun = false;
    for (std::size_t a = 0; a < d; ++a) {
      for (std::size_t b = a + 1; b < d; ++b) {
        for (int x = 0; x < sizes[a]; ++x) {
          for (int y = 0; y < sizes[b] && !begun; ++y) {
            if (!missing[a][b][static_cast<std::size_t>(x)][static_cast<std::size_t>(y)]) continue;
            row[a] = x, row[b] = y, begun = true;
          }
        }
      }
    }
    for (std::size_t i = 0; i < d; ++i) {
      if (row[i] >= 0) continue;
      int best = -1;
      for (int k = 0; k < sizes[i]; ++k) {
        const int x = (k + static_cast<int>(rows.size())) % sizes[i];  // ties go round
        int gain = 0;
        for (std::size_t j = 0; j < d; ++j) {
          if (row[j] >= 0 && j != i)
            gain += missing[i][j][static_cast<std::size_t>(x)][static_cast<std::size_t>(row[j])];
        }
        if (gain > best) best = gain, row[i] = x;
      }
    }
    for (std::size_t a = 0; a < d; ++a) {
      for (std::size_t b = 0; b < d; ++b) {
        char& m = missing[a][b][static_cast<std::size_t>(row[a])][static_cast<std::size_t>(row[b])];
        if (a < b) left -= m;
        m = 0;
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST(AllPairs, MeetInFewRows) {
  const auto rows = all_pairs({5, 8, 5, 4, 2, 2});
  EXPECT_GE(rows.size(), 40u);  // 8 x 5
  EXPECT_LE(rows.size(), 60u);
  for (int x = 0; x < 8; ++x) {
    for (int y = 0; y < 5; ++y) {
      EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [&](const Row& r) { return r[1] == x && r[2] == y; }))
          << x << " " << y;
    }
  }
}

// --- operations ------------------------------------------------------------------------------------------------------

struct Case {
  oracle::Shape shape;
  bool in_place = false;
  bool async = false;
};

std::vector<Case> cases_for(int ranks) {
  const std::uint64_t large = (std::uint64_t{1} << (test::sanitized() ? 14 : 18)) + 3;
  const std::uint64_t elements[] = {0, 1, 1001, large};
  std::vector<Case> out;
  for (const Row& row : all_pairs({kCollectiveCount, kDataTypeCount, kReduceOpCount, 4, 2, 2})) {
    Case c;
    c.shape.collective = static_cast<Collective>(row[0]);
    c.shape.ranks = ranks;
    c.shape.type = static_cast<DataType>(row[1]);
    c.shape.redop = static_cast<ReduceOp>(row[2]);
    c.shape.count = elements[row[3]];
    // The larger one of the two buffers has about so many elements.
    if (in_blocks(c.shape.collective))
      c.shape.count = (c.shape.count + static_cast<std::uint64_t>(ranks) - 1) / static_cast<std::uint64_t>(ranks);
    c.shape.root = static_cast<int>(out.size()) % ranks;
    c.shape.salt = out.size() + 1;
    c.in_place = row[4] == 1 && oracle::can_be_in_place(c.shape);
    oracle::draw_counts(&c.shape, c.shape.count);
    c.async = row[5] == 1;
    out.push_back(c);
  }
  return out;
}

// Buffers of one operation on one rank.
class Buffers {
 public:
  Buffers(const Case& c, int rank) : case_(c), rank_(rank) {
    const std::size_t in = oracle::input_bytes(c.shape, rank), out = oracle::output_bytes(c.shape, rank);
    memory_.assign(c.in_place ? std::max(in, out) : in + out, std::byte{0xEE});
    input_ = memory_.data() + (c.in_place ? oracle::in_place_input(c.shape, rank) : 0);
    output_ = memory_.data() + (c.in_place ? oracle::in_place_output(c.shape, rank) : in);
    const auto counts = oracle::counts_of(c.shape, rank);
    counts_.assign(counts.begin(), counts.end());
    oracle::fill_input(c.shape, rank, input_);
    if (!c.in_place) before_.assign(memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(in));
  }
  canary_status call(canary_group* group, canary_op** op) {
    const oracle::Shape& s = case_.shape;
    switch (s.collective) {
      case Collective::kAllReduce:
        return canary_all_reduce(group, input_, output_, s.count, s.type, s.redop, op);
      case Collective::kReduceScatter:
        return canary_reduce_scatter(group, input_, output_, s.count, s.type, s.redop, op);
      case Collective::kAllGather:
        return canary_all_gather(group, input_, output_, s.count, s.type, op);
      case Collective::kBroadcast: {
        // Others than the root need no input.
        const bool reads = rank_ == s.root || case_.in_place;
        return canary_broadcast(group, reads ? input_ : nullptr, output_, s.count, s.type, s.root, op);
      }
      case Collective::kBarrier:
        return canary_barrier(group, op);
      case Collective::kAllToAll:
        return canary_all_to_all(group, input_, output_, s.count, s.type, op);
      case Collective::kAllGatherV:
        return canary_all_gather_v(group, input_, output_, counts_.data(), s.type, op);
      case Collective::kAllToAllV: {
        const std::size_t n = static_cast<std::size_t>(s.ranks);
        const bool packed = s.salt % 2 == 0;  // both ways to say it
        const std::size_t* c = counts_.data();
        return canary_all_to_all_v(group, input_, c, packed ? nullptr : c + n, output_, c + 2 * n,
                                   packed ? nullptr : c + 3 * n, s.type, op);
      }
      case Collective::kReduce:  // others than the root need no output
        return canary_reduce(group, input_, rank_ == s.root ? output_ : nullptr, s.count, s.type, s.redop, s.root, op);
      case Collective::kGather:
        return canary_gather(group, input_, rank_ == s.root ? output_ : nullptr, s.count, s.type, s.root, op);
      case Collective::kScatter:
        return canary_scatter(group, rank_ == s.root ? input_ : nullptr, output_, s.count, s.type, s.root, op);
    }
    return CANARY_INTERNAL;
  }
  std::string wrong() const {
    if (!before_.empty() && std::memcmp(before_.data(), input_, before_.size()) != 0) {
      return oracle::to_string(case_.shape) + ": the input of rank " + std::to_string(rank_) + " was written";
    }
    return oracle::compare(case_.shape, rank_, output_);
  }

 private:
  const Case& case_;
  int rank_;
  std::vector<std::byte> memory_, before_;
  std::vector<std::size_t> counts_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
};

std::string describe(const Case& c) {
  return oracle::to_string(c.shape) + (c.in_place ? " in place" : "") + (c.async ? " async" : " sync");
}

// All cases in order on one rank, up to five in flight; waits and tests take turns.
void run_rank(canary_group* group, int rank, const std::vector<Case>& cases) {
  struct Flight {
    const Case* what;
    std::unique_ptr<Buffers> buffers;
    canary_op* op;
  };
  std::vector<Flight> flights;
  int ended = 0;
  const auto settle = [&] {
    for (Flight& f : flights) {
      canary_status status = CANARY_WOULD_BLOCK;
      if (++ended % 2 == 0) {
        while ((status = canary_op_test(f.op)) == CANARY_WOULD_BLOCK) std::this_thread::yield();
      } else {
        status = canary_op_wait(f.op);
      }
      ASSERT_EQ(status, CANARY_OK) << describe(*f.what) << ": " << test::last_error().message;
      ASSERT_EQ(f.buffers->wrong(), "") << describe(*f.what);
    }
    flights.clear();
  };
  for (const Case& c : cases) {
    auto buffers = std::make_unique<Buffers>(c, rank);
    canary_op* op = nullptr;
    const canary_status status = buffers->call(group, c.async ? &op : nullptr);
    ASSERT_EQ(status, CANARY_OK) << describe(c) << ": " << test::last_error().message;
    if (c.async) {
      flights.push_back({&c, std::move(buffers), op});
      if (flights.size() == 5) settle();
    } else {
      ASSERT_EQ(buffers->wrong(), "") << describe(c);
    }
    if (testing::Test::HasFatalFailure()) return;
  }
  settle();
}

struct Param {
  const char* planner;
  int ranks;
  const char* transports = "tcp";
};

class SocketMatrix : public testing::TestWithParam<Param> {};

TEST_P(SocketMatrix, EveryPairIsExact) {
  const auto [planner, ranks, transports] = GetParam();
  const std::vector<Case> cases = cases_for(ranks);
  test::Strings settings = {std::string("algo=") + planner, std::string("transports=") + transports};
  // Several pieces in a segment also in the smaller sizes of sanitized builds.
  if (ranks == 3 || test::sanitized()) settings.push_back("piece_bytes=8KiB");
  Job job(ranks, settings);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) { run_rank(job.world(r), r, cases); });
  if (HasFailure()) return;

  // It was this planner that ran.
  job.each([&](int r) {
    float value = static_cast<float>(r), sum = 0;
    EXPECT_EQ(canary_all_reduce(job.world(r), &value, &sum, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK);
    EXPECT_EQ(sum, static_cast<float>(ranks * (ranks - 1) / 2));
  });
  if (*planner != '\0' && ranks > 1) {
    EXPECT_STREQ(canary_group_algorithm(job.world(0)), planner);
  }
}

std::vector<Param> params() {
  std::vector<Param> out;
  for (const char* planner : {"ring", "mesh", "halving_doubling", "bcube", "tree", "dbtree", "parameter_server",
                              "ring_per_rail", "hierarchical", ""}) {
    for (const int n : {1, 2, 3, 4, 5, 8}) out.push_back({planner, n});
  }
  // The same through shared memory, where every shape is the same wiring.
  for (const char* planner : {"ring", "bcube", "bcube_x", "halving_doubling", "ring_per_rail", ""}) {
    for (const int n : {2, 4, 5}) out.push_back({planner, n, "shm"});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, SocketMatrix, testing::ValuesIn(params()), [](const auto& param_info) {
  const std::string name = param_info.param.planner;
  return (name.empty() ? "automatic" : name) + "_n" + std::to_string(param_info.param.ranks) +
         (std::string(param_info.param.transports) == "tcp" ? "" : "_shm");
});

}  // namespace
}  // namespace canarynet

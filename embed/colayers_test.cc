// Colayers that the merge planner finds for a session, through the C ABI, over real sockets.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;

struct Model {
  std::vector<std::size_t> counts;
  std::vector<double> ready;
  void add(std::size_t count, double at) {
    counts.push_back(count);
    ready.push_back(at);
  }
};

// Many small tensors that are ready at the same time, far from one that comes seconds later.
Model model_of_two_bursts() {
  Model model;
  for (int i = 0; i < 40; ++i) model.add(100 + static_cast<std::size_t>(i), 0.001);
  for (int i = 0; i < 20; ++i) model.add(50, 5.0);
  return model;
}

TEST(Colayers, TensorsThatAreReadyTogetherTravelTogetherAndOthersDoNotWaitForThem) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  const Model model = model_of_two_bursts();
  std::vector<std::vector<std::size_t>> found(3);
  job.each([&](int rank) {
    std::vector<std::size_t> ends(model.counts.size());
    int colayers = 0;
    ASSERT_EQ(canary_session_colayers(job.world(rank), model.counts.data(), model.ready.data(), ends.size(),
                                      ends.data(), &colayers),
              CANARY_OK)
        << last_error().message;
    ends.resize(static_cast<std::size_t>(colayers));
    found[static_cast<std::size_t>(rank)] = ends;
  });
  EXPECT_EQ(found[0], found[1]);
  EXPECT_EQ(found[0], found[2]);
  EXPECT_EQ(found[0], (std::vector<std::size_t>{40, 60}));
}

TEST(Colayers, TheSlowestMembersTimesCount) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  Model fast, slow;
  for (int i = 0; i < 4; ++i) {
    fast.add(100, 0.0);
    slow.add(100, i);
  }
  job.each([&](int rank) {
    std::vector<std::size_t> ends(4);
    int colayers = 0;
    const Model& mine = rank == 0 ? fast : slow;
    ASSERT_EQ(
        canary_session_colayers(job.world(rank), mine.counts.data(), mine.ready.data(), 4, ends.data(), &colayers),
        CANARY_OK)
        << last_error().message;
    EXPECT_EQ(colayers, 4) << "a message takes less than a second";
  });
}

TEST(Colayers, ASessionOpensWithThem) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  const Model model = model_of_two_bursts();
  job.each([&](int rank) {
    std::vector<std::size_t> ends(model.counts.size()), elements;
    int colayers = 0;
    ASSERT_EQ(canary_session_colayers(job.world(rank), model.counts.data(), model.ready.data(), ends.size(),
                                      ends.data(), &colayers),
              CANARY_OK);
    std::size_t at = 0, all = 0;
    for (int z = 0; z < colayers; ++z) {
      elements.push_back(0);
      for (; at < ends[static_cast<std::size_t>(z)]; ++at) elements.back() += model.counts[at];
      all += elements.back();
    }
    canary_session_options o = CANARY_SESSION_OPTIONS_INIT;
    o.number = 1;
    o.counts = elements.data();
    o.colayers = colayers;
    ASSERT_EQ(canary_session_rule("bsp", &o), CANARY_OK);
    o.staleness_max = 4;  // so that rows of the index stay
    canary_session* session = nullptr;
    ASSERT_EQ(canary_session_open(job.world(rank), &o, &session), CANARY_OK) << last_error().message;
    std::vector<float> gradient(all, 1.0f), sums(all);
    canary_session_result result = CANARY_SESSION_RESULT_INIT;
    for (int t = 0; t < 3; ++t) {
      for (int z = 0; z < colayers; ++z) {
        ASSERT_EQ(canary_session_push(session, z, gradient.data(), elements[static_cast<std::size_t>(z)]), CANARY_OK);
      }
      ASSERT_EQ(canary_session_step(session, sums.data(), all, &result, nullptr), CANARY_OK);
      EXPECT_EQ(sums, std::vector<float>(all, 2.0f));
    }
    // Both members' gradients of all colayers were exchanged in iterations 1 to 3.
    std::vector<std::uint64_t> bits(3 * static_cast<std::size_t>(colayers), 0);
    ASSERT_EQ(canary_session_rows(session, 1, 3, bits.data(), bits.size()), CANARY_OK) << last_error().message;
    EXPECT_EQ(bits, std::vector<std::uint64_t>(bits.size(), 0b11));
    std::uint64_t row = 0;
    ASSERT_EQ(canary_session_row(session, 2, 1, &row, 1), CANARY_OK);
    EXPECT_EQ(row, bits[static_cast<std::size_t>(colayers) + 1]);
    const auto fails = [&](std::int64_t first, std::int64_t last, std::size_t words, const std::string& word) {
      EXPECT_EQ(canary_session_rows(session, first, last, bits.data(), words), CANARY_INVALID_ARGUMENT);
      EXPECT_NE(last_error().message.find(word), std::string::npos) << last_error().message;
    };
    fails(0, 3, bits.size(), "iterations 0 to 3");
    fails(3, 2, bits.size(), "iterations 3 to 2");
    fails(1, INT64_MAX, bits.size(), "iterations 1 to");
    fails(1, 3, bits.size() - 1, "room for");
    fails(900, 901, bits.size(), "not all rows of iterations 900 to 901");
    ASSERT_EQ(canary_session_finish(session, sums.data(), all, &result, nullptr), CANARY_OK);
    EXPECT_EQ(canary_session_close(session), CANARY_OK);
  });
}

TEST(Colayers, AreNeverMoreThanASessionHas) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  Model model;  // each tensor would travel by itself
  for (int i = 0; i < 300; ++i) model.add(1, i);
  job.each([&](int rank) {
    std::vector<std::size_t> ends(model.counts.size());
    int colayers = 0;
    ASSERT_EQ(canary_session_colayers(job.world(rank), model.counts.data(), model.ready.data(), ends.size(),
                                      ends.data(), &colayers),
              CANARY_OK);
    EXPECT_EQ(colayers, 256);
    for (int z = 0; z < colayers; ++z) {
      EXPECT_GT(ends[static_cast<std::size_t>(z)], z == 0 ? 0 : ends[static_cast<std::size_t>(z) - 1]);
    }
    EXPECT_EQ(ends[255], 300u);
  });
}

TEST(Colayers, MembersThatDeclareDifferentModelsAreToldAndTheGroupLivesOn) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  job.each([&](int rank) {
    Model model = model_of_two_bursts();
    const auto told = [&] {
      std::vector<std::size_t> ends(model.counts.size());
      int colayers = 0;
      EXPECT_EQ(canary_session_colayers(job.world(rank), model.counts.data(), model.ready.data(), ends.size(),
                                        ends.data(), &colayers),
                CANARY_MISMATCH);
      return last_error().message;
    };
    if (rank == 2) model.counts[7] += 1;
    EXPECT_NE(told().find("ranks 0 and 2 declare different models: tensors of other sizes"), std::string::npos);
    if (rank == 1) model.add(1, 9);
    EXPECT_NE(told().find("ranks 0 and 1 declare different models: 60 and 61 tensors"), std::string::npos);
    float one = 1;
    EXPECT_EQ(canary_all_reduce(job.world(rank), &one, &one, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK);
    EXPECT_EQ(one, 3);
  });
}

TEST(Colayers, ArgumentsThatMakeNoSenseAreRefused) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  std::vector<std::size_t> counts{10, 20}, ends(2);
  std::vector<double> ready{0, 1};
  int colayers = 0;
  const auto refused = [&](const std::string& word) {
    EXPECT_EQ(canary_session_colayers(job.world(0), counts.data(), ready.data(), 2, ends.data(), &colayers),
              CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find(word), std::string::npos) << last_error().message;
  };
  for (const double wrong : {-1.0, 2e6, std::numeric_limits<double>::quiet_NaN()}) {
    ready[1] = wrong;
    refused("tensor 1 is ready after");
  }
  ready[1] = 1;
  counts[0] = 0;
  refused("tensor 0 has no elements");
  counts[0] = std::numeric_limits<std::size_t>::max();
  refused("tensor 0 makes the model too large");
  counts[0] = 10;
  EXPECT_EQ(canary_session_colayers(job.world(0), counts.data(), ready.data(), 0, ends.data(), &colayers),
            CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_session_colayers(job.world(0), counts.data(), nullptr, 2, ends.data(), &colayers),
            CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_session_colayers(job.world(0), counts.data(), ready.data(), 2, ends.data(), &colayers), CANARY_OK);
  EXPECT_EQ(ends[static_cast<std::size_t>(colayers) - 1], 2u);
}

}  // namespace
}  // namespace canarynet

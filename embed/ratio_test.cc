// Ratios through the C ABI, over real sockets: which codec an iteration gets, what candidates begin with, and that all
// ranks see the same.
#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;

constexpr std::uint64_t kTensor = 7;
constexpr std::size_t kCount = 2000;

canary_ratio_options options_of(const char* codec) {
  canary_ratio_options o = CANARY_RATIO_OPTIONS_INIT;
  o.codec = codec;
  o.tensor = kTensor;
  o.count = kCount;
  o.high = 0.1;
  o.low = 0.01;
  o.checkpoint = [](void*, canary_checkpoint) {};
  return o;
}

std::uint32_t codec_of(const std::string& text) {
  std::uint32_t number = 0;
  check(canary_codec(text.c_str(), &number));
  return number;
}

double residual_norm(canary_group* group) {
  double norm = -1;
  EXPECT_EQ(canary_feedback_gain(group, kTensor, nullptr, &norm), CANARY_OK) << last_error().message;
  return norm;
}

void all_reduce(canary_group* group, std::vector<float> gradient, std::uint32_t codec) {
  canary_op_options o = CANARY_OP_OPTIONS_INIT;
  o.codec = codec;
  o.tensor = kTensor;
  EXPECT_EQ(canary_all_reduce_with(group, gradient.data(), gradient.data(), gradient.size(), CANARY_F32, CANARY_AVG, &o,
                                   nullptr),
            CANARY_OK)
      << last_error().message;
}

// A codec that keeps the share R of it sends the share R of its energy.
std::vector<float> even(std::size_t salt) {
  std::vector<float> g(kCount);
  for (std::size_t i = 0; i < kCount; ++i) g[i] = (i * 7 + salt) % 3 == 0 ? 1.0f : -1.0f;
  return g;
}
// One that keeps a hundredth sends all of it.
std::vector<float> crowded() {
  std::vector<float> g(kCount);
  for (std::size_t i = 0; i < kCount / 100; ++i) g[i * 100] = 1;
  return g;
}

void iterate(canary_ratio* ratio, canary_group* group, const std::vector<float>& gradient) {
  std::uint32_t number = 0;
  ASSERT_EQ(canary_ratio_next(ratio, &number), CANARY_OK) << last_error().message;
  all_reduce(group, gradient, number);
  ASSERT_EQ(canary_ratio_report(ratio), CANARY_OK) << last_error().message;
}

canary_ratio_state state_of(canary_ratio* ratio) {
  canary_ratio_state s{};
  s.struct_size = sizeof s;
  EXPECT_EQ(canary_ratio_read(ratio, &s), CANARY_OK) << last_error().message;
  return s;
}

TEST(Ratio, EveryCandidateIsTriedFromTheSameCheckpoint) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    struct Training {
      int step = 0, saved = -1, saves = 0, restores = 0;
    } training;
    canary_ratio_options o = options_of("topk");
    o.iterations = 3;
    o.user = &training;
    o.checkpoint = [](void* user, canary_checkpoint what) {
      auto& t = *static_cast<Training*>(user);
      if (what == CANARY_CHECKPOINT_SAVE) {
        t.saved = t.step;
        ++t.saves;
      } else {
        t.step = t.saved;
        ++t.restores;
      }
    };
    // What was left out before belongs to the checkpoint.
    all_reduce(job.world(r), even(0), codec_of("topk:0.1"));
    const double norm = residual_norm(job.world(r));
    EXPECT_GT(norm, 1);
    training.step = 100;
    canary_ratio* ratio = nullptr;
    ASSERT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_OK) << last_error().message;
    for (const char* codec : {"topk:0.1", "topk:0.03", "topk:0.01"}) {
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(state_of(ratio).exploring, 1) << codec;
        std::uint32_t number = 0;
        ASSERT_EQ(canary_ratio_next(ratio, &number), CANARY_OK) << last_error().message;
        EXPECT_EQ(number, codec_of(codec)) << i;
        EXPECT_EQ(training.step, 100 + i) << codec;
        if (i == 0) {
          EXPECT_EQ(residual_norm(job.world(r)), norm) << codec;
        }
        all_reduce(job.world(r), even(static_cast<std::size_t>(i)), number);
        ++training.step;
        ASSERT_EQ(canary_ratio_report(ratio), CANARY_OK) << last_error().message;
      }
    }
    const canary_ratio_state s = state_of(ratio);
    EXPECT_EQ(s.exploring, 0);
    EXPECT_EQ(s.explorations, 1u);
    EXPECT_EQ(s.choices, 1u);
    std::uint32_t number = 0;
    ASSERT_EQ(canary_ratio_next(ratio, &number), CANARY_OK) << last_error().message;
    EXPECT_EQ(training.step, 100) << "training goes on from the checkpoint";
    EXPECT_EQ(residual_norm(job.world(r)), norm);
    EXPECT_EQ(training.saves, 1);
    EXPECT_EQ(training.restores, 3);
    EXPECT_EQ(canary_ratio_destroy(ratio), CANARY_OK);
  });
}

TEST(Ratio, GainsAreThoseOfTheIterationsAndMeansOverRanks) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    canary_ratio_options o = options_of("agtopk");
    o.iterations = 1;
    canary_ratio* ratio = nullptr;
    ASSERT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_OK) << last_error().message;
    for (const double share : {0.1, 0.03, 0.01}) {
      ASSERT_NO_FATAL_FAILURE(iterate(ratio, job.world(r), r == 0 ? crowded() : even(static_cast<std::size_t>(r))));
      EXPECT_NEAR(state_of(ratio).gain, (1 + 2 * share) / 3, 0.01) << "rank " << r;
    }
    EXPECT_EQ(canary_ratio_destroy(ratio), CANARY_OK);
  });
}

TEST(Ratio, ErrorFeedbacksSmoothingDoesNotHideWhatAnIterationSends) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    // A hundred times, so that the smoothed gain is 1.
    for (int i = 0; i < 100; ++i) all_reduce(job.world(r), crowded(), codec_of("agtopk:0.1"));
    canary_ratio_options o = options_of("agtopk");
    o.iterations = 2;
    canary_ratio* ratio = nullptr;
    ASSERT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_OK) << last_error().message;
    for (int i = 0; i < 2; ++i) {
      std::uint32_t number = 0;
      ASSERT_EQ(canary_ratio_next(ratio, &number), CANARY_OK) << last_error().message;
      // As much energy as before, of which the codec sends a tenth.
      std::vector<float> gradient = even(static_cast<std::size_t>(i));
      for (float& v : gradient) v *= 0.1f;
      all_reduce(job.world(r), gradient, number);
      ASSERT_EQ(canary_ratio_report(ratio), CANARY_OK) << last_error().message;
    }
    EXPECT_LT(state_of(ratio).gain, 0.25) << "rank " << r;
    EXPECT_EQ(canary_ratio_destroy(ratio), CANARY_OK);
  });
}

// As they do on one host, where no codec is as fast as memory.
TEST(Ratio, OperationsThatChooseMayTravelDense) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    canary_ratio_options o = options_of("artopk:star,auto");
    o.iterations = 1;
    canary_ratio* ratio = nullptr;
    ASSERT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_OK) << last_error().message;
    for (int i = 0; i < 4; ++i) {
      ASSERT_NO_FATAL_FAILURE(iterate(ratio, job.world(r), even(0)));
      EXPECT_EQ(state_of(ratio).gain, 1);
    }
    EXPECT_EQ(canary_ratio_destroy(ratio), CANARY_OK);
  });
}

TEST(Ratio, GainsThatMoveAreExploredAgain) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    struct Checkpoints {
      int saves = 0, restores = 0;
    } checkpoints;
    canary_ratio_options o = options_of("artopk:star");
    o.iterations = 2;
    o.user = &checkpoints;
    o.checkpoint = [](void* user, canary_checkpoint what) {
      auto& c = *static_cast<Checkpoints*>(user);
      ++(what == CANARY_CHECKPOINT_SAVE ? c.saves : c.restores);
    };
    canary_ratio* ratio = nullptr;
    ASSERT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_OK) << last_error().message;
    // On a busy machine links move as well, and the ratio is chosen again without an exploration.
    canary_ratio_state before = state_of(ratio);
    for (int i = 0; i < 400 && state_of(ratio).explorations == 1; ++i) {
      ASSERT_NO_FATAL_FAILURE(iterate(ratio, job.world(r), i < 20 ? even(static_cast<std::size_t>(i)) : crowded()));
      const canary_ratio_state now = state_of(ratio);
      if (before.exploring == 0 && now.choices != before.choices) {
        EXPECT_EQ(now.choices, before.choices + 1) << "rank " << r;
        EXPECT_TRUE(now.alpha_seconds != before.alpha_seconds || now.byte_seconds != before.byte_seconds)
            << "rank " << r;
      }
      before = now;
    }
    EXPECT_EQ(before.explorations, 2u) << "rank " << r;
    EXPECT_EQ(before.exploring, 1) << "rank " << r;
    EXPECT_EQ(checkpoints.saves, 1) << "rank " << r;
    EXPECT_EQ(checkpoints.restores, 3) << "rank " << r;
    // Its checkpoint takes the place of the first one's.
    for (int i = 0; i < 3 * o.iterations + 1; ++i) {
      ASSERT_NO_FATAL_FAILURE(iterate(ratio, job.world(r), crowded()));
    }
    EXPECT_EQ(state_of(ratio).choices, before.choices + 1) << "rank " << r;
    EXPECT_EQ(state_of(ratio).exploring, 0) << "rank " << r;
    EXPECT_EQ(checkpoints.saves, 2) << "rank " << r;
    EXPECT_EQ(checkpoints.restores, 6) << "rank " << r;
    EXPECT_EQ(canary_ratio_destroy(ratio), CANARY_OK);
  });
}

TEST(Ratio, LinksAreLookedAt) {
  Job job(2, {"CANARY_TRANSPORTS=tcp"});
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    // Links are measured by what they carry.
    std::vector<float> much(1 << 20, 1.0f);
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(canary_all_reduce(job.world(r), much.data(), much.data(), much.size(), CANARY_F32, CANARY_AVG, nullptr),
                CANARY_OK);
    canary_ratio_options o = options_of("agtopk");
    o.iterations = 1;
    canary_ratio* ratio = nullptr;
    ASSERT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_OK) << last_error().message;
    for (int i = 0; i < 3; ++i) {
      ASSERT_NO_FATAL_FAILURE(iterate(ratio, job.world(r), even(0)));
    }
    EXPECT_GT(state_of(ratio).alpha_seconds, 1e-7);
    EXPECT_LT(state_of(ratio).alpha_seconds, 1);
    EXPECT_GE(state_of(ratio).byte_seconds, 0);
    EXPECT_LT(state_of(ratio).byte_seconds, 1e-6);
    EXPECT_EQ(canary_ratio_destroy(ratio), CANARY_OK);
  });
}

TEST(Ratio, RanksThatDifferAreTold) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    canary_ratio* ratio = nullptr;
    canary_ratio_options o = options_of("topk");
    if (r == 2) o.iterations = 11;
    EXPECT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_MISMATCH);
    EXPECT_NE(last_error().message.find("ranks 0 and 2 create different ratios: iterations"), std::string::npos)
        << last_error().message;
    o = options_of("topk");
    if (r == 2) o.factor = 3.1;
    EXPECT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_MISMATCH);
    EXPECT_NE(last_error().message.find("ranks 0 and 2 create different ratios: factor"), std::string::npos)
        << last_error().message;
    o = options_of("topk");
    if (r == 1) o.tensor += std::uint64_t{1} << 60;
    EXPECT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_MISMATCH);
    o = options_of(r == 1 ? "mstopk" : "topk");
    EXPECT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_MISMATCH);
    EXPECT_NE(last_error().message.find("ranks 0 and 1 create different ratios: the codec"), std::string::npos)
        << last_error().message;
    // And the group lives on.
    o = options_of("topk");
    EXPECT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_OK) << last_error().message;
    EXPECT_EQ(canary_ratio_destroy(ratio), CANARY_OK);
  });
}

TEST(Ratio, ARankAloneLeavesNothingOut) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  canary_ratio_options o = options_of("topk");
  o.iterations = 1;
  canary_ratio* ratio = nullptr;
  ASSERT_EQ(canary_ratio_create(job.world(0), &o, &ratio), CANARY_OK) << last_error().message;
  for (int i = 0; i < 5; ++i) {
    std::uint32_t number = 0;
    ASSERT_EQ(canary_ratio_next(ratio, &number), CANARY_OK) << last_error().message;
    all_reduce(job.world(0), even(0), number);
    ASSERT_EQ(canary_ratio_report(ratio), CANARY_OK) << last_error().message;
    EXPECT_EQ(state_of(ratio).gain, 1);
  }
  EXPECT_EQ(canary_ratio_destroy(ratio), CANARY_OK);
}

// One that has lost its error feedback, here: the others would wait for it.
TEST(Ratio, WhatOneRankCannotTellEndsItOnAllRanks) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    std::size_t size = 0;
    ASSERT_EQ(canary_feedback_save(job.world(r), nullptr, &size), CANARY_OK) << last_error().message;
    std::vector<std::uint8_t> nothing(size);
    ASSERT_EQ(canary_feedback_save(job.world(r), nothing.data(), &size), CANARY_OK) << last_error().message;
    canary_ratio_options o = options_of("topk");
    o.iterations = 1;
    canary_ratio* ratio = nullptr;
    ASSERT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_OK) << last_error().message;
    std::uint32_t number = 0;
    ASSERT_EQ(canary_ratio_next(ratio, &number), CANARY_OK) << last_error().message;
    all_reduce(job.world(r), even(0), number);
    if (r == 1) {
      ASSERT_EQ(canary_feedback_restore(job.world(r), nothing.data(), size), CANARY_OK) << last_error().message;
    }
    EXPECT_EQ(canary_ratio_report(ratio), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find(r == 1 ? "tensor 7 was not sent" : "rank 1 could not tell its gain"),
              std::string::npos)
        << last_error().message;
    EXPECT_EQ(canary_ratio_destroy(ratio), CANARY_OK);
  });
}

TEST(Ratio, WrongArgumentsAndTurnsAreTold) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  const auto refused = [&](const canary_ratio_options& o, const std::string& words) {
    canary_ratio* ratio = nullptr;
    EXPECT_EQ(canary_ratio_create(job.world(0), &o, &ratio), CANARY_INVALID_ARGUMENT) << words;
    EXPECT_NE(last_error().message.find(words), std::string::npos) << last_error().message;
  };
  const auto changed = [&](const auto& change) {
    canary_ratio_options o = options_of("topk");
    change(o);
    return o;
  };
  refused(options_of("bottomk"), "bottomk");
  refused(options_of("randomk"), "a ratio is chosen for topk");
  refused(options_of("int8"), "int8");
  refused(changed([](auto& o) { o.codec = nullptr; }), "codec is NULL");
  refused(changed([](auto& o) { o.checkpoint = nullptr; }), "checkpoint is NULL");
  refused(changed([](auto& o) { o.tensor = 0; }), "tensor is 0");
  refused(changed([](auto& o) { o.count = 0; }), "count is 0");
  refused(changed([](auto& o) { o.high = 1.5; }), "0.000001 <= low <= high <= 1");
  refused(changed([](auto& o) { o.low = NAN; }), "0.000001 <= low <= high <= 1");
  refused(changed([](auto& o) { o.low = 5e-324; }), "0.000001 <= low <= high <= 1");
  refused(changed([](auto& o) { o.factor = 1; }), "factor is 1.0");
  refused(changed([](auto& o) { o.gain_change = -1; }), "gain_change");
  refused(changed([](auto& o) { o.iterations = 0; }), "iterations is 0");
  refused(changed([](auto& o) { o.reserved = 1; }), "reserved");
  refused(changed([](auto& o) { o.struct_size = 8; }), "CANARY_RATIO_OPTIONS_INIT");

  canary_ratio* ratio = nullptr;
  const canary_ratio_options o = options_of("topk");
  ASSERT_EQ(canary_ratio_create(job.world(0), &o, &ratio), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_ratio_report(ratio), CANARY_INVALID_ARGUMENT);
  std::uint32_t number = 0;
  EXPECT_EQ(canary_ratio_next(ratio, nullptr), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_ratio_next(ratio, &number), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_ratio_next(ratio, &number), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(last_error().message.find("has not been reported"), std::string::npos) << last_error().message;
  EXPECT_EQ(canary_ratio_destroy(ratio), CANARY_OK);
  EXPECT_EQ(canary_ratio_next(ratio, &number), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(last_error().message.find("it was destroyed"), std::string::npos) << last_error().message;
}

TEST(Ratio, ADeadRankEndsIt) {
  // Rank 1 leaves while rank 0 explores.
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    canary_ratio_options o = options_of("topk");
    o.iterations = 1;
    canary_ratio* ratio = nullptr;
    ASSERT_EQ(canary_ratio_create(job.world(r), &o, &ratio), CANARY_OK) << last_error().message;
    std::uint32_t number = 0;
    ASSERT_EQ(canary_ratio_next(ratio, &number), CANARY_OK) << last_error().message;
    all_reduce(job.world(r), even(0), number);
    if (r == 1) {
      job.leave(r);
      return;
    }
    EXPECT_EQ(canary_ratio_report(ratio), CANARY_PEER_DIED);
    EXPECT_EQ(last_error().rank, 1);
    EXPECT_EQ(canary_ratio_next(ratio, &number), CANARY_PEER_DIED);
    EXPECT_EQ(canary_ratio_destroy(ratio), CANARY_OK);
  });
}

}  // namespace
}  // namespace canarynet

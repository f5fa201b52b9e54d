// Bundles through the C ABI, over real sockets: the sums of merged tensors, who is told what, and plans that change.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "embed/bundle_test_util.h"

namespace canarynet {
namespace {

using test::expect_refused;
using test::Job;
using test::kSizes;
using test::last_error;
using test::Lies;
using test::Model;
using test::Ranks;
using test::Sizes;
using test::value_of;

template <typename T>
void iterate(Bundle& bundle, Model<T>& model, int rank, int ranks, int iterations, canary_redop redop) {
  for (int n = 0; n < iterations; ++n) {
    for (std::size_t t = 0; t < model.tensors().size(); ++t) {
      model.fill(t, rank, n);
      bundle.submit(t);
    }
    bundle.wait();
    ASSERT_EQ(model.wrong(ranks, n, redop), 0u) << "rank " << rank << ", iteration " << n;
  }
}

class Bundles : public testing::TestWithParam<int> {};

TEST_P(Bundles, HoldTheSumsOfTheirTensorsHoweverTheyLieAndTravel) {
  const int ranks = GetParam();
  Job job(ranks);
  ASSERT_TRUE(job.joined());
  job.each([&](int rank) {
    canary_group* const world = job.world(rank);
    for (const Lies lies : {Lies::kUp, Lies::kDown, Lies::kScattered, Lies::kMixed, Lies::kGaps}) {
      for (const int policy :
           {CANARY_MERGE_EXACT, CANARY_MERGE_MGWFBP, CANARY_MERGE_WFBP, CANARY_MERGE_SYNCEASGD, CANARY_MERGE_GIVEN}) {
        Model<float> model(kSizes, lies, rank);
        const std::vector<canary_tensor> list = model.list();
        const Sizes ends = {2, 7, 8, 12};
        canary_bundle_options options = CANARY_BUNDLE_OPTIONS_INIT;
        options.policy = static_cast<std::uint32_t>(policy);
        if (policy == CANARY_MERGE_GIVEN) {
          options.ends = ends.data();
          options.groups = ends.size();
        }
        canary_bundle* bundle = nullptr;
        const canary_redop redop = policy % 2 == 0 ? CANARY_AVG : CANARY_SUM;
        ASSERT_EQ(canary_bundle_create(world, list.data(), list.size(), CANARY_F32, redop, &options, &bundle),
                  CANARY_OK)
            << last_error().message;
        for (int n = 0; n < 7; ++n) {
          for (std::size_t t = 0; t < list.size(); ++t) {
            model.fill(t, rank, n);
            ASSERT_EQ(canary_bundle_submit(bundle, t), CANARY_OK) << last_error().message;
          }
          ASSERT_EQ(canary_bundle_wait(bundle), CANARY_OK) << last_error().message;
          ASSERT_EQ(model.wrong(ranks, n, redop), 0u)
              << "rank " << rank << ", policy " << policy << ", iteration " << n << ", lies " << static_cast<int>(lies);
        }
        ASSERT_EQ(canary_bundle_destroy(bundle), CANARY_OK);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Bundles, testing::Values(1, 2, 3, 5, 8));

TEST(Bundle, ReducesHalvesAveragesAndWholeNumbers) {
  Ranks(4).each([](Context& context) {
    const int rank = context.rank();
    for (const Lies lies : {Lies::kDown, Lies::kScattered}) {
      Model<f16> halves(kSizes, lies, rank);
      Bundle of_halves(context.world(), halves.tensors(), CANARY_AVG);
      Model<std::int32_t> numbers(kSizes, lies, rank);
      Bundle of_numbers(context.world(), numbers.tensors(), CANARY_SUM, {.policy = CANARY_MERGE_SYNCEASGD});
      Model<double> doubles(kSizes, lies, rank);
      Bundle of_doubles(context.world(), doubles.tensors(), CANARY_AVG, Merging::given({1, 5, 12}));
      iterate(of_halves, halves, rank, 4, 6, CANARY_AVG);
      iterate(of_numbers, numbers, rank, 4, 3, CANARY_SUM);
      iterate(of_doubles, doubles, rank, 4, 3, CANARY_AVG);
    }
  });
}

TEST(Bundle, CopiesOnlyGroupsThatDoNotLieTogether) {
  Ranks(2).each([](Context& context) {
    const int rank = context.rank();
    const auto state = [&](Lies lies, const Merging& merging) {
      Model<float> model({10, 20, 30, 0, 40}, lies, rank);
      Bundle bundle(context.world(), model.tensors(), CANARY_SUM, merging);
      iterate(bundle, model, rank, 2, 2, CANARY_SUM);
      return bundle.state();
    };
    const Merging exact = {}, pairs = Merging::given({2, 4, 5}), last = Merging::given({1, 2, 5});
    for (const Lies lies : {Lies::kUp, Lies::kDown}) {
      EXPECT_EQ(state(lies, exact).staging_bytes, 0u);
      EXPECT_EQ(state(lies, pairs).copied_bytes, 0u);
    }
    // 20, 10, 0, 30, 40: each pair lies together, whatever its order; the last three do not.
    EXPECT_EQ(state(Lies::kScattered, pairs).staging_bytes, 0u);
    EXPECT_EQ(state(Lies::kScattered, exact).staging_bytes, 400u);
    EXPECT_EQ(state(Lies::kScattered, Merging::given({3, 5})).copied_bytes, 0u);
    EXPECT_EQ(state(Lies::kScattered, Merging::given({1, 3, 5})).copied_bytes, 200u);
    // Down on rank 1 alone: there a group is another one in memory, so that rank copies it.
    EXPECT_EQ(state(Lies::kMixed, pairs).copied_bytes, rank == 1 ? 120u : 0u);
    EXPECT_EQ(state(Lies::kMixed, {.policy = CANARY_MERGE_WFBP}).staging_bytes, 0u);
    EXPECT_EQ(state(Lies::kGaps, last).copied_bytes, 280u);
  });
}

TEST(Bundle, TensorsOutOfOrderWaitForThoseBeforeThem) {
  Ranks(3).each([](Context& context) {
    const int rank = context.rank();
    Model<float> model(kSizes, Lies::kScattered, rank);
    Bundle bundle(context.world(), model.tensors(), CANARY_SUM, Merging::given({3, 6, 12}));
    EXPECT_GT(bundle.state().copied_bytes, 0u);
    for (int n = 0; n < 5; ++n) {
      for (std::size_t i = 0; i < kSizes.size(); ++i) {  // in another order on every rank
        const std::size_t t = (i * 5 + static_cast<std::size_t>(rank)) % kSizes.size();
        model.fill(t, rank, n);
        bundle.submit(t);
      }
      bundle.wait();
      ASSERT_EQ(model.wrong(3, n, CANARY_SUM), 0u);
    }
  });
}

TEST(Bundle, ATensorThatWasWaitedForIsTheApplicationsAtOnce) {
  Ranks(3).each([](Context& context) {
    const int rank = context.rank();
    for (const Lies lies : {Lies::kUp, Lies::kGaps}) {
      Model<float> model({100, 200, 50'000}, lies, rank);
      Bundle bundle(context.world(), model.tensors(), CANARY_SUM, Merging::given({2, 3}));
      for (int n = 0; n < 3; ++n) {
        for (std::size_t t = 0; t < 3; ++t) model.fill(t, rank, n);
        bundle.submit(0);
        bundle.submit(1);
        bundle.wait_tensor(1);
        EXPECT_EQ(model.tensors()[1][1], static_cast<float>(3 * value_of(0, 1, 1, n) + 3));
        for (float& v : model.tensors()[1]) v = -5;
        bundle.submit(2);
        bundle.wait();
        EXPECT_EQ(model.tensors()[1][1], -5.0f);
        EXPECT_EQ(model.tensors()[0][9], static_cast<float>(3 * value_of(0, 0, 9, n) + 3));
        EXPECT_EQ(model.tensors()[2][9], static_cast<float>(3 * value_of(0, 2, 9, n) + 3));
      }
    }
  });
}

// Ready times change and so does the plan; whatever travels, the sums are right and the groups the same everywhere.
TEST(Bundle, PlansAgainWhenIterationsTakeAnotherTime) {
  Ranks(3).each([](Context& context) {
    const int rank = context.rank();
    const Sizes sizes(24, 500);
    Model<float> model(sizes, Lies::kDown, rank);
    Bundle bundle(context.world(), model.tensors(), CANARY_SUM);
    // Quick, then slow until it plans again, then quick until it does once more: all ranks know when.
    int n = 0;
    for (; n < 1500 && bundle.state().plans < 3; ++n) {
      const bool slow = n >= 20 && bundle.state().plans < 2;
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        if (slow && t % 6 == 0) usleep(2000);
        model.fill(t, rank, n);
        bundle.submit(t);
      }
      bundle.wait();
      ASSERT_EQ(model.wrong(3, n, CANARY_SUM), 0u) << n;
      const Sizes ends = bundle.ends();
      std::vector<std::int64_t> mine(24);
      std::copy(ends.begin(), ends.end(), mine.begin());
      std::vector<std::int64_t> all(3 * mine.size());
      context.world().all_gather(mine, all);
      for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], mine[i % mine.size()]) << n;
      if (n < 3) {
        ASSERT_EQ(ends.size(), n < 1 ? 24u : 1u);
      }
    }
    EXPECT_EQ(bundle.state().plans, 3u);
    EXPECT_GE(n, 204);  // 4 iterations measure, 100 go by, 4 measure, 100 go by
    EXPECT_EQ(bundle.state().iterations, static_cast<std::uint64_t>(n));
    EXPECT_GT(bundle.state().expected_seconds, 0);
    iterate(bundle, model, rank, 3, 2, CANARY_SUM);
    EXPECT_GT(bundle.state().median_seconds, 0);
  });
}

TEST(Bundle, OtherOperationsAndBundlesOfItsGroupRunBesideIt) {
  Ranks(4).each([](Context& context) {
    const int rank = context.rank();
    const std::vector<int> members = rank < 2 ? std::vector<int>{1, 0} : std::vector<int>{2, 3};
    Group pair = context.create_group(members);
    Model<float> a({1000, 1, 20}, Lies::kUp, pair.rank()), b({5, 7000, 3}, Lies::kGaps, pair.rank());
    Bundle first(pair, a.tensors(), CANARY_SUM), second(pair, b.tensors(), CANARY_SUM);
    for (int n = 0; n < 12; ++n) {
      std::vector<float> own(100, static_cast<float>(n + pair.rank()));
      for (std::size_t t = 0; t < 3; ++t) {
        a.fill(t, pair.rank(), n);
        b.fill(t, pair.rank(), n);
        first.submit(t);
        second.submit(t);
      }
      pair.all_reduce(own);
      second.wait();
      first.wait();
      ASSERT_EQ(own[50], static_cast<float>(2 * n + 1));
      ASSERT_EQ(a.wrong(2, n, CANARY_SUM) + b.wrong(2, n, CANARY_SUM), 0u);
    }
  });
}

TEST(Bundle, RanksOfOneProcessShareAnEngine) {
  const std::string join = test::join_url(test::free_port());
  test::on_threads(4, [&](int rank) {
    Context context({.join = join, .rank = rank, .world_size = 4, .local_ranks = 4});
    Model<float> model(kSizes, Lies::kMixed, rank);
    Bundle bundle(context.world(), model.tensors(), CANARY_AVG);
    iterate(bundle, model, rank, 4, 8, CANARY_AVG);
  });
}

// --- wrong calls -----------------------------------------------------------------------------------------------------

TEST(BundleArguments, AreRefusedAndNothingChanges) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  canary_group* const world = job.world(0);
  float m[20] = {};
  const std::vector<canary_tensor> good = {{m, 4}, {m + 4, 0}, {m + 8, 4}};
  canary_bundle* b = nullptr;
  const auto create = [&](const std::vector<canary_tensor>& t, const canary_bundle_options* o = nullptr, int type = 0,
                          int redop = 0) {
    return canary_bundle_create(world, t.data(), t.size(), static_cast<canary_type>(type),
                                static_cast<canary_redop>(redop), o, &b);
  };
  expect_refused(canary_bundle_create(nullptr, good.data(), 3, CANARY_F32, CANARY_SUM, nullptr, &b), "group is NULL");
  expect_refused(canary_bundle_create(world, good.data(), 3, CANARY_F32, CANARY_SUM, nullptr, nullptr),
                 "bundle is NULL");
  expect_refused(canary_bundle_create(world, nullptr, 3, CANARY_F32, CANARY_SUM, nullptr, &b), "tensors are NULL");
  expect_refused(create({}), "0 tensors (1 to 4096)");
  expect_refused(create(std::vector<canary_tensor>(4097)), "4097 tensors");
  expect_refused(create({{m, 1}, {nullptr, 1}}), "the data of tensor 1 is NULL");
  expect_refused(create({{m, 4}, {m + 10, 4}, {m + 3, 2}}), "tensors 0 and 2 overlap");
  expect_refused(create({{m, 4}, {m, 4}}), "tensors 0 and 1 overlap");
  expect_refused(create({{m, 4}, {m + 4, SIZE_MAX / 2}}), "tensor 1 makes the bundle too large");
  expect_refused(create(good, nullptr, 8), "type 8 is not");
  expect_refused(create(good, nullptr, 0, 5), "redop 5 is not");
  canary_bundle_options o = CANARY_BUNDLE_OPTIONS_INIT;
  o.struct_size = 8;
  expect_refused(create(good, &o), "struct_size is 8, expected 48 (use CANARY_BUNDLE_OPTIONS_INIT)");
  o = CANARY_BUNDLE_OPTIONS_INIT;
  o.priority = 2;
  expect_refused(create(good, &o), "priority 2 is not");
  o.priority = 0;
  o.policy = 5;
  expect_refused(create(good, &o), "policy 5 is not a canary_merge");
  o.policy = CANARY_MERGE_GIVEN;
  expect_refused(create(good, &o), "without groups");
  const auto given = [&](const Sizes& ends) {
    o.ends = ends.data();
    o.groups = ends.size();
    return create(good, &o);
  };
  expect_refused(given({0, 3}), "ends[0] is 0: takes 1 to 3");
  expect_refused(given({2, 2, 3}), "ends[1] is 2: takes 3 to 3");
  expect_refused(given({2, 4}), "ends[1] is 4");
  expect_refused(given({1, 2}), "the last group ends at tensor 2 of 3");
  o.policy = CANARY_MERGE_WFBP;
  expect_refused(given({3}), "the policy is not CANARY_MERGE_GIVEN");
  EXPECT_EQ(b, nullptr);

  o.policy = CANARY_MERGE_GIVEN;
  ASSERT_EQ(given({2, 3}), CANARY_OK) << last_error().message;
  expect_refused(canary_bundle_submit(b, 3), "tensor 3 of a bundle of 3");
  expect_refused(canary_bundle_wait(b), "3 of 3 tensors have not been submitted, the first of them is tensor 0");
  expect_refused(canary_bundle_wait_tensor(b, 0), "tensor 0 has to be submitted first");
  EXPECT_EQ(canary_bundle_submit(b, 0), CANARY_OK);
  expect_refused(canary_bundle_submit(b, 0), "tensor 0 has been submitted in this iteration");
  expect_refused(canary_bundle_wait_tensor(b, 0), "tensor 1 has to be submitted first");
  expect_refused(canary_bundle_wait_tensor(b, 9), "tensor 9 of a bundle of 3");
  EXPECT_EQ(canary_bundle_submit(b, 2), CANARY_OK);
  expect_refused(canary_bundle_wait(b), "1 of 3 tensors have not been submitted, the first of them is tensor 1");
  EXPECT_EQ(canary_bundle_submit(b, 1), CANARY_OK);
  expect_refused(canary_bundle_submit(b, 1), "tensor 1 has been submitted");
  canary_bundle_state state{};
  expect_refused(canary_bundle_read(b, &state, nullptr, 0), "struct_size is 0");
  expect_refused(canary_bundle_read(b, nullptr, nullptr, 0), "state is NULL");
  state.struct_size = sizeof state;
  expect_refused(canary_bundle_read(b, &state, nullptr, 1), "ends are NULL");
  std::size_t ends[3] = {7, 7, 7};
  EXPECT_EQ(canary_bundle_read(b, &state, ends, 1), CANARY_OK);
  EXPECT_EQ(ends[0], 2u);
  EXPECT_EQ(ends[1], 7u);
  EXPECT_EQ(canary_bundle_wait(b), CANARY_OK);
  EXPECT_EQ(canary_bundle_submit(b, 0), CANARY_OK);  // of the next one
  EXPECT_EQ(canary_bundle_destroy(b), CANARY_OK);
  expect_refused(canary_bundle_destroy(b), "this bundle has ended");
  expect_refused(canary_bundle_submit(b, 1), "this bundle has ended");
  expect_refused(canary_bundle_submit(nullptr, 1), "bundle is NULL");
}

TEST(BundleArguments, BundlesThatDifferAreToldByRankAndByWhatDiffers) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  job.each([&](int rank) {
    std::vector<float> m(100);
    const auto mismatch = [&](const Sizes& counts, int type, int redop, const Merging& merging) {
      std::vector<canary_tensor> list;
      std::size_t at = 0;
      for (const std::size_t count : counts) list.push_back({m.data() + at, count}), at += count;
      canary_bundle_options o = CANARY_BUNDLE_OPTIONS_INIT;
      o.policy = merging.policy;
      o.ends = merging.ends.empty() ? nullptr : merging.ends.data();
      o.groups = merging.ends.size();
      o.codec = merging.codec;
      o.tensor = merging.tensor;
      canary_bundle* b = nullptr;
      EXPECT_EQ(canary_bundle_create(job.world(rank), list.data(), list.size(), static_cast<canary_type>(type),
                                     static_cast<canary_redop>(redop), &o, &b),
                CANARY_MISMATCH);
      EXPECT_EQ(b, nullptr);
      return last_error().message;
    };
    const auto has = [](const std::string& text, const std::string& words) {
      EXPECT_NE(text.find(words), std::string::npos) << text;
    };
    const bool odd = rank == 2;
    const std::string who = "ranks 0 and 2 declare different bundles: ";
    has(mismatch(odd ? Sizes{1, 2, 3} : Sizes{1, 2}, 0, 0, {}), who + "2 tensors and 3 tensors");
    has(mismatch({1, 2}, odd ? CANARY_I32 : CANARY_F32, 0, {}), who + "f32 and i32");
    has(mismatch({1, 2}, 0, odd ? CANARY_MAX : CANARY_SUM, {}), who + "sum and max");
    has(mismatch({1, 2}, 0, 0, {.policy = odd ? CANARY_MERGE_WFBP : CANARY_MERGE_EXACT}),
        who + "policy 0 and policy 2");
    has(mismatch({1, 2}, 0, 0, {.codec = odd ? codec("int8") : 0}), who + "no codec and codec int8");
    has(mismatch({1, 2}, 0, 0, {.codec = codec("int8"), .tensor = odd ? 7u : 0u}),
        who + "no tensor in the error feedback and tensor 7");
    has(mismatch({1, 2, 3}, 0, 0, Merging::given(odd ? Sizes{1, 3} : Sizes{2, 3})), who + "other groups");
    has(mismatch(odd ? Sizes{1, 5, 3} : Sizes{1, 2, 3}, 0, 0, {}), who + "tensor 1 of 2 and 5 elements");
    has(mismatch(rank == 1 ? Sizes{4, 5, 9}
                 : odd     ? Sizes{3, 5, 3}
                           : Sizes{4, 5, 3},
                 0, 0, {}),
        "ranks 0 and 1 declare different bundles: tensor 2 of 3 and 9 elements");
    float one = 1;
    EXPECT_EQ(canary_all_reduce(job.world(rank), &one, &one, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK);
    EXPECT_EQ(one, 3.0f);
  });
}

TEST(Bundle, OneThreadAtATimeIsInACall) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int rank) {
    std::vector<float> m(10);
    const canary_tensor list[] = {{m.data(), 10}};
    canary_bundle* b = nullptr;
    ASSERT_EQ(canary_bundle_create(job.world(rank), list, 1, CANARY_F32, CANARY_SUM, nullptr, &b), CANARY_OK);
    if (rank == 0) {
      ASSERT_EQ(canary_bundle_submit(b, 0), CANARY_OK);
      std::atomic<bool> back = false;
      std::thread waits([&] {
        EXPECT_EQ(canary_bundle_wait(b), CANARY_OK) << last_error().message;
        back = true;
      });
      usleep(100'000);  // rank 1 submits later
      EXPECT_FALSE(back);
      expect_refused(canary_bundle_submit(b, 0), "another thread is in a call of this bundle");
      waits.join();
      EXPECT_EQ(canary_bundle_submit(b, 0), CANARY_OK);
    } else {
      usleep(300'000);
      ASSERT_EQ(canary_bundle_submit(b, 0), CANARY_OK);
      EXPECT_EQ(canary_bundle_wait(b), CANARY_OK);
      EXPECT_EQ(canary_bundle_submit(b, 0), CANARY_OK);
    }
    EXPECT_EQ(canary_bundle_wait(b), CANARY_OK);
    EXPECT_EQ(canary_bundle_destroy(b), CANARY_OK);
  });
}

// --- ends ------------------------------------------------------------------------------------------------------------

TEST(BundleEnds, ADeadRankIsNamedWithTheTensorsOfItsMessage) {
  test::expect_good_without_rank_2([](canary_context* context, int rank, const auto& ready) -> std::string {
    std::vector<float> m(60'000, 1.0f);
    std::vector<canary_tensor> list;
    for (std::size_t t = 0; t < 6; ++t) list.push_back({m.data() + t * 10'000, 10'000});
    const std::size_t ends[] = {1, 4, 6};
    canary_bundle_options o = CANARY_BUNDLE_OPTIONS_INIT;
    o.policy = CANARY_MERGE_GIVEN;
    o.ends = ends;
    o.groups = 3;
    canary_bundle* b = nullptr;
    if (canary_bundle_create(canary_world(context), list.data(), 6, CANARY_F32, CANARY_SUM, &o, &b) != CANARY_OK)
      return last_error().message;
    for (int n = 0; n < 3; ++n) {
      for (std::size_t t = 0; t < 6; ++t) {
        if (canary_bundle_submit(b, t) != CANARY_OK) return last_error().message;
      }
      if (canary_bundle_wait(b) != CANARY_OK) return last_error().message;
    }
    // Rank 2 takes part in tensor 0 and is killed; tensors 1 to 3 are under way for the others.
    if (canary_bundle_submit(b, 0) != CANARY_OK || canary_bundle_wait_tensor(b, 0) != CANARY_OK)
      return last_error().message;
    if (rank == 2) {
      ready();
      for (;;) pause();
    }
    for (std::size_t t = 1; t < 6; ++t) {
      if (canary_bundle_submit(b, t) != CANARY_OK) return last_error().message;
    }
    if (canary_bundle_wait(b) != CANARY_PEER_DIED) return "no death: " + last_error().message;
    const test::Error e = last_error();
    if (e.rank != 2 || e.message.find("bundle_wait: tensors 1 to 3: ") == std::string::npos) return e.message;
    for (float& v : m) v = 2;  // nothing reads or writes it any more
    for (const canary_status s : {canary_bundle_submit(b, 0), canary_bundle_wait(b), canary_bundle_wait_tensor(b, 5)}) {
      if (s != CANARY_PEER_DIED || last_error().message.find("tensors 1 to 3") == std::string::npos)
        return "later: " + last_error().message;
    }
    if (m[25'000] != 2.0f) return "written";
    return canary_bundle_destroy(b) == CANARY_OK ? "good" : last_error().message;
  });
}

TEST(BundleEnds, AGroupsAbortEndsItAndItsMemoryIsFreeThen) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  job.each([&](int rank) {
    std::vector<float> m(200'000, 1.0f);
    const canary_tensor list[] = {{m.data() + 100'000, 100'000}, {m.data(), 100'000}};
    canary_bundle* b = nullptr;
    ASSERT_EQ(canary_bundle_create(job.world(rank), list, 2, CANARY_F32, CANARY_SUM, nullptr, &b), CANARY_OK);
    if (rank == 0) {
      usleep(50'000);
      ASSERT_EQ(canary_group_abort(job.world(rank), "enough"), CANARY_OK);
    } else {
      EXPECT_EQ(canary_bundle_submit(b, 0), CANARY_OK);
      EXPECT_EQ(canary_bundle_submit(b, 1), CANARY_OK);
      EXPECT_EQ(canary_bundle_wait(b), CANARY_ABORTED);
      EXPECT_NE(last_error().message.find("tensor 0: "), std::string::npos) << last_error().message;
      EXPECT_NE(last_error().message.find("enough"), std::string::npos) << last_error().message;
    }
    EXPECT_EQ(canary_bundle_destroy(b), CANARY_OK);
  });
}

TEST(BundleEnds, ItsDestructionWaitsForItsMessages) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int rank) {
    auto m = std::make_unique<std::vector<float>>(300'000, 1.0f);
    const canary_tensor list[] = {{m->data(), m->size()}};
    canary_bundle* b = nullptr;
    ASSERT_EQ(canary_bundle_create(job.world(rank), list, 1, CANARY_F32, CANARY_SUM, nullptr, &b), CANARY_OK);
    if (rank == 1) usleep(100'000);
    ASSERT_EQ(canary_bundle_submit(b, 0), CANARY_OK);
    EXPECT_EQ(canary_bundle_destroy(b), CANARY_OK);
    EXPECT_EQ((*m)[299'999], 2.0f);
    m.reset();
    EXPECT_EQ(canary_barrier(job.world(rank), nullptr), CANARY_OK);
  });
}

TEST(BundleEnds, AThreadThatWaitsHearsThatItsContextWasFinalized) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  std::vector<float> memory(1000, 1.0f);
  std::vector<canary_bundle*> bundles(2);
  job.each([&](int rank) {
    const canary_tensor list[] = {{memory.data() + 500 * rank, 500}};
    EXPECT_EQ(canary_bundle_create(job.world(rank), list, 1, CANARY_F32, CANARY_SUM, nullptr,
                                   &bundles[static_cast<std::size_t>(rank)]),
              CANARY_OK);
  });
  std::thread waits([&] {
    EXPECT_EQ(canary_bundle_submit(bundles[0], 0), CANARY_OK);
    EXPECT_EQ(canary_bundle_wait(bundles[0]), CANARY_CLOSED);
    EXPECT_NE(last_error().message.find("bundle_wait: tensor 0: "), std::string::npos) << last_error().message;
    std::fill_n(memory.begin(), 500, 2.0f);
  });
  usleep(50'000);
  job.leave(0);
  waits.join();
}

TEST(BundleEnds, WithItsContextAndWithItsGroup) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  std::vector<canary_bundle*> left(2);
  std::vector<std::vector<float>> memory(2, std::vector<float>(1000, 1.0f));
  job.each([&](int rank) {
    const auto i = static_cast<std::size_t>(rank);
    const int ranks[] = {1, 0};
    canary_group* pair = nullptr;
    ASSERT_EQ(canary_group_create(job.context(rank), ranks, 2, &pair), CANARY_OK);
    const canary_tensor list[] = {{memory[i].data(), 500}, {memory[i].data() + 500, 500}};
    canary_bundle* b = nullptr;
    ASSERT_EQ(canary_bundle_create(pair, list, 2, CANARY_F32, CANARY_SUM, nullptr, &b), CANARY_OK);
    ASSERT_EQ(canary_group_destroy(pair), CANARY_OK);
    EXPECT_EQ(canary_bundle_submit(b, 0), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find("group"), std::string::npos) << last_error().message;
    EXPECT_EQ(canary_bundle_destroy(b), CANARY_OK);
    ASSERT_EQ(canary_bundle_create(job.world(rank), list, 2, CANARY_F32, CANARY_SUM, nullptr, &left[i]), CANARY_OK);
    ASSERT_EQ(canary_barrier(job.world(rank), nullptr), CANARY_OK);
    if (rank == 0) {
      EXPECT_EQ(canary_bundle_submit(left[i], 0), CANARY_OK);  // which rank 1 never does
    }
  });
  job.leave(0);
  for (float& v : memory[0]) v = 3;
  expect_refused(canary_bundle_submit(left[0], 1), "this bundle has ended");
  expect_refused(canary_bundle_destroy(left[0]), "this bundle has ended");
}

}  // namespace
}  // namespace canarynet

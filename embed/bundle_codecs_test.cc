// Bundles whose messages travel by a codec: what is left out comes to its own elements, and what can't be encoded is
// told by tensor and element.
#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
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

// Nothing that a codec leaves out of an element may be lost, or come to another element, also where tensors travel in
// other groups from one iteration to the next. Whole numbers, so sums are exact: once the gradients have ended and all
// that was left out has come, each element has got the sum of all of its gradients.
class CodedBundles : public testing::TestWithParam<const char*> {};

TEST_P(CodedBundles, WhatIsLeftOutComesToItsOwnElementsHoweverTheyTravel) {
  const Sizes sizes = {3, 0, 1, 2'001, 5, 5, 64, 1, 0, 200, 1'333, 17};
  constexpr int kRanks = 3, kGradients = 12, kMore = 60;
  Ranks(kRanks).each([&](Context& context) {
    const int rank = context.rank();
    std::uint64_t tensor = 0;
    for (const Lies lies : {Lies::kUp, Lies::kDown, Lies::kScattered, Lies::kMixed, Lies::kGaps}) {
      for (const canary_merge policy : {CANARY_MERGE_EXACT, CANARY_MERGE_WFBP, CANARY_MERGE_SYNCEASGD}) {
        SCOPED_TRACE(testing::Message() << "rank " << rank << ", lies " << static_cast<int>(lies) << ", policy "
                                        << policy);
        Model<float> model(sizes, lies, rank);
        Merging merging{.policy = policy, .codec = codec(GetParam()), .tensor = ++tensor};
        Bundle bundle(context.world(), model.tensors(), CANARY_SUM, merging);
        std::vector<std::vector<double>> got(sizes.size());
        for (std::size_t t = 0; t < sizes.size(); ++t) got[t].resize(sizes[t]);
        bool late = false;
        for (int n = 0; n < kGradients + kMore; ++n) {
          for (std::size_t t = 0; t < sizes.size(); ++t) {
            model.fill(t, rank, n);
            if (n >= kGradients) std::fill(model.tensors()[t].begin(), model.tensors()[t].end(), 0.0F);
            bundle.submit(t);
          }
          bundle.wait();
          for (std::size_t t = 0; t < sizes.size(); ++t) {
            for (std::size_t i = 0; i < sizes[t]; ++i) {
              got[t][i] += static_cast<double>(model.tensors()[t][i]);
              late = late || (n >= kGradients && model.tensors()[t][i] != 0);
            }
          }
        }
        EXPECT_TRUE(late) << "nothing was left out, so nothing is shown";
        std::size_t wrong = 0;
        for (std::size_t t = 0; t < sizes.size(); ++t) {
          for (std::size_t i = 0; i < sizes[t]; ++i) {
            double due = 0;
            for (int n = 0; n < kGradients; ++n) due += kRanks * value_of(0, t, i, n) + kRanks * (kRanks - 1) / 2;
            wrong += got[t][i] != due;
          }
        }
        EXPECT_EQ(wrong, 0u) << "elements";
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Codecs, CodedBundles, testing::Values("topk:0.1", "agtopk:0.1", "artopk:star:0.1"),
                         [](const auto& test) { return "codec_" + std::to_string(test.index); });

// STAR's roots take turns. If they did so over all messages of a bundle, each message would have one root for ever
// where an iteration has as many messages as ranks, and what only another rank has would never travel.
TEST(CodedBundle, WhatOneRankAloneHasTravelsHoweverManyMessagesThereAre) {
  Ranks(2).each([&](Context& context) {
    std::vector<float> m(200);
    std::vector<std::span<float>> tensors = {std::span(m).subspan(0, 100), std::span(m).subspan(100, 100)};
    Merging merging = Merging::given({1, 2});
    merging.codec = codec("artopk:star:0.1");
    merging.tensor = 1;
    Bundle bundle(context.world(), tensors, CANARY_SUM, merging);
    float got[2] = {};
    for (int n = 0; n < 20; ++n) {
      std::fill(m.begin(), m.end(), 0.0F);
      if (n == 0) m[context.rank() == 1 ? 5 : 150] = 3;
      bundle.submit(0);
      bundle.submit(1);
      bundle.wait();
      got[0] += m[5];
      got[1] += m[150];
    }
    EXPECT_EQ(got[0], 3) << "rank 1's";
    EXPECT_EQ(got[1], 3) << "rank 0's";
  });
}

// A sparsifier chooses within a piece, so small layers compete where they share one.
TEST(CodedBundle, EveryLayerKeepsItsShareWhereItTravelsAlone) {
  Ranks(2).each([&](Context& context) {
    for (const bool alone : {false, true}) {
      constexpr std::size_t kLayer = 50;  // a rank completes two of them
      std::vector<float> m(4 * kLayer);
      std::vector<std::span<float>> layers;
      for (std::size_t t = 0; t < 4; ++t) {
        layers.push_back(std::span(m).subspan(t * kLayer, kLayer));
        std::fill(layers[t].begin(), layers[t].end(), t % 2 == 0 ? 100.0F : 1.0F);
      }
      Merging merging{.policy = alone ? CANARY_MERGE_WFBP : CANARY_MERGE_SYNCEASGD,
                      .codec = codec("lwtopk:0.1"),
                      .tensor = alone ? 1u : 2u};
      Bundle bundle(context.world(), layers, CANARY_SUM, merging);
      for (std::size_t t = 0; t < 4; ++t) bundle.submit(t);
      bundle.wait();
      for (std::size_t t = 0; t < 4; ++t) {
        const auto sent = std::count_if(layers[t].begin(), layers[t].end(), [](float v) { return v != 0; });
        EXPECT_EQ(sent > 0, alone || t % 2 == 0) << "layer " << t << (alone ? ", alone" : ", with the others");
      }
    }
  });
}

TEST(CodedBundle, WhatWasSavedOfItComesBackInOtherGroups) {
  Ranks(2).each([&](Context& context) {
    const int rank = context.rank();
    const Sizes sizes = {300, 20, 700};
    Model<float> model(sizes, Lies::kDown, rank);
    std::vector<double> got(3);
    const auto run = [&](const Merging& merging, int gradients, int more, bool counts) {
      Bundle bundle(context.world(), model.tensors(), CANARY_SUM, merging);
      for (int n = 0; n < gradients + more; ++n) {
        for (std::size_t t = 0; t < 3; ++t) {
          model.fill(t, rank, n);
          if (n >= gradients) std::fill(model.tensors()[t].begin(), model.tensors()[t].end(), 0.0F);
          bundle.submit(t);
        }
        bundle.wait();
        // Weights tell elements from each other.
        for (std::size_t t = 0; t < 3 && counts; ++t) {
          for (std::size_t i = 0; i < sizes[t]; ++i)
            got[t] += static_cast<double>(i + 1) * static_cast<double>(model.tensors()[t][i]);
        }
      }
    };
    Merging merging{.policy = CANARY_MERGE_WFBP, .codec = codec("topk:0.1"), .tensor = 5};
    run(merging, 4, 0, true);
    std::size_t size = 0;
    ASSERT_EQ(canary_feedback_save(context.world().handle(), nullptr, &size), CANARY_OK);
    std::vector<std::byte> saved(size);
    ASSERT_EQ(canary_feedback_save(context.world().handle(), saved.data(), &size), CANARY_OK);
    run(merging, 0, 3, false);  // some of it is gone
    ASSERT_EQ(canary_feedback_restore(context.world().handle(), saved.data(), size), CANARY_OK);
    merging.policy = CANARY_MERGE_SYNCEASGD;
    run(merging, 0, 40, true);
    for (std::size_t t = 0; t < 3; ++t) {
      double due = 0;
      for (int n = 0; n < 4; ++n) {
        for (std::size_t i = 0; i < sizes[t]; ++i) due += static_cast<double>(i + 1) * (2 * value_of(0, t, i, n) + 1);
      }
      EXPECT_EQ(got[t], due) << "tensor " << t;
    }
  });
}

// By a choice among codecs, and with momentum: whatever travels, all ranks get the same.
TEST(CodedBundle, CodecsThatAreChosenAndMomentumGiveAllRanksTheSame) {
  Ranks(3).each([&](Context& context) {
    for (const char* text : {"auto", "auto:0.1", "topk:0.1", "artopk:var:0.1,or-dense"}) {
      Model<float> model(kSizes, Lies::kDown, context.rank());
      Merging merging{.codec = codec(text), .tensor = 11};
      if (std::string(text).find("auto") == std::string::npos) merging.momentum = 0.5F;
      Bundle bundle(context.world(), model.tensors(), CANARY_AVG, merging);
      for (int n = 0; n < 8; ++n) {
        for (std::size_t t = 0; t < kSizes.size(); ++t) {
          model.fill(t, context.rank(), n);
          bundle.submit(t);
        }
        bundle.wait();
        for (auto& tensor : model.tensors()) {
          std::vector<float> all(3 * tensor.size());
          context.world().all_gather(tensor, std::span(all));
          for (std::size_t i = 0; i < tensor.size(); ++i)
            ASSERT_TRUE(all[i] == all[tensor.size() + i] && all[i] == all[2 * tensor.size() + i]) << text << ", " << n;
        }
      }
    }
  });
}

TEST(CodedBundle, AValueThatItsCodecDoesNotEncodeEndsItEverywhereAndNamesTheElement) {
  Ranks(2).each([&](Context& context) {
    std::vector<float> m(30, 1.0F);
    std::vector<std::span<float>> tensors = {std::span(m).subspan(0, 10), std::span(m).subspan(10, 20)};
    {
      Merging merging = Merging::given({1, 2});
      merging.codec = codec("int8");
      merging.tensor = 9;
      Bundle bundle(context.world(), tensors, CANARY_SUM, merging);
      if (context.rank() == 1) m[14] = std::numeric_limits<float>::quiet_NaN();
      bundle.submit(0);
      bundle.submit(1);
      try {
        bundle.wait();
        FAIL() << "it took a NaN";
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("tensor 9, element 14 of rank 1 is nan"), std::string::npos) << e.what();
      }
    }
    float one = 1;
    context.world().all_reduce(std::span(&one, 1), CANARY_SUM);
    EXPECT_EQ(one, 2) << "the group lives on";
  });
}

TEST(CodedBundle, CodecsThatABundleCannotHaveAreRefused) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  float m[20] = {};
  const canary_tensor good[2] = {{m, 4}, {m + 8, 4}};
  canary_bundle* b = nullptr;
  canary_bundle_options o = CANARY_BUNDLE_OPTIONS_INIT;
  const auto create = [&](canary_type type = CANARY_F32, canary_redop redop = CANARY_AVG) {
    return canary_bundle_create(job.world(0), good, 2, type, redop, &o, &b);
  };
  o.tensor = 3;
  expect_refused(create(), "tensor is 3 without a codec");
  o.tensor = 0;
  o.momentum = 0.5F;
  expect_refused(create(), "momentum is 0.500000 without a codec");
  o.codec = codec("topk:0.25");
  expect_refused(create(), "momentum without a tensor");
  o.tensor = 3;
  o.codec = codec("int8");
  expect_refused(create(), "momentum is for codecs that leave out whole elements");
  o.momentum = 0;
  expect_refused(create(CANARY_F64), "a codec takes f32, not f64");
  expect_refused(create(CANARY_F32, CANARY_MAX), "a codec takes sum and avg, not max");
  o.codec = codec("power:2");
  expect_refused(create(), "needs the shape of a matrix");
  o.codec = 12345678;
  expect_refused(create(), "codec");
  EXPECT_EQ(b, nullptr);
  // What a program had before there were codecs.
  o.struct_size = 32;
  ASSERT_EQ(create(CANARY_F64), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_bundle_destroy(b), CANARY_OK);
}

}  // namespace
}  // namespace canarynet

// The joint search: what a plan makes of a codec, what a codec makes of a gradient, what exchanges cost, and NSGA-II
// beside trying everything.
#include "tools/sim/search/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "collectives/codec_pick.h"
#include "tools/sim/search/coded_work.h"

namespace canarynet::sim {
namespace {

CodecSpec codec(const std::string& text) {
  const auto spec = parse_codec(text);
  EXPECT_TRUE(spec.ok()) << text;
  return spec.value();
}

CodedWork work_of(PlannerId id, int ranks) {
  const Reachability reach = Reachability::full(ranks, 1);
  return coded_work(id, {.ranks = ranks, .count = 1 << 20, .reach = &reach});
}

TEST(CodedWork, OfAMeshIsWhatTheEngineReckonsWith) {
  for (const int n : {2, 3, 5, 8}) {
    SCOPED_TRACE(n);
    const CodedWork work = work_of(PlannerId::kMesh, n);
    // Tells encoding and decoding apart, and the slowest rank does what all do.
    EXPECT_NEAR(work.seconds_per_byte(1, 0, 0), codec_work({1, 0}, 1'000'000, n, true) / 1e6, 1e-3);
    EXPECT_NEAR(work.seconds_per_byte(0, 1, 1), codec_work({0, 1}, 1'000'000, n, true) / 1e6, 1e-3);
    EXPECT_NEAR(work.encodings, 2 - 1.0 / n, 1e-3);
  }
}

TEST(CodedWork, ARingEncodesOnceMoreAtEveryHop) {
  for (const int n : {2, 3, 8}) {
    SCOPED_TRACE(n);
    const CodedWork work = work_of(PlannerId::kRing, n);
    EXPECT_NEAR(work.encodings, (n + 1) / 2.0, 1e-3);
    // Every rank encodes n - 1 partial sums and completes one part; a complete part is handed on as it came.
    EXPECT_NEAR(work.seconds_per_byte(1, 0, 0), 1, 1e-3);
    EXPECT_NEAR(work.seconds_per_byte(0, 0, 1), (n - 1.0) / n, 1e-3);
  }
}

TEST(CodedWork, OfAParameterServerIsThatOfItsServer) {
  const CodedWork work = work_of(PlannerId::kParameterServer, 5);
  EXPECT_NEAR(work.seconds_per_byte(0, 0, 1), 4, 1e-3);  // everybody's values
  EXPECT_NEAR(work.seconds_per_byte(1, 0, 0), 1, 1e-3);
}

TEST(CodecSample, BytesAndGainDependOnTheSeedAlone) {
  const SampleGradient one(32 * 1024, 1), again(32 * 1024, 1), other(32 * 1024, 2);
  const CodecSpec top = codec("topk:0.01");
  const CodecSample sample = sample_codec(top, 64 * 1024, one, 0);
  EXPECT_EQ(sample.gain, sample_codec(top, 64 * 1024, again, 1e9).gain);
  EXPECT_NE(sample.gain, sample_codec(top, 64 * 1024, other, 1e9).gain);
  EXPECT_GT(sample.encode, 0);
  EXPECT_GT(sample.decode, 0);
  EXPECT_EQ(sample_codec(top, 64 * 1024, one, 1e9).encode, 1e-9);
}

TEST(CodecSample, TheGainOfASparsifierIsTheEnergyOfItsValues) {
  constexpr std::size_t kElements = 16 * 1024;
  const SampleGradient gradient(kElements, 3);
  std::vector<double> energy, other;
  std::vector<std::size_t> order(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    energy.push_back(std::pow(gradient.values()[i], 2.0));
    other.push_back(std::pow(gradient.other_values()[i], 2.0));
    order[i] = i;
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return energy[a] > energy[b]; });
  double all = 0, kept = 0, all_of_other = 0, kept_of_other = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    all += energy[order[i]];
    all_of_other += other[order[i]];
    if (i >= 164) continue;  // 1 % of them, rounded up
    kept += energy[order[i]];
    kept_of_other += other[order[i]];
  }
  const CodecSample sample = sample_codec(codec("artopk:star:0.01"), 4096, gradient, 1e9);
  EXPECT_NEAR(sample.gain, kept / all, 2e-3);
  EXPECT_NEAR(sample.other_gain, kept_of_other / all_of_other, 2e-3);
  EXPECT_LT(sample.other_gain, sample.gain);  // these are not the other rank's largest
}

TEST(CodecSample, SmallerPiecesFitBetterAndCarryMoreHeads) {
  const SampleGradient gradient(64 * 1024, 1);
  const CodecSpec sketch = codec("sketch:8,mean");
  const CodecSample small = sample_codec(sketch, 8 * 1024, gradient, 1e9);
  const CodecSample large = sample_codec(sketch, 256 * 1024, gradient, 1e9);
  EXPECT_GT(small.wire_share, 1.2 * large.wire_share);
  const CodecSpec int8 = codec("int8");
  EXPECT_GT(sample_codec(int8, 8 * 1024, gradient, 1e9).gain, sample_codec(int8, 256 * 1024, gradient, 1e9).gain);
}

constexpr Network kNetwork{.ranks = 8, .alpha = 50e-6, .bits_per_second = 1e9};

TEST(Exchanges, PiecesFillThePipelineAndCostTheirPosting) {
  Exchanges exchanges(kNetwork, 0);
  const auto ring = [&](std::uint64_t piece) { return exchanges.dense(PlannerId::kRing, 32 << 20, piece); };
  // Bytes alone: 2 * 7/8 * 32 MiB at 1 Gbit/s.
  const double bytes = 2 * 7 / 8.0 * (32 << 20) * 8e-9;
  EXPECT_GT(ring(128 * 1024), bytes);
  EXPECT_LT(ring(128 * 1024), 1.05 * bytes);
  EXPECT_GT(ring(4096), 1.2 * bytes);  // 10 us to post what takes 33 us to send
  const auto tree = [&](std::uint64_t piece) { return exchanges.dense(PlannerId::kDoubleTree, 8 << 20, piece); };
  EXPECT_GT(tree(1024 * 1024), 1.3 * tree(64 * 1024));  // too few pieces for a pipeline
}

TEST(Exchanges, EncodedPiecesTakeTheTimeOfTheirBytes) {
  Exchanges exchanges({.ranks = 4, .alpha = 1e-6, .bits_per_second = 1e8, .post = 0}, 0);
  const double dense = exchanges.coded(PlannerId::kMesh, 16 << 20, 64 * 1024, 1);
  const double quarter = exchanges.coded(PlannerId::kMesh, 16 << 20, 64 * 1024, 0.25);
  EXPECT_NEAR(quarter / dense, 0.25, 0.01);
}

TEST(Exchanges, APieceIsNoLongerThanARanksPart) {
  const Exchanges exchanges(kNetwork, 0);
  EXPECT_EQ(exchanges.longest_piece(PlannerId::kMesh, 8 * 4096, 1024), 1024u);
  EXPECT_EQ(exchanges.longest_piece(PlannerId::kMesh, 8 * 4096, 1024 * 1024), 4096u);
  EXPECT_EQ(exchanges.dense(PlannerId::kMesh, 8 * 4096, 4096), exchanges.dense(PlannerId::kMesh, 8 * 4096, 1 << 20));
}

TEST(Exchanges, LongOnesAreFollowedOnAStraightLine) {
  Exchanges walked({.ranks = 8, .alpha = 100e-6, .bits_per_second = 1e9}, 1e-10), followed = walked;
  walked.walked_messages_max = ~std::uint64_t{0};
  constexpr double kBytes = 50e6;
  constexpr std::uint64_t kPiece = 8192;
  int differ = 0;
  for (const PlannerId id : walked.planners(Collective::kAllReduce, false)) {
    const double exact = walked.dense(id, kBytes, kPiece), close = followed.dense(id, kBytes, kPiece);
    EXPECT_NEAR(close, exact, 0.03 * exact) << name_of(id);
    differ += close != exact;
  }
  EXPECT_GE(differ, 2);  // else they were all walked
}

SpaceOptions small_space() { return {.ratios = 9, .piece_low = 4096, .piece_high = 64 * 1024, .pieces = 5}; }

TEST(Space, EveryPointIsADesignAndEveryDesignHasAPoint) {
  const DesignCosts costs({.network = kNetwork, .codec_speed = 1e9, .sample_elements = 4096});
  const Space space(small_space(), costs.planners());
  const auto key = [](const Design& d) {
    return std::tuple(to_text(d.codec), d.piece_bytes, static_cast<int>(d.planner));
  };
  std::set<decltype(key(Design()))> of_points, all;
  for (const Design& d : space.all()) {
    EXPECT_TRUE(check(d.codec).ok()) << to_text(d.codec);
    EXPECT_TRUE(all.insert(key(d)).second) << to_text(d.codec);
  }
  const auto counts = space.counts();
  for (int family = 0; family < counts[0]; ++family) {
    for (int parameter = 0; parameter < counts[1]; ++parameter) {
      for (int piece = 0; piece < counts[2]; ++piece) {
        for (int p = 0; p < counts[3]; ++p) of_points.insert(key(space.at(std::array{family, parameter, piece, p})));
      }
    }
  }
  EXPECT_EQ(of_points, all);
}

// Small enough to try everything; codecs' speeds are given, so all of it is the same everywhere.
SearchStudy small_study(double alpha, double bits_per_second) {
  SearchStudy study;
  study.run = {.network = {.ranks = 4, .alpha = alpha, .bits_per_second = bits_per_second},
               .parameters = 60'000,
               .codec_speed = 1e9,
               .sample_elements = 4096};
  study.space = small_space();
  study.nsga2 = {.generations = 100, .population = 60};
  return study;
}
auto costs_of(const Tried& t) {
  const RatioCost& c = t.costs.cost;
  return std::tuple(c.sync_seconds, c.compress_seconds, c.inverse_gain);
}

TEST(Search, TryingEverythingKeepsWhatNothingBeats) {
  SearchStudy study = small_study(50e-6, 1e10);
  study.exhaustive = true;
  const SearchResult result = search(study);
  EXPECT_EQ(result.tried, result.designs);
  ASSERT_FALSE(result.front.empty());
  DesignCosts costs(study.run);
  const Space space(study.space, costs.planners());
  for (const Design& design : space.all()) {
    const DesignCost other = costs.of(design);
    if (other.gain < study.least_gain) continue;
    for (const Tried& t : result.front) {
      const RatioCost &a = other.cost, &b = t.costs.cost;
      const bool beats = a.sync_seconds <= b.sync_seconds && a.compress_seconds <= b.compress_seconds &&
                         a.inverse_gain <= b.inverse_gain &&
                         (a.sync_seconds < b.sync_seconds || a.compress_seconds < b.compress_seconds ||
                          a.inverse_gain < b.inverse_gain);
      EXPECT_FALSE(beats) << to_text(design.codec) << " beats " << to_text(t.design.codec);
    }
  }
  for (const Tried& t : result.front) EXPECT_GE(t.costs.gain, study.least_gain);
  EXPECT_EQ(result.front.back().design.codec.kind, CodecKind::kDense);  // takes no time to compress, and gains all
}

TEST(Search, Nsga2FindsTheFrontAndTheKneeOfTryingEverything) {
  if (!has_nsga2()) GTEST_SKIP() << "this build has no pagmo";
  for (const auto& [alpha, rate] : {std::pair(50e-6, 1e10), std::pair(1e-3, 1e8)}) {
    SearchStudy study = small_study(alpha, rate);
    study.exhaustive = true;
    const SearchResult all = search(study);
    std::set<decltype(costs_of(Tried()))> front;
    for (const Tried& t : all.front) front.insert(costs_of(t));
    study.exhaustive = false;
    for (const std::uint32_t seed : {1u, 2u, 3u}) {
      SCOPED_TRACE(::testing::Message() << "alpha " << alpha << " seed " << seed);
      study.nsga2.seed = seed;
      const SearchResult found = search(study);
      EXPECT_LT(found.tried, all.tried);
      std::size_t on_it = 0;
      for (const Tried& t : found.front) on_it += front.count(costs_of(t));
      EXPECT_LE(found.front.size() - on_it, 1u);  // one of 16 such searches has not met what beats its last design
      EXPECT_GE(on_it, front.size() * 9 / 10) << "of " << front.size() << " after " << found.tried << " designs";
      EXPECT_EQ(costs_of(found.front[found.knee]), costs_of(all.front[all.knee]));
    }
  }
}

TEST(Search, TheSameSeedGivesTheSameSearch) {
  if (!has_nsga2()) GTEST_SKIP() << "this build has no pagmo";
  SearchStudy study = small_study(1e-3, 1e9);
  study.nsga2.generations = 5;
  const std::string one = json_of(study, search(study));
  EXPECT_EQ(one, json_of(study, search(study)));
  const auto front = nlohmann::json::parse(one)["front"];
  study.nsga2.seed = 2;
  EXPECT_NE(front, nlohmann::json::parse(json_of(study, search(study)))["front"]);
}

TEST(Search, ReportsHaveTheFrontTheKneeAndWhatWasAssumed) {
  SearchStudy study = small_study(1e-3, 1e8);
  study.exhaustive = true;
  study.space = {.ratios = 2, .pieces = 1};
  const SearchResult result = search(study);
  const auto json = nlohmann::json::parse(json_of(study, result));
  EXPECT_EQ(json["front"].size(), result.front.size());
  const Tried& knee = result.front[result.knee];
  EXPECT_EQ(json["knee"]["codec"], to_text(knee.design.codec));
  EXPECT_EQ(json["knee"]["exchange_seconds"], knee.costs.cost.sync_seconds);
  EXPECT_EQ(json["assumptions"].size(), 4u);
  const std::string text = text_of(study, result);
  EXPECT_NE(text.find("\nknee: " + to_text(knee.design.codec) + " by "), std::string::npos) << text;
  EXPECT_NE(text.find("\n* " + to_text(knee.design.codec)), std::string::npos) << text;
  EXPECT_NE(text.find("assumes: codecs' speeds: 1e+09 bytes of f32 a second, as given"), std::string::npos) << text;
  const std::string svg = plot_of(study, result);
  EXPECT_TRUE(svg.starts_with("<svg "));
  std::size_t dots = 0;
  for (std::size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++dots;
  EXPECT_EQ(dots, result.front.size());
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(Search, DesignsThatLoseTooMuchArePassedOver) {
  SearchStudy study = small_study(1e-3, 1e8);
  study.exhaustive = true;
  study.least_gain = 0.9;
  const SearchResult strict = search(study);
  for (const Tried& t : strict.front) EXPECT_GE(t.costs.gain, 0.9) << to_text(t.design.codec);
  study.least_gain = 0;
  EXPECT_LT(search(study).front.front().costs.gain, 0.9);
}

}  // namespace
}  // namespace canarynet::sim

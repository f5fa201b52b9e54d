// What the first rank of a group keeps of the times that operations took.
#include "engine/choice_use.h"

#include <gtest/gtest.h>

#include "engine/codec_use.h"

namespace canarynet {
namespace {

constexpr std::uint64_t kBytes = 512 << 10;

class ChoiceUseTest : public ::testing::Test {
 protected:
  ChoiceUseTest() : cell(use.cell(Collective::kAllReduce, kBytes)) {
    cell.static_known = true;
    cell.static_choice = PlannerId::kRing;
    cell.note_entered(kBytes, ++operation);
  }
  ChoiceUse::Took& took(PlannerId id) { return cell.took[static_cast<std::size_t>(id)][0]; }
  void run(PlannerId id, Nanos time, int times = 8) {
    for (int i = 0; i < times; ++i) took(id).note_slowest(time);
  }
  static MeasuredTable table(PlannerId id) {
    MeasuredRow row;
    row.size_class = size_class(kBytes);
    row.planner = id;
    return MeasuredTable(1, {row});
  }
  // As far as the costs of planners in the order of `costs`, which differ by nothing, tell.
  void judge(const MeasuredTable& present) {
    const Reachability reach = Reachability::full(4, 1);
    const PlanRequest group{.ranks = 4, .reach = &reach};
    TableCosting costing(group, 128 << 10, LinkCosts({1e-4, 1e-8}), {.any = true}, {}, use.classes(operation), present,
                         true);
    while (costing.step()) {
    }
    use.note_costs(costing, present);
  }

  std::uint32_t operation = 0;
  ChoiceUse use;
  ChoiceUse::Cell& cell;
};

TEST_F(ChoiceUseTest, FewOperationsAreEnoughOnlyWhereTheyTakeLongOrFarTooLong) {
  run(PlannerId::kRing, 10_ms);
  run(PlannerId::kMesh, 12_ms, 3);
  EXPECT_FALSE(cell.enough(took(PlannerId::kMesh)));
  run(PlannerId::kTree, 16_ms, 3);
  EXPECT_TRUE(cell.enough(took(PlannerId::kTree))) << "one that is so bad is not run for longer";
  run(PlannerId::kDoubleTree, 100_ms, 2);
  EXPECT_FALSE(cell.enough(took(PlannerId::kDoubleTree)));
  run(PlannerId::kMesh, 12_ms, 3);
  EXPECT_TRUE(cell.enough(took(PlannerId::kMesh)));
  run(PlannerId::kBCube, 1_s, 1);
  EXPECT_FALSE(cell.enough(took(PlannerId::kBCube))) << "the first one finds lanes that were not used for a while";
  run(PlannerId::kBCube, 1_s, 1);
  EXPECT_TRUE(cell.enough(took(PlannerId::kBCube)));
}

TEST_F(ChoiceUseTest, WhatCodecsMakeHasCellsOfItsOwn) {
  constexpr std::uint32_t kCodec = 3;
  ChoiceUse::Cell* const coded = use.coded_cell(kCodec, kBytes);
  ASSERT_NE(coded, nullptr);
  EXPECT_EQ(use.coded_cell(kCodec, kBytes), coded);
  EXPECT_EQ(use.find_coded(kCodec, 4 * kBytes), nullptr);
  coded->static_known = true;
  coded->note_entered(kBytes, ++operation);
  EXPECT_EQ(use.classes(operation).size(), 1u) << "nobody has asked for a choice";
  EXPECT_FALSE(use.measures_coded());
  coded->measured = true;
  EXPECT_TRUE(use.measures_coded());
  ASSERT_EQ(use.classes(operation).size(), 2u);
  EXPECT_EQ(use.classes(operation)[1].codec, kCodec);
  run(PlannerId::kRing, 10_ms);
  EXPECT_FALSE(use.all_tried({}));
  EXPECT_TRUE(use.all_tried({}, [](const ChoiceUse::Cell& c) { return c.codec == 0; })) << "it does not run now";
  for (int i = 0; i < 8; ++i) coded->took[static_cast<std::size_t>(PlannerId::kRing)][0].note_slowest(5_ms);
  EXPECT_TRUE(use.all_tried({}));
  for (std::uint32_t i = 1; i < ChoiceUse::kCodedMax; ++i) EXPECT_NE(use.coded_cell(kCodec + i, kBytes), nullptr);
  EXPECT_EQ(use.coded_cell(1, kBytes), nullptr) << "there are too many";
  EXPECT_EQ(use.coded_cell(kCodec, kBytes), coded);
}

// What a codec took by another plan is not what it takes now.
TEST(CodecUse, ACodecIsTimedAnewWhenItsPlanChanges) {
  CodecUse use;
  CodecUse::Cell* const cell = use.add(number_asked("artopk:star:0.1,auto").value(), kBytes);
  constexpr std::size_t kDense = 0, kArTopK = 1, kAgTopK = 2;
  const auto fill = [&] {
    for (const std::size_t i : {kDense, kArTopK, kAgTopK}) {
      for (int n = 0; n < 8; ++n) cell->took[i].note_slowest(10_ms);
    }
  };
  MeasuredRow row;
  row.asked = codec_number(candidates_of(cell->asked).specs[kArTopK]).value();
  row.keeps_static = true;
  const auto table = [](const MeasuredRow& r) { return MeasuredTable(1, {r}); };
  fill();
  use.begin_anew({}, table(row));
  EXPECT_TRUE(CodecUse::enough(cell->took[kArTopK])) << "it goes by what it went by";
  MeasuredRow other = row;
  other.keeps_static = false;
  other.planner = PlannerId::kTree;
  use.begin_anew(table(row), table(other));
  EXPECT_FALSE(CodecUse::enough(cell->took[kArTopK]));
  EXPECT_TRUE(CodecUse::enough(cell->took[kAgTopK]));
  EXPECT_TRUE(CodecUse::enough(cell->took[kDense]));
  fill();
  use.begin_anew(table(other), table(other));
  EXPECT_TRUE(CodecUse::enough(cell->took[kArTopK]));
  use.begin_anew({}, table(other));
  EXPECT_FALSE(CodecUse::enough(cell->took[kArTopK]));
}

TEST_F(ChoiceUseTest, TheFirstOperationsByAPlannerDoNotCount) {
  run(PlannerId::kMesh, 100_ms, 2);
  run(PlannerId::kMesh, 10_ms, 6);
  EXPECT_EQ(took(PlannerId::kMesh).recent_ns, (10_ms).count);
  took(PlannerId::kMesh).begin_again();
  EXPECT_FALSE(cell.enough(took(PlannerId::kMesh)));
  run(PlannerId::kMesh, 30_ms, 5);
  EXPECT_TRUE(cell.enough(took(PlannerId::kMesh)));
  EXPECT_EQ(took(PlannerId::kMesh).recent_ns, (30_ms).count) << "what it took before is not mixed with that";
}

// A mean of eight would be more than twice as long as seven of them took, and the best planner would be lost.
TEST_F(ChoiceUseTest, AFewOperationsThatAProbeHoldsUpDoNotDecideHowLongTheOthersTake) {
  run(PlannerId::kMesh, 2_ms, 4);
  run(PlannerId::kMesh, 28_ms, 1);
  run(PlannerId::kMesh, 2_ms, 1);
  EXPECT_TRUE(cell.enough(took(PlannerId::kMesh)));
  EXPECT_EQ(took(PlannerId::kMesh).recent_ns, (2_ms).count) << "on trial, of six operations one";
  const MeasuredTable mesh = table(PlannerId::kMesh);
  judge(mesh);
  run(PlannerId::kMesh, 2_ms, 20);
  run(PlannerId::kMesh, 28_ms, 4);
  EXPECT_FALSE(use.any_moved(mesh)) << "four in a row";
  run(PlannerId::kMesh, 2_ms, 9);
  run(PlannerId::kMesh, 28_ms, 5);
  EXPECT_TRUE(use.any_moved(mesh)) << "most of the latest ones take longer now";
}

TEST_F(ChoiceUseTest, AClassOfWhichNoneOfTheLatestOperationsWereIsIdle) {
  EXPECT_FALSE(cell.idle(operation));
  EXPECT_FALSE(cell.idle(operation + ChoiceUse::Cell::kIdleAfter));
  EXPECT_TRUE(cell.idle(operation + ChoiceUse::Cell::kIdleAfter + 1));
  EXPECT_FALSE(use.classes(operation).at(0).idle);
  EXPECT_TRUE(use.classes(operation + 100).at(0).idle);
  ChoiceUse::Cell& untimed = use.cell(Collective::kBroadcast, kBytes);
  untimed.note_entered(kBytes, operation, false);
  EXPECT_TRUE(untimed.idle(operation)) << "nothing will say how long it takes";
  untimed.note_entered(kBytes, operation);
  EXPECT_FALSE(untimed.idle(operation));
  cell.note_entered(kBytes, 0xffffffff);
  cell.note_entered(kBytes, 5);
  EXPECT_FALSE(cell.idle(5)) << "numbers begin again";
  EXPECT_FALSE(cell.idle(37));
  EXPECT_TRUE(cell.idle(38));
}

TEST_F(ChoiceUseTest, OnlyOperationsOfOneSizeAreCompared) {
  run(PlannerId::kRing, 10_ms);
  for (int i = 0; i < 200; ++i) cell.note_entered(i % 4 == 0 ? kBytes : kBytes + 4096, ++operation);
  EXPECT_EQ(cell.usual_bytes, kBytes) << "it is still seen";
  EXPECT_TRUE(cell.enough(took(PlannerId::kRing)));
  for (int i = 0; i < 64; ++i) cell.note_entered(kBytes + 4096, ++operation);
  EXPECT_EQ(cell.usual_bytes, kBytes + 4096);
  EXPECT_FALSE(cell.enough(took(PlannerId::kRing))) << "times of another size";
}

TEST_F(ChoiceUseTest, AChoiceWhoseTimesMoveIsJudgedAgain) {
  const MeasuredTable mesh = table(PlannerId::kMesh);
  run(PlannerId::kRing, 12_ms);
  run(PlannerId::kMesh, 10_ms);
  judge(mesh);
  EXPECT_FALSE(use.any_moved(mesh));
  run(PlannerId::kMesh, 11_ms, 30);
  EXPECT_FALSE(use.any_moved(mesh)) << "by a tenth";
  run(PlannerId::kMesh, 14_ms, 60);
  EXPECT_TRUE(use.any_moved(mesh));
  EXPECT_FALSE(took(PlannerId::kRing).aged);
  use.renew_others_where_moved(mesh);
  EXPECT_TRUE(cell.enough(took(PlannerId::kRing))) << "what the replaced one took is kept";
  EXPECT_TRUE(took(PlannerId::kRing).aged) << "to be timed again";
  judge(mesh);
  EXPECT_FALSE(use.any_moved(mesh));
  run(PlannerId::kMesh, 7_ms, 60);
  EXPECT_TRUE(use.any_moved(mesh));
  use.renew_others_where_moved(mesh);
  EXPECT_FALSE(cell.enough(took(PlannerId::kRing))) << "it may have become faster as well";
  EXPECT_TRUE(cell.enough(took(PlannerId::kMesh)));
}

TEST_F(ChoiceUseTest, APlannerThatComesIntoForceIsTimedAnew) {
  run(PlannerId::kRing, 12_ms);
  run(PlannerId::kMesh, 10_ms);
  use.age();
  EXPECT_TRUE(took(PlannerId::kRing).aged);
  use.begin_anew(table(PlannerId::kMesh), table(PlannerId::kMesh));
  EXPECT_TRUE(cell.enough(took(PlannerId::kMesh))) << "it has been in force";
  use.begin_anew(table(PlannerId::kMesh), table(PlannerId::kRing));
  EXPECT_FALSE(cell.enough(took(PlannerId::kRing)));
  EXPECT_FALSE(took(PlannerId::kRing).aged);
  EXPECT_TRUE(cell.enough(took(PlannerId::kMesh))) << "what the replaced one took is kept";
}

TEST_F(ChoiceUseTest, WhatWasTimedIsDoubtedUntilItIsTimedAnew) {
  run(PlannerId::kRing, 12_ms);
  run(PlannerId::kMesh, 10_ms);
  use.doubt(table(PlannerId::kMesh));
  EXPECT_TRUE(took(PlannerId::kRing).doubted);
  EXPECT_TRUE(took(PlannerId::kRing).aged);
  EXPECT_FALSE(took(PlannerId::kMesh).doubted) << "it decides, so it is timed all the time";
  EXPECT_FALSE(took(PlannerId::kMesh).aged);
  EXPECT_FALSE(took(PlannerId::kTree).doubted) << "there is nothing to doubt";
  const auto known = [&] { return use.classes(0).at(0).known[static_cast<std::size_t>(PlannerId::kRing)][0]; };
  EXPECT_TRUE(known().doubted);
  EXPECT_FALSE(known().before);
  use.begin_anew(table(PlannerId::kMesh), table(PlannerId::kRing));
  EXPECT_FALSE(took(PlannerId::kRing).doubted);
}

// What explains a choice has to name what the others took, long after they ran.
TEST_F(ChoiceUseTest, WhatAPlannerTookByTheLastTableThatNamedItIsKept) {
  took(PlannerId::kRing).note(12_ms);
  use.begin_anew({}, table(PlannerId::kMesh));
  took(PlannerId::kMesh).note(10_ms);
  took(PlannerId::kMesh).note(20_ms);
  use.begin_anew(table(PlannerId::kMesh), table(PlannerId::kRing));
  use.begin_anew(table(PlannerId::kRing), table(PlannerId::kTree));
  EXPECT_EQ(took(PlannerId::kRing).before.table, 0u) << "no table was there";
  EXPECT_EQ(took(PlannerId::kRing).before.operations, 1u);
  EXPECT_EQ(took(PlannerId::kMesh).before.table, 1u);
  EXPECT_EQ(took(PlannerId::kMesh).before.operations, 2u);
  EXPECT_EQ(took(PlannerId::kMesh).before.ns, 30'000'000u);
  EXPECT_EQ(took(PlannerId::kMesh).operations, 0u);
  EXPECT_EQ(took(PlannerId::kTree).before.operations, 0u);
  for (int i = 0; i < 70; ++i) cell.note_entered(kBytes / 2, ++operation);
  EXPECT_EQ(took(PlannerId::kMesh).before.operations, 0u) << "another size is usual now";
}

TEST_F(ChoiceUseTest, AnotherOrderOfRanksLeavesOnlyTheTimesInTheirOwn) {
  run(PlannerId::kRing, 12_ms);
  ChoiceUse::Took& ordered = cell.took[static_cast<std::size_t>(PlannerId::kRing)][variant_of(false, true)];
  for (int i = 0; i < 8; ++i) ordered.note_slowest(10_ms);
  EXPECT_TRUE(cell.enough(ordered));
  use.forget_ordered();
  EXPECT_FALSE(cell.enough(ordered));
  EXPECT_TRUE(cell.enough(took(PlannerId::kRing)));
}

TEST_F(ChoiceUseTest, ALinkThatChangesOutdatesOnlyTheTimesOfWhatRuns) {
  run(PlannerId::kRing, 12_ms);
  run(PlannerId::kMesh, 10_ms);
  EXPECT_TRUE(use.all_tried(table(PlannerId::kMesh)));
  use.forget_present(table(PlannerId::kMesh));
  EXPECT_FALSE(use.all_tried(table(PlannerId::kMesh)));
  EXPECT_TRUE(cell.enough(took(PlannerId::kRing)));
}

}  // namespace
}  // namespace canarynet

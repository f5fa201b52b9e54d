// A measured table by itself: its classes of sizes, what its wire carries, and what is refused.
#include "collectives/measured_table.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "collectives/measured_table_test_util.h"
#include "compress/codec_ask.h"

namespace canarynet {
namespace {

TEST(MeasuredTable, SizesFallIntoClassesByPowersOfFour) {
  EXPECT_EQ(size_class(0), 0);
  EXPECT_EQ(size_class(4095), 0);
  EXPECT_EQ(size_class(4096), 1);
  EXPECT_EQ(size_class(std::uint64_t{256} << 20), 9);
  EXPECT_EQ(size_class(~std::uint64_t{0}), 9);
  for (int c = 1; c < kSizeClasses; ++c) {
    EXPECT_EQ(size_class(class_begin(c)), c);
    EXPECT_EQ(size_class(class_begin(c) - 1), c - 1);
  }
}

// As its receiver, one of four ranks, takes it.
const char* read_again(const MeasuredTable& table, MeasuredTable* out) {
  const std::vector<wire::DecisionRow> rows = table.to_wire();
  wire::TableProposal proposal;
  proposal.version = table.version();
  proposal.ring_order = wire::ListIn<std::uint16_t>(std::as_bytes(std::span(table.ring_order())));
  proposal.rows = wire::ListIn<wire::DecisionRow>(std::as_bytes(std::span(rows)));
  return MeasuredTable::from_wire(proposal, 4, 128 << 10, out);
}

TEST(MeasuredTable, IsTheSameBehindTheWireAndAnotherOneHasAnotherIdentity) {
  const MeasuredTable table(
      7, {row(Collective::kBroadcast, 3, PlannerId::kTree), trial(row(Collective::kAllReduce, 5, PlannerId::kMesh))});
  MeasuredTable read;
  ASSERT_EQ(read_again(table, &read), nullptr);
  EXPECT_EQ(read.identity(), table.identity());
  ASSERT_NE(read.find(Collective::kAllReduce, class_begin(5)), nullptr);
  EXPECT_EQ(read.find(Collective::kAllReduce, class_begin(5))->planner, PlannerId::kMesh);
  EXPECT_TRUE(read.find(Collective::kAllReduce, class_begin(5))->on_trial());
  EXPECT_EQ(read.find(Collective::kAllReduce, class_begin(5))->to_follow,
            1u << static_cast<unsigned>(PlannerId::kTree));
  EXPECT_FALSE(read.find(Collective::kBroadcast, class_begin(3))->on_trial());
  EXPECT_EQ(read.find(Collective::kAllReduce, class_begin(4)), nullptr);
  EXPECT_EQ(read.find(Collective::kReduce, class_begin(5)), nullptr);
  EXPECT_NE(MeasuredTable(8, read.rows()).identity(), table.identity());
  EXPECT_NE(MeasuredTable(7, {row(Collective::kBroadcast, 3, PlannerId::kTree)}).identity(), table.identity());
  EXPECT_EQ(MeasuredTable().identity(), 0u);
  EXPECT_EQ(table_name(table.identity()).rfind("table 7 (checksum ", 0), 0u);
}

TEST(MeasuredTable, AnOrderOfRanksIsPartOfIt) {
  const std::vector<MeasuredRow> rows{in_order(row(Collective::kAllReduce, 5, PlannerId::kRing)),
                                      row(Collective::kReduce, 5, PlannerId::kRing)};
  const MeasuredTable table(7, rows, {0, 2, 1, 3});
  MeasuredTable read;
  ASSERT_EQ(read_again(table, &read), nullptr);
  EXPECT_EQ(read.ring_order(), table.ring_order());
  EXPECT_EQ(read.identity(), table.identity());
  EXPECT_TRUE(read.find(Collective::kAllReduce, class_begin(5))->in_order);
  EXPECT_FALSE(read.find(Collective::kReduce, class_begin(5))->in_order);
  EXPECT_NE(MeasuredTable(7, rows, {0, 1, 2, 3}).identity(), table.identity()) << "ranks would stand apart";
  EXPECT_FALSE(rows[0].decides_as(row(Collective::kAllReduce, 5, PlannerId::kRing)));
}

TEST(MeasuredTable, RowsOfACodecChooseAPlannerAndRowsThatAskForOneChooseACodec) {
  const std::uint32_t int8 = number_asked("int8").value(), any = number_asked("auto").value();
  MeasuredRow planner = trial(row(Collective::kAllReduce, 5, PlannerId::kDoubleTree));
  planner.asked = int8;
  MeasuredRow codec = row(Collective::kAllReduce, 5, PlannerId::kRing);
  codec.asked = any;
  codec.codec = 2;
  const MeasuredTable table(7, {row(Collective::kAllReduce, 5, PlannerId::kMesh), planner, codec});
  MeasuredTable read;
  ASSERT_EQ(read_again(table, &read), nullptr);
  EXPECT_EQ(read.identity(), table.identity());
  const std::uint64_t bytes = class_begin(5);
  ASSERT_NE(read.find(Collective::kAllReduce, bytes, int8), nullptr);
  EXPECT_EQ(read.find(Collective::kAllReduce, bytes, int8)->planner, PlannerId::kDoubleTree);
  EXPECT_TRUE(read.find(Collective::kAllReduce, bytes, int8)->on_trial());
  EXPECT_EQ(read.find(Collective::kAllReduce, bytes)->planner, PlannerId::kMesh);
  EXPECT_EQ(read.find_codec(any, bytes)->codec, 2);
  EXPECT_EQ(read.find(Collective::kAllReduce, bytes, number_asked("bf16").value()), nullptr);
  const auto refused = [&](MeasuredRow wrong) { return read_again(MeasuredTable(7, {wrong}), &read) != nullptr; };
  MeasuredRow elsewhere = planner;
  elsewhere.collective = Collective::kBroadcast;
  EXPECT_TRUE(refused(elsewhere)) << "no codec is known there";
  MeasuredRow unknown = planner;
  unknown.planner = static_cast<PlannerId>(kPlannerCount);
  EXPECT_TRUE(refused(unknown));
  unknown = planner;
  unknown.asked = int8 | 1u << 11;
  EXPECT_TRUE(refused(unknown)) << "no codec has that number";
}

TEST(MeasuredTable, OrdersThatCannotBeAreRefused) {
  const MeasuredRow ring = in_order(row(Collective::kAllReduce, 5, PlannerId::kRing));
  MeasuredTable read;
  EXPECT_NE(read_again(MeasuredTable(7, {ring}), &read), nullptr) << "there is none";
  EXPECT_NE(read_again(MeasuredTable(7, {ring}, {0, 2, 1}), &read), nullptr);
  EXPECT_NE(read_again(MeasuredTable(7, {ring}, {0, 2, 1, 4}), &read), nullptr);
  EXPECT_NE(read_again(MeasuredTable(7, {ring}, {0, 2, 1, 2}), &read), nullptr);
  EXPECT_NE(
      read_again(MeasuredTable(7, {in_order(row(Collective::kAllReduce, 5, PlannerId::kMesh))}, {0, 2, 1, 3}), &read),
      nullptr)
      << "a mesh has no order";
  MeasuredRow kept = ring;
  kept.keeps_static = true;
  EXPECT_NE(read_again(MeasuredTable(7, {kept}, {0, 2, 1, 3}), &read), nullptr);
  EXPECT_EQ(read_again(MeasuredTable(7, {ring}, {0, 2, 1, 3}), &read), nullptr);
}

}  // namespace
}  // namespace canarynet

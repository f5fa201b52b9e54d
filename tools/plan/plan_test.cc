#include <gtest/gtest.h>

#include "tools/plan/draw.h"
#include "tools/plan/options.h"

namespace canarynet::plan {
namespace {

PlanOptions good(const std::vector<std::string>& arguments) {
  const ParsedOptions parsed = parse_plan_options(arguments);
  EXPECT_EQ(parsed.exit_status, -1) << parsed.text;
  return parsed.options;
}
std::string refusal(const std::vector<std::string>& arguments) {
  const ParsedOptions parsed = parse_plan_options(arguments);
  EXPECT_EQ(parsed.exit_status, 2);
  return parsed.text;
}

TEST(PlanOptions, AllOfThemAreRead) {
  const PlanOptions o = good({"cost",
                              "--op",
                              "broadcast",
                              "--algo",
                              "ring,tree",
                              "--ranks",
                              "8",
                              "--bytes",
                              "64MiB",
                              "--alpha",
                              "1.5ms",
                              "--bandwidth",
                              "2.5gbit",
                              "--gamma",
                              "2e-10",
                              "--post",
                              "10us",
                              "--rails",
                              "2",
                              "--root",
                              "3",
                              "--piece",
                              "128KiB",
                              "--json=out.json",
                              "--ranks-per-host",
                              "4",
                              "--local-alpha",
                              "2us",
                              "--local-bandwidth",
                              "80gbit"});
  EXPECT_EQ(o.command, Command::kCost);
  EXPECT_EQ(o.collective, Collective::kBroadcast);
  EXPECT_EQ(o.planners, (std::vector{PlannerId::kRing, PlannerId::kTree}));
  EXPECT_EQ(o.ranks_max, 8);
  EXPECT_EQ(o.bytes, 64u << 20);
  EXPECT_DOUBLE_EQ(o.model.alpha, 1.5e-3);
  EXPECT_DOUBLE_EQ(o.model.beta, 3.2e-9);
  EXPECT_DOUBLE_EQ(o.model.gamma, 2e-10);
  EXPECT_DOUBLE_EQ(o.model.post, 1e-5);
  EXPECT_EQ(o.model.piece_bytes, 131072u);
  EXPECT_EQ(o.rails, 2);
  EXPECT_EQ(o.root, 3);
  EXPECT_EQ(o.json_path, "out.json");
  EXPECT_EQ(hosts_of(o, 6), (std::vector<int>{0, 0, 0, 0, 1, 1}));
  EXPECT_DOUBLE_EQ(o.model.local_alpha, 2e-6);
  EXPECT_DOUBLE_EQ(o.model.local_beta, 1e-10);
}

TEST(PlanOptions, WiringSetsRanksAndRails) {
  const PlanOptions o = good({"show", "--algo", "bcube", "--wiring", "bcube:3,2"});
  EXPECT_EQ(o.ranks_max, 9);
  EXPECT_EQ(o.rails, 2);
  EXPECT_EQ(good({"check", "--ranks", "2-16"}).ranks_min, 2);
}

TEST(PlanOptions, WhatIsWrongIsNamedWithItsValue) {
  EXPECT_NE(refusal({"show", "--algo", "rign"}).find("--algo rign: takes a list of ring, mesh"), std::string::npos);
  EXPECT_NE(refusal({"show", "--op", "reduce_all"}).find("--op reduce_all: takes all_reduce"), std::string::npos);
  EXPECT_NE(refusal({"show", "--ranks", "0"}).find("--ranks 0"), std::string::npos);
  EXPECT_NE(refusal({"show", "--ranks", "2-4"}).find("--ranks 2-4"), std::string::npos);
  EXPECT_NE(refusal({"check", "--ranks", "65"}).find("at most 64"), std::string::npos);
  EXPECT_NE(refusal({"show", "--ranks", "1025"}).find("from 1 to 1024"), std::string::npos);
  const auto cost = [](const char* ranks) {
    return std::vector<std::string>{"cost", "--ranks", ranks, "--alpha", "1us", "--bandwidth", "1gbit"};
  };
  EXPECT_EQ(good(cost("4096")).ranks_max, 4096) << "walks are short";
  EXPECT_NE(refusal(cost("4097")).find("from 1 to 4096"), std::string::npos);
  EXPECT_NE(refusal({"show", "--wiring", "bcube:2"}).find("--wiring bcube:2"), std::string::npos);
  EXPECT_NE(refusal({"show", "--wiring", "bcube:2,2", "--ranks", "5"}).find("takes 4 with"), std::string::npos);
  EXPECT_NE(refusal({"cost", "--alpha", "-1ms", "--bandwidth", "1gbit"}).find("--alpha"), std::string::npos);
  EXPECT_NE(refusal({"cost", "--alpha", "1ms"}).find("--bandwidth"), std::string::npos);
  EXPECT_NE(refusal({"show", "--svg", "x.svg"}).find("--svg x.svg: takes one schedule"), std::string::npos);
  EXPECT_NE(refusal({"show", "--ranks-per-host", "0"}).find("--ranks-per-host 0"), std::string::npos);
  EXPECT_NE(refusal({}).find("takes a command: show, check, cost or choose"), std::string::npos);
  EXPECT_NE(refusal({"show", "--root", "4", "--op", "broadcast"}).find("--root 4"), std::string::npos);
}

TEST(PlanOptions, BytesAreThoseOfARanksLargerBuffer) {
  const auto request = [](const char* op) {
    const PlanOptions o = good({"show", "--op", op, "--ranks", "8", "--bytes", "4096", "--root", "5"});
    static const Reachability reach = Reachability::full(8, 1);
    static const std::vector<int> host_of = hosts_of(o, 8);
    return request_of(o, 8, reach, host_of);
  };
  EXPECT_EQ(request("reduce").count, 1024u);
  EXPECT_EQ(request("reduce").root, 5);
  EXPECT_EQ(request("gather").count, 128u);
  EXPECT_EQ(request("scatter").root, 5);
  EXPECT_EQ(request("all_to_all").count, 128u);
  EXPECT_EQ(request("all_to_all").total(), 128u * 64);
  EXPECT_EQ(request("all_gather_v").root, 0);
}

std::vector<Plan> ring_of_three() {
  const auto reach = Reachability::full(3, 1);
  const PlanRequest request{.collective = Collective::kAllGather, .ranks = 3, .count = 10, .reach = &reach};
  std::vector<Plan> plans(3);
  for (int r = 0; r < 3; ++r) planner(PlannerId::kRing).plan(request, r, &plans[static_cast<std::size_t>(r)]);
  return plans;
}

TEST(PlanDrawing, TextHasARowPerRankAndAColumnPerRound) {
  EXPECT_EQ(draw_text(ring_of_three(), -1),
            "round  0    1  \n"
            "r0     0>1  2>1\n"
            "r1     1>2  0>2\n"
            "r2     2>0  1>0\n");
  EXPECT_EQ(draw_text(ring_of_three(), 1),
            "round  0    1  \n"
            "r1     1>2  0>2\n");
}

TEST(PlanDrawing, SvgHasAnArrowPerMessage) {
  const std::string svg = draw_svg(ring_of_three(), "three");
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  std::size_t arrows = 0;
  for (std::size_t at = svg.find("marker-end"); at != std::string::npos; at = svg.find("marker-end", at + 1)) ++arrows;
  EXPECT_EQ(arrows, 6u);
  EXPECT_NE(svg.find("r0 to r1, leaves 0 of input"), std::string::npos);
}

}  // namespace
}  // namespace canarynet::plan

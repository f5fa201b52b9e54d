// canaryctl's parts: rates out of two looks, the text and JSON made of them, the command line, the facts of this host.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tools/ctl/info.h"
#include "tools/ctl/options.h"
#include "tools/ctl/view.h"

namespace canarynet::ctl {
namespace {

using ipc::CountersTable;
using ipc::LinkMetric;
using ipc::NicMetric;
using ipc::ProcessMetric;

// A rank with two NICs and a link, `mb` megabytes into its life.
std::unique_ptr<CountersTable> table(std::uint64_t updated_ms, std::uint64_t mb) {
  auto t = std::make_unique<CountersTable>();
  t->role = ipc::Role::kRank;
  t->rank = 2;
  t->local_ranks = 1;
  t->world_size = 4;
  t->number = 1;
  t->started_ns = 5;
  t->updated_ns = updated_ms * 1'000'000;
  ipc::put_label(t->process, "train");
  ipc::put_label(t->host, "host-b");
  t->nics = 2;
  ipc::put_label(t->nic[0].device, "nic0");
  ipc::put_label(t->nic[0].transport, "tcp");
  t->nic[0].at(NicMetric::kUp) = 1;
  t->nic[0].at(NicMetric::kLanesUp) = 3;
  t->nic[0].at(NicMetric::kTransmitBytes) = mb * 1'000'000;
  t->nic[0].at(NicMetric::kReceiveBytes) = mb * 500'000;
  t->nic[0].at(NicMetric::kNominalRate) = 1'250'000'000;
  t->nic[0].at(NicMetric::kMeasuredRate) = 62'500'000;
  ipc::put_label(t->nic[1].device, "nic1");
  t->nic[1].at(NicMetric::kFailovers) = 2;
  t->nic[1].at(NicMetric::kResentFailover) = 7;
  t->nic[1].at(NicMetric::kResentLost) = 1;
  t->links = 1;
  ipc::put_label(t->link[0].peer, "rank 3");
  ipc::put_label(t->link[0].remote, "nic0");
  t->link[0].at(LinkMetric::kUp) = 1;
  t->link[0].at(LinkMetric::kSmoothedRtt) = 310'000;
  t->link[0].at(LinkMetric::kRate) = 62'500'000;
  t->link[0].at(LinkMetric::kTransmitBytes) = mb * 1'000'000;
  return t;
}

Look look_at(std::int64_t taken_ms, std::unique_ptr<CountersTable> t, int pid = 1234) {
  Look look;
  look.taken = Nanos{taken_ms * 1'000'000};
  if (t) look.scan.tables.push_back({pid, std::move(t)});
  return look;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(CtlView, RatesAreOfTheWritersTimeBetweenTheLooks) {
  const Look before = look_at(1050, table(1000, 10)), after = look_at(2050, table(2000, 60));
  const auto engines = compare(before, after);
  ASSERT_EQ(engines.size(), 1u);
  // 50 MB passed from one writing to the other, a second later; that the looks came 50 ms after each changes nothing.
  EXPECT_NEAR(*engines[0].rate(0, NicMetric::kTransmitBytes), 50e6, 1);
  EXPECT_NEAR(*engines[0].rate(0, NicMetric::kReceiveBytes), 25e6, 1);
  EXPECT_NEAR(*engines[0].utilisation(0), 0.8, 1e-6) << "of what was measured, not of what its driver says";
  EXPECT_FALSE(engines[0].utilisation(1).has_value()) << "nothing is known of it";
  EXPECT_EQ(engines[0].rate(1, NicMetric::kTransmitBytes), 0.0);
}

// The looks come at any moment between two writings of an engine that sends 50 MB/s.
TEST(CtlView, ABusyEnginesRateDoesNotDependOnWhenItIsLookedAt) {
  for (std::int64_t late = 0; late <= 200; late += 20) {
    const Look before = look_at(10'000 + late, table(10'000, 500)), after = look_at(10'500 + late, table(10'500, 525));
    EXPECT_NEAR(*compare(before, after)[0].rate(0, NicMetric::kTransmitBytes), 50e6, 1) << late << " ms late";
  }
}

TEST(CtlView, WhatWasNotWrittenSinceMovesNothing) {
  const Look before = look_at(5000, table(1000, 10)), after = look_at(6000, table(1000, 10));
  EXPECT_EQ(compare(before, after)[0].rate(0, NicMetric::kTransmitBytes), 0.0);
}

TEST(CtlView, AnIdleTimeBeforeTheFirstLookDoesNotThinTheRate) {
  const Look before = look_at(60'000, table(1000, 10)), after = look_at(61'000, table(61'000, 110));
  EXPECT_NEAR(*compare(before, after)[0].rate(0, NicMetric::kTransmitBytes), 100e6, 1);
}

TEST(CtlView, ANewProcessAndOneThatTookItsPidHaveNoRatesYet) {
  const Look nothing = look_at(1000, nullptr), after = look_at(2000, table(2000, 60));
  EXPECT_FALSE(compare(nothing, after)[0].rate(0, NicMetric::kTransmitBytes).has_value());
  auto other = table(900, 10);
  other->started_ns = 4;
  const Look before = look_at(1000, std::move(other));
  EXPECT_FALSE(compare(before, after)[0].rate(0, NicMetric::kTransmitBytes).has_value());
  EXPECT_EQ(compare(after, nothing).size(), 0u) << "one that has gone is not listed";
}

TEST(CtlView, CountersThatFallAndValuesOfAnySizeAreShownWithoutHarm) {
  auto mad = table(2000, 60);
  for (auto& n : mad->nic) n.values.fill(std::numeric_limits<std::uint64_t>::max());
  for (auto& l : mad->link) l.values.fill(std::numeric_limits<std::uint64_t>::max());
  mad->values.fill(std::numeric_limits<std::uint64_t>::max());
  mad->choices = ipc::kChoicesMax;
  for (auto& c : mad->choice) {
    c.piece_bytes = c.table_version = c.table_checksum = std::numeric_limits<std::uint32_t>::max();
    c.from_bytes = c.to_bytes = c.predicted_ns = c.runner_up_ns = std::numeric_limits<std::uint64_t>::max();
    for (auto& times : c.times) times.operations = times.mean_ns = std::numeric_limits<std::uint64_t>::max();
  }
  mad->rank = std::numeric_limits<std::int32_t>::min();
  mad->local_ranks = std::numeric_limits<std::int32_t>::max();
  const Look before = look_at(1000, table(900, 10)), after = look_at(2000, std::move(mad));
  EXPECT_TRUE(has(top_text(before, after, 8), "nic0"));
  EXPECT_FALSE(nlohmann::json::parse(top_json(before, after)).empty());
  EXPECT_FALSE(explain_text(after).empty());
  EXPECT_FALSE(nlohmann::json::parse(explain_json(after)).empty());
  EXPECT_EQ(compare(after, before)[0].rate(0, NicMetric::kTransmitBytes), 0.0);
  auto endless = table(std::numeric_limits<std::uint64_t>::max() / 1'000'000, 60);
  EXPECT_TRUE(compare(before, look_at(2000, std::move(endless)))[0].rate(0, NicMetric::kTransmitBytes).has_value());
}

TEST(CtlView, TheTableHasARowPerNicAndTellsWhatIsDown) {
  Look before = look_at(1000, table(1000, 10)), after = look_at(2000, table(2000, 60));
  after.scan.notes.push_back("pid 77, descriptor 5: counters: it has version 9");
  after.scan.hidden = 2;
  const std::string text = top_text(before, after, 8);
  EXPECT_TRUE(has(text, "1 engine, over 1.0 s")) << text;
  EXPECT_TRUE(has(text,
                  "   1234 train           rank 2 of 4    host-b       nic0       tcp  up      50.0 MB   25.0 MB   80% "
                  "    3       0         0"))
      << text;
  EXPECT_TRUE(has(text, "nic1            DOWN        0 B       0 B     -     0       8         2")) << text;
  EXPECT_TRUE(has(text, "nic0 > rank 3 nic0: up, rtt 310 us, gives 62.5 MB/s")) << text;
  EXPECT_TRUE(has(text, "passed over: pid 77, descriptor 5: counters: it has version 9\n")) << text;
  EXPECT_TRUE(has(text, "2 processes of other users can't be looked into")) << text;
  EXPECT_FALSE(has(top_text(before, after, 0), "rank 3")) << "no links asked for";
  EXPECT_TRUE(has(top_text(look_at(0, nullptr), look_at(1000, nullptr), 8), "no process here has counters of Canary"));
}

TEST(CtlView, JsonHasEveryMetricUnderItsExportedName) {
  const auto json = nlohmann::json::parse(top_json(look_at(1000, table(1000, 10)), look_at(2000, table(2000, 60))));
  EXPECT_EQ(json["interval_seconds"], 1.0);
  const auto& e = json["engines"][0];
  EXPECT_EQ(e["pid"], 1234);
  EXPECT_EQ(e["role"], "rank");
  EXPECT_EQ(e["rank"], 2);
  const auto& nic = e["nics"][0];
  EXPECT_EQ(nic["device"], "nic0");
  EXPECT_EQ(nic["transmit_bytes_per_second"], 50e6);
  EXPECT_EQ(nic["utilisation_ratio"], 0.8);
  EXPECT_EQ(nic["metrics"]["canary_nic_transmit_bytes_total"], 60'000'000);
  EXPECT_EQ(e["nics"][1]["metrics"]["canary_piece_retransmits_total{reason=\"failover\"}"], 7);
  EXPECT_TRUE(e["nics"][1]["utilisation_ratio"].is_null());
  EXPECT_EQ(e["links"][0]["metrics"]["canary_link_smoothed_rtt_seconds"], 310'000 * 1e-9);
  EXPECT_EQ(e["links"][0]["transmit_bytes_per_second"], 50e6);
  for (const auto& m : ipc::nic_metrics()) {
    const std::string key = *m.label == '\0' ? m.name : std::string(m.name) + "{" + m.label + "}";
    EXPECT_TRUE(nic["metrics"].contains(key)) << key;
  }
  EXPECT_EQ(
      nlohmann::json::parse(top_json(
          look_at(0, nullptr), look_at(1000, table(900, 1))))["engines"][0]["nics"][0]["transmit_bytes_per_second"],
      nullptr);
}

TEST(CtlView, LinksShowWhatIsKnownOfEachPath) {
  const auto two = [](std::uint64_t updated_ms, std::uint64_t mb) {
    auto t = table(updated_ms, mb);
    t->links = 2;
    t->link[1] = t->link[0];
    t->link[1].nic = 1;
    t->link[1].at(LinkMetric::kTransmitBytes) = mb * 250'000;
    t->link[0].at(LinkMetric::kAlpha) = 155'000;
    t->link[0].at(LinkMetric::kBeta) = 62'500'000;
    t->link[0].at(LinkMetric::kJitter) = 12'000;
    t->link[0].at(LinkMetric::kLostFrames) = 2;
    t->link[0].at(LinkMetric::kSegmentsResent) = 3;
    t->link[0].at(LinkMetric::kSampledAt) = 1'980'000'000;
    return t;
  };
  const Look before = look_at(1000, two(1000, 10)), after = look_at(2000, two(2000, 60));
  const std::string text = links_text(before, after);
  EXPECT_TRUE(
      has(text, "nic0       nic0                 up       155 us   62.5 MB/s     12 us    80%       5     20 ms"))
      << text;
  EXPECT_TRUE(
      has(text, "nic1       nic0                 up            -           -         -    20%       0         -"))
      << text;
  const auto json = nlohmann::json::parse(links_json(before, after));
  ASSERT_EQ(json["links"].size(), 2u);
  EXPECT_EQ(json["links"][0]["beta_bytes_per_second"], 62'500'000.0);
  EXPECT_EQ(json["links"][0]["share_ratio"], 0.8);
  EXPECT_TRUE(json["links"][1]["alpha_seconds"].is_null());
  const Look still = look_at(3000, two(2000, 60));
  EXPECT_EQ(nlohmann::json::parse(links_json(after, still))["links"][1]["share_ratio"], 0.2) << "of all so far";
  EXPECT_TRUE(has(links_text(look_at(0, nullptr), look_at(1000, nullptr)), "no process here has counters of Canary"));
}

TEST(CtlView, ExplainSaysWhatWasChosenWhyAndHowLongItTook) {
  auto t = table(1000, 10);
  const auto add = [&](ipc::ChosenBy by, const char* planner) -> ipc::ChoiceRow& {
    ipc::ChoiceRow& c = t->choice[t->choices++];
    ipc::put_label(c.collective, "all_reduce");
    ipc::put_label(c.planner, planner);
    c.chosen_by = by;
    c.group = 1;
    c.ranks = 4;
    c.from_bytes = 256 << 10;
    c.to_bytes = 1 << 20;
    return c;
  };
  ipc::ChoiceRow& measured = add(ipc::ChosenBy::kMeasured, "mesh");
  measured.piece_bytes = 32 << 10;
  measured.table_version = 3;
  measured.table_checksum = 0x1a2b3;
  measured.predicted_ns = 8'510'000;
  ipc::put_label(measured.runner_up, "ring");
  measured.runner_up_ns = 9'120'000;
  ipc::put_label(measured.times[0].planner, "mesh");
  measured.times[0].operations = 120;
  measured.times[0].mean_ns = 8'600'000;
  measured.reason = ipc::ChoiceReason::kTrial;
  measured.times[1] = {.planner = "ring", .operations = 8, .mean_ns = 9'120'000, .before = 1, .table_version = 2};
  measured.times[2] = {
      .planner = "tree/smaller", .operations = 3, .mean_ns = 1'000'000, .before = 1, .table_version = 0};
  ipc::ChoiceRow& kept = add(ipc::ChosenBy::kKept, "ring");
  kept.table_version = 3;
  kept.from_bytes = 0;
  kept.reason = ipc::ChoiceReason::kStays;
  add(ipc::ChosenBy::kForced, "tree").to_bytes = 0;
  add(ipc::ChosenBy::kStatic, "bcube");
  ipc::ChoiceRow& codec = add(ipc::ChosenBy::kMeasured, "int8");
  ipc::put_label(codec.asked, "auto:0.01");
  ipc::put_label(codec.runner_up, "dense");
  codec.runner_up_ns = 6'290'000'000;
  t->at(ProcessMetric::kChoicesLeftOut) = 7;
  const Look look = look_at(1000, std::move(t));
  const std::string text = explain_text(look);
  EXPECT_TRUE(
      has(text,
          "train               2      1      4 all_reduce                 256KiB to 1MiB      mesh/32KiB            "
          "table 3 (1a2b3)                   on trial   8.51 ms ring 9.12 ms               mesh 8.60 ms (120); "
          "before: ring 9.12 ms (8, table 2), tree/smaller 1.00 ms (3, no table)\n"))
      << text;
  EXPECT_TRUE(
      has(text, "to 1MiB             ring                  size, topology; table 3 (00000)   stays            - -"))
      << text;
  EXPECT_TRUE(has(text, "from 256KiB         tree                  CANARY_ALGO ")) << text;
  EXPECT_TRUE(has(text, "bcube                 size, topology ")) << text;
  EXPECT_TRUE(has(text, "all_reduce/auto:0.01       256KiB to 1MiB      int8                  table 0 (00000) "))
      << text;
  EXPECT_TRUE(has(text, "1234 and 7 more\n")) << text;
  const auto json = nlohmann::json::parse(explain_json(look));
  ASSERT_EQ(json["choices"].size(), 5u);
  EXPECT_TRUE(json["choices"][0]["asked_codec"].is_null());
  EXPECT_EQ(json["choices"][4]["asked_codec"], "auto:0.01");
  EXPECT_EQ(json["choices"][4]["runner_up"]["algo"], "dense");
  const auto& first = json["choices"][0];
  EXPECT_EQ(first["op"], "all_reduce");
  EXPECT_EQ(first["algo"], "mesh");
  EXPECT_EQ(first["piece_bytes"], 32 << 10);
  EXPECT_EQ(first["chosen_by"], "measured");
  EXPECT_EQ(first["table_version"], 3);
  EXPECT_DOUBLE_EQ(first["predicted_seconds"].get<double>(), 8.51e-3);
  EXPECT_EQ(first["runner_up"]["algo"], "ring");
  ASSERT_EQ(first["measured"].size(), 1u);
  EXPECT_EQ(first["measured"][0]["operations"], 120);
  EXPECT_EQ(first["reason"], "trial");
  ASSERT_EQ(first["measured_before"].size(), 2u);
  EXPECT_EQ(first["measured_before"][0]["algo"], "ring");
  EXPECT_EQ(first["measured_before"][0]["table_version"], 2);
  EXPECT_TRUE(first["measured_before"][1]["table_version"].is_null());
  EXPECT_EQ(json["choices"][1]["reason"], "stays");
  EXPECT_TRUE(json["choices"][2]["reason"].is_null());
  EXPECT_EQ(json["choices"][1]["chosen_by"], "kept");
  EXPECT_EQ(json["choices"][2]["chosen_by"], "forced");
  EXPECT_TRUE(json["choices"][2]["to_bytes"].is_null());
  EXPECT_TRUE(json["choices"][3]["table_version"].is_null() && json["choices"][3]["runner_up"].is_null());
  EXPECT_TRUE(has(explain_text(look_at(0, nullptr)), "no process here has counters of Canary"));
}

TEST(CtlView, BytesAreWrittenShort) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1.0 kB");
  EXPECT_EQ(bytes_text(62'500'000), "62.5 MB");
  EXPECT_EQ(bytes_text(999'700'000), "1.0 GB");
  EXPECT_EQ(bytes_text(1.8e19), "18.0 EB");
}

TEST(CtlOptions, AreReadAndWrongOnesNamed) {
  const auto o = parse_ctl_options({"top", "--once", "--json", "--interval", "250ms", "--pid", "12", "--links", "3"});
  ASSERT_EQ(o.exit_status, -1) << o.text;
  EXPECT_TRUE(o.options.once && o.options.json);
  EXPECT_EQ(o.options.interval, 250_ms);
  EXPECT_EQ(o.options.pid, 12);
  EXPECT_EQ(o.options.links, 3);
  EXPECT_EQ(parse_ctl_options({"info"}).options.command, Command::kInfo);
  const auto explained = parse_ctl_options({"explain", "--json", "--pid", "12"});
  EXPECT_EQ(explained.options.command, Command::kExplain);
  EXPECT_TRUE(explained.options.json);
  EXPECT_EQ(explained.options.pid, 12);
  const auto wrong = [](const std::vector<std::string>& arguments, const std::string& says) {
    const auto p = parse_ctl_options(arguments);
    EXPECT_EQ(p.exit_status, 2) << says;
    EXPECT_TRUE(has(p.text, says)) << p.text;
  };
  wrong({"top", "--interval", "10ms"}, "--interval 10ms: takes a time from 100ms to 1h");
  wrong({"top", "--interval", "soon"}, "--interval soon: takes");
  wrong({"top", "--pid", "0"}, "--pid 0: takes a whole number from 1");
  wrong({"top", "--links", "-1"}, "--links -1: takes");
  wrong({"tip"}, "canaryctl: tip: no such command: takes top, links, explain or info");
  wrong({}, "takes a command: top, links, explain or info");
  wrong({"--tip"}, "--tip: takes a command first: top, links, explain or info");
  EXPECT_EQ(parse_ctl_options({"--version"}).exit_status, 0);
  const auto help = parse_ctl_options({"--help"});
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_TRUE(has(help.text, "canaryctl top --once --json")) << help.text;
}

TEST(CtlInfo, ListsDependenciesKernelAndNics) {
  auto facts = build_facts("zlib=found (1.2)|benchmark=not found: no bench");
  ASSERT_EQ(facts.size(), 4u);
  EXPECT_EQ(facts[2].name, "zlib");
  EXPECT_EQ(facts[3].value, "not found: no bench");
  const auto kernel = kernel_facts();
  const auto value = [&](const std::string& name) {
    for (const Fact& f : kernel) {
      if (f.name == name) return f.value;
    }
    return std::string("missing");
  };
  EXPECT_TRUE(has(value("release"), "Linux")) << value("release");
  EXPECT_TRUE(has(value("reductions"), "scalar")) << value("reductions");
  EXPECT_NE(value("sealed shared memory"), "missing");
  EXPECT_NE(value("network namespaces"), "missing");
  setenv("CANARY_RAILS", "lo,127.9.0.1/24", 1);
  bool ok = false;
  std::string text = info_text(nic_facts(&ok));
  EXPECT_TRUE(ok) << text;
  EXPECT_TRUE(has(text, "127.0.0.1/8, speed unknown, rail 0")) << text;
  EXPECT_TRUE(has(text, "lo:1")) << text;
  setenv("CANARY_RAILS", "nosuchnic", 1);
  text = info_text(nic_facts(&ok));
  EXPECT_FALSE(ok);
  EXPECT_TRUE(has(text, "CANARY_RAILS=\"nosuchnic\"")) << text;
  unsetenv("CANARY_RAILS");
}

}  // namespace
}  // namespace canarynet::ctl

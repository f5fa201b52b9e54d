// Flows: their numbers, their turns at a peer, and a kind of traffic that no other file knows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "engine/flow/flow_table.h"
#include "engine/flow/mux.h"
#include "sim/cluster.h"
#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

// --- numbers ---------------------------------------------------------------------------------------------------------

// Sends frames of one size as long as it has some, and notes what it is told.
class Sender final : public Flow {
 public:
  bool next_frame(Mux& to, Turn& turn, OutPiece* out) override {
    ++asked;
    if (frames == 0) return false;
    --frames;
    to.set_waiting_bytes(turn, std::uint64_t{frames} * bytes);
    if (enters_again) to.make_ready(turn);
    out->header.flow = number;
    out->header.payload_bytes = bytes;
    out->cookie = frames;
    return true;
  }
  void on_done(Mux&, std::uint64_t cookie) override { done.push_back(cookie); }
  Landing landing_for(Mux&, const wire::Header&) override { return {Landing::Kind::kSlot, nullptr, 5}; }
  bool on_arrival(Mux&, const wire::Header&, const Arrival& arrival) override {
    arrived.push_back(arrival.cookie);
    return true;
  }
  void on_landing_lost(Mux&, const wire::Header&, std::uint64_t cookie) override { lost.push_back(cookie); }

  std::uint32_t number = 0, frames = 0, bytes = 0;
  int asked = 0;
  bool enters_again = false;  // while it is asked
  std::vector<std::uint64_t> done, arrived, lost;
};

TEST(FlowTable, FindsWhatLivesUnderItsNumberAndNothingElse) {
  FlowTable table;
  Random random(1);
  std::vector<std::unique_ptr<Sender>> flows;
  std::set<std::uint32_t> numbers;
  for (int round = 0; round < 4000; ++round) {
    if (random.below(5) < 3 || flows.empty()) {
      // Numbers in a row and numbers that collide in their low bits.
      const auto number =
          static_cast<std::uint32_t>(random.below(2) == 0 ? random.below(500) : random.below(500) << 16);
      if (!numbers.insert(number).second) continue;
      flows.push_back(std::make_unique<Sender>());
      flows.back()->number = number;
      table.add(number, *flows.back());
    } else {
      std::swap(flows[random.below(flows.size())], flows.back());
      table.remove(flows.back()->number);
      numbers.erase(flows.back()->number);
      EXPECT_EQ(table.find(flows.back()->number), nullptr);
      flows.pop_back();
    }
    if (round % 100 != 0) continue;
    ASSERT_EQ(table.size(), flows.size());
    for (const auto& flow : flows) ASSERT_EQ(table.find(flow->number), flow.get());
  }
}

TEST(FlowTable, AHandleOutlivesItsFlowAndNamesNoOther) {
  FlowTable table;
  Sender first, second;
  table.add(1, first);
  const std::uint64_t handle = FlowTable::handle_of(first);
  EXPECT_EQ(table.at(handle), &first);
  table.remove(1);
  EXPECT_EQ(table.at(handle), nullptr);
  table.add(2, second);
  EXPECT_EQ(table.at(handle), nullptr) << "the place is another's now";
  EXPECT_EQ(table.at(FlowTable::handle_of(second)), &second);
  EXPECT_EQ(table.at(~std::uint64_t{0}), nullptr);
}

// --- turns -----------------------------------------------------------------------------------------------------------

class Turns : public ::testing::Test, public MuxHost {
 protected:
  Turns() : fabric(FabricOptions{}, Wiring::flat(2, 1)), mux(1, &table, others, *this) {
    ChannelOptions o;
    o.peer_engine = 1;
    channel = std::make_unique<Channel>(std::move(o), fabric.factory(0), mux);
    mux.set_channel(channel.get());
  }
  void on_heartbeat(Mux&, const wire::Header&) override {}
  void fill_heartbeat(Mux&, wire::Header*) override {}
  void on_abort(Mux&, const wire::Header&, const wire::AbortFrame&) override {}
  void on_path_event(Mux&, const std::string&) override {}

  void add(Sender& flow, std::uint32_t number, std::uint32_t frames, std::uint32_t bytes) {
    flow.number = number;
    flow.frames = frames;
    flow.bytes = bytes;
    table.add(number, flow);
  }
  // The flow whose frame comes next; 0: none.
  std::uint32_t next() {
    OutPiece out;
    const bool any =
        mux.next_piece(*channel, PieceClass::kFirst, &out) || mux.next_piece(*channel, PieceClass::kBulk, &out);
    if (!any) return 0;
    owner = out.owner;
    return out.header.flow;
  }

  SimFabric fabric;
  FlowTable table;
  Sender others, a, b, c;
  Mux mux;
  std::unique_ptr<Channel> channel;
  std::uint64_t owner = 0;
};

TEST_F(Turns, ControlGoesBeforeUrgentAndUrgentBeforeBulk) {
  add(a, 1, 3, 100'000);
  add(b, 2, 2, 100'000);
  add(c, 3, 2, 40);
  Turn bulk(&a, FlowClass::kBulk), urgent(&b, FlowClass::kUrgent), control(&c, FlowClass::kControl);
  mux.make_ready(bulk);
  EXPECT_EQ(next(), 1u);
  mux.make_ready(urgent);
  EXPECT_EQ(next(), 2u) << "at the next frame";
  mux.make_ready(control);
  for (const std::uint32_t expected : {3u, 3u, 2u, 1u, 1u, 0u}) EXPECT_EQ(next(), expected);
}

TEST_F(Turns, FlowsOfAClassShareByBytesNotByFrames) {
  add(a, 1, 100'000, 100'000);
  add(b, 2, 100'000, 1'000);
  Turn large(&a), small(&b);
  mux.make_ready(large);
  mux.make_ready(small);
  std::uint64_t bytes[3] = {};
  for (int i = 0; i < 5000; ++i) {
    const std::uint32_t from = next();
    bytes[from] += from == 1 ? 100'000 : 1'000 + sizeof(wire::Header);
  }
  EXPECT_NEAR(static_cast<double>(bytes[1]) / static_cast<double>(bytes[2]), 1.0, 0.06);
}

TEST_F(Turns, AWeightIsAShare) {
  add(a, 1, 100'000, 16'000);
  add(b, 2, 100'000, 16'000);
  Turn light(&a), heavy(&b);
  heavy.set_weight(3);
  mux.make_ready(light);
  mux.make_ready(heavy);
  int frames[3] = {};
  for (int i = 0; i < 4000; ++i) ++frames[next()];
  EXPECT_NEAR(frames[2] / static_cast<double>(frames[1]), 3.0, 0.1);
}

TEST_F(Turns, WhoHasNothingIsAskedOnceAndNotAgain) {
  add(a, 1, 0, 0);
  add(b, 2, 10'000, 10);
  Turn idle(&a), busy(&b);
  mux.make_ready(idle);
  mux.make_ready(idle);
  mux.make_ready(busy);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(next(), 2u);
  EXPECT_EQ(a.asked, 1);
  EXPECT_FALSE(idle.waits());
  a.frames = 1;
  mux.make_ready(idle);
  while (next() != 1u) ASSERT_GT(b.frames, 0u);
  EXPECT_EQ(mux.waiting_bytes(*channel, PieceClass::kBulk), std::uint64_t{b.frames} * 10);
  mux.forget(busy);
  EXPECT_EQ(next(), 0u);
  EXPECT_EQ(mux.waiting_bytes(*channel, PieceClass::kBulk), 0u);
}

TEST_F(Turns, WhatWaitsIsTheSumOverTheTurnsInTheQueue) {
  add(a, 1, 3, 100);
  add(b, 2, 2, 1000);
  Turn bulk(&a), urgent(&b, FlowClass::kUrgent);
  const auto waits = [&](PieceClass which) { return mux.waiting_bytes(*channel, which); };
  mux.set_waiting_bytes(bulk, 300);
  EXPECT_EQ(waits(PieceClass::kBulk), 0u) << "it stands in no queue yet";
  mux.make_ready(bulk);
  mux.make_ready(urgent);
  EXPECT_EQ(waits(PieceClass::kBulk), 300u);
  mux.set_waiting_bytes(urgent, 2000);
  EXPECT_EQ(waits(PieceClass::kBulk), 2300u);
  EXPECT_EQ(waits(PieceClass::kFirst), 2000u) << "what goes before it does not count bulk";
  EXPECT_EQ(next(), 2u);
  EXPECT_EQ(waits(PieceClass::kFirst), 1000u);
  mux.forget(urgent);
  EXPECT_EQ(waits(PieceClass::kBulk), 300u);
  for (std::uint64_t left = 300; left != 0;) {
    EXPECT_EQ(next(), 1u);
    EXPECT_EQ(waits(PieceClass::kBulk), left -= 100);
  }
}

// A flow of many ends, like that of messages, is ready again as long as one of them is.
TEST_F(Turns, AFlowMayEnterTheQueueWhileItIsAsked) {
  add(a, 1, 100'000, 10'000);
  add(b, 2, 100'000, 10'000);
  a.enters_again = true;
  Turn first(&a), second(&b);
  mux.set_waiting_bytes(first, 1'000'000'000);
  mux.make_ready(first);
  mux.make_ready(second);
  int frames[3] = {};
  for (int i = 0; i < 1000; ++i) ++frames[next()];
  EXPECT_NEAR(frames[1], frames[2], 10) << "it keeps its part, and takes no more";
  EXPECT_EQ(mux.waiting_bytes(*channel, PieceClass::kBulk), (std::uint64_t{a.frames} + b.frames) * 10'000);
  mux.forget(first);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(next(), 2u) << "it stands there once";
}

TEST_F(Turns, WhatWasDecidedForAFlowComesBackToItAndToNoOther) {
  add(a, 1, 1, 10);
  Turn turn(&a);
  mux.make_ready(turn);
  ASSERT_EQ(next(), 1u);
  wire::Header h;
  h.flow = 1;
  const Landing landing = mux.landing_for(*channel, h);
  Arrival arrival;
  arrival.cookie = landing.cookie;
  arrival.owner = landing.owner;
  EXPECT_TRUE(mux.on_arrival(*channel, h, arrival));
  EXPECT_EQ(a.arrived, std::vector<std::uint64_t>{5});
  table.remove(1);
  add(b, 1, 0, 0);  // the same number, and the same place in the table
  mux.on_done(*channel, owner, 0);
  mux.on_landing_lost(*channel, h, landing.owner, landing.cookie);
  mux.on_arrival(*channel, h, arrival);
  EXPECT_TRUE(a.done.empty() && b.done.empty() && b.lost.empty() && b.arrived.empty());
  EXPECT_EQ(others.arrived.size(), 1u) << "frames without a flow are heard of";
  EXPECT_EQ(others.lost.size(), 1u);
}

// A partner of an older operation that becomes ready late goes before those of younger ones.
TEST(PartnersWithSomethingToSend, StandInTheOrderOfTheirOperations) {
  Program program;
  program.peers.resize(2);
  program.piece_offset = {0};
  std::deque<canarynet::Run> runs;
  for (std::uint64_t i = 0; i < 4; ++i) runs.emplace_back(program).entered = i;
  PartnerList list;
  for (const std::size_t i : {1u, 3u, 2u, 0u}) list.insert(runs[i].partners[0]);
  list.insert(runs[1].partners[1]);
  std::vector<std::uint64_t> order;
  for (const RunPartner* partner = list.head; partner != nullptr; partner = partner->next)
    order.push_back(partner->run->entered);
  EXPECT_EQ(order, (std::vector<std::uint64_t>{0, 1, 1, 2, 3}));
  EXPECT_EQ(list.head->next->next, &runs[1].partners[1]) << "behind the one that was ready before";
  list.remove(runs[0].partners[0]);
  list.remove(runs[3].partners[0]);
  list.remove(runs[1].partners[0]);
  EXPECT_EQ(list.head, &runs[1].partners[1]);
  EXPECT_EQ(list.tail, &runs[2].partners[0]);
}

// Partners of an older operation become ready in a row, too: each finds its place beside the one before.
TEST(PartnersWithSomethingToSend, FindTheirPlaceHoweverManyStandThere) {
  Program program;
  program.peers.resize(1);
  program.piece_offset = {0};
  constexpr std::uint64_t kInserted = 2000;
  const auto seconds_among = [&](std::uint64_t younger) {
    double best = 1e9;
    for (int round = 0; round < 3; ++round) {
      std::deque<canarynet::Run> runs;
      for (std::uint64_t i = 0; i < kInserted + younger; ++i) runs.emplace_back(program).entered = i;
      PartnerList list;
      for (std::uint64_t i = kInserted; i < runs.size(); ++i) list.insert(runs[i].partners[0]);
      list.insert(runs[0].partners[0]);
      const std::clock_t began = std::clock();
      for (std::uint64_t i = 1; i < kInserted; ++i) list.insert(runs[i].partners[0]);
      best = std::min(best, static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC);
      std::uint64_t expected = 0;
      for (const RunPartner* partner = list.head; partner != nullptr; partner = partner->next)
        EXPECT_EQ(partner->run->entered, expected++);
      EXPECT_EQ(expected, runs.size());
    }
    return best;
  };
  const double few = seconds_among(100), many = seconds_among(20'000);
  EXPECT_LT(many, few * 20 + 2e-3) << "whoever walks past all of them takes two hundred times as long";
}

TEST(PartnersWithSomethingToSend, StandInOrderHoweverTheyComeAndGo) {
  Program program;
  program.peers.resize(1);
  program.piece_offset = {0};
  std::deque<canarynet::Run> runs;
  for (std::uint64_t i = 0; i < 64; ++i) runs.emplace_back(program).entered = i;
  PartnerList list;
  std::set<std::uint64_t> there;
  Random random(7);
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t which = random.below(runs.size());
    RunPartner& partner = runs[which].partners[0];
    if (there.insert(which).second) {
      list.insert(partner);
    } else {
      list.remove(partner);
      there.erase(which);
    }
    auto expected = there.begin();
    const RunPartner* before = nullptr;
    for (const RunPartner* s = list.head; s != nullptr; s = s->next) {
      ASSERT_NE(expected, there.end());
      ASSERT_EQ(s->run->entered, *expected++);
      ASSERT_EQ(s->previous, before);
      before = s;
    }
    ASSERT_EQ(expected, there.end());
    ASSERT_EQ(list.tail, before);
  }
}

// --- waiting bytes ---------------------------------------------------------------------------------------------------

// Every choice of a lane asks how much waits, so the flow keeps a sum; here the test counts it.
void expect_counted(Cluster& c, int host, const std::vector<GroupMember*>& members) {
  std::map<std::uint32_t, std::uint64_t> urgent, all;
  for (const GroupMember* m : members) {
    for (const auto& peer : m->group->peers) {
      for (const OperationTurn* turn : {&peer->operations, &peer->urgent_operations}) {
        std::uint64_t bytes = 0;
        for (const RunPartner* partner = turn->sending.head; partner != nullptr; partner = partner->next)
          bytes += partner->run->executor.sends_waiting(partner->index);
        ASSERT_EQ(turn->waiting_bytes(), bytes) << "group " << m->group->flow << ", engine " << peer->engine;
        if (!turn->waits()) continue;
        all[peer->engine] += bytes;
        if (turn == &peer->urgent_operations) urgent[peer->engine] += bytes;
      }
    }
  }
  for (const auto& [engine, bytes] : all) {
    const Mux& mux = *c.engine(host).mux(engine);
    ASSERT_EQ(mux.waiting_bytes(*mux.channel(), PieceClass::kBulk), bytes) << "engine " << engine;
    ASSERT_EQ(mux.waiting_bytes(*mux.channel(), PieceClass::kFirst), urgent[engine]) << "engine " << engine;
  }
}

TEST(WhatWaits, IsKeptAsASumThatEqualsACount) {
  ClusterOptions o = flat_cluster(3, 2);
  o.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(1000));
  o.settings.eager_bytes = Bytes{64 * 1024};  // so that pieces wait for room at the peer as well
  Cluster c(o);
  ASSERT_TRUE(c.join());
  std::vector<std::vector<GroupMember*>> groups = {{c.world(0), c.world(1), c.world(2)}, form_group(c, {0, 1, 2})};
  Random random(11);
  std::uint64_t most = 0;
  for (int round = 0; round < 4; ++round) {
    std::deque<AllRanks> ops;
    std::vector<std::pair<std::size_t, std::size_t>> calls;  // operation, group
    for (std::size_t i = 0; i < 10; ++i) {
      const std::uint64_t count = i % 3 == 0 ? 1 + random.below(2000) : 1 + random.below(400'000);
      ops.emplace_back(c, sum(3, count, i), true);
      if (i % 4 == 1) ops.back().set_priority(CANARY_PRIORITY_URGENT);
    }
    for (const int first : {0, 1, 2}) {  // ranks one after the other, so pieces come early and wait for readiness
      const int r = (first + round) % 3;
      for (std::size_t i = 0; i < ops.size(); ++i) ops[i].submit(r, groups[i % 2][static_cast<std::size_t>(r)]);
      c.run_for(Nanos{static_cast<std::int64_t>(random.below(300'000))});
      for (const int host : {0, 1, 2}) {
        const auto h = static_cast<std::size_t>(host);
        ASSERT_NO_FATAL_FAILURE(expect_counted(c, host, {groups[0][h], groups[1][h]}));
      }
    }
    for (int step = 0; step < 60; ++step) {
      c.run_for(100_us);
      ASSERT_NO_FATAL_FAILURE(expect_counted(c, 0, {groups[0][0], groups[1][0]}));
      const Mux& mux = *c.engine(0).mux(1);
      most = std::max(most, mux.waiting_bytes(*mux.channel(), PieceClass::kBulk));
    }
    for (AllRanks& op : ops) op.expect_exact(5_s);
    ASSERT_NO_FATAL_FAILURE(expect_counted(c, 0, {groups[0][0], groups[1][0]}));
  }
  EXPECT_GT(most, 1u << 20) << "nothing waited";
  // Operations of a group that has ended wait for nothing.
  AllRanks last(c, sum(3, 1'000'000));
  last.submit_all();
  c.run_for(200_us);
  Mux& mux = *c.engine(0).mux(1);
  EXPECT_GT(mux.waiting_bytes(*mux.channel(), PieceClass::kBulk), 0u);
  c.submit(0, port::abort(c.world(0)->id, "enough"));
  EXPECT_EQ(mux.waiting_bytes(*mux.channel(), PieceClass::kBulk), 0u);
  ASSERT_TRUE(c.run_until([&] { return last.all_done(); }, 5_s));  // its buffers end before the engines
}

// --- another kind of traffic -----------------------------------------------------------------------------------------

constexpr std::uint32_t kEcho = 0x00ec'0000;  // a number that no group gets

// Asks peers to send back what it sends them, and sends back what it is asked for. `step` tells questions from answers.
class EchoFlow final : public Flow {
 public:
  static constexpr std::uint16_t kQuestion = 1, kAnswer = 2;
  struct Frame {
    std::uint16_t step = 0;
    std::uint32_t number = 0;
    std::vector<std::byte> bytes;
    bool done = false;
  };
  explicit EchoFlow(Engine& engine) { engine.flows().add(kEcho, *this); }

  void ask(Mux& peer, std::uint32_t number, std::vector<std::byte> bytes) {
    say(peer, {kQuestion, number, std::move(bytes)});
  }
  bool next_frame(Mux& to, Turn& turn, OutPiece* out) override {
    if (next_ == frames_.size()) return false;
    if (when_asked) std::exchange(when_asked, nullptr)();
    Frame& frame = frames_[next_];
    to.set_waiting_bytes(turn, turn.waiting_bytes() - frame.bytes.size());
    out->header.kind = wire::Kind::kPiece;
    out->header.flow = kEcho;
    out->header.step = frame.step;
    out->header.piece = frame.number;
    out->header.payload_bytes = static_cast<std::uint32_t>(frame.bytes.size());
    out->payload = frame.bytes.data();
    out->cookie = next_++;
    return true;
  }
  void on_done(Mux&, std::uint64_t cookie) override { frames_[cookie].done = true; }
  Landing landing_for(Mux&, const wire::Header& h) override {
    if (heard_.count({h.step, h.piece}) != 0) return {};
    places_.push_back({h.step, h.piece, std::vector<std::byte>(h.payload_bytes)});
    return {Landing::Kind::kSpan, places_.back().bytes.data(), places_.size() - 1};
  }
  bool on_arrival(Mux& from, const wire::Header& h, const Arrival& arrival) override {
    if (arrival.discarded || !heard_.insert({h.step, h.piece}).second) return true;
    Frame& frame = places_[arrival.cookie];
    if (h.step == kQuestion) {
      say(from, {kAnswer, h.piece, frame.bytes});
    } else {
      answers.push_back(frame);
    }
    return true;
  }
  void on_landing_lost(Mux&, const wire::Header&, std::uint64_t) override { ++landings_lost; }
  bool all_done() const {
    for (const Frame& frame : frames_) {
      if (!frame.done) return false;
    }
    return next_ == frames_.size();
  }

  std::vector<Frame> answers;
  int landings_lost = 0;
  std::function<void()> when_asked;  // for a frame

 private:
  void say(Mux& peer, Frame frame) {
    frames_.push_back(std::move(frame));
    peer.set_waiting_bytes(turn_, turn_.waiting_bytes() + frames_.back().bytes.size());
    peer.make_ready(turn_);
  }
  Turn turn_{this, FlowClass::kUrgent};
  std::deque<Frame> frames_, places_;
  std::size_t next_ = 0;
  std::set<std::pair<std::uint16_t, std::uint32_t>> heard_;
};

TEST(AnotherKindOfFlow, NeedsNoOtherFile) {
  Cluster c(flat_cluster(2, 2));
  ASSERT_TRUE(c.join());
  for (int nic = 0; nic < 2; ++nic) c.fabric().nic(0, nic).out.loss_ppm = 20'000;
  EchoFlow asks(c.engine(0)), answers(c.engine(1));
  const auto pattern = [](std::uint32_t number) {
    std::vector<std::byte> bytes(number % 2 == 0 ? 300 : 70'000);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(number * 31 + i * 7 + (i >> 8));
    return bytes;
  };
  AllRanks op(c, sum(2, 1'000'000));  // beside it
  op.submit_all();
  constexpr std::uint32_t kQuestions = 40;
  for (std::uint32_t n = 0; n < kQuestions; ++n) asks.ask(*c.engine(0).mux(1), n, pattern(n));
  op.expect_exact();
  ASSERT_TRUE(
      c.run_until([&] { return asks.answers.size() == kQuestions && asks.all_done() && answers.all_done(); }, 10_s));
  for (const auto& answer : asks.answers) EXPECT_EQ(answer.bytes, pattern(answer.number)) << answer.number;
}

// While the channels are driven, one after the other, new ones are opened.
TEST(AnotherKindOfFlow, MayOpenChannelsWhileItIsAskedForFrames) {
  ClusterOptions o = flat_cluster(8);
  o.settings.connect_at_join = 0;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  Engine& engine = c.engine(0);
  EchoFlow asks(engine), answers(c.engine(1));
  asks.when_asked = [&] {
    for (std::uint32_t e = 2; e < 7; ++e) EXPECT_NE(engine.mux(e), nullptr);
  };
  asks.ask(*engine.mux(1), 1, std::vector<std::byte>(300));
  ASSERT_TRUE(c.run_until([&] { return asks.answers.size() == 1 && asks.all_done() && answers.all_done(); }, 1_s));
  c.run_for(1_ms);
  EXPECT_EQ(engine.counters().peers, 7u);
  AllRanks op(c, sum(8, 1000));
  op.submit_all();
  op.expect_exact(1_s);
}

}  // namespace
}  // namespace canarynet

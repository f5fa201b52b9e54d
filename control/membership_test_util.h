// control/membership_test_util.h -- for tests: whole jobs of memberships on the simulated network, with what each
// engine was told.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control/membership.h"
#include "control/messages.h"
#include "sim/sim_fabric.h"

namespace canarynet {

// An engine's part in its membership: it takes lanes, reads their Hello, hands them over, and remembers what it was
// told.
class Party final : public MembershipListener, public LaneAcceptor, public LaneSink {
 public:
  Party(SimFabric& fabric, int host, MembershipOptions options) : fabric_(fabric), host_(host) {
    fabric.factory(host).set_acceptor(this);
    membership = make_membership(std::move(options), fabric.factory(host), *this);
    started = membership->start(fabric.now());
  }
  ~Party() override { fabric_.factory(host_).set_acceptor(nullptr); }

  void poll() {
    fabric_.factory(host_).poll(fabric_.now());
    std::erase_if(waiting_, [](const auto& lane) { return lane == nullptr; });
    membership->poll(fabric_.now());
  }

  void on_joined(std::shared_ptr<const Roster> r) override { roster = *r; }
  void on_join_failed(const Status& why) override {
    EXPECT_TRUE(join_status.ok()) << "told twice";
    join_status = why;
  }
  void on_group(int rank, std::uint64_t cookie, std::uint32_t flow) override { flows[{rank, cookie}] = flow; }
  void on_group_failed(int rank, std::uint64_t cookie, const Status& why) override {
    group_errors[{rank, cookie}] = why;
  }
  void on_engine_died(std::uint32_t engine, const std::string& why) override {
    EXPECT_EQ(died.count(engine), 0u) << "told twice";
    died[engine] = why;
    died_at = fabric_.now();
  }
  void on_engine_ended(std::uint32_t engine, const std::string&) override { ended.push_back(engine); }
  void on_engine_left(std::uint32_t engine, const std::vector<LastWord>& words) override {
    left.push_back(engine);
    last_words.insert(last_words.end(), words.begin(), words.end());
  }
  void on_entry_question(GroupEpoch group) override {
    membership->tell_entered(fabric_.now(), {group, {static_cast<std::uint32_t>(host_)}, {}});
  }
  void on_entered(const Entered& e) override { entered.push_back(e); }
  void on_connect_wanted(std::uint32_t engine) override { wanted_by.push_back(engine); }
  void on_policy_reply(const PolicyReply& reply) override { policy_replies.push_back(reply); }
  void on_coordinator_lost(const Status& why) override { lost = why; }
  bool stands(std::uint32_t engine) const override { return standing.count(engine) != 0; }
  void on_coordinator(std::uint32_t engine) override {
    coordinators.push_back(engine);
    for (const PolicyWord& word : resumes) membership->say(fabric_.now(), word);
  }
  void on_verdict(const Verdict& verdict) override {
    verdicts.push_back(verdict);
    membership->flood(verdict);  // as the engine does: it must not go round for ever
  }

  void on_accept(std::unique_ptr<Lane> lane) override {
    lane->set_sink(this);
    waiting_.push_back(std::move(lane));
  }
  void on_up(Lane&) override {}
  Landing landing_for(Lane&, const wire::Header&) override { return {Landing::Kind::kSlot, nullptr, 0}; }
  void on_frame(Lane& lane, const wire::Header& header, const Arrival& arrival) override {
    wire::HelloPayload hello;
    ASSERT_EQ(header.kind, wire::Kind::kHello);
    ASSERT_EQ(arrival.payload.size(), sizeof hello);
    std::memcpy(&hello, arrival.payload.data(), sizeof hello);
    for (auto& w : waiting_) {
      if (w.get() == &lane) return membership->adopt(std::move(w), header, hello);
    }
  }
  void on_writable(Lane&) override {}
  void on_down(Lane&, const Status&, bool) override {}

  std::unique_ptr<Membership> membership;
  Status started;
  std::optional<Roster> roster;
  Status join_status;
  std::map<std::pair<int, std::uint64_t>, std::uint32_t> flows;
  std::map<std::pair<int, std::uint64_t>, Status> group_errors;
  std::map<std::uint32_t, std::string> died;
  Nanos died_at;
  std::vector<std::uint32_t> left, ended;
  std::vector<LastWord> last_words;
  std::vector<Verdict> verdicts;
  std::vector<Entered> entered;
  std::vector<std::uint32_t> wanted_by;
  std::vector<PolicyReply> policy_replies;
  Status lost;
  std::set<std::uint32_t> standing;  // engines to which a lane stands
  std::vector<std::uint32_t> coordinators;
  std::vector<PolicyWord> resumes;  // said when another engine coordinates

 private:
  SimFabric& fabric_;
  int host_;
  std::vector<std::unique_ptr<Lane>> waiting_;
};

struct JobOptions {
  int engines = 4;
  int ranks_each = 1;
  int rails = 2;
  FabricOptions fabric = {};
  Nanos join_timeout = 10_s;
  Nanos entry_limit = 5_s;
  std::uint64_t join_token = 77;  // of a unique id; 0: by address
  std::function<void(int, MembershipOptions*)> amend = {};
};

class Job {
 public:
  explicit Job(JobOptions o)
      : options(std::move(o)), fabric(options.fabric, Wiring::flat(options.engines, options.rails)) {
    parties.resize(static_cast<std::size_t>(options.engines));
  }
  MembershipOptions options_of(int host) const {
    MembershipOptions m;
    m.coordinator = fabric.control_address(0);
    m.coordinator.port = 4000;
    m.world_size = options.engines * options.ranks_each;
    for (int k = 0; k < options.ranks_each; ++k) m.local_ranks.push_back(host * options.ranks_each + k);
    m.host_id = "id-" + std::to_string(host);
    m.host_name = "host-" + std::to_string(host);
    m.pid = 1000 + host;
    m.join_timeout = options.join_timeout;
    m.heartbeat_interval = 200_ms;
    m.entry_limit = options.entry_limit;
    m.piece_bytes = Bytes{131072 + host};  // the first rank's counts
    m.must_agree = {"algo=ring", "piece_bytes=131072"};
    m.job_token = 42;
    m.join_token = options.join_token;
    if (options.amend) options.amend(host, &m);
    return m;
  }
  void start(int host) {
    parties[static_cast<std::size_t>(host)] = std::make_unique<Party>(fabric, host, options_of(host));
  }
  void start_all() {
    for (int h = 0; h < options.engines; ++h) start(h);
  }
  Party& operator[](int host) { return *parties[static_cast<std::size_t>(host)]; }
  bool alive(int host) const { return parties[static_cast<std::size_t>(host)] != nullptr; }

  void run_until(Nanos end) {
    std::vector<int> ready;
    while (true) {
      for (int h = 0; h < options.engines; ++h) {
        if (alive(h) && !fabric.frozen(h) && (*this)[h].membership->next_deadline() <= fabric.now()) (*this)[h].poll();
      }
      Nanos next = fabric.next_event();
      for (int h = 0; h < options.engines; ++h) {
        if (alive(h) && !fabric.frozen(h))
          next = std::min(next, std::max((*this)[h].membership->next_deadline(), fabric.now()));
      }
      if (next > end) break;
      // A deadline that poll() does not move would stop the world.
      stuck_ = next == fabric.now() ? stuck_ + 1 : 0;
      ASSERT_LT(stuck_, 20000) << "time stands still";
      fabric.advance_to(next);
      fabric.take_ready_hosts(&ready);
      for (const int h : ready) {
        if (alive(h)) (*this)[h].poll();
      }
    }
    fabric.advance_to(end);
  }
  void run_for(Nanos t) { run_until(fabric.now() + t); }

  // The process ends.
  void kill(int host, CrashKind kind = CrashKind::kHangup) {
    fabric.crash(host, kind);
    parties[static_cast<std::size_t>(host)].reset();
  }
  // A clean end: LEAVE, then gone.
  void finish(int host) {
    (*this)[host].membership->leave(fabric.now(), {{{7, 1}, static_cast<std::uint32_t>(host), 5}});
    (*this)[host].poll();
    fabric.crash(host, CrashKind::kHangup);
    parties[static_cast<std::size_t>(host)].reset();
  }
  bool all_joined() {
    return std::all_of(parties.begin(), parties.end(), [](const auto& p) { return p && p->roster.has_value(); });
  }
  void join() {
    start_all();
    run_for(1_s);
    ASSERT_TRUE(all_joined());
  }
  // Host `from`'s next frame to `to` over their latest lane comes with flipped bits, in its header or in its payload.
  enum class Damage { kHeader, kPayload };
  void damage(int from, int to, Damage where) {
    std::vector<Lane*> lanes;
    fabric.lanes_between(from, to, &lanes);
    ASSERT_FALSE(lanes.empty());
    const auto bytes = control::encode(control::Heartbeat{});
    wire::Header header;
    header.kind = wire::Kind::kControl;
    header.payload_bytes = static_cast<std::uint32_t>(bytes.size());
    header.payload_crc32 = wire::payload_crc(bytes.data(), bytes.size()) ^ (where == Damage::kPayload ? 1 : 0);
    wire::seal(header);
    if (where == Damage::kHeader) header.flow ^= 1;
    ASSERT_TRUE(lanes.back()->send(header, bytes.data(), 0));
    lanes.back()->flush(fabric.now());
  }

  JobOptions options;
  SimFabric fabric;
  std::vector<std::unique_ptr<Party>> parties;

 private:
  int stuck_ = 0;
};

// A peer that speaks by hand.
class Stranger final : public LaneSink {
 public:
  Stranger(Job& job, int host) : job_(job) {
    Address to = job.fabric.control_address(0);
    to.port = 4000;
    auto dialled = job.fabric.factory(host).dial(kControlRail, to, *this);
    EXPECT_TRUE(dialled.ok());
    lane = dialled.take();
    step(host, 10_ms);
    EXPECT_TRUE(lane->up());
  }
  // Parties and the stranger's own host.
  void step(int host, Nanos time) {
    const Nanos end = job_.fabric.now() + time;
    while (job_.fabric.now() < end) {
      job_.run_for(1_ms);
      job_.fabric.factory(host).poll(job_.fabric.now());
    }
  }
  void say(wire::Kind kind, const void* data, std::size_t bytes) {
    wire::Header header;
    header.kind = kind;
    header.payload_bytes = static_cast<std::uint32_t>(bytes);
    header.payload_crc32 = wire::payload_crc(data, bytes);
    wire::seal(header);
    EXPECT_TRUE(lane->send(header, static_cast<const std::byte*>(data), 0));
    lane->flush(job_.fabric.now());
  }
  void hello(std::uint16_t version_min, std::uint16_t version_max, std::uint64_t token = 0) {
    const wire::HelloPayload hello{.job = token,
                                   .engine = 0xffffffff,
                                   .rail = 0xffff,
                                   .version_min = version_min,
                                   .version_max = version_max,
                                   .purpose = wire::kHelloControl};
    say(wire::Kind::kHello, &hello, sizeof hello);
  }
  void join(int rank, std::uint32_t world_size) {
    control::Join j;
    j.engine.ranks = {rank};
    j.engine.host_id = j.engine.host_name = "host-x";
    j.engine.pid = 4711;
    j.world_size = world_size;
    j.must_agree = {"algo=ring", "piece_bytes=131072"};
    const auto bytes = control::encode(j);
    say(wire::Kind::kControl, bytes.data(), bytes.size());
  }
  void on_up(Lane&) override {}
  Landing landing_for(Lane&, const wire::Header&) override { return {Landing::Kind::kSlot, nullptr, 0}; }
  void on_frame(Lane&, const wire::Header& header, const Arrival& arrival) override {
    if (header.kind == wire::Kind::kHello) ++hellos;
    if (header.kind != wire::Kind::kControl) return;
    auto message = control::decode(arrival.payload);
    ASSERT_TRUE(message.ok());
    messages.push_back(std::move(message.value()));
  }
  void on_writable(Lane&) override {}
  void on_down(Lane&, const Status&, bool) override { down = true; }

  std::unique_ptr<Lane> lane;
  std::vector<control::Message> messages;
  int hellos = 0;
  bool down = false;

 private:
  Job& job_;
};

inline ::testing::AssertionResult contains(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (text.find(part) == std::string::npos)
      return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << text;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace canarynet

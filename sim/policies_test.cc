// Policies that ask, where hosts fall silent: whole engines, in virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "port/policy.h"
#include "sim/cluster_test_util.h"
#include "sync/policy.h"

namespace canarynet {
namespace {

// A rank's part in a policy of all ranks.
class Worker {
 public:
  Worker(Cluster& cluster, int rank, std::uint64_t number = 1) : cluster_(cluster), rank_(rank), number_(number) {}

  Status open(const std::string& name) {
    std::vector<std::uint64_t> hosts;
    for (int r = 0; r < cluster_.ranks(); ++r) hosts.push_back(static_cast<std::uint64_t>(cluster_.host_of(r)));
    OpTicket ticket;
    cluster_.submit(rank_, port::open_policy(member(), number_, name, hosts, id(&ticket)));
    return ticket.code == CANARY_OK ? Status() : ticket.status;
  }
  // Asks for a group, and waits for the answer.
  void ask() {
    say(sync::Question::Kind::kGroup, 0);
    answer_.assign(port::policy_answer_bytes(static_cast<std::uint64_t>(cluster_.ranks())), std::byte{});
    ticket_ = std::make_unique<OpTicket>();
    cluster_.submit(rank_, port::next_answer(member(), number_, answer_, /*waits=*/true, id(ticket_.get())));
  }
  // The group that it was told of is done here.
  void end() { say(sync::Question::Kind::kDone, head().number); }
  bool answered() const { return ticket_->done(); }
  Status error() const { return ticket_->code == CANARY_OK ? Status() : ticket_->status; }
  // Of the group that it was told; empty: it goes on alone.
  std::vector<std::uint32_t> mates() const {
    std::vector<std::uint32_t> out(head().members);
    std::memcpy(out.data(), answer_.data() + sizeof(port::PolicyAnswer), out.size() * sizeof out[0]);
    return out;
  }

 private:
  port::PolicyAnswer head() const {
    port::PolicyAnswer out;
    std::memcpy(&out, answer_.data(), sizeof out);
    return out;
  }
  void say(sync::Question::Kind kind, std::int64_t number) {
    const std::uint64_t words[port::kQuestionWords] = {static_cast<std::uint64_t>(kind),
                                                       static_cast<std::uint64_t>(number), 0, 0};
    OpTicket asked;
    cluster_.submit(rank_, port::ask_policy(member(), number_, words, id(&asked)));
    EXPECT_EQ(asked.code, CANARY_OK) << asked.status.to_string();
  }
  port::MemberId member() const { return cluster_.world(rank_)->id; }
  port::TicketId id(OpTicket* ticket) const { return cluster_.id(cluster_.world(rank_), ticket); }

  Cluster& cluster_;
  int rank_;
  std::uint64_t number_;  // the policy's
  std::vector<std::byte> answer_;
  std::unique_ptr<OpTicket> ticket_;
};

std::vector<Worker> open(Cluster& c, const std::string& name) {
  std::vector<Worker> workers;
  for (int r = 0; r < c.ranks(); ++r) {
    workers.emplace_back(c, r);
    EXPECT_TRUE(workers.back().open(name).ok());
  }
  c.run_for(10_ms);  // the coordinator has heard
  return workers;
}

// All of a group wait for all of them: a smart one begins when its members have asked.
TEST(Policies, ASilentWorkerIsWaitedForByNobody) {
  Cluster c(impatient(flat_cluster(4)));
  ASSERT_TRUE(c.join());
  std::vector<Worker> w = open(c, "ripples:smart,group=4,inter-intra=0");
  for (const std::size_t r : {0u, 1u, 3u}) w[r].ask();
  c.run_for(10_ms);
  EXPECT_FALSE(w[0].answered()) << "worker 2 has not asked";
  c.kill(2, CrashKind::kSilent);
  ASSERT_TRUE(c.run_until([&] { return w[0].answered() && w[1].answered() && w[3].answered(); }, 5_s));
  for (const std::size_t r : {0u, 1u, 3u}) {
    EXPECT_TRUE(w[r].error().ok()) << w[r].error().to_string();
    EXPECT_EQ(w[r].mates(), (std::vector<std::uint32_t>{0, 1, 3}));
  }
}

// The next coordinator has its own knowledge of who is silent.
TEST(Policies, NorByTheNextCoordinator) {
  Cluster c(impatient(flat_cluster(5)));
  ASSERT_TRUE(c.join());
  std::vector<Worker> w = open(c, "ripples:smart,group=5,inter-intra=0");
  for (Worker& one : w) one.ask();
  c.run_for(10_ms);
  EXPECT_EQ(w[1].mates().size(), 5u);
  c.kill(3, CrashKind::kSilent);
  c.run_for(3_s);
  c.kill(0, CrashKind::kHangup);
  c.run_for(3_s);
  // The group is over once all of its members that live have said so.
  for (const std::size_t r : {1u, 2u, 4u}) {
    w[r].end();
    w[r].ask();
  }
  ASSERT_TRUE(c.run_until([&] { return w[1].answered() && w[2].answered() && w[4].answered(); }, 5_s));
  for (const std::size_t r : {1u, 2u, 4u}) {
    EXPECT_TRUE(w[r].error().ok()) << w[r].error().to_string();
    EXPECT_EQ(w[r].mates(), (std::vector<std::uint32_t>{1, 2, 4}));
  }
}

// On BCube(3,2) hosts meet whose numbers have a digit to base 3 in common.
TEST(Policies, GroupsAreOfRanksThatMeetAlsoByTheNextCoordinator) {
  ClusterOptions options;
  options.hosts = 9;
  options.wiring = Wiring::bcube(3, 2);
  Cluster c(options);
  ASSERT_TRUE(c.join());
  std::vector<Worker> w = open(c, "ripples:smart,group=2,inter-intra=0");
  const auto expect_pairs = [&](std::vector<std::size_t> ranks, int times) {
    for (int i = 0; i < times; ++i) {
      for (const std::size_t r : ranks) w[r].ask();
      ASSERT_TRUE(c.run_until(
          [&] { return std::all_of(ranks.begin(), ranks.end(), [&](std::size_t r) { return w[r].answered(); }); },
          5_s));
      for (const std::size_t r : ranks) {
        ASSERT_TRUE(w[r].error().ok()) << w[r].error().to_string();
        const std::vector<std::uint32_t> mates = w[r].mates();
        if (mates.size() == 2) {
          EXPECT_TRUE(mates[0] / 3 == mates[1] / 3 || mates[0] % 3 == mates[1] % 3) << mates[0] << ", " << mates[1];
        }
        if (!mates.empty()) w[r].end();
      }
    }
  };
  ASSERT_NO_FATAL_FAILURE(expect_pairs({0, 1, 2, 3, 4, 5, 6, 7, 8}, 10));
  c.kill(0, CrashKind::kHangup);
  c.run_for(3_s);
  ASSERT_NO_FATAL_FAILURE(expect_pairs({1, 2, 3, 4, 5, 6, 7, 8}, 10));
}

// Its questions are not answered any more.
TEST(Policies, WhoWasSilentAndSpeaksAgainIsTold) {
  Cluster c(impatient(flat_cluster(3)));
  ASSERT_TRUE(c.join());
  std::vector<Worker> w = open(c, "ripples:smart,group=3");
  AllRanks op(c, sum(3, 1000));
  op.submit_all_but(2);  // all hear the verdict on it
  w[2].ask();
  c.fabric().freeze(2);
  c.run_for(3_s);
  c.fabric().thaw(2);
  ASSERT_TRUE(c.run_until([&] { return w[2].answered(); }, 2_s));
  EXPECT_EQ(w[2].error().code(), CANARY_PEER_SILENT) << w[2].error().to_string();
  EXPECT_EQ(w[2].error().detail().rank, 2) << w[2].error().to_string();
  EXPECT_EQ(Worker(c, 2, 2).open("ripples:smart").code(), CANARY_PEER_SILENT) << "it opens another one in vain";
}

TEST(Policies, ACoordinatorThatHearsNobodyAnswersNobody) {
  Cluster c(impatient(flat_cluster(4)));
  ASSERT_TRUE(c.join());
  std::vector<Worker> w = open(c, "ripples:smart,group=4,inter-intra=0");
  for (Worker& one : w) {
    if (&one != &w[3]) one.ask();
  }
  for (int host = 1; host < 4; ++host) c.fabric().block(0, host);
  ASSERT_TRUE(c.run_until([&] { return w[0].answered() && w[1].answered() && w[2].answered(); }, 5_s));
  EXPECT_EQ(w[0].error().code(), CANARY_PEER_SILENT) << w[0].error().to_string();
  EXPECT_EQ(w[0].error().detail().rank, 0) << w[0].error().to_string();
  EXPECT_EQ(w[1].error().code(), CANARY_COORDINATOR_LOST) << w[1].error().to_string();
}

}  // namespace
}  // namespace canarynet

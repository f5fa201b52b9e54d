// sim/cluster_test_util.h -- for tests: one operation on every rank of a simulated cluster, with its buffers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "sim/cluster.h"
#include "sim/lent_memory.h"
#include "sim/oracle.h"

namespace canarynet {

// Under sanitizers, which see the same code in fewer cases.
inline bool quick() { return std::getenv("CANARY_TEST_QUICK") != nullptr; }

inline ClusterOptions flat_cluster(int hosts, int rails = 2, int ranks_per_host = 1) {
  ClusterOptions c;
  c.hosts = hosts;
  c.ranks_per_host = ranks_per_host;
  c.wiring = Wiring::flat(hosts, rails);
  c.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
  return c;
}

// Options with a short silence limit, for tests of what happens after it.
inline ClusterOptions impatient(ClusterOptions options) {
  options.settings.silence_limit = 1_s;
  return options;
}

// Processes of one machine, who see each other stand still: one without a lane is slow, as far as can be told.
// `cluster`: set before it is used.
inline ClusterOptions neighbours(int hosts, int ranks_per_host, Cluster** cluster) {
  ClusterOptions o = impatient(flat_cluster(hosts, 2, ranks_per_host));
  o.wiring.machine.assign(static_cast<std::size_t>(hosts), 0);
  o.amend = [cluster](int, EngineOptions* e) {
    e->host_id = "machine";
    e->pulse_of = [cluster](std::int64_t pid) {
      if ((*cluster)->fabric().frozen(static_cast<int>(pid - 1000))) return ProcessPulse{};
      return ProcessPulse{static_cast<std::uint64_t>((*cluster)->now().count), false};
    };
  };
  return o;
}

// `host` stands still, the others give it up, its lanes break, and it goes on.
inline void give_up(Cluster& c, int host) {
  c.fabric().freeze(host);
  c.run_for(2_s);
  for (int peer = 0; peer < c.hosts(); ++peer) {
    std::vector<Lane*> lanes;
    if (peer != host) c.fabric().lanes_between(host, peer, &lanes);
    for (Lane* lane : lanes) {
      if (lane->rail() != kControlRail) c.fabric().kill_lane(*lane, /*announced=*/true);
    }
  }
  c.fabric().thaw(host);
}

// Options with which groups choose by what they measured of their links.
inline ClusterOptions measuring(ClusterOptions options) {
  options.settings.measured_choice = true;
  options.fabric.window_bytes = 16 << 20;
  return options;
}

// Options with which size and topology alone choose.
inline ClusterOptions unmeasured(ClusterOptions options) {
  options.settings.measured_choice = false;
  return options;
}

// The shapes of f32 operations. Equal salts give equal inputs.
inline oracle::Shape sum(int ranks, std::uint64_t count, std::uint64_t salt = 1) {
  oracle::Shape s;
  s.ranks = ranks;
  s.count = count;
  s.salt = salt;
  return s;
}
inline oracle::Shape broadcast(int ranks, std::uint64_t count, int root = 0, std::uint64_t salt = 1) {
  oracle::Shape s = sum(ranks, count, salt);
  s.collective = Collective::kBroadcast;
  s.root = root;
  return s;
}

using Tickets = std::vector<std::unique_ptr<OpTicket>>;

inline bool all_done(const Tickets& tickets) {
  return std::all_of(tickets.begin(), tickets.end(), [](const auto& t) { return t->done(); });
}

// `rank` asks for the group of the world ranks in `list`, in that order.
inline void ask_for_group(Cluster& c, int rank, const std::vector<int>& list, OpTicket* ticket) {
  c.submit(rank, port::group(rank, list, c.engine(c.host_of(rank)).ticket_id(*ticket)));
}

// All ranks of `list` ask for the group. Returns the member that each of them got, in the order of the list.
inline std::vector<GroupMember*> form_group(Cluster& c, const std::vector<int>& list) {
  Tickets tickets;
  for (const int rank : list) {
    tickets.push_back(std::make_unique<OpTicket>());
    ask_for_group(c, rank, list, tickets.back().get());
  }
  EXPECT_TRUE(c.run_until([&] { return all_done(tickets); }, 5_s));
  std::vector<GroupMember*> members;
  for (std::size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(tickets[i]->code, CANARY_OK) << tickets[i]->status.to_string();
    members.push_back(c.engine(c.host_of(list[i])).member(tickets[i]->member));
  }
  return members;
}

// `rank` aborts the world; `why` must never be freed.
inline void abort_world(Cluster& c, int rank, const char* why) { c.submit(rank, port::abort(c.world(rank)->id, why)); }

// An engine leaves the job in good order, and then its process ends.
inline void leave_and_end(Cluster& c, int engine) {
  c.engine(engine).leave(c.now());
  ASSERT_TRUE(c.run_until([&] { return c.engine(engine).left(); }, 2_s));
  c.run_for(5_ms);
  c.kill(engine, CrashKind::kHangup);
}

// Buffers and tickets of one collective on all ranks of a group. It must outlive the cluster's use of them. Each rank's
// result is judged, and its buffers are overwritten, as soon as that rank is done; nobody may write there from then on.
class AllRanks final : public PollWatcher {
 public:
  AllRanks(Cluster& cluster, const oracle::Shape& shape, bool in_place = false)
      : cluster_(cluster), shape_(shape), judge_(shape), in_place_(in_place && oracle::can_be_in_place(shape)) {
    for (int r = 0; r < shape.ranks; ++r) {
      const std::size_t in = oracle::input_bytes(shape, r), out = oracle::output_bytes(shape, r);
      const bool shared = in_place_ && shape.collective != Collective::kBarrier;
      input_.emplace_back(shared ? std::max(in, out) : in);
      output_.emplace_back(shared ? 0 : out);
      counts_.push_back(oracle::counts_of(shape, r));
      tickets_.push_back(std::make_unique<OpTicket>());
      oracle::fill_input(shape, r, input_of(r));
      inputs_.push_back(oracle::digest(input_.back().data(), input_.back().size()));
    }
    host_.resize(at(shape.ranks), -1);
    wrong_.resize(at(shape.ranks));
    digests_.resize(at(shape.ranks));
    cluster_.add_watcher(this);
  }
  ~AllRanks() override {
    cluster_.remove_watcher(this);
    for (int r = 0; r < shape_.ranks; ++r) {
      for (const LentMemory* memory : {&input_[at(r)], &output_[at(r)]}) {
        EXPECT_EQ(memory->trespass(), "") << oracle::to_string(shape_) << ", rank " << r;
      }
    }
    EXPECT_EQ(cluster_.fabric().counters().changed, 0u) << "frames were sent from memory that had been overwritten";
  }
  AllRanks(const AllRanks&) = delete;
  AllRanks& operator=(const AllRanks&) = delete;

  // The limit counts from the call on; call this before submit().
  void set_time_limit(Nanos limit) { time_limit_ = limit; }
  void set_priority(canary_priority priority) { priority_ = priority; }
  void submit(int rank, GroupMember* member = nullptr) {
    if (member == nullptr) member = cluster_.world(rank);
    host_[at(rank)] = cluster_.host_of(member->world_rank);
    cluster_.submit(member,
                    {.collective = shape_.collective,
                     .input = input_of(rank),
                     .output = output_of(rank),
                     .count = shape_.count,
                     .type = shape_.type,
                     .redop = shape_.redop,
                     .root = shape_.root,
                     .time_limit = time_limit_,
                     .priority = priority_,
                     .counts = counts_[at(rank)]},
                    tickets_[at(rank)].get());
  }
  void submit_all() { submit_all_but(-1); }
  void submit_all_but(int rank) {
    for (int r = 0; r < shape_.ranks; ++r) {
      if (r != rank) submit(r);
    }
  }
  bool done(int rank) const { return tickets_[at(rank)]->done(); }
  bool all_done() const { return all_done_but(-1); }
  bool all_done_but(int rank) const {
    for (int r = 0; r < shape_.ranks; ++r) {
      if (r != rank && !done(r)) return false;
    }
    return true;
  }
  OpTicket& ticket(int rank) { return *tickets_[at(rank)]; }
  // The digest of the rank's result, once it is done.
  std::uint64_t digest(int rank) const { return digests_[at(rank)]; }
  // Runs until every rank is done; then each must have succeeded with the right result.
  void expect_exact(Nanos limit = 10_s) {
    ASSERT_TRUE(cluster_.run_until([this] { return all_done(); }, limit))
        << oracle::to_string(shape_) << " did not end";
    for (int r = 0; r < shape_.ranks; ++r) {
      ASSERT_EQ(ticket(r).code, CANARY_OK) << ticket(r).status.to_string();
      ASSERT_EQ(wrong_[at(r)], "");
    }
  }

  // PollWatcher
  void polled(int host) override {
    for (int r = 0; r < shape_.ranks; ++r) {
      if (host_[at(r)] == host && done(r)) settle(r);
    }
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  // Returns nullptr if a rank has none.
  std::byte* input_of(int r) {
    if (oracle::input_bytes(shape_, r) == 0) return nullptr;
    return input_[at(r)].data() + (in_place_ ? oracle::in_place_input(shape_, r) : 0);
  }
  std::byte* output_of(int r) {
    if (oracle::output_bytes(shape_, r) == 0) return nullptr;
    return in_place_ ? input_[at(r)].data() + oracle::in_place_output(shape_, r) : output_[at(r)].data();
  }
  void settle(int r) {
    if (input_[at(r)].returned()) return;
    if (ticket(r).code == CANARY_OK) {
      wrong_[at(r)] = judge_.check(r, output_of(r));
      digests_[at(r)] = oracle::digest(output_of(r), oracle::output_bytes(shape_, r));
      if (!in_place_ && oracle::digest(input_[at(r)].data(), input_[at(r)].size()) != inputs_[at(r)])
        wrong_[at(r)] += " the input of rank " + std::to_string(r) + " was written";
    }
    input_[at(r)].take_back();
    output_[at(r)].take_back();
  }

  Cluster& cluster_;
  oracle::Shape shape_;
  oracle::Judge judge_;
  bool in_place_;
  Nanos time_limit_{};
  canary_priority priority_ = CANARY_PRIORITY_NORMAL;
  std::vector<LentMemory> input_, output_;
  std::vector<int> host_;  // -1: not submitted
  std::vector<std::string> wrong_;
  std::vector<std::uint64_t> inputs_, digests_;
  std::vector<std::vector<std::uint64_t>> counts_;
  std::vector<std::unique_ptr<OpTicket>> tickets_;
};

}  // namespace canarynet

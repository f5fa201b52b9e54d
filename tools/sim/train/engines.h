// tools/sim/train/engines.h -- the engines of a simulated training, and its clock: exchanges as calls that end later.
//
// What: a simulated cluster with one rank per worker. average() and sum() are all-reduces of the engine, in the world
// or in a group that the engine forms when its members are first named; transfer() is a message of the engine, over as
// many hosts as lie between the two. `done` is called when the worker's own part has ended, at that time, never from
// within the call. after() is for everything else that takes time: computing, questions to a coordinator.
// Units: Nanos of virtual time. Memory: values are borrowed until `done`, unless they are handed over. Thread: one.
// Determinism: everything follows from the options and the order of the calls.
// Failures: of the engine, as failure(); nothing happens any more then.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "sim/cluster.h"

namespace canarynet::sim {

class Engines {
 public:
  using Done = std::function<void()>;
  using Members = std::vector<int>;  // workers, ascending; empty: all of them

  explicit Engines(const ClusterOptions& options);
  // No stream from or to this NIC gets more than `rate` from now on: what its losses leave of it.
  void limit_streams(int host, int nic, BytesPerSec rate);
  // Brings the job up. The clock goes on from there.
  Status join();

  Nanos now() const { return cluster_.now(); }
  void after(Nanos delay, Done what);
  // Moves time on to the next thing that happens, and makes it happen. False: nothing ever will, or failure().
  bool step();
  const Status& failure() const { return failure_; }

  // All members call with as many values. Calls with the same members and channel meet in their order; those of
  // different channels do not wait for one another.
  void average(int worker, const Members& members, int channel, std::span<float> values, Done done) {
    reduce(worker, members, channel, values, CANARY_AVG, std::move(done));
  }
  void sum(int worker, const Members& members, int channel, std::span<float> values, Done done) {
    reduce(worker, members, channel, values, CANARY_SUM, std::move(done));
  }
  // Values go from one worker to another. Those between the same two arrive in order.
  void transfer(int from, int to, std::vector<float> values, std::function<void(std::span<const float>)> arrived);

  // By all NICs, headers and heartbeats included.
  std::uint64_t sent_bytes();
  // Whether two workers share a host or a network.
  bool meet(int a, int b) const;
  // What the engines showed to one another, as a hash: equal runs have equal ones.
  std::uint64_t hash() { return cluster_.fabric().hash(); }

 private:
  // An operation, a message or a request for a group, of one worker.
  struct Pending {
    OpTicket ticket;
    std::vector<int> list;      // a group's ranks
    std::vector<float> values;  // of a message
    Done done;
  };
  struct Event {
    Nanos at;
    std::uint64_t order = 0;
    Done what;
    bool operator<(const Event& e) const { return std::tie(e.at, e.order) < std::tie(at, order); }
  };
  // A worker's part in a group: a call that comes before it is formed waits.
  struct Membership {
    GroupMember* member = nullptr;
    std::vector<Done> waiting;
  };
  void reduce(int worker, const Members& members, int channel, std::span<float> values, ReduceOp op, Done done);
  void reduce_in(GroupMember* member, std::span<float> values, ReduceOp op, Done done);
  void hop(std::vector<int> path, std::size_t at, std::vector<float> values,
           std::function<void(std::span<const float>)> arrived);
  std::vector<int> path_between(int from, int to) const;
  Pending& add(Done done);
  void settle();

  Wiring wiring_;
  int ranks_per_host_;
  // They outlive the cluster, whose engines write to them.
  std::vector<std::unique_ptr<Pending>> pending_;
  std::atomic<bool> news_{false};
  Cluster cluster_;
  std::vector<std::map<std::pair<int, Members>, Membership>> memberships_;  // per worker
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  Status failure_;
};

}  // namespace canarynet::sim

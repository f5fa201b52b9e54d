// tools/sim/train/engines.h -- the engines of a simulated training, and its clock: exchanges as calls that end later.
//
// What: a simulated cluster with one rank per worker. all_reduce() is the world's; mean() and sum() are partial
// all-reduces, for which the engines make groups; transfer() is a message, over as many hosts as lie between the two;
// call() is any other command. `done` is called when the worker's own part has ended, at that time, never from within
// the call. after() is for everything else that takes time, such as computing.
// Units: Nanos of virtual time. Memory: values are borrowed until `done`, unless they are handed over. Thread: one.
// Determinism: everything follows from the options and the order of the calls.
// Failures: of the engine, as failure(); nothing happens any more then.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <queue>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "engine/session.h"
#include "sim/cluster.h"

namespace canarynet::sim {

class Engines {
 public:
  using Done = std::function<void()>;
  // Of a member of the world, for a ticket that is kept here.
  using MakeCommand = std::function<port::Command(port::MemberId, port::TicketId)>;

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

  // The mean over all workers, who call in the same order with as many values. With a codec (its number) what it leaves
  // out of values waits in the engine for the next ones of the same `tensor`, from 1; 0: dense.
  void all_reduce(int worker, std::span<float> values, std::uint32_t codec, std::uint64_t tensor, Done done);
  // Of some workers, who call with equal lists. Each call of one list has a number of its own, and so has each of lists
  // that overlap.
  struct Among {
    std::vector<int> members;
    std::uint64_t number = 0;
    std::uint32_t codec = 0;  // as all_reduce() has them
    std::uint64_t tensor = 0;
  };
  void mean(int worker, const Among& among, std::span<float> values, Done done) {
    partial(worker, among, values, CANARY_AVG, std::move(done));
  }
  void sum(int worker, const Among& among, std::span<float> values, Done done) {
    partial(worker, among, values, CANARY_SUM, std::move(done));
  }
  // Values go from one worker to another. Those between the same two arrive in order.
  void transfer(int from, int to, std::vector<float> values, std::function<void(std::span<const float>)> arrived);
  void call(int worker, const MakeCommand& make, Done done);

  // By all NICs, headers and heartbeats included.
  std::uint64_t sent_bytes();
  // Whether two workers share a host or a network.
  bool meet(int a, int b) const;
  // A session that this worker has opened in the world.
  SessionView session(int worker, std::uint64_t number);
  // What the engines showed to one another, as a hash: equal runs have equal ones.
  std::uint64_t hash() { return cluster_.fabric().hash(); }

 private:
  // A command of one worker.
  struct Pending {
    OpTicket ticket;
    std::vector<std::uint64_t> numbers;  // of a partial all-reduce
    std::vector<float> values;           // of a message
    Done done;
  };
  struct Event {
    Nanos at;
    std::uint64_t order = 0;
    Done what;
    bool operator<(const Event& e) const { return std::tie(e.at, e.order) < std::tie(at, order); }
  };
  void partial(int worker, const Among& among, std::span<float> values, ReduceOp op, Done done);
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
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  Status failure_;
};

}  // namespace canarynet::sim

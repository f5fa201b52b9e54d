// sim/cluster.h -- engines on a simulated fabric: the product's own code in one process, on virtual time, from one
// seed.
//
// What: one engine per host, with `ranks_per_host` ranks each. The caller submits operations and steps the cluster
// until they are done. Only engines with something to do are polled. Thread: one. Determinism: everything follows from
// the options.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "sim/sim_fabric.h"

namespace canarynet {

struct ClusterOptions {
  int hosts = 2;
  int ranks_per_host = 1;
  // A poll takes this long; what arrives meanwhile waits for the next one (0: an engine is infinitely fast).
  Nanos poll_time;
  Wiring wiring;
  FabricOptions fabric;
  Settings settings = Settings::defaults();
  // World size and settings as host h claims them, for tests of disagreement; may be empty.
  std::function<void(int host, EngineOptions*)> amend;
};

// Is called after every poll of an engine, before anything else happens: as soon as a caller could see the result.
class PollWatcher {
 public:
  virtual ~PollWatcher() = default;
  virtual void polled(int host) = 0;
};

class Cluster {
 public:
  explicit Cluster(ClusterOptions options);
  // Ends the processes one after the other, each while its engine still has what its frames are read from.
  ~Cluster();

  int hosts() const { return options_.hosts; }
  int ranks() const { return options_.hosts * options_.ranks_per_host; }
  int host_of(int rank) const { return rank / options_.ranks_per_host; }
  int first_rank(int host) const { return host * options_.ranks_per_host; }
  SimFabric& fabric() { return fabric_; }
  Engine& engine(int host) { return *engines_[static_cast<std::size_t>(host)]; }
  bool alive(int host) const { return engines_[static_cast<std::size_t>(host)] != nullptr; }
  Nanos now() const { return fabric_.now(); }

  // Starts all engines and steps until every one is ready or has failed to join. Returns true if all are ready.
  bool join(Nanos limit = 60_s);
  GroupMember* world(int rank) { return engine(host_of(rank)).world(rank); }

  // Hands over a valid command, and polls that engine.
  void submit(int rank, const port::Command& command);
  // Makes the command for an operation that completes `ticket`.
  port::Command operation(const GroupMember* member, const OpRequest& request, OpTicket* ticket) {
    return port::operation(member->id, member->shape(), request, id(member, ticket));
  }
  void submit(const GroupMember* member, const OpRequest& request, OpTicket* ticket) {
    submit(member->world_rank, operation(member, request, ticket));
  }
  port::TicketId id(const GroupMember* member, OpTicket* ticket) {
    return engine(host_of(member->world_rank)).ticket_id(*ticket);
  }
  // Messages to and from a rank of the member's group.
  void send(const GroupMember* member, int to, const void* data, std::uint64_t count, OpTicket* ticket,
            DataType type = CANARY_U8, const port::Terms& terms = {}) {
    submit(member->world_rank, port::send(member->id, to, data, count, type, id(member, ticket), terms));
  }
  void receive(const GroupMember* member, int from, void* data, std::uint64_t count, OpTicket* ticket,
               DataType type = CANARY_U8, const port::Terms& terms = {}) {
    submit(member->world_rank, port::receive(member->id, from, data, count, type, id(member, ticket), terms));
  }
  // Limits the operation or message that has this ticket.
  void set_deadline(const GroupMember* member, OpTicket* ticket, Nanos from_now) {
    submit(member->world_rank, port::deadline(member->id, id(member, ticket), from_now));
  }
  void all_reduce(int rank, const void* input, void* output, std::uint64_t count, DataType type, ReduceOp op,
                  OpTicket* ticket);

  // Moves time to the next event or deadline and polls the engines that have something to do. Returns false if nothing
  // will ever happen again.
  bool step(Nanos not_beyond = Nanos::max());
  // Steps until `done()`; returns false if `limit` (from now) passed first.
  bool run_until(const std::function<bool()>& done, Nanos limit);
  void run_for(Nanos span);

  // Ends the process of `host`: its engine is destroyed.
  void kill(int host, CrashKind kind);
  std::uint64_t polls() const { return polls_; }
  void add_watcher(PollWatcher* watcher) { watchers_.push_back(watcher); }
  void remove_watcher(PollWatcher* watcher) { std::erase(watchers_, watcher); }

 private:
  void poll(int host);

  ClusterOptions options_;
  SimFabric fabric_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Nanos> deadlines_;   // per host: when it is to be polled, whatever arrives
  std::vector<Nanos> busy_until_;  // per host: when its last poll ends
  std::vector<int> ready_hosts_;
  std::vector<PollWatcher*> watchers_;
  std::uint64_t polls_ = 0;
};

}  // namespace canarynet

// plugins/nccl/contexts.h -- the things that this process has made for its communicators. When one part of a
// communicator fails, all of them end.
//
// What: NCCL's contexts (v11 and newer), one for each communicator together with those that ncclCommSplit makes to
// share its resources, and one that stands for all communicators of interfaces without contexts.
// When a connection fails, or can't be made, its communicator is lost, and the other ranks wait for this one on their
// connections, maybe for ever: NCCL neither closes nor tells anything before its application aborts. fail() therefore
// tells all of them, and a context stays failed. Without contexts it is unknown what belongs together. There fail()
// gives up every connection of the process that is up and remembers nothing, so that connections being made, and later
// communicators, go on. One case is different: if a live peer closes a connection in order, as NCCL does with those of
// one communicator when it is aborted or destroyed, only that connection ends.
// Threads: any. Memory: contexts, listeners and comms are NCCL's until it closes them; their records here are bounded
// by those, and connects that NCCL asks for no more are dropped (sweep()).
// Fork: a child forgets everything; requests that it has inherited are not in flight any more.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "plugins/nccl/comm.h"
#include "plugins/nccl/handle.h"

namespace canarynet::nccl {

using Clock = std::chrono::steady_clock;

struct Context {
  static constexpr std::size_t kWhyBytes = 1024;
  bool one_communicator = true;  // false: any number of them
  std::uint64_t generation = 0;  // of the process that made it
  // The first failure; `why` does not change any more once it is set.
  abi::Result failed = abi::Result::kSuccess;
  char why[kWhyBytes] = "";
};

struct ListenComm {
  ListenComm() = default;
  ListenComm(const ListenComm&) = delete;
  ListenComm& operator=(const ListenComm&) = delete;
  ~ListenComm() { close(); }
  void close();

  Context* context = nullptr;
  canary_listener* listener = nullptr;  // null: closed, since the communicator has failed or nobody has asked for it
  std::uint64_t generation = 0;
  Clock::time_point asked;          // time of the listen, then of the latest accept
  Clock::time_point waits_since{};  // time of the first accept
};

// A connect that NCCL will ask for again, with the same handle.
struct Pending {
  Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  ~Pending();

  HandleBytes handle{};
  Context* context = nullptr;
  ProcessEndpoint::Use use;
  canary_connection* connection = nullptr;
  Clock::time_point asked;
};

class Contexts {
 public:
  static Contexts& get();

  Context* open();  // may throw std::bad_alloc
  // Frees the listeners and connects that NCCL has left behind; comms live on. Waits like
  // ProcessEndpoint::remove_context().
  void close(Context* context);
  // The context of interfaces that have none.
  Context* shared() { return &shared_; }

  // Returns kSuccess, or the communicator's failure after a warning that says why.
  abi::Result check(const char* call, const Context& context);

  // From here on the object is the communicator's, and fails with it. Returns false if that has failed before: the
  // object then stays the caller's, as it was.
  bool add(ListenComm* listener);
  bool add(Comm* comm);
  bool add(std::unique_ptr<Pending>& pending);
  // The connect with this handle that was begun before, or null. It is the caller's until it is added again.
  std::unique_ptr<Pending> take(const HandleBytes& handle, const Context* context);
  void remove(const ListenComm* listener);
  // Interfaces without contexts have no other end than their last comm's: then abandoned listeners end too.
  void remove(const Comm* comm);
  // Like canary_accept; CANARY_CLOSED: the listener is closed.
  canary_status accept(ListenComm& listener, canary_connection** connection);

  // Tells every peer of what belongs to the communicator; does not wait.
  void fail(Context& context, abi::Result result, const char* why);
  // kClosedByPeer: a live peer closes what belongs to a communicator that has ended there.
  enum class Cause { kFailure, kClosedByPeer };
  // Fails the comm's communicator, or the comm alone if that has ended. It also fails the comm alone if communicators
  // are not told apart and a peer closes the connection: other comms may belong to other communicators.
  void fail(const Comm& comm, abi::Result result, const char* why, Cause cause = Cause::kFailure);
  // Drops connects that were not asked for during twice CANARY_JOIN_TIMEOUT: their communicator was aborted, which
  // nobody says.
  void sweep();
  void set_join_timeout(std::chrono::nanoseconds limit);
  std::chrono::nanoseconds join_timeout();

 private:
  Contexts();
  bool abandoned(Clock::time_point asked, Clock::time_point now) const { return now - asked > 2 * join_timeout_; }
  void fail(Context* context, const Comm* comm, abi::Result result, const char* why, Cause cause);
  void end_listener(ListenComm& listener, const char* why);

  std::mutex mutex_;  // guards everything below and all of a context that may change; taken before the endpoint's
  Context shared_;
  std::vector<Comm*> comms_;
  std::vector<ListenComm*> listeners_;
  std::vector<std::unique_ptr<Pending>> pending_;
  std::chrono::nanoseconds join_timeout_ = std::chrono::seconds(120);
};

}  // namespace canarynet::nccl

// plugins/nccl/contexts.h -- what this process has made for its communicators, and the end of all that belongs to one
// when a part fails.
//
// What: NCCL's contexts (v11 and newer), one for each communicator and for those that ncclCommSplit makes to share its
// resources, and one that stands for all communicators of interfaces without any.
// When a connection fails, or can't be made, its communicator is lost, and the other ranks wait for this one on their
// connections, maybe for ever: NCCL neither closes nor tells anything before its application aborts. fail() therefore
// tells all of them, and a context stays failed. Without contexts nobody knows what belongs together: there every
// connection of the process that is up is given up, and nothing is remembered, so that what is being made, and later
// communicators, go on. Not so where a peer that lives closes a connection in order, as NCCL does with those of one
// communicator when it is aborted or destroyed: that one alone ends.
// Threads: any. Memory: contexts, listeners and comms are NCCL's until it closes them; their records here are bounded
// by those, and connects that nobody asks for any more are dropped (sweep()).
// Fork: a child forgets; requests that it has inherited are not in flight any more.
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
  std::uint64_t generation = 0;  // of the process that has made it
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
  canary_listener* listener = nullptr;  // null: closed, because the communicator has failed or nobody has asked for it
  std::uint64_t generation = 0;
  Clock::time_point asked;          // the listen, then the latest accept
  Clock::time_point waits_since{};  // of the first accept
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
  // Frees the listeners and connects that NCCL has left behind; comms live on. Waits as
  // ProcessEndpoint::remove_context() does.
  void close(Context* context);
  // Of interfaces that have none.
  Context* shared() { return &shared_; }

  // kSuccess, or what the communicator has failed with, after a warning that says why.
  abi::Result check(const char* call, const Context& context);

  // From here on they are the communicator's, and fail with it. False: that has failed before; the caller's, as they
  // were.
  bool add(ListenComm* listener);
  bool add(Comm* comm);
  bool add(std::unique_ptr<Pending>& pending);
  // The connect with this handle that was begun before, or null. The caller's until it is added again.
  std::unique_ptr<Pending> take(const HandleBytes& handle, const Context* context);
  void remove(const ListenComm* listener);
  // Those of interfaces without contexts have no other end than their last comm's: then abandoned listeners end too.
  void remove(const Comm* comm);
  // As canary_accept; CANARY_CLOSED: the listener is closed.
  canary_status accept(ListenComm& listener, canary_connection** connection);

  // Tells everybody at the other end of what belongs to the communicator; does not wait.
  void fail(Context& context, abi::Result result, const char* why);
  // A peer that lives closes what belongs to a communicator that has ended there.
  enum class Cause { kFailure, kClosedByPeer };
  // The comm's communicator; where that has ended, the comm alone. So it is where communicators are not told apart and
  // a peer closes the connection: the others that share it are none of that one's.
  void fail(const Comm& comm, abi::Result result, const char* why, Cause cause = Cause::kFailure);
  // Connects that were not asked for since twice CANARY_JOIN_TIMEOUT: their communicator was aborted, and nobody says
  // so.
  void sweep();
  void set_join_timeout(std::chrono::nanoseconds limit);
  std::chrono::nanoseconds join_timeout();

 private:
  Contexts();
  bool abandoned(Clock::time_point asked, Clock::time_point now) const { return now - asked > 2 * join_timeout_; }
  void fail(Context* context, const Comm* comm, abi::Result result, const char* why, Cause cause);
  void end_listener(ListenComm& listener, const char* why);

  std::mutex mutex_;  // everything below, and of a context what is not constant; taken before the endpoint's
  Context shared_;
  std::vector<Comm*> comms_;
  std::vector<ListenComm*> listeners_;
  std::vector<std::unique_ptr<Pending>> pending_;
  std::chrono::nanoseconds join_timeout_ = std::chrono::seconds(120);
};

}  // namespace canarynet::nccl

// embed/context_handles.h -- what C callers hold of a job: their context, its groups and operations, and the calls that
// are inside of them.
//
// Threads: any; a context counts who is inside, so that canary_finalize waits for them. Memory: groups and operations
// belong to their context.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "canarynet/canarynet.h"
#include "embed/handles.h"
#include "port/command.h"
#include "port/ticket.h"
#include "runtime/completion_bell.h"
#include "runtime/context.h"
#include "sync/policy_name.h"

namespace canarynet {
class Bundle;
class ParameterExchange;
class RatioChoice;
}  // namespace canarynet

// A context counts who is inside of its calls: canary_finalize turns away whoever comes, and waits for those.
struct canary_context : canarynet::Handled {
  static constexpr std::uint8_t kKind = 0xC1;
  static constexpr const char* kName = "context";
  static constexpr const char* kEnds = "it was finalized";

  std::atomic<int> inside{0};
  std::atomic<bool> closing{false};
  std::shared_ptr<canarynet::Context> impl;  // with the other ranks of this process that joined with this one
  int rank = 0;
  std::mutex mutex;  // handles only; never held while driving
  canarynet::Kept<canary_group> world;
  std::vector<canarynet::Kept<canary_group>> groups;
  std::vector<canarynet::Kept<canary_session>> sessions;
  std::vector<canarynet::Kept<canary_bundle>> bundles;
  std::vector<canarynet::Kept<canary_policy>> policies;
  std::vector<canarynet::Kept<canary_ratio>> ratios;
  std::vector<canarynet::Kept<canary_op>> ops;
  std::vector<canary_op*> free_ops;
  canarynet::CompletionBell bell;

  // `rings`: its completion shows at the context's descriptor.
  canary_op* take_op(canarynet::port::MemberId member, bool rings);
  void give_op(canary_op* op);
  void clear();
};

struct canary_group : canarynet::Handled {
  static constexpr std::uint8_t kKind = 0xC2;
  static constexpr const char* kName = "group";
  static constexpr const char* kEnds = "it was destroyed, or its context finalized";

  std::atomic<canary_context*> context{nullptr};
  canarynet::port::MemberId member;
  canarynet::port::MemberShape shape;
  std::atomic<std::uint32_t> inside{0};  // calls
  void clear() { member = {}; }
};

struct canary_session : canarynet::Handled {
  static constexpr std::uint8_t kKind = 0xC9;
  static constexpr const char* kName = "session";
  static constexpr const char* kEnds = "it was closed, or its context finalized";

  std::atomic<canary_context*> context{nullptr};
  canarynet::port::MemberId member;  // of its group
  std::uint64_t number = 0;
  int colayers = 0;
  int workers = 0;
  std::atomic<std::uint32_t> inside{0};  // calls
  void clear() { member = {}; }
};

struct canary_bundle : canarynet::Handled {
  static constexpr std::uint8_t kKind = 0xCA;
  static constexpr const char* kName = "bundle";
  static constexpr const char* kEnds = "it was destroyed, or its context finalized";

  std::atomic<canary_context*> context{nullptr};
  std::shared_ptr<canarynet::Bundle> bundle;
  std::atomic<std::uint32_t> inside{0};  // calls
  std::mutex mutex;                      // they take turns
  void clear();
};

struct canary_policy : canarynet::Handled {
  static constexpr std::uint8_t kKind = 0xCB;
  static constexpr const char* kName = "policy";
  static constexpr const char* kEnds = "it was closed, or its context finalized";

  std::atomic<canary_context*> context{nullptr};
  canarynet::port::MemberId member;  // of its group
  canarynet::port::MemberShape shape;
  std::uint64_t number = 0;
  std::atomic<std::uint32_t> inside{0};  // calls
  std::mutex mutex;                      // they take turns
  bool asks = false;                     // a coordinator
  bool leaves = false;
  bool over = false;         // nothing is left to be done
  bool interrupted = false;  // the iteration that runs is not wanted any more
  std::unique_ptr<canarynet::sync::WorkerPolicy> worker;
  canarynet::sync::PolicySpec spec;
  bool named = false;                  // an answer has named an exchange that is not over
  std::uint64_t owed = 0;              // its number
  canarynet::sync::WorkerSet members;  // and who takes part
  canarynet::sync::WorkerSet behind;
  // What the caller was told to do, and with whom.
  enum class Doing { kNothing, kTrain, kExchange, kFinish };
  Doing doing = Doing::kNothing;
  std::vector<int> ranks;
  std::vector<int> behind_ranks;
  canarynet::sync::Exchange exchange;
  bool ready = false;   // an exchange may be begun beside the iteration that runs
  bool beside = false;  // the exchange runs beside iterations
  bool waits = false;   // kFinish: nothing else is to be done before it has ended
  std::vector<std::byte> answer;
  std::shared_ptr<canarynet::ParameterExchange> parameters;  // that the program has lent
  void clear();
};

struct canary_ratio : canarynet::Handled {
  static constexpr std::uint8_t kKind = 0xCC;
  static constexpr const char* kName = "ratio";
  static constexpr const char* kEnds = "it was destroyed, or its context finalized";

  std::atomic<canary_context*> context{nullptr};
  std::shared_ptr<canarynet::RatioChoice> choice;
  std::atomic<std::uint32_t> inside{0};  // calls
  std::mutex mutex;                      // they take turns
  void clear();
};

struct canary_op : canarynet::Handled {
  static constexpr std::uint8_t kKind = 0xC3;
  static constexpr const char* kName = "op";
  static constexpr const char* kEnds = "its result was told, or its context finalized";

  std::atomic<canary_context*> context{nullptr};
  canarynet::OpTicket ticket;
  canarynet::port::MemberId member;
  std::vector<std::uint64_t> counts;  // of the operations that have them; keeps its memory for the next one
  bool taken = false;
  void clear() {
    taken = false;
    ticket.leave_table();
  }
};

namespace canarynet {

inline canary_context* context_of(canary_context& context) { return &context; }
template <typename T>
canary_context* context_of(T& of) {
  return of.context.load(std::memory_order_relaxed);
}

// Where a handle leads, while somebody is inside: its context stays until the call has left. Nowhere for one that has
// ended.
template <typename T>
class Inside {
 public:
  explicit Inside(const T* handle) {
    T* const found = HandlePool<T>::find(handle);
    if (found == nullptr) return;
    context_ = context_of(*found);
    context_->inside.fetch_add(1);  // seen by canary_finalize, or we see that it is closing
    if constexpr (std::is_same_v<T, canary_group> || std::is_same_v<T, canary_session> ||
                  std::is_same_v<T, canary_bundle> || std::is_same_v<T, canary_policy> ||
                  std::is_same_v<T, canary_ratio>) {
      (inside_ = &found->inside)->fetch_add(1);  // likewise, by the calls that end these
    }
    if constexpr (std::is_same_v<T, canary_op>) {
      if (HandlePool<T>::hold(handle, /*alone=*/false) != nullptr) op_ = found;
    }
    if (!context_->closing.load() && HandlePool<T>::find(handle) != nullptr) object_ = found;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() {
    if (inside_ != nullptr) inside_->fetch_sub(1, std::memory_order_release);
    if (op_ != nullptr && HandlePool<canary_op>::let_go(*op_)) context_->give_op(op_);
    if (context_ != nullptr) context_->inside.fetch_sub(1, std::memory_order_release);
  }
  explicit operator bool() const { return object_ != nullptr; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  canary_context& context() const { return *context_; }

 private:
  canary_context* context_ = nullptr;
  std::atomic<std::uint32_t>* inside_ = nullptr;
  canary_op* op_ = nullptr;
  T* object_ = nullptr;
};

// The result of a ticket. If it is not done, its context has left the job, and nothing touches its buffers any more.
Status result_of(const Context& context, OpTicket& ticket);
// The same for a caller, whose last error it becomes.
canary_status tell(const Context& context, OpTicket& ticket);

// Hands a command over and waits for its result. `make` makes it for its ticket's id.
template <typename Make>
Status run_command(canary_context& context, port::MemberId member, const Make& make) {
  canary_op* const op = context.take_op(member, false);
  Status result = context.impl->run(make(op->ticket.id()), op->ticket);
  if (result.ok()) result = result_of(*context.impl, op->ticket);
  context.give_op(op);
  return result;
}

// A group as what works with its operations sees it.
struct GroupPlace {
  canary_context* context;
  port::MemberId member;
  port::MemberShape shape;

  // An operation that all ranks call here, waited for.
  Status run(const OpRequest& request) const {
    return run_command(*context, member, [&](auto ticket) { return port::operation(member, shape, request, ticket); });
  }
};

// Returns when the caller is the only one inside of a closed handle: others have been told, and are about to leave.
void wait_until_alone(const std::atomic<std::uint32_t>& inside);

}  // namespace canarynet

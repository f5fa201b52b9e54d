// The C ABI over runtime/context.h: checks arguments, keeps handles, turns Status into codes and canary_last_error.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "canarynet/canarynet.h"
#include "control/unique_id.h"
#include "discovery/launcher.h"
#include "embed/count_lists.h"
#include "embed/handles.h"
#include "embed/last_error.h"
#include "embed/nic_stats.h"
#include "embed/op_options.h"
#include "runtime/local_ranks.h"
#include "runtime/meeting.h"

using namespace canarynet;

static_assert(sizeof(canary_unique_id) == control::kUniqueIdBytes);

// A context counts who is inside of its calls: canary_finalize turns away whoever comes, and waits for those.
struct canary_context : Handled {
  static constexpr std::uint8_t kKind = 0xC1;
  static constexpr const char* kName = "context";
  static constexpr const char* kEnds = "it was finalized";

  std::atomic<int> inside{0};
  std::atomic<bool> closing{false};
  std::shared_ptr<Context> impl;  // with the other ranks of this process that joined with this one
  int rank = 0;
  std::mutex mutex;  // handles only; never held while driving
  Kept<canary_group> world;
  std::vector<Kept<canary_group>> groups;
  std::vector<Kept<canary_op>> ops;
  std::vector<canary_op*> free_ops;
  CompletionBell bell;

  // `rings`: its completion shows at the context's descriptor.
  canary_op* take_op(port::MemberId member, bool rings);
  void give_op(canary_op* op);
  void clear();
};

struct canary_group : Handled {
  static constexpr std::uint8_t kKind = 0xC2;
  static constexpr const char* kName = "group";
  static constexpr const char* kEnds = "it was destroyed, or its context finalized";

  std::atomic<canary_context*> context{nullptr};
  port::MemberId member;
  port::MemberShape shape;
  std::atomic<std::uint32_t> inside{0};  // calls
  void clear() { member = {}; }
};

struct canary_op : Handled {
  static constexpr std::uint8_t kKind = 0xC3;
  static constexpr const char* kName = "op";
  static constexpr const char* kEnds = "its result was told, or its context finalized";

  std::atomic<canary_context*> context{nullptr};
  OpTicket ticket;
  port::MemberId member;
  std::vector<std::uint64_t> counts;  // of the operations that have them; keeps its memory for the next one
  bool taken = false;
  void clear() {
    taken = false;
    ticket.leave_table();
  }
};

canary_op* canary_context::take_op(port::MemberId member, bool rings) {
  const std::lock_guard lock(mutex);
  if (free_ops.empty()) {
    for (int i = 0; i < 64; ++i) {
      ops.emplace_back(HandlePool<canary_op>::take());
      ops.back()->context = this;
      impl->ticket_id(ops.back()->ticket);
      free_ops.reserve(ops.capacity());  // so that giving back can't fail
      free_ops.push_back(ops.back().get());
    }
  }
  canary_op* op = free_ops.back();
  free_ops.pop_back();
  op->ticket.reset();
  op->ticket.news = rings ? &bell.news() : nullptr;
  op->member = member;
  op->taken = true;
  return op;
}

void canary_context::give_op(canary_op* op) {
  const std::lock_guard lock(mutex);
  free_ops.push_back(op);
  op->taken = false;
}

void canary_context::clear() {
  free_ops.clear();
  ops.clear();
  groups.clear();
  world.reset();
  bell.close();
  impl.reset();
}

namespace {

Status not_told(const char* name) {
  return Status(
      CANARY_INVALID_SETTING,
      std::string(name) + " is not set, and neither canary_config nor a launcher (torchrun, Open MPI, SLURM) says it");
}

const char* environment(const char* name) { return std::getenv(name); }

// One that is known to be set.
Status environment_int(const char* name, int* value) {
  long long number = 0;
  bool set = false;
  if (Status s = read_number(environment, name, &number, &set, 65535); !s.ok()) return s;
  *value = static_cast<int>(number);
  return {};
}

Status read_config(const canary_config* config, ContextOptions* out) {
  canary_config c = CANARY_CONFIG_INIT;
  if (Status s = copy_config(config, &c); !s.ok()) return s;
  if (Status s = read_settings(config, &out->settings); !s.ok()) return s;
  if (c.unique_id != nullptr) {
    if (c.join != nullptr)
      return Status(CANARY_INVALID_ARGUMENT, "canary_config has both join and unique_id: one of them");
    out->settings.join = control::unique_id_text(c.unique_id->bytes);
    out->join_source = "canary_config.unique_id";
  }
  if (c.local_ranks != 0) {
    if (Status s = out->settings.set("local_ranks", std::to_string(c.local_ranks)); !s.ok())
      return s.wrap("canary_config.local_ranks");
  }
  int& rank = out->ranks.front();
  rank = c.rank;
  out->world_size = c.world_size;
  // Canary's own variables before any launcher's, whose may even be unreadable where nobody needs them.
  const bool own_size = c.world_size != 0 || std::getenv("CANARY_WORLD_SIZE") != nullptr;
  const bool own_rank = c.rank >= 0 || std::getenv("CANARY_RANK") != nullptr;
  if (c.world_size == 0 && own_size) {
    if (Status s = environment_int("CANARY_WORLD_SIZE", &out->world_size); !s.ok()) return s;
  }
  if (c.rank < 0 && own_rank) {
    if (Status s = environment_int("CANARY_RANK", &rank); !s.ok()) return s;
  }
  auto found = read_launch(environment);
  if (!found.ok() && (!own_size || !own_rank)) return found.status();
  const Launch launch = found.ok() ? found.take() : Launch{};
  if (!own_size) {
    if (launch.world_size == 0) return not_told("CANARY_WORLD_SIZE");
    out->world_size = launch.world_size;
  }
  if (!own_rank) {
    if (launch.rank < 0) return not_told("CANARY_RANK");
    rank = launch.rank;
  }
  if (out->settings.join.empty()) {
    out->settings.join = launch.join;
    out->join_source = launch.join_source;
    if (launch.join.empty() && out->world_size > 1 && !launch.no_join.empty())
      return Status(CANARY_INVALID_SETTING, launch.no_join);
  }
  if (out->world_size < 1 || out->world_size > 65535) {
    return Status(CANARY_INVALID_ARGUMENT,
                  "a world of " + std::to_string(out->world_size) + " ranks: takes 1 to 65535");
  }
  return {};
}

canary_context* context_of(canary_context& context) { return &context; }
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
    if constexpr (std::is_same_v<T, canary_group>) {
      (group_ = found)->inside.fetch_add(1);  // likewise, by canary_group_destroy
    }
    if (!context_->closing.load() && HandlePool<T>::find(handle) != nullptr) object_ = found;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() {
    if (group_ != nullptr) group_->inside.fetch_sub(1, std::memory_order_release);
    if (context_ != nullptr) context_->inside.fetch_sub(1, std::memory_order_release);
  }
  explicit operator bool() const { return object_ != nullptr; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  canary_context& context() const { return *context_; }

 private:
  canary_context* context_ = nullptr;
  canary_group* group_ = nullptr;
  T* object_ = nullptr;
};

// Of one that is not done: its context has left the job, and nothing touches its buffers any more.
canary_status tell(const Context& context, OpTicket& ticket) {
  if (!ticket.done()) ticket.finish(context.why_over());
  const auto code = static_cast<canary_status>(ticket.code.load(std::memory_order_acquire));
  if (code != CANARY_OK) report(ticket.status);
  return code;
}

canary_status finish(canary_context& context, canary_op* op) {
  const canary_status code = tell(*context.impl, op->ticket);
  context.give_op(op);
  return code;
}

// Of an operation with a handle: whoever closes it tells the result.
canary_status finish_handle(const char* call, canary_context& context, canary_op* op, canary_op* handle) {
  if (!HandlePool<canary_op>::close(*op)) return HandlePool<canary_op>::refuse(call, handle);
  return finish(context, op);
}

// The engine goes on for the process's other ranks: operations that this one leaves behind end now, since their handles
// and buffers do.
void end_pending(canary_context& context) {
  if (context.impl->ranks().size() == 1) return;  // the engine ends with them
  std::vector<canary_op*> left;
  {
    const std::lock_guard lock(context.mutex);
    for (const auto& op : context.ops) {
      if (op->taken && !op->ticket.done()) left.push_back(op.get());
    }
  }
  for (canary_op* op : left) {
    (void)context.impl->run(port::abort(op->member, "it was finalized with an operation pending"), op->ticket);
  }
}

void forget_groups(canary_context& context) {
  if (context.impl->ranks().size() == 1) return;
  for (const auto& group : context.groups) {
    context.impl->with_engine([&](Engine& e) { e.forget(group->member); });
  }
}

// Hands it over, and waits where no handle is asked for.
canary_status submit(canary_context& context, const port::Command& command, canary_op* op, canary_op** out) {
  const Status wrong = out == nullptr ? context.impl->run(command, op->ticket) : context.impl->submit(command);
  if (!wrong.ok()) {
    context.give_op(op);
    return report(wrong);
  }
  if (out == nullptr) return finish(context, op);
  *out = HandlePool<canary_op>::open(*op);
  return CANARY_OK;
}

// All collectives.
canary_status run(canary_group* handle, OpRequest request, const canary_op_options* options, canary_op** out,
                  std::initializer_list<CountList> lists = {}) {
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse(std::string(name_of(request.collective)), handle);
    if (Status s = read_options(options, &request.priority, &request.time_limit); !s.ok())
      return report(s.wrap(std::string(name_of(request.collective))));
    for (const CountList& list : lists) {
      if (list.numbers == nullptr && !list.displacements)
        return invalid(std::string(name_of(request.collective)) + ": counts are NULL");
    }
    canary_context& context = group.context();
    canary_op* op = context.take_op(group->member, out != nullptr);
    if (lists.size() != 0) {
      try {
        copy_counts(lists, static_cast<std::size_t>(group->shape.size), &op->counts);
      } catch (const std::bad_alloc&) {
        context.give_op(op);
        return report(Status(CANARY_LIMIT, "out of memory"));
      }
      request.counts = op->counts;
    }
    return submit(context, port::operation(group->member, group->shape, request, op->ticket.id()), op, out);
  });
}

// Sends and receives likewise. `make` makes the command for a ticket.
template <typename Make>
canary_status run_message(const char* name, canary_group* handle, const canary_op_options* options, canary_op** out,
                          const Make& make) {
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse(name, handle);
    port::Terms terms;
    if (Status s = read_options(options, &terms.priority, &terms.time_limit); !s.ok()) return report(s.wrap(name));
    canary_context& context = group.context();
    canary_op* op = context.take_op(group->member, out != nullptr);
    return submit(context, make(group->member, op->ticket.id(), terms), op, out);
  });
}

// Holding the engine, so nothing completes meanwhile.
Status open_bell(canary_context& context) {
  if (context.bell.fd() >= 0) return {};
  if (Status s = context.impl->add_bell(context.bell); !s.ok()) return s;
  // What has completed before anybody could hear of it.
  bool untold = false;
  const std::lock_guard lock(context.mutex);
  for (const auto& op : context.ops) untold |= op->taken && op->ticket.news != nullptr && op->ticket.done();
  if (untold) context.bell.ring();
  return {};
}

// Nobody is inside any more.
void close_bell(canary_context& context) {
  if (context.bell.fd() < 0) return;
  context.impl->with_engine([&](Engine&) { context.impl->remove_bell(context.bell); });
  context.bell.close();
}

constexpr auto kTurn = std::chrono::microseconds(200);

}  // namespace

extern "C" {

CANARY_API canary_status canary_get_unique_id(canary_unique_id* id) {
  return guarded([&]() -> canary_status {
    if (id == nullptr) return invalid("canary_get_unique_id: id is NULL");
    return report(make_unique_id(id->bytes));
  });
}

CANARY_API canary_status canary_init(const canary_config* config, canary_context** context) {
  return guarded([&]() -> canary_status {
    if (context == nullptr) return invalid("canary_init: context is NULL");
    ContextOptions options;
    if (Status s = read_config(config, &options); !s.ok()) return report(s);
    Kept<canary_context> c(HandlePool<canary_context>::take());
    c->rank = options.ranks.front();
    c->world.reset(HandlePool<canary_group>::take());
    c->world->context = c.get();
    auto impl = join_job(std::move(options));
    if (!impl.ok()) return report(impl.status());
    c->impl = impl.take();
    c->world->member = c->impl->world(c->rank);
    c->world->shape = {c->rank, c->impl->world_size()};
    c->closing = false;
    HandlePool<canary_group>::open(*c->world);
    *context = HandlePool<canary_context>::open(*c.release());
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_finalize(canary_context* handle) {
  return guarded([&]() -> canary_status {
    canary_context* context = nullptr;
    {
      const Inside<canary_context> inside(handle);
      if (!inside || inside->closing.exchange(true))
        return HandlePool<canary_context>::refuse("canary_finalize", handle);
      context = &*inside;
    }
    const bool alone = context->impl->ranks().size() == 1;
    if (alone) context->impl->leave(context->rank);  // whoever waits inside is told so
    for (end_pending(*context); context->inside.load() != 0; end_pending(*context)) std::this_thread::sleep_for(kTurn);
    if (!alone) {
      forget_groups(*context);
      context->impl->leave(context->rank);
    }
    close_bell(*context);
    HandlePool<canary_context>::give(context);
    return CANARY_OK;
  });
}

CANARY_API int canary_rank(const canary_context* handle) {
  const Inside<canary_context> context(handle);
  return context ? context->rank : -1;
}
CANARY_API int canary_world_size(const canary_context* handle) {
  const Inside<canary_context> context(handle);
  return context ? context->impl->world_size() : -1;
}
CANARY_API canary_group* canary_world(canary_context* handle) {
  const Inside<canary_context> context(handle);
  return context ? HandlePool<canary_group>::handle_of(*context->world) : nullptr;
}

CANARY_API canary_status canary_group_create(canary_context* handle, const int* ranks, int count,
                                             canary_group** group) {
  return guarded([&]() -> canary_status {
    if (handle == nullptr || ranks == nullptr || group == nullptr)
      return invalid("canary_group_create: a NULL argument");
    const Inside<canary_context> context(handle);
    if (!context) return HandlePool<canary_context>::refuse("canary_group_create", handle);
    Kept<canary_group> g(HandlePool<canary_group>::take());
    g->context = &*context;
    if (count < 1) {
      return invalid("canary_group_create: count " + std::to_string(count) + " in a world of " +
                     std::to_string(context->impl->world_size()));
    }
    OpTicket ticket;
    const std::span list(ranks, static_cast<std::size_t>(count));
    const Status wrong = context->impl->run(port::group(context->rank, list, context->impl->ticket_id(ticket)), ticket);
    if (!wrong.ok()) return report(wrong.wrap("canary_group_create"));
    if (const canary_status code = tell(*context->impl, ticket); code != CANARY_OK) return code;
    g->member = ticket.member;
    g->shape = ticket.shape;
    const std::lock_guard lock(context->mutex);
    context->groups.push_back(std::move(g));
    *group = HandlePool<canary_group>::open(*context->groups.back());
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_group_abort(canary_group* handle, const char* reason) {
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse("canary_group_abort", handle);
    // Until the engine has read the reason, which is the caller's.
    Context& context = *group.context().impl;
    OpTicket ticket;
    const char* const text = reason != nullptr ? reason : "no reason given";
    return report(context.run(port::abort(group->member, text, context.ticket_id(ticket)), ticket));
  });
}

CANARY_API canary_status canary_group_destroy(canary_group* handle) {
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse("canary_group_destroy", handle);
    canary_context& context = group.context();
    if (&*group == context.world.get()) return invalid("canary_group_destroy: the world lives as long as its context");
    const char* const pending = "canary_group_destroy: operations are pending";
    const char* wrong = context.impl->with_engine([&](Engine& e) -> const char* {
      if (e.pending(group->member)) return pending;
      return HandlePool<canary_group>::close(*group) ? nullptr
                                                     : "canary_group_destroy: another thread has destroyed the group";
    });
    if (wrong != nullptr) return invalid(wrong);
    // Threads that came before the handle was closed may still look at the member.
    while (group->inside.load() != 1) std::this_thread::sleep_for(kTurn);
    if (!context.impl->with_engine([&](Engine& e) { return e.forget(group->member); })) return invalid(pending);
    const std::lock_guard lock(context.mutex);
    std::erase_if(context.groups, [&](const auto& g) { return g.get() == &*group; });
    return CANARY_OK;
  });
}

CANARY_API int canary_group_rank(const canary_group* handle) {
  const Inside<canary_group> group(handle);
  return group ? group->shape.rank : -1;
}
CANARY_API int canary_group_size(const canary_group* handle) {
  const Inside<canary_group> group(handle);
  return group ? group->shape.size : -1;
}

CANARY_API canary_status canary_all_reduce(canary_group* group, const void* input, void* output, size_t count,
                                           canary_type type, canary_redop redop, canary_op** op) {
  return canary_all_reduce_with(group, input, output, count, type, redop, nullptr, op);
}
CANARY_API canary_status canary_all_reduce_with(canary_group* group, const void* input, void* output, size_t count,
                                                canary_type type, canary_redop redop, const canary_op_options* options,
                                                canary_op** op) {
  return run(group, {Collective::kAllReduce, input, output, count, type, redop}, options, op);
}

CANARY_API canary_status canary_reduce_scatter(canary_group* group, const void* input, void* output, size_t count,
                                               canary_type type, canary_redop redop, canary_op** op) {
  return canary_reduce_scatter_with(group, input, output, count, type, redop, nullptr, op);
}
CANARY_API canary_status canary_reduce_scatter_with(canary_group* group, const void* input, void* output, size_t count,
                                                    canary_type type, canary_redop redop,
                                                    const canary_op_options* options, canary_op** op) {
  return run(group, {Collective::kReduceScatter, input, output, count, type, redop}, options, op);
}

CANARY_API canary_status canary_all_gather(canary_group* group, const void* input, void* output, size_t count,
                                           canary_type type, canary_op** op) {
  return canary_all_gather_with(group, input, output, count, type, nullptr, op);
}
CANARY_API canary_status canary_all_gather_with(canary_group* group, const void* input, void* output, size_t count,
                                                canary_type type, const canary_op_options* options, canary_op** op) {
  return run(group, {Collective::kAllGather, input, output, count, type}, options, op);
}

CANARY_API canary_status canary_broadcast(canary_group* group, const void* input, void* output, size_t count,
                                          canary_type type, int root, canary_op** op) {
  return canary_broadcast_with(group, input, output, count, type, root, nullptr, op);
}
CANARY_API canary_status canary_broadcast_with(canary_group* group, const void* input, void* output, size_t count,
                                               canary_type type, int root, const canary_op_options* options,
                                               canary_op** op) {
  return run(group, {Collective::kBroadcast, input, output, count, type, CANARY_SUM, root}, options, op);
}

CANARY_API canary_status canary_reduce(canary_group* group, const void* input, void* output, size_t count,
                                       canary_type type, canary_redop redop, int root, canary_op** op) {
  return canary_reduce_with(group, input, output, count, type, redop, root, nullptr, op);
}
CANARY_API canary_status canary_reduce_with(canary_group* group, const void* input, void* output, size_t count,
                                            canary_type type, canary_redop redop, int root,
                                            const canary_op_options* options, canary_op** op) {
  return run(group, {Collective::kReduce, input, output, count, type, redop, root}, options, op);
}

CANARY_API canary_status canary_gather(canary_group* group, const void* input, void* output, size_t count,
                                       canary_type type, int root, canary_op** op) {
  return canary_gather_with(group, input, output, count, type, root, nullptr, op);
}
CANARY_API canary_status canary_gather_with(canary_group* group, const void* input, void* output, size_t count,
                                            canary_type type, int root, const canary_op_options* options,
                                            canary_op** op) {
  return run(group, {Collective::kGather, input, output, count, type, CANARY_SUM, root}, options, op);
}

CANARY_API canary_status canary_scatter(canary_group* group, const void* input, void* output, size_t count,
                                        canary_type type, int root, canary_op** op) {
  return canary_scatter_with(group, input, output, count, type, root, nullptr, op);
}
CANARY_API canary_status canary_scatter_with(canary_group* group, const void* input, void* output, size_t count,
                                             canary_type type, int root, const canary_op_options* options,
                                             canary_op** op) {
  return run(group, {Collective::kScatter, input, output, count, type, CANARY_SUM, root}, options, op);
}

CANARY_API canary_status canary_all_gather_v(canary_group* group, const void* input, void* output, const size_t* counts,
                                             canary_type type, canary_op** op) {
  return canary_all_gather_v_with(group, input, output, counts, type, nullptr, op);
}
CANARY_API canary_status canary_all_gather_v_with(canary_group* group, const void* input, void* output,
                                                  const size_t* counts, canary_type type,
                                                  const canary_op_options* options, canary_op** op) {
  return run(group, {Collective::kAllGatherV, input, output, 0, type}, options, op, {{counts}});
}

CANARY_API canary_status canary_all_to_all(canary_group* group, const void* input, void* output, size_t count,
                                           canary_type type, canary_op** op) {
  return canary_all_to_all_with(group, input, output, count, type, nullptr, op);
}
CANARY_API canary_status canary_all_to_all_with(canary_group* group, const void* input, void* output, size_t count,
                                                canary_type type, const canary_op_options* options, canary_op** op) {
  return run(group, {Collective::kAllToAll, input, output, count, type}, options, op);
}

CANARY_API canary_status canary_all_to_all_v(canary_group* group, const void* input, const size_t* send_counts,
                                             const size_t* send_displacements, void* output,
                                             const size_t* receive_counts, const size_t* receive_displacements,
                                             canary_type type, canary_op** op) {
  return canary_all_to_all_v_with(group, input, send_counts, send_displacements, output, receive_counts,
                                  receive_displacements, type, nullptr, op);
}
CANARY_API canary_status canary_all_to_all_v_with(canary_group* group, const void* input, const size_t* send_counts,
                                                  const size_t* send_displacements, void* output,
                                                  const size_t* receive_counts, const size_t* receive_displacements,
                                                  canary_type type, const canary_op_options* options, canary_op** op) {
  return run(group, {Collective::kAllToAllV, input, output, 0, type}, options, op,
             {{send_counts}, {send_displacements, true}, {receive_counts}, {receive_displacements, true}});
}

CANARY_API canary_status canary_barrier(canary_group* group, canary_op** op) {
  return canary_barrier_with(group, nullptr, op);
}
CANARY_API canary_status canary_barrier_with(canary_group* group, const canary_op_options* options, canary_op** op) {
  return run(group, {Collective::kBarrier, nullptr, nullptr, 0, CANARY_U8}, options, op);
}

CANARY_API canary_status canary_send(canary_group* group, const void* buffer, size_t count, canary_type type, int peer,
                                     canary_op** op) {
  return canary_send_with(group, buffer, count, type, peer, nullptr, op);
}
CANARY_API canary_status canary_send_with(canary_group* group, const void* buffer, size_t count, canary_type type,
                                          int peer, const canary_op_options* options, canary_op** op) {
  return run_message("send", group, options, op, [&](auto member, auto ticket, const port::Terms& terms) {
    return port::send(member, peer, buffer, count, type, ticket, terms);
  });
}

CANARY_API canary_status canary_recv(canary_group* group, void* buffer, size_t count, canary_type type, int peer,
                                     canary_op** op) {
  return canary_recv_with(group, buffer, count, type, peer, nullptr, op);
}
CANARY_API canary_status canary_recv_with(canary_group* group, void* buffer, size_t count, canary_type type, int peer,
                                          const canary_op_options* options, canary_op** op) {
  return run_message("recv", group, options, op, [&](auto member, auto ticket, const port::Terms& terms) {
    return port::receive(member, peer, buffer, count, type, ticket, terms);
  });
}

CANARY_API canary_status canary_op_test(canary_op* handle) {
  return guarded([&]() -> canary_status {
    const Inside<canary_op> op(handle);
    if (!op) return HandlePool<canary_op>::refuse("canary_op_test", handle);
    if (!op->ticket.done()) op.context().impl->nudge();
    if (!op->ticket.done() && !op.context().impl->over()) return CANARY_WOULD_BLOCK;
    return finish_handle("canary_op_test", op.context(), &*op, handle);
  });
}

CANARY_API canary_status canary_op_wait(canary_op* handle) {
  return guarded([&]() -> canary_status {
    const Inside<canary_op> op(handle);
    if (!op) return HandlePool<canary_op>::refuse("canary_op_wait", handle);
    op.context().impl->wait(op->ticket);
    return finish_handle("canary_op_wait", op.context(), &*op, handle);
  });
}

CANARY_API canary_status canary_context_fd(canary_context* handle, int* fd) {
  return guarded([&]() -> canary_status {
    if (fd == nullptr) return invalid("canary_context_fd: fd is NULL");
    const Inside<canary_context> context(handle);
    if (!context) return HandlePool<canary_context>::refuse("canary_context_fd", handle);
    const Status s = context->impl->with_engine([&](Engine&) { return open_bell(*context); });
    if (!s.ok()) return report(s.wrap("canary_context_fd"));
    *fd = context->bell.fd();
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_context_drain(canary_context* handle) {
  return guarded([&]() -> canary_status {
    const Inside<canary_context> context(handle);
    if (!context) return HandlePool<canary_context>::refuse("canary_context_drain", handle);
    if (context->bell.fd() < 0)
      return invalid("canary_context_drain: this context has no descriptor: canary_context_fd makes it");
    context->impl->answer_bell(context->bell);
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_op_set_deadline(canary_op* handle, uint64_t nanoseconds) {
  return guarded([&]() -> canary_status {
    const Inside<canary_op> op(handle);
    if (!op) return HandlePool<canary_op>::refuse("canary_op_set_deadline", handle);
    if (op->ticket.done()) return CANARY_OK;  // its group may have gone
    return report(op.context().impl->submit(port::deadline(op->member, op->ticket.id(), span_of(nanoseconds))));
  });
}

CANARY_API canary_status canary_stats(canary_context* handle, canary_nic_stats* nics, size_t capacity, size_t* count) {
  return guarded([&]() -> canary_status {
    if (handle == nullptr || count == nullptr || (nics == nullptr && capacity != 0))
      return invalid("canary_stats: a NULL argument");
    const Inside<canary_context> context(handle);
    if (!context) return HandlePool<canary_context>::refuse("canary_stats", handle);
    context->impl->with_engine([&](Engine& e) {
      const auto rails = e.rails();
      *count = 0;
      for (std::size_t i = 0; i < rails.size(); ++i) {
        const RailStats r = e.rail_stats(static_cast<int>(i));
        if (!is_listed(rails[i], r)) continue;
        if (++*count > capacity) continue;
        nics[*count - 1] = nic_stats(rails[i], r, e.kernel_tx_bytes(static_cast<int>(i)));
      }
    });
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_mem_alloc(canary_context* handle, size_t bytes, void** memory) {
  return guarded([&]() -> canary_status {
    if (handle == nullptr || memory == nullptr) return invalid("canary_mem_alloc: a NULL argument");
    const Inside<canary_context> context(handle);
    if (!context) return HandlePool<canary_context>::refuse("canary_mem_alloc", handle);
    auto made = context->impl->allocate(bytes);
    if (!made.ok()) return report(made.status().wrap("canary_mem_alloc"));
    *memory = made.value();
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_mem_free(canary_context* handle, void* memory) {
  return guarded([&]() -> canary_status {
    const Inside<canary_context> context(handle);
    if (!context) return HandlePool<canary_context>::refuse("canary_mem_free", handle);
    if (memory == nullptr) return CANARY_OK;
    return report(context->impl->release(memory).wrap("canary_mem_free"));
  });
}

CANARY_API const char* canary_group_algorithm(const canary_group* handle) {
  const Inside<canary_group> group(handle);
  // The names are constants of the library; the engine only switches between them.
  return group ? group.context().impl->algorithm(group->member) : "";
}

}  // extern "C"

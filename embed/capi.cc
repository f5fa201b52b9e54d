// The C ABI of contexts and groups, over runtime/context.h: keeps handles, turns Status into codes and
// canary_last_error.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "canarynet/canarynet.h"
#include "control/unique_id.h"
#include "discovery/launcher.h"
#include "embed/context_handles.h"
#include "embed/last_error.h"
#include "embed/nic_stats.h"
#include "runtime/local_ranks.h"
#include "runtime/meeting.h"

using namespace canarynet;

static_assert(sizeof(canary_unique_id) == control::kUniqueIdBytes);

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
  for (const auto& session : context.sessions) {
    OpTicket ticket;
    const auto id = context.impl->ticket_id(ticket);
    (void)context.impl->run(port::close_session(session->member, session->number, id), ticket);
  }
  for (const auto& policy : context.policies) {
    if (!policy->asks) continue;
    OpTicket ticket;
    const auto id = context.impl->ticket_id(ticket);
    (void)context.impl->run(port::close_policy(policy->member, policy->number, id), ticket);
  }
  for (const auto& group : context.groups) {
    context.impl->with_engine([&](Engine& e) { e.forget(group->member); });
  }
}

// Holding the engine, so nothing completes meanwhile.
Status open_bell(canary_context& context) {
  if (context.bell.fd() >= 0) return {};
  if (Status s = context.impl->add_bell(context.bell); !s.ok()) return s;
  // Operations may have completed before anybody could hear of it.
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
    std::optional<ContextOptions> options;
    bool read = false;
    try {
      options.emplace();
      if (Status s = read_config(config, &*options); !s.ok()) return report(s);
      read = true;
      Kept<canary_context> c(HandlePool<canary_context>::take());
      c->rank = options->ranks.front();
      c->world.reset(HandlePool<canary_group>::take());
      c->world->context = c.get();
      auto impl = join_job(*options);
      if (!impl.ok()) return report(impl.status());
      c->impl = impl.take();
      c->world->member = c->impl->world(c->rank);
      c->world->shape = {c->rank, c->impl->world_size()};
      c->closing = false;
      HandlePool<canary_group>::open(*c->world);
      *context = HandlePool<canary_context>::open(*c.release());
      return CANARY_OK;
    } catch (const std::bad_alloc&) {
      // Which gathering it would have come to is not known before its settings have been read.
      if (!read || !options->settings.join.empty()) cannot_join(read ? options->settings.join : "");
      throw;
    }
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
    wait_until_alone(group->inside);
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

CANARY_API canary_status canary_explain(const canary_group* handle, const char* collective, uint64_t bytes, char* text,
                                        size_t size) {
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse("canary_explain", handle);
    Collective which{};
    if (text == nullptr || size == 0 || collective == nullptr || !parse(std::string_view(collective), &which)) {
      return report(Status(CANARY_INVALID_ARGUMENT, text == nullptr || size == 0
                                                        ? "canary_explain: there is no room for a text"
                                                        : "canary_explain: there is no such collective"));
    }
    const std::string why = group.context().impl->explain(group->member, which, bytes);
    const std::size_t length = std::min(why.size(), size - 1);
    std::memcpy(text, why.data(), length);
    text[length] = 0;
    return CANARY_OK;
  });
}

}  // extern "C"

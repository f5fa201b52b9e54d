// The C ABI of policies: a worker's part (sync/policy.h) decides here, in the caller's thread; what it asks goes
// through the engine to the coordinator (engine/policy_operations.cc).
#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "canarynet/canarynet.h"
#include "embed/context_handles.h"
#include "embed/in_turn.h"
#include "embed/last_error.h"
#include "embed/op_options.h"
#include "embed/parameter_exchange.h"
#include "engine/policy_words.h"
#include "sync/policy_name.h"

using namespace canarynet;

void canary_policy::clear() {
  member = {};
  worker.reset();
  parameters.reset();
}

namespace {

using sync::Exchange;
using sync::PolicySpec;
using sync::Task;
using Doing = canary_policy::Doing;

Nanos now(canary_policy& policy) { return context_of(policy)->impl->now(); }

// Hands one of its commands over and waits for the result.
template <typename Make>
Status ask(canary_policy& policy, const Make& make) {
  return run_command(*context_of(policy), policy.member, make);
}

bool is_esync(const PolicySpec& spec) {
  return spec.kind == PolicySpec::Kind::kEsync || spec.kind == PolicySpec::Kind::kEsyncNonBlocking;
}

Status check(const PolicySpec& spec, const std::string& name) {
  using Kind = PolicySpec::Kind;
  const bool esync = is_esync(spec);
  const bool runs =
      spec.kind == Kind::kRipples || spec.kind == Kind::kRipplesStatic || spec.kind == Kind::kDiloco || esync;
  if (spec.is_session()) return bad("policy " + name + " exchanges through a session: canary_session_open runs it");
  if (!runs) return bad("policy " + name + " runs in canary-sim only; here: ripples, esync, esync-nb, diloco");
  if (esync && spec.outer_rate != 1) return bad("policy " + name + " takes the mean: rate is 1");
  return {};
}

// A program that lends ESync no parameters takes their mean, which is that of the deltas as long as all have begun with
// the same ones, and makes them so again after an exchange that failed for some.
bool of_deltas(const canary_policy& policy) {
  return policy.spec.kind == PolicySpec::Kind::kDiloco || (is_esync(policy.spec) && policy.parameters != nullptr);
}

// Takes one answer, if there is one; waits for it where `waits`. *came: there was one.
Status take_answer(canary_policy& policy, bool waits, bool* came) {
  Status told = ask(policy, [&](auto ticket) {
    return port::next_answer(policy.member, policy.number, policy.answer, waits, ticket);
  });
  *came = false;
  if (!told.ok()) return told;
  sync::Answer answer;
  const auto got = read_answer(policy.answer, policy.shape.rank, &policy.members, &policy.behind, &answer);
  if (!got.ok()) return got.status();
  if (got.value() == Heard::kNothing) return {};
  *came = true;
  if (got.value() == Heard::kLast) {
    policy.over = true;
    return {};
  }
  if (answer.members != nullptr) {
    if (policy.named) return Status(CANARY_INTERNAL, "two exchanges at a time");
    policy.named = true;
    policy.owed = static_cast<std::uint64_t>(answer.number);
  }
  using Reaction = sync::WorkerPolicy::Reaction;
  const bool heard = !policy.leaves || of_deltas(policy);  // what a delta is, its worker knows
  const Reaction reaction = heard ? policy.worker->answered(now(policy), answer) : Reaction::kNone;
  policy.interrupted |= reaction == Reaction::kInterrupt;
  policy.ready |= reaction == Reaction::kBeside;
  return {};
}

// The ranks of an exchange: of one that was decided here without those who are gone.
Status list_ranks(canary_policy& policy, const Exchange& exchange) {
  const sync::WorkerSet* const members = policy.named ? &policy.members : exchange.members;
  policy.ranks.clear();
  std::vector<std::uint64_t> hosts;
  std::vector<bool> gone;
  if (!policy.asks &&
      !context_of(policy)->impl->with_engine([&](Engine& e) { return e.look_around(policy.member, &hosts, &gone); }))
    return bad("its group has been destroyed");
  for (int rank = 0; rank < policy.shape.size; ++rank) {
    const bool left_out = !policy.asks && gone[static_cast<std::size_t>(rank)] && rank != policy.shape.rank;
    if (!left_out && (members == nullptr || members->has(rank))) policy.ranks.push_back(rank);
  }
  return {};
}

void exchanged(canary_policy& policy, bool well) {
  policy.named = policy.beside = false;
  if (policy.leaves) return;
  if (well) {
    policy.worker->exchanged(now(policy));
  } else {
    policy.worker->exchange_failed(now(policy));
  }
}

// Handing over takes a number, too.
std::uint64_t number_of(const canary_policy& policy) {
  const auto number = static_cast<std::uint64_t>(policy.exchange.number) * (of_deltas(policy) ? 2 : 1);
  return policy.number << 32 | (number & UINT32_MAX);  // apart from those of the group's other policies
}

void tell(canary_policy& policy, Doing doing, canary_task* task) {
  const std::size_t size = task->struct_size;
  policy.doing = doing;
  policy.interrupted = false;
  *task = CANARY_TASK_INIT;
  task->struct_size = size;
  task->kind = doing == Doing::kTrain ? CANARY_TASK_TRAIN : CANARY_TASK_DONE;
  if (doing != Doing::kExchange && doing != Doing::kFinish) return;
  task->kind = doing == Doing::kExchange ? CANARY_TASK_MEAN : CANARY_TASK_FINISH;
  const Exchange& e = policy.exchange;
  task->count = static_cast<int>(policy.ranks.size());
  task->ranks = policy.ranks.data();
  task->number = number_of(policy);
  task->beside = e.beside ? 1 : 0;
  if (!of_deltas(policy)) return;
  task->of = CANARY_MEAN_OF_DELTAS;
  task->part = e.partition;
  task->parts = e.partitions;
  task->counted = e.counted ? 1 : 0;
  task->source = e.source;
  task->behind_count = static_cast<int>(policy.behind_ranks.size());
  task->behind = policy.behind_ranks.data();
}

// What it takes to begin it.
Status note_exchange(canary_policy& policy, const Exchange& exchange) {
  if (Status s = list_ranks(policy, exchange); !s.ok()) return s;
  policy.exchange = exchange;
  policy.behind_ranks.clear();
  for (int rank = exchange.behind != nullptr ? exchange.behind->next() : -1; rank >= 0;
       rank = exchange.behind->next(rank + 1))
    policy.behind_ranks.push_back(rank);
  policy.beside = exchange.beside;
  policy.ready = false;
  return {};
}

Status tell_exchange(canary_policy& policy, const Exchange& exchange, canary_task* task) {
  if (Status s = note_exchange(policy, exchange); !s.ok()) return s;
  tell(policy, Doing::kExchange, task);
  return {};
}

Status tell_finish(canary_policy& policy, bool waits, canary_task* task) {
  policy.waits = waits;
  tell(policy, Doing::kFinish, task);
  return {};
}

// What a worker that leaves still owes to others.
Status next_owed(canary_policy& policy, canary_task* task) {
  if (policy.beside) return tell_finish(policy, /*waits=*/true, task);
  bool came = true;
  while (!policy.over && !policy.named) {
    if (Status s = take_answer(policy, /*waits=*/true, &came); !s.ok()) return s;
  }
  if (!policy.named) {
    tell(policy, Doing::kNothing, task);
    return {};
  }
  Exchange owed;
  owed.number = static_cast<std::int64_t>(policy.owed);
  if (of_deltas(policy)) owed = policy.worker->next(now(policy)).exchange;
  owed.beside = false;
  return tell_exchange(policy, owed, task);
}

Status next(canary_policy& policy, canary_task* task) {
  if (policy.leaves) return next_owed(policy, task);
  for (;;) {
    for (bool came = policy.asks; came;) {
      if (Status s = take_answer(policy, /*waits=*/false, &came); !s.ok()) return s;
    }
    // What runs beside iterations is taken as soon as it has come, between two of them.
    if (policy.beside && policy.parameters && policy.parameters->ended())
      return tell_finish(policy, /*waits=*/false, task);
    const Task what = policy.worker->next(now(policy));
    switch (what.kind) {
      case Task::Kind::kAsk: {
        const auto words = write_question(what.question);
        Status asked =
            ask(policy, [&](auto ticket) { return port::ask_policy(policy.member, policy.number, words, ticket); });
        if (!asked.ok()) return asked;
        break;
      }
      case Task::Kind::kWait: {
        if (policy.beside) return tell_finish(policy, /*waits=*/true, task);
        bool came = false;
        if (Status s = take_answer(policy, /*waits=*/true, &came); !s.ok()) return s;
        break;
      }
      case Task::Kind::kTrain:
        tell(policy, Doing::kTrain, task);
        return {};
      case Task::Kind::kExchange:
        if (Status s = tell_exchange(policy, what.exchange, task); !s.ok()) return s;
        if (policy.ranks.size() >= 2 || of_deltas(policy)) return {};  // an outer step is made alone, too
        exchanged(policy, true);
        break;
    }
  }
}

Status begin(canary_policy& policy) {
  const Exchange& e = policy.exchange;
  return policy.parameters->begin(
      {policy.ranks, number_of(policy), e.partition, e.counted, policy.shape.rank, e.source, policy.behind_ranks});
}

// Begins the exchange that was told, or takes what has come of it.
Status exchange(canary_policy& policy) {
  ParameterExchange& parameters = *policy.parameters;
  const bool begins = policy.doing == Doing::kExchange;
  policy.doing = Doing::kNothing;
  bool applied = false;
  Status status;
  if (begins) {
    status = begin(policy);
    if (status.ok() && policy.beside) return {};
  } else if (parameters.running()) {
    status = parameters.go_on(&applied);
  }
  while (status.ok() && parameters.running() && (begins || policy.waits)) status = parameters.go_on(&applied);
  if (parameters.running()) return {};
  exchanged(policy, applied);
  return applied ? Status() : status;
}

// While an iteration runs, whose parameters stay as they are: what others wait for.
Status go_on_beside(canary_policy& policy) {
  ParameterExchange& parameters = *policy.parameters;
  if (policy.beside && parameters.goes_on_beside()) {
    bool applied = false;
    Status status = parameters.go_on(&applied);
    if (!status.ok()) exchanged(policy, false);
    return status;
  }
  if (!policy.ready) return {};
  if (Status s = note_exchange(policy, policy.worker->next(now(policy)).exchange); !s.ok()) return s;
  Status begun = begin(policy);
  if (!begun.ok()) exchanged(policy, false);
  return begun;
}

}  // namespace

extern "C" {

CANARY_API canary_status canary_policy_check(const char* name, int* by_session) {
  constexpr const char* kName = "policy_check";
  return guarded([&]() -> canary_status {
    if (name == nullptr || by_session == nullptr) return report(bad("an argument is NULL").wrap(kName));
    const auto spec = sync::parse_policy(name);
    if (!spec.ok()) return report(spec.status().wrap(kName));
    const bool session = spec.value().is_session();
    if (Status s = session ? Status() : check(spec.value(), name); !s.ok()) return report(s.wrap(kName));
    *by_session = session ? 1 : 0;
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_policy_open(canary_group* handle, const canary_policy_options* options,
                                            canary_policy** policy) {
  constexpr const char* kName = "policy_open";
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse(kName, handle);
    const auto refuse = [&](const Status& why) { return report(why.wrap(kName)); };
    if (policy == nullptr) return refuse(bad("policy is NULL"));
    if (options == nullptr) return refuse(bad("options are NULL"));
    if (options->struct_size != sizeof *options)
      return refuse(wrong_size(options->struct_size, sizeof *options, "CANARY_POLICY_OPTIONS_INIT"));
    if (options->name == nullptr) return refuse(bad("name is NULL"));
    if (options->number > UINT32_MAX)
      return refuse(bad("number " + std::to_string(options->number) + " (0 to " + std::to_string(UINT32_MAX) + ")"));
    if (options->iteration < 0) return refuse(bad("an iteration of " + std::to_string(options->iteration) + " ns"));
    const auto spec = sync::parse_policy(options->name);
    if (!spec.ok()) return refuse(spec.status());
    if (Status s = check(spec.value(), options->name); !s.ok()) return refuse(s);
    canary_context& context = group.context();
    std::vector<std::uint64_t> hosts;
    std::vector<bool> gone;
    if (!context.impl->with_engine([&](Engine& e) { return e.look_around(group->member, &hosts, &gone); }))
      return refuse(bad("its group has been destroyed"));
    sync::Cluster cluster;
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      const int host = options->hosts != nullptr ? options->hosts[i] : static_cast<int>(hosts[i]);
      if (host < 0 || host >= group->shape.size)
        return refuse(bad("host " + std::to_string(host) + " of rank " + std::to_string(i)));
      hosts[i] = static_cast<std::uint64_t>(host);
      cluster.host_of.push_back(host);
    }
    if (Status s = sync::check(spec.value(), cluster); !s.ok()) return refuse(s);
    Kept<canary_policy> made(HandlePool<canary_policy>::take());
    made->context = &context;
    made->member = group->member;
    made->shape = group->shape;
    made->number = options->number;
    made->asks = spec.value().asks();
    made->named = made->leaves = made->over = made->interrupted = false;
    made->beside = made->waits = made->ready = false;
    made->doing = Doing::kNothing;
    made->spec = spec.value();
    made->members = made->behind = sync::WorkerSet(group->shape.size);
    made->ranks.reserve(static_cast<std::size_t>(group->shape.size));
    made->behind_ranks.reserve(static_cast<std::size_t>(group->shape.size));
    made->answer.resize(port::policy_answer_bytes(static_cast<std::uint64_t>(group->shape.size)));
    made->worker = sync::make_worker(spec.value(), cluster, group->shape.rank, Nanos{options->iteration});
    {
      const std::lock_guard lock(context.mutex);
      context.policies.reserve(context.policies.size() + 1);
    }
    if (made->asks) {
      const Status opened = run_command(context, group->member, [&](auto ticket) {
        return port::open_policy(group->member, options->number, options->name, hosts, ticket);
      });
      if (!opened.ok()) return refuse(opened);
    }
    const std::lock_guard lock(context.mutex);
    context.policies.push_back(std::move(made));
    *policy = HandlePool<canary_policy>::open(*context.policies.back());
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_policy_next(canary_policy* handle, canary_task* task) {
  return in_turn("policy_next", handle, [&](canary_policy& policy) -> Status {
    if (task == nullptr) return bad("task is NULL");
    if (task->struct_size != sizeof *task) return wrong_size(task->struct_size, sizeof *task, "CANARY_TASK_INIT");
    return next(policy, task);
  });
}

CANARY_API canary_status canary_policy_trained(canary_policy* handle, int64_t nanoseconds) {
  return in_turn("policy_trained", handle, [&](canary_policy& policy) -> Status {
    if (nanoseconds < 0) return bad("an iteration of " + std::to_string(nanoseconds) + " ns");
    if (policy.doing != Doing::kTrain) return bad("its task is not to train");
    policy.doing = Doing::kNothing;
    policy.worker->trained(now(policy), Nanos{nanoseconds});
    return {};
  });
}

CANARY_API canary_status canary_policy_poll(canary_policy* handle, int* interrupted) {
  return in_turn("policy_poll", handle, [&](canary_policy& policy) -> Status {
    if (interrupted == nullptr) return bad("interrupted is NULL");
    if (policy.doing != Doing::kTrain) return bad("its task is not to train");
    for (bool came = policy.asks && !policy.leaves; came;) {
      if (Status s = take_answer(policy, /*waits=*/false, &came); !s.ok()) return s;
    }
    *interrupted = policy.interrupted ? 1 : 0;
    return policy.parameters && !policy.leaves ? go_on_beside(policy) : Status();
  });
}

namespace {

Status end_exchange(canary_policy& policy, bool well) {
  const bool told = policy.doing == Doing::kExchange || policy.doing == Doing::kFinish;
  if (!told && !policy.beside) return bad("its task is no exchange");
  if (policy.parameters && policy.parameters->running()) return bad("canary_policy_exchange has begun it, and ends it");
  if (told) policy.doing = Doing::kNothing;
  exchanged(policy, well);
  return {};
}

}  // namespace

CANARY_API canary_status canary_policy_exchanged(canary_policy* handle) {
  return in_turn("policy_exchanged", handle, [&](canary_policy& policy) { return end_exchange(policy, true); });
}

CANARY_API canary_status canary_policy_exchange_failed(canary_policy* handle) {
  return in_turn("policy_exchange_failed", handle, [&](canary_policy& policy) { return end_exchange(policy, false); });
}

CANARY_API canary_status canary_policy_lend(canary_policy* handle, float* parameters, size_t count,
                                            const canary_op_options* options) {
  return in_turn("policy_lend", handle, [&](canary_policy& policy) -> Status {
    OptionsRead read;
    if (Status s = read_options(options, /*takes_codec=*/true, &read); !s.ok()) return s;
    if (read.rows != 0) return bad("a matrix of " + std::to_string(read.rows) + " rows");
    if (parameters == nullptr) return bad("parameters are NULL");
    if (count == 0) return bad("there are no parameters");
    if (policy.parameters) return bad("it has parameters already");
    if (policy.doing == Doing::kExchange || policy.beside) return bad("an exchange has begun without them");
    std::optional<sync::LocalUpdates::Options> deltas;
    if (policy.spec.kind == PolicySpec::Kind::kDiloco || is_esync(policy.spec)) deltas = policy.spec.updates();
    if (deltas && static_cast<std::size_t>(deltas->parts) > count)
      return bad(std::to_string(count) + " parameters are fewer than the " + std::to_string(deltas->parts) +
                 " fragments of policy " + sync::to_string(policy.spec));
    policy.parameters = std::make_shared<ParameterExchange>(*context_of(policy), policy.member,
                                                            std::span(parameters, count), read, deltas);
    return {};
  });
}

CANARY_API canary_status canary_policy_exchange(canary_policy* handle, uint64_t deadline) {
  return in_turn("policy_exchange", handle, [&](canary_policy& policy) -> Status {
    if (!policy.parameters) return bad("it has no parameters: canary_policy_lend gives it some");
    if (policy.doing != Doing::kExchange && policy.doing != Doing::kFinish) return bad("its task is no exchange");
    policy.parameters->limit(span_of(deadline));
    return exchange(policy);
  });
}

CANARY_API canary_status canary_policy_common(canary_policy* handle, float* parameters, size_t count) {
  return in_turn("policy_common", handle, [&](canary_policy& policy) -> Status {
    if (parameters == nullptr) return bad("parameters are NULL");
    if (!policy.parameters) return bad("it has no parameters: canary_policy_lend gives it some");
    if (count != policy.parameters->size())
      return bad(std::to_string(count) + " parameters, and it has " + std::to_string(policy.parameters->size()));
    const std::span<const float> common = policy.parameters->common();
    std::copy(common.begin(), common.end(), parameters);
    return {};
  });
}

CANARY_API canary_status canary_policy_leave(canary_policy* handle) {
  return in_turn("policy_leave", handle, [&](canary_policy& policy) -> Status {
    if (policy.doing == Doing::kExchange || policy.doing == Doing::kFinish) return bad("its exchange is not over");
    if (policy.leaves) return {};
    policy.leaves = true;
    policy.over = !policy.asks;
    if (!policy.asks) return {};
    return ask(policy, [&](auto ticket) { return port::leave_policy(policy.member, policy.number, ticket); });
  });
}

CANARY_API canary_status canary_policy_close(canary_policy* handle) {
  constexpr const char* kName = "policy_close";
  return guarded([&]() -> canary_status {
    const Inside<canary_policy> policy(handle);
    if (!policy || !HandlePool<canary_policy>::close(*policy, handle))
      return HandlePool<canary_policy>::refuse(kName, handle);
    canary_context& context = policy.context();
    Status closed;
    if (policy->asks) {
      closed = ask(*policy, [&](auto ticket) { return port::close_policy(policy->member, policy->number, ticket); });
    }
    // Whoever waited for an answer has been told, and is about to leave.
    wait_until_alone(policy->inside);
    if (policy->parameters) policy->parameters->drop();
    const std::lock_guard lock(context.mutex);
    std::erase_if(context.policies, [&](const auto& p) { return p.get() == &*policy; });
    return closed.ok() ? CANARY_OK : report(closed.wrap(kName));
  });
}

}  // extern "C"

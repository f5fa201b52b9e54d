// The C ABI of operations: collectives, sends and receives of a group, and what is asked of those that are under way.
// Their arguments are checked by the port (port/command_check.h).
#include <bit>
#include <initializer_list>
#include <new>
#include <string>

#include "canarynet/canarynet.h"
#include "embed/context_handles.h"
#include "embed/count_lists.h"
#include "embed/last_error.h"
#include "embed/op_options.h"

using namespace canarynet;

namespace {

// The call that closes an operation's handle tells the result, and the last call inside gives the operation back.
canary_status finish(const char* call, const Inside<canary_op>& op, canary_op* handle) {
  if (!HandlePool<canary_op>::close(*op)) return HandlePool<canary_op>::refuse(call, handle);
  HandlePool<canary_op>::let_go(*op);
  return tell(*op.context().impl, op->ticket);
}

// Hands it over, and waits where no handle is asked for.
canary_status submit(canary_context& context, const port::Command& command, canary_op* op, canary_op** out) {
  const Status wrong = out == nullptr ? context.impl->run(command, op->ticket) : context.impl->submit(command);
  if (wrong.ok() && out != nullptr) {
    *out = HandlePool<canary_op>::open(*op);
    return CANARY_OK;
  }
  const canary_status code = wrong.ok() ? tell(*context.impl, op->ticket) : report(wrong);
  context.give_op(op);
  return code;
}

// All collectives.
canary_status run(canary_group* handle, OpRequest request, const canary_op_options* options, canary_op** out,
                  std::initializer_list<CountList> lists = {}) {
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse(std::string(name_of(request.collective)), handle);
    OptionsRead read;
    if (Status s = read_options(options, request.collective == Collective::kAllReduce, &read); !s.ok())
      return report(s.wrap(std::string(name_of(request.collective))));
    request.priority = read.priority;
    request.time_limit = read.time_limit;
    request.codec = read.codec;
    request.tensor = read.tensor;
    request.momentum = read.momentum;
    request.rows = read.rows;
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
        return report(no_memory());
      }
      request.counts = op->counts;
    }
    return submit(context, port::operation(group->member, group->shape, request, op->ticket.id()), op, out);
  });
}

Status check_among(const canary_partial* among) {
  if (among == nullptr) return bad("among is NULL");
  if (among->struct_size != sizeof *among) return wrong_size(among->struct_size, sizeof *among, "CANARY_PARTIAL_INIT");
  if (among->reserved != 0) return bad("reserved is not 0");
  if (among->ranks == nullptr) return bad("ranks are NULL");
  if (among->count > 0) return {};
  return bad("a list of " + std::to_string(among->count) + " ranks");
}

canary_status run_partial(canary_group* handle, const canary_partial* among, OpRequest request,
                          const canary_op_options* options, canary_op** out) {
  constexpr const char* kName = "partial_all_reduce";
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse(kName, handle);
    OptionsRead read;
    if (Status s = read_options(options, /*takes_codec=*/true, &read); !s.ok()) return report(s.wrap(kName));
    if (read.rows != 0) return report(bad("a matrix of " + std::to_string(read.rows) + " rows").wrap(kName));
    if (Status s = check_among(among); !s.ok()) return report(s.wrap(kName));
    // Refused before any of it is read: the list may be as long as it says.
    if (among->count > group->shape.size) {
      return report(Status(CANARY_INVALID_ARGUMENT,
                           std::to_string(among->count) + " ranks of a group of " + std::to_string(group->shape.size))
                        .wrap(kName));
    }
    request.priority = read.priority;
    request.time_limit = read.time_limit;
    canary_context& context = group.context();
    canary_op* op = context.take_op(group->member, out != nullptr);
    try {
      op->counts.clear();
      op->counts.push_back(among->number);
      op->counts.push_back(std::bit_cast<std::uint64_t>(among->weight != nullptr ? *among->weight : 1.0));
      op->counts.push_back(read.codec);
      op->counts.push_back(read.tensor);
      op->counts.push_back(std::bit_cast<std::uint32_t>(read.momentum));
      for (int i = 0; i < among->count; ++i)
        op->counts.push_back(static_cast<std::uint64_t>(std::int64_t{among->ranks[i]}));
    } catch (const std::bad_alloc&) {
      context.give_op(op);
      return report(no_memory());
    }
    return submit(context, port::partial(group->member, request, op->counts, among->weight != nullptr, op->ticket.id()),
                  op, out);
  });
}

// Sends and receives likewise. `make` makes the command for a ticket.
template <typename Make>
canary_status run_message(const char* name, canary_group* handle, const canary_op_options* options, canary_op** out,
                          const Make& make) {
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse(name, handle);
    OptionsRead read;
    if (Status s = read_options(options, /*takes_codec=*/false, &read); !s.ok()) return report(s.wrap(name));
    const port::Terms terms{read.priority, read.time_limit};
    canary_context& context = group.context();
    canary_op* op = context.take_op(group->member, out != nullptr);
    return submit(context, make(group->member, op->ticket.id(), terms), op, out);
  });
}

}  // namespace

extern "C" {

CANARY_API canary_status canary_all_reduce(canary_group* group, const void* input, void* output, size_t count,
                                           canary_type type, canary_redop redop, canary_op** op) {
  return canary_all_reduce_with(group, input, output, count, type, redop, nullptr, op);
}
CANARY_API canary_status canary_all_reduce_with(canary_group* group, const void* input, void* output, size_t count,
                                                canary_type type, canary_redop redop, const canary_op_options* options,
                                                canary_op** op) {
  return run(group, {Collective::kAllReduce, input, output, count, type, redop}, options, op);
}

CANARY_API canary_status canary_partial_all_reduce(canary_group* group, const canary_partial* among, const void* input,
                                                   void* output, size_t count, canary_type type, canary_redop redop,
                                                   canary_op** op) {
  return canary_partial_all_reduce_with(group, among, input, output, count, type, redop, nullptr, op);
}
CANARY_API canary_status canary_partial_all_reduce_with(canary_group* group, const canary_partial* among,
                                                        const void* input, void* output, size_t count, canary_type type,
                                                        canary_redop redop, const canary_op_options* options,
                                                        canary_op** op) {
  return run_partial(group, among, {Collective::kAllReduce, input, output, count, type, redop}, options, op);
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
    return finish("canary_op_test", op, handle);
  });
}

CANARY_API canary_status canary_op_wait(canary_op* handle) {
  return guarded([&]() -> canary_status {
    const Inside<canary_op> op(handle);
    if (!op) return HandlePool<canary_op>::refuse("canary_op_wait", handle);
    op.context().impl->wait(op->ticket);
    return finish("canary_op_wait", op, handle);
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

}  // extern "C"

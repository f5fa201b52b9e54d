#include "embed/context_handles.h"

#include <chrono>
#include <thread>

#include "embed/last_error.h"

using namespace canarynet;

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
  ratios.clear();
  policies.clear();
  sessions.clear();
  bundles.clear();
  groups.clear();
  world.reset();
  bell.close();
  impl.reset();
}

namespace canarynet {

Status result_of(const Context& context, OpTicket& ticket) {
  if (!ticket.done()) ticket.finish(context.why_over());
  return ticket.code.load(std::memory_order_acquire) == CANARY_OK ? Status() : ticket.status;
}

canary_status tell(const Context& context, OpTicket& ticket) { return report(result_of(context, ticket)); }

void wait_until_alone(const std::atomic<std::uint32_t>& inside) {
  while (inside.load() != 1) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

}  // namespace canarynet

#include "collectives/plan_builder.h"

#include <algorithm>

#include "base/check.h"

namespace canarynet {

PlanBuilder::PlanBuilder(Plan* plan, int ranks, std::uint32_t leaf_count)
    : plan_(plan), caller_(leaf_count), scratch_(leaf_count), send_tag_(ranks), receive_tag_(ranks) {}

void PlanBuilder::send(const Hop& hop, Buffer src) {
  Step step{.kind = StepKind::kSend, .src = src};
  step.rail = static_cast<std::int16_t>(hop.rail);
  step.tag = send_tag_[hop.peer]++;
  step.round = static_cast<std::uint16_t>(hop.round);
  step.peer = hop.peer;
  step.leaf_begin = hop.run.begin;
  step.leaf_end = hop.run.end;
  depend_on_write(step, src);
  mark_read(step, src, emit(step));
}

void PlanBuilder::receive(const Hop& hop, Buffer dst) {
  Step step{.kind = StepKind::kReceive, .dst = dst};
  step.rail = static_cast<std::int16_t>(hop.rail);
  step.tag = receive_tag_[hop.peer]++;
  step.round = static_cast<std::uint16_t>(hop.round);
  step.peer = hop.peer;
  step.leaf_begin = hop.run.begin;
  step.leaf_end = hop.run.end;
  depend_on_everything(step, dst);
  mark_write(step, dst, emit(step));
}

void PlanBuilder::receive_reduce(const Hop& hop, Buffer src, Buffer dst, bool finish) {
  Step step{.kind = StepKind::kReceiveReduce, .src = src, .dst = dst, .finish = finish};
  step.rail = static_cast<std::int16_t>(hop.rail);
  step.tag = receive_tag_[hop.peer]++;
  step.round = static_cast<std::uint16_t>(hop.round);
  step.peer = hop.peer;
  step.leaf_begin = hop.run.begin;
  step.leaf_end = hop.run.end;
  depend_on_write(step, src);
  depend_on_everything(step, dst);
  const std::uint32_t index = emit(step);
  if (&memory_of(src) != &memory_of(dst)) mark_read(step, src, index);
  mark_write(step, dst, index);
}

void PlanBuilder::copy(Run run, Buffer src, Buffer dst, bool finish) {
  emit_local({.kind = StepKind::kCopy, .src = src, .dst = dst, .finish = finish}, run);
}

void PlanBuilder::reduce(Run run, Buffer src, Buffer dst, bool finish) {
  emit_local({.kind = StepKind::kReduce, .src = src, .dst = dst, .finish = finish}, run);
}

void PlanBuilder::emit_local(Step step, Run run) {
  step.leaf_begin = run.begin;
  step.leaf_end = run.end;
  depend_on_write(step, step.src);
  depend_on_everything(step, step.dst);
  const std::uint32_t index = emit(step);
  if (&memory_of(step.src) != &memory_of(step.dst)) mark_read(step, step.src, index);
  mark_write(step, step.dst, index);
}

void PlanBuilder::depend_on_write(const Step& step, Buffer src) {
  if (src == Buffer::kInput) return;  // nobody writes it
  for (std::uint32_t leaf = step.leaf_begin; leaf < step.leaf_end; ++leaf) {
    const std::int64_t write = memory_of(src)[leaf].last_write;
    if (write >= 0) pending_.push_back(static_cast<std::uint32_t>(write));
  }
}

void PlanBuilder::depend_on_everything(const Step& step, Buffer dst) {
  for (std::uint32_t leaf = step.leaf_begin; leaf < step.leaf_end; ++leaf) {
    const LeafState& state = memory_of(dst)[leaf];
    for (const std::uint32_t reader : state.readers) {
      // A reader that itself wrote what this step reads already precedes it: writes of one memory are in a row.
      const Step& before = plan_->steps[reader];
      const bool implied = before.kind != StepKind::kSend && step.kind != StepKind::kReceive &&
                           step.src != Buffer::kInput && &memory_of(before.dst) == &memory_of(step.src);
      if (!implied) pending_.push_back(reader);
    }
    // If there are readers, they have waited for that write themselves.
    if (state.readers.empty() && state.last_write >= 0)
      pending_.push_back(static_cast<std::uint32_t>(state.last_write));
  }
}

std::uint32_t PlanBuilder::emit(const Step& step) {
  CANARY_CHECK(step.leaf_begin < step.leaf_end && step.leaf_end <= caller_.size(),
               "a step covers leaves of the schedule");
  std::sort(pending_.begin(), pending_.end());
  pending_.erase(std::unique(pending_.begin(), pending_.end()), pending_.end());
  const std::uint32_t index = plan_->add(step, pending_);
  pending_.clear();
  return index;
}

void PlanBuilder::mark_read(const Step& step, Buffer src, std::uint32_t index) {
  for (std::uint32_t leaf = step.leaf_begin; leaf < step.leaf_end; ++leaf)
    memory_of(src)[leaf].readers.push_back(index);
}

void PlanBuilder::mark_write(const Step& step, Buffer dst, std::uint32_t index) {
  for (std::uint32_t leaf = step.leaf_begin; leaf < step.leaf_end; ++leaf) {
    memory_of(dst)[leaf].last_write = index;
    memory_of(dst)[leaf].readers.clear();
  }
}

std::uint64_t cut_unit(std::uint32_t element_bytes) { return std::max<std::uint64_t>(1, 128 / element_bytes); }

void cut_evenly(std::uint64_t begin, std::uint64_t elements, int parts, std::uint32_t element_bytes,
                std::vector<std::uint64_t>* out) {
  const std::uint64_t unit = cut_unit(element_bytes);
  const std::uint64_t units = (elements + unit - 1) / unit;
  const auto wanted = static_cast<std::uint64_t>(parts);
  for (std::uint64_t i = 0; i < wanted; ++i) {
    const std::uint64_t first = units / wanted * i + std::min(units % wanted, i);
    out->push_back(begin + std::min(elements, first * unit));
  }
}

void cut_blocks(const PlanRequest& request, std::vector<std::uint64_t>* out, int parts) {
  out->clear();
  std::uint64_t begin = 0;
  for (int i = 0; i < request.ranks; begin += request.block(i++))
    cut_evenly(begin, request.block(i), parts, request.element_bytes, out);
  out->push_back(begin);
}

void cut_pairs(const PlanRequest& request, std::vector<std::uint64_t>* out) {
  out->clear();
  const auto n = static_cast<std::uint64_t>(request.ranks);
  for (std::uint64_t pair = 0; pair <= n * n; ++pair) out->push_back(pair * request.count);
}

bool exchanges_whole(const PlanRequest& request) {
  constexpr std::uint64_t kLittle = 4096;
  return request.collective == Collective::kAllReduce && request.total() * request.element_bytes <= kLittle;
}

void plan_alone(const PlanRequest& request, std::uint32_t leaf_count, Plan* out) {
  if (request.collective == Collective::kBarrier) return;
  PlanBuilder(out, 1, leaf_count).copy({0, leaf_count}, Buffer::kInput, Buffer::kOutput, reduces(request.collective));
}

Status check_request(const Planner& planner, const PlanRequest& request) {
  const auto refuse = [](canary_status code, const std::string& text) { return Status(code, text); };
  if (request.ranks < 1) return refuse(CANARY_INVALID_ARGUMENT, "a group has at least one rank");
  if (request.ranks > kPlanRanksMax) {
    return refuse(CANARY_LIMIT,
                  std::to_string(request.ranks) + " ranks in one group; the limit is " + std::to_string(kPlanRanksMax));
  }
  if (request.element_bytes == 0) return refuse(CANARY_INVALID_ARGUMENT, "elements of 0 bytes");
  if (request.reach == nullptr || request.reach->ranks() != request.ranks) {
    return refuse(CANARY_INVALID_ARGUMENT, "the reachability matrix is not of this group");
  }
  if (has_root(request.collective) && (request.root < 0 || request.root >= request.ranks)) {
    return refuse(CANARY_INVALID_ARGUMENT,
                  "root " + std::to_string(request.root) + " is no rank of " + std::to_string(request.ranks));
  }
  const std::size_t n = static_cast<std::size_t>(request.ranks);
  const std::size_t counts = request.collective == Collective::kAllGatherV  ? n
                             : request.collective == Collective::kAllToAllV ? 4 * n
                                                                            : 0;
  if (!request.counts.empty() && request.counts.size() != counts) {
    return refuse(CANARY_INVALID_ARGUMENT, std::to_string(request.counts.size()) + " counts where " +
                                               std::string(name_of(request.collective)) + " takes " +
                                               std::to_string(counts));
  }
  if (!planner.defines(request.collective, request.ranks)) {
    return refuse(CANARY_INVALID_ARGUMENT,
                  std::string(name_of(planner.id)) + " does not define " + std::string(name_of(request.collective)));
  }
  return {};
}

Status need_edge(PlannerId id, const Reachability& reach, int a, int b) {
  if (reach.meets(a, b)) return {};
  if (a > b) std::swap(a, b);
  return {CANARY_UNREACHABLE, std::string(name_of(id)) + " needs ranks " + std::to_string(a) + " and " +
                                  std::to_string(b) + " to meet, but they share no rail"};
}

}  // namespace canarynet

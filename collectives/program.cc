#include "collectives/program.h"

#include <algorithm>

#include "base/check.h"
#include "collectives/layout.h"
#include "collectives/piece_coder.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kGridAlign = 128;

// The leaves that a plan covers, ascending, with the first piece of each.
class Grid {
 public:
  Grid(const Plan& plan, const Layout& layout, Program* p) {
    for (const Step& s : plan.steps) {
      for (std::uint32_t leaf = s.leaf_begin; leaf < s.leaf_end; ++leaf) leaves_.push_back(leaf);
    }
    std::sort(leaves_.begin(), leaves_.end());
    leaves_.erase(std::unique(leaves_.begin(), leaves_.end()), leaves_.end());
    const std::uint64_t length = std::max<std::uint64_t>(p->piece_bytes / kGridAlign * kGridAlign, kGridAlign);
    std::vector<std::uint64_t>& offsets = p->piece_offset;
    offsets.assign(1, 0);
    for (const std::uint32_t leaf : leaves_) {
      first_.push_back(static_cast<std::uint32_t>(offsets.size() - 1));
      const Layout::Place at = layout.of(leaf);
      const std::uint64_t bytes = at.elements * p->element_bytes, begin = offsets.back();
      for (std::uint64_t done = 0; done < bytes; done = std::min(bytes, done + length)) {
        p->place[static_cast<std::size_t>(Buffer::kInput)].push_back(at.input * p->element_bytes + done);
        p->place[static_cast<std::size_t>(Buffer::kOutput)].push_back(at.output * p->element_bytes + done);
        p->place[static_cast<std::size_t>(Buffer::kScratch)].push_back(begin + done);
        offsets.push_back(begin + std::min(bytes, done + length));
      }
    }
    first_.push_back(static_cast<std::uint32_t>(offsets.size() - 1));
  }
  std::uint32_t begin_of(const Step& s) const { return first_[index_of(s.leaf_begin)]; }
  std::uint32_t end_of(const Step& s) const { return first_[index_of(s.leaf_end - 1) + 1]; }

 private:
  std::size_t index_of(std::uint32_t leaf) const {
    return static_cast<std::size_t>(std::lower_bound(leaves_.begin(), leaves_.end(), leaf) - leaves_.begin());
  }
  std::vector<std::uint32_t> leaves_;
  std::vector<std::uint32_t> first_;  // and the end
};

// A piece that was complete when it was written is handed on as it is: the bytes that came, or those that the rank
// which completed it made once. Every other send encodes what it finds.
void assign_slots(Program* p) {
  const std::size_t pieces = p->piece_offset.size() - 1;
  constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::array<std::vector<std::uint32_t>, 3> whole;  // [Buffer][piece]: the task whose slot has what lies there
  for (auto& of_buffer : whole) of_buffer.assign(pieces, kNone);
  p->slot_of_task.resize(p->tasks);
  for (const ProgramStep& s : p->steps) {
    for (std::uint32_t piece = s.piece_begin; piece < s.piece_end; ++piece) {
      const std::uint32_t task = s.task_begin + piece - s.piece_begin;
      p->slot_of_task[task] = task;
      const std::uint32_t of_source = whole[static_cast<std::size_t>(s.src)][piece];
      std::uint32_t& of_target = whole[static_cast<std::size_t>(s.dst)][piece];
      if (s.kind == StepKind::kSend) {
        if (of_source != kNone) p->slot_of_task[task] = of_source;
      } else if (s.finish || s.kind == StepKind::kReceive) {
        of_target = task;
      } else {
        of_target = s.kind == StepKind::kCopy ? of_source : kNone;
      }
    }
  }
}

}  // namespace

const ProgramStep* Program::receive_step(int source, std::uint16_t tag) const {
  const auto key = [this](std::uint32_t i) { return std::pair(steps[i].peer, steps[i].tag); };
  const auto at = std::lower_bound(receives.begin(), receives.end(), std::pair(source, tag),
                                   [&](std::uint32_t i, const auto& wanted) { return key(i) < wanted; });
  if (at == receives.end() || key(*at) != std::pair(source, tag)) return nullptr;
  return &steps[*at];
}

int Program::peer_index(int peer) const {
  const auto at =
      std::lower_bound(peers.begin(), peers.end(), peer, [](const ProgramPeer& p, int r) { return p.rank < r; });
  return at != peers.end() && at->rank == peer ? static_cast<int>(at - peers.begin()) : -1;
}

Program compile(PlannerId id, const PlanRequest& request, int rank, std::uint32_t piece_bytes, const CodecSpec& codec) {
  Program p;
  p.collective = request.collective;
  p.planner = id;
  p.rank = rank;
  p.ranks = request.ranks;
  p.count = request.count;
  p.counts.assign(request.counts.begin(), request.counts.end());
  p.element_bytes = request.element_bytes;
  p.root = request.root;
  p.piece_bytes = piece_bytes;

  Plan plan;
  planner(id).plan(request, rank, &plan);
  const Grid grid(plan, Layout(id, request, rank), &p);

  bool scratch = false;
  for (const Step& s : plan.steps) {
    scratch |= s.src == Buffer::kScratch || s.dst == Buffer::kScratch;
    if (s.peer >= 0) p.peers.push_back(ProgramPeer{.rank = s.peer});
  }
  std::sort(p.peers.begin(), p.peers.end(), [](const ProgramPeer& a, const ProgramPeer& b) { return a.rank < b.rank; });
  p.peers.erase(std::unique(p.peers.begin(), p.peers.end(),
                            [](const ProgramPeer& a, const ProgramPeer& b) { return a.rank == b.rank; }),
                p.peers.end());
  p.scratch_bytes = scratch ? p.piece_offset.back() : 0;

  std::vector<std::vector<std::uint32_t>> dependents(plan.steps.size());
  p.steps.reserve(plan.steps.size());
  for (std::uint32_t i = 0; i < plan.steps.size(); ++i) {
    const Step& s = plan.steps[i];
    ProgramStep c{
        .kind = s.kind, .src = s.src, .dst = s.dst, .finish = s.finish, .rail = s.rail, .tag = s.tag, .peer = s.peer};
    c.piece_begin = grid.begin_of(s);
    c.piece_end = grid.end_of(s);
    c.task_begin = p.tasks;
    const std::uint32_t pieces = c.piece_end - c.piece_begin;
    p.tasks += pieces;
    p.pending.resize(p.tasks, 0);
    p.step_of_task.resize(p.tasks, i);
    if (s.peer >= 0) {
      c.peer_index = static_cast<std::uint32_t>(p.peer_index(s.peer));
      ProgramPeer& peer = p.peers[c.peer_index];
      if (s.kind == StepKind::kSend) {
        peer.send_tasks += pieces;
      } else {
        peer.receive_tasks += pieces;
        p.receives.push_back(i);
        c.staging = p.staging_bytes;
        p.staging_bytes += p.piece_offset[c.piece_end] - p.piece_offset[c.piece_begin];
      }
    }
    for (const std::uint32_t d : plan.deps_of(s)) {
      CANARY_CHECK(d < i, "a step may only depend on earlier ones");
      const ProgramStep& before = p.steps[d];
      const std::uint32_t begin = std::max(before.piece_begin, c.piece_begin),
                          end = std::min(before.piece_end, c.piece_end);
      if (begin >= end) continue;
      dependents[d].push_back(i);
      for (std::uint32_t piece = begin; piece < end; ++piece) ++p.pending[c.task_begin + piece - c.piece_begin];
    }
    p.steps.push_back(c);
  }
  for (std::uint32_t i = 0; i < p.steps.size(); ++i) {
    p.steps[i].dependents_begin = static_cast<std::uint32_t>(p.dependents.size());
    p.dependents.insert(p.dependents.end(), dependents[i].begin(), dependents[i].end());
    p.steps[i].dependents_end = static_cast<std::uint32_t>(p.dependents.size());
  }
  std::sort(p.receives.begin(), p.receives.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(p.steps[a].peer, p.steps[a].tag) < std::pair(p.steps[b].peer, p.steps[b].tag);
  });
  std::uint32_t at = 0;
  for (ProgramPeer& peer : p.peers) {
    peer.ready_begin = at;
    at += peer.send_tasks;
  }
  if (codec.kind != CodecKind::kDense && request.ranks > 1) {
    CANARY_CHECK(request.collective == Collective::kAllReduce && request.element_bytes == sizeof(float),
                 "a codec takes all-reduces of f32");
    p.codec = codec;
    for (std::uint32_t piece = 0; piece < p.piece_offset.size() - 1; ++piece) {
      const std::size_t most = encoded_bytes_max(codec, p.bytes_of(piece) / sizeof(float));
      p.encoded_bytes_max = std::max(p.encoded_bytes_max, static_cast<std::uint32_t>(most));
    }
    assign_slots(&p);
  }
  return p;
}

}  // namespace canarynet

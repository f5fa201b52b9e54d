#include "collectives/program.h"

#include <algorithm>

#include "base/check.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kGridAlign = 128;

// cell_of_leaf[i] = first cell of leaf i.
std::vector<std::uint32_t> cut_cells(const std::vector<std::uint64_t>& leaves, std::uint32_t element_bytes,
                                     std::uint32_t piece_bytes, std::vector<std::uint64_t>* cell_offset) {
  const std::uint64_t cell = std::max<std::uint64_t>(piece_bytes / kGridAlign * kGridAlign, kGridAlign);
  std::vector<std::uint32_t> first(leaves.size());
  cell_offset->assign(1, 0);
  for (std::size_t i = 0; i + 1 < leaves.size(); ++i) {
    first[i] = static_cast<std::uint32_t>(cell_offset->size() - 1);
    const std::uint64_t end = leaves[i + 1] * element_bytes;
    for (std::uint64_t at = leaves[i] * element_bytes; at < end;) {
      at = std::min(end, at + cell);
      cell_offset->push_back(at);
    }
  }
  if (!leaves.empty()) first.back() = static_cast<std::uint32_t>(cell_offset->size() - 1);
  return first;
}

}  // namespace

const ProgramStep* Program::receive_step(int source, std::uint16_t tag) const {
  const auto key = [this](std::uint32_t i) { return std::pair(steps[i].peer, steps[i].tag); };
  const auto at = std::lower_bound(receives.begin(), receives.end(), std::pair(source, tag),
                                   [&](std::uint32_t i, const auto& wanted) { return key(i) < wanted; });
  if (at == receives.end() || key(*at) != std::pair(source, tag)) return nullptr;
  return &steps[*at];
}

int Program::slot_of(int peer) const {
  const auto at =
      std::lower_bound(peers.begin(), peers.end(), peer, [](const ProgramPeer& p, int r) { return p.rank < r; });
  return at != peers.end() && at->rank == peer ? static_cast<int>(at - peers.begin()) : -1;
}

Program compile(PlannerId id, const PlanRequest& request, int rank, std::uint32_t piece_bytes) {
  Program p;
  p.collective = request.collective;
  p.planner = id;
  p.rank = rank;
  p.ranks = request.ranks;
  p.count = request.count;
  p.element_bytes = request.element_bytes;
  p.root = request.root;
  p.piece_bytes = piece_bytes;

  std::vector<std::uint64_t> leaves;
  planner(id).leaves(request, &leaves);
  const auto cell_of_leaf = cut_cells(leaves, request.element_bytes, piece_bytes, &p.cell_offset);
  Plan plan;
  planner(id).plan(request, rank, &plan);

  bool scratch = false;
  for (const Step& s : plan.steps) {
    scratch |= s.src == Buffer::kScratch || s.dst == Buffer::kScratch;
    if (s.peer >= 0) p.peers.push_back(ProgramPeer{.rank = s.peer});
  }
  std::sort(p.peers.begin(), p.peers.end(), [](const ProgramPeer& a, const ProgramPeer& b) { return a.rank < b.rank; });
  p.peers.erase(std::unique(p.peers.begin(), p.peers.end(),
                            [](const ProgramPeer& a, const ProgramPeer& b) { return a.rank == b.rank; }),
                p.peers.end());
  p.scratch_bytes = scratch ? p.cell_offset.back() : 0;

  std::vector<std::vector<std::uint32_t>> dependents(plan.steps.size());
  p.steps.reserve(plan.steps.size());
  for (std::uint32_t i = 0; i < plan.steps.size(); ++i) {
    const Step& s = plan.steps[i];
    ProgramStep c{
        .kind = s.kind, .src = s.src, .dst = s.dst, .finish = s.finish, .rail = s.rail, .tag = s.tag, .peer = s.peer};
    c.cell_begin = cell_of_leaf[s.leaf_begin];
    c.cell_end = cell_of_leaf[s.leaf_end];
    c.unit_begin = p.units;
    const std::uint32_t cells = c.cell_end - c.cell_begin;
    p.units += cells;
    p.pending.resize(p.units, 0);
    if (s.peer >= 0) {
      c.peer_slot = static_cast<std::uint32_t>(p.slot_of(s.peer));
      ProgramPeer& peer = p.peers[c.peer_slot];
      if (s.kind == StepKind::kSend) {
        peer.send_units += cells;
      } else {
        peer.receive_units += cells;
        p.receives.push_back(i);
        c.staging = p.staging_bytes;
        p.staging_bytes += p.cell_offset[c.cell_end] - p.cell_offset[c.cell_begin];
      }
    }
    for (const std::uint32_t d : plan.deps_of(s)) {
      CANARY_CHECK(d < i, "a step may only depend on earlier ones");
      const ProgramStep& before = p.steps[d];
      const std::uint32_t begin = std::max(before.cell_begin, c.cell_begin),
                          end = std::min(before.cell_end, c.cell_end);
      if (begin >= end) continue;
      dependents[d].push_back(i);
      for (std::uint32_t cell = begin; cell < end; ++cell) ++p.pending[c.unit_begin + cell - c.cell_begin];
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
    at += peer.send_units;
  }
  return p;
}

}  // namespace canarynet

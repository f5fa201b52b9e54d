#include "collectives/schedule.h"

#include <array>

#include "collectives/plan_builder.h"

namespace canarynet {

std::string_view name_of(StepKind kind) {
  switch (kind) {
    case StepKind::kSend:
      return "send";
    case StepKind::kReceive:
      return "receive";
    case StepKind::kReceiveReduce:
      return "receive_reduce";
    case StepKind::kCopy:
      return "copy";
    case StepKind::kReduce:
      return "reduce";
  }
  return "?";
}

std::string_view name_of(Buffer buffer) {
  switch (buffer) {
    case Buffer::kInput:
      return "input";
    case Buffer::kOutput:
      return "output";
    case Buffer::kScratch:
      return "scratch";
  }
  return "?";
}

std::string_view name_of(PlannerId id) {
  switch (id) {
    case PlannerId::kRing:
      return "ring";
    case PlannerId::kMesh:
      return "mesh";
    case PlannerId::kBCube:
      return "bcube";
    case PlannerId::kHalvingDoubling:
      return "halving_doubling";
    case PlannerId::kTree:
      return "tree";
    case PlannerId::kDoubleTree:
      return "dbtree";
    case PlannerId::kParameterServer:
      return "parameter_server";
    case PlannerId::kRingPerRail:
      return "ring_per_rail";
    case PlannerId::kHierarchical:
      return "hierarchical";
    case PlannerId::kBCubeX:
      return "bcube_x";
    case PlannerId::kMeshRelay:
      return "mesh_relay";
  }
  return "?";
}

bool parse(std::string_view name, PlannerId* id) {
  for (const Planner& candidate : planners()) {
    if (name_of(candidate.id) != name) continue;
    *id = candidate.id;
    return true;
  }
  return false;
}

std::uint32_t Plan::add(Step step, std::span<const std::uint32_t> depends_on) {
  step.deps_begin = static_cast<std::uint32_t>(deps.size());
  deps.insert(deps.end(), depends_on.begin(), depends_on.end());
  step.deps_end = static_cast<std::uint32_t>(deps.size());
  steps.push_back(step);
  return static_cast<std::uint32_t>(steps.size() - 1);
}

int Symmetry::moved(int rank, int by, int n) const {
  if (radix == 0) return (rank + by) % n;
  int out = 0;
  for (int stride = 1; stride < n; stride *= radix)
    out += (rank / stride % radix + by / stride % radix) % radix * stride;
  return out;
}

int Symmetry::seen_from(int stands_for, int rank, int n) const {
  if (radix == 0) return (rank - (stands_for - in_cell(stands_for)) + n) % n;
  int out = 0;
  for (int stride = 1; stride < n; stride *= radix)
    out += (rank / stride % radix - stands_for / stride % radix + radix) % radix * stride;
  return out;
}

std::span<const Planner> planners() {
  // Made on first use. The planners' own constants are constant-initialised, so no order of initialisation matters.
  static const std::array<Planner, kPlannerCount> all = {
      kRingPlanner,         kMeshPlanner,       kBCubePlanner,           kHalvingDoublingPlanner,
      kTreePlanner,         kDoubleTreePlanner, kParameterServerPlanner, kRingPerRailPlanner,
      kHierarchicalPlanner, kBCubeXPlanner,     kMeshRelayPlanner};
  return all;
}

const Planner& planner(PlannerId id) { return planners()[static_cast<std::size_t>(id)]; }

std::string to_string(const Plan& plan, int rank) {
  std::string text;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    text += "r" + std::to_string(rank) + " s" + std::to_string(i) + " round " + std::to_string(step.round) + "  ";
    text += name_of(step.kind);
    if (step.peer >= 0) {
      text += step.kind == StepKind::kSend ? " to " : " from ";
      text += std::to_string(step.peer);
      if (step.rail >= 0) text += " rail " + std::to_string(step.rail);
    }
    text += " leaves [" + std::to_string(step.leaf_begin) + "," + std::to_string(step.leaf_end) + ") ";
    if (step.kind != StepKind::kReceive) text += name_of(step.src);
    if (step.kind != StepKind::kSend) (text += ">") += name_of(step.dst);
    if (step.finish) text += " finish";
    const char* separator = " after ";
    for (const std::uint32_t dep : plan.deps_of(step)) {
      text += separator + std::to_string(dep);
      separator = ",";
    }
    text += "\n";
  }
  return text;
}

}  // namespace canarynet

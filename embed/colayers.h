// embed/colayers.h -- which tensors of a model make a colayer of a session: the merge planner's choice for this group.
//
// Collective: members compare what they declare, measure a few all-reduces, and take what rank 0 plans from the slowest
// member's ready times. Units: elements, seconds. Memory: of the longest message that is measured, within the call.
// Thread: any; blocks. Failures: CANARY_MISMATCH where members declare different tensors, and the group lives on.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "embed/context_handles.h"

namespace canarynet {

// counts[i] elements of f32, ready[i] seconds after an iteration began, in the order of the backward pass. Returns for
// each colayer the number of tensors in it and in those before it.
Result<std::vector<std::size_t>> find_colayers(const GroupPlace& place, std::span<const std::size_t> counts,
                                               std::span<const double> ready);

}  // namespace canarynet

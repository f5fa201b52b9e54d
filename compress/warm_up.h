// compress/warm_up.h -- how much a sparsifier keeps in the first steps of training, in which gradients change fast.
//
// Source: Lin et al., Deep Gradient Compression (ICLR 2018), section 3.3: the share falls exponentially, over their
// first epochs 25 %, 6.25 %, 1.56 %, 0.4 %, 0.1 %. In stages, because each share is a program of its own to an engine.
// A pure function of its arguments, so that all ranks ask for the same.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace canarynet {

inline constexpr double kWarmUpFactor = 4;  // from stage to stage

// The number (compress/spec.h) of `codec` with the share of this step. Step 0 keeps `first` of all values, the stages
// are equally long, and from step `steps` on it is `codec`. CANARY_INVALID_ARGUMENT: the codec has no share, or `first`
// is not from that share to 1.
Result<std::uint32_t> warmed_up(std::uint32_t codec, double first, std::uint64_t step, std::uint64_t steps);

}  // namespace canarynet

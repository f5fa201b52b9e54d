// kernels/dispatch.h -- the choice of a variant as a function of what was asked for; internal to kernels/ and its
// tests.
#pragma once

#include "base/status.h"
#include "kernels/reduce.h"

namespace canarynet {

struct KernelChoice {
  const KernelVariant* variant;  // never null
  Status status;                 // CANARY_INVALID_SETTING when `wanted` is not among this machine's variants
};
// `wanted` is the text of CANARY_KERNELS; nullptr or "" choose the best.
KernelChoice choose_kernels(const char* wanted);

}  // namespace canarynet

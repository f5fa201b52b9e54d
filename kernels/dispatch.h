// kernels/dispatch.h -- chooses a variant from what the user asked for; internal to kernels/ and its tests.
#pragma once

#include "base/status.h"
#include "kernels/reduce.h"

namespace canarynet {

struct KernelChoice {
  const KernelVariant* variant;  // never null
  Status status;                 // CANARY_INVALID_SETTING if `wanted` is not among this machine's variants
};
// `wanted` is the text of CANARY_KERNELS; nullptr or "" choose the best.
KernelChoice choose_kernels(const char* wanted);

}  // namespace canarynet

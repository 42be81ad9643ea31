// KVARTO_MAX_SIMD=avx2 in the environment: no kernels above that target, for comparison and for hunting faults. Free
// functions, any thread.
#pragma once

#include "base/cpu.h"
#include "kvarto/result.h"

namespace kvarto {

inline constexpr char kSimdLimitName[] = "KVARTO_MAX_SIMD";

// The last target that the environment lets through. Error: it names none of the targets.
Result<SimdTarget> simd_limit();

}  // namespace kvarto

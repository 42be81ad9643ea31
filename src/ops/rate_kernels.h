// The loops that show what one core can do at most with a SIMD target: no memory beyond the first-level cache, as many
// independent chains as the registers hold. For measuring only. Any thread.
#pragma once

#include <cstddef>

#include "base/cpu.h"

namespace kvarto {

struct RateLoop {
  // `out` [16] depends on every operation, so that none is optimised away.
  void (*run)(size_t rounds, float* out) = nullptr;
  double operations = 0;  // of a round; a multiply-add is two
};
struct RateLoops {
  RateLoop fma;   // float multiply-adds
  RateLoop int8;  // dot products per 32 values, each scaled and summed in float as the quantised matmul does
};
RateLoops rate_loops(SimdTarget target);

RateLoop amx_int8_loop();  // ops/rate_amx.cc: tiles instead of base/simd_int8.h

}  // namespace kvarto

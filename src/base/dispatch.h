// One table of kernels per SIMD target. In the HWY_ONCE part of a kernel file:
//   KVARTO_TARGET_TABLE(RowOps, row_ops, kRowOps);
// defines `const RowOps& row_ops(SimdTarget target)`, choosing among N_SCALAR::kRowOps, N_AVX2::kRowOps,
// N_AVX3_DL::kRowOps; amx differs from avx512 in one file, ops/quant_amx.cc. No global state: the caller says which
// target.
#pragma once

#include "base/cpu.h"

#define KVARTO_TARGET_TABLE(Type, name, value) \
  const Type& name(SimdTarget target) {        \
    switch (target) {                          \
      case SimdTarget::amx:                    \
      case SimdTarget::avx512:                 \
        return N_AVX3_DL::value;               \
      case SimdTarget::avx2:                   \
        return N_AVX2::value;                  \
      case SimdTarget::scalar:                 \
        break;                                 \
    }                                          \
    return N_SCALAR::value;                    \
  }                                            \
  static_assert(true, "a semicolon follows")

// The parts of the Ops table, one per kernel file: ops.cc joins them. Each is a constant per SIMD target; any thread.
#pragma once

#include "ops/ops.h"

namespace kvarto {

struct MatmulOps {
  decltype(Ops::matmul) matmul;
  decltype(Ops::gather_row) gather_row;
};
struct NormOps {
  decltype(Ops::rms_norm) rms_norm;
};
struct RopeOps {
  decltype(Ops::rope) rope;
};
struct ActivationOps {
  decltype(Ops::silu_mul) silu_mul;
  decltype(Ops::gelu_mul) gelu_mul;
  decltype(Ops::add) add;
  decltype(Ops::soft_cap) soft_cap;
};

const MatmulOps& matmul_ops(SimdTarget target);
const NormOps& norm_ops(SimdTarget target);
const RopeOps& rope_ops(SimdTarget target);
const ActivationOps& activation_ops(SimdTarget target);

}  // namespace kvarto

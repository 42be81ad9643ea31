#include "ops/ops.h"

#include <algorithm>
#include <array>

#include "ops/row_kernels.h"

namespace kvarto {
namespace {

Ops joined(SimdTarget target) {
  const MatmulOps& m = matmul_ops(target);
  const ActivationOps& a = activation_ops(target);
  return Ops{.matmul = m.matmul,
             .gather_row = m.gather_row,
             .rms_norm = norm_ops(target).rms_norm,
             .rope = rope_ops(target).rope,
             .silu_mul = a.silu_mul,
             .gelu_mul = a.gelu_mul,
             .add = a.add,
             .soft_cap = a.soft_cap};
}

}  // namespace

const Ops& ops_for(SimdTarget target) {
  static const std::array<Ops, 4> kTables = {joined(SimdTarget::scalar), joined(SimdTarget::avx2),
                                             joined(SimdTarget::avx512), joined(SimdTarget::amx)};
  return kTables[static_cast<size_t>(target)];
}

void pack_rows(const float* rows, size_t outputs, size_t inputs, size_t first_output, float* out) {
  const size_t groups = (outputs + 15) / 16;
  for (size_t g = 0; g < groups; ++g) {
    const size_t lanes = std::min<size_t>(16, outputs - g * 16);
    float* group = out + (first_output / 16 + g) * inputs * 16;
    for (size_t k = 0; k < inputs; ++k) {
      for (size_t lane = 0; lane < 16; ++lane) {
        group[k * 16 + lane] = lane < lanes ? rows[(g * 16 + lane) * inputs + k] : 0.0f;
      }
    }
  }
}

}  // namespace kvarto

// RMS norm of one row (Zhang and Sennrich 2019).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm.cc"
#include "hwy/foreach_target.h"  // compiles what follows once per target
// after foreach_target.h
#include "base/dispatch.h"
#include "base/simd.h"
#include "ops/row_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {
namespace {

void rms_norm(const float* x, const float* weight, float eps, size_t n, float* y) {
  const size_t whole = n / 16 * 16;
  F32x16 sum = splat(0.0f);
  for (size_t i = 0; i < whole; i += 16) {
    const F32x16 v = load(x + i);
    sum = fma(v, v, sum);
  }
  if (whole < n) {
    const F32x16 v = load_n(x + whole, n - whole, 0.0f);
    sum = fma(v, v, sum);
  }
  const float root = std::sqrt(fold_sum(sum) / static_cast<float>(n) + eps);
  const F32x16 scale = splat(1.0f / root);
  for (size_t i = 0; i < whole; i += 16) store(load(x + i) * scale * load(weight + i), y + i);
  if (whole < n) {
    const size_t rest = n - whole;
    store_n(load_n(x + whole, rest, 0.0f) * scale * load_n(weight + whole, rest, 0.0f), y + whole, rest);
  }
}

const NormOps kNormOps = {rms_norm};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvarto {
KVARTO_TARGET_TABLE(NormOps, norm_ops, kNormOps);
}  // namespace kvarto
#endif

// Partial attention as a value: what one query row knows after looking at some of its keys. Splits, shared prefixes and
// blocks meet only through merge(). Order matters for the bits: always merge later keys into earlier ones.
// Plain functions over arrays owned by the caller (worker scratch); any thread. Compiled per SIMD target (kernel files
// only).
#if defined(KVARTO_KV_SOFTMAX_STATE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTO_KV_SOFTMAX_STATE_H_
#undef KVARTO_KV_SOFTMAX_STATE_H_
#else
#define KVARTO_KV_SOFTMAX_STATE_H_
#endif

#include <limits>

#include "base/simd.h"
#include "base/simd_math.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

// out [padded_dims] is the sum of exp(score - max) * value over the keys seen; the empty state has max = -inf, sum = 0.
struct SoftmaxState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
  float* out = nullptr;
};

HWY_INLINE float exp_one(float x) {
  float t[16];
  store(exp(splat(x)), t);
  return t[0];
}

// into = into followed by later. Both sides are scaled by exp(m - M); a side that has seen no key changes nothing.
HWY_INLINE void merge(SoftmaxState& into, const SoftmaxState& later, size_t padded_dims) {
  if (later.max == -std::numeric_limits<float>::infinity()) return;
  if (into.max == -std::numeric_limits<float>::infinity()) {
    into.max = later.max;
    into.sum = later.sum;
    for (size_t d = 0; d < padded_dims; d += 16) store(load(later.out + d), into.out + d);
    return;
  }
  const float m = into.max > later.max ? into.max : later.max;
  const float a = exp_one(into.max - m), b = exp_one(later.max - m);
  const F32x16 va = splat(a), vb = splat(b);
  for (size_t d = 0; d < padded_dims; d += 16) {
    store(fma(vb, load(later.out + d), va * load(into.out + d)), into.out + d);
  }
  into.sum = a * into.sum + b * later.sum;
  into.max = m;
}

// Writes out / sum; zeros when no key was seen. A sink logit joins the denominator only (gpt-oss), once per row.
HWY_INLINE void finish(SoftmaxState& state, const float* sink, size_t dims, float* result) {
  float sum = state.sum, scale = 1.0f;
  if (sink != nullptr && state.sum > 0.0f) {
    const float m = state.max > *sink ? state.max : *sink;
    scale = exp_one(state.max - m);
    sum = scale * sum + exp_one(*sink - m);
  }
  const F32x16 divisor = splat(sum), factor = splat(scale);
  size_t d = 0;
  if (!(state.sum > 0.0f)) {
    for (; d < dims; ++d) result[d] = 0.0f;
    return;
  }
  for (; d + 16 <= dims; d += 16) store(factor * load(state.out + d) / divisor, result + d);
  if (d < dims) store_n(factor * load(state.out + d) / divisor, result + d, dims - d);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();
#endif  // toggled guard

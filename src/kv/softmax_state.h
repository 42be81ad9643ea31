// Partial attention as a value: what query rows know after looking at some of their keys. Splits, shared prefixes and
// blocks meet only through merge(). Order matters for the bits: always merge later keys into earlier ones.
// Plain functions over arrays owned by the caller (worker scratch); any thread. Compiled per SIMD target (kernel files
// only), but for the struct.
#ifndef KVARTO_KV_SOFTMAX_STATE_H_
#define KVARTO_KV_SOFTMAX_STATE_H_

#include <cstddef>

namespace kvarto {

// Of `rows` rows. out is the sum of exp(score - max) * value over the keys seen; the empty state has max = -inf, sum =
// 0. A state that has seen a key has sum >= 1, or NaN when a score was NaN or infinite: NaN stays NaN to the end.
struct SoftmaxStates {
  size_t rows = 0, padded_dims = 0;
  float* max = nullptr;  // [rows up to a multiple of 16]
  float* sum = nullptr;  // likewise
  float* out = nullptr;  // [rows][padded_dims]

  static size_t floats(size_t rows, size_t padded_dims) { return 2 * padded(rows) + rows * padded_dims; }
  static SoftmaxStates at(float* memory, size_t rows, size_t padded_dims) {
    return {rows, padded_dims, memory, memory + padded(rows), memory + 2 * padded(rows)};
  }

 private:
  static size_t padded(size_t rows) { return (rows + 15) / 16 * 16; }
};

}  // namespace kvarto
#endif  // KVARTO_KV_SOFTMAX_STATE_H_

// Functions, once per SIMD target.
#if defined(HWY_TARGET_INCLUDE) && (defined(KVARTO_KV_SOFTMAX_STATE_SIMD_) == defined(HWY_TARGET_TOGGLE))
#ifdef KVARTO_KV_SOFTMAX_STATE_SIMD_
#undef KVARTO_KV_SOFTMAX_STATE_SIMD_
#else
#define KVARTO_KV_SOFTMAX_STATE_SIMD_
#endif

#include <algorithm>
#include <limits>

#include "base/simd.h"
#include "base/simd_math.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

HWY_INLINE float exp_one(float x) {
  float t[16];
  store(exp(splat(x)), t);
  return t[0];
}

inline void clear(const SoftmaxStates& states) {
  for (size_t r = 0; r < states.rows; r += 16) {
    store(splat(-std::numeric_limits<float>::infinity()), states.max + r);
    store(splat(0.0f), states.sum + r);
  }
  for (size_t i = 0; i < states.rows * states.padded_dims; i += 16) store(splat(0.0f), states.out + i);
}

// into = into followed by later, row by row. Both sides are scaled by exp(m - M); a side that has seen no key changes
// nothing.
inline void merge(const SoftmaxStates& into, const SoftmaxStates& later) {
  const size_t dims = into.padded_dims;
  for (size_t first = 0; first < into.rows; first += 16) {
    const F32x16 into_max = load(into.max + first), later_max = load(later.max + first);
    const F32x16 m = max(into_max, later_max), a = exp(into_max - m), b = exp(later_max - m);
    float maxima[16], sums[16], into_scale[16], later_scale[16];
    store(m, maxima);
    store(a, into_scale);
    store(b, later_scale);
    store(a * load(into.sum + first) + b * load(later.sum + first), sums);
    for (size_t r = first; r < std::min(first + 16, into.rows); ++r) {
      if (later.sum[r] == 0.0f) continue;
      float* const out = into.out + r * dims;
      const float* const later_out = later.out + r * dims;
      if (into.sum[r] == 0.0f) {
        into.max[r] = later.max[r];
        into.sum[r] = later.sum[r];
        for (size_t d = 0; d < dims; d += 16) store(load(later_out + d), out + d);
        continue;
      }
      const F32x16 va = splat(into_scale[r - first]), vb = splat(later_scale[r - first]);
      for (size_t d = 0; d < dims; d += 16) store(fma(vb, load(later_out + d), va * load(out + d)), out + d);
      into.max[r] = maxima[r - first];
      into.sum[r] = sums[r - first];
    }
  }
}

// One row's out / sum; zeros when no key was seen. A sink logit joins the denominator only (gpt-oss), once per row.
inline void finish(const SoftmaxStates& states, size_t row, const float* sink, size_t dims, float* result) {
  const float max = states.max[row];
  const float* const out = states.out + row * states.padded_dims;
  float sum = states.sum[row], scale = 1.0f;
  if (sum == 0.0f) {
    std::fill_n(result, dims, 0.0f);
    return;
  }
  if (sink != nullptr) {
    const float m = max > *sink ? max : *sink;
    scale = exp_one(max - m);
    sum = scale * sum + exp_one(*sink - m);
  }
  const F32x16 divisor = splat(sum), factor = splat(scale);
  size_t d = 0;
  for (; d + 16 <= dims; d += 16) store(factor * load(out + d) / divisor, result + d);
  if (d < dims) store_n(factor * load(out + d) / divisor, result + d, dims - d);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();
#endif

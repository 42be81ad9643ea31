// Rotary position embedding (Su et al. 2021) of one row's heads, in place.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rope.cc"
#include "hwy/foreach_target.h"  // compiles what follows once per target
// after foreach_target.h
#include "base/dispatch.h"
#include "base/simd.h"
#include "ops/row_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {
namespace {

// A pair (a, b) becomes (a cos - b sin, b cos + a sin), each one product and one fused multiply-add. Angles are loaded
// once for all heads.

void rotate_halves(float* x, size_t heads, size_t head_dim, size_t pairs, const float* cos, const float* sin) {
  for (size_t i = 0; i < pairs; i += 16) {
    const size_t n = pairs - i < 16 ? pairs - i : 16;
    const F32x16 c = load_n(cos + i, n, 0.0f), s = load_n(sin + i, n, 0.0f), minus_s = splat(0.0f) - s;
    for (size_t h = 0; h < heads; ++h) {
      float* const first = x + h * head_dim + i;
      float* const second = first + pairs;
      if (n == 16) {
        const F32x16 a = load(first), b = load(second);
        store(fma(b, minus_s, a * c), first);
        store(fma(a, s, b * c), second);
      } else {
        const F32x16 a = load_n(first, n, 0.0f), b = load_n(second, n, 0.0f);
        store_n(fma(b, minus_s, a * c), first, n);
        store_n(fma(a, s, b * c), second, n);
      }
    }
  }
}

// Pairs lie side by side: every lane is one product with its neighbour's fused to it.
void rotate_neighbours(float* x, size_t heads, size_t head_dim, size_t pairs, const float* cos, const float* sin) {
  for (size_t i = 0; i < pairs; i += 8) {
    const size_t n = pairs - i < 8 ? pairs - i : 8;
    float twice_cos[16] = {}, signed_sin[16] = {};
    for (size_t j = 0; j < n; ++j) {
      twice_cos[2 * j] = twice_cos[2 * j + 1] = cos[i + j];
      signed_sin[2 * j] = 0.0f - sin[i + j];
      signed_sin[2 * j + 1] = sin[i + j];
    }
    const F32x16 c = load(twice_cos), s = load(signed_sin);
    for (size_t h = 0; h < heads; ++h) {
      float* const row = x + h * head_dim + 2 * i;
      const F32x16 own = n == 8 ? load(row) : load_n(row, 2 * n, 0.0f);
      const F32x16 turned = fma(swap_pairs(own), s, own * c);
      if (n == 8) {
        store(turned, row);
      } else {
        store_n(turned, row, 2 * n);
      }
    }
  }
}

void rope(float* x, size_t heads, size_t head_dim, size_t pairs, RopePairs style, const float* cos, const float* sin) {
  (style == RopePairs::halves ? rotate_halves : rotate_neighbours)(x, heads, head_dim, pairs, cos, sin);
}

const RopeOps kRopeOps = {rope};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvarto {
KVARTO_TARGET_TABLE(RopeOps, rope_ops, kRopeOps);
}  // namespace kvarto
#endif

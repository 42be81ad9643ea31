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

struct Pair {
  F32x16 a, b;
};

// (a cos - b sin, b cos + a sin), each one product and one fused multiply-add.
HWY_INLINE Pair rotate(const F32x16& a, const F32x16& b, const F32x16& cos, const F32x16& sin) {
  const F32x16 minus_sin = splat(0.0f) - sin;
  return {fma(b, minus_sin, a * cos), fma(a, sin, b * cos)};
}

void rotate_halves(float* x, size_t pairs, const float* cos, const float* sin) {
  float* y = x + pairs;
  size_t i = 0;
  for (; i + 16 <= pairs; i += 16) {
    const Pair r = rotate(load(x + i), load(y + i), load(cos + i), load(sin + i));
    store(r.a, x + i);
    store(r.b, y + i);
  }
  if (i == pairs) return;
  const size_t n = pairs - i;
  const Pair r =
      rotate(load_n(x + i, n, 0.0f), load_n(y + i, n, 0.0f), load_n(cos + i, n, 0.0f), load_n(sin + i, n, 0.0f));
  store_n(r.a, x + i, n);
  store_n(r.b, y + i, n);
}

void rotate_neighbours(float* x, size_t pairs, const float* cos, const float* sin) {
  for (size_t i = 0; i < pairs; i += 16) {
    const size_t n = pairs - i < 16 ? pairs - i : 16;
    float even[16] = {}, odd[16] = {};
    float* row = x + 2 * i;
    for (size_t j = 0; j < n; ++j) {
      even[j] = row[2 * j];
      odd[j] = row[2 * j + 1];
    }
    const Pair r = rotate(load(even), load(odd), load_n(cos + i, n, 0.0f), load_n(sin + i, n, 0.0f));
    store(r.a, even);
    store(r.b, odd);
    for (size_t j = 0; j < n; ++j) {
      row[2 * j] = even[j];
      row[2 * j + 1] = odd[j];
    }
  }
}

void rope(float* x, size_t heads, size_t head_dim, size_t pairs, RopePairs style, const float* cos, const float* sin) {
  for (size_t h = 0; h < heads; ++h) {
    if (style == RopePairs::halves) {
      rotate_halves(x + h * head_dim, pairs, cos, sin);
    } else {
      rotate_neighbours(x + h * head_dim, pairs, cos, sin);
    }
  }
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

// Elementwise kernels: gated activations, addition, soft cap. Lanes never meet, so only each lane's own chain matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/activation.cc"
#include "hwy/foreach_target.h"  // compiles what follows once per target
// after foreach_target.h
#include "base/dispatch.h"
#include "base/simd.h"
#include "base/simd_math.h"
#include "ops/row_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {
namespace {

// out[i] = f(a[i], b[i]) for i < n; reads and writes nothing behind n. out may be a or b.
template <typename F>
HWY_INLINE void map_rows(const float* a, const float* b, size_t n, float* out, const F& f) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) store(f(load(a + i), load(b + i)), out + i);
  if (i < n) store_n(f(load_n(a + i, n - i, 0.0f), load_n(b + i, n - i, 0.0f)), out + i, n - i);
}

struct Silu {
  HWY_INLINE F32x16 operator()(const F32x16& gate, const F32x16& up) const {
    return gate / (splat(1.0f) + exp(splat(0.0f) - gate)) * up;
  }
};
struct Gelu {
  HWY_INLINE F32x16 operator()(const F32x16& x, const F32x16& up) const {
    const F32x16 cubic = fma(splat(0.044715f) * x * x, x, x);
    const F32x16 t = tanh(splat(0x1.988454p-1f) * cubic);  // sqrt(2 / pi)
    return splat(0.5f) * x * (splat(1.0f) + t) * up;
  }
};
struct Sum {
  HWY_INLINE F32x16 operator()(const F32x16& a, const F32x16& b) const { return a + b; }
};
struct SoftCap {
  F32x16 cap;
  HWY_INLINE F32x16 operator()(const F32x16& x, const F32x16&) const { return cap * tanh(x / cap); }
};

void silu_mul(const float* gate, const float* up, size_t n, float* out) { map_rows(gate, up, n, out, Silu()); }
void gelu_mul(const float* gate, const float* up, size_t n, float* out) { map_rows(gate, up, n, out, Gelu()); }
void add(const float* a, size_t n, float* b) { map_rows(a, b, n, b, Sum()); }
void soft_cap(float* x, size_t n, float cap) { map_rows(x, x, n, x, SoftCap{splat(cap)}); }

const ActivationOps kActivationOps = {silu_mul, gelu_mul, add, soft_cap};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvarto {
KVARTO_TARGET_TABLE(ActivationOps, activation_ops, kActivationOps);
}  // namespace kvarto
#endif

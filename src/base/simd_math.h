// exp and tanh of sixteen floats: our own, so that every machine has the same bits (DESIGN section 2). Included beside
// base/simd.h by kernel files, once per SIMD target.
#if defined(KVARTO_BASE_SIMD_MATH_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTO_BASE_SIMD_MATH_H_
#undef KVARTO_BASE_SIMD_MATH_H_
#else
#define KVARTO_BASE_SIMD_MATH_H_
#endif

#include "base/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

// e^x within 1 ulp; 0 below ln(2^-126) (no subnormal results), infinity above ln(FLT_MAX), NaN for NaN.
// x = n ln2 + r, |r| <= ln2 / 2; e^r by a polynomial whose coefficients tools/make_math_goldens.py fits.
struct ExpParts {
  F32x16 power, n;  // e^r, n
};
HWY_INLINE ExpParts exp_parts(const F32x16& y) {
  const F32x16 n = round_even(y * splat(0x1.715476p+0f));
  F32x16 r = fma(n, splat(-0x1.62e4p-1f), y);  // exact: the upper part of ln2 has 15 bits
  r = fma(n, splat(-0x1.7f7d1cp-20f), r);
  F32x16 p = splat(0x1.6a242ep-10f);
  p = fma(p, r, splat(0x1.1239e2p-7f));
  p = fma(p, r, splat(0x1.5558f2p-5f));
  p = fma(p, r, splat(0x1.555492p-3f));
  p = fma(p, r, splat(0x1.fffffcp-2f));
  p = fma(p, r * r, r);
  return {p + splat(1.0f), n};
}
HWY_INLINE F32x16 zero_if_tiny(const F32x16& x, const F32x16& e) {
  return if_negative(x - splat(-87.33654f), splat(0.0f), e);
}
HWY_INLINE F32x16 exp(const F32x16& x) {
  const ExpParts e = exp_parts(min(splat(88.8f), x));
  // n = 128 has no power of two of its own: 2^127 times 1 + 1.
  const F32x16 main = min(splat(127.0f), e.n);
  return zero_if_tiny(x, e.power * power_of_two(main) * (splat(1.0f) + (e.n - main)));
}
// The same bits for x <= 0 and NaN, which is what softmax needs, in fewer steps.
HWY_INLINE F32x16 exp_nonpositive(const F32x16& x) {
  const ExpParts e = exp_parts(x);
  return zero_if_tiny(x, e.power * power_of_two(e.n));
}

// tanh within 3 ulp: an odd polynomial near zero, 1 - 2 / (e^(2|x|) + 1) elsewhere.
HWY_INLINE F32x16 tanh(const F32x16& x) {
  const F32x16 magnitude = abs(x);
  const F32x16 one = splat(1.0f), two = splat(2.0f);
  const F32x16 far = one - two / (exp(two * magnitude) + one);
  const F32x16 signed_far = if_negative(x, splat(0.0f) - far, far);
  const F32x16 z = x * x;
  F32x16 p = splat(-0x1.722ae8p-8f);
  p = fma(p, z, splat(0x1.5157f6p-6f));
  p = fma(p, z, splat(-0x1.b81dcp-5f));
  p = fma(p, z, splat(0x1.110646p-3f));
  p = fma(p, z, splat(-0x1.55552ep-2f));
  const F32x16 near = fma(p * z, x, x);
  return if_negative(magnitude - splat(0.625f), near, signed_far);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#endif  // toggled guard

// F32x16: sixteen floats, the one width in which every sum that reaches a logit is written, whatever the registers are:
// one AVX-512 register, two AVX2 registers, or an array (std::fma). The same operation gives the same bits on every
// target.
//
// Included by kernel files under Highway's foreach_target, hence the toggled guard: the body is compiled once per
// target into kvarto::N_SCALAR, N_AVX2, N_AVX3_DL. A kernel file looks like ops/norm.cc.
#if defined(KVARTO_BASE_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTO_BASE_SIMD_H_
#undef KVARTO_BASE_SIMD_H_
#else
#define KVARTO_BASE_SIMD_H_
#endif

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "hwy/highway.h"

// Highway 1.0.3's string for this target lacks the int8 dot product. Whoever includes this header opens the target with
// it: the CPU must have it for the target to be used (base/cpu.cc).
#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR                                                           \
  HWY_TARGET_STR_AVX3                                                            \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512bitalg,avx512vpopcntdq" \
  ",avx512vnni"
#endif

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

// The hardware's conversion overflows to infinity and keeps payloads of NaNs; the house saturates and has one NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ready_for_f16(D d, V v) {
  const V limited = hn::Max(hn::Set(d, -65504.0f), hn::Min(hn::Set(d, 65504.0f), v));
  const V nan = hn::Or(hn::And(v, hn::Set(d, -0.0f)), hn::Set(d, std::bit_cast<float>(0x7fc00000u)));
  return hn::IfThenElse(hn::IsNaN(v), nan, limited);
}
// The upper half of each float, rounded to nearest even, as an integer below 65536.
template <class D, class V = hn::Vec<D>>
HWY_INLINE auto bf16_bits(D, V v) {
  const hn::RebindToSigned<D> i;
  const hn::RebindToUnsigned<D> u;
  const auto bits = hn::BitCast(u, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(u, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(u, 0x7fff)), odd));
  const auto quiet_nan = hn::Or(upper, hn::Set(u, 0x40));
  return hn::BitCast(i, hn::IfThenElse(hn::RebindMask(u, hn::IsNaN(v)), quiet_nan, rounded));
}

#endif

#if HWY_TARGET == HWY_SCALAR

struct F32x16 {
  float lane[16];
};
struct I32x16 {
  int32_t lane[16];
};
#define KVARTO_LANES(expr)                         \
  F32x16 r;                                        \
  for (int i = 0; i < 16; ++i) r.lane[i] = (expr); \
  return r

HWY_INLINE F32x16 splat(float x) { KVARTO_LANES(x); }
HWY_INLINE F32x16 load(const float* p) { KVARTO_LANES(p[i]); }
HWY_INLINE void store(const F32x16& a, float* p) { std::memcpy(p, a.lane, sizeof a.lane); }
HWY_INLINE F32x16 load_f16(const uint16_t* p) { KVARTO_LANES(f16_to_f32(p[i])); }
HWY_INLINE F32x16 load_bf16(const uint16_t* p) { KVARTO_LANES(bf16_to_f32(p[i])); }
HWY_INLINE F32x16 operator+(const F32x16& a, const F32x16& b) { KVARTO_LANES(a.lane[i] + b.lane[i]); }
HWY_INLINE F32x16 operator-(const F32x16& a, const F32x16& b) { KVARTO_LANES(a.lane[i] - b.lane[i]); }
HWY_INLINE F32x16 operator*(const F32x16& a, const F32x16& b) { KVARTO_LANES(a.lane[i] * b.lane[i]); }
HWY_INLINE F32x16 operator/(const F32x16& a, const F32x16& b) { KVARTO_LANES(a.lane[i] / b.lane[i]); }
HWY_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {  // a * b + c, one rounding
  KVARTO_LANES(std::fma(a.lane[i], b.lane[i], c.lane[i]));
}
// max/min as x86 has them: the second operand when either is NaN or both are zero.
HWY_INLINE F32x16 max(const F32x16& a, const F32x16& b) { KVARTO_LANES(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
HWY_INLINE F32x16 min(const F32x16& a, const F32x16& b) { KVARTO_LANES(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]); }
HWY_INLINE F32x16 round_even(const F32x16& a) { KVARTO_LANES(std::nearbyint(a.lane[i])); }
HWY_INLINE F32x16 sqrt(const F32x16& a) { KVARTO_LANES(std::sqrt(a.lane[i])); }
HWY_INLINE F32x16 abs(const F32x16& a) { KVARTO_LANES(std::fabs(a.lane[i])); }
// Lanes 1, 0, 3, 2, ...
HWY_INLINE F32x16 swap_pairs(const F32x16& a) { KVARTO_LANES(a.lane[i ^ 1]); }
// Lanes below n from a, the others from b.
HWY_INLINE F32x16 first_n(size_t n, const F32x16& a, const F32x16& b) {
  KVARTO_LANES(static_cast<size_t>(i) < n ? a.lane[i] : b.lane[i]);
}
// Lane by lane: t < 0 ? a : b (t's sign bit is not asked; -0 is not below 0).
HWY_INLINE F32x16 if_negative(const F32x16& t, const F32x16& a, const F32x16& b) {
  KVARTO_LANES(t.lane[i] < 0.0f ? a.lane[i] : b.lane[i]);
}
// Truncates; for values that fit (neither NaN nor beyond int32).
HWY_INLINE I32x16 to_int(const F32x16& a) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = static_cast<int32_t>(a.lane[i]);
  return r;
}
HWY_INLINE F32x16 shift_to_exponent(const F32x16& a) {
  KVARTO_LANES(std::bit_cast<float>(std::bit_cast<uint32_t>(a.lane[i]) << 23));
}
#undef KVARTO_LANES
// Rounded to nearest even; f16 saturates; NaN becomes the one quiet NaN of half.h (f16), stays quiet (bf16).
HWY_INLINE void store_f16(const F32x16& a, uint16_t* p) {
  for (int i = 0; i < 16; ++i) p[i] = f32_to_f16(a.lane[i]);
}
HWY_INLINE void store_bf16(const F32x16& a, uint16_t* p) {
  for (int i = 0; i < 16; ++i) p[i] = f32_to_bf16(a.lane[i]);
}

#elif HWY_TARGET == HWY_AVX2

using D8 = hn::FixedTag<float, 8>;
using I8 = hn::FixedTag<int32_t, 8>;
using V8 = hn::Vec<D8>;
struct F32x16 {
  V8 lo, hi;
};
struct I32x16 {
  hn::Vec<I8> lo, hi;
};
HWY_INLINE V8 lower(const F32x16& a) { return a.lo; }
HWY_INLINE V8 upper(const F32x16& a) { return a.hi; }
HWY_INLINE F32x16 splat(float x) {
  const V8 v = hn::Set(D8(), x);
  return {v, v};
}
HWY_INLINE F32x16 load(const float* p) { return {hn::LoadU(D8(), p), hn::LoadU(D8(), p + 8)}; }
HWY_INLINE void store(const F32x16& a, float* p) {
  hn::StoreU(a.lo, D8(), p);
  hn::StoreU(a.hi, D8(), p + 8);
}
HWY_INLINE F32x16 load_f16(const uint16_t* p) {
  const hn::FixedTag<hwy::float16_t, 8> h;
  const auto* q = reinterpret_cast<const hwy::float16_t*>(p);
  return {hn::PromoteTo(D8(), hn::LoadU(h, q)), hn::PromoteTo(D8(), hn::LoadU(h, q + 8))};
}
HWY_INLINE V8 widen_bf16(const uint16_t* p) {
  const hn::FixedTag<uint16_t, 8> h;
  const hn::FixedTag<uint32_t, 8> u;
  return hn::BitCast(D8(), hn::ShiftLeft<16>(hn::PromoteTo(u, hn::LoadU(h, p))));
}
HWY_INLINE F32x16 load_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
HWY_INLINE F32x16 operator+(const F32x16& a, const F32x16& b) { return {hn::Add(a.lo, b.lo), hn::Add(a.hi, b.hi)}; }
HWY_INLINE F32x16 operator-(const F32x16& a, const F32x16& b) { return {hn::Sub(a.lo, b.lo), hn::Sub(a.hi, b.hi)}; }
HWY_INLINE F32x16 operator*(const F32x16& a, const F32x16& b) { return {hn::Mul(a.lo, b.lo), hn::Mul(a.hi, b.hi)}; }
HWY_INLINE F32x16 operator/(const F32x16& a, const F32x16& b) { return {hn::Div(a.lo, b.lo), hn::Div(a.hi, b.hi)}; }
HWY_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  return {hn::MulAdd(a.lo, b.lo, c.lo), hn::MulAdd(a.hi, b.hi, c.hi)};
}
HWY_INLINE F32x16 max(const F32x16& a, const F32x16& b) { return {hn::Max(a.lo, b.lo), hn::Max(a.hi, b.hi)}; }
HWY_INLINE F32x16 min(const F32x16& a, const F32x16& b) { return {hn::Min(a.lo, b.lo), hn::Min(a.hi, b.hi)}; }
HWY_INLINE F32x16 round_even(const F32x16& a) { return {hn::Round(a.lo), hn::Round(a.hi)}; }
HWY_INLINE F32x16 sqrt(const F32x16& a) { return {hn::Sqrt(a.lo), hn::Sqrt(a.hi)}; }
HWY_INLINE F32x16 abs(const F32x16& a) { return {hn::Abs(a.lo), hn::Abs(a.hi)}; }
HWY_INLINE F32x16 swap_pairs(const F32x16& a) { return {hn::Shuffle2301(a.lo), hn::Shuffle2301(a.hi)}; }
HWY_INLINE F32x16 first_n(size_t n, const F32x16& a, const F32x16& b) {
  const size_t low = n < 8 ? n : 8;
  return {hn::IfThenElse(hn::FirstN(D8(), low), a.lo, b.lo), hn::IfThenElse(hn::FirstN(D8(), n - low), a.hi, b.hi)};
}
HWY_INLINE F32x16 if_negative(const F32x16& t, const F32x16& a, const F32x16& b) {
  const V8 zero = hn::Zero(D8());
  return {hn::IfThenElse(hn::Lt(t.lo, zero), a.lo, b.lo), hn::IfThenElse(hn::Lt(t.hi, zero), a.hi, b.hi)};
}
HWY_INLINE I32x16 to_int(const F32x16& a) { return {hn::ConvertTo(I8(), a.lo), hn::ConvertTo(I8(), a.hi)}; }
HWY_INLINE F32x16 shift_to_exponent(const F32x16& a) {
  return {hn::BitCast(D8(), hn::ShiftLeft<23>(hn::BitCast(I8(), a.lo))),
          hn::BitCast(D8(), hn::ShiftLeft<23>(hn::BitCast(I8(), a.hi)))};
}
HWY_INLINE void store_f16(const F32x16& a, uint16_t* p) {
  const hn::FixedTag<hwy::float16_t, 8> h;
  auto* q = reinterpret_cast<hwy::float16_t*>(p);
  hn::StoreU(hn::DemoteTo(h, ready_for_f16(D8(), a.lo)), h, q);
  hn::StoreU(hn::DemoteTo(h, ready_for_f16(D8(), a.hi)), h, q + 8);
}
HWY_INLINE void store_bf16(const F32x16& a, uint16_t* p) {
  const hn::FixedTag<uint16_t, 8> h;
  hn::StoreU(hn::DemoteTo(h, bf16_bits(D8(), a.lo)), h, p);
  hn::StoreU(hn::DemoteTo(h, bf16_bits(D8(), a.hi)), h, p + 8);
}

#else  // AVX-512

using D16 = hn::FixedTag<float, 16>;
using I16 = hn::FixedTag<int32_t, 16>;
struct F32x16 {
  hn::Vec<D16> v;
};
struct I32x16 {
  hn::Vec<I16> v;
};
HWY_INLINE auto lower(const F32x16& a) { return hn::LowerHalf(hn::FixedTag<float, 8>(), a.v); }
HWY_INLINE auto upper(const F32x16& a) { return hn::UpperHalf(hn::FixedTag<float, 8>(), a.v); }
HWY_INLINE F32x16 splat(float x) { return {hn::Set(D16(), x)}; }
HWY_INLINE F32x16 load(const float* p) { return {hn::LoadU(D16(), p)}; }
HWY_INLINE void store(const F32x16& a, float* p) { hn::StoreU(a.v, D16(), p); }
HWY_INLINE F32x16 load_f16(const uint16_t* p) {
  const hn::FixedTag<hwy::float16_t, 16> h;
  return {hn::PromoteTo(D16(), hn::LoadU(h, reinterpret_cast<const hwy::float16_t*>(p)))};
}
HWY_INLINE F32x16 load_bf16(const uint16_t* p) {
  const hn::FixedTag<uint16_t, 16> h;
  const hn::FixedTag<uint32_t, 16> u;
  return {hn::BitCast(D16(), hn::ShiftLeft<16>(hn::PromoteTo(u, hn::LoadU(h, p))))};
}
HWY_INLINE F32x16 operator+(const F32x16& a, const F32x16& b) { return {hn::Add(a.v, b.v)}; }
HWY_INLINE F32x16 operator-(const F32x16& a, const F32x16& b) { return {hn::Sub(a.v, b.v)}; }
HWY_INLINE F32x16 operator*(const F32x16& a, const F32x16& b) { return {hn::Mul(a.v, b.v)}; }
HWY_INLINE F32x16 operator/(const F32x16& a, const F32x16& b) { return {hn::Div(a.v, b.v)}; }
HWY_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) { return {hn::MulAdd(a.v, b.v, c.v)}; }
HWY_INLINE F32x16 max(const F32x16& a, const F32x16& b) { return {hn::Max(a.v, b.v)}; }
HWY_INLINE F32x16 min(const F32x16& a, const F32x16& b) { return {hn::Min(a.v, b.v)}; }
HWY_INLINE F32x16 round_even(const F32x16& a) { return {hn::Round(a.v)}; }
HWY_INLINE F32x16 sqrt(const F32x16& a) { return {hn::Sqrt(a.v)}; }
HWY_INLINE F32x16 abs(const F32x16& a) { return {hn::Abs(a.v)}; }
HWY_INLINE F32x16 swap_pairs(const F32x16& a) { return {hn::Shuffle2301(a.v)}; }
HWY_INLINE F32x16 first_n(size_t n, const F32x16& a, const F32x16& b) {
  return {hn::IfThenElse(hn::FirstN(D16(), n), a.v, b.v)};
}
HWY_INLINE F32x16 if_negative(const F32x16& t, const F32x16& a, const F32x16& b) {
  return {hn::IfThenElse(hn::Lt(t.v, hn::Zero(D16())), a.v, b.v)};
}
HWY_INLINE I32x16 to_int(const F32x16& a) { return {hn::ConvertTo(I16(), a.v)}; }
HWY_INLINE F32x16 shift_to_exponent(const F32x16& a) {
  return {hn::BitCast(D16(), hn::ShiftLeft<23>(hn::BitCast(I16(), a.v)))};
}
HWY_INLINE void store_f16(const F32x16& a, uint16_t* p) {
  const hn::FixedTag<hwy::float16_t, 16> h;
  hn::StoreU(hn::DemoteTo(h, ready_for_f16(D16(), a.v)), h, reinterpret_cast<hwy::float16_t*>(p));
}
HWY_INLINE void store_bf16(const F32x16& a, uint16_t* p) {
  const hn::FixedTag<uint16_t, 16> h;
  hn::StoreU(hn::DemoteTo(h, bf16_bits(D16(), a.v)), h, p);
}

#endif

// 2^n for a whole number n in [-126, 127], through the exponent bits: the sum's last bits are n + 127. Other n, NaN
// included, give some float.
HWY_INLINE F32x16 power_of_two(const F32x16& n) { return shift_to_exponent(n + splat(0x1.8p23f + 127.0f)); }

// The one fold: lane i + lane i+8, then +4, +2, +1. That of the maximum is exact, so any order would do.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE float fold_sum(const F32x16& a) {
  F32x16 t = a;
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) t.lane[i] = t.lane[i] + t.lane[i + width];
  }
  return t.lane[0];
}
HWY_INLINE float fold_max(const F32x16& a) {
  F32x16 t = a;
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) t.lane[i] = t.lane[i] > t.lane[i + width] ? t.lane[i] : t.lane[i + width];
  }
  return t.lane[0];
}
#else
HWY_INLINE float fold_sum(const F32x16& a) {
  const hn::FixedTag<float, 4> d;
  const auto eight = hn::Add(lower(a), upper(a));
  const auto four = hn::Add(hn::LowerHalf(d, eight), hn::UpperHalf(d, eight));
  const auto two = hn::Add(four, hn::Shuffle1032(four));
  return hn::GetLane(hn::Add(two, hn::Shuffle2301(two)));
}
HWY_INLINE float fold_max(const F32x16& a) {
  const hn::FixedTag<float, 4> d;
  const auto eight = hn::Max(lower(a), upper(a));
  const auto four = hn::Max(hn::LowerHalf(d, eight), hn::UpperHalf(d, eight));
  const auto two = hn::Max(four, hn::Shuffle1032(four));
  return hn::GetLane(hn::Max(two, hn::Shuffle2301(two)));
}
#endif
// n <= 16 values; the lanes above are `fill`. Reads no byte behind p + n.
HWY_INLINE F32x16 load_n(const float* p, size_t n, float fill) {
  float t[16];
  for (size_t i = 0; i < 16; ++i) t[i] = i < n ? p[i] : fill;
  return load(t);
}
HWY_INLINE void store_n(const F32x16& a, float* p, size_t n) {
  float t[16];
  store(a, t);
  for (size_t i = 0; i < n; ++i) p[i] = t[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#endif  // toggled guard

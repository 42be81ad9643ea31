// U8x64 and I8x4: sixteen quads of unsigned codes (one per lane of I32x16), and the one quad of signed codes that all
// of them are multiplied with. Everything here is exact, so the targets agree.
//
// Included by kernel files like base/simd.h, which see for the toggled guard.
//
// - move_bits<from, to, count>(a): of each byte, the bits [from, from + count) moved to bit `to`; the others are 0.
// - lookup(table, index): index < 16; load_table takes 16 bytes.
// - dot_wide(sum, w, x): lane += (w[0] - kWideZero) * x[0] + .. + (w[3] - kWideZero) * x[3]; any w, no x of -128.
// - dot_start, dot_add .. , dot_end: sum + w * x + .. for narrow codes, at most dot_run(largest code) calls of dot_add.
// - largest_magnitude(a, b): the largest of all |lanes| as float bits: 0x7f800000 or more if one is inf or NaN.
#if defined(KVARTO_BASE_SIMD_INT8_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTO_BASE_SIMD_INT8_H_
#undef KVARTO_BASE_SIMD_INT8_H_
#else
#define KVARTO_BASE_SIMD_INT8_H_
#endif

#include "base/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

// Quads that AVX2 can add up in 16 bits: each adds two products of at most 127 * largest. Below 2: use dot_wide.
constexpr int dot_run(int largest) { return 32767 / (2 * 127 * largest); }

#if HWY_TARGET != HWY_SCALAR

// 32 codes of activations: one register of AVX2 on AVX-512 too.
struct I8x32 {
  __m256i v;
};
HWY_INLINE I8x32 load_i8(const int8_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
HWY_INLINE void store_i8(const I8x32& a, int8_t* p) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
HWY_INLINE void half_sums(const I8x32& a, int32_t* sums) {
  const __m256i raised = _mm256_xor_si256(a.v, _mm256_set1_epi8(static_cast<char>(0x80)));  // + 128
  const __m256i eights = _mm256_sad_epu8(raised, _mm256_setzero_si256());
  const __m256i sixteens = _mm256_add_epi32(eights, _mm256_unpackhi_epi64(eights, eights));
  sums[0] = _mm256_cvtsi256_si32(sixteens) - 16 * 128;
  sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(sixteens, 1)) - 16 * 128;
}

#endif

#if HWY_TARGET == HWY_SCALAR

struct U8x64 {
  uint8_t byte[64];
};
struct I8x4 {
  int8_t byte[4];
};
using DotRun = I32x16;
constexpr int kWideZero = 0;
HWY_INLINE U8x64 load_u8(const void* p) {
  U8x64 r;
  std::memcpy(r.byte, p, sizeof r.byte);
  return r;
}
HWY_INLINE void store_u8(const U8x64& a, void* p) { std::memcpy(p, a.byte, sizeof a.byte); }
HWY_INLINE U8x64 load_table(const uint8_t* p) {
  U8x64 r;
  for (int i = 0; i < 4; ++i) std::memcpy(r.byte + 16 * i, p, 16);
  return r;
}
HWY_INLINE U8x64 lookup(const U8x64& table, const U8x64& index) {
  U8x64 r;
  for (int i = 0; i < 64; ++i) r.byte[i] = table.byte[index.byte[i]];
  return r;
}
template <int kFrom, int kTo, int kCount>
HWY_INLINE U8x64 move_bits(const U8x64& a) {
  U8x64 r;
  for (int i = 0; i < 64; ++i) r.byte[i] = static_cast<uint8_t>((a.byte[i] >> kFrom & ((1 << kCount) - 1)) << kTo);
  return r;
}
HWY_INLINE U8x64 operator|(const U8x64& a, const U8x64& b) {
  U8x64 r;
  for (int i = 0; i < 64; ++i) r.byte[i] = a.byte[i] | b.byte[i];
  return r;
}
HWY_INLINE I8x4 load_i8x4(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
HWY_INLINE I32x16 dot_wide(const I32x16& sum, const U8x64& w, const I8x4& x) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) {
    const uint8_t* p = w.byte + 4 * i;
    r.lane[i] = sum.lane[i] + p[0] * x.byte[0] + p[1] * x.byte[1] + p[2] * x.byte[2] + p[3] * x.byte[3];
  }
  return r;
}
HWY_INLINE DotRun dot_start(const I32x16& sum) { return sum; }
HWY_INLINE DotRun dot_add(const DotRun& run, const U8x64& w, const I8x4& x) { return dot_wide(run, w, x); }
HWY_INLINE I32x16 dot_end(const I32x16&, const DotRun& run) { return run; }

HWY_INLINE I32x16 splat_int(int32_t x) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = x;
  return r;
}
HWY_INLINE I32x16 load_int(const int32_t* p) {
  I32x16 r;
  std::memcpy(r.lane, p, sizeof r.lane);
  return r;
}
HWY_INLINE void store_int(const I32x16& a, int32_t* p) { std::memcpy(p, a.lane, sizeof a.lane); }
HWY_INLINE I32x16 operator+(const I32x16& a, const I32x16& b) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = a.lane[i] + b.lane[i];
  return r;
}
HWY_INLINE I32x16 operator*(const I32x16& a, const I32x16& b) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = a.lane[i] * b.lane[i];
  return r;
}
HWY_INLINE F32x16 to_float(const I32x16& a) {
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = static_cast<float>(a.lane[i]);
  return r;
}
HWY_INLINE F32x16 load_u8_as_float(const void* p) {
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = static_cast<const uint8_t*>(p)[i];
  return r;
}
HWY_INLINE F32x16 load_i8_as_float(const void* p) {
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = static_cast<const int8_t*>(p)[i];
  return r;
}
struct I8x32 {
  int8_t byte[32];
};
HWY_INLINE I8x32 to_i8(const F32x16& a, const F32x16& b) {
  I8x32 r;
  for (int i = 0; i < 32; ++i) {
    const float v = i < 16 ? a.lane[i] : b.lane[i - 16];
    r.byte[i] = static_cast<int8_t>(v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v);
  }
  return r;
}
HWY_INLINE I8x32 load_i8(const int8_t* p) {
  I8x32 r;
  std::memcpy(r.byte, p, sizeof r.byte);
  return r;
}
HWY_INLINE void store_i8(const I8x32& a, int8_t* p) { std::memcpy(p, a.byte, sizeof a.byte); }
HWY_INLINE void half_sums(const I8x32& a, int32_t* sums) {
  sums[0] = sums[1] = 0;
  for (int i = 0; i < 32; ++i) sums[i / 16] += a.byte[i];
}
HWY_INLINE bool all_below(const F32x16& a, float limit) {
  bool below = true;
  for (float v : a.lane) below &= v < limit;
  return below;
}
HWY_INLINE uint32_t largest_magnitude(const F32x16& a, const F32x16& b) {
  uint32_t largest = 0;
  for (int i = 0; i < 16; ++i) {
    for (float v : {a.lane[i], b.lane[i]}) {
      const uint32_t bits = std::bit_cast<uint32_t>(v) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
  }
  return largest;
}

#elif HWY_TARGET == HWY_AVX2

struct U8x64 {
  __m256i lo, hi;
};
struct I8x4 {
  __m256i v;
};
struct DotRun {
  __m256i lo, hi;  // 2 x 8 pairs of int16
};
constexpr int kWideZero = 128;
HWY_INLINE U8x64 load_u8(const void* p) {
  const auto* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
HWY_INLINE void store_u8(const U8x64& a, void* p) {
  auto* v = static_cast<__m256i*>(p);
  _mm256_storeu_si256(v, a.lo);
  _mm256_storeu_si256(v + 1, a.hi);
}
HWY_INLINE U8x64 load_table(const uint8_t* p) {
  const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {v, v};
}
HWY_INLINE U8x64 lookup(const U8x64& table, const U8x64& index) {
  return {_mm256_shuffle_epi8(table.lo, index.lo), _mm256_shuffle_epi8(table.hi, index.hi)};
}
template <int kFrom, int kTo, int kCount>
HWY_INLINE __m256i move_bits(__m256i v) {
  if constexpr (kFrom > kTo) v = _mm256_srli_epi16(v, kFrom - kTo);
  if constexpr (kFrom < kTo) v = _mm256_slli_epi16(v, kTo - kFrom);
  return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(((1 << kCount) - 1) << kTo)));
}
template <int kFrom, int kTo, int kCount>
HWY_INLINE U8x64 move_bits(const U8x64& a) {
  return {move_bits<kFrom, kTo, kCount>(a.lo), move_bits<kFrom, kTo, kCount>(a.hi)};
}
HWY_INLINE U8x64 operator|(const U8x64& a, const U8x64& b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
HWY_INLINE I8x4 load_i8x4(const int8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return {_mm256_set1_epi32(bits)};
}
// The instruction saturates at 16 bits: 255 * 127 * 2 is beyond, so the codes are made signed (hence kWideZero) and the
// sign moves to the other side.
HWY_INLINE __m256i dot_wide(__m256i sum, __m256i w, __m256i x) {
  const __m256i s = _mm256_xor_si256(w, _mm256_set1_epi8(static_cast<char>(0x80)));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8(x, s));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
HWY_INLINE I32x16 dot_wide(const I32x16& sum, const U8x64& w, const I8x4& x) {
  using V = hn::Vec<I8>;
  return {V{dot_wide(sum.lo.raw, w.lo, x.v)}, V{dot_wide(sum.hi.raw, w.hi, x.v)}};
}
HWY_INLINE DotRun dot_start(const I32x16&) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
HWY_INLINE DotRun dot_add(const DotRun& run, const U8x64& w, const I8x4& x) {
  return {_mm256_add_epi16(run.lo, _mm256_maddubs_epi16(w.lo, x.v)),
          _mm256_add_epi16(run.hi, _mm256_maddubs_epi16(w.hi, x.v))};
}
HWY_INLINE I32x16 dot_end(const I32x16& sum, const DotRun& run) {
  using V = hn::Vec<I8>;
  const __m256i ones = _mm256_set1_epi16(1);
  return {V{_mm256_add_epi32(sum.lo.raw, _mm256_madd_epi16(run.lo, ones))},
          V{_mm256_add_epi32(sum.hi.raw, _mm256_madd_epi16(run.hi, ones))}};
}

HWY_INLINE I32x16 splat_int(int32_t x) {
  const auto v = hn::Set(I8(), x);
  return {v, v};
}
HWY_INLINE I32x16 load_int(const int32_t* p) { return {hn::LoadU(I8(), p), hn::LoadU(I8(), p + 8)}; }
HWY_INLINE void store_int(const I32x16& a, int32_t* p) {
  hn::StoreU(a.lo, I8(), p);
  hn::StoreU(a.hi, I8(), p + 8);
}
HWY_INLINE I32x16 operator+(const I32x16& a, const I32x16& b) { return {hn::Add(a.lo, b.lo), hn::Add(a.hi, b.hi)}; }
HWY_INLINE I32x16 operator*(const I32x16& a, const I32x16& b) { return {hn::Mul(a.lo, b.lo), hn::Mul(a.hi, b.hi)}; }
HWY_INLINE F32x16 to_float(const I32x16& a) { return {hn::ConvertTo(D8(), a.lo), hn::ConvertTo(D8(), a.hi)}; }
HWY_INLINE F32x16 load_u8_as_float(const void* p) {
  const hn::FixedTag<uint8_t, 8> b;
  const auto* q = static_cast<const uint8_t*>(p);
  return to_float({hn::PromoteTo(I8(), hn::LoadU(b, q)), hn::PromoteTo(I8(), hn::LoadU(b, q + 8))});
}
HWY_INLINE F32x16 load_i8_as_float(const void* p) {
  const hn::FixedTag<int8_t, 8> b;
  const auto* q = static_cast<const int8_t*>(p);
  return to_float({hn::PromoteTo(I8(), hn::LoadU(b, q)), hn::PromoteTo(I8(), hn::LoadU(b, q + 8))});
}
HWY_INLINE I8x32 to_i8(const F32x16& a, const F32x16& b) {
  // The packs work in halves of 128 bits: a permutation puts the fours back in order.
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo.raw), _mm256_cvtps_epi32(a.hi.raw));
  const __m256i more_words = _mm256_packs_epi32(_mm256_cvtps_epi32(b.lo.raw), _mm256_cvtps_epi32(b.hi.raw));
  const __m256i bytes = _mm256_packs_epi16(words, more_words);
  const __m256i ordered = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  return {_mm256_max_epi8(ordered, _mm256_set1_epi8(-127))};
}
HWY_INLINE bool all_below(const F32x16& a, float limit) {
  return hn::AllTrue(D8(), hn::Lt(hn::Max(a.lo, a.hi), hn::Set(D8(), limit)));
}
HWY_INLINE uint32_t largest_magnitude(const F32x16& a, const F32x16& b) {
  const auto x = hn::Max(hn::BitCast(I8(), hn::Abs(a.lo)), hn::BitCast(I8(), hn::Abs(a.hi)));
  const auto y = hn::Max(hn::BitCast(I8(), hn::Abs(b.lo)), hn::BitCast(I8(), hn::Abs(b.hi)));
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I8(), hn::Max(x, y))));
}

#else  // AVX-512

struct U8x64 {
  __m512i v;
};
struct I8x4 {
  __m512i v;
};
using DotRun = I32x16;
constexpr int kWideZero = 0;
HWY_INLINE U8x64 load_u8(const void* p) { return {_mm512_loadu_si512(p)}; }
HWY_INLINE void store_u8(const U8x64& a, void* p) { _mm512_storeu_si512(p, a.v); }
HWY_INLINE U8x64 load_table(const uint8_t* p) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
HWY_INLINE U8x64 lookup(const U8x64& table, const U8x64& index) { return {_mm512_shuffle_epi8(table.v, index.v)}; }
template <int kFrom, int kTo, int kCount>
HWY_INLINE U8x64 move_bits(const U8x64& a) {
  __m512i v = a.v;
  if constexpr (kFrom > kTo) v = _mm512_srli_epi16(v, kFrom - kTo);
  if constexpr (kFrom < kTo) v = _mm512_slli_epi16(v, kTo - kFrom);
  return {_mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(((1 << kCount) - 1) << kTo)))};
}
HWY_INLINE U8x64 operator|(const U8x64& a, const U8x64& b) { return {_mm512_or_si512(a.v, b.v)}; }
HWY_INLINE I8x4 load_i8x4(const int8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return {_mm512_set1_epi32(bits)};
}
HWY_INLINE I32x16 dot_wide(const I32x16& sum, const U8x64& w, const I8x4& x) {
  return {hn::Vec<I16>{_mm512_dpbusd_epi32(sum.v.raw, w.v, x.v)}};
}
HWY_INLINE DotRun dot_start(const I32x16& sum) { return sum; }
HWY_INLINE DotRun dot_add(const DotRun& run, const U8x64& w, const I8x4& x) { return dot_wide(run, w, x); }
HWY_INLINE I32x16 dot_end(const I32x16&, const DotRun& run) { return run; }

HWY_INLINE I32x16 splat_int(int32_t x) { return {hn::Set(I16(), x)}; }
HWY_INLINE I32x16 load_int(const int32_t* p) { return {hn::LoadU(I16(), p)}; }
HWY_INLINE void store_int(const I32x16& a, int32_t* p) { hn::StoreU(a.v, I16(), p); }
HWY_INLINE I32x16 operator+(const I32x16& a, const I32x16& b) { return {hn::Add(a.v, b.v)}; }
HWY_INLINE I32x16 operator*(const I32x16& a, const I32x16& b) { return {hn::Mul(a.v, b.v)}; }
HWY_INLINE F32x16 to_float(const I32x16& a) { return {hn::ConvertTo(D16(), a.v)}; }
HWY_INLINE F32x16 load_u8_as_float(const void* p) {
  const hn::FixedTag<uint8_t, 16> b;
  return to_float({hn::PromoteTo(I16(), hn::LoadU(b, static_cast<const uint8_t*>(p)))});
}
HWY_INLINE F32x16 load_i8_as_float(const void* p) {
  const hn::FixedTag<int8_t, 16> b;
  return to_float({hn::PromoteTo(I16(), hn::LoadU(b, static_cast<const int8_t*>(p)))});
}
HWY_INLINE I8x32 to_i8(const F32x16& a, const F32x16& b) {
  const __m128i first = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v.raw));
  const __m128i second = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(b.v.raw));
  return {_mm256_max_epi8(_mm256_set_m128i(second, first), _mm256_set1_epi8(-127))};
}
HWY_INLINE bool all_below(const F32x16& a, float limit) {
  return hn::AllTrue(D16(), hn::Lt(a.v, hn::Set(D16(), limit)));
}
HWY_INLINE uint32_t largest_magnitude(const F32x16& a, const F32x16& b) {
  const auto most = hn::Max(hn::BitCast(I16(), hn::Abs(a.v)), hn::BitCast(I16(), hn::Abs(b.v)));
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I16(), most)));
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#endif  // toggled guard

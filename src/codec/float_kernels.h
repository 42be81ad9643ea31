// Kernels of codecs whose tile is plain floats of some width: the derived struct says how 16 neighbours are loaded and
// stored. Lossy codecs bring their own Kernels<Codec> with the same members; one that has no loops over its codes sets
// kMaxRows to 0 and is always unsealed first. Included per SIMD target by the codec files.
#if defined(KVARTO_CODEC_FLOAT_KERNELS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTO_CODEC_FLOAT_KERNELS_H_
#undef KVARTO_CODEC_FLOAT_KERNELS_H_
#else
#define KVARTO_CODEC_FLOAT_KERNELS_H_
#endif

#include <algorithm>
#include <cstring>

#include "base/simd.h"
#include "codec/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

template <class Codec>
struct Kernels;

// Registers decide how many sums a kernel keeps: 24 of 32 with AVX-512, 12 of 16 (two to a vector of 16) with AVX2.
// Beside them lie one vector of every column and one broadcast value.
#if HWY_TARGET == HWY_AVX3_DL
inline constexpr int kRowsAtOnce = 12;
constexpr int sub_tiles_at_once(int /*rows*/) { return 2; }
constexpr int vectors_at_once(int rows) { return rows <= 6 ? 4 : rows <= 8 ? 3 : 2; }
#else
inline constexpr int kRowsAtOnce = 6;
constexpr int sub_tiles_at_once(int rows) { return rows <= 2 ? 2 : 1; }
constexpr int vectors_at_once(int rows) { return rows == 1 ? 3 : rows == 2 ? 2 : 1; }
#endif
static_assert(kRowsAtOnce <= kMaxKernelRows);

// Loops over stored elements. Every sum is one chain of fused multiply-adds in the order of DESIGN section 2, however
// many rows, sub-tiles or vectors go side by side.
template <class Derived, class Element>
struct FloatLoops {
  static constexpr int kMaxRows = kRowsAtOnce;
  static constexpr bool kFetchAhead = true;

  // Sub-tiles [padded_dims][16 tokens]: 16 tokens across lanes, dims ascending.
  template <int kRows>
  static void score(const float* q, size_t dims, SubTiles keys, float* out) {
    constexpr int kTiles = sub_tiles_at_once(kRows);
    size_t i = 0;
    for (; i + kTiles <= keys.count; i += kTiles) score_tiles<kRows, kTiles>(q, dims, keys.at + i, out + i * 16);
    for (; i < keys.count; ++i) score_tiles<kRows, 1>(q, dims, keys.at + i, out + i * 16);
  }

  // Sub-tiles [16 tokens][padded_dims]: dims across lanes, keys ascending, added to what `out` holds.
  template <int kRows>
  static void mix(const float* p, SubTiles values, size_t first, size_t last, size_t padded_dims, float* out) {
    constexpr int kVectors = vectors_at_once(kRows);
    size_t d = 0;
    for (; d + kVectors * 16 <= padded_dims; d += kVectors * 16) {
      mix_vectors<kRows, kVectors>(p, values.at, first, last, padded_dims, d, out + d);
    }
    for (; d < padded_dims; d += 16) mix_vectors<kRows, 1>(p, values.at, first, last, padded_dims, d, out + d);
  }

 private:
  static HWY_INLINE const Element* elements(const std::byte* sub_tile) {
    return reinterpret_cast<const Element*>(sub_tile);
  }

  template <int kRows, int kTiles>
  static HWY_INLINE void score_tiles(const float* q, size_t dims, const std::byte* const* at, float* out) {
    F32x16 sum[kRows][kTiles];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int t = 0; t < kTiles; ++t) sum[r][t] = splat(0.0f);
    }
    for (size_t d = 0; d < dims; ++d) {
      F32x16 key[kTiles];
#pragma GCC unroll 16
      for (int t = 0; t < kTiles; ++t) {
        key[t] = Derived::load16(elements(at[t]) + d * 16);
        if constexpr (Derived::kFetchAhead) __builtin_prefetch(elements(at[t + kLookAhead]) + d * 16);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const F32x16 query = splat(q[d * kRows + r]);
#pragma GCC unroll 16
        for (int t = 0; t < kTiles; ++t) sum[r][t] = fma(query, key[t], sum[r][t]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int t = 0; t < kTiles; ++t) store(sum[r][t], out + r * kScoreStride + t * 16);
    }
  }

  template <int kRows, int kVectors>
  static HWY_INLINE void mix_vectors(const float* p, const std::byte* const* at, size_t first, size_t last,
                                     size_t padded_dims, size_t d, float* out) {
    F32x16 sum[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = load(out + r * padded_dims + v * 16);
    }
    for (size_t i = first / 16; i * 16 < last; ++i) {
      const Element* value_at = elements(at[i]) + d;
      [[maybe_unused]] const Element* fetch_at = nullptr;
      if constexpr (Derived::kFetchAhead) fetch_at = elements(at[i + kLookAhead]) + d;
      const float *weight_at = p + std::max(first, i * 16), *const past = p + std::min(last, i * 16 + 16);
      value_at += (weight_at - p) % 16 * padded_dims;
      for (; weight_at != past; ++weight_at, value_at += padded_dims) {
        F32x16 value[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          value[v] = Derived::load16(value_at + v * 16);
          if constexpr (Derived::kFetchAhead) {
            if (v * 16 * sizeof(Element) % 64 == 0) __builtin_prefetch(fetch_at + v * 16);
          }
        }
        if constexpr (Derived::kFetchAhead) fetch_at += padded_dims;
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const F32x16 weight = splat(weight_at[r * kScoreStride]);
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(weight, value[v], sum[r][v]);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) store(sum[r][v], out + r * padded_dims + v * 16);
    }
  }
};

// Unsealed sub-tiles: what many rows share, at hand in the first-level cache.
struct UnsealedKernels : FloatLoops<UnsealedKernels, float> {
  static constexpr bool kFetchAhead = false;
  static HWY_INLINE F32x16 load16(const float* p) { return load(p); }
};

// The derived struct adds load16, store16 and, where the type saturates, kSaturatesFrom.
template <class Derived, class Codec>
struct FloatKernels : FloatLoops<Derived, typename Codec::Element> {
  using Element = typename Codec::Element;

  static void unseal_scored(const std::byte* sub_tile, size_t dims, float* out) { unseal(sub_tile, dims, out); }
  static void unseal_mixed(const std::byte* sub_tile, size_t padded_dims, float* out) {
    unseal(sub_tile, padded_dims, out);
  }

  // Padding becomes zeros: it is what lies behind the dims of the last vector.
  static uint64_t write_scored(const float* rows, size_t stride, size_t tokens, size_t dims, size_t padded_dims,
                               std::byte* sub_tile, size_t slot) {
    auto* keys = reinterpret_cast<Element*>(sub_tile) + slot;
    uint64_t saturated = 0;
    for (size_t d = 0; d < padded_dims; d += 16) {
      Element block[16][16];
      for (size_t t = 0; t < tokens; ++t) saturated += store_row(rows + t * stride, d, dims, block[t]);
      for (size_t i = 0; i < 16; ++i) {
        for (size_t t = 0; t < tokens; ++t) keys[(d + i) * 16 + t] = block[t][i];
      }
    }
    return saturated;
  }
  static uint64_t write_mixed(const float* rows, size_t stride, size_t tokens, size_t dims, size_t padded_dims,
                              std::byte* sub_tile, size_t slot) {
    auto* values = reinterpret_cast<Element*>(sub_tile) + slot * padded_dims;
    uint64_t saturated = 0;
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t d = 0; d < padded_dims; d += 16) {
        saturated += store_row(rows + t * stride, d, dims, values + t * padded_dims + d);
      }
    }
    return saturated;
  }

  // Sealing is the identity.
  static void seal(const std::byte* raw, size_t tokens, size_t padded_dims, std::byte* out) {
    std::memcpy(out, raw, tokens * padded_dims * sizeof(Element));
  }

 private:
  static HWY_INLINE void unseal(const std::byte* sub_tile, size_t vectors, float* out) {
    const auto* from = reinterpret_cast<const Element*>(sub_tile);
    for (size_t i = 0; i < vectors; ++i) store(Derived::load16(from + i * 16), out + i * 16);
  }

  // Dims [d, d + 16) of a row; returns how many of them saturate.
  static HWY_INLINE uint64_t store_row(const float* row, size_t d, size_t dims, Element* out) {
    const F32x16 x = d + 16 <= dims ? load(row + d) : load_n(row + d, dims - d, 0.0f);
    Derived::store16(x, out);
    if constexpr (requires { Derived::kSaturatesFrom; }) {
      const F32x16 magnitude = max(abs(x), splat(0.0f));  // a NaN counts as zero
      if (fold_max(magnitude) >= Derived::kSaturatesFrom) {
        float each[16];
        store(magnitude, each);
        return static_cast<uint64_t>(
            std::count_if(each, each + 16, [](float m) HWY_ATTR { return m >= Derived::kSaturatesFrom; }));
      }
    }
    return 0;
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();
#endif  // toggled guard

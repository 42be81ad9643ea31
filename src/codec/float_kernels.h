// Kernels of codecs whose tile is plain floats of some width: the derived struct says how 16 neighbours are loaded.
// Lossy codecs bring their own Kernels<Codec> with the same members. Included per SIMD target by the codec files.
#if defined(KVARTO_CODEC_FLOAT_KERNELS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTO_CODEC_FLOAT_KERNELS_H_
#undef KVARTO_CODEC_FLOAT_KERNELS_H_
#else
#define KVARTO_CODEC_FLOAT_KERNELS_H_
#endif

#include <cstring>

#include "base/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

template <class Codec>
struct Kernels;

template <class Derived, class Codec>
struct FloatKernels {
  using Element = typename Codec::Element;

  // Sub-tile [padded_dims][16 tokens]: 16 tokens across lanes, dims ascending, one chain per score.
  template <int kRows>
  static HWY_INLINE void score(const float* q, size_t q_stride, size_t dims, const std::byte* sub_tile, float* out,
                               size_t out_stride) {
    const auto* keys = reinterpret_cast<const Element*>(sub_tile);
    F32x16 acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = splat(0.0f);
    for (size_t d = 0; d < dims; ++d) {
      const F32x16 k = Derived::load16(keys + d * 16);
      for (int r = 0; r < kRows; ++r) acc[r] = fma(splat(q[static_cast<size_t>(r) * q_stride + d]), k, acc[r]);
    }
    for (int r = 0; r < kRows; ++r) store(acc[r], out + static_cast<size_t>(r) * out_stride);
  }

  // Sub-tile [16 tokens][padded_dims]: dims across lanes, keys [first, last) ascending, added to what `out` holds.
  template <int kRows>
  static HWY_INLINE void mix(const float* p, size_t p_stride, size_t first, size_t last, size_t padded_dims,
                             const std::byte* sub_tile, float* out, size_t out_stride) {
    const auto* values = reinterpret_cast<const Element*>(sub_tile);
    for (size_t d = 0; d < padded_dims; d += 16) {
      F32x16 acc[kRows];
      for (int r = 0; r < kRows; ++r) acc[r] = load(out + static_cast<size_t>(r) * out_stride + d);
      for (size_t j = first; j < last; ++j) {
        const F32x16 v = Derived::load16(values + j * padded_dims + d);
        for (int r = 0; r < kRows; ++r) acc[r] = fma(splat(p[static_cast<size_t>(r) * p_stride + j]), v, acc[r]);
      }
      for (int r = 0; r < kRows; ++r) store(acc[r], out + static_cast<size_t>(r) * out_stride + d);
    }
  }

  // One token's row into its slot of a sub-tile; the padding is zeroed.
  static void write_scored(const float* row, size_t dims, size_t padded_dims, std::byte* sub_tile, size_t slot) {
    auto* keys = reinterpret_cast<Element*>(sub_tile);
    for (size_t d = 0; d < dims; ++d) keys[d * 16 + slot] = Codec::encode(row[d]);
    for (size_t d = dims; d < padded_dims; ++d) keys[d * 16 + slot] = Element{};
  }
  static void write_mixed(const float* row, size_t dims, size_t padded_dims, std::byte* sub_tile, size_t slot) {
    auto* values = reinterpret_cast<Element*>(sub_tile) + slot * padded_dims;
    for (size_t d = 0; d < dims; ++d) values[d] = Codec::encode(row[d]);
    for (size_t d = dims; d < padded_dims; ++d) values[d] = Element{};
  }

  // Sealing is the identity.
  static void seal(const std::byte* raw, size_t tokens, size_t padded_dims, std::byte* out) {
    std::memcpy(out, raw, tokens * padded_dims * sizeof(Element));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();
#endif  // toggled guard

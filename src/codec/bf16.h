// KV as bfloat16: nearest even.
#ifndef KVARTO_CODEC_BF16_H_
#define KVARTO_CODEC_BF16_H_

#include <array>

#include "codec/codec.h"

namespace kvarto {

struct CodecBf16 {
  using Element = uint16_t;
  static constexpr std::array<std::string_view, 1> kAliases = {"bf16"};
  static CodecInfo info() {
    return {.dtype = KvDtype::bf16,
            .name = "bfloat16",
            .aliases = kAliases,
            .bits = 16,
            .identity = true,
            .tile_bytes = [](uint32_t tokens, uint32_t padded_dims) { return size_t{2} * tokens * padded_dims; }};
  }
};

}  // namespace kvarto
#endif  // KVARTO_CODEC_BF16_H_

// Kernels, once per SIMD target.
#if defined(HWY_TARGET_INCLUDE) && (defined(KVARTO_CODEC_BF16_SIMD_) == defined(HWY_TARGET_TOGGLE))
#ifdef KVARTO_CODEC_BF16_SIMD_
#undef KVARTO_CODEC_BF16_SIMD_
#else
#define KVARTO_CODEC_BF16_SIMD_
#endif
#include "codec/float_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

template <>
struct Kernels<CodecBf16> : FloatKernels<Kernels<CodecBf16>, CodecBf16> {
  static HWY_INLINE F32x16 load16(const CodecBf16::Element* p) { return load_bf16(p); }
  static HWY_INLINE void store16(const F32x16& x, CodecBf16::Element* p) { store_bf16(x, p); }
};

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();
#endif

// KV as IEEE half floats: nearest even, saturating at +-65504.
#ifndef KVARTO_CODEC_F16_H_
#define KVARTO_CODEC_F16_H_

#include <array>

#include "codec/codec.h"

namespace kvarto {

struct CodecF16 {
  using Element = uint16_t;
  static constexpr std::array<std::string_view, 3> kAliases = {"f16", "fp16", "half"};
  static CodecInfo info() {
    return {.dtype = KvDtype::f16,
            .name = "float16",
            .aliases = kAliases,
            .bits = 16,
            .identity = true,
            .tile_bytes = [](uint32_t tokens, uint32_t padded_dims) { return size_t{2} * tokens * padded_dims; }};
  }
};

}  // namespace kvarto
#endif  // KVARTO_CODEC_F16_H_

// Kernels, once per SIMD target.
#if defined(HWY_TARGET_INCLUDE) && (defined(KVARTO_CODEC_F16_SIMD_) == defined(HWY_TARGET_TOGGLE))
#ifdef KVARTO_CODEC_F16_SIMD_
#undef KVARTO_CODEC_F16_SIMD_
#else
#define KVARTO_CODEC_F16_SIMD_
#endif
#include "codec/float_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

template <>
struct Kernels<CodecF16> : FloatKernels<Kernels<CodecF16>, CodecF16> {
  static HWY_INLINE F32x16 load16(const CodecF16::Element* p) { return load_f16(p); }
  static HWY_INLINE void store16(const F32x16& x, CodecF16::Element* p) { store_f16(x, p); }
  static constexpr float kSaturatesFrom = 65520.0f;  // below it rounds to 65504
};

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();
#endif

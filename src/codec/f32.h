// KV as 32-bit floats: exact, for tests and as the reference of quality.
#ifndef KVARTO_CODEC_F32_H_
#define KVARTO_CODEC_F32_H_

#include <array>

#include "codec/codec.h"

namespace kvarto {

struct CodecF32 {
  using Element = float;
  static constexpr std::array<std::string_view, 2> kAliases = {"f32", "fp32"};
  static CodecInfo info() {
    return {.dtype = KvDtype::f32,
            .name = "float32",
            .aliases = kAliases,
            .bits = 32,
            .identity = true,
            .tile_bytes = [](uint32_t tokens, uint32_t padded_dims) { return size_t{4} * tokens * padded_dims; }};
  }
};

}  // namespace kvarto
#endif  // KVARTO_CODEC_F32_H_

// Kernels, once per SIMD target.
#if defined(HWY_TARGET_INCLUDE) && (defined(KVARTO_CODEC_F32_SIMD_) == defined(HWY_TARGET_TOGGLE))
#ifdef KVARTO_CODEC_F32_SIMD_
#undef KVARTO_CODEC_F32_SIMD_
#else
#define KVARTO_CODEC_F32_SIMD_
#endif
#include "codec/float_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

template <>
struct Kernels<CodecF32> : FloatKernels<Kernels<CodecF32>, CodecF32> {
  static HWY_INLINE F32x16 load16(const CodecF32::Element* p) { return load(p); }
  static HWY_INLINE void store16(const F32x16& x, CodecF32::Element* p) { store(x, p); }
};

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();
#endif

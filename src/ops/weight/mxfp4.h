// MXFP4: 32 weights in 17 bytes. One exponent byte e; nibbles as in Q4_0 that are E2M1 floats, kept doubled here, so
// the scale is 2^(e - 128). Source: OCP Microscaling Formats 1.0; the order of the nibbles is GGUF's.
#pragma once

#include <cmath>

#include "ops/quant.h"
#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline constexpr float kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline float mxfp4_scale(const std::byte* in) {
  return std::ldexp(1.0f, static_cast<int>(as_u8(in)[0]) - 128);  // exact, subnormal for e = 0 and 1
}

inline void dequantize_mxfp4(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 17, out += 32) {
    const float d = mxfp4_scale(in);
    const uint8_t* q = as_u8(in + 1);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * kE2m1Doubled[low_nibble(q[i])];
      out[i + 16] = d * kE2m1Doubled[high_nibble(q[i])];
    }
  }
}

inline constexpr auto kE2m1Codes = table_codes(kE2m1Doubled, 12);

inline void unpack_mxfp4(const std::byte* in, size_t /*index*/, QuantBlock& out) {
  out.single = mxfp4_scale(in);
  unpack_nibbles(in + 1, out.code);
}

inline constexpr QuantFormat kMXFP4Quant{{4, true, 12, QuantScale::single}, kE2m1Codes.data(), unpack_mxfp4};
inline constexpr WeightFormat kMXFP4{39, "MXFP4", 32, 17, dequantize_mxfp4, &kMXFP4Quant};

}  // namespace kvarto::weight

// MXFP4: 32 weights in 17 bytes. One exponent byte e; nibbles as in Q4_0 that are E2M1 floats, kept doubled here, so
// the scale is 2^(e - 128). Source: OCP Microscaling Formats 1.0; the order of the nibbles is GGUF's.
#pragma once

#include <cmath>

#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline constexpr float kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline void dequantize_mxfp4(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 17, out += 32) {
    const float d = std::ldexp(1.0f, static_cast<int>(as_u8(in)[0]) - 128);  // exact, subnormal for e = 0 and 1
    const uint8_t* q = as_u8(in + 1);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * kE2m1Doubled[low_nibble(q[i])];
      out[i + 16] = d * kE2m1Doubled[high_nibble(q[i])];
    }
  }
}

inline constexpr WeightFormat kMXFP4{39, "MXFP4", 32, 17, dequantize_mxfp4};

}  // namespace kvarto::weight

// Q4_1: 32 weights in 20 bytes. f16 d, f16 m; nibbles as in Q4_0. d * q + m.
#pragma once

#include "ops/quant.h"
#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_q4_1(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 20, out += 32) {
    const float d = load_f16(in);
    const float m = load_f16(in + 2);
    const uint8_t* q = as_u8(in + 4);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(low_nibble(q[i])) + m;
      out[i + 16] = d * static_cast<float>(high_nibble(q[i])) + m;
    }
  }
}

inline void unpack_q4_1(const std::byte* in, size_t /*index*/, QuantBlock& out) {
  out.d = load<uint16_t>(in);
  out.m = load<uint16_t>(in + 2);
  unpack_nibbles(in + 4, out.code);
}

inline constexpr QuantFormat kQ4_1Quant{{4, false, 0, QuantScale::half_min}, nullptr, unpack_q4_1};
inline constexpr WeightFormat kQ4_1{3, "Q4_1", 32, 20, dequantize_q4_1, &kQ4_1Quant};

}  // namespace kvarto::weight

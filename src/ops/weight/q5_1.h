// Q5_1: 32 weights in 24 bytes. f16 d, f16 m; u32 of fifth bits and nibbles as in Q5_0. d * q + m.
#pragma once

#include "ops/quant.h"
#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_q5_1(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 24, out += 32) {
    const float d = load_f16(in);
    const float m = load_f16(in + 2);
    const uint32_t fifth = load<uint32_t>(in + 4);
    const uint8_t* q = as_u8(in + 8);
    for (int i = 0; i < 16; ++i) {
      const int low = low_nibble(q[i]) | static_cast<int>(fifth >> i & 1) << 4;
      const int high = high_nibble(q[i]) | static_cast<int>(fifth >> (i + 16) & 1) << 4;
      out[i] = d * static_cast<float>(low) + m;
      out[i + 16] = d * static_cast<float>(high) + m;
    }
  }
}

inline void unpack_q5_1(const std::byte* in, size_t /*index*/, QuantBlock& out) {
  out.d = load<uint16_t>(in);
  out.m = load<uint16_t>(in + 2);
  unpack_nibbles(in + 8, out.code);
  add_fifth_bits(in + 4, out.code);
}

inline constexpr QuantFormat kQ5_1Quant{{5, false, 0, QuantScale::half_min}, nullptr, unpack_q5_1};
inline constexpr WeightFormat kQ5_1{7, "Q5_1", 32, 24, dequantize_q5_1, &kQ5_1Quant};

}  // namespace kvarto::weight

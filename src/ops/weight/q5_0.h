// Q5_0: 32 weights in 22 bytes. f16 d; u32 whose bit i is the fifth bit of weight i; nibbles as in Q4_0. d * (q - 16).
#pragma once

#include "ops/quant.h"
#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_q5_0(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 22, out += 32) {
    const float d = load_f16(in);
    const uint32_t fifth = load<uint32_t>(in + 2);
    const uint8_t* q = as_u8(in + 6);
    for (int i = 0; i < 16; ++i) {
      const int low = low_nibble(q[i]) | static_cast<int>(fifth >> i & 1) << 4;
      const int high = high_nibble(q[i]) | static_cast<int>(fifth >> (i + 16) & 1) << 4;
      out[i] = d * static_cast<float>(low - 16);
      out[i + 16] = d * static_cast<float>(high - 16);
    }
  }
}

inline void unpack_q5_0(const std::byte* in, size_t /*index*/, QuantBlock& out) {
  out.d = load<uint16_t>(in);
  unpack_nibbles(in + 6, out.code);
  add_fifth_bits(in + 2, out.code);
}

inline constexpr QuantFormat kQ5_0Quant{{5, false, 16, QuantScale::half}, nullptr, unpack_q5_0};
inline constexpr WeightFormat kQ5_0{6, "Q5_0", 32, 22, dequantize_q5_0, &kQ5_0Quant};

}  // namespace kvarto::weight

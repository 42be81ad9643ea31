// Q3_K: 256 weights in 110 bytes. 32 bytes of high bits at 0 (bit i / 32 of byte i % 32); 64 bytes of low bits at 32,
// laid out as in Q2_K; 12 bytes of sixteen 6-bit scales at 96; f16 d at 108. (d * (scale - 32)) * (q - 4).
#pragma once

#include "ops/quant.h"
#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

// Scale of group j: four low bits are a nibble of byte j % 8, two high bits a pair of byte 8 + j % 4.
inline int q3_k_scale(const uint8_t* s, int j) {
  const int low = j < 8 ? low_nibble(s[j]) : high_nibble(s[j - 8]);
  const int high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
  return (low | high << 4) - 32;
}

inline void dequantize_q3_k(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 110, out += 256) {
    const uint8_t* high_bits = as_u8(in);
    const uint8_t* q = as_u8(in + 32);
    const uint8_t* scales = as_u8(in + 96);
    const float d = load_f16(in + 108);
    for (int group = 0; group < 16; ++group) {
      const float scale = d * static_cast<float>(q3_k_scale(scales, group));
      const uint8_t* low = q + 32 * (group / 8) + 16 * (group % 2);
      const uint8_t* high = high_bits + 16 * (group % 2);
      const int shift = 2 * (group % 8 / 2);
      const int bit = group / 2;
      for (int i = 0; i < 16; ++i) {
        const int value = (low[i] >> shift & 3) + 4 * (high[i] >> bit & 1) - 4;
        out[16 * group + i] = scale * static_cast<float>(value);
      }
    }
  }
}

inline void unpack_q3_k(const std::byte* in, size_t index, QuantBlock& out) {
  const std::byte* low = in + 32 + 32 * (index / 4);
  const int shift = 2 * static_cast<int>(index % 4);
  const int bit = static_cast<int>(index);
  for (size_t i = 0; i < 32; i += 8) store8(fields(low + i, shift, 3) | fields(in + i, bit, 1) << 2, out.code + i);
  for (int half = 0; half < 2; ++half) {
    out.scale[half] = static_cast<uint8_t>(q3_k_scale(as_u8(in + 96), 2 * bit + half));
  }
  out.d = load<uint16_t>(in + 108);
}

inline constexpr QuantFormat kQ3_KQuant{{3, false, 4, QuantScale::super16}, nullptr, unpack_q3_k};
inline constexpr WeightFormat kQ3_K{11, "Q3_K", 256, 110, dequantize_q3_k, &kQ3_KQuant};

}  // namespace kvarto::weight

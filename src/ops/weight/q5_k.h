// Q5_K: 256 weights in 176 bytes. As Q4_K with 32 bytes of fifth bits at 16 (bit j of byte i % 32 for group j) and the
// nibbles at 48. (d * scale) * q - dmin * minimum.
#pragma once

#include "ops/quant.h"
#include "ops/weight/bits.h"
#include "ops/weight/k_scales.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_q5_k(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 176, out += 256) {
    const float d = load_f16(in);
    const float dmin = load_f16(in + 2);
    const uint8_t* fifth = as_u8(in + 16);
    for (int group = 0; group < 8; ++group) {
      const KScale k = k_scale(as_u8(in + 4), group);
      const float scale = d * static_cast<float>(k.scale);
      const float minimum = dmin * static_cast<float>(k.minimum);
      const uint8_t* q = as_u8(in + 48) + 32 * (group / 2);
      const int shift = 4 * (group % 2);
      for (int i = 0; i < 32; ++i) {
        const int value = (q[i] >> shift & 15) | (fifth[i] >> group & 1) << 4;
        out[32 * group + i] = scale * static_cast<float>(value) - minimum;
      }
    }
  }
}

inline void unpack_q5_k(const std::byte* in, size_t index, QuantBlock& out) {
  const std::byte* q = in + 48 + 32 * (index / 2);
  const int shift = 4 * static_cast<int>(index % 2);
  const int bit = static_cast<int>(index);
  for (size_t i = 0; i < 32; i += 8) {
    store8(fields(q + i, shift, 15) | fields(in + 16 + i, bit, 1) << 4, out.code + i);
  }
  unpack_k_scales(in, index, out);
}

inline constexpr QuantFormat kQ5_KQuant{{5, false, 0, QuantScale::super_min}, nullptr, unpack_q5_k};
inline constexpr WeightFormat kQ5_K{13, "Q5_K", 256, 176, dequantize_q5_k, &kQ5_KQuant};

}  // namespace kvarto::weight

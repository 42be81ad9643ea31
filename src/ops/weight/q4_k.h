// Q4_K: 256 weights in 144 bytes. f16 d, f16 dmin; 12 bytes of scales and minima at 4 (k_scales.h); 128 bytes of
// nibbles at 16: 32 bytes hold a pair of groups, the first in the low nibbles. (d * scale) * q - dmin * minimum.
#pragma once

#include "ops/quant.h"
#include "ops/weight/bits.h"
#include "ops/weight/k_scales.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_q4_k(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 144, out += 256) {
    const float d = load_f16(in);
    const float dmin = load_f16(in + 2);
    for (int group = 0; group < 8; ++group) {
      const KScale k = k_scale(as_u8(in + 4), group);
      const float scale = d * static_cast<float>(k.scale);
      const float minimum = dmin * static_cast<float>(k.minimum);
      const uint8_t* q = as_u8(in + 16) + 32 * (group / 2);
      const int shift = 4 * (group % 2);
      for (int i = 0; i < 32; ++i) out[32 * group + i] = scale * static_cast<float>(q[i] >> shift & 15) - minimum;
    }
  }
}

inline void unpack_q4_k(const std::byte* in, size_t index, QuantBlock& out) {
  const std::byte* q = in + 16 + 32 * (index / 2);
  const int shift = 4 * static_cast<int>(index % 2);
  for (size_t i = 0; i < 32; i += 8) store8(fields(q + i, shift, 15), out.code + i);
  unpack_k_scales(in, index, out);
}

inline constexpr QuantFormat kQ4_KQuant{{4, false, 0, QuantScale::super_min}, nullptr, unpack_q4_k};
inline constexpr WeightFormat kQ4_K{12, "Q4_K", 256, 144, dequantize_q4_k, &kQ4_KQuant};

}  // namespace kvarto::weight

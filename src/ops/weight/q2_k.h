// Q2_K: 256 weights in 84 bytes. 16 bytes of scales (low nibble: scale, high nibble: minimum, one per 16 weights) at 0;
// 64 bytes of 2-bit weights at 16: byte 32 h + l holds weights 128 h + l + {0, 32, 64, 96} from its low bits up; f16 d
// at 80, f16 dmin at 82. (d * scale) * q - dmin * minimum.
#pragma once

#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_q2_k(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 84, out += 256) {
    const uint8_t* scales = as_u8(in);
    const uint8_t* q = as_u8(in + 16);
    const float d = load_f16(in + 80);
    const float dmin = load_f16(in + 82);
    for (int group = 0; group < 16; ++group) {
      const float scale = d * static_cast<float>(low_nibble(scales[group]));
      const float minimum = dmin * static_cast<float>(high_nibble(scales[group]));
      const uint8_t* bytes = q + 32 * (group / 8) + 16 * (group % 2);
      const int shift = 2 * (group % 8 / 2);
      for (int i = 0; i < 16; ++i) {
        out[16 * group + i] = scale * static_cast<float>(bytes[i] >> shift & 3) - minimum;
      }
    }
  }
}

inline constexpr WeightFormat kQ2_K{10, "Q2_K", 256, 84, dequantize_q2_k};

}  // namespace kvarto::weight

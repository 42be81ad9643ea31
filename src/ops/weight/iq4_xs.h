// IQ4_XS: 256 weights in 136 bytes. f16 d; u16 of eight high pairs at 2 and 4 bytes of eight low nibbles at 4 make a
// 6-bit scale per 32 weights; 128 bytes of nibbles at 8, 16 bytes per group, levels as in IQ4_NL. (d * (scale - 32)) *
// level.
#pragma once

#include "ops/weight/bits.h"
#include "ops/weight/iq4_nl.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_iq4_xs(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 136, out += 256) {
    const float d = load_f16(in);
    const int high_pairs = load<uint16_t>(in + 2);
    const uint8_t* low_nibbles = as_u8(in + 4);
    for (int group = 0; group < 8; ++group) {
      const int low = low_nibbles[group / 2] >> (4 * (group % 2)) & 15;
      const int high = high_pairs >> (2 * group) & 3;
      const float scale = d * static_cast<float>((low | high << 4) - 32);
      const uint8_t* q = as_u8(in + 8) + 16 * group;
      for (int i = 0; i < 16; ++i) {
        out[32 * group + i] = scale * kIq4Levels[low_nibble(q[i])];
        out[32 * group + i + 16] = scale * kIq4Levels[high_nibble(q[i])];
      }
    }
  }
}

inline constexpr WeightFormat kIQ4_XS{23, "IQ4_XS", 256, 136, dequantize_iq4_xs};

}  // namespace kvarto::weight

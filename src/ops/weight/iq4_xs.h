// IQ4_XS: 256 weights in 136 bytes. f16 d; u16 of eight high pairs at 2 and 4 bytes of eight low nibbles at 4 make a
// 6-bit scale per 32 weights; 128 bytes of nibbles at 8, 16 bytes per group, levels as in IQ4_NL. (d * (scale - 32)) *
// level.
#pragma once

#include "ops/quant.h"
#include "ops/weight/bits.h"
#include "ops/weight/iq4_nl.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline int iq4_xs_scale(const std::byte* in, int group) {
  const int low = as_u8(in + 4)[group / 2] >> (4 * (group % 2)) & 15;
  const int high = load<uint16_t>(in + 2) >> (2 * group) & 3;
  return (low | high << 4) - 32;
}

inline void dequantize_iq4_xs(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 136, out += 256) {
    const float d = load_f16(in);
    for (int group = 0; group < 8; ++group) {
      const float scale = d * static_cast<float>(iq4_xs_scale(in, group));
      const uint8_t* q = as_u8(in + 8) + 16 * group;
      for (int i = 0; i < 16; ++i) {
        out[32 * group + i] = scale * kIq4Levels[low_nibble(q[i])];
        out[32 * group + i + 16] = scale * kIq4Levels[high_nibble(q[i])];
      }
    }
  }
}

inline void unpack_iq4_xs(const std::byte* in, size_t index, QuantBlock& out) {
  out.d = load<uint16_t>(in);
  out.scale[0] = static_cast<uint8_t>(iq4_xs_scale(in, static_cast<int>(index)));
  unpack_nibbles(in + 8 + 16 * index, out.code);
}

inline constexpr QuantFormat kIQ4_XSQuant{{4, true, 128, QuantScale::super}, kIq4Codes.data(), unpack_iq4_xs};
inline constexpr WeightFormat kIQ4_XS{23, "IQ4_XS", 256, 136, dequantize_iq4_xs, &kIQ4_XSQuant};

}  // namespace kvarto::weight

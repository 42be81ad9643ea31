// Q2_K: 256 weights in 84 bytes. 16 bytes of scales (low nibble: scale, high nibble: minimum, one per 16 weights) at 0;
// 64 bytes of 2-bit weights at 16: byte 32 h + l holds weights 128 h + l + {0, 32, 64, 96} from its low bits up; f16 d
// at 80, f16 dmin at 82. (d * scale) * q - dmin * minimum.
#pragma once

#include "ops/quant.h"
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

inline void unpack_q2_k(const std::byte* in, size_t index, QuantBlock& out) {
  const std::byte* q = in + 16 + 32 * (index / 4);
  const int shift = 2 * static_cast<int>(index % 4);
  for (size_t i = 0; i < 32; i += 8) store8(fields(q + i, shift, 3), out.code + i);
  const uint8_t* scales = as_u8(in) + 2 * index;
  for (int half = 0; half < 2; ++half) {
    out.scale[half] = static_cast<uint8_t>(low_nibble(scales[half]));
    out.minimum[half] = static_cast<uint8_t>(high_nibble(scales[half]));
  }
  out.d = load<uint16_t>(in + 80);
  out.m = load<uint16_t>(in + 82) ^ kF16Sign;
}

inline constexpr QuantFormat kQ2_KQuant{{2, false, 0, QuantScale::super16_min}, nullptr, unpack_q2_k};
inline constexpr WeightFormat kQ2_K{10, "Q2_K", 256, 84, dequantize_q2_k, &kQ2_KQuant};

}  // namespace kvarto::weight

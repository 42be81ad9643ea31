// Q6_K: 256 weights in 210 bytes. 128 bytes of low nibbles at 0, 64 bytes of high pairs at 128, sixteen signed scales
// at 192 (one per 16 weights), f16 d at 208. Each half of 128 weights has 64 + 32 bytes: quarter p of the half takes
// nibbles p / 2 of the bytes 32 (p % 2) + l, and bits 2p of the high byte l. (d * scale) * (q - 32).
#pragma once

#include "ops/quant.h"
#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_q6_k(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 210, out += 256) {
    const float d = load_f16(in + 208);
    for (int group = 0; group < 16; ++group) {
      const int half = group / 8;
      const int quarter = group % 8 / 2;
      const int first = 16 * (group % 2);  // the quarter's 32 weights have two scales
      const float scale = d * static_cast<float>(static_cast<int8_t>(in[192 + group]));
      const uint8_t* low = as_u8(in) + 64 * half + 32 * (quarter % 2) + first;
      const uint8_t* high = as_u8(in + 128) + 32 * half + first;
      const int low_shift = 4 * (quarter / 2);
      const int high_shift = 2 * quarter;
      for (int i = 0; i < 16; ++i) {
        const int value = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
        out[16 * group + i] = scale * static_cast<float>(value - 32);
      }
    }
  }
}

inline void unpack_q6_k(const std::byte* in, size_t index, QuantBlock& out) {
  const size_t half = index / 4;
  const size_t quarter = index % 4;
  const std::byte* low = in + 64 * half + 32 * (quarter % 2);
  const std::byte* high = in + 128 + 32 * half;
  const int low_shift = 4 * static_cast<int>(quarter / 2);
  const int high_shift = 2 * static_cast<int>(quarter);
  for (size_t i = 0; i < 32; i += 8) {
    store8(fields(low + i, low_shift, 15) | fields(high + i, high_shift, 3) << 4, out.code + i);
  }
  for (size_t i = 0; i < 2; ++i) out.scale[i] = as_u8(in + 192)[2 * index + i];
  out.d = load<uint16_t>(in + 208);
}

inline constexpr QuantFormat kQ6_KQuant{{6, false, 32, QuantScale::super16}, nullptr, unpack_q6_k};
inline constexpr WeightFormat kQ6_K{14, "Q6_K", 256, 210, dequantize_q6_k, &kQ6_KQuant};

}  // namespace kvarto::weight

// Q4_0: 32 weights in 18 bytes. f16 d; 16 bytes whose low nibbles are weights 0 to 15, whose high ones 16 to 31. d * (q
// - 8).
#pragma once

#include "ops/quant.h"
#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_q4_0(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 18, out += 32) {
    const float d = load_f16(in);
    const uint8_t* q = as_u8(in + 2);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(low_nibble(q[i]) - 8);
      out[i + 16] = d * static_cast<float>(high_nibble(q[i]) - 8);
    }
  }
}

inline void unpack_q4_0(const std::byte* in, size_t /*index*/, QuantBlock& out) {
  out.d = load<uint16_t>(in);
  unpack_nibbles(in + 2, out.code);
}

inline constexpr QuantFormat kQ4_0Quant{{4, false, 8, QuantScale::half}, nullptr, unpack_q4_0};
inline constexpr WeightFormat kQ4_0{2, "Q4_0", 32, 18, dequantize_q4_0, &kQ4_0Quant};

}  // namespace kvarto::weight

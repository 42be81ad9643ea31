// IQ4_NL: 32 weights in 18 bytes. f16 d; nibbles as in Q4_0 that choose one of sixteen levels. d * level.
#pragma once

#include "ops/quant.h"
#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline constexpr float kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

inline void dequantize_iq4_nl(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 18, out += 32) {
    const float d = load_f16(in);
    const uint8_t* q = as_u8(in + 2);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * kIq4Levels[low_nibble(q[i])];
      out[i + 16] = d * kIq4Levels[high_nibble(q[i])];
    }
  }
}

inline constexpr auto kIq4Codes = table_codes(kIq4Levels, 128);

inline void unpack_iq4_nl(const std::byte* in, size_t /*index*/, QuantBlock& out) {
  out.d = load<uint16_t>(in);
  unpack_nibbles(in + 2, out.code);
}

inline constexpr QuantFormat kIQ4_NLQuant{{4, true, 128, QuantScale::half}, kIq4Codes.data(), unpack_iq4_nl};
inline constexpr WeightFormat kIQ4_NL{20, "IQ4_NL", 32, 18, dequantize_iq4_nl, &kIQ4_NLQuant};

}  // namespace kvarto::weight

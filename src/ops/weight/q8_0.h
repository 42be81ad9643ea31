// Q8_0: 32 weights in 34 bytes. f16 d; 32 signed bytes. d * q.
#pragma once

#include "ops/quant.h"
#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_q8_0(const std::byte* in, size_t blocks, float* out) {
  for (; blocks != 0; --blocks, in += 34, out += 32) {
    const float d = load_f16(in);
    const std::byte* q = in + 2;
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(q[i]));
  }
}

inline void unpack_q8_0(const std::byte* in, size_t /*index*/, QuantBlock& out) {
  out.d = load<uint16_t>(in);
  for (size_t i = 0; i < 32; i += 8) {
    store8(load<uint64_t>(in + 2 + i) ^ 0x80 * kEachByte, out.code + i);  // q + 128
  }
}

inline constexpr QuantFormat kQ8_0Quant{{8, false, 128, QuantScale::half}, nullptr, unpack_q8_0};
inline constexpr WeightFormat kQ8_0{8, "Q8_0", 32, 34, dequantize_q8_0, &kQ8_0Quant};

}  // namespace kvarto::weight

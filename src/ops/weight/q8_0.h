// Q8_0: 32 weights in 34 bytes. f16 d; 32 signed bytes. d * q.
#pragma once

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

inline constexpr WeightFormat kQ8_0{8, "Q8_0", 32, 34, dequantize_q8_0};

}  // namespace kvarto::weight

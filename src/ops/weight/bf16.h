// BF16: the upper halves of floats.
#pragma once

#include "base/half.h"
#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_bf16(const std::byte* in, size_t blocks, float* out) {
  for (size_t i = 0; i < blocks; ++i) out[i] = bf16_to_f32(load<uint16_t>(in + 2 * i));
}

inline constexpr WeightFormat kBF16{30, "BF16", 1, 2, dequantize_bf16};

}  // namespace kvarto::weight

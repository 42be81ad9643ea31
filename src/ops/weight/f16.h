// F16: IEEE halves.
#pragma once

#include "base/half.h"
#include "ops/weight/bits.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_f16(const std::byte* in, size_t blocks, float* out) {
  for (size_t i = 0; i < blocks; ++i) out[i] = f16_to_f32(load<uint16_t>(in + 2 * i));
}

inline constexpr WeightFormat kF16{1, "F16", 1, 2, dequantize_f16};

}  // namespace kvarto::weight

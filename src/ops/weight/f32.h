// F32: plain little-endian floats.
#pragma once

#include <cstring>

#include "ops/weight/weight.h"

namespace kvarto::weight {

inline void dequantize_f32(const std::byte* in, size_t blocks, float* out) {
  if (blocks != 0) std::memcpy(out, in, blocks * sizeof(float));
}

inline constexpr WeightFormat kF32{0, "F32", 1, 4, dequantize_f32};

}  // namespace kvarto::weight

// The twelve bytes of Q4_K and Q5_K that hold eight 6-bit scales and eight 6-bit minima, one pair per 32 weights. Any
// thread.
#pragma once

#include <cstdint>

#include "ops/quant.h"
#include "ops/weight/bits.h"

namespace kvarto::weight {

struct KScale {
  int scale;
  int minimum;
};

// Groups 0 to 3 have bytes j and j + 4 to themselves; groups 4 to 7 share bytes 8 to 11 for their low bits and find
// their two high bits on top of the bytes of groups 0 to 3.
inline KScale k_scale(const uint8_t* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4};
}

// The same for the int8 kernels: what stands in front of both formats' blocks, f16 d, f16 dmin and the twelve bytes.
inline void unpack_k_scales(const std::byte* in, size_t index, QuantBlock& out) {
  const KScale k = k_scale(as_u8(in + 4), static_cast<int>(index));
  out.scale[0] = static_cast<uint8_t>(k.scale);
  out.minimum[0] = static_cast<uint8_t>(k.minimum);
  out.d = load<uint16_t>(in);
  out.m = load<uint16_t>(in + 2) ^ kF16Sign;
}

}  // namespace kvarto::weight

// The twelve bytes of Q4_K and Q5_K that hold eight 6-bit scales and eight 6-bit minima, one pair per 32 weights. Any
// thread.
#pragma once

#include <cstdint>

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

}  // namespace kvarto::weight

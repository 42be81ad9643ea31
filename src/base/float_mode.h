// FloatMode: while one lives, its thread computes as every result is defined: rounding to nearest even, subnormals kept
// (FTZ and DAZ off), exceptions masked. Puts the thread's own mode back, flags included. Any thread; not to be moved.
#pragma once

#include <immintrin.h>

namespace kvarto {

class FloatMode {
 public:
  static constexpr unsigned kPlain = 0x1f80;  // of MXCSR

  FloatMode() : before_(_mm_getcsr()) { _mm_setcsr(kPlain); }
  ~FloatMode() { _mm_setcsr(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  unsigned before_;
};

}  // namespace kvarto

// cos and sin of the rotary embedding. Inverse frequencies, angles, cos and sin are computed in double with our own
// functions (base/vmath.h), so every machine has the same bits, and rounded to float once. Immutable after make; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvarto/result.h"

namespace kvarto {

// How positions become angles. Sources: RoPE (Su et al. 2021); linear (position interpolation); YaRN (Peng et al.
// 2023), the attention factor multiplying cos and sin; llama3: divisors per frequency, baked into GGUF's
// rope_freqs.weight.
struct RopeSpec {
  enum class Scaling : uint8_t { none, linear, yarn };
  double base = 10000.0;
  uint32_t dims = 0;  // rotated dims per head, even
  Scaling scaling = Scaling::none;
  double factor = 1.0;            // linear and yarn
  uint32_t original_context = 0;  // yarn
  double attention_factor = 1.0;  // yarn: multiplies (1 + 0.1 ln factor)
  double beta_fast = 32.0, beta_slow = 1.0;
  std::vector<float> divisors = {};  // [dims/2] or empty: inverse frequency i is divided by divisors[i]
};

class RopeTable {
 public:
  static Result<RopeTable> make(
      const RopeSpec& spec);  // refuses odd dims, wrong divisor count, factor or base not finite and > 0
  uint32_t pairs() const { return static_cast<uint32_t>(inverse_.size()); }
  // cos, sin [pairs] of one position.
  void fill(uint64_t position, float* cos, float* sin) const;

 private:
  std::vector<double> inverse_;  // [pairs] radians per position
  double magnitude_ = 1.0;       // multiplies cos and sin
};

}  // namespace kvarto

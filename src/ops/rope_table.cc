#include "ops/rope_table.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/vmath.h"

namespace kvarto {
namespace {

bool positive(double value) { return std::isfinite(value) && value > 0; }

Status check(const RopeSpec& spec) {
  const auto refuse = [](const std::string& what) { return fail(ErrorCode::invalid_argument, what); };
  const bool yarn = spec.scaling == RopeSpec::Scaling::yarn;
  if (spec.dims == 0 || spec.dims % 2 != 0) {
    return refuse(std::to_string(spec.dims) + " rotary dims: must be even and at least 2");
  }
  if (!positive(spec.base)) return refuse("rope base " + std::to_string(spec.base) + ": must be finite and above 0");
  if (spec.scaling != RopeSpec::Scaling::none && !positive(spec.factor)) {
    return refuse("rope scaling factor " + std::to_string(spec.factor) + ": must be finite and above 0");
  }
  if (!spec.divisors.empty() && spec.divisors.size() != spec.dims / 2) {
    return refuse(std::to_string(spec.divisors.size()) + " rope frequency divisors for " + std::to_string(spec.dims) +
                  " rotary dims: must be " + std::to_string(spec.dims / 2));
  }
  for (float d : spec.divisors) {
    if (!positive(d)) return refuse("rope frequency divisor " + std::to_string(d) + ": must be finite and above 0");
  }
  if (!yarn) return {};
  if (spec.base <= 1.0) return refuse("rope base " + std::to_string(spec.base) + ": yarn needs more than 1");
  if (spec.original_context == 0) return refuse("yarn original context 0: must be the length the model was trained on");
  if (!positive(spec.beta_fast) || !positive(spec.beta_slow) || !positive(spec.attention_factor)) {
    return refuse("yarn betas " + std::to_string(spec.beta_fast) + ", " + std::to_string(spec.beta_slow) +
                  ", attention factor " + std::to_string(spec.attention_factor) + ": must be finite and above 0");
  }
  return {};
}

// How much of pair i is interpolated: 0 where the trained context holds at least beta_fast turns, 1 at beta_slow or
// fewer.
struct YarnRamp {
  double low, high;

  explicit YarnRamp(const RopeSpec& spec) {
    constexpr double kTwoPi = 0x1.921fb54442d18p+2;
    const auto pair_with_turns = [&](double turns) {
      return spec.dims * log_d(spec.original_context / (kTwoPi * turns)) / (2.0 * log_d(spec.base));
    };
    low = std::max(std::floor(pair_with_turns(spec.beta_fast)), 0.0);
    high = std::min(std::ceil(pair_with_turns(spec.beta_slow)), spec.dims - 1.0);
  }
  double at(uint32_t i) const { return std::clamp((i - low) / std::max(high - low, 0.001), 0.0, 1.0); }
};

}  // namespace

Result<RopeTable> RopeTable::make(const RopeSpec& spec) {
  RETURN_IF_ERROR(check(spec));
  RopeTable table;
  table.inverse_.resize(spec.dims / 2);
  for (uint32_t i = 0; i < spec.dims / 2; ++i) {
    table.inverse_[i] = pow_d(spec.base, -2.0 * i / spec.dims);
  }
  if (spec.scaling == RopeSpec::Scaling::linear) {
    for (double& f : table.inverse_) f /= spec.factor;
  } else if (spec.scaling == RopeSpec::Scaling::yarn) {
    const YarnRamp ramp(spec);
    for (uint32_t i = 0; i < spec.dims / 2; ++i) {
      table.inverse_[i] *= (1.0 - ramp.at(i)) + ramp.at(i) / spec.factor;
    }
    table.magnitude_ = spec.attention_factor * (1.0 + 0.1 * log_d(spec.factor));
  }
  for (size_t i = 0; i < spec.divisors.size(); ++i) table.inverse_[i] /= spec.divisors[i];
  return table;
}

void RopeTable::fill(uint64_t position, float* cos, float* sin) const {
  for (size_t i = 0; i < inverse_.size(); ++i) {
    const SinCos angle = sincos_d(static_cast<double>(position) * inverse_[i]);
    cos[i] = static_cast<float>(angle.cos * magnitude_);
    sin[i] = static_cast<float>(angle.sin * magnitude_);
  }
}

}  // namespace kvarto

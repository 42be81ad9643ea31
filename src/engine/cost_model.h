// CostModel: how long a step takes, as the scheduler needs to know it. OnlineCostModel learns from the steps that ran:
// least squares over (1, tokens, context) with forgetting, coefficients never negative. Only plans depend on it, never
// text. Owner's thread.
#pragma once

#include <array>
#include <cstdint>

namespace kvarto {

class CostModel {
 public:
  virtual ~CostModel() = default;
  // Microseconds of a step of `tokens` rows that attend `context` keys, all rows together.
  virtual double estimate(uint64_t tokens, uint64_t context) const = 0;
  // Whether a step of decodes alone has been measured: before that, no estimate of a mixed step means anything.
  virtual bool decode_measured() const = 0;
  virtual void observe(uint64_t tokens, uint64_t context, double us, bool decodes_only) = 0;
};

class OnlineCostModel : public CostModel {
 public:
  double estimate(uint64_t tokens, uint64_t context) const override;
  bool decode_measured() const override { return decode_measured_; }
  void observe(uint64_t tokens, uint64_t context, double us, bool decodes_only) override;

 private:
  static constexpr int kTerms = 3;
  void solve();

  std::array<std::array<double, kTerms>, kTerms> squares_{};  // decayed sums of x x^T, in units of the scale below
  std::array<double, kTerms> products_{};                     // of x y
  std::array<double, kTerms> us_{};                           // per term
  bool decode_measured_ = false;
};

}  // namespace kvarto

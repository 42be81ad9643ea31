// CostModel: how long a step takes, as the scheduler needs to know it. OnlineCostModel learns from the steps that ran:
// least squares over (1, tokens, context, logit rows) with forgetting, coefficients never negative. Only plans depend
// on it, never text. Owner's thread.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "engine/step_plan.h"

namespace kvarto {

enum class StepKind : uint8_t { decodes, mixed, prefills };

class CostModel {
 public:
  virtual ~CostModel() = default;
  // Microseconds of a step.
  virtual double estimate(const StepWork& work) const = 0;
  // The same of decodes alone, by what such steps took: what their streams are used to.
  virtual double estimate_decodes(const StepWork& work) const = 0;
  // How much longer the slow ones of such steps take, one in twenty; at least 1.
  virtual double decode_spread() const = 0;
  // Whether a step of decodes alone has been measured: before that, no estimate of a mixed step means anything.
  virtual bool decode_measured() const = 0;
  // Whether the last one is so many mixed steps ago that it is time for another.
  virtual bool decode_due() const = 0;
  // `steps` of the same kind shared this work.
  virtual void observe(const StepWork& work, double us, StepKind kind, uint32_t steps) = 0;
};

class OnlineCostModel : public CostModel {
 public:
  double estimate(const StepWork& work) const override;
  double estimate_decodes(const StepWork& work) const override;
  double decode_spread() const override { return decode_spread_; }
  bool decode_measured() const override { return decode_measured_; }
  bool decode_due() const override;
  void observe(const StepWork& work, double us, StepKind kind, uint32_t steps) override;

 private:
  static constexpr int kTerms = 4;
  using Square = std::array<std::array<double, kTerms>, kTerms>;
  using Column = std::array<double, kTerms>;
  // What steps of one kind taught. Each kind forgets by its own steps: while a long prompt runs there is no step of
  // decodes alone, and what such a step takes is what the mixed ones are measured by.
  struct Memory {
    Square squares{};   // decayed sums of x x^T, in units of the scale in the source
    Column products{};  // of x y
    void fade(double kept);
    void add(const Column& x, double us);
  };
  void note_spread(double ratio);
  static Column solve(std::initializer_list<const Memory*> memories);

  Memory decodes_, mixed_, prefills_;
  Column us_{}, decode_us_{};  // per term
  double decode_spread_ = 1.0;
  bool decode_measured_ = false;
  uint32_t mixed_since_decodes_ = 0;  // steps
};

}  // namespace kvarto

// What computing tokens costs at least: operations by the arithmetic they run in, and bytes that have to be read. With
// the machine's rates that is a bound on speed. Plain data; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cli/machine_rates.h"
#include "format/gguf.h"
#include "kvarto/types.h"
#include "model/config.h"

namespace kvarto {

struct Cost {
  double int8 = 0;      // operations of quantised weights with int8 activations of many rows; a multiply-add is two
  double int8_few = 0;  // the same where the kernel for few rows computes them
  double f32 = 0;       // operations of float weights, and of attention
  double bytes = 0;     // weights and KV
  Cost& operator+=(const Cost& other);
};
Cost operator/(const Cost& cost, double parts);
// `operations` of quantised weights in a product of `rows` rows.
Cost quantised_cost(double operations, uint64_t rows);

// The seconds that each part of a cost takes at least. Reading may hide behind computing or the other way round;
// arithmetic of two kinds is done one after the other.
struct Bound {
  double memory = 0, int8 = 0, f32 = 0;
  bool by_memory() const { return memory > int8 + f32; }
  double seconds() const { return by_memory() ? memory : int8 + f32; }
};
Bound bound_of(const Cost& cost, const Rates& rates);  // rates of 0 bound nothing

// Matrices of a model by arithmetic: elements, each of which is one multiply-add per row that passes.
struct MatrixSizes {
  double int8 = 0, f32 = 0;  // of the layers
  double head_int8 = 0, head_f32 = 0;
};
// `reference`: quantised weights are multiplied as floats.
MatrixSizes matrix_sizes(std::span<const GgufTensor> tensors, bool reference);

// The costs of one model. A step of prompts computes at most `step_tokens` tokens and reads all weights once and, per
// sequence, its KV once; only the last token of a prompt has logits. Norms, rotations, activations and the writing of
// KV are left out. Where a step's rows depend on how prompts share it, more rows and so the faster kernel are assumed.
class StepCost {
 public:
  StepCost(ModelConfig config, const MatrixSizes& sizes, KvLayout layout, size_t pass_bytes, uint32_t step_tokens);

  // `batch` prompts of `count` tokens behind `depth` cached ones.
  Cost prompts(uint64_t depth, uint32_t batch, uint32_t count) const;
  // `batch` sequences generate `count` tokens each, the first from the token behind `length` earlier ones.
  Cost generation(uint64_t length, uint32_t batch, uint32_t count) const;
  // The same without a cache: every token is a prompt of all before it.
  Cost recompute(uint64_t length, uint32_t batch, uint32_t count) const;

 private:
  // One sequence's part of a step, without the bytes of weights. The step has `rows` rows in all, `logit_rows` of them
  // with logits.
  struct Part {
    uint64_t first, count;
    bool logits;
    uint64_t rows, logit_rows;
  };
  Cost part(const Part& part) const;
  double attention(uint64_t first, uint64_t count) const;

  ModelConfig config_;
  MatrixSizes sizes_;
  KvLayout layout_;
  double pass_bytes_;
  uint32_t step_tokens_;
};

}  // namespace kvarto

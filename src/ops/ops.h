// Row kernels of the f32 path: one table of functions per SIMD target, all with the same bits. They work on plain rows
// and know nothing of threads; whoever calls them cuts the work into units fixed by shape. Any thread. Order of
// arithmetic: DESIGN section 2 (16 lanes, ascending, explicit fused multiply-add, one fold).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"

namespace kvarto {

// A weight matrix as the matmul kernel reads it: groups of 16 outputs, inputs ascending:
// [ceil(outputs/16)][inputs][16]. Missing outputs of the last group are zeros.
struct PackedMatrix {
  size_t outputs = 0;
  size_t inputs = 0;
  const float* data = nullptr;  // 64-byte aligned
  size_t groups() const { return (outputs + 15) / 16; }
};

enum class RopePairs : uint8_t {
  neighbours,  // (2i, 2i+1): llama GGUFs
  halves,      // (i, i + dims/2): qwen2, qwen3, gemma3
};

struct Ops {
  // y[r][o] = bias[o] + sum over k ascending of x[r][k] * w[o][k], one fused chain per output starting from the bias (0
  // when bias is null), for outputs of groups [first_group, last_group). rows >= 1. y row stride `y_stride` floats;
  // writes only existing outputs.
  void (*matmul)(const float* x, size_t x_stride, size_t rows, const PackedMatrix& w, const float* bias,
                 size_t first_group, size_t last_group, float* y, size_t y_stride);
  // Row `index` of the matrix as plain floats, times `scale`: embedding lookup from a packed table. out [inputs].
  void (*gather_row)(const PackedMatrix& w, size_t index, float scale, float* out);
  // y = x / sqrt(mean(x^2) + eps) * weight. The sum of squares runs over 16 lanes (missing lanes of the last 16 are
  // zero). x and y may be the same row.
  void (*rms_norm)(const float* x, const float* weight, float eps, size_t n, float* y);
  // Rotates the first 2 * pairs dims of each head in place. x [heads][head_dim]; cos, sin [pairs] of the row's
  // position.
  void (*rope)(float* x, size_t heads, size_t head_dim, size_t pairs, RopePairs style, const float* cos,
               const float* sin);
  // out = silu(gate) * up, silu(x) = x / (1 + exp(-x)); out may be gate.
  void (*silu_mul)(const float* gate, const float* up, size_t n, float* out);
  // out = gelu_tanh(gate) * up, gelu_tanh(x) = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
  void (*gelu_mul)(const float* gate, const float* up, size_t n, float* out);
  void (*add)(const float* a, size_t n, float* b);  // b += a
  // x = cap * tanh(x / cap), in place (final logits of some models).
  void (*soft_cap)(float* x, size_t n, float cap);
};

const Ops& ops_for(SimdTarget target);

// Packs `outputs` rows of plain floats [outputs][inputs] (row-major) into groups [first_group, last_group) of `out`.
void pack_rows(const float* rows, size_t outputs, size_t inputs, size_t first_output, float* out);

}  // namespace kvarto

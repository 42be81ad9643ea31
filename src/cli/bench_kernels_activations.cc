// Rows of `kvarto bench kernels` that work on a step's activations, which are in the caches. Shapes are SmolLM2-135M's.
#include <algorithm>
#include <array>
#include <memory>
#include <random>

#include "base/memory.h"
#include "cli/bench_kernels.h"
#include "ops/ops.h"
#include "ops/quant.h"

namespace kvarto {
namespace {

constexpr size_t kRows = 64, kWidth = 576, kFfn = 1536, kHeads = 9, kDim = 64;
constexpr double kExpOperations = 24;  // of base/simd_math.h

using Call = std::function<void(float* x, const float* other, float* out)>;

// `call` gets [kRows][width] values, `others` more, and room for [kRows][width] results.
KernelRow row(std::string name, size_t width, size_t others, double operations, double bytes, Call call) {
  const double values = static_cast<double>(kRows * width);
  return {.name = std::move(name),
          .cost = {.f32 = operations * values, .bytes = bytes * values},
          .cold = false,
          .scene = [=]() -> Result<std::function<void()>> {
            const auto x = std::make_shared<std::vector<float>>(normal_floats(kRows * width, 1));
            const auto other = std::make_shared<std::vector<float>>(normal_floats(others, 2));
            const auto out = std::make_shared<std::vector<float>>(kRows * width);
            return [=] { call(x->data(), other->data(), out->data()); };
          }};
}

KernelRow quantise_row(SimdTarget target) {
  const double values = static_cast<double>(kRows * kWidth);
  return {.name = "quantise",
          .cost = {.f32 = 3 * values, .bytes = 5 * values},  // largest, division, rounding
          .cold = false,
          .scene = [=]() -> Result<std::function<void()>> {
            ASSIGN_OR_RETURN(Slab slab,
                             Slab::allocate(quant_rows_bytes(kRows, kWidth), MemoryTag::activations, nullptr));
            const auto memory = std::make_shared<Slab>(std::move(slab));
            const auto x = std::make_shared<std::vector<float>>(normal_floats(kRows * kWidth, 1));
            const QuantRows rows = quant_rows_at(memory->data(), kRows, kWidth);
            return [target, memory, x, rows] { quant_ops(target).quantise(x->data(), 0, kRows, rows); };
          }};
}

}  // namespace

std::vector<float> normal_floats(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> values(count);
  for (float& value : values) value = draw(random);
  return values;
}

std::vector<KernelRow> activation_rows(SimdTarget target) {
  const Ops& ops = ops_for(target);
  std::vector<KernelRow> rows;
  // Square and sum, two products.
  rows.push_back(row("rms_norm", kWidth, kWidth, 4, 8, [&ops](float* x, const float* weight, float* out) {
    for (size_t r = 0; r < kRows; ++r) ops.rms_norm(x + r * kWidth, weight, 1e-5f, kWidth, out + r * kWidth);
  }));
  // Four products and two sums for two values. The angles turn nothing, so that values stay what they are.
  rows.push_back(row("rope", kHeads * kDim, 0, 3, 8, [&ops](float* x, const float*, float*) {
    static constexpr auto kCos = [] {
      std::array<float, kDim / 2> ones{};
      ones.fill(1.0f);
      return ones;
    }();
    static constexpr std::array<float, kDim / 2> kSin{};
    for (size_t r = 0; r < kRows; ++r) {
      ops.rope(x + r * kHeads * kDim, kHeads, kDim, kDim / 2, RopePairs::halves, kCos.data(), kSin.data());
    }
  }));
  // Sign, exponential, sum, quotient, product.
  rows.push_back(
      row("silu_mul", kFfn, kRows * kFfn, kExpOperations + 4, 12, [&ops](float* x, const float* up, float* out) {
        for (size_t r = 0; r < kRows; ++r) ops.silu_mul(x + r * kFfn, up + r * kFfn, kFfn, out + r * kFfn);
      }));
  rows.push_back(quantise_row(target));
  return rows;
}

}  // namespace kvarto

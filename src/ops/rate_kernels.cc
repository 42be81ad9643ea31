#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rate_kernels.cc"
#include "hwy/foreach_target.h"  // compiles what follows once per target
// after foreach_target.h
#include "base/dispatch.h"
#include "base/simd.h"
#include "base/simd_int8.h"
#include "ops/rate_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {
namespace {

// Independent sums that fill the registers: of floats; and of rows x groups of 16 outputs, which have an integer and a
// float sum each.
#if HWY_TARGET == HWY_AVX3_DL
constexpr int kChains = 16, kRows = 4, kGroups = 3;
#elif HWY_TARGET == HWY_AVX2
constexpr int kChains = 6, kRows = 2, kGroups = 1;
#else
constexpr int kChains = 1, kRows = 1, kGroups = 1;
#endif
constexpr size_t kSteps = 64;  // of a round
constexpr size_t kBlocks = 8;  // of 32 values
constexpr int kQuadsPerBlock = 8;

HWY_INLINE void forget(const void* memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

void fma_rounds(size_t rounds, float* out) {
  F32x16 sum[kChains];
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) sum[c] = splat(static_cast<float>(c));
  const F32x16 factor = splat(0.875f), term = splat(1.0f);
  for (size_t step = 0; step < rounds * kSteps; ++step) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sum[c] = fma(sum[c], factor, term);
  }
#pragma GCC unroll 16
  for (int c = 1; c < kChains; ++c) sum[0] = sum[0] + sum[c];
  store(sum[0], out);
}

struct Data {
  alignas(64) uint8_t codes[kBlocks][kGroups][kQuadsPerBlock][64];  // 4 bits each
  alignas(64) float weight_scale[kBlocks][kGroups][16];
  int8_t x[kBlocks][kRows][4 * kQuadsPerBlock];
  float x_scale[kBlocks][kRows];
};

void int8_rounds(size_t rounds, float* out) {
  Data data;
  std::memset(data.codes, 7, sizeof data.codes);
  std::memset(data.x, 3, sizeof data.x);
  for (auto& block : data.weight_scale) {
    for (auto& group : block) store(splat(0x1p-20f), group);
  }
  for (auto& block : data.x_scale) {
    for (float& scale : block) scale = 0x1p-10f;
  }
  F32x16 acc[kRows][kGroups];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) acc[r][g] = splat(0.0f);
  }
  for (size_t round = 0; round < rounds; ++round) {
    forget(&data);
    for (size_t b = 0; b < kBlocks; ++b) {
      DotRun run[kRows][kGroups];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) run[r][g] = dot_start(splat_int(0));
      }
#pragma GCC unroll 8
      for (int q = 0; q < kQuadsPerBlock; ++q) {
        U8x64 w[kGroups];
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) w[g] = load_u8(data.codes[b][g][q]);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const I8x4 x = load_i8x4(data.x[b][r] + 4 * q);
#pragma GCC unroll 4
          for (int g = 0; g < kGroups; ++g) run[r][g] = dot_add(run[r][g], w[g], x);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const F32x16 dx = splat(data.x_scale[b][r]);
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) {
          const F32x16 dot = to_float(dot_end(splat_int(0), run[r][g]));
          acc[r][g] = fma(dot, load(data.weight_scale[b][g]) * dx, acc[r][g]);
        }
      }
    }
  }
  F32x16 sum = splat(0.0f);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) sum = sum + acc[r][g];
  }
  store(sum, out);
}

const RateLoops kRateLoops = {
    {fma_rounds, 2.0 * 16 * kChains* kSteps},
    {int8_rounds, 2.0 * 16 * kGroups* kRows* kBlocks * 4 * kQuadsPerBlock},
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvarto {
namespace {
KVARTO_TARGET_TABLE(RateLoops, simd_rate_loops, kRateLoops);
}  // namespace

RateLoops rate_loops(SimdTarget target) {
  RateLoops loops = simd_rate_loops(target);
  if (target == SimdTarget::amx) loops.int8 = amx_int8_loop();
  return loops;
}
}  // namespace kvarto
#endif

// The loops compute what they are counted for.
#include "ops/rate_kernels.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

TEST(RateLoops, FloatChainsReachTheirFixedPoint) {
  // Each chain is x = 0.875 x + 1, 64 times a round, which ends at 8; `out` adds up the chains.
  for (const SimdTarget target : available_targets()) {
    const RateLoop loop = rate_loops(target).fma;
    const double chains = loop.operations / (2 * 16 * 64);
    float out[16];
    loop.run(10, out);
    for (const float sum : out) EXPECT_NEAR(sum, 8 * chains, 1e-3) << simd_target_name(target);
  }
}

TEST(RateLoops, EveryDotProductIsScaledAndSummed) {
  // 32 products of 7 and 3, scaled by 2^-30; each lane has one such dot per 2 x 16 x 32 operations.
  for (const SimdTarget target : available_targets()) {
    const RateLoop loop = rate_loops(target).int8;
    for (const size_t rounds : {1, 3}) {
      const double dots = static_cast<double>(rounds) * loop.operations / (2 * 16 * 32);
      float out[16];
      loop.run(rounds, out);
      for (const float sum : out) EXPECT_EQ(sum, dots * 32 * 7 * 3 * 0x1p-30) << simd_target_name(target);
    }
  }
}

}  // namespace
}  // namespace kvarto

// Norm, rope and the elementwise kernels: on every target against plain loops.
#include "ops/row_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "base/float_testing.h"
#include "ops/ops.h"

namespace kvarto {
namespace {

void fill(FencedFloats& x, FloatSource& source, bool awkward) {
  for (float& v : x.all()) v = awkward ? source.awkward() : source.uniform(-4, 4);
}

void expect_same(FencedFloats& got, const std::vector<float>& want, SimdTarget target) {
  ASSERT_EQ(got.all().size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(same_bits(got[i], want[i]))
        << simd_target_name(target) << " at " << i << " of " << want.size() << ": " << got[i] << " " << want[i];
  }
}

// 16 sums, lane i taking every 16th square; then the fold as a tree over the lane's bits, highest first.
float plain_sum_of_squares(const float* x, size_t n) {
  float lanes[16] = {};
  for (size_t i = 0; i < n; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  const std::function<float(int, int)> fold = [&](int lane, int width) {
    return width == 16 ? lanes[lane] : fold(lane, width * 2) + fold(lane + width, width * 2);
  };
  return fold(0, 1);
}

TEST(RmsNorm, EqualsThePlainLoopOnEveryTarget) {
  FloatSource source(21);
  for (size_t n = 1; n <= 100; ++n) {
    for (bool awkward : {false, true}) {
      FencedFloats x(n), weight(n);
      fill(x, source, awkward);
      fill(weight, source, false);
      const float root = std::sqrt(plain_sum_of_squares(x.data(), n) / static_cast<float>(n) + 1e-6f);
      std::vector<float> want(n);
      for (size_t i = 0; i < n; ++i) want[i] = x[i] * (1.0f / root) * weight[i];
      for (SimdTarget target : available_targets()) {
        FencedFloats y(n);
        ops_for(target).rms_norm(x.data(), weight.data(), 1e-6f, n, y.data());
        expect_same(y, want, target);
        std::copy(x.all().begin(), x.all().end(), y.data());
        ops_for(target).rms_norm(y.data(), weight.data(), 1e-6f, n, y.data());  // in place
        expect_same(y, want, target);
      }
    }
  }
}

TEST(RmsNorm, IsAccurate) {
  FloatSource source(22);
  const size_t n = 576;
  std::vector<float> x(n), weight(n), y(n);
  for (size_t i = 0; i < n; ++i) {
    x[i] = source.uniform(-10, 10);
    weight[i] = source.uniform(0.1f, 2);
  }
  ops_for(best_target()).rms_norm(x.data(), weight.data(), 1e-5f, n, y.data());
  long double sum = 0;
  for (float v : x) sum += static_cast<long double>(v) * v;
  const long double root = std::sqrt(sum / n + 1e-5L);
  for (size_t i = 0; i < n; ++i) {
    const long double exact = x[i] / root * weight[i];
    ASSERT_LE(std::fabs(y[i] - exact), 5e-7L * std::fabs(exact));
  }
}

TEST(Rope, EqualsThePlainLoopOnEveryTarget) {
  FloatSource source(23);
  for (size_t pairs : {1, 2, 7, 15, 16, 17, 32, 33, 48, 64, 128}) {
    for (RopePairs style : {RopePairs::neighbours, RopePairs::halves}) {
      for (size_t beyond : {0, 6}) {  // head_dim may be more than what is rotated
        const size_t heads = source.size(1, 3), head_dim = 2 * pairs + beyond;
        std::vector<float> x(heads * head_dim);
        for (float& v : x) v = source.uniform(-4, 4);
        FencedFloats cos(pairs), sin(pairs);
        for (size_t i = 0; i < pairs; ++i) {
          const float angle = source.uniform(-3, 3);
          cos[i] = std::cos(angle);
          sin[i] = std::sin(angle);
        }
        std::vector<float> want = x;
        for (size_t h = 0; h < heads; ++h) {
          for (size_t i = 0; i < pairs; ++i) {
            const size_t at_a = h * head_dim + (style == RopePairs::halves ? i : 2 * i);
            const size_t at_b = style == RopePairs::halves ? at_a + pairs : at_a + 1;
            want[at_a] = std::fma(-x[at_b], sin[i], x[at_a] * cos[i]);
            want[at_b] = std::fma(x[at_a], sin[i], x[at_b] * cos[i]);
          }
        }
        for (SimdTarget target : available_targets()) {
          FencedFloats y(x.size());
          std::copy(x.begin(), x.end(), y.data());
          ops_for(target).rope(y.data(), heads, head_dim, pairs, style, cos.data(), sin.data());
          expect_same(y, want, target);
        }
      }
    }
  }
}

// What each kernel means, in long double.
long double exact_silu(long double x) { return x / (1.0L + std::exp(-x)); }
long double exact_gelu(long double x) {
  const long double root = std::sqrt(2.0L / 3.14159265358979323846L);
  return 0.5L * x * (1.0L + std::tanh(root * (x + 0.044715L * x * x * x)));
}

TEST(Activation, TargetsAgreeAtEverySizeAndValue) {
  FloatSource source(24);
  for (size_t n = 1; n <= 70; ++n) {
    FencedFloats gate(n), up(n);
    fill(gate, source, n % 2 == 0);
    fill(up, source, n % 3 == 0);
    for (auto kernel : {&Ops::silu_mul, &Ops::gelu_mul}) {
      std::vector<float> want(n);
      (ops_for(SimdTarget::scalar).*kernel)(gate.data(), up.data(), n, want.data());
      for (SimdTarget target : available_targets()) {
        FencedFloats out(n);
        (ops_for(target).*kernel)(gate.data(), up.data(), n, out.data());
        expect_same(out, want, target);
        std::copy(gate.all().begin(), gate.all().end(), out.data());
        (ops_for(target).*kernel)(out.data(), up.data(), n, out.data());  // out may be gate
        expect_same(out, want, target);
      }
    }
  }
}

TEST(Activation, SiluAndGeluAreAccurate) {
  for (float x = -30.0f; x <= 30.0f; x += 0.00737f) {
    const float up = 1.7f;
    float silu, gelu;
    ops_for(SimdTarget::scalar).silu_mul(&x, &up, 1, &silu);
    ops_for(SimdTarget::scalar).gelu_mul(&x, &up, 1, &gelu);
    ASSERT_LT(ulp_error(silu, exact_silu(x) * up), 6.0) << x;
    // 1 + tanh cancels far below zero, in the formula itself: absolute there.
    ASSERT_LE(std::fabs(gelu - exact_gelu(x) * up), 4e-7L * std::fabs(static_cast<long double>(x)) + 1e-30L) << x;
  }
  const float limits[4] = {1000.0f, -1000.0f, 0.0f, 3e38f}, ones[4] = {1, 1, 1, 1};
  float silu[4], gelu[4];
  ops_for(best_target()).silu_mul(limits, ones, 4, silu);
  ops_for(best_target()).gelu_mul(limits, ones, 4, gelu);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(silu[i], std::max(limits[i], 0.0f));
    EXPECT_EQ(gelu[i], std::max(limits[i], 0.0f));
  }
}

TEST(Activation, AddEqualsThePlainLoop) {
  FloatSource source(25);
  for (size_t n = 1; n <= 70; ++n) {
    FencedFloats a(n), b(n);
    fill(a, source, true);
    fill(b, source, true);
    std::vector<float> want(n);
    for (size_t i = 0; i < n; ++i) want[i] = a[i] + b[i];
    for (SimdTarget target : available_targets()) {
      FencedFloats y(n);
      std::copy(b.all().begin(), b.all().end(), y.data());
      ops_for(target).add(a.data(), n, y.data());
      expect_same(y, want, target);
    }
  }
}

TEST(Activation, SoftCapIsAccurateAndAgrees) {
  FloatSource source(26);
  for (size_t n : {1, 16, 31, 70}) {
    std::vector<float> x(n), want(n);
    for (float& v : x) v = source.uniform(-200, 200);
    want = x;
    ops_for(SimdTarget::scalar).soft_cap(want.data(), n, 30.0f);
    for (size_t i = 0; i < n; ++i) ASSERT_LT(ulp_error(want[i], 30.0L * std::tanh(x[i] / 30.0L)), 5.0) << x[i];
    for (SimdTarget target : available_targets()) {
      FencedFloats y(n);
      std::copy(x.begin(), x.end(), y.data());
      ops_for(target).soft_cap(y.data(), n, 30.0f);
      expect_same(y, want, target);
    }
  }
}

}  // namespace
}  // namespace kvarto

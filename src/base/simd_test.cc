// Every operation of F32x16 on every target against plain expressions, and the accuracy of exp and tanh against libm in
// long double.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/simd_test.cc"
#include "hwy/foreach_target.h"  // compiles what follows once per target
// after foreach_target.h
#include <gtest/gtest.h>

#include <vector>

#include "base/dispatch.h"
#include "base/float_testing.h"
#include "base/simd.h"
#include "base/simd_math.h"

#ifndef KVARTO_BASE_SIMD_TEST_ROWS_
#define KVARTO_BASE_SIMD_TEST_ROWS_
namespace kvarto {

enum Row {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFma,
  kMax,
  kMin,
  kRound,
  kSqrt,
  kAbs,
  kIfNegative,
  kF16,
  kBf16,
  kToInt,
  kPower,
  kRows
};

struct Lanes {
  float row[kRows][16];
  float first[17][16], loaded[17][16], stored[17][16];
  float sum, max;
  uint16_t f16[16], bf16[16];
};

struct Probe {
  void (*all)(const float* a, const float* b, const float* c, const uint16_t* halves, Lanes* out);
  void (*exp)(const float* x, size_t n, float* y);
  void (*tanh)(const float* x, size_t n, float* y);
  void (*exp_nonpositive)(const float* x, size_t n, float* y);
};

}  // namespace kvarto
#endif

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {
namespace {

void store_ints(const I32x16& n, float* out) {
  int32_t lane[16];
  std::memcpy(lane, &n, sizeof lane);
  for (int i = 0; i < 16; ++i) out[i] = static_cast<float>(lane[i]);
}

void probe_all(const float* pa, const float* pb, const float* pc, const uint16_t* halves, Lanes* out) {
  const F32x16 a = load(pa), b = load(pb), c = load(pc);
  store(a + b, out->row[kAdd]);
  store(a - b, out->row[kSub]);
  store(a * b, out->row[kMul]);
  store(a / b, out->row[kDiv]);
  store(fma(a, b, c), out->row[kFma]);
  store(max(a, b), out->row[kMax]);
  store(min(a, b), out->row[kMin]);
  store(round_even(a), out->row[kRound]);
  store(sqrt(a), out->row[kSqrt]);
  store(abs(a), out->row[kAbs]);
  store(if_negative(a, b, c), out->row[kIfNegative]);
  store(load_f16(halves), out->row[kF16]);
  store(load_bf16(halves), out->row[kBf16]);
  float whole[16], powers[16];
  for (int i = 0; i < 16; ++i) whole[i] = static_cast<float>(1000 * (i - 8)) + 0.75f;
  for (int i = 0; i < 16; ++i) powers[i] = static_cast<float>(i == 15 ? 127 : -126 + 16 * i);
  store_ints(to_int(load(whole)), out->row[kToInt]);
  store(power_of_two(load(powers)), out->row[kPower]);
  for (size_t n = 0; n <= 16; ++n) {
    store(first_n(n, a, b), out->first[n]);
    store(load_n(pa, n, 7.0f), out->loaded[n]);
    store(splat(-1.0f), out->stored[n]);
    store_n(a, out->stored[n], n);
  }
  out->sum = fold_sum(a);
  out->max = fold_max(a);
  store_f16(a, out->f16);
  store_bf16(a, out->bf16);
}

void probe_exp(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; i += 16) store(exp(load(x + i)), y + i);
}
void probe_tanh(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; i += 16) store(tanh(load(x + i)), y + i);
}

void probe_exp_nonpositive(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; i += 16) store(exp_nonpositive(load(x + i)), y + i);
}

const Probe kProbe = {probe_all, probe_exp, probe_tanh, probe_exp_nonpositive};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvarto {
KVARTO_TARGET_TABLE(Probe, probe_for, kProbe);

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Plain expressions, one per row.
void expected_rows(const float* a, const float* b, const float* c, const uint16_t* halves, float out[kRows][16]) {
  for (int i = 0; i < 16; ++i) {
    out[kAdd][i] = a[i] + b[i];
    out[kSub][i] = a[i] - b[i];
    out[kMul][i] = a[i] * b[i];
    out[kDiv][i] = a[i] / b[i];
    out[kFma][i] = std::fma(a[i], b[i], c[i]);
    out[kMax][i] = a[i] > b[i] ? a[i] : b[i];
    out[kMin][i] = a[i] < b[i] ? a[i] : b[i];
    out[kRound][i] = std::rint(a[i]);
    out[kSqrt][i] = std::sqrt(a[i]);
    out[kAbs][i] = std::abs(a[i]);
    out[kIfNegative][i] = a[i] < 0 ? b[i] : c[i];
    out[kF16][i] = f16_to_f32(halves[i]);
    out[kBf16][i] = bf16_to_f32(halves[i]);
    out[kToInt][i] = static_cast<float>(i < 8 ? 1000 * (i - 8) + 1 : 1000 * (i - 8));  // toward zero
    out[kPower][i] = std::ldexp(1.0f, i == 15 ? 127 : -126 + 16 * i);
  }
  out[kToInt][8] = 0;
}

TEST(Simd, ThreeTargetsAreCompiledAndScalarIsTheBaseline) {
  EXPECT_EQ(HWY_TARGETS, HWY_SCALAR | HWY_AVX2 | HWY_AVX3_DL);
  EXPECT_EQ(HWY_STATIC_TARGET, HWY_SCALAR);
}

TEST(Simd, EveryOperationOnEveryTarget) {
  FloatSource source(1);
  for (int round = 0; round < 2000; ++round) {
    float a[16], b[16], c[16];
    uint16_t halves[16];
    for (int i = 0; i < 16; ++i) {
      a[i] = source.awkward();
      b[i] = source.awkward();
      c[i] = source.awkward();
      halves[i] = static_cast<uint16_t>(source.size(0, 65535));
    }
    float expected[kRows][16];
    expected_rows(a, b, c, halves, expected);
    float sums[8];
    for (int i = 0; i < 8; ++i) sums[i] = a[i] + a[i + 8];
    const float sum = ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
    for (SimdTarget target : available_targets()) {
      SCOPED_TRACE(simd_target_name(target));
      Lanes got;
      probe_for(target).all(a, b, c, halves, &got);
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < 16; ++i)
          ASSERT_TRUE(same_bits(got.row[r][i], expected[r][i])) << "row " << r << " lane " << i;
      }
      for (int n = 0; n <= 16; ++n) {
        for (int i = 0; i < 16; ++i) {
          ASSERT_TRUE(same_bits(got.first[n][i], i < n ? a[i] : b[i]));
          ASSERT_TRUE(same_bits(got.loaded[n][i], i < n ? a[i] : 7.0f));
          ASSERT_TRUE(same_bits(got.stored[n][i], i < n ? a[i] : -1.0f));
        }
      }
      ASSERT_TRUE(same_bits(got.sum, sum)) << got.sum << " " << sum;
      float greatest = -kInf;
      for (float v : a) greatest = std::fmax(greatest, v);
      if (std::none_of(a, a + 16, [](float v) { return std::isnan(v); })) {
        ASSERT_EQ(got.max, greatest);
      }
    }
  }
}

// The scalar conversions of half.h and the processor's own are written independently: they must agree on everything.
TEST(Simd, SixteenBitStoresAgreeWithHalf) {
  for (uint64_t start = 0; start < (uint64_t{1} << 32); start += 16 * 39979) {
    float a[16], zero[16] = {};
    for (uint32_t i = 0; i < 16; ++i) a[i] = std::bit_cast<float>(static_cast<uint32_t>(start + i * 4099));
    for (SimdTarget target : available_targets()) {
      Lanes got;
      const uint16_t halves[16] = {};
      probe_for(target).all(a, zero, zero, halves, &got);
      for (int i = 0; i < 16; ++i) {
        ASSERT_EQ(got.f16[i], f32_to_f16(a[i])) << a[i] << " " << simd_target_name(target);
        ASSERT_EQ(got.bf16[i], f32_to_bf16(a[i])) << a[i] << " " << simd_target_name(target);
      }
    }
  }
}

TEST(Simd, SixteenBitStoresRoundAndSaturate) {
  float a[16] = {65504.0f, 65519.0f,        65520.0f,          1e9f,           -kInf,
                 kNaN,     -kNaN,           0x1p-24f,          0x1.8p-25f,     0x1p-25f,
                 -0.0f,    1.0f + 0x1p-11f, 1.0f + 0x1.8p-10f, 1.0f + 0x1p-8f, 1.0f + 0x1.8p-7f,
                 3.4e38f};
  const uint16_t f16[16] = {0x7bff, 0x7bff, 0x7bff, 0x7bff, 0xfbff, 0x7e00, 0xfe00, 1,
                            1,      0,      0x8000, 0x3c00, 0x3c02, 0x3c04, 0x3c0c, 0x7bff};
  const uint16_t bf16[16] = {0x4780, 0x4780, 0x4780, 0x4e6e, 0xff80, 0x7fc0, 0xffc0, 0x3380,
                             0x3340, 0x3300, 0x8000, 0x3f80, 0x3f80, 0x3f80, 0x3f82, 0x7f80};
  float zero[16] = {};
  const uint16_t halves[16] = {};
  for (SimdTarget target : available_targets()) {
    Lanes got;
    probe_for(target).all(a, zero, zero, halves, &got);
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(got.f16[i], f16[i]) << a[i];
      EXPECT_EQ(got.bf16[i], bf16[i]) << a[i];
    }
  }
}

// All finite floats of both signs up to `limit`, `step` bit patterns apart, padded to whole sixteens.
std::vector<float> sampled(float limit, uint32_t step) {
  std::vector<float> x;
  for (uint32_t bits = 0; bits <= std::bit_cast<uint32_t>(limit); bits += step) {
    x.push_back(std::bit_cast<float>(bits));
    x.push_back(-x.back());
  }
  x.resize((x.size() + 15) / 16 * 16);
  return x;
}

TEST(SimdMath, ExpIsAccurate) {
  const std::vector<float> x = sampled(110.0f, 8009);
  std::vector<float> y(x.size());
  probe_for(SimdTarget::scalar).exp(x.data(), x.size(), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] < -87.33654f) {
      ASSERT_EQ(y[i], 0.0f) << x[i];
    } else {
      const double error = ulp_error(y[i], std::exp(static_cast<long double>(x[i])));
      ASSERT_LT(error, 1.0) << x[i];
      worst = std::max(worst, error);
    }
  }
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(SimdMath, TanhIsAccurate) {
  const std::vector<float> x = sampled(20.0f, 8009);
  std::vector<float> y(x.size());
  probe_for(SimdTarget::scalar).tanh(x.data(), x.size(), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = ulp_error(y[i], std::tanh(static_cast<long double>(x[i])));
    ASSERT_LT(error, 3.0) << x[i];
    ASSERT_LE(std::fabs(y[i]), 1.0f);
    worst = std::max(worst, error);
  }
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(SimdMath, SpecialValues) {
  const float x[16] = {0,     -0.0f,      kInf,   -kInf,  kNaN,   88.72283f, 88.7229f, 89,
                       1e30f, -87.33654f, -87.4f, -1e30f, 1e-45f, 3.4e38f,   -3.4e38f, 1};
  for (SimdTarget target : available_targets()) {
    float e[16], t[16];
    probe_for(target).exp(x, 16, e);
    probe_for(target).tanh(x, 16, t);
    EXPECT_EQ(e[0], 1.0f);
    EXPECT_EQ(e[1], 1.0f);
    EXPECT_EQ(e[2], kInf);
    EXPECT_EQ(e[3], 0.0f);
    EXPECT_TRUE(std::isnan(e[4]));
    EXPECT_LT(e[5], kInf);
    for (int i : {6, 7, 8, 13}) EXPECT_EQ(e[i], kInf) << x[i];
    EXPECT_GE(e[9], std::numeric_limits<float>::min());
    for (int i : {10, 11, 14}) EXPECT_EQ(e[i], 0.0f) << x[i];
    EXPECT_EQ(t[0], 0.0f);
    EXPECT_EQ(t[1], 0.0f);
    EXPECT_EQ(t[2], 1.0f);
    EXPECT_EQ(t[3], -1.0f);
    EXPECT_TRUE(std::isnan(t[4]));
    EXPECT_EQ(t[12], 1e-45f);
  }
}

TEST(SimdMath, TargetsAgree) {
  std::vector<float> x = sampled(kInf, 16001), expected(x.size()), y(x.size());
  x.back() = kNaN;
  for (auto f : {&Probe::exp, &Probe::tanh}) {
    (probe_for(SimdTarget::scalar).*f)(x.data(), x.size(), expected.data());
    for (SimdTarget target : available_targets()) {
      (probe_for(target).*f)(x.data(), x.size(), y.data());
      for (size_t i = 0; i < x.size(); ++i)
        ASSERT_TRUE(same_bits(y[i], expected[i])) << x[i] << " " << simd_target_name(target);
    }
  }
}

TEST(SimdMath, ExpOfNonpositiveIsExp) {
  std::vector<float> x = sampled(kInf, 4001), expected(x.size()), y(x.size());
  for (float& value : x) value = -std::fabs(value);
  x.front() = 0.0f;
  x.back() = kNaN;
  probe_for(SimdTarget::scalar).exp(x.data(), x.size(), expected.data());
  for (SimdTarget target : available_targets()) {
    probe_for(target).exp_nonpositive(x.data(), x.size(), y.data());
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_TRUE(same_bits(y[i], expected[i])) << x[i] << " " << simd_target_name(target);
  }
}

}  // namespace
}  // namespace kvarto
#endif

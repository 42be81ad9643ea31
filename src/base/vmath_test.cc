#include "base/vmath.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace kvarto {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double relative(double y, long double exact) { return static_cast<double>(std::fabs(y / exact - 1.0L)); }

class Vmath : public testing::Test {
 protected:
  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  std::mt19937_64 random_{7};
};

TEST_F(Vmath, ExpAgainstLongDouble) {
  for (int i = 0; i < 30000; ++i) {
    const double x = uniform(-700, 700);
    ASSERT_LT(relative(exp_d(x), std::exp(static_cast<long double>(x))), 1e-15) << x;
  }
  EXPECT_EQ(exp_d(0.0), 1.0);
  EXPECT_EQ(exp_d(-kInf), 0.0);
  EXPECT_EQ(exp_d(kInf), kInf);
  EXPECT_EQ(exp_d(710.0), kInf);
  EXPECT_EQ(exp_d(-745.0), 0x1p-1074);
  EXPECT_TRUE(std::isnan(exp_d(std::nan(""))));
}

TEST_F(Vmath, LogAgainstLongDouble) {
  for (int i = 0; i < 30000; ++i) {
    const double wide = std::ldexp(uniform(0.5, 1), static_cast<int>(uniform(-1060, 1020))), near = uniform(0.5, 1.5);
    ASSERT_LT(relative(log_d(wide), std::log(static_cast<long double>(wide))), 1e-15) << wide;
    ASSERT_LT(relative(log_d(near), std::log(static_cast<long double>(near))), 1e-15) << near;
  }
  EXPECT_EQ(log_d(1.0), 0.0);
  EXPECT_EQ(log_d(0.0), -kInf);
  EXPECT_EQ(log_d(kInf), kInf);
  EXPECT_TRUE(std::isnan(log_d(-1.0)));
  EXPECT_LT(relative(log_d(0x1p-1074), -744.4400719213812L), 1e-15);
}

TEST_F(Vmath, PowAgainstLongDouble) {
  for (int i = 0; i < 30000; ++i) {
    const double base = uniform(2, 1e7), power = uniform(-1, 1);
    ASSERT_LT(relative(pow_d(base, power), std::pow(static_cast<long double>(base), static_cast<long double>(power))),
              1e-14)
        << base << " " << power;
  }
  EXPECT_EQ(pow_d(10000.0, 0.0), 1.0);
}

TEST_F(Vmath, LogSumExpAgainstLongDouble) {
  std::vector<float> row(1000);
  long double sum = 0;
  for (float& x : row) {
    x = static_cast<float>(uniform(-30, 30));
    sum += std::exp(static_cast<long double>(x));
  }
  EXPECT_LT(relative(log_sum_exp(row), std::log(sum)), 1e-14);
  EXPECT_EQ(log_sum_exp(std::vector<float>{-static_cast<float>(kInf), 1000.0f}), 1000.0);
  EXPECT_NEAR(log_sum_exp(std::vector<float>{-1000.0f, -1000.0f}), -1000.0 + 0.69314718055994531, 1e-12);
}

// Beside a multiple of pi/2 one of the two is tiny: there the absolute error counts.
void expect_close(double y, long double exact, double x) {
  ASSERT_LE(std::fabs(y - exact), 4e-16L * std::fabs(exact) + 1e-27L) << x;
}

TEST_F(Vmath, SinCosAgainstLongDouble) {
  for (int i = 0; i < 30000; ++i) {
    // Anywhere, small, whole numbers, and the doubles beside multiples of pi/2.
    for (const double x : {uniform(-1.2e7, 1.2e7), uniform(-4, 4), std::floor(uniform(0, 1.2e7)),
                           std::floor(uniform(0, 7.6e6)) * 1.5707963267948966}) {
      const SinCos got = sincos_d(x);
      expect_close(got.sin, std::sin(static_cast<long double>(x)), x);
      expect_close(got.cos, std::cos(static_cast<long double>(x)), x);
    }
  }
  EXPECT_EQ(sincos_d(0.0).sin, 0.0);
  EXPECT_EQ(sincos_d(0.0).cos, 1.0);
}

// From tools/make_math_goldens.py (mpmath, 60 digits).
TEST_F(Vmath, SinCosGoldens) {
  const struct {
    double x, sin, cos;
  } kGoldens[] = {
      {0.5, 0.479425538604203, 0.8775825618903728},          {1.5707963267948966, 1.0, 6.123233995736766e-17},
      {3.141592653589793, 1.2246467991473532e-16, -1.0},     {22.0, -0.008851309290403876, -0.9999608263946371},
      {355.0, -3.014435335948845e-05, -0.999999999545659},   {710.0, 6.0288706691585265e-05, 0.999999998182636},
      {1048576.0, 0.3304931400217347, 0.943808393901312},    {9999999.5, 0.8040340033005333, -0.5945833175733389},
      {8388607.0, 0.9923450937696126, -0.12349580912475928}, {1e-09, 1e-09, 1.0},
  };
  for (const auto& g : kGoldens) {
    EXPECT_LT(relative(sincos_d(g.x).sin, g.sin), 1e-15) << g.x;
    EXPECT_LT(relative(sincos_d(g.x).cos, g.cos), 1e-15) << g.x;
  }
}

}  // namespace
}  // namespace kvarto

#include "base/vmath.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <limits>

namespace kvarto {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// ln2 and pi/2 in parts: a part's short mantissa makes its product with the quotient exact
// (tools/make_math_goldens.py).
constexpr double kLn2Upper = 0x1.62e42feep-1, kLn2Lower = 0x1.a39ef35793c76p-33;
constexpr double kHalfPi1 = 0x1.921fb54p+0, kHalfPi2 = 0x1.10b46118p-30, kHalfPi3 = 0x1.313198a2e037p-61;

// Nearest whole number (ties to even) for |x| < 2^51: the addition does the rounding.
double nearest(double x) {
  constexpr double kShift = 0x1.8p52;
  return (x + kShift) - kShift;
}

// 1/first!, 1/(first + step)!, ... with alternating signs when `sign` is -1.
template <int count>
struct Reciprocals {
  double value[count];
  constexpr Reciprocals(int first, int step, int sign) : value() {
    for (int i = 0; i < count; ++i) {
      double factorial = 1.0;  // exact up to 18!
      for (int k = 2; k <= first + i * step; ++k) factorial *= k;
      value[i] = (sign < 0 && i % 2 == 1 ? -1.0 : 1.0) / factorial;
    }
  }
};

// value[0] + x value[1] + ...
template <int count>
double polynomial(double x, const double (&value)[count]) {
  double p = value[count - 1];
  for (int i = count - 2; i >= 0; --i) p = p * x + value[i];
  return p;
}

constexpr Reciprocals<12> kExp(2, 1, 1);  // 1/2! .. 1/13!: the remainder at ln2/2 is 4e-18
constexpr Reciprocals<7> kSin(3, 2, -1);  // 1/3!, -1/5! .. 1/15!: the remainder at pi/4 is 5e-17
constexpr Reciprocals<7> kCos(4, 2, -1);  // 1/4!, -1/6! .. 1/16!: 2e-18

double power_of_two(int n) { return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52); }

}  // namespace

double exp_d(double x) {
  if (x != x) return x;
  if (x > 709.8) return kInfinity;
  if (x < -745.2) return 0.0;
  const double n = nearest(x * 0x1.71547652b82fep+0);
  const double r = (x - n * kLn2Upper) - n * kLn2Lower;
  const double p = 1.0 + (r + r * r * polynomial(r, kExp.value));
  const int half = static_cast<int>(n) / 2;  // two steps: 2^n alone may be out of range
  return p * power_of_two(half) * power_of_two(static_cast<int>(n) - half);
}

double log_d(double x) {
  if (x != x || x < 0) return kNaN;
  if (x == 0) return -kInfinity;
  if (x == kInfinity) return x;
  double e = 0.0;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    e = -54.0;
  }
  // x = 2^e m with m in [sqrt(1/2), sqrt(2)): the bits of sqrt(1/2) become the boundary of the exponent field.
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcd;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int64_t exponent = static_cast<int64_t>(bits - kRootHalf) >> 52;
  e += static_cast<double>(exponent);
  const double f = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52)) - 1.0;
  // log(1 + f) = 2 atanh(s) = 2 (s + s^3/3 + s^5/5 + ...), |s| < 0.172.
  const double s = f / (2.0 + f);
  const double z = s * s;
  constexpr double kOdd[] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11, 1.0 / 13,
                             1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23};
  const double tail = 2.0 * s * z * polynomial(z, kOdd);
  return e * kLn2Upper + (2.0 * s + (tail + e * kLn2Lower));
}

double pow_d(double x, double y) { return exp_d(y * log_d(x)); }

SinCos sincos_d(double x) {
  // x = k pi/2 + r + low: the first two products and differences are exact, what the third rounds away is kept in low.
  const double k = nearest(x * 0x1.45f306dc9c883p-1);
  const double first = x - k * kHalfPi1;
  const double second = k * kHalfPi2;
  const double upper = first - second;
  const double kept = upper - first;  // two-sum of first and -second
  const double lost = (first - (upper - kept)) + (-second - kept);
  const double correction = lost - k * kHalfPi3;
  const double r = upper + correction;
  const double low = (upper - r) + correction;

  const double z = r * r;
  const double sin_r = r + (low - r * z * polynomial(z, kSin.value));
  const double half = 0.5 * z;
  const double one_minus = 1.0 - half;
  const double cos_r = one_minus + (((1.0 - one_minus) - half) + (z * z * polynomial(z, kCos.value) - r * low));
  switch (static_cast<int64_t>(k) & 3) {
    case 0:
      return {sin_r, cos_r};
    case 1:
      return {cos_r, -sin_r};
    case 2:
      return {-sin_r, -cos_r};
    default:
      return {-cos_r, sin_r};
  }
}

double log_sum_exp(std::span<const float> row) {
  const double max = *std::ranges::max_element(row);
  double sum = 0.0;
  for (const float x : row) sum += exp_d(static_cast<double>(x) - max);
  return max + log_d(sum);
}

}  // namespace kvarto

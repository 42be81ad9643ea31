// exp, log, pow, sin and cos in double, our own: libm differs between machines and versions, these do not (only +, -,
// *, /, each rounded once; DESIGN section 2). For tables made once, such as the rotary embedding's; accurate to about
// 1e-15 relative (pow: times |y log x|). The float versions of sixteen lanes are in base/simd_math.h. Pure functions,
// any thread.
#pragma once

#include <span>

namespace kvarto {

double exp_d(double x);            // 0 below about -745, infinity above about 709.8
double log_d(double x);            // -infinity at 0, NaN below
double pow_d(double x, double y);  // exp(y log x), x > 0
struct SinCos {
  double sin, cos;
};
SinCos sincos_d(double x);  // |x| <= 1.2e7 radians

// log(sum(exp(x))) of one row or more, summed in ascending order: the norm of log-probabilities. No NaN, and one finite
// value at least.
double log_sum_exp(std::span<const float> row);

}  // namespace kvarto

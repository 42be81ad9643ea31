#include "engine/cost_model.h"

#include <algorithm>
#include <cmath>

namespace kvarto {
namespace {

// A key costs far less than a token; bringing the terms to like size keeps the equations well conditioned.
constexpr double kContextScale = 1.0 / 1024.0;
constexpr double kForget = 0.95;  // a step counts half after 14 steps
constexpr double kRidge = 1e-6;   // shares cost evenly among terms that the steps so far cannot tell apart

std::array<double, 3> terms(uint64_t tokens, uint64_t context) {
  return {1.0, static_cast<double>(tokens), static_cast<double>(context) * kContextScale};
}

}  // namespace

double OnlineCostModel::estimate(uint64_t tokens, uint64_t context) const {
  const auto x = terms(tokens, context);
  return us_[0] * x[0] + us_[1] * x[1] + us_[2] * x[2];
}

void OnlineCostModel::observe(uint64_t tokens, uint64_t context, double us, bool decodes_only) {
  if (!(us > 0.0) || tokens == 0) return;
  decode_measured_ = decode_measured_ || decodes_only;
  // Weighted by 1/us^2: a short decode step's error matters as much, relatively, as a long prefill's.
  const double weight = 1.0 / (us * us);
  const auto x = terms(tokens, context);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) squares_[i][j] = kForget * squares_[i][j] + weight * x[i] * x[j];
    products_[i] = kForget * products_[i] + weight * x[i] * us;
  }
  solve();
}

// Normal equations; a term whose coefficient comes out negative is left out and the rest solved again.
void OnlineCostModel::solve() {
  std::array<bool, kTerms> used = {true, true, true};
  for (int attempt = 0; attempt < kTerms; ++attempt) {
    auto a = squares_;
    auto b = products_;
    const double ridge = kRidge * (a[0][0] + a[1][1] + a[2][2]);
    for (int i = 0; i < kTerms; ++i) {
      a[i][i] += ridge;
      if (used[i]) continue;
      for (int j = 0; j < kTerms; ++j) a[i][j] = a[j][i] = 0.0;
      a[i][i] = 1.0;
      b[i] = 0.0;
    }
    for (int i = 0; i < kTerms; ++i) {  // positive definite: no pivoting needed
      for (int r = i + 1; r < kTerms; ++r) {
        const double factor = a[r][i] / a[i][i];
        for (int c = i; c < kTerms; ++c) a[r][c] -= factor * a[i][c];
        b[r] -= factor * b[i];
      }
    }
    std::array<double, kTerms> solution{};
    for (int i = kTerms - 1; i >= 0; --i) {
      double rest = b[i];
      for (int c = i + 1; c < kTerms; ++c) rest -= a[i][c] * solution[c];
      solution[i] = rest / a[i][i];
    }
    const auto worst = std::min_element(solution.begin(), solution.end()) - solution.begin();
    const bool negative = solution[worst] < 0.0;
    if (negative) {
      used[worst] = false;
      solution[worst] = 0.0;
    }
    for (int i = 0; i < kTerms; ++i) us_[i] = std::max(0.0, solution[i]);
    if (!negative) return;
  }
}

}  // namespace kvarto

#include "engine/cost_model.h"

#include <algorithm>
#include <cmath>

namespace kvarto {
namespace {

// A key costs far less than a token; bringing the terms to like size keeps the equations well conditioned.
constexpr double kContextScale = 1.0 / 1024.0;
constexpr double kForget = 0.95;  // a step counts half after 14 steps
constexpr double kRidge = 1e-6;   // shares cost evenly among terms that the steps so far cannot tell apart

// Steps of prompts alone compute in far larger chunks than mixed ones and so cheaper per token. They tell how to begin,
// and are believed by this much less with every mixed step that was measured.
constexpr double kPrefillsKept = 0.25;

std::array<double, 4> terms(const StepWork& work) {
  return {1.0, static_cast<double>(work.tokens), static_cast<double>(work.context) * kContextScale,
          static_cast<double>(work.logit_rows)};
}

}  // namespace

double OnlineCostModel::estimate(const StepWork& work) const {
  const Column x = terms(work);
  double us = 0.0;
  for (int i = 0; i < kTerms; ++i) us += us_[i] * x[i];
  return us;
}

void OnlineCostModel::Memory::fade(double kept) {
  for (int i = 0; i < kTerms; ++i) {
    for (double& square : squares[i]) square *= kept;
    products[i] *= kept;
  }
}

void OnlineCostModel::Memory::add(const Column& x, double us) {
  // Weighted by 1/us^2: a short decode step's error matters as much, relatively, as a long prefill's.
  const double weight = 1.0 / (us * us);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) squares[i][j] += weight * x[i] * x[j];
    products[i] += weight * x[i] * us;
  }
}

void OnlineCostModel::observe(const StepWork& work, double us, StepKind kind) {
  if (!(us > 0.0) || work.tokens == 0) return;
  decode_measured_ = decode_measured_ || kind == StepKind::decodes;
  if (kind == StepKind::mixed) prefills_.fade(kPrefillsKept);
  Memory& memory = kind == StepKind::decodes ? decodes_ : kind == StepKind::mixed ? mixed_ : prefills_;
  memory.fade(kForget);
  memory.add(terms(work), us);
  solve();
}

// Normal equations; a term whose coefficient comes out negative is left out and the rest solved again.
void OnlineCostModel::solve() {
  std::array<bool, kTerms> used;
  used.fill(true);
  for (int attempt = 0; attempt < kTerms; ++attempt) {
    Square a{};
    Column b{};
    for (const Memory* memory : {&decodes_, &mixed_, &prefills_}) {
      for (int i = 0; i < kTerms; ++i) {
        for (int j = 0; j < kTerms; ++j) a[i][j] += memory->squares[i][j];
        b[i] += memory->products[i];
      }
    }
    double ridge = 0.0;
    for (int i = 0; i < kTerms; ++i) ridge += kRidge * a[i][i];
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

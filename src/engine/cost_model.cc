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

// While prompts enter, one step in so many is of decodes alone: the others are measured by it, and streams grow. It is
// worth more than one of many, as what came before it is old.
constexpr uint32_t kDecodesEvery = 32;
constexpr double kOldDecodesKept = 0.7;

// Steps of decodes between mixed ones find the caches full of something else, which is none of the streams' doing.
constexpr double kSpreadStep = 0.02, kMostSpread = 1.2;

std::array<double, 4> terms(const StepWork& work) {
  return {1.0, static_cast<double>(work.tokens), static_cast<double>(work.context) * kContextScale,
          static_cast<double>(work.logit_rows)};
}

double times(const std::array<double, 4>& us, const std::array<double, 4>& x) {
  return us[0] * x[0] + us[1] * x[1] + us[2] * x[2] + us[3] * x[3];
}

}  // namespace

double OnlineCostModel::estimate(const StepWork& work) const { return times(us_, terms(work)); }

double OnlineCostModel::estimate_decodes(const StepWork& work) const { return times(decode_us_, terms(work)); }

bool OnlineCostModel::decode_due() const { return mixed_since_decodes_ >= kDecodesEvery; }

// Towards the ratio that one step in twenty exceeds, a little with each step. (After the first one there is no
// estimate.)
void OnlineCostModel::note_spread(double ratio) {
  if (!decode_measured_) return;
  decode_spread_ = std::clamp(decode_spread_ + kSpreadStep * (ratio > decode_spread_ ? 0.95 : -0.05), 1.0, kMostSpread);
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

void OnlineCostModel::observe(const StepWork& work, double us, StepKind kind, uint32_t steps) {
  if (!(us > 0.0) || work.tokens == 0) return;
  if (kind == StepKind::decodes) note_spread(us / estimate_decodes(work));
  decode_measured_ = decode_measured_ || kind == StepKind::decodes;
  if (kind == StepKind::mixed) prefills_.fade(kPrefillsKept);
  Memory& memory = kind == StepKind::decodes ? decodes_ : kind == StepKind::mixed ? mixed_ : prefills_;
  memory.fade(kind == StepKind::decodes && mixed_since_decodes_ > 0 ? kOldDecodesKept : kForget);
  memory.add(terms(work), us);
  us_ = solve({&decodes_, &mixed_, &prefills_});
  if (kind == StepKind::decodes) decode_us_ = solve({&decodes_});
  mixed_since_decodes_ = kind == StepKind::mixed ? mixed_since_decodes_ + steps : 0;
}

// Normal equations; a term whose coefficient comes out negative is left out and the rest solved again.
OnlineCostModel::Column OnlineCostModel::solve(std::initializer_list<const Memory*> memories) {
  std::array<bool, kTerms> used;
  used.fill(true);
  for (int attempt = 0; attempt < kTerms; ++attempt) {
    Square a{};
    Column b{};
    for (const Memory* memory : memories) {
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
    for (double& us : solution) us = std::max(0.0, us);
    if (!negative || attempt + 1 == kTerms) return solution;
  }
  return {};
}

}  // namespace kvarto

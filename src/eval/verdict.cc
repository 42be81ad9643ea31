#include "eval/verdict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace kvarto {
namespace {

constexpr double kUnsafeRetention = 0.95, kWatchRetention = 0.98;
constexpr double kUnsafeDrop = 0.05, kSignificance = 0.05;
constexpr double kUnsafeDivergence = 0.02, kWatchDivergence = 0.002;
constexpr double kGrownDivergence = 0.004, kGrowth = 2;

bool grows(const std::vector<PositionBucket>& buckets) {
  const auto enough = [](const PositionBucket& bucket) { return bucket.tokens >= kRunPositions; };
  const auto last = std::find_if(buckets.rbegin(), buckets.rend(), enough);
  return last != buckets.rend() && last->kl_excess > kGrownDivergence &&
         last->kl_excess > kGrowth * buckets.front().kl_excess;
}

template <typename... Args>
std::string line(const char* pattern, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

}  // namespace

// Comparisons are written so that a figure that is not a number never counts as good.
Verdict verdict_of_skill(const SkillFigures& figures) {
  if (figures.tasks == 0 || (figures.tasks < kFewestTasks && !figures.retention)) return Verdict::not_judged;
  const Interval retention = figures.retention.value_or(Interval{1, 1, 1});
  const bool sure = figures.drop.value > 0 && figures.p < kSignificance, large = figures.drop.value >= kUnsafeDrop;
  if (!(retention.value >= kUnsafeRetention) || (sure && large)) return Verdict::unsafe;
  if (!(retention.value >= kWatchRetention) || !(retention.low >= kUnsafeRetention)) return Verdict::watch;
  return sure || large ? Verdict::watch : Verdict::safe;
}

Verdict verdict_of_text(const TextFigures& figures) {
  if (figures.tokens == 0 || std::isnan(figures.kl_excess.value)) return Verdict::not_judged;
  if (figures.kl_excess.value > kUnsafeDivergence) return Verdict::unsafe;
  return figures.kl_excess.value > kWatchDivergence || grows(figures.buckets) ? Verdict::watch : Verdict::safe;
}

std::string verdict_rule() {
  std::string rule;
  rule += line("Skills, over the tasks of families of which the baseline solves at least %g %%:\n", 100 * kSolvedShare);
  rule += line("  unsafe      retention below %g, or a drop of %g %% of the answers or more with p < %g\n",
               kUnsafeRetention, 100 * kUnsafeDrop, kSignificance);
  rule += line(
      "  watch       retention below %g, or its 95 %% interval reaches below %g, or a drop of %g %% or with p < %g\n",
      kWatchRetention, kUnsafeRetention, 100 * kUnsafeDrop, kSignificance);
  rule += "  safe        otherwise\n";
  rule += line("  not judged  no such family, or fewer than %u tasks without likelihoods\n", unsigned{kFewestTasks});
  rule += "Retention is what is left of the answers' likelihood, p is of McNemar's exact test.\n";
  rule += "Texts, mean divergence from the baseline beyond the noise floor, in nats:\n";
  rule += line("  unsafe      above %g\n", kUnsafeDivergence);
  rule += line("  watch       above %g, or at the last positions above %g and more than %g times that at the first\n",
               kWatchDivergence, kGrownDivergence, kGrowth);
  rule += "  safe        otherwise\n";
  return rule;
}

}  // namespace kvarto

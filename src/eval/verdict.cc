#include "eval/verdict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace kvarto {
namespace {

constexpr double kUnsafeRetention = 0.95, kWatchRetention = 0.98;
constexpr double kLargeDrop = 0.05, kSignificance = 0.05;
// Where a loss may be chance: one answer of twenty that flips is no reason to worry.
constexpr uint32_t kFewestLost = 3;
constexpr double kGrownDivergence = 0.004, kGrowth = 2;

bool grows(const std::vector<PositionBucket>& buckets) {
  const auto enough = [](const PositionBucket& bucket) { return bucket.tokens >= kStretchPositions; };
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

bool judged_by_answers(const SkillFigures& figures) { return figures.tasks >= kFewestTasks; }
bool judged_by_retention(const SkillFigures& figures) {
  return figures.retention && figures.compared >= kFewestTasks && figures.groups >= kFewestGroups;
}

// Comparisons are written so that a figure that is not a number never counts as good.
Verdict verdict_of_skill(const SkillFigures& figures) {
  const bool by_answers = judged_by_answers(figures), by_retention = judged_by_retention(figures);
  if (!by_answers && !by_retention) return Verdict::not_judged;
  const Interval retention = by_retention ? *figures.retention : Interval{1, 1, 1};
  const bool sure = by_answers && figures.drop.value > 0 && figures.p < kSignificance;
  const bool large = by_answers && figures.drop.value >= kLargeDrop;
  const bool several = figures.lost >= figures.gained + kFewestLost;
  const bool faded = !(retention.value >= kUnsafeRetention) && !(retention.high >= 1);
  if (faded || (sure && large)) return Verdict::unsafe;
  if (!(retention.value >= kWatchRetention) || !(retention.low >= kUnsafeRetention)) return Verdict::watch;
  return sure || (large && several) ? Verdict::watch : Verdict::safe;
}

Verdict verdict_of_text(const TextFigures& figures) {
  if (figures.tokens == 0 || std::isnan(figures.kl_excess.value)) return Verdict::not_judged;
  if (figures.kl_excess.value > kUnsafeDivergence) return Verdict::unsafe;
  if (figures.kl_excess.value > kWatchDivergence || grows(figures.buckets)) return Verdict::watch;
  // Little beyond a floor that high says nothing about what is below it.
  const double noise_floor = figures.kl_mean.value - figures.kl_excess.value;
  return noise_floor > kUnsafeDivergence ? Verdict::not_judged : Verdict::safe;
}

std::vector<VerdictCondition> verdict_conditions() {
  constexpr std::string_view kSkill = "a skill", kTexts = "texts";
  return {
      {kSkill, Verdict::unsafe, line("retention below %g, with its whole interval below 1", kUnsafeRetention)},
      {kSkill, Verdict::unsafe,
       line("a net loss of %g %% of the answers or more, with p < %g", 100 * kLargeDrop, kSignificance)},
      {kSkill, Verdict::watch, line("retention below %g", kWatchRetention)},
      {kSkill, Verdict::watch, line("an interval of retention that reaches below %g", kUnsafeRetention)},
      {kSkill, Verdict::watch, line("a net loss of any size, with p < %g", kSignificance)},
      {kSkill, Verdict::watch,
       line("a net loss of %g %% of the answers or more that is of %u answers or more, whatever p", 100 * kLargeDrop,
            unsigned{kFewestLost})},
      {kSkill, Verdict::not_judged, "neither answers nor retention count"},
      {kSkill, Verdict::safe, "none of these"},
      {kTexts, Verdict::unsafe, line("excess divergence above %g nats", kUnsafeDivergence)},
      {kTexts, Verdict::watch, line("excess divergence above %g nats", kWatchDivergence)},
      {kTexts, Verdict::watch,
       line("excess divergence above %g nats at the last positions (%u or more), where it is more than %g times that "
            "at the first",
            kGrownDivergence, unsigned{kStretchPositions}, kGrowth)},
      {kTexts, Verdict::not_judged,
       line("no position can be compared, or the noise floor is above %g nats", kUnsafeDivergence)},
      {kTexts, Verdict::safe, "none of these"},
  };
}

std::vector<std::string> verdict_terms() {
  return {
      "Each line is one condition. The first verdict of which a condition holds is given.",
      line("Answers: those of families of which the baseline solves at least %g %%. They count where they are %u or "
           "more.",
           100 * kSolvedShare, unsigned{kFewestTasks}),
      "Net loss: right answers lost less those gained. p: of McNemar's exact test.",
      line("Retention: what is left of the answers' likelihood. It counts where it is of %u tasks or more, and of %u "
           "groups or more (tasks that share a text are one group).",
           unsigned{kFewestTasks}, unsigned{kFewestGroups}),
      "Questions that came without an answer count by retention alone: by how likely is what the baseline wrote.",
      "Excess divergence: the mean divergence from the baseline beyond the noise floor. Intervals are of 95 %.",
  };
}

std::string verdict_rule() {
  std::string rule;
  std::string_view subject;
  for (const VerdictCondition& condition : verdict_conditions()) {
    if (condition.subject != subject) rule += "Of " + std::string(condition.subject) + ":\n";
    subject = condition.subject;
    std::string name(verdict_name(condition.verdict));
    name.resize(12, ' ');
    rule += "  " + name + condition.words + "\n";
  }
  for (const std::string& term : verdict_terms()) rule += term + "\n";
  return rule;
}

}  // namespace kvarto

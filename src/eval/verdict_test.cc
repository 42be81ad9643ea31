// The bounds are those of the words in verdict.h.
#include "eval/verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvarto {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double below(double value) { return std::nextafter(value, -kInfinity); }
double above(double value) { return std::nextafter(value, kInfinity); }

SkillFigures skill(double retention, double low) {
  SkillFigures figures;
  figures.tasks = 100;
  figures.retention = Interval{retention, low, 1};
  return figures;
}

SkillFigures dropped(double share, double p) {
  SkillFigures figures = skill(1, 1);
  figures.drop = {share, share, share};
  figures.p = p;
  return figures;
}

TextFigures text(double kl, double first = 0, double last = 0) {
  TextFigures figures;
  figures.tokens = 600;
  figures.kl_excess = {kl, kl, kl};
  figures.buckets.resize(3);
  for (PositionBucket& bucket : figures.buckets) bucket.tokens = 200;
  figures.buckets.front().kl_excess = first;
  figures.buckets[1].kl_excess = 1;  // neither first nor last
  figures.buckets.back().kl_excess = last;
  return figures;
}

TEST(EvalVerdict, Retention) {
  EXPECT_EQ(verdict_of_skill(skill(1, 1)), Verdict::safe);
  EXPECT_EQ(verdict_of_skill(skill(0.98, 0.95)), Verdict::safe);
  EXPECT_EQ(verdict_of_skill(skill(below(0.98), 0.95)), Verdict::watch);
  EXPECT_EQ(verdict_of_skill(skill(0.98, below(0.95))), Verdict::watch);
  EXPECT_EQ(verdict_of_skill(skill(0.95, 0.90)), Verdict::watch);
  EXPECT_EQ(verdict_of_skill(skill(below(0.95), 0.90)), Verdict::unsafe);
  EXPECT_EQ(verdict_of_skill(skill(-kInfinity, -kInfinity)), Verdict::unsafe);
  EXPECT_EQ(verdict_of_skill(skill(kNaN, kNaN)), Verdict::unsafe);
}

TEST(EvalVerdict, Drop) {
  EXPECT_EQ(verdict_of_skill(dropped(5.0 / 100, below(0.05))), Verdict::unsafe);
  EXPECT_EQ(verdict_of_skill(dropped(5.0 / 100, 0.05)), Verdict::watch) << "it may be chance";
  EXPECT_EQ(verdict_of_skill(dropped(below(0.05), below(0.05))), Verdict::watch);
  EXPECT_EQ(verdict_of_skill(dropped(below(0.05), 0.05)), Verdict::safe);
  EXPECT_EQ(verdict_of_skill(dropped(0.5, 0.5)), Verdict::watch);
  EXPECT_EQ(verdict_of_skill(dropped(above(0), 0)), Verdict::watch);
  EXPECT_EQ(verdict_of_skill(dropped(-0.2, 0.001)), Verdict::safe) << "answers were gained";
}

TEST(EvalVerdict, TooFewTasksAreNotJudged) {
  EXPECT_EQ(verdict_of_skill(SkillFigures{}), Verdict::not_judged);
  SkillFigures few = dropped(1, mcnemar(5, 0));
  few.tasks = 5;
  EXPECT_EQ(verdict_of_skill(few), Verdict::watch) << "a drop, which may be chance";
  few.retention.reset();
  EXPECT_EQ(verdict_of_skill(few), Verdict::not_judged);
  few.tasks = 6;
  few.p = mcnemar(6, 0);
  EXPECT_EQ(verdict_of_skill(few), Verdict::unsafe);
}

TEST(EvalVerdict, Divergence) {
  EXPECT_EQ(verdict_of_text(text(0)), Verdict::safe);
  EXPECT_EQ(verdict_of_text(text(0.002)), Verdict::safe);
  EXPECT_EQ(verdict_of_text(text(above(0.002))), Verdict::watch);
  EXPECT_EQ(verdict_of_text(text(0.02)), Verdict::watch);
  EXPECT_EQ(verdict_of_text(text(above(0.02))), Verdict::unsafe);
  EXPECT_EQ(verdict_of_text(text(kInfinity)), Verdict::unsafe);
  EXPECT_EQ(verdict_of_text(text(kNaN)), Verdict::not_judged);
  EXPECT_EQ(verdict_of_text(TextFigures{}), Verdict::not_judged);
}

TEST(EvalVerdict, DivergenceThatGrowsWithLength) {
  EXPECT_EQ(verdict_of_text(text(0.001, 0.001, 0.004)), Verdict::safe);
  EXPECT_EQ(verdict_of_text(text(0.001, 0.001, above(0.004))), Verdict::watch);
  EXPECT_EQ(verdict_of_text(text(0.001, 0.0025, 0.005)), Verdict::safe);
  EXPECT_EQ(verdict_of_text(text(0.001, 0.0025, above(0.005))), Verdict::watch);
  TextFigures chance = text(0.001, 0.001, 1);
  chance.buckets[1].kl_excess = 0.001;
  chance.buckets.back().tokens = 63;
  EXPECT_EQ(verdict_of_text(chance), Verdict::safe) << "a few tokens behind an edge say nothing";
  chance.buckets.back().tokens = 64;
  EXPECT_EQ(verdict_of_text(chance), Verdict::watch);
  TextFigures one = text(0.001, 0.005);
  one.buckets.resize(1);
  EXPECT_EQ(verdict_of_text(one), Verdict::safe);
}

TEST(EvalVerdict, TheRuleHasEveryBound) {
  const std::string rule = verdict_rule();
  for (const char* word : {"retention below 0.95", "retention below 0.98", "a drop of 5 %", "p < 0.05", "at least 60 %",
                           "fewer than 6 tasks", "above 0.02\n", "above 0.002", "above 0.004", "more than 2 times"}) {
    EXPECT_NE(rule.find(word), std::string::npos) << word << " in\n" << rule;
  }
}

}  // namespace
}  // namespace kvarto

// The bounds are those of the words in docs/eval.md.
#include "eval/verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/file.h"

namespace kvarto {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double below(double value) { return std::nextafter(value, -kInfinity); }
double above(double value) { return std::nextafter(value, kInfinity); }

SkillFigures skill(double retention, double low, double high = 1) {
  SkillFigures figures;
  figures.tasks = figures.compared = figures.groups = 100;
  figures.retention = Interval{retention, low, high};
  return figures;
}

SkillFigures dropped(double share, double p) {
  SkillFigures figures = skill(1, 1);
  figures.lost = share > 0 ? static_cast<uint32_t>(std::lround(100 * share)) : 0;
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
  EXPECT_EQ(verdict_of_skill(skill(below(0.95), 0.90, below(1))), Verdict::unsafe);
  EXPECT_EQ(verdict_of_skill(skill(0.5, 0.2, 1)), Verdict::watch) << "it may be chance";
  EXPECT_EQ(verdict_of_skill(skill(0.95, 0.90, below(1))), Verdict::watch);
  EXPECT_EQ(verdict_of_skill(skill(-kInfinity, -kInfinity, -kInfinity)), Verdict::unsafe);
  EXPECT_EQ(verdict_of_skill(skill(kNaN, kNaN, kNaN)), Verdict::unsafe);
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

// Of 20 tasks one is 5 %, of 40 it is two.
TEST(EvalVerdict, AFewAnswersThatMayBeChanceAreNoReasonToWatch) {
  const auto verdict = [](uint32_t tasks, uint32_t lost, uint32_t gained) {
    SkillFigures figures = skill(1, 1);
    figures.tasks = tasks;
    figures.lost = lost;
    figures.gained = gained;
    const double share = (static_cast<double>(lost) - gained) / tasks;
    figures.drop = {share, share, share};
    figures.p = mcnemar(lost, gained);
    return verdict_of_skill(figures);
  };
  EXPECT_EQ(verdict(6, 1, 0), Verdict::safe);
  EXPECT_EQ(verdict(20, 1, 0), Verdict::safe);
  EXPECT_EQ(verdict(40, 2, 0), Verdict::safe);
  EXPECT_EQ(verdict(40, 3, 0), Verdict::watch);
  EXPECT_EQ(verdict(40, 4, 2), Verdict::safe) << "net two";
  EXPECT_EQ(verdict(40, 5, 2), Verdict::watch) << "net three";
  EXPECT_EQ(verdict(61, 3, 0), Verdict::safe) << "less than 5 %";
  EXPECT_EQ(verdict(40, 6, 0), Verdict::unsafe);
  EXPECT_EQ(verdict(200, 6, 0), Verdict::watch) << "3 %, but no chance";
  EXPECT_EQ(verdict(40, 0, 6), Verdict::safe) << "gained";
}

TEST(EvalVerdict, OneGroupHasNoInterval) {
  SkillFigures figures = skill(0.5, 0.5, 0.5);
  figures.groups = 1;
  EXPECT_EQ(verdict_of_skill(figures), Verdict::safe) << "by answers alone";
  figures.tasks = 0;
  EXPECT_EQ(verdict_of_skill(figures), Verdict::not_judged);
  figures.groups = 2;
  EXPECT_EQ(verdict_of_skill(figures), Verdict::unsafe);
}

TEST(EvalVerdict, TooFewTasksAreNotJudged) {
  EXPECT_EQ(verdict_of_skill(SkillFigures{}), Verdict::not_judged);
  SkillFigures few = dropped(1, mcnemar(5, 0));
  few.tasks = few.compared = 5;
  few.retention = Interval{0.5, 0.4, 0.6};
  EXPECT_EQ(verdict_of_skill(few), Verdict::not_judged);
  few.compared = 6;
  EXPECT_EQ(verdict_of_skill(few), Verdict::unsafe) << "by retention";
  few.retention = Interval{1, 1, 1};
  EXPECT_EQ(verdict_of_skill(few), Verdict::safe) << "five lost of five may be chance";
  few.retention.reset();
  few.compared = 0;
  few.tasks = 6;
  few.p = mcnemar(6, 0);
  EXPECT_EQ(verdict_of_skill(few), Verdict::unsafe);
}

TEST(EvalVerdict, WithoutRightAnswersRetentionDecides) {
  SkillFigures figures = skill(1, 1);
  figures.tasks = 0;
  figures.drop = {kNaN, kNaN, kNaN};
  EXPECT_EQ(verdict_of_skill(figures), Verdict::safe);
  figures.retention = Interval{0.9, 0.85, 0.94};
  EXPECT_EQ(verdict_of_skill(figures), Verdict::unsafe);
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

TEST(EvalVerdict, BeyondAHighNoiseFloorNothingIsJudged) {
  TextFigures figures = text(0.001);
  figures.kl_mean = {0.020, 0.019, 0.021};  // a floor of 0.019
  EXPECT_EQ(verdict_of_text(figures), Verdict::safe);
  figures.kl_mean = {2090, 2000, 2100};
  EXPECT_EQ(verdict_of_text(figures), Verdict::not_judged);
  figures = text(kInfinity);
  figures.kl_mean = {kInfinity, kInfinity, kInfinity};
  EXPECT_EQ(verdict_of_text(figures), Verdict::unsafe);
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
  for (const char* words :
       {"Of a skill:\n  unsafe      retention below 0.95, with its whole interval below 1\n",
        "  unsafe      a net loss of 5 % of the answers or more, with p < 0.05\n",
        "  watch       retention below 0.98\n", "reaches below 0.95\n",
        "  watch       a net loss of any size, with p < 0.05\n", "of 3 answers or more, whatever p\n", "at least 60 %",
        "where they are 6 or more", "of 6 tasks or more, and of 2 groups or more",
        "Of texts:\n  unsafe      excess divergence above 0.02 nats\n", "above 0.002 nats\n",
        "above 0.004 nats at the last positions (64 or more), where it is more than 2 times that at the first\n",
        "  not judged  no position can be compared, or the noise floor is above 0.02 nats\n"}) {
    EXPECT_NE(rule.find(words), std::string::npos) << words << " in\n" << rule;
  }
}

TEST(EvalVerdict, TheDocumentSaysTheSame) {
  const std::string document = read_file(KVARTO_SOURCE_DIR "/docs/eval.md").value();
  for (const VerdictCondition& condition : verdict_conditions()) {
    const std::string row = "| " + std::string(condition.subject) + " | " +
                            std::string(verdict_name(condition.verdict)) + " | " + condition.words + " |\n";
    EXPECT_NE(document.find(row), std::string::npos) << row;
  }
}

}  // namespace
}  // namespace kvarto

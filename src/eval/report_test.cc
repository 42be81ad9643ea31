// Expected values: by hand, or from tests/eval/resample.py.
#include "eval/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "eval/random.h"
#include "eval/verdict.h"

namespace kvarto {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void expect_near(const Interval& found, const Interval& wanted) {
  EXPECT_NEAR(found.value, wanted.value, 1e-12);
  EXPECT_NEAR(found.low, wanted.low, 1e-12);
  EXPECT_NEAR(found.high, wanted.high, 1e-12);
}

void expect_equal(const Interval& found, double value) {
  EXPECT_EQ(found.value, value);
  EXPECT_EQ(found.low, value);
  EXPECT_EQ(found.high, value);
}

// Of two tokens; `number` is part of its id and has two digits, so that ids are in its order.
TaskRecord task(const std::string& family, int number, bool right, std::optional<double> nll_per_token = {},
                std::optional<double> floor_per_token = {}) {
  TaskRecord record;
  record.id = family + "-" + std::to_string(number);
  record.family = family;
  record.answer_tokens = 2;
  record.right = right;
  if (nll_per_token) record.nll = 2 * *nll_per_token;
  if (floor_per_token) record.floor_nll = 2 * *floor_per_token;
  return record;
}

// The text of resample.py.
TextRecord text(uint32_t index, uint32_t positions, bool baseline) {
  TextRecord record;
  record.text = index;
  for (uint32_t k = 0; k < positions; ++k) {
    record.nll.push_back(static_cast<float>((k + index) * (k + index) % 97) / 32);
    if (baseline) continue;
    record.divergence.push_back(static_cast<double>(k % 5) / 64);
    record.same_top.push_back(k % 4 != 0 ? 1 : 0);
  }
  return record;
}

SettingRecords setting(const std::string& name, std::vector<TaskRecord> tasks, std::vector<TextRecord> texts = {}) {
  SettingRecords records;
  records.setting = name;
  records.tasks = std::move(tasks);
  records.texts = std::move(texts);
  return records;
}

SettingReport compared(const SettingRecords& baseline, const SettingRecords& candidate, const RunFacts& facts = {}) {
  const EvalReport report = make_report(facts, {baseline, candidate});
  EXPECT_EQ(report.settings.size(), 2u);
  return report.settings.back();
}

// As many tasks as there are letters: '+' is right, '-' wrong.
std::vector<TaskRecord> answers(const std::string& family, std::string_view marks) {
  std::vector<TaskRecord> tasks;
  for (const char mark : marks) tasks.push_back(task(family, static_cast<int>(10 + tasks.size()), mark == '+'));
  return tasks;
}

// Tasks of resample.py: per token without the context, of the baseline, of the candidate.
constexpr double kFloor[] = {3, 2, 4, 2.5}, kBefore[] = {0.5, 0.25, 1, 0}, kNow[] = {0.5, 0.5, 2, 0.25};

std::vector<TaskRecord> likelihoods(const double (&nll)[4], bool floors, const bool (&right)[4]) {
  std::vector<TaskRecord> tasks;
  for (int i = 0; i < 4; ++i) {
    tasks.push_back(task("facts", 10 + i, right[i], nll[i], floors ? std::optional(kFloor[i]) : std::nullopt));
  }
  return tasks;
}

constexpr bool kAllRight[] = {true, true, true, true}, kThirdLost[] = {true, true, false, true};

TEST(EvalReport, AnIdenticalCandidateLosesNothing) {
  SettingRecords baseline = setting("kv=f16", likelihoods(kBefore, true, kAllRight), {text(0, 300, true)});
  for (TaskRecord& each : answers("plain", "+++-+")) baseline.tasks.push_back(each);
  SettingRecords candidate = baseline;
  candidate.texts[0].divergence.assign(300, 0);
  candidate.texts[0].same_top.assign(300, 1);
  candidate.kv_bytes_per_token = 7;
  const EvalReport report = make_report({}, {baseline, candidate});
  ASSERT_EQ(report.settings.size(), 2u);
  EXPECT_TRUE(report.settings[0].baseline);
  EXPECT_FALSE(report.settings[1].baseline);
  EXPECT_EQ(report.settings[1].kv_bytes_per_token, 7u);
  for (const SettingReport& each : report.settings) {
    ASSERT_TRUE(each.text);
    EXPECT_EQ(each.text->tokens, 300u);
    EXPECT_LT(each.text->nll.low, each.text->nll.value);
    expect_equal(each.text->nll_difference, 0);
    expect_equal(each.text->kl_mean, 0);
    expect_equal(each.text->kl_excess, 0);
    EXPECT_EQ(each.text->kl_p99, 0);
    EXPECT_EQ(each.text->kl_max, 0);
    expect_equal(each.text->same_top, 1);
    ASSERT_EQ(each.families.size(), 2u);
    ASSERT_TRUE(each.families[0].retention);
    expect_equal(*each.families[0].retention, 1);
    EXPECT_FALSE(each.families[1].retention);
    ASSERT_EQ(each.skills.size(), 1u);
    const SkillFigures& pooled = each.skills[0];
    EXPECT_EQ(pooled.tasks, 9u);
    EXPECT_EQ(pooled.right, 8u);
    EXPECT_EQ(pooled.baseline_right, 8u);
    EXPECT_EQ(pooled.lost + pooled.gained, 0u);
    EXPECT_EQ(pooled.p, 1);
    expect_equal(pooled.drop, 0);
    expect_equal(*pooled.retention, 1);
    EXPECT_EQ(pooled.verdict, each.baseline ? Verdict::not_judged : Verdict::safe);
    EXPECT_EQ(each.text->verdict, each.baseline ? Verdict::not_judged : Verdict::safe);
  }
}

// The noise floor diverges by 1/64 everywhere: that much is no fault of the candidate, whose mean is 2/64
// (resample.py's text).
TEST(EvalReport, TheNoiseFloorIsTakenOffByPosition) {
  const SettingRecords baseline = setting("kv=f16", answers("plain", "+++"), {text(0, 300, true)});
  SettingRecords candidate = setting("kv=int8", answers("plain", "+++"), {text(0, 300, false)});
  SettingRecords noise_floor = setting("kv=f16:noise=120", {}, {text(0, 300, false)});
  noise_floor.texts[0].divergence.assign(300, 1.0 / 64);
  RunFacts facts;
  facts.noise_floor = 2;
  const EvalReport report = make_report(facts, {baseline, candidate, noise_floor});
  ASSERT_EQ(report.settings.size(), 2u) << "the noise floor is none of those that are compared";
  const TextFigures& figures = *report.settings[1].text;
  EXPECT_DOUBLE_EQ(figures.kl_mean.value, 2.0 / 64);
  EXPECT_DOUBLE_EQ(figures.kl_excess.value, 1.0 / 64);
  EXPECT_NEAR(figures.kl_excess.low, figures.kl_mean.low - 1.0 / 64, 1e-12);
  EXPECT_NEAR(figures.kl_excess.high, figures.kl_mean.high - 1.0 / 64, 1e-12);
  for (const PositionBucket& bucket : figures.buckets) EXPECT_NEAR(bucket.kl_excess, bucket.kl_mean - 1.0 / 64, 1e-12);
  EXPECT_EQ(figures.verdict, Verdict::watch);
  expect_equal(report.settings[0].text->kl_excess, 0);
  candidate.texts[0].divergence.assign(300, 0);  // to the bit the baseline
  expect_equal(make_report(facts, {baseline, candidate, noise_floor}).settings[1].text->kl_excess, 0);
  EXPECT_DOUBLE_EQ(compared(baseline, setting("k", {}, {text(0, 300, false)})).text->kl_excess.value, 2.0 / 64);
}

TEST(EvalReport, RetentionIsWhatIsLeftOfWhatTheContextIsWorth) {
  const SettingReport report =
      compared(setting("a", likelihoods(kBefore, true, kAllRight)), setting("b", likelihoods(kNow, false, kThirdLost)));
  ASSERT_EQ(report.families.size(), 1u);
  const FamilyFigures& family = report.families[0];
  EXPECT_TRUE(family.judged);
  EXPECT_DOUBLE_EQ(*family.nll, 3.25 / 4);
  EXPECT_DOUBLE_EQ(*family.nll_floor, 11.5 / 4);
  expect_near(*family.retention, {0.8461538461538461, 0.717391304347826, 0.972972972972973});
  expect_near(family.drop, {0.25, 0, 0.75});
  EXPECT_EQ(family.lost, 1u);
  EXPECT_EQ(family.p, 1);
  EXPECT_EQ(family.compared, 4u);
  EXPECT_EQ(family.groups, 4u);
  ASSERT_EQ(report.skills.size(), 1u);
  expect_near(*report.skills[0].retention, *family.retention);
  EXPECT_EQ(report.skills[0].verdict, Verdict::not_judged) << "four tasks";
}

TEST(EvalReport, TasksWithoutAFloorLeaveTheFormulaAsItIs) {
  SettingRecords baseline = setting("a", likelihoods(kBefore, true, kAllRight));
  baseline.tasks[1].floor_nll.reset();
  const SettingReport report = compared(baseline, setting("b", likelihoods(kNow, false, kAllRight)));
  const FamilyFigures& family = report.families.at(0);
  EXPECT_EQ(family.tasks, 4u);
  EXPECT_EQ(family.compared, 3u);
  EXPECT_DOUBLE_EQ(*family.nll, 2.75 / 3);
  EXPECT_DOUBLE_EQ(*family.nll_floor, 9.5 / 3);
  expect_near(*family.retention, {0.84375, 0.6666666666666666, 1.0});
}

TEST(EvalReport, WhoLacksALikelihoodIsNotCompared) {
  SettingRecords candidate = setting("b", likelihoods(kBefore, false, kAllRight));
  candidate.tasks[0].nll.reset();
  const SettingReport report = compared(setting("a", likelihoods(kBefore, true, kAllRight)), candidate);
  EXPECT_EQ(report.families.at(0).compared, 3u);
  EXPECT_DOUBLE_EQ(*report.families.at(0).nll, 1.25 / 3);
  EXPECT_DOUBLE_EQ(*report.families.at(0).nll_floor, 8.5 / 3);
  expect_equal(*report.families.at(0).retention, 1);
  for (TaskRecord& each : candidate.tasks) each.nll.reset();
  const SettingReport none = compared(setting("a", likelihoods(kBefore, true, kAllRight)), candidate);
  EXPECT_EQ(none.families.at(0).compared, 0u);
  EXPECT_FALSE(none.families.at(0).retention || none.families.at(0).nll || none.families.at(0).nll_floor);
}

// The first and the third share a text; the groups' names are in another order than their tasks.
TEST(EvalReport, TasksThatShareATextAreDrawnAsOne) {
  SettingRecords baseline = setting("a", likelihoods(kBefore, true, kAllRight));
  baseline.tasks[0].group = baseline.tasks[2].group = "z";
  baseline.tasks[1].group = "a";
  const SettingReport report = compared(baseline, setting("b", likelihoods(kNow, false, kThirdLost)));
  for (const AnswerFigures& figures : {AnswerFigures(report.families.at(0)), AnswerFigures(report.skills.at(0))}) {
    expect_near(*figures.retention, {0.8461538461538461, 0.8181818181818182, 0.9});
    expect_near(figures.drop, {0.25, 0, 0.5});
    EXPECT_EQ(figures.compared, 4u);
    EXPECT_EQ(figures.groups, 3u);
  }
}

TEST(EvalReport, RetentionWithoutAFloorIsOfTheLikelihood) {
  const Interval wanted{0.6872892787909722, 0.44374731008107987, 0.9394130628134758};
  SettingRecords baseline = setting("a", likelihoods(kBefore, false, kAllRight));
  const SettingRecords candidate = setting("b", likelihoods(kNow, false, kAllRight));
  const SettingReport without = compared(baseline, candidate);
  EXPECT_FALSE(without.families[0].nll_floor);
  expect_near(*without.families[0].retention, wanted);

  // The context is worth 0.25 nats a token: too little to ask what is left of it.
  for (TaskRecord& each : baseline.tasks) each.floor_nll = *each.nll + 2 * 0.25;
  const SettingReport worthless = compared(baseline, candidate);
  EXPECT_FALSE(worthless.families[0].nll_floor);
  expect_near(*worthless.families[0].retention, wanted);
}

// Questions of the user's: `answered` of them with an answer, `agreement` without.
std::vector<TaskRecord> own_questions(int answered, int agreement, double nll_per_token, bool right) {
  std::vector<TaskRecord> tasks;
  for (int i = 0; i < answered; ++i) tasks.push_back(task("own", 10 + i, true, 0.5));
  for (int i = 0; i < agreement; ++i) {
    tasks.push_back(task("own-agreement", 10 + i, right || i % 2 == 0, nll_per_token));
    tasks.back().agreement = true;
  }
  for (TaskRecord& each : tasks) each.skill = Skill::own;
  return tasks;
}

TEST(EvalReport, QuestionsWithoutAnAnswerCountByLikelihoodAlone) {
  const SettingRecords baseline = setting("a", own_questions(0, 8, 0.25, true));
  const EvalReport report = make_report(
      {}, {baseline, setting("b", own_questions(0, 8, 0.25, false)), setting("c", own_questions(0, 8, 0.375, false))});
  for (const SettingReport& each : report.settings) {
    const FamilyFigures& family = each.families.at(0);
    EXPECT_TRUE(family.agreement && family.judged);
    EXPECT_EQ(family.tasks, 8u);
    EXPECT_EQ(family.right, each.baseline ? 8u : 4u);
    EXPECT_EQ(family.baseline_right, 8u);
    EXPECT_EQ(family.lost + family.gained, 0u);
    EXPECT_EQ(family.compared, 8u);
    const SkillFigures& own = each.skills.at(0);
    EXPECT_EQ(own.tasks + own.right + own.baseline_right + own.lost + own.gained, 0u);
    EXPECT_EQ(own.p, 1);
    EXPECT_EQ(own.compared, 8u);
  }
  EXPECT_EQ(report.settings[1].skills[0].verdict, Verdict::safe) << "half of them wrote something else";
  EXPECT_EQ(report.settings[2].skills[0].verdict, Verdict::unsafe);
  EXPECT_NEAR(report.settings[2].skills[0].retention->value, std::exp(-0.125), 1e-12);
  EXPECT_EQ(over_max_drop(make_report({}, {baseline, setting("b", own_questions(0, 8, 0.25, false))}), 0), "");
  EXPECT_EQ(over_max_drop(report, 0.1), "c, own: retention is 88.25 %; a loss of at most 10 % was asked for");
}

TEST(EvalReport, QuestionsWithAndWithoutAnswersAreTwoFamiliesOfOneSkill) {
  const SettingReport report =
      compared(setting("a", own_questions(7, 8, 0.25, true)), setting("b", own_questions(7, 8, 0.25, false)));
  ASSERT_EQ(report.families.size(), 2u);
  EXPECT_EQ(report.families[0].family, "own");
  EXPECT_EQ(report.families[1].family, "own-agreement");
  const SkillFigures& own = report.skills.at(0);
  EXPECT_EQ(own.tasks, 7u);
  EXPECT_EQ(own.right, 7u);
  EXPECT_EQ(own.compared, 15u);
  expect_equal(own.drop, 0);
  EXPECT_EQ(own.verdict, Verdict::safe);
}

TEST(EvalReport, AgreementWithoutLikelihoodsIsNotJudged) {
  std::vector<TaskRecord> tasks = own_questions(0, 8, 0.25, true);
  for (TaskRecord& each : tasks) each.nll.reset();
  const SettingReport report = compared(setting("a", tasks), setting("b", tasks));
  EXPECT_FALSE(report.families.at(0).judged);
  EXPECT_EQ(report.families.at(0).right, 8u);
  EXPECT_EQ(report.skills.at(0).verdict, Verdict::not_judged);
}

TEST(EvalReport, RefusedTasksAreCountedAndLeftOut) {
  SettingRecords baseline = setting("a", answers("needle", "++++++++++")), candidate = baseline;
  candidate.setting = "b";
  for (SettingRecords* each : {&baseline, &candidate}) {
    each->tasks[each == &baseline ? 0 : 1].failed = "400: too long";
    each->tasks[each == &baseline ? 0 : 1].right = false;
  }
  for (TaskRecord& each : answers("chain", "--")) {
    each.failed = "400: too long";
    baseline.tasks.push_back(each);
    candidate.tasks.push_back(each);
  }
  const SettingReport report = compared(baseline, candidate);
  ASSERT_EQ(report.families.size(), 2u);
  EXPECT_EQ(report.families[0].family, "chain");
  EXPECT_EQ(report.families[0].failed, 2u);
  EXPECT_EQ(report.families[0].tasks, 0u);
  EXPECT_FALSE(report.families[0].judged);
  EXPECT_EQ(report.families[1].failed, 2u);
  EXPECT_EQ(report.families[1].tasks, 8u);
  EXPECT_EQ(report.families[1].right, 8u);
  EXPECT_EQ(report.families[1].lost, 0u);
  EXPECT_EQ(report.skills.at(0).tasks, 8u);
  EXPECT_EQ(report.skills.at(0).verdict, Verdict::safe);
}

TEST(EvalReport, APlantedDropIsSeen) {
  const SettingReport report = compared(setting("a", answers("needle", "++++++++++++++++++--")),
                                        setting("b", answers("needle", "--------++++++++++-+")));
  const SkillFigures& skill = report.skills.at(0);
  EXPECT_EQ(skill.tasks, 20u);
  EXPECT_EQ(skill.baseline_right, 18u);
  EXPECT_EQ(skill.right, 11u);
  EXPECT_EQ(skill.lost, 8u);
  EXPECT_EQ(skill.gained, 1u);
  EXPECT_NEAR(skill.p, 0.0390625, 1e-12);
  EXPECT_EQ(skill.drop.value, 0.35);
  EXPECT_GT(skill.drop.low, 0);
  EXPECT_FALSE(skill.retention || skill.nll || skill.nll_floor);
  EXPECT_EQ(skill.verdict, Verdict::unsafe);
}

TEST(EvalReport, SixtyPercentAreJudged) {
  std::vector<TaskRecord> tasks = answers("six", "++++++----");
  for (TaskRecord& each : answers("five", "+++++-----")) tasks.push_back(each);
  for (TaskRecord& each : answers("logic", "----------")) {
    each.skill = Skill::reasoning;
    tasks.push_back(each);
  }
  RunFacts facts;
  facts.families = {"six", "none", "five"};
  const SettingReport report = compared(setting("a", tasks), setting("b", tasks), facts);
  ASSERT_EQ(report.families.size(), 3u);
  EXPECT_EQ(report.families[0].family, "six");
  EXPECT_EQ(report.families[1].family, "five");
  EXPECT_EQ(report.families[2].family, "logic");
  EXPECT_TRUE(report.families[0].judged);
  EXPECT_FALSE(report.families[1].judged);
  EXPECT_FALSE(report.families[2].judged);
  ASSERT_EQ(report.skills.size(), 2u);
  EXPECT_EQ(report.skills[0].tasks, 10u) << "the five of ten are left out";
  EXPECT_EQ(report.skills[1].skill, Skill::reasoning);
  EXPECT_EQ(report.skills[1].tasks, 0u);
  EXPECT_EQ(report.skills[1].verdict, Verdict::not_judged);
}

TEST(EvalReport, WhatOneSideLacksIsLeftOut) {
  SettingRecords baseline = setting("a", answers("needle", "++++"), {text(0, 70, true)});
  SettingRecords candidate = setting("b", answers("needle", "-+++"), {text(1, 70, false)});
  baseline.tasks.erase(baseline.tasks.begin());
  candidate.tasks.pop_back();
  const SettingReport report = compared(baseline, candidate);
  EXPECT_FALSE(report.text);
  EXPECT_EQ(report.families.at(0).tasks, 2u);
  EXPECT_EQ(report.families.at(0).lost, 0u);

  const SettingReport nothing = compared(baseline, setting("c", {}));
  EXPECT_FALSE(nothing.text);
  EXPECT_TRUE(nothing.families.empty() && nothing.skills.empty() && nothing.heat.empty());
  EXPECT_TRUE(make_report({}, {}).settings.empty());
}

TEST(EvalReport, TextsArePooledInStretchesAndBuckets) {
  const SettingReport report = compared(setting("a", {}, {text(0, 300, true), text(1, 100, true)}),
                                        setting("b", {}, {text(0, 300, false), text(1, 100, false)}));
  ASSERT_TRUE(report.text);
  const TextFigures& figures = *report.text;
  EXPECT_EQ(figures.tokens, 400u);
  expect_near(figures.nll, {1.47203125, 1.373001453488372, 1.5543954439252337});
  expect_near(figures.kl_mean, {0.03125, 0.030952380952380953, 0.03162202380952381});
  expect_equal(figures.nll_difference, 0);
  EXPECT_EQ(figures.same_top.value, 0.75);  // every fourth is another
  EXPECT_EQ(figures.kl_p99, 4.0 / 64);
  EXPECT_EQ(figures.kl_max, 4.0 / 64);
  EXPECT_EQ(figures.verdict, Verdict::unsafe);
  ASSERT_EQ(figures.buckets.size(), 2u);
  EXPECT_EQ(figures.buckets[0].from, 1u);
  EXPECT_EQ(figures.buckets[0].to, 256u);
  EXPECT_EQ(figures.buckets[0].tokens, 355u);  // 255 and 100
  EXPECT_NEAR(figures.buckets[0].nll, 1.4948943661971832, 1e-12);
  EXPECT_EQ(figures.buckets[1].from, 256u);
  EXPECT_EQ(figures.buckets[1].to, 512u);
  EXPECT_EQ(figures.buckets[1].tokens, 45u);
  EXPECT_NEAR(figures.buckets[1].nll, 1.2916666666666667, 1e-12);
  EXPECT_NEAR(figures.buckets[1].kl_mean, 0.03125, 1e-12);
  EXPECT_EQ(figures.buckets[1].kl_p99, 4.0 / 64);
  EXPECT_NEAR(figures.buckets[1].same_top, 34.0 / 45, 1e-12);  // not k = 256, 260, ... 296
}

TEST(EvalReport, TheDifferenceIsPaired) {
  TextRecord worse = text(0, 300, false);
  for (float& nll : worse.nll) nll += 0.5f;
  const SettingReport report = compared(setting("a", {}, {text(0, 300, true)}), setting("b", {}, {worse}));
  expect_near(report.text->nll_difference, {0.5, 0.5, 0.5});
}

TEST(EvalReport, TheOrderOfRecordsDoesNotMatter) {
  SettingRecords baseline = setting("a", likelihoods(kBefore, true, kAllRight));
  SettingRecords candidate = setting("b", likelihoods(kNow, true, kThirdLost));
  baseline.texts = {text(0, 300, true), text(1, 100, true)};
  candidate.texts = {text(0, 300, false), text(1, 100, false)};
  for (TaskRecord& each : answers("chain", "+++++++++-")) baseline.tasks.push_back(each);
  for (TaskRecord& each : answers("chain", "-++++-+++-")) candidate.tasks.push_back(each);
  const std::string wanted = report_json(make_report({}, {baseline, candidate}));
  SplitMix random(3);
  for (int i = 0; i < 3; ++i) {
    random.shuffle(baseline.tasks);
    random.shuffle(candidate.tasks);
    random.shuffle(baseline.texts);
    std::reverse(candidate.texts.begin(), candidate.texts.end());
    EXPECT_EQ(report_json(make_report({}, {baseline, candidate})), wanted);
  }
}

TEST(EvalReport, ACandidateThatOverflowsIsUnsafe) {
  for (const double bad : {kNaN, kInfinity}) {
    SettingRecords baseline = setting("a", likelihoods(kBefore, true, kAllRight), {text(0, 300, true)});
    SettingRecords candidate = setting("b", likelihoods(kNow, true, kAllRight), {text(0, 300, false)});
    for (SettingRecords* each : {&baseline, &candidate}) {
      const std::vector<TaskRecord> more = each->tasks;
      for (const TaskRecord& added : more) each->tasks.emplace_back(added).id += "b";
    }
    candidate.texts[0].nll[200] = static_cast<float>(bad);
    candidate.texts[0].divergence[200] = bad;
    candidate.tasks[1].nll = bad;
    const SettingReport report = compared(baseline, candidate);
    expect_equal(report.text->nll, kInfinity);
    expect_equal(report.text->nll_difference, kInfinity);
    expect_equal(report.text->kl_mean, kInfinity);
    EXPECT_EQ(report.text->kl_max, kInfinity);
    EXPECT_EQ(report.text->kl_p99, 4.0 / 64) << "one of 300 positions";
    EXPECT_EQ(report.text->verdict, Verdict::unsafe);
    EXPECT_EQ(report.text->buckets.at(0).kl_mean, kInfinity);
    EXPECT_NEAR(report.text->buckets.at(1).kl_mean, 0.03125, 1e-12);
    EXPECT_EQ(report.families.at(0).nll, kInfinity);
    expect_equal(*report.families.at(0).retention, -kInfinity);
    EXPECT_EQ(report.skills.at(0).verdict, Verdict::unsafe);
    EXPECT_EQ(report.families.at(0).lost, 0u);
  }
}

TEST(EvalReport, WhereTheBaselineOverflowsNothingIsCompared) {
  SettingRecords baseline = setting("a", likelihoods(kBefore, true, kAllRight), {text(0, 300, true)});
  SettingRecords candidate = setting("b", likelihoods(kBefore, true, kAllRight), {text(0, 300, false)});
  baseline.texts[0].nll[10] = std::numeric_limits<float>::quiet_NaN();
  candidate.texts[0].divergence.assign(300, 0);
  candidate.texts[0].divergence[10] = kNaN;
  candidate.texts[0].same_top.assign(300, 1);
  candidate.texts[0].same_top[10] = 0;
  baseline.tasks[2].nll = kNaN;
  const SettingReport report = compared(baseline, candidate);
  EXPECT_EQ(report.text->tokens, 300u);
  EXPECT_TRUE(std::isfinite(report.text->nll.value));
  expect_equal(report.text->nll_difference, 0);
  expect_equal(report.text->kl_mean, 0);
  expect_equal(report.text->same_top, 1);
  EXPECT_EQ(report.text->verdict, Verdict::safe);
  expect_equal(*report.families.at(0).retention, 1);
  EXPECT_EQ(report.families.at(0).compared, 3u);
  EXPECT_EQ(make_report({}, {baseline}).settings.at(0).text->nll.value, kInfinity);

  baseline.texts[0].nll.assign(300, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(compared(baseline, candidate).text->verdict, Verdict::not_judged);
}

TEST(EvalReport, AnswersThatChangedAreListed) {
  SettingRecords baseline = setting("a", answers("needle", "+++-++++++"), {text(0, 70, true)});
  SettingRecords candidate = setting("b", answers("needle", "++-++++++-"), {text(0, 70, false)});
  for (TaskRecord& each : answers("hard", "-+--")) baseline.tasks.push_back(each);
  for (TaskRecord& each : answers("hard", "+---")) candidate.tasks.push_back(each);
  for (TaskRecord& each : own_questions(0, 2, 0.25, true)) baseline.tasks.push_back(each);
  for (TaskRecord& each : own_questions(0, 2, 0.25, false)) candidate.tasks.push_back(each);
  baseline.tasks[2].length_tokens = 512;
  baseline.tasks[2].depth = 0.5;
  baseline.tasks[2].text = "blue";
  candidate.tasks[2].text = "red";
  const EvalReport report = make_report({}, {baseline, candidate});
  EXPECT_TRUE(report.settings[0].changes.empty());
  EXPECT_EQ(report.settings[0].longest_tokens, 512u);
  const std::vector<AnswerChange>& changes = report.settings[1].changes;
  ASSERT_EQ(changes.size(), 5u) << "agreement is none of them";
  const struct {
    const char* id;
    bool judged, lost;
  } wanted[] = {{"needle-12", true, true},
                {"needle-19", true, true},
                {"needle-13", true, false},
                {"hard-11", false, true},
                {"hard-10", false, false}};
  for (size_t i = 0; i < changes.size(); ++i) {
    EXPECT_EQ(changes[i].id, wanted[i].id);
    EXPECT_EQ(changes[i].judged, wanted[i].judged) << changes[i].id;
    EXPECT_EQ(changes[i].lost, wanted[i].lost) << changes[i].id;
  }
  EXPECT_EQ(changes[0].family, "needle");
  EXPECT_EQ(changes[0].length_tokens, 512u);
  EXPECT_EQ(changes[0].depth, 0.5);
  EXPECT_EQ(changes[0].baseline_text, "blue");
  EXPECT_EQ(changes[0].text, "red");
  baseline.tasks[2].length_tokens = 0;
  EXPECT_EQ(compared(baseline, candidate).longest_tokens, 71u) << "the text";
}

TEST(EvalReport, CellsOfTheMapAreLengthAndDepth) {
  std::vector<TaskRecord> tasks;
  const struct {
    uint32_t length;
    double depth, nll;
    bool right;
  } cells[] = {{2048, 0.5, 1, true}, {1024, 1, 3, false}, {2048, 0.5, 2, false}, {2048, 0, 4, true}};
  for (const auto& cell : cells) {
    tasks.push_back(task("needle", static_cast<int>(10 + tasks.size()), cell.right, cell.nll));
    tasks.back().length_tokens = cell.length;
    tasks.back().depth = cell.depth;
  }
  tasks.push_back(task("other", 10, true, 9));
  const SettingReport report = compared(setting("a", tasks), setting("b", tasks));
  ASSERT_EQ(report.heat.size(), 3u);
  EXPECT_EQ(report.heat[0].length_tokens, 1024u);
  EXPECT_EQ(report.heat[0].right, 0u);
  EXPECT_EQ(report.heat[1].depth, 0);
  EXPECT_EQ(report.heat[1].right, 1u);
  EXPECT_EQ(report.heat[2].length_tokens, 2048u);
  EXPECT_EQ(report.heat[2].depth, 0.5);
  EXPECT_EQ(report.heat[2].tasks, 2u);
  EXPECT_EQ(report.heat[2].right, 1u);
  EXPECT_EQ(report.heat[2].nll, 1.5);
}

TEST(EvalReport, MaxDropOfRightAnswers) {
  const EvalReport report = make_report({}, {setting("kv=f16", answers("needle", "++++++++++++++++++++")),
                                             setting("kv=same", answers("needle", "++++++++++++++++++++")),
                                             setting("kv=int4", answers("needle", "-+++++++++++++++++++"))});
  EXPECT_EQ(over_max_drop(report, 0.05), "") << "exactly 1 of 20";
  EXPECT_EQ(over_max_drop(report, std::nextafter(0.05, 0.0)),
            "kv=int4, retrieval: the share of right answers dropped by 5 % (1 lost and 0 gained of 20); a loss of at "
            "most 5 % was asked for");
  EXPECT_NE(over_max_drop(report, 0), "");
  EXPECT_EQ(over_max_drop(EvalReport{}, 0), "");
}

TEST(EvalReport, MaxDropOfRetention) {
  EvalReport report;
  report.settings.resize(2);
  report.settings[0].baseline = true;
  report.settings[1].name = "kv=int4";
  SkillFigures& skill = report.settings[1].skills.emplace_back();
  skill.skill = Skill::multi_hop;
  skill.tasks = skill.compared = skill.groups = 20;
  skill.retention = Interval{0.95, 0.9, 1};
  EXPECT_EQ(over_max_drop(report, 0.05), "");
  skill.retention->value = std::nextafter(0.95, 0.0);
  EXPECT_EQ(over_max_drop(report, 0.05), "kv=int4, multi-hop: retention is 95 %; a loss of at most 5 % was asked for");
  skill.retention->value = -kInfinity;
  EXPECT_NE(over_max_drop(report, 0.05).find("no likelihood left"), std::string::npos);
  skill.tasks = 0;
  EXPECT_NE(over_max_drop(report, 0.05).find("no likelihood left"), std::string::npos);
  skill.compared = 5;
  EXPECT_NE(over_max_drop(report, 0.05).find("kv=int4: no loss was measured"), std::string::npos);
}

TEST(EvalReport, MaxDropSeesTextsThatBroke) {
  EvalReport report;
  report.settings.resize(2);
  report.settings[0].baseline = true;
  report.settings[1].name = "kv=int4";
  report.settings[1].skills.emplace_back().tasks = 20;
  TextFigures& text = report.settings[1].text.emplace();
  text.kl_mean = {5, 4, 6};
  EXPECT_EQ(over_max_drop(report, 0.05), "");
  text.kl_mean = {kInfinity, kInfinity, kInfinity};
  EXPECT_NE(over_max_drop(report, 1).find("kv=int4, texts: "), std::string::npos);
}

TEST(EvalReport, VerdictsHaveNames) {
  EXPECT_EQ(verdict_name(Verdict::safe), "safe");
  EXPECT_EQ(verdict_name(Verdict::watch), "watch");
  EXPECT_EQ(verdict_name(Verdict::unsafe), "unsafe");
  EXPECT_EQ(verdict_name(Verdict::not_judged), "not judged");
}

}  // namespace
}  // namespace kvarto

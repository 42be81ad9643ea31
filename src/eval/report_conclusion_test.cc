// Sentences by hand. More of --max-drop, from records: report_test.cc.
#include <gtest/gtest.h>

#include "eval/report.h"

namespace kvarto {
namespace {

SkillFigures& add_skill(SettingReport& setting, Skill skill, Verdict verdict, uint32_t tasks) {
  SkillFigures& figures = setting.skills.emplace_back();
  figures.skill = skill;
  figures.verdict = verdict;
  figures.tasks = figures.right = figures.baseline_right = tasks;
  return figures;
}

void add_family(SettingReport& setting, uint32_t tasks, bool judged, bool agreement = false, uint32_t failed = 0) {
  FamilyFigures& family = setting.families.emplace_back();
  family.tasks = tasks;
  family.judged = judged;
  family.agreement = agreement;
  family.failed = failed;
}

void add_texts(SettingReport& setting, Verdict verdict) {
  setting.text.emplace().verdict = verdict;
  setting.text->kl_excess.value = 0.05;
}

SettingReport candidate() {
  SettingReport setting;
  setting.name = "kv=bf16";
  return setting;
}

std::string over(const SettingReport& setting) {
  EvalReport report;
  report.settings.resize(1);
  report.settings[0].baseline = true;
  report.settings.push_back(setting);
  return over_max_drop(report, 0.1);
}

TEST(EvalConclusion, SaysWhatIsSafeAndWhatWasNotJudged) {
  SettingReport setting = candidate();
  add_texts(setting, Verdict::safe);
  add_skill(setting, Skill::retrieval, Verdict::safe, 72);
  add_skill(setting, Skill::multi_hop, Verdict::safe, 24);
  add_skill(setting, Skill::reasoning, Verdict::not_judged, 0);
  add_skill(setting, Skill::structure, Verdict::not_judged, 0);
  setting.longest_tokens = 4096;
  EXPECT_EQ(conclusion_of(setting),
            "kv=bf16: safe for texts, retrieval and multi-hop; reasoning and structure not judged. Nothing lost in 96 "
            "judged tasks; lengths up to 4096 tokens.");
  setting.skills[0].gained = 1;
  EXPECT_NE(conclusion_of(setting).find(" Nothing lost, 1 gained in 96 judged tasks;"), std::string::npos);
  setting.skills[1].lost = 8;
  setting.skills[1].verdict = Verdict::unsafe;
  setting.text->verdict = Verdict::watch;
  EXPECT_EQ(conclusion_of(setting),
            "kv=bf16: unsafe for multi-hop; watch for texts; safe for retrieval; reasoning and structure not judged. 8 "
            "lost, 1 gained in 96 judged tasks; lengths up to 4096 tokens.");
  setting.baseline = true;
  EXPECT_EQ(conclusion_of(setting), "");
}

TEST(EvalConclusion, OfTextsAloneOfLikelihoodAloneAndOfNothing) {
  SettingReport setting = candidate();
  EXPECT_EQ(conclusion_of(setting), "kv=bf16: nothing was compared.");
  SettingReport likely = setting;
  add_texts(setting, Verdict::safe);
  setting.longest_tokens = 512;
  EXPECT_EQ(conclusion_of(setting), "kv=bf16: safe for texts. Lengths up to 512 tokens.");
  SkillFigures& own = add_skill(likely, Skill::own, Verdict::safe, 0);
  own.retention = Interval{1, 1, 1};
  own.compared = own.groups = 12;
  EXPECT_EQ(conclusion_of(likely), "kv=bf16: safe for own. Judged by the likelihood of 12 answers.");
}

TEST(EvalConclusion, SaysWhyNoSkillIsJudged) {
  SettingReport setting = candidate();
  add_skill(setting, Skill::retrieval, Verdict::not_judged, 0);
  add_family(setting, 48, /*judged=*/false);
  EXPECT_EQ(conclusion_of(setting),
            "kv=bf16: retrieval not judged. No skill is judged: the baseline solves no family of tasks, and what it "
            "cannot do, no cache can break; take a larger model.");
  add_family(setting, 5, /*judged=*/true);
  EXPECT_NE(conclusion_of(setting).find("there are fewer than 6 tasks"), std::string::npos);
  setting.families.clear();
  add_family(setting, 8, /*judged=*/false, /*agreement=*/true);
  EXPECT_NE(conclusion_of(setting).find("add answers to them"), std::string::npos);
  setting.families.clear();
  add_family(setting, 0, /*judged=*/false, /*agreement=*/false, /*failed=*/4);
  EXPECT_NE(conclusion_of(setting).find("all tasks were refused"), std::string::npos);
}

TEST(EvalMaxDrop, WhatIsUnsafeFails) {
  SettingReport setting = candidate();
  add_texts(setting, Verdict::safe);
  SkillFigures& skill = add_skill(setting, Skill::structure, Verdict::safe, 48);
  EXPECT_EQ(over(setting), "");
  skill.verdict = Verdict::watch;
  setting.text->verdict = Verdict::watch;
  EXPECT_EQ(over(setting), "");
  skill.verdict = Verdict::unsafe;
  skill.lost = 4;
  skill.drop.value = 4.0 / 48;
  EXPECT_EQ(over(setting), "kv=bf16, structure: the verdict is unsafe, whatever the bound: 4 lost and 0 gained of 48");
  skill.retention = Interval{0.94, 0.92, 0.96};
  skill.compared = skill.groups = 48;
  EXPECT_NE(over(setting).find("whatever the bound: retention is 94 %, 4 lost"), std::string::npos) << over(setting);
  setting.text->verdict = Verdict::unsafe;
  EXPECT_EQ(over(setting), "kv=bf16, texts: the verdict is unsafe, whatever the bound: excess divergence is 0.05 nats");
}

TEST(EvalMaxDrop, WhatCouldNotFailIsNoCheck) {
  SettingReport setting = candidate();
  EXPECT_NE(over(setting).find("kv=bf16: nothing was measured"), std::string::npos) << over(setting);
  add_texts(setting, Verdict::safe);
  EXPECT_EQ(over(setting), "") << "texts alone were asked for";
  setting.text->verdict = Verdict::watch;
  EXPECT_EQ(over(setting), "");
  setting.text->verdict = Verdict::not_judged;
  EXPECT_NE(over(setting).find("kv=bf16, texts: not judged, since the baseline"), std::string::npos) << over(setting);
  setting.text->verdict = Verdict::safe;
  add_skill(setting, Skill::retrieval, Verdict::not_judged, 5);
  EXPECT_NE(over(setting).find("kv=bf16: no loss was measured, since there are fewer than 6 tasks"), std::string::npos)
      << "tasks were asked for";
}

}  // namespace
}  // namespace kvarto

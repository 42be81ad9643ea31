// A report for tests of what is written of it, and what they look at texts with. Tests only.
#pragma once

#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "eval/report.h"

namespace kvarto::report_scene {

inline constexpr double kInfinite = std::numeric_limits<double>::infinity();
inline const double kNone = std::nan("");

inline PositionBucket bucket(uint32_t from, uint32_t to, double nll, double kl_mean, double kl_p99, double same_top) {
  PositionBucket out;
  out.from = from;
  out.to = to;
  out.tokens = to - from;
  out.nll = nll;
  out.kl_mean = kl_mean;
  out.kl_excess = kl_mean - 0.001;
  out.kl_p99 = kl_p99;
  out.same_top = same_top;
  return out;
}

inline HeatCell cell(uint32_t length_tokens, double depth, uint32_t right) {
  HeatCell out;
  out.length_tokens = length_tokens;
  out.depth = depth;
  out.tasks = 3;
  out.right = right;
  return out;
}

inline FamilyFigures family(const char* name, Skill skill, uint32_t baseline_right, uint32_t right, bool judged) {
  FamilyFigures out;
  out.family = name;
  out.skill = skill;
  out.tasks = 48;
  out.baseline_right = baseline_right;
  out.right = right;
  out.judged = judged;
  out.compared = 45;  // others have no floor
  out.groups = 12;
  return out;
}

inline SettingReport baseline_setting() {
  SettingReport out;
  out.name = "kv=f16";
  out.baseline = true;
  out.kv_bytes_per_token = 12288;
  out.prompt_tokens_per_s = 310.4;
  out.seconds = 530;
  TextFigures text;
  text.tokens = 511;
  text.nll = {2.5, 2.45, 2.55};
  text.buckets = {bucket(1, 256, 3, 0, 0, 1), bucket(256, 512, 2.4, 0, 0, 1)};
  out.text = text;
  FamilyFigures needle = family("needle", Skill::retrieval, 45, 45, true);
  needle.nll = 0.05;
  needle.nll_floor = 6.125;
  out.families = {needle, family("hops", Skill::multi_hop, 10, 10, false)};
  out.heat = {cell(512, 0, 3), cell(512, 1, 3), cell(2048, 0, 3)};
  return out;
}

// Named as an attacker would, with figures that no text may show as they are.
inline SettingReport candidate() {
  SettingReport out;
  out.name = "k=<i>\"&";
  out.kv_bytes_per_token = 6144;
  TextFigures text;
  text.tokens = 511;
  text.nll = {2.51, 2.46, 2.56};
  text.nll_difference = {0.01, 0.008, 0.012};
  text.kl_mean = {0.0123, 0.011, 0.0135};
  text.kl_excess = {0.0113, 0.0101, 0.0124};
  text.kl_p99 = 0.25;
  text.kl_max = kInfinite;
  text.same_top = {0.9871, 0.98, 0.99};
  text.buckets = {bucket(1, 256, 3.01, 0.004, 0.09, 0.995), bucket(256, 512, 2.42, 0.02, kNone, 0.98)};
  text.verdict = Verdict::watch;
  out.text = text;
  FamilyFigures needle = family("needle", Skill::retrieval, 45, 43, true);
  needle.nll = 0.062;
  needle.nll_floor = 6.125;
  needle.retention = Interval{0.987, 0.971, 1.002};
  needle.lost = 3;
  needle.gained = 1;
  needle.p = 0.625;
  needle.drop = {2.0 / 48, -0.02, 0.1};
  FamilyFigures hops = family("hops", Skill::multi_hop, 10, 9, false);
  hops.nll = kInfinite;
  hops.retention = Interval{kNone, -kInfinite, kInfinite};
  hops.lost = 2;
  hops.p = kNone;
  out.families = {needle, hops};
  SkillFigures retrieval;
  static_cast<AnswerFigures&>(retrieval) = needle;
  retrieval.skill = Skill::retrieval;
  retrieval.verdict = Verdict::unsafe;
  SkillFigures multi_hop;
  multi_hop.skill = Skill::multi_hop;  // of no family that is judged
  out.skills = {retrieval, multi_hop};
  AnswerChange lost;
  lost.id = "needle-<512>-0";
  lost.family = "needle";
  lost.length_tokens = 512;
  lost.depth = 0.25;
  lost.lost = lost.judged = true;
  lost.baseline_text = " the <b>blue</b>\n\t gate";
  lost.text = std::string(200, 'x');
  AnswerChange gained;
  gained.id = "hops-1";
  gained.family = "hops";
  out.changes = {lost, gained};
  out.longest_tokens = 2048;
  out.heat = {cell(512, 0, 3), cell(512, 1, 2), cell(2048, 0, 1)};
  out.heat[1].nll = 0.5;
  return out;
}

inline EvalReport scene() {
  EvalReport report;
  RunFacts& facts = report.facts;
  facts.model = "<b>m</b>&\"x\"\x1b[31m.gguf";
  facts.fingerprint = "00ff";
  facts.architecture = "qwen2";
  facts.numerics = "int8-1";
  facts.simd_target = "avx2";
  facts.weight_types = "Q4_1, Q8_0";
  facts.threads = 2;
  facts.block_size = 16;
  facts.seed = 7;
  facts.context_tokens = 4096;
  facts.samples = 48;
  facts.settings = {"kv=f16", "k=<i>\"&"};
  facts.families = {"needle", "hops"};
  facts.texts = {{"<script>alert(1)</script>.txt", "abcd", 512}};
  facts.program = "9.8.7";
  report.settings = {baseline_setting(), candidate()};
  return report;
}

// With questions of the user's without an answer, and tasks that were refused.
inline EvalReport scene_with_own() {
  EvalReport report = scene();
  for (SettingReport& setting : report.settings) {
    FamilyFigures own = family("own-agreement", Skill::own, 8, setting.baseline ? 8 : 5, true);
    own.tasks = own.compared = 8;
    own.agreement = true;
    own.nll = 0.25;
    own.retention = Interval{0.9, 0.85, 0.9375};
    own.drop = {kNone, kNone, kNone};
    setting.families.push_back(own);
    if (setting.baseline) continue;
    setting.families[1].failed = 2;
    SkillFigures skill;
    static_cast<AnswerFigures&>(skill) = own;
    skill.tasks = skill.right = skill.baseline_right = 0;
    skill.skill = Skill::own;
    skill.verdict = Verdict::unsafe;
    setting.skills.push_back(skill);
  }
  report.facts.servers = {{"http://one:8000/v1", "m<1>", true}, {"http://two:8000/v1", "m2", false}};
  report.facts.tasks_sha256 = "1234";
  report.facts.own_tasks_sha256 = "5678";
  return report;
}

// Runs of spaces become one, so that a test says what stands beside what, not how wide columns are.
inline std::string squeezed(const std::string& text) { return std::regex_replace(text, std::regex(" +"), " "); }

inline std::string without_style(const std::string& page) {
  const size_t from = page.find("<style>"), to = page.find("</style>", from);
  return page.substr(0, from) + page.substr(to + std::string_view("</style>").size());
}

inline size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

// The first tag that does not fit; empty: every element is closed, in order.
inline std::string unbalanced(const std::string& page) {
  std::vector<std::string> open;
  for (size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const size_t end = page.find('>', at);
    if (end == std::string::npos) return "no end: " + page.substr(at, 40);
    const std::string tag = page.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return "a tag in a tag: " + tag;
    if (tag.starts_with("!") || tag.starts_with("meta") || tag.starts_with("br") || tag.ends_with("/")) continue;
    if (!tag.starts_with("/")) {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else if (open.empty() || open.back() != tag.substr(1)) {
      return "closes nothing: " + tag;
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : "left open: " + open.back();
}

}  // namespace kvarto::report_scene

// What a report comes to, as sentences.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "eval/report.h"
#include "eval/report_words.h"
#include "eval/verdict.h"

namespace kvarto {
namespace {

// "a, b and c"
std::string enumerated(std::span<const std::string> names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return out;
}

std::vector<std::string> subjects_with(const SettingReport& setting, Verdict verdict) {
  std::vector<std::string> subjects;
  if (setting.text && setting.text->verdict == verdict) subjects.emplace_back("texts");
  for (const SkillFigures& skill : setting.skills) {
    if (skill.verdict == verdict) subjects.emplace_back(skill_name(skill.skill));
  }
  return subjects;
}

std::string verdict_words(const SettingReport& setting) {
  std::string out;
  const auto add = [&out](const std::string& words) { out += (out.empty() ? "" : "; ") + words; };
  for (const Verdict verdict : {Verdict::unsafe, Verdict::watch, Verdict::safe}) {
    const std::vector<std::string> subjects = subjects_with(setting, verdict);
    if (!subjects.empty()) add(std::string(verdict_name(verdict)) + " for " + enumerated(subjects));
  }
  const std::vector<std::string> open = subjects_with(setting, Verdict::not_judged);
  if (!open.empty()) add(enumerated(open) + " not judged");
  return out.empty() ? "nothing was compared" : out;
}

bool is_judged(const SkillFigures& skill) { return judged_by_answers(skill) || judged_by_retention(skill); }
bool none_judged(const SettingReport& setting) { return std::ranges::none_of(setting.skills, is_judged); }

// Of what the verdicts are; empty: of no task, and of unknown length.
std::string basis_words(const SettingReport& setting) {
  uint32_t tasks = 0, lost = 0, gained = 0, likely = 0;
  for (const SkillFigures& skill : setting.skills) {
    if (judged_by_answers(skill)) {
      tasks += skill.tasks;
      lost += skill.lost;
      gained += skill.gained;
    } else if (judged_by_retention(skill)) {
      likely += skill.compared;
    }
  }
  std::string out;
  if (tasks > 0) {
    out = lost == 0 ? "Nothing lost" : std::to_string(lost) + " lost";
    if (gained > 0) out += ", " + std::to_string(gained) + " gained";
    out += " in " + std::to_string(tasks) + " judged tasks";
  } else if (likely > 0) {
    out = "Judged by the likelihood of " + std::to_string(likely) + " answers";
  }
  if (setting.longest_tokens > 0) {
    out += (out.empty() ? "Lengths" : "; lengths") + (" up to " + std::to_string(setting.longest_tokens)) + " tokens";
  }
  return out.empty() ? out : out + ".";
}

// Why no skill is judged, and what to do.
std::string reason_for_none(const SettingReport& setting) {
  uint32_t tasks = 0, failed = 0;
  bool solved = false, answers = false;
  for (const FamilyFigures& family : setting.families) {
    tasks += family.tasks;
    failed += family.failed;
    solved |= family.judged;
    answers |= !family.agreement;
  }
  if (tasks == 0 && failed > 0) return "all tasks were refused; records.jsonl says why.";
  if (!solved && !answers) {
    return "questions without an answer are judged by likelihood, and there is none; add answers to them.";
  }
  if (!solved) {
    return "the baseline solves no family of tasks, and what it cannot do, no cache can break; take a larger model.";
  }
  return "there are fewer than " + std::to_string(kFewestTasks) +
         " tasks of each skill in families that the baseline solves; take more families, more --samples or more of "
         "--tasks.";
}

std::string percent(double share) {
  char text[64];
  std::snprintf(text, sizeof text, "%.4g %%", 100 * share);
  return text;
}

// Empty: within the bound.
std::string loss_over(const SkillFigures& figures, double share) {
  if (judged_by_answers(figures) && figures.drop.value > share) {
    return "the share of right answers dropped by " + percent(figures.drop.value) + " (" +
           std::to_string(figures.lost) + " lost and " + std::to_string(figures.gained) + " gained of " +
           std::to_string(figures.tasks) + ")";
  }
  // Not 1 - retention: 1 - 0.95 is more than 0.05.
  if (!judged_by_retention(figures) || figures.retention->value >= 1 - share) return "";
  if (!std::isfinite(figures.retention->value)) return "an answer that was likely has no likelihood left";
  return "retention is " + percent(figures.retention->value);
}

// What is wrong with the texts; empty: nothing.
std::string fault_of_texts(const SettingReport& setting) {
  if (!setting.text) return "";
  if (std::isinf(setting.text->kl_mean.value)) {
    return "some predictions are no numbers any more, which is beyond any bound";
  }
  if (setting.text->verdict == Verdict::unsafe) {
    return "the verdict is unsafe, whatever the bound: excess divergence is " +
           three_digits(setting.text->kl_excess.value) + " nats";
  }
  return "";
}

std::string fault_of_skill(const SkillFigures& skill, double share) {
  if (const std::string loss = loss_over(skill, share); !loss.empty()) {
    return loss + "; a loss of at most " + percent(share) + " was asked for";
  }
  if (skill.verdict != Verdict::unsafe) return "";
  std::string out = "the verdict is unsafe, whatever the bound: ";
  if (judged_by_retention(skill)) out += "retention is " + percent(skill.retention->value) + ", ";
  return out + std::to_string(skill.lost) + " lost and " + std::to_string(skill.gained) + " gained of " +
         std::to_string(skill.tasks);
}

// What could not fail; empty: something could.
std::string nothing_judged(const SettingReport& setting) {
  if (!setting.skills.empty()) {
    if (!none_judged(setting)) return "";
    return ": no loss was measured, since there are fewer than " + std::to_string(kFewestTasks) +
           " tasks of any skill in families that the baseline solves; take more families, more --samples, your own "
           "--tasks, or another model";
  }
  if (!setting.text) return ": nothing was measured, neither texts nor tasks, so that no loss can be seen";
  if (setting.text->verdict != Verdict::not_judged) return "";
  return ", texts: not judged, since the baseline's own predictions are no numbers, or any change makes them diverge";
}

}  // namespace

std::string conclusion_of(const SettingReport& setting) {
  if (setting.baseline) return "";
  std::string out = setting.name + ": " + verdict_words(setting) + ".";
  if (const std::string basis = basis_words(setting); !basis.empty()) out += " " + basis;
  if (!setting.skills.empty() && none_judged(setting)) out += " No skill is judged: " + reason_for_none(setting);
  return out;
}

std::string over_max_drop(const EvalReport& report, double share) {
  for (const SettingReport& setting : report.settings) {
    if (setting.baseline) continue;
    if (const std::string fault = fault_of_texts(setting); !fault.empty()) return setting.name + ", texts: " + fault;
    for (const SkillFigures& skill : setting.skills) {
      const std::string fault = fault_of_skill(skill, share);
      if (!fault.empty()) return setting.name + ", " + std::string(skill_name(skill.skill)) + ": " + fault;
    }
    if (const std::string none = nothing_judged(setting); !none.empty()) return setting.name + none;
  }
  return "";
}

}  // namespace kvarto

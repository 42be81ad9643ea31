// The verdict: from figures to safe, watch or unsafe, by a rule that every report prints. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "eval/report.h"

namespace kvarto {

// A family whose tasks the baseline solves to this share counts for verdicts.
inline constexpr double kSolvedShare = 0.6;
// Fewer tasks cannot be told from chance: 5 lost of 5 have p = 0.0625.
inline constexpr uint32_t kFewestTasks = 6;
// An interval of retention is drawn from groups of tasks; of one group there is none.
inline constexpr uint32_t kFewestGroups = 2;
// Of texts: excess divergence, nats.
inline constexpr double kWatchDivergence = 0.002, kUnsafeDivergence = 0.02;

// Of one skill: the tasks of families that the baseline is able to solve, or that have no right answer; see report.h.
// Not judged where neither answers (kFewestTasks or more) nor retention (so many, of kFewestGroups or more) count.
Verdict verdict_of_skill(const SkillFigures& figures);
bool judged_by_answers(const SkillFigures& figures);
bool judged_by_retention(const SkillFigures& figures);
// Of texts. Not judged: no position that can be compared (the mean is NaN), or a noise floor above kUnsafeDivergence.
Verdict verdict_of_text(const TextFigures& figures);

// The rule in words. A verdict is given where one of its conditions holds, the first in this order.
struct VerdictCondition {
  std::string_view subject;  // "a skill", "texts"
  Verdict verdict = Verdict::not_judged;
  std::string words;
};
std::vector<VerdictCondition> verdict_conditions();
// What the words of the conditions mean, a sentence or two each.
std::vector<std::string> verdict_terms();
// All of it as text of some lines.
std::string verdict_rule();

}  // namespace kvarto

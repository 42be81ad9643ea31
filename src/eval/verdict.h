// The verdict: from figures to safe, watch or unsafe, by a rule that every report prints. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>

#include "eval/report.h"

namespace kvarto {

// A family whose tasks the baseline solves to this share counts for verdicts.
inline constexpr double kSolvedShare = 0.6;
// Where right and wrong are all there is, fewer tasks cannot be told from chance: 5 lost of 5 have p = 0.0625.
inline constexpr uint32_t kFewestTasks = 6;

// Of one skill: `retention` is what is left of the answers' likelihood (1: all; see FamilyFigures), `lost` and `gained`
// right answers. Of these tasks alone that the baseline is able to solve; see report.h.
//   unsafe      retention below 0.95, or a drop of 5 % of the answers or more with p < 0.05
//   watch       retention below 0.98, or its interval reaches below 0.95, or a drop of 5 % or with p < 0.05
//   safe        otherwise
//   not judged  no tasks, or fewer than kFewestTasks of them and no retention
Verdict verdict_of_skill(const SkillFigures& figures);
// Of texts: mean divergence from the baseline beyond the noise floor (TextFigures::kl_excess), nats. unsafe above 0.02;
// watch above 0.002, or where the last bucket of at least kRunPositions positions is above 0.004 and more than twice
// the first (an error that grows with length); safe otherwise. Not judged: no position that can be compared (the mean
// is NaN).
Verdict verdict_of_text(const TextFigures& figures);
// The rule in words, as text of a few lines.
std::string verdict_rule();

}  // namespace kvarto

// Figures from records. What is compared is what both the baseline and the candidate have: texts by their index, tasks
// by their id; the rest (a run that was stopped, a server that failed) is left out. Units of resampling stand in one
// order whatever that of the records: texts by index and their runs by position, tasks by id, byte by byte.
//
// A model that overflows gives numbers that are not finite, and they must neither hide nor spoil the rest:
//   candidate  its likelihood counts as 0 (an NLL of infinity) and its divergence as infinite, so that means are
//              infinite too and the verdict is unsafe; a mean that is infinite has low = high = value. Writers of
//              reports therefore meet infinities (JSON has none: null), in retention negative ones.
//   baseline   its own mean is infinite. Such a position or task is left out of all that is paired: there is nothing
//              to compare with. Where nothing is left figures are NaN, or none.
#include "eval/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "eval/verdict.h"

namespace kvarto {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Nats per answer token. Where the context is worth less, what is left of that is mostly noise; such tasks are treated
// as those without a floor.
constexpr double kLeastWorth = 0.3;
constexpr uint32_t kFirstEdge = 256;  // of buckets of positions

double finite_or_infinite(double value) { return std::isfinite(value) ? value : kInfinity; }

// Resamples that happen to miss what is infinite say nothing about it.
Interval interval_of(const std::vector<double>& sums, const std::vector<double>& counts) {
  Interval interval = bootstrap_ratio(sums, counts);
  if (!std::isfinite(interval.value)) interval.low = interval.high = interval.value;
  return interval;
}

// --- texts

// One token of a text under both settings.
struct Position {
  uint32_t position = 0;  // in its text, from 1 on
  double nll = 0;
  bool compared = false;  // the baseline is finite here; otherwise the rest is 0
  double difference = 0, divergence = 0, excess = 0, same_top = 0;
};

void append(std::vector<Position>& positions, const TextRecord& baseline, const TextRecord& candidate,
            const TextRecord* floor) {
  const bool same = &baseline == &candidate;
  size_t count = std::min(baseline.nll.size(), candidate.nll.size());
  if (!same) count = std::min({count, candidate.divergence.size(), candidate.same_top.size()});
  for (size_t i = 0; i < count; ++i) {
    Position position;
    position.position = static_cast<uint32_t>(i + 1);
    position.nll = finite_or_infinite(candidate.nll[i]);
    position.compared = std::isfinite(baseline.nll[i]);
    if (position.compared) {
      position.difference = position.nll - static_cast<double>(baseline.nll[i]);
      position.divergence = position.excess = same ? 0 : finite_or_infinite(candidate.divergence[i]);
      if (floor != nullptr && i < floor->divergence.size() && std::isfinite(floor->divergence[i])) {
        position.excess -= floor->divergence[i];
      }
      position.same_top = same || (candidate.same_top[i] != 0 && std::isfinite(position.nll)) ? 1 : 0;
    }
    positions.push_back(position);
  }
}

using TextsByIndex = std::map<uint32_t, const TextRecord*>;

TextsByIndex texts_of(const SettingRecords* setting) {
  TextsByIndex texts;
  if (setting == nullptr) return texts;
  for (const TextRecord& text : setting->texts) texts.emplace(text.text, &text);
  return texts;
}

// Of all texts that both have. Where nothing diverges, nothing has tipped over either, and there is no floor.
std::vector<Position> positions_of(const SettingRecords& baseline, const SettingRecords& candidate,
                                   const SettingRecords* floor) {
  const TextsByIndex before = texts_of(&baseline), faint = texts_of(floor);
  std::vector<Position> positions;
  for (const auto& [index, text] : texts_of(&candidate)) {
    const auto found = before.find(index), faint_found = faint.find(index);
    if (found == before.end()) continue;
    append(positions, *found->second, *text, faint_found == faint.end() ? nullptr : faint_found->second);
  }
  if (std::ranges::all_of(positions, [](const Position& position) { return position.divergence == 0; })) {
    for (Position& position : positions) position.excess = 0;
  }
  return positions;
}

// Sums over runs of positions, [runs] each.
struct Runs {
  std::vector<double> nll, positions;
  std::vector<double> difference, divergence, excess, same_top, compared;
};

Runs runs_of(const std::vector<Position>& positions) {
  Runs runs;
  for (const Position& position : positions) {
    if ((position.position - 1) % kRunPositions == 0) {  // also where a text begins
      for (auto* sums : {&runs.nll, &runs.positions, &runs.difference, &runs.divergence, &runs.excess, &runs.same_top,
                         &runs.compared}) {
        sums->push_back(0);
      }
    }
    runs.nll.back() += position.nll;
    runs.positions.back() += 1;
    runs.difference.back() += position.difference;
    runs.divergence.back() += position.divergence;
    runs.excess.back() += position.excess;
    runs.same_top.back() += position.same_top;
    runs.compared.back() += position.compared ? 1 : 0;
  }
  return runs;
}

std::vector<double> sorted_divergences(const std::vector<Position>& positions, uint32_t from, uint32_t to) {
  std::vector<double> values;
  for (const Position& position : positions) {
    if (position.compared && position.position >= from && position.position < to) values.push_back(position.divergence);
  }
  std::sort(values.begin(), values.end());
  return values;
}

PositionBucket bucket_of(const std::vector<Position>& positions, uint32_t from, uint32_t to) {
  PositionBucket bucket;
  bucket.from = from;
  bucket.to = to;
  double compared = 0, nll = 0, divergence = 0, excess = 0, same_top = 0;
  for (const Position& position : positions) {
    if (position.position < from || position.position >= to) continue;
    ++bucket.tokens;
    nll += position.nll;
    compared += position.compared ? 1 : 0;
    divergence += position.divergence;
    excess += position.excess;
    same_top += position.same_top;
  }
  bucket.nll = nll / static_cast<double>(bucket.tokens);
  bucket.kl_mean = divergence / compared;
  bucket.kl_excess = excess / compared;
  bucket.kl_p99 = quantile(sorted_divergences(positions, from, to), 0.99);
  bucket.same_top = same_top / compared;
  return bucket;
}

std::optional<TextFigures> text_figures(const SettingRecords& baseline, const SettingRecords& candidate,
                                        const SettingRecords* floor) {
  const std::vector<Position> positions = positions_of(baseline, candidate, floor);
  if (positions.empty()) return std::nullopt;
  const Runs runs = runs_of(positions);
  TextFigures figures;
  figures.tokens = positions.size();
  figures.nll = interval_of(runs.nll, runs.positions);
  figures.nll_difference = interval_of(runs.difference, runs.compared);
  figures.kl_mean = interval_of(runs.divergence, runs.compared);
  figures.kl_excess = interval_of(runs.excess, runs.compared);
  figures.same_top = interval_of(runs.same_top, runs.compared);
  const std::vector<double> divergences = sorted_divergences(positions, 0, std::numeric_limits<uint32_t>::max());
  figures.kl_p99 = quantile(divergences, 0.99);
  figures.kl_max = quantile(divergences, 1);
  uint32_t longest = 0;
  for (const Position& position : positions) longest = std::max(longest, position.position);
  for (uint32_t from = 1, to = kFirstEdge; from <= longest; from = to, to *= 2) {
    figures.buckets.push_back(bucket_of(positions, from, to));
  }
  return figures;
}

// --- tasks

struct Pair {
  const TaskRecord* baseline = nullptr;
  const TaskRecord* candidate = nullptr;
};
using Pairs = std::vector<Pair>;

void sort_by_id(Pairs& pairs) {
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.baseline->id < b.baseline->id; });
}

using PairsByFamily = std::map<std::string, Pairs, std::less<>>;

PairsByFamily pairs_of(const SettingRecords& baseline, const SettingRecords& candidate) {
  std::map<std::string_view, const TaskRecord*> before;
  for (const TaskRecord& task : baseline.tasks) before.emplace(task.id, &task);
  PairsByFamily by_family;
  for (const TaskRecord& task : candidate.tasks) {
    const auto found = before.find(task.id);
    if (found != before.end()) by_family[found->second->family].push_back({found->second, &task});
  }
  for (auto& [family, pairs] : by_family) sort_by_id(pairs);
  return by_family;
}

std::optional<double> per_token(const TaskRecord& task, const std::optional<double>& nll) {
  if (!nll || task.answer_tokens == 0) return std::nullopt;
  return finite_or_infinite(*nll) / task.answer_tokens;
}

void add_likelihoods(AnswerFigures& figures, const Pairs& pairs) {
  double known = 0, nll = 0, floor_nll = 0, whole_worth = 0;
  bool floors = true;
  std::vector<double> ones, gain;   // of tasks that are compared
  std::vector<double> left, worth;  // of the same, as long as each has a floor
  for (const auto& [baseline, candidate] : pairs) {
    const std::optional<double> before = per_token(*baseline, baseline->nll);
    const std::optional<double> now = per_token(*candidate, candidate->nll);
    if (!before || !now) continue;
    known += 1;
    nll += *now;
    if (!std::isfinite(*before)) continue;
    ones.push_back(1);
    gain.push_back(*before - *now);
    const std::optional<double> floor = per_token(*baseline, baseline->floor_nll);
    floors = floors && floor && std::isfinite(*floor);
    if (!floors) continue;
    left.push_back(*floor - *now);
    worth.push_back(*floor - *before);
    floor_nll += *floor;
    whole_worth += worth.back();
  }
  if (known > 0) figures.nll = nll / known;
  if (ones.empty()) return;
  const auto tasks = static_cast<double>(ones.size());
  if (floors && whole_worth / tasks >= kLeastWorth) {
    figures.nll_floor = floor_nll / tasks;
    figures.retention = interval_of(left, worth);
  } else {
    const Interval change = interval_of(gain, ones);
    figures.retention = Interval{std::exp(change.value), std::exp(change.low), std::exp(change.high)};
  }
}

void add_answers(AnswerFigures& figures, const Pairs& pairs) {
  std::vector<double> drops;
  for (const auto& [baseline, candidate] : pairs) {
    const bool before = baseline->right, now = candidate->right;
    figures.baseline_right += before ? 1 : 0;
    figures.right += now ? 1 : 0;
    figures.lost += before && !now ? 1 : 0;
    figures.gained += now && !before ? 1 : 0;
    drops.push_back((before ? 1 : 0) - (now ? 1 : 0));
  }
  figures.tasks = static_cast<uint32_t>(pairs.size());
  figures.p = mcnemar(figures.lost, figures.gained);
  figures.drop = interval_of(drops, std::vector<double>(drops.size(), 1));
  add_likelihoods(figures, pairs);
}

// By all that the baseline has, so that one family is judged alike for each candidate.
bool solves(const SettingRecords& baseline, std::string_view family) {
  double tasks = 0, right = 0;
  for (const TaskRecord& task : baseline.tasks) {
    if (task.family != family) continue;
    tasks += 1;
    right += task.right ? 1 : 0;
  }
  return tasks > 0 && right / tasks >= kSolvedShare;
}

// The run's families in its order, then others (the user's own) by name.
std::vector<std::string> order_of(const RunFacts& facts, const PairsByFamily& by_family) {
  std::vector<std::string> order;
  for (const std::string& family : facts.families) {
    if (by_family.contains(family)) order.push_back(family);
  }
  for (const auto& [family, pairs] : by_family) {
    if (std::find(order.begin(), order.end(), family) == order.end()) order.push_back(family);
  }
  return order;
}

// Each skill of which there is a family; without one that is judged it has no tasks.
std::vector<SkillFigures> skills_of(const std::vector<FamilyFigures>& families, const PairsByFamily& by_family) {
  std::vector<SkillFigures> skills;
  for (const Skill skill : kSkills) {
    bool any = false;
    Pairs pooled;
    for (const FamilyFigures& family : families) {
      if (family.skill != skill) continue;
      any = true;
      const Pairs& pairs = by_family.at(family.family);
      if (family.judged) pooled.insert(pooled.end(), pairs.begin(), pairs.end());
    }
    if (!any) continue;
    SkillFigures& figures = skills.emplace_back();
    figures.skill = skill;
    if (pooled.empty()) continue;
    sort_by_id(pooled);
    add_answers(figures, pooled);
  }
  return skills;
}

std::vector<HeatCell> heat_of(const PairsByFamily& by_family) {
  struct Sum {
    uint32_t tasks = 0, right = 0;
    double known = 0, nll = 0;
  };
  std::map<std::pair<uint32_t, double>, Sum> sums;
  for (const auto& [family, pairs] : by_family) {
    for (const auto& [baseline, task] : pairs) {
      if (!task->depth) continue;
      Sum& sum = sums[{task->length_tokens, *task->depth}];
      ++sum.tasks;
      sum.right += task->right ? 1 : 0;
      const std::optional<double> nll = per_token(*task, task->nll);
      sum.known += nll ? 1 : 0;
      sum.nll += nll.value_or(0);
    }
  }
  std::vector<HeatCell> cells;
  for (const auto& [place, sum] : sums) {
    HeatCell& cell = cells.emplace_back();
    cell.length_tokens = place.first;
    cell.depth = place.second;
    cell.tasks = sum.tasks;
    cell.right = sum.right;
    if (sum.known > 0) cell.nll = sum.nll / sum.known;
  }
  return cells;
}

SettingReport report_of(const RunFacts& facts, const SettingRecords& baseline, const SettingRecords& setting,
                        const SettingRecords* floor) {
  SettingReport report;
  report.name = setting.setting;
  report.baseline = &baseline == &setting;
  report.kv_bytes_per_token = setting.kv_bytes_per_token;
  report.prompt_tokens_per_s = setting.prompt_tokens_per_s;
  report.seconds = setting.seconds;
  report.text = text_figures(baseline, setting, floor);
  const PairsByFamily by_family = pairs_of(baseline, setting);
  for (const std::string& name : order_of(facts, by_family)) {
    const Pairs& pairs = by_family.at(name);
    FamilyFigures& family = report.families.emplace_back();
    family.family = name;
    family.skill = pairs.front().baseline->skill;
    family.judged = solves(baseline, name);
    add_answers(family, pairs);
  }
  report.skills = skills_of(report.families, by_family);
  report.heat = heat_of(by_family);
  if (report.baseline) return report;  // it is what others are judged by
  if (report.text) report.text->verdict = verdict_of_text(*report.text);
  for (SkillFigures& skill : report.skills) skill.verdict = verdict_of_skill(skill);
  return report;
}

// --- sentences

std::string percent(double share) {
  char text[64];
  std::snprintf(text, sizeof text, "%.4g %%", 100 * share);
  return text;
}

// Empty: within the bound.
std::string loss_over(const SkillFigures& figures, double share) {
  if (figures.drop.value > share) {
    return "the share of right answers dropped by " + percent(figures.drop.value) + " (" +
           std::to_string(figures.lost) + " lost and " + std::to_string(figures.gained) + " gained of " +
           std::to_string(figures.tasks) + ")";
  }
  // Not 1 - retention: 1 - 0.95 is more than 0.05.
  if (!figures.retention || figures.retention->value >= 1 - share) return "";
  if (!std::isfinite(figures.retention->value)) return "an answer that was likely has no likelihood left";
  return "retention is " + percent(figures.retention->value);
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::safe:
      return "safe";
    case Verdict::watch:
      return "watch";
    case Verdict::unsafe:
      return "unsafe";
    case Verdict::not_judged:
      break;
  }
  return "not judged";
}

EvalReport make_report(const RunFacts& facts, const std::vector<SettingRecords>& settings) {
  EvalReport report;
  report.facts = facts;
  const SettingRecords* const floor = facts.noise_floor ? &settings.at(*facts.noise_floor) : nullptr;
  for (const SettingRecords& setting : settings) {
    if (&setting != floor) report.settings.push_back(report_of(facts, settings.front(), setting, floor));
  }
  return report;
}

std::string over_max_drop(const EvalReport& report, double share) {
  for (const SettingReport& setting : report.settings) {
    if (setting.baseline) continue;
    if (setting.text && std::isinf(setting.text->kl_mean.value)) {
      return setting.name + ", texts: some predictions are no numbers any more, which is beyond any bound";
    }
    bool judged = false;
    for (const SkillFigures& skill : setting.skills) {
      judged |= skill.tasks > 0;
      const std::string what = skill.tasks == 0 ? "" : loss_over(skill, share);
      if (what.empty()) continue;
      return setting.name + ", " + std::string(skill_name(skill.skill)) + ": " + what + "; a loss of at most " +
             percent(share) + " was asked for";
    }
    if (!judged) {
      return setting.name +
             ": no loss was measured, since the baseline solves no family of tasks well enough; take "
             "more families, your own --tasks, or another model";
    }
  }
  return "";
}

}  // namespace kvarto

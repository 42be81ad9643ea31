// Figures from records. What is compared is what both the baseline and the candidate have: texts by their index, tasks
// by their id; the rest (a run that was stopped, a task that a server refused) is left out. Units of resampling stand
// in one order whatever that of the records: texts by index and their stretches by position; groups of tasks (those
// that share a text) by the first of their ids, byte by byte.
//
// A model that overflows gives numbers that are not finite, and they must neither hide nor spoil the rest:
//   candidate  its likelihood counts as 0 (an NLL of infinity) and its divergence as infinite, so that means are
//              infinite too and the verdict is unsafe; a mean that is infinite has low = high = value. Writers of
//              reports therefore meet infinities (JSON has none: null), in retention negative ones.
//   baseline   the mean of its texts is infinite. Such a position or task is left out of all that is paired: there is
//              nothing to compare with. Where nothing is left figures are NaN, or none.
#include "eval/report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>
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
  Interval interval = bootstrap(sums, counts);
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
            const TextRecord* noise_floor) {
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
      if (noise_floor != nullptr && i < noise_floor->divergence.size() && std::isfinite(noise_floor->divergence[i])) {
        position.excess -= noise_floor->divergence[i];
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

// Of all texts that both have. Where nothing diverges, nothing has tipped over either, and there is no noise floor.
std::vector<Position> positions_of(const SettingRecords& baseline, const SettingRecords& candidate,
                                   const SettingRecords* noise_floor) {
  const TextsByIndex before = texts_of(&baseline), noise = texts_of(noise_floor);
  std::vector<Position> positions;
  for (const auto& [index, text] : texts_of(&candidate)) {
    const auto found = before.find(index), noise_found = noise.find(index);
    if (found == before.end()) continue;
    append(positions, *found->second, *text, noise_found == noise.end() ? nullptr : noise_found->second);
  }
  if (std::ranges::all_of(positions, [](const Position& position) { return position.divergence == 0; })) {
    for (Position& position : positions) position.excess = 0;
  }
  return positions;
}

// Sums over stretches of positions, [stretches] each.
struct Stretches {
  std::vector<double> nll, positions;
  std::vector<double> difference, divergence, excess, same_top, compared;
};

Stretches stretches_of(const std::vector<Position>& positions) {
  Stretches stretches;
  for (const Position& position : positions) {
    if ((position.position - 1) % kStretchPositions == 0) {  // also where a text begins
      for (auto* sums : {&stretches.nll, &stretches.positions, &stretches.difference, &stretches.divergence,
                         &stretches.excess, &stretches.same_top, &stretches.compared}) {
        sums->push_back(0);
      }
    }
    stretches.nll.back() += position.nll;
    stretches.positions.back() += 1;
    stretches.difference.back() += position.difference;
    stretches.divergence.back() += position.divergence;
    stretches.excess.back() += position.excess;
    stretches.same_top.back() += position.same_top;
    stretches.compared.back() += position.compared ? 1 : 0;
  }
  return stretches;
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
                                        const SettingRecords* noise_floor) {
  const std::vector<Position> positions = positions_of(baseline, candidate, noise_floor);
  if (positions.empty()) return std::nullopt;
  const Stretches stretches = stretches_of(positions);
  TextFigures figures;
  figures.tokens = positions.size();
  figures.nll = interval_of(stretches.nll, stretches.positions);
  figures.nll_difference = interval_of(stretches.difference, stretches.compared);
  figures.kl_mean = interval_of(stretches.divergence, stretches.compared);
  figures.kl_excess = interval_of(stretches.excess, stretches.compared);
  figures.same_top = interval_of(stretches.same_top, stretches.compared);
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

// Tasks of a family that both have, but those that one of them refused.
struct PairedFamily {
  const TaskRecord* first = nullptr;  // any of them, also a refused one
  Pairs pairs;
  uint32_t failed = 0;
};
using PairedFamilies = std::map<std::string, PairedFamily, std::less<>>;

PairedFamilies paired_families(const SettingRecords& baseline, const SettingRecords& candidate) {
  std::map<std::string_view, const TaskRecord*> before;
  for (const TaskRecord& task : baseline.tasks) before.emplace(task.id, &task);
  PairedFamilies paired;
  for (const TaskRecord& task : candidate.tasks) {
    const auto found = before.find(task.id);
    if (found == before.end()) continue;
    PairedFamily& family = paired[found->second->family];
    family.first = found->second;
    if (found->second->failed.empty() && task.failed.empty()) {
      family.pairs.push_back({found->second, &task});
    } else {
      ++family.failed;
    }
  }
  for (auto& [name, family] : paired) sort_by_id(family.pairs);
  return paired;
}

// Sums over groups of tasks, which are drawn as one, in the order of their first tasks.
class GroupSums {
 public:
  void add(const TaskRecord& task, double sum, double count) {
    const std::string_view alone = task.group.empty() ? std::string_view(task.id) : std::string_view();
    const auto [group, fresh] = places_.try_emplace(Group(task.family, task.group, alone), sums_.size());
    if (fresh) {
      sums_.push_back(0);
      counts_.push_back(0);
    }
    sums_[group->second] += sum;
    counts_[group->second] += count;
  }
  Interval interval() const { return interval_of(sums_, counts_); }
  uint32_t groups() const { return static_cast<uint32_t>(sums_.size()); }

 private:
  using Group = std::tuple<std::string_view, std::string_view, std::string_view>;

  std::map<Group, size_t> places_;
  std::vector<double> sums_, counts_;  // [groups]
};

std::optional<double> per_token(const TaskRecord& task, const std::optional<double>& nll) {
  if (!nll || task.answer_tokens == 0) return std::nullopt;
  return finite_or_infinite(*nll) / task.answer_tokens;
}

// A task whose answer's likelihood both have: nats per token.
struct LikelyAnswer {
  const TaskRecord* task = nullptr;  // the baseline's
  double baseline = 0, candidate = 0;
  std::optional<double> floor;
};

std::vector<LikelyAnswer> likely_answers(const Pairs& pairs) {
  std::vector<LikelyAnswer> answers;
  for (const auto& [baseline, candidate] : pairs) {
    const std::optional<double> before = per_token(*baseline, baseline->nll);
    const std::optional<double> now = per_token(*candidate, candidate->nll);
    if (!before || !now || !std::isfinite(*before)) continue;
    std::optional<double> floor = per_token(*baseline, baseline->floor_nll);
    if (floor && !std::isfinite(*floor)) floor.reset();
    answers.push_back({baseline, *before, *now, floor});
  }
  return answers;
}

// Those that have a floor, if on their average the context is worth enough to ask what is left of it; otherwise none.
std::vector<LikelyAnswer> with_worthy_floor(const std::vector<LikelyAnswer>& answers) {
  std::vector<LikelyAnswer> floored;
  double worth = 0;
  for (const LikelyAnswer& answer : answers) {
    if (!answer.floor) continue;
    floored.push_back(answer);
    worth += *answer.floor - answer.baseline;
  }
  if (worth < kLeastWorth * static_cast<double>(floored.size())) floored.clear();
  return floored;
}

void add_likelihoods(AnswerFigures& figures, const Pairs& pairs) {
  const std::vector<LikelyAnswer> all = likely_answers(pairs), floored = with_worthy_floor(all);
  if (all.empty()) return;
  const bool by_floor = !floored.empty();
  double nll = 0, floor = 0;
  GroupSums left;
  for (const LikelyAnswer& answer : by_floor ? floored : all) {
    nll += answer.candidate;
    floor += answer.floor.value_or(0);
    if (by_floor) {
      left.add(*answer.task, *answer.floor - answer.candidate, *answer.floor - answer.baseline);
    } else {
      left.add(*answer.task, answer.baseline - answer.candidate, 1);
    }
  }
  figures.compared = static_cast<uint32_t>(by_floor ? floored.size() : all.size());
  figures.groups = left.groups();
  figures.nll = nll / figures.compared;
  Interval retention = left.interval();
  if (by_floor) {
    figures.nll_floor = floor / figures.compared;
  } else {
    retention = {std::exp(retention.value), std::exp(retention.low), std::exp(retention.high)};
  }
  figures.retention = retention;
}

void count_right(AnswerFigures& figures, const Pairs& pairs) {
  figures.tasks = static_cast<uint32_t>(pairs.size());
  for (const auto& [baseline, candidate] : pairs) {
    figures.baseline_right += baseline->right ? 1 : 0;
    figures.right += candidate->right ? 1 : 0;
  }
}

// Tasks without a right answer count by likelihood alone.
void add_answers(AnswerFigures& figures, const Pairs& pairs) {
  Pairs answered;
  std::ranges::copy_if(pairs, std::back_inserter(answered), [](const Pair& pair) { return !pair.baseline->agreement; });
  count_right(figures, answered);
  GroupSums drops;
  for (const auto& [baseline, candidate] : answered) {
    const bool before = baseline->right, now = candidate->right;
    figures.lost += before && !now ? 1 : 0;
    figures.gained += now && !before ? 1 : 0;
    drops.add(*baseline, (before ? 1 : 0) - (now ? 1 : 0), 1);
  }
  figures.p = mcnemar(figures.lost, figures.gained);
  figures.drop = drops.interval();
  add_likelihoods(figures, pairs);
}

// By all that the baseline has, so that one family is judged alike for each candidate.
bool solves(const SettingRecords& baseline, std::string_view family) {
  double tasks = 0, right = 0;
  for (const TaskRecord& task : baseline.tasks) {
    if (task.family != family || !task.failed.empty()) continue;
    tasks += 1;
    right += task.right ? 1 : 0;
  }
  return tasks > 0 && right / tasks >= kSolvedShare;
}

FamilyFigures family_of(const std::string& name, const PairedFamily& paired, const SettingRecords& baseline) {
  FamilyFigures family;
  family.family = name;
  family.skill = paired.first->skill;
  family.agreement = paired.first->agreement;
  family.failed = paired.failed;
  add_answers(family, paired.pairs);
  if (family.agreement) count_right(family, paired.pairs);
  family.judged = family.agreement ? family.compared > 0 : solves(baseline, name);
  return family;
}

// The run's families in its order, then others (the user's own) by name.
std::vector<std::string> order_of(const RunFacts& facts, const PairedFamilies& paired) {
  std::vector<std::string> order;
  for (const std::string& family : facts.families) {
    if (paired.contains(family)) order.push_back(family);
  }
  for (const auto& [family, tasks] : paired) {
    if (std::find(order.begin(), order.end(), family) == order.end()) order.push_back(family);
  }
  return order;
}

// Each skill of which there is a family; without one that is judged it has no tasks.
std::vector<SkillFigures> skills_of(const std::vector<FamilyFigures>& families, const PairedFamilies& paired) {
  std::vector<SkillFigures> skills;
  for (const Skill skill : kSkills) {
    bool any = false;
    Pairs pooled;
    for (const FamilyFigures& family : families) {
      if (family.skill != skill) continue;
      any = true;
      const Pairs& pairs = paired.at(family.family).pairs;
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

std::vector<HeatCell> heat_of(const PairedFamilies& paired) {
  struct Sum {
    uint32_t tasks = 0, right = 0;
    double known = 0, nll = 0;
  };
  std::map<std::pair<uint32_t, double>, Sum> sums;
  for (const auto& [name, family] : paired) {
    for (const auto& [baseline, task] : family.pairs) {
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

std::vector<AnswerChange> changes_of(const std::vector<FamilyFigures>& families, const PairedFamilies& paired) {
  std::vector<AnswerChange> changes;
  for (const FamilyFigures& family : families) {
    if (family.agreement) continue;
    for (const auto& [baseline, candidate] : paired.at(family.family).pairs) {
      if (baseline->right == candidate->right) continue;
      AnswerChange& change = changes.emplace_back();
      change.id = baseline->id;
      change.family = family.family;
      change.length_tokens = baseline->length_tokens;
      change.depth = baseline->depth;
      change.lost = baseline->right;
      change.judged = family.judged;
      change.baseline_text = baseline->text;
      change.text = candidate->text;
    }
  }
  std::ranges::stable_sort(changes, std::ranges::greater(),
                           [](const AnswerChange& change) { return std::pair(change.judged, change.lost); });
  return changes;
}

uint32_t longest_of(const SettingRecords& setting, const PairedFamilies& paired) {
  size_t longest = 0;
  for (const TextRecord& text : setting.texts) longest = std::max(longest, text.nll.size() + 1);
  for (const auto& [name, family] : paired) {
    for (const Pair& pair : family.pairs) longest = std::max(longest, size_t{pair.baseline->length_tokens});
  }
  return static_cast<uint32_t>(longest);
}

SettingReport report_of(const RunFacts& facts, const SettingRecords& baseline, const SettingRecords& setting,
                        const SettingRecords* noise_floor) {
  SettingReport report;
  report.name = setting.setting;
  report.baseline = &baseline == &setting;
  report.kv_bytes_per_token = setting.kv_bytes_per_token;
  report.prompt_tokens_per_s = setting.prompt_tokens_per_s;
  report.seconds = setting.seconds;
  report.text = text_figures(baseline, setting, noise_floor);
  const PairedFamilies paired = paired_families(baseline, setting);
  for (const std::string& name : order_of(facts, paired)) {
    report.families.push_back(family_of(name, paired.at(name), baseline));
  }
  report.skills = skills_of(report.families, paired);
  report.changes = changes_of(report.families, paired);
  report.heat = heat_of(paired);
  report.longest_tokens = longest_of(setting, paired);
  if (report.baseline) return report;  // it is what others are judged by
  if (report.text) report.text->verdict = verdict_of_text(*report.text);
  for (SkillFigures& skill : report.skills) skill.verdict = verdict_of_skill(skill);
  return report;
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
  const SettingRecords* const noise_floor = facts.noise_floor ? &settings.at(*facts.noise_floor) : nullptr;
  for (const SettingRecords& setting : settings) {
    if (&setting != noise_floor) report.settings.push_back(report_of(facts, settings.front(), setting, noise_floor));
  }
  return report;
}

}  // namespace kvarto

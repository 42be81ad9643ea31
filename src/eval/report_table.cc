// What people see in a terminal: verdicts, what they rest on, and what it comes to as the last thing on the screen.
#include <algorithm>

#include "eval/report.h"
#include "eval/report_words.h"
#include "eval/verdict.h"
#include "format/printable.h"

namespace kvarto {
namespace {

using Row = std::vector<std::string>;

// Names come from files and servers.
std::string name_words(const std::string& name) { return printable(name, 400); }

size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

// Columns as wide as their widest cell: the first to the left, others to the right.
std::string laid_out(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - width_of(row[i]), ' ');
      line += i == 0 ? row[i] + space : "  " + space + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += "  " + line + "\n";
  }
  return out;
}

// A name and what follows, the names equally wide.
std::string listed(const std::vector<std::pair<std::string, std::string>>& rows) {
  size_t width = 0;
  for (const auto& [name, value] : rows) width = std::max(width, width_of(name));
  std::string out;
  for (const auto& [name, value] : rows) {
    out += "  " + name + std::string(width - width_of(name) + 2, ' ') + value + "\n";
  }
  return out;
}

std::string with_interval(const Interval& interval, FigureWords words) {
  return words(interval.value) + " [" + words(interval.low) + ", " + words(interval.high) + "]";
}

std::string out_of(uint32_t part, uint32_t whole) { return std::to_string(part) + '/' + std::to_string(whole); }

std::string or_none(const std::optional<double>& value) { return value ? three_digits(*value) : "-"; }

std::string bucket_rows(const TextFigures& text, bool baseline) {
  std::vector<Row> rows{Row{"positions", "tokens", "perplexity"}};
  if (!baseline) {
    rows[0].insert(rows[0].end(), {"divergence, mean", "beyond the noise floor", "divergence, 99th percentile",
                                   "same likeliest token"});
  }
  for (const PositionBucket& bucket : text.buckets) {
    Row row{range_of(bucket), std::to_string(bucket.tokens), perplexity_words(bucket.nll)};
    if (!baseline) {
      row.insert(row.end(), {three_digits(bucket.kl_mean), three_digits(bucket.kl_excess), three_digits(bucket.kl_p99),
                             as_percent(bucket.same_top)});
    }
    rows.push_back(std::move(row));
  }
  return laid_out(rows);
}

std::string text_lines(const TextFigures& text, bool baseline) {
  std::vector<std::pair<std::string, std::string>> rows{
      {"perplexity", with_interval(text.nll, perplexity_words) + " over " + std::to_string(text.tokens) + " tokens"}};
  if (!baseline) {
    rows.emplace_back("ratio of perplexities", with_interval(text.nll_difference, ratio_words) + " to the baseline's");
    rows.emplace_back("divergence (KL), mean", with_interval(text.kl_mean, three_digits) + " nats from the baseline");
    rows.emplace_back("of it beyond the noise floor", with_interval(text.kl_excess, three_digits) + " nats");
    rows.emplace_back("divergence, 99th percentile", three_digits(text.kl_p99) + " nats");
    rows.emplace_back("divergence, highest", three_digits(text.kl_max) + " nats");
    rows.emplace_back("same likeliest token", with_interval(text.same_top, as_percent) + " of positions");
  }
  const std::string title = baseline ? "texts" : "texts: " + std::string(verdict_name(text.verdict));
  return title + "\n" + listed(rows) + bucket_rows(text, baseline);
}

// `changes`: there are right answers, to be lost and gained.
Row change_cells(const AnswerFigures& figures, bool changes) {
  if (!changes) return {"-", "-", "-"};
  return {std::to_string(figures.lost), std::to_string(figures.gained), three_digits(figures.p)};
}

Row right_cells(const AnswerFigures& figures) {
  return {out_of(figures.right, figures.tasks), out_of(figures.baseline_right, figures.tasks)};
}

Row retention_cells(const AnswerFigures& figures) {
  return {figures.retention ? with_interval(*figures.retention, four_places) : "-", std::to_string(figures.compared)};
}

void append(Row& row, const Row& cells) { row.insert(row.end(), cells.begin(), cells.end()); }

Row family_row(const FamilyFigures& family, bool baseline) {
  Row row{name_words(family.family), std::string(skill_name(family.skill))};
  if (baseline) {
    append(row, {out_of(family.right, family.tasks), or_none(family.nll), or_none(family.nll_floor)});
  } else {
    append(row, right_cells(family));
    append(row, change_cells(family, family.judged && !family.agreement));
    row.push_back(or_none(family.nll));
    append(row, retention_cells(family));
  }
  row.push_back(judged_words(family));
  return row;
}

std::string family_lines(const SettingReport& setting) {
  Row head{"family", "skill", "right"};
  if (setting.baseline) {
    append(head, {"nll/token", "without context", "judged"});
  } else {
    append(head, {"baseline", "lost", "gained", "p", "nll/token", "retention", "over tasks", "judged"});
  }
  const bool failed = any_failed(setting);
  if (failed) head.emplace_back("failed");
  std::vector<Row> rows{std::move(head)};
  for (const FamilyFigures& family : setting.families) {
    rows.push_back(family_row(family, setting.baseline));
    if (failed) rows.back().push_back(std::to_string(family.failed));
  }
  std::string out = "tasks by family\n" + laid_out(rows);
  for (const std::string& line : family_legend(setting)) out += "  " + line + "\n";
  return out;
}

std::string skill_lines(const SettingReport& setting) {
  std::vector<Row> rows{
      Row{"skill", "right", "baseline", "lost", "gained", "p", "net loss", "retention", "over tasks", "verdict"}};
  for (const SkillFigures& skill : setting.skills) {
    Row& row = rows.emplace_back(Row{std::string(skill_name(skill.skill))});
    const bool answered = skill.tasks > 0;
    append(row, answered ? right_cells(skill) : Row{"-", "-"});
    append(row, change_cells(skill, answered));
    row.push_back(answered ? with_interval(skill.drop, as_percent) : "-");
    append(row, retention_cells(skill));
    row.emplace_back(verdict_name(skill.verdict));
  }
  return "tasks by skill\n" + laid_out(rows);
}

std::string change_lines(const SettingReport& setting) {
  constexpr size_t kMost = 10;
  std::string lost, gained;
  for (size_t i = 0; i < std::min(kMost, setting.changes.size()); ++i) {
    const AnswerChange& change = setting.changes[i];
    std::string& ids = change.lost ? lost : gained;
    ids += (ids.empty() ? "" : ", ") + name_words(change.id) + (change.judged ? "" : " (not judged)");
  }
  std::vector<std::pair<std::string, std::string>> rows;
  if (!lost.empty()) rows.emplace_back("lost", lost);
  if (!gained.empty()) rows.emplace_back("gained", gained);
  if (setting.changes.size() > kMost) {
    rows.emplace_back("and", std::to_string(setting.changes.size() - kMost) + " more: see the JSON");
  }
  return rows.empty() ? "" : "answers that changed\n" + listed(rows);
}

std::string heat_lines(const std::vector<HeatCell>& cells) {
  const HeatGrid grid = grid_of(cells);
  std::vector<Row> rows{Row{"tokens"}};
  for (const double depth : grid.depths) rows[0].push_back(depth_words(depth));
  for (const uint32_t length : grid.lengths_tokens) {
    Row row{std::to_string(length)};
    for (const double depth : grid.depths) {
      const HeatCell* cell = cell_at(cells, length, depth);
      row.push_back(cell == nullptr ? "" : right_of(*cell));
    }
    rows.push_back(std::move(row));
  }
  return "right by length and by depth of what is asked for\n" + laid_out(rows);
}

std::string block(const SettingReport& setting) {
  const std::string cost = cost_of(setting);
  std::string out = (setting.baseline ? "\nbaseline " : "\nsetting ") + name_words(setting.name) +
                    (cost.empty() ? "" : ": " + cost) + "\n";
  if (setting.text) out += text_lines(*setting.text, setting.baseline);
  if (!setting.families.empty()) out += family_lines(setting);
  if (!setting.baseline && !setting.skills.empty()) out += skill_lines(setting);
  out += change_lines(setting);
  if (!setting.heat.empty()) out += heat_lines(setting.heat);
  return out;
}

std::string verdict_lines(const EvalReport& report) {
  std::vector<Row> rows{Row{"setting", "texts"}};
  for (const Skill skill : kSkills) rows[0].emplace_back(skill_name(skill));
  append(rows[0], {"KV bytes/token", "of baseline's"});
  for (const SettingReport& setting : report.settings) {
    if (setting.baseline) continue;
    Row row{name_words(setting.name), setting.text ? std::string(verdict_name(setting.text->verdict)) : "-"};
    for (const Skill skill : kSkills) {
      const auto found = std::ranges::find(setting.skills, skill, &SkillFigures::skill);
      row.push_back(found == setting.skills.end() ? "-" : std::string(verdict_name(found->verdict)));
    }
    row.push_back(setting.kv_bytes_per_token == 0 ? "-" : std::to_string(setting.kv_bytes_per_token));
    row.push_back(kv_share_words(setting, baseline_of(report)));
    rows.push_back(std::move(row));
  }
  return rows.size() == 1 ? "" : "verdicts\n" + laid_out(rows) + "  " + std::string(kVerdictLegend) + "\n\n";
}

std::string conclusion_lines(const EvalReport& report) {
  std::string out;
  for (const SettingReport& setting : report.settings) {
    const std::string conclusion = conclusion_of(setting);
    if (!conclusion.empty()) out += printable(conclusion, 2000) + "\n";
  }
  return out.empty() ? out : "\n" + out;
}

}  // namespace

std::string report_table(const EvalReport& report) {
  std::vector<std::pair<std::string, std::string>> facts = facts_of(report);
  for (auto& [name, value] : facts) value = printable(value, 2000);
  std::string out = verdict_lines(report) + "what was run\n" + listed(facts);
  for (const SettingReport& setting : report.settings) out += block(setting);
  return out + "\nrule of the verdicts\n" + verdict_rule() + conclusion_lines(report);
}

}  // namespace kvarto

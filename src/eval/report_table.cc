// What people see in a terminal.
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

std::string retention_words(const AnswerFigures& figures) {
  return figures.retention ? with_interval(*figures.retention, four_places) : "-";
}

std::string bucket_rows(const TextFigures& text, bool baseline) {
  std::vector<Row> rows{Row{"positions", "tokens", "perplexity"}};
  if (!baseline) rows[0].insert(rows[0].end(), {"KL mean", "beyond noise floor", "KL p99", "same top-1"});
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
    rows.emplace_back("its ratio", with_interval(text.nll_difference, ratio_words) + " to the baseline's");
    rows.emplace_back("KL", with_interval(text.kl_mean, three_digits) + " nats; p99 " + three_digits(text.kl_p99) +
                                ", max " + three_digits(text.kl_max));
    rows.emplace_back("beyond the noise floor", with_interval(text.kl_excess, three_digits) + " nats");
    rows.emplace_back("same top-1", with_interval(text.same_top, as_percent));
  }
  const std::string title = baseline ? "texts" : "texts: " + std::string(verdict_name(text.verdict));
  return title + "\n" + listed(rows) + bucket_rows(text, baseline);
}

Row baseline_family_row(const FamilyFigures& family) {
  return {name_words(family.family),          std::string(skill_name(family.skill)),
          out_of(family.right, family.tasks), or_none(family.nll),
          or_none(family.nll_floor),          family.judged ? "yes" : "no, likelihood only"};
}

Row family_row(const FamilyFigures& family) {
  const bool judged = family.judged;
  return {name_words(family.family),
          std::string(skill_name(family.skill)),
          out_of(family.right, family.tasks),
          out_of(family.baseline_right, family.tasks),
          judged ? std::to_string(family.lost) : "-",
          judged ? std::to_string(family.gained) : "-",
          judged ? three_digits(family.p) : "-",
          or_none(family.nll),
          retention_words(family),
          judged ? "yes" : "no, likelihood only"};
}

std::string family_lines(const SettingReport& setting) {
  std::vector<Row> rows;
  if (setting.baseline) {
    rows.push_back({"family", "skill", "right", "nll/token", "without context", "judged"});
  } else {
    rows.push_back({"family", "skill", "right", "baseline", "lost", "gained", "p", "nll/token", "retention", "judged"});
  }
  for (const FamilyFigures& family : setting.families) {
    rows.push_back(setting.baseline ? baseline_family_row(family) : family_row(family));
  }
  return "tasks by family\n" + laid_out(rows);
}

std::string skill_lines(const SettingReport& setting) {
  std::vector<Row> rows{Row{"skill", "right", "baseline", "lost", "gained", "p", "drop", "retention", "verdict"}};
  for (const SkillFigures& skill : setting.skills) {
    const std::string name(skill_name(skill.skill)), verdict(verdict_name(skill.verdict));
    if (skill.tasks == 0) {
      rows.push_back({name, "-", "-", "-", "-", "-", "-", "-", verdict});
      continue;
    }
    rows.push_back({name, out_of(skill.right, skill.tasks), out_of(skill.baseline_right, skill.tasks),
                    std::to_string(skill.lost), std::to_string(skill.gained), three_digits(skill.p),
                    with_interval(skill.drop, as_percent), retention_words(skill), verdict});
  }
  return "tasks by skill\n" + laid_out(rows);
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
  if (!setting.heat.empty()) out += heat_lines(setting.heat);
  return out;
}

std::string verdict_lines(const EvalReport& report) {
  std::vector<Row> rows{Row{"verdict", "texts"}};
  for (const Skill skill : kSkills) rows[0].emplace_back(skill_name(skill));
  for (const SettingReport& setting : report.settings) {
    if (setting.baseline) continue;
    Row row{name_words(setting.name), setting.text ? std::string(verdict_name(setting.text->verdict)) : "-"};
    for (const Skill skill : kSkills) {
      const auto found = std::ranges::find(setting.skills, skill, &SkillFigures::skill);
      row.push_back(found == setting.skills.end() ? "-" : std::string(verdict_name(found->verdict)));
    }
    rows.push_back(std::move(row));
  }
  return rows.size() == 1 ? "" : "\n" + laid_out(rows);
}

}  // namespace

std::string report_table(const EvalReport& report) {
  std::vector<std::pair<std::string, std::string>> facts = facts_of(report);
  for (auto& [name, value] : facts) value = printable(value, 2000);
  std::string out = "kvarto eval\n" + listed(facts);
  for (const SettingReport& setting : report.settings) out += block(setting);
  const std::string rule = verdict_rule();
  out += verdict_lines(report) + "\nrule of the verdicts\n" + rule;
  if (!rule.ends_with('\n')) out += '\n';
  return out;
}

}  // namespace kvarto

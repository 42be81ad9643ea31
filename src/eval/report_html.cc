// The page: the same figures as in the JSON, each marked with its place there (data-at, a JSON pointer), and charts.
#include <algorithm>

#include "eval/report.h"
#include "eval/report_charts.h"
#include "eval/report_words.h"
#include "eval/verdict.h"
#include "text/html_page.h"

namespace kvarto {
namespace {

constexpr std::string_view kStyle =
    "h2{font-size:1.15rem;margin:1.6rem 0 .4rem}h3{font-size:1rem;margin:1rem 0 .3rem}"
    "h4{font-size:.95rem;margin:.2rem 0}\n"
    "table{margin-bottom:.6rem}th,td{white-space:nowrap}th{font-weight:600}.soft{color:var(--soft)}\n"
    ".facts th{vertical-align:top}.facts td{text-align:left;white-space:normal;min-width:12rem}"
    ".conclusion{font-weight:600}\n"
    ".conditions td{text-align:left}.conditions td:last-child{white-space:normal;min-width:12rem}"
    ".changes td{text-align:left}.changes td:nth-last-child(-n+2){white-space:normal;min-width:14rem}\n"
    "@media(max-width:480px){th:first-child{white-space:normal;min-width:6rem}}\n"
    ".badge{display:inline-block;border-radius:4px;padding:0 .5rem;border:1px solid var(--line)}\n"
    ":root{--safe:#dafbe1;--safe-ink:#0f4d22;--watch:#fff1c2;--watch-ink:#5c4400;--unsafe:#ffdcd9;--unsafe-ink:#8a1512;"
    "--map0:#fff;--map1:#e3effd;--map2:#c9e0fb;--map3:#abcdf8;--map4:#8fbdf5}\n"
    "@media(prefers-color-scheme:dark){:root{--safe:#12351f;--safe-ink:#8fe3a8;--watch:#3d3000;--watch-ink:#f3d27a;"
    "--unsafe:#4a1715;--unsafe-ink:#ffb3ac;"
    "--map0:#12161b;--map1:#16263a;--map2:#183454;--map3:#1a416f;--map4:#1d4f8f}}\n"
    ".safe{background:var(--safe);color:var(--safe-ink)}.watch{background:var(--watch);color:var(--watch-ink)}"
    ".unsafe{background:var(--unsafe);color:var(--unsafe-ink)}\n"
    ".map td{text-align:center;border:1px solid var(--line)}"
    ".map0{background:var(--map0)}.map1{background:var(--map1)}.map2{background:var(--map2)}"
    ".map3{background:var(--map3)}.map4{background:var(--map4)}\n";

// One figure: its words and its place in the JSON.
std::string at(const std::string& pointer, const std::string& words) {
  return "<span data-at=\"" + pointer + "\">" + html::escaped(words) + "</span>";
}

std::string at(const std::string& pointer, uint64_t count) { return at(pointer, std::to_string(count)); }

std::string at(const std::string& pointer, const Interval& interval, FigureWords words) {
  return at(pointer + "/value", words(interval.value)) + " <span class=\"soft\">[" +
         at(pointer + "/low", words(interval.low)) + ", " + at(pointer + "/high", words(interval.high)) + "]</span>";
}

std::string at_if(const std::string& pointer, const std::optional<double>& value) {
  return at(pointer, value ? three_digits(*value) : "-");
}

std::string badge(const std::string& pointer, Verdict verdict) {
  constexpr const char* kClasses[] = {" safe", " watch", " unsafe", ""};
  return "<span class=\"badge" + std::string(kClasses[static_cast<size_t>(verdict)]) + "\">" +
         at(pointer, std::string(verdict_name(verdict))) + "</span>";
}

// A table that scrolls by itself where the page is too narrow, by keyboard too. `name`: unlike all others of the page.
class Table {
 public:
  explicit Table(const std::string& name, std::string_view kind = "") {
    out_ = "<div class=\"tables\" tabindex=\"0\" role=\"region\" aria-label=\"" + html::escaped(name) +
           "\"><table class=\"" + std::string(kind) + "\">";
  }
  void head(const std::vector<std::string>& names) {
    out_ += "<thead><tr>";
    for (const std::string& name : names) out_ += "<th scope=\"col\">" + html::escaped(name) + "</th>";
    out_ += "</tr></thead>";
  }
  // `cells`: HTML, each in a <td> of its own.
  void row(const std::string& name, const std::vector<std::string>& cells) {
    out_ += "<tr><th scope=\"row\">" + html::escaped(name) + "</th>";
    for (const std::string& cell : cells) out_ += "<td>" + cell + "</td>";
    out_ += "</tr>\n";
  }
  void start_row(const std::string& name) { out_ += "<tr><th scope=\"row\">" + html::escaped(name) + "</th>"; }
  void cell(const std::string& kind, const std::string& inside) {
    out_ += "<td class=\"" + kind + "\">" + inside + "</td>";
  }
  void end_row() { out_ += "</tr>\n"; }
  std::string done() const { return out_ + "</table></div>\n"; }

 private:
  std::string out_;
};

std::string heading(int level, const std::string& words) {
  const std::string tag = "h" + std::to_string(level) + ">";
  return "<" + tag + html::escaped(words) + "</" + tag + "\n";
}

std::string soft(const std::string& words) { return "<p class=\"soft\">" + html::escaped(words) + "</p>\n"; }

// Tells a setting from a baseline of the same name.
std::string whose(const SettingReport& setting) { return (setting.baseline ? "baseline " : "") + setting.name; }

std::string text_figures(const TextFigures& text, const SettingReport& setting, const std::string& pointer) {
  Table table("Figures of the texts, " + whose(setting));
  table.row("perplexity", {at(pointer + "/perplexity", text.nll, perplexity_words)});
  if (!setting.baseline) {
    table.row("ratio of perplexities to the baseline's",
              {at(pointer + "/perplexity_ratio", text.nll_difference, ratio_words)});
    table.row("divergence (KL) from the baseline, mean, nats",
              {at(pointer + "/kl_mean_nats", text.kl_mean, three_digits)});
    table.row("of it beyond the noise floor, nats", {at(pointer + "/kl_excess_nats", text.kl_excess, three_digits)});
    table.row("divergence, 99th percentile, nats", {at(pointer + "/kl_p99_nats", three_digits(text.kl_p99))});
    table.row("divergence, highest, nats", {at(pointer + "/kl_max_nats", three_digits(text.kl_max))});
    table.row("positions with the same likeliest token", {at(pointer + "/same_top_share", text.same_top, as_percent)});
  }
  table.row("tokens", {at(pointer + "/tokens", text.tokens)});
  return table.done();
}

std::string bucket_figures(const TextFigures& text, const SettingReport& setting, const std::string& pointer) {
  Table table("Texts by position, " + whose(setting));
  std::vector<std::string> names{"positions", "tokens", "perplexity"};
  if (!setting.baseline) {
    names.insert(names.end(), {"divergence, mean, nats", "beyond the noise floor", "divergence, 99th percentile",
                               "same likeliest token"});
  }
  table.head(names);
  for (size_t i = 0; i < text.buckets.size(); ++i) {
    const PositionBucket& bucket = text.buckets[i];
    const std::string here = pointer + "/positions/" + std::to_string(i);
    std::vector<std::string> cells{at(here + "/tokens", bucket.tokens),
                                   at(here + "/perplexity", perplexity_words(bucket.nll))};
    if (!setting.baseline) {
      cells.push_back(at(here + "/kl_mean_nats", three_digits(bucket.kl_mean)));
      cells.push_back(at(here + "/kl_excess_nats", three_digits(bucket.kl_excess)));
      cells.push_back(at(here + "/kl_p99_nats", three_digits(bucket.kl_p99)));
      cells.push_back(at(here + "/same_top_share", as_percent(bucket.same_top)));
    }
    table.row(range_of(bucket), cells);
  }
  return table.done();
}

std::string text_part(const SettingReport& setting, const std::string& pointer) {
  if (!setting.text) return {};
  const std::string here = pointer + "/text";
  std::string out = heading(3, "Texts, " + whose(setting));
  if (!setting.baseline) out += "<p>" + badge(here + "/verdict", setting.text->verdict) + "</p>\n";
  out += text_figures(*setting.text, setting, here) + bucket_figures(*setting.text, setting, here);
  if (setting.baseline) return out;
  return out + "<div class=\"charts\">\n" + divergence_chart(setting) + agreement_chart(setting) + "</div>\n";
}

std::string out_of(const std::string& right, const AnswerFigures& figures, const std::string& pointer) {
  return right + "/" + at(pointer + "/tasks", figures.tasks);
}

std::string right_cell(const AnswerFigures& figures, const std::string& pointer) {
  return out_of(at(pointer + "/right", figures.right), figures, pointer);
}

using Cells = std::vector<std::string>;

void append(Cells& cells, const Cells& more) { cells.insert(cells.end(), more.begin(), more.end()); }

Cells right_cells(const AnswerFigures& figures, const std::string& pointer) {
  return {right_cell(figures, pointer),
          out_of(at(pointer + "/baseline_right", figures.baseline_right), figures, pointer)};
}

// Lost and gained, p, drop. `changes`: there are right answers, to be lost and gained.
Cells change_cells(const AnswerFigures& figures, const std::string& pointer, bool changes) {
  if (!changes) return Cells(4, "-");
  return {at(pointer + "/lost", figures.lost), at(pointer + "/gained", figures.gained),
          at(pointer + "/mcnemar_p", three_digits(figures.p)), at(pointer + "/drop_share", figures.drop, as_percent)};
}

Cells retention_cells(const AnswerFigures& figures, const std::string& pointer) {
  const std::string here = pointer + "/retention";
  return {figures.retention ? at(here, *figures.retention, four_places) : at(here, "-"),
          at(pointer + "/compared", figures.compared)};
}

std::string skill_part(const SettingReport& setting, const std::string& pointer) {
  if (setting.baseline || setting.skills.empty()) return {};
  Table table("Skills, " + whose(setting));
  table.head({"skill", "right", "baseline", "lost", "gained", "p", "net loss", "retention", "over tasks", "verdict"});
  for (size_t i = 0; i < setting.skills.size(); ++i) {
    const SkillFigures& skill = setting.skills[i];
    const std::string here = pointer + "/skills/" + std::to_string(i);
    const bool answered = skill.tasks > 0;
    Cells cells = answered ? right_cells(skill, here) : Cells(2, "-");
    append(cells, change_cells(skill, here, answered));
    append(cells, retention_cells(skill, here));
    cells.push_back(badge(here + "/verdict", skill.verdict));
    table.row(std::string(skill_name(skill.skill)), cells);
  }
  const std::string chart = retention_chart(setting);
  return heading(3, "Tasks by skill, " + whose(setting)) + table.done() +
         (chart.empty() ? "" : "<div class=\"charts\">\n" + chart + "</div>\n");
}

Cells family_cells(const FamilyFigures& family, const std::string& pointer, bool baseline) {
  Cells cells{at(pointer + "/skill", std::string(skill_name(family.skill)))};
  if (baseline) {
    cells.push_back(right_cell(family, pointer));
  } else {
    append(cells, right_cells(family, pointer));
    append(cells, change_cells(family, pointer, family.judged && !family.agreement));
    append(cells, retention_cells(family, pointer));
  }
  cells.push_back(at_if(pointer + "/nll_per_token_nats", family.nll));
  if (baseline) cells.push_back(at_if(pointer + "/floor_nll_per_token_nats", family.nll_floor));
  cells.push_back(judged_words(family));
  return cells;
}

std::string family_part(const SettingReport& setting, const std::string& pointer) {
  if (setting.families.empty()) return {};
  Table table("Families of tasks, " + whose(setting));
  Cells names{"family", "skill", "right"};
  if (setting.baseline) {
    append(names, {"nll/token", "without context", "judged"});
  } else {
    append(names, {"baseline", "lost", "gained", "p", "net loss", "retention", "over tasks", "nll/token", "judged"});
  }
  const bool failed = any_failed(setting);
  if (failed) names.emplace_back("failed");
  table.head(names);
  for (size_t i = 0; i < setting.families.size(); ++i) {
    const FamilyFigures& family = setting.families[i];
    const std::string here = pointer + "/families/" + std::to_string(i);
    Cells cells = family_cells(family, here, setting.baseline);
    if (failed) cells.push_back(at(here + "/failed", family.failed));
    table.row(family.family, cells);
  }
  std::string legend;
  for (const std::string& line : family_legend(setting)) legend += (legend.empty() ? "" : " ") + line;
  return heading(3, "Tasks by family, " + whose(setting)) + table.done() + soft(legend);
}

// The first of them: what a model wrote is long.
std::string change_part(const SettingReport& setting, const std::string& pointer) {
  constexpr size_t kMost = 20;
  if (setting.changes.empty()) return {};
  const size_t shown = std::min(kMost, setting.changes.size());
  Table table("Answers that changed, " + whose(setting), "changes");
  table.head({"task", "family", "tokens", "depth", "answer", "judged", "the baseline wrote", "the candidate wrote"});
  for (size_t i = 0; i < shown; ++i) {
    const AnswerChange& change = setting.changes[i];
    const std::string here = pointer + "/changes/" + std::to_string(i);
    const std::string length = change.length_tokens == 0 ? "-" : std::to_string(change.length_tokens);
    table.row(change.id,
              {at(here + "/family", change.family), at(here + "/length_tokens", length),
               at(here + "/depth_share", change.depth ? depth_words(*change.depth) : "-"),
               at(here + "/change", std::string(change.lost ? "lost" : "gained")), change.judged ? "yes" : "no",
               html::escaped(shortened(change.baseline_text)), html::escaped(shortened(change.text))});
  }
  const size_t more = setting.changes.size() - shown;
  return heading(3, "Answers that changed, " + whose(setting)) + table.done() +
         (more == 0 ? "" : soft(std::to_string(more) + " more: see report.json."));
}

// Right answers in words; the shade says the same once more.
void map_cell(Table& table, const HeatCell& cell, const HeatCell* before, const std::string& pointer) {
  const uint32_t shade = cell.tasks > 0 ? 4 * cell.right / cell.tasks : 0;
  std::string words = at(pointer + "/right", cell.right) + "/" + at(pointer + "/tasks", cell.tasks);
  if (before != nullptr && before->right != cell.right) words += ", was " + right_of(*before);
  table.cell("map" + std::to_string(std::min(shade, 4u)), words);
}

std::string map_part(const SettingReport& setting, const SettingReport* baseline, const std::string& pointer) {
  if (setting.heat.empty()) return {};
  const HeatGrid grid = grid_of(setting.heat);
  Table table("Retrieval map, " + whose(setting), "map");
  std::vector<std::string> names{"tokens"};
  for (const double depth : grid.depths) names.push_back("at " + depth_words(depth));
  table.head(names);
  for (const uint32_t length : grid.lengths_tokens) {
    table.start_row(std::to_string(length));
    for (const double depth : grid.depths) {
      const HeatCell* cell = cell_at(setting.heat, length, depth);
      if (cell == nullptr) {
        table.cell("map0", "");
        continue;
      }
      const HeatCell* before =
          setting.baseline || baseline == nullptr ? nullptr : cell_at(baseline->heat, length, depth);
      map_cell(table, *cell, before, pointer + "/retrieval_map/" + std::to_string(cell - setting.heat.data()));
    }
    table.end_row();
  }
  return heading(3, "Retrieval map, " + whose(setting)) +
         soft("Right answers by length of the prompt and by depth of what is asked for.") + table.done();
}

std::string rule_part() {
  Table table("Rule of the verdicts", "conditions");
  table.head({"of", "verdict", "when"});
  for (const VerdictCondition& condition : verdict_conditions()) {
    table.row(std::string(condition.subject),
              {std::string(verdict_name(condition.verdict)), html::escaped(condition.words)});
  }
  std::string terms;
  for (const std::string& term : verdict_terms()) terms += "<li>" + html::escaped(term) + "</li>\n";
  return "<details class=\"rule\"><summary>Rule of the verdicts</summary>\n" + table.done() + "<ul>\n" + terms +
         "</ul></details>\n";
}

std::string summary(const EvalReport& report) {
  Table table("Verdicts");
  std::vector<std::string> names{"setting", "texts"};
  for (const Skill skill : kSkills) names.emplace_back(skill_name(skill));
  append(names, {"KV bytes/token", "of baseline's"});
  table.head(names);
  bool any = false;
  for (size_t i = 0; i < report.settings.size(); ++i) {
    const SettingReport& setting = report.settings[i];
    if (setting.baseline) continue;
    any = true;
    const std::string here = "/settings/" + std::to_string(i);
    std::vector<std::string> cells{setting.text ? badge(here + "/text/verdict", setting.text->verdict) : "-"};
    for (const Skill skill : kSkills) {
      const auto found = std::ranges::find(setting.skills, skill, &SkillFigures::skill);
      const std::string number = std::to_string(found - setting.skills.begin());
      cells.push_back(found == setting.skills.end() ? "-"
                                                    : badge(here + "/skills/" + number + "/verdict", found->verdict));
    }
    const uint64_t bytes = setting.kv_bytes_per_token;
    append(cells, {at(here + "/kv_bytes_per_token", bytes == 0 ? "-" : std::to_string(bytes)),
                   kv_share_words(setting, baseline_of(report))});
    table.row(setting.name, cells);
  }
  return heading(2, "Verdicts") +
         (any ? table.done() + soft(std::string(kVerdictLegend)) : "<p>Nothing was compared.</p>\n") + rule_part();
}

std::string setting_part(const EvalReport& report, size_t index) {
  const SettingReport& setting = report.settings[index];
  const std::string here = "/settings/" + std::to_string(index);
  std::string out = heading(2, (setting.baseline ? "Baseline " : "Setting ") + setting.name);
  if (const std::string cost = cost_of(setting); !cost.empty()) out += "<p>" + html::escaped(cost) + "</p>\n";
  out += text_part(setting, here);
  out += skill_part(setting, here);
  out += family_part(setting, here);
  out += change_part(setting, here);
  return out + map_part(setting, baseline_of(report), here);
}

std::string facts_part(const EvalReport& report) {
  Table table("What was run", "facts");
  for (const auto& [name, value] : facts_of(report)) table.row(name, {html::escaped(value)});
  return heading(2, "What was run, and how") + table.done();
}

}  // namespace

std::string report_html(const EvalReport& report) {
  const std::string title = "kvarto eval: " + report.facts.model;
  std::string page = html::head(title, kStyle) + "<main>\n" + heading(1, title);
  for (const SettingReport& setting : report.settings) {
    const std::string conclusion = conclusion_of(setting);
    if (!conclusion.empty()) page += "<p class=\"conclusion\">" + html::escaped(conclusion) + "</p>\n";
  }
  page += summary(report);
  for (size_t i = 0; i < report.settings.size(); ++i) page += setting_part(report, i);
  return page + facts_part(report) + "</main>" + html::tail();
}

}  // namespace kvarto

#include "eval/report_words.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "eval/text_score.h"
#include "eval/verdict.h"
#include "format/printable.h"

namespace kvarto {
namespace {

std::string print(const char* form, double value) {
  if (!std::isfinite(value)) return "-";
  char text[400];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

std::string counted(uint64_t count, const char* of_what) {
  return std::to_string(count) + ' ' + of_what + (count == 1 ? "" : "s");
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

std::string machine_words(const RunFacts& facts) {
  std::string out = facts.numerics;
  if (!facts.simd_target.empty()) out += (out.empty() ? "" : " on ") + facts.simd_target;
  if (facts.threads > 0) out += ", " + counted(static_cast<uint64_t>(facts.threads), "thread");
  return out;
}

std::string kl_words() {
  return "nats, over the " + std::to_string(kTopTokens) +
         " tokens that the baseline finds likeliest and one bucket for all others: a lower bound";
}

std::string interval_words() {
  return "95 %, paired bootstrap with " + std::to_string(kResamples) + " resamples (seed " +
         std::to_string(kResampleSeed) + "), tasks that share a text as one, texts in stretches of " +
         std::to_string(kStretchPositions) + " positions";
}

std::string server_words(const RunFacts::Server& server) {
  return server.url + ", model " + server.model +
         (server.echoes ? ", likelihoods from echoed prompts" : ", no likelihoods: it does not echo prompts");
}

// Of tasks that are made; the user's own are counted elsewhere.
std::string task_words(const RunFacts& facts) {
  const std::string made =
      facts.families.empty() ? "none made" : "up to " + std::to_string(facts.samples) + " a family";
  return made + ", seed " + std::to_string(facts.seed) +
         (facts.tasks_sha256.empty() ? "" : ", sha256 " + facts.tasks_sha256);
}

}  // namespace

std::string three_digits(double value) { return print("%.3g", value); }
std::string four_places(double value) { return print("%.4f", value); }
std::string as_percent(double share) { return print("%.2f %%", 100 * share); }
std::string perplexity_words(double nll) {
  const double perplexity = std::exp(nll);
  return print(perplexity < 1e6 ? "%.3f" : "%.4g", perplexity);
}
std::string ratio_words(double nll_difference) {
  const double ratio = std::exp(nll_difference);
  return print(ratio < 1e6 ? "%.4f" : "%.4g", ratio);
}

std::string range_of(const PositionBucket& bucket) {
  return std::to_string(bucket.from) + '-' + std::to_string(bucket.to > bucket.from ? bucket.to - 1 : bucket.to);
}

std::string depth_words(double depth) { return print("%.0f %%", 100 * depth); }
std::string right_of(const HeatCell& cell) { return std::to_string(cell.right) + '/' + std::to_string(cell.tasks); }

std::string judged_words(const FamilyFigures& family) {
  if (family.agreement) return family.judged ? "by likelihood" : "no, there is no likelihood";
  return family.judged ? "yes" : "no, likelihood only";
}

std::vector<std::string> family_legend(const SettingReport& setting) {
  std::vector<std::string> lines{
      "nll/token: negative log-likelihood of the right answer, nats per token. -: no figure."};
  if (setting.baseline) {
    lines.emplace_back("without context: the same where the prompt lacks what answers it.");
  } else {
    lines.emplace_back("over tasks: how many retention is of. p: McNemar's, of lost and gained.");
  }
  const auto likelihood_only = [](const FamilyFigures& family) { return !family.judged && !family.agreement; };
  if (std::ranges::any_of(setting.families, likelihood_only)) {
    lines.push_back("likelihood only: the baseline solves less than " + print("%g %%", 100 * kSolvedShare) +
                    " of the family, so that it judges nothing.");
  }
  if (any_failed(setting)) lines.emplace_back("failed: refused by a server, and in no other figure.");
  return lines;
}

bool any_failed(const SettingReport& setting) {
  return std::ranges::any_of(setting.families, [](const FamilyFigures& family) { return family.failed > 0; });
}

const SettingReport* baseline_of(const EvalReport& report) {
  const auto found = std::ranges::find_if(report.settings, &SettingReport::baseline);
  return found == report.settings.end() ? nullptr : &*found;
}

std::vector<std::pair<std::string, std::string>> facts_of(const EvalReport& report) {
  const RunFacts& facts = report.facts;
  const bool server = facts.fingerprint.empty();
  std::vector<std::pair<std::string, std::string>> out;
  const auto add = [&out](const char* name, std::string value) {
    if (!value.empty()) out.emplace_back(name, std::move(value));
  };
  add("model", facts.model + (facts.architecture.empty() ? "" : ", " + facts.architecture));
  add("fingerprint", server ? "unknown (a server)" : facts.fingerprint);
  add("weights", facts.weight_types);
  add("numerics", machine_words(facts));
  if (facts.block_size > 0) {
    add("KV cache", "blocks of " + counted(facts.block_size, "token") +
                        "; a token reads its own block as it was computed and all earlier ones as they are kept");
  }
  add("context", "up to " + counted(facts.context_tokens, "token") + ", each text and prompt from an empty sequence");
  for (const RunFacts::Server& server : facts.servers) add("server", server_words(server));
  add("tasks", task_words(facts));
  add("families", joined(facts.families));
  add("own tasks", facts.own_tasks_sha256.empty() ? "" : "sha256 " + facts.own_tasks_sha256);
  for (const RunFacts::Text& text : facts.texts) {
    add("text", text.name + ", " + counted(text.tokens, "token") + ", sha256 " + text.sha256);
  }
  std::vector<std::string> compared = facts.settings;
  if (facts.noise_floor) {
    compared.erase(compared.begin() + static_cast<ptrdiff_t>(*facts.noise_floor));
    add("noise floor", facts.settings.at(*facts.noise_floor) +
                           ": what any change costs, however small, since it tips roundings of other numbers over");
  }
  add("settings", joined(compared));
  add("divergence", facts.texts.empty() ? "" : kl_words());
  add("intervals", interval_words());
  add("program", facts.program.empty() ? "" : "kvarto " + facts.program);
  return out;
}

std::string cost_of(const SettingReport& setting) {
  std::string out;
  const auto add = [&out](const std::string& words) { out += (out.empty() ? "" : ", ") + words; };
  if (setting.kv_bytes_per_token > 0) add(std::to_string(setting.kv_bytes_per_token) + " bytes of KV cache per token");
  if (setting.prompt_tokens_per_s > 0) add(print("%.0f", setting.prompt_tokens_per_s) + " prompt tokens/s");
  if (setting.seconds > 0) add(print(setting.seconds < 100 ? "%.1f" : "%.0f", setting.seconds) + " s");
  return out;
}

std::string kv_share_words(const SettingReport& setting, const SettingReport* baseline) {
  if (baseline == nullptr || setting.kv_bytes_per_token == 0 || baseline->kv_bytes_per_token == 0) return "-";
  return as_percent(static_cast<double>(setting.kv_bytes_per_token) /
                    static_cast<double>(baseline->kv_bytes_per_token));
}

std::string shortened(std::string_view text) {
  constexpr size_t kMostBytes = 120;
  std::string words;
  for (const char c : text) {
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    if (!space) {
      words += c;
    } else if (!words.empty() && words.back() != ' ') {
      words += ' ';
    }
  }
  if (words.ends_with(' ')) words.pop_back();
  return printable(words, kMostBytes);
}

HeatGrid grid_of(std::span<const HeatCell> cells) {
  HeatGrid grid;
  for (const HeatCell& cell : cells) {
    grid.lengths_tokens.push_back(cell.length_tokens);
    grid.depths.push_back(cell.depth);
  }
  const auto tidy = [](auto& values) {
    std::ranges::sort(values);
    const auto tail = std::ranges::unique(values);
    values.erase(tail.begin(), tail.end());
  };
  tidy(grid.lengths_tokens);
  tidy(grid.depths);
  return grid;
}

const HeatCell* cell_at(std::span<const HeatCell> cells, uint32_t length_tokens, double depth) {
  const auto found = std::ranges::find_if(
      cells, [=](const HeatCell& cell) { return cell.length_tokens == length_tokens && cell.depth == depth; });
  return found == cells.end() ? nullptr : &*found;
}

}  // namespace kvarto

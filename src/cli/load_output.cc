// The table, its remarks, and the JSON.
#include "cli/load_output.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

template <typename... Values>
std::string print(const char* form, Values... values) {
  char text[400];
  std::snprintf(text, sizeof text, form, values...);
  return text;
}

std::string row(const char* name, const Spread& spread) {
  if (spread.count == 0) return print("%-8s %9s %9s %9s %9s %9s %9d\n", name, "-", "-", "-", "-", "-", 0);
  return print("%-8s %9.1f %9.1f %9.1f %9.1f %9.1f %9zu\n", name, 1e3 * spread.mean, 1e3 * spread.p50, 1e3 * spread.p95,
               1e3 * spread.p99, 1e3 * spread.max, spread.count);
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string requests(size_t count) { return std::to_string(count) + (count == 1 ? " request" : " requests"); }

Json spread_json(const Spread& spread) {
  if (spread.count == 0) return nullptr;
  return {{"count", spread.count},      {"mean_ms", 1e3 * spread.mean}, {"p50_ms", 1e3 * spread.p50},
          {"p95_ms", 1e3 * spread.p95}, {"p99_ms", 1e3 * spread.p99},   {"max_ms", 1e3 * spread.max}};
}

Json slo_json(const Slo& slo, const LoadSummary& summary) {
  if (!slo.any()) return nullptr;
  Json json = Json::object();
  if (slo.ttft_s) json["ttft_s"] = *slo.ttft_s;
  if (slo.tpot_s) json["tpot_s"] = *slo.tpot_s;
  if (slo.e2e_s) json["e2e_s"] = *slo.e2e_s;
  json["good"] = summary.good;
  json["good_per_s"] = summary.good_per_s;
  return json;
}

}  // namespace

std::vector<std::string> load_remarks(const LoadReport& report) {
  constexpr size_t kMostReasons = 5;
  const LoadSummary& s = report.summary;
  std::vector<std::string> remarks;
  if (report.interrupted) {
    remarks.push_back("ended by Ctrl-C; " + requests(s.interrupted) + " were running and are left out");
  }
  if (s.overloaded > 0) remarks.push_back(requests(s.overloaded) + " refused with status 503 (overloaded)");
  for (const auto& [status, count] : s.refused_by_status) {
    const auto first = std::ranges::find_if(*report.records, [status = status](const LoadRecord& record) {
      return record.outcome == LoadOutcome::refused && record.status == status;
    });
    remarks.push_back(requests(count) + " refused with status " + std::to_string(status) + ": " + first->error);
  }
  size_t shown = 0;
  for (const auto& [reason, count] : s.broken) {
    if (++shown > kMostReasons) break;
    remarks.push_back(requests(count) + " failed: " + reason);
  }
  if (shown > kMostReasons)
    remarks.push_back("and " + std::to_string(s.broken.size() - kMostReasons) + " other reasons");
  if (!report.exact_lengths) {
    remarks.push_back("this tokenizer cuts common words into pieces: lengths of prompts are right on average only");
  } else if (s.lengths_hit < s.lengths_asked) {
    remarks.push_back("the server counted other prompt lengths than asked for in " +
                      requests(s.lengths_asked - s.lengths_hit) + " of " + std::to_string(s.lengths_asked));
  }
  if (s.usage_missing > 0) {
    remarks.push_back("the server sent no `usage` with " + requests(s.usage_missing) +
                      ": events counted as tokens there");
  }
  if (s.done > 0 && s.cached_missing == s.done) {
    remarks.push_back(
        "the server does not say how many prompt tokens it had in its cache (vLLM does with "
        "--enable-prompt-tokens-details)");
  }
  if (s.late_s.p99 > 0.05) {
    remarks.push_back(
        print("this client started requests late (p99 %.0f ms): times count from when they were due; "
              "a higher --concurrency or a faster client machine helps",
              1e3 * s.late_s.p99));
  }
  return remarks;
}

std::string load_table(const LoadReport& report) {
  const LoadSummary& s = report.summary;
  std::string text = report.url + ", model " + report.model + ": " + report.what + "\n";
  text += print("%zu requests in %.1f s: %zu done", s.requests, s.wall_s, s.done);
  if (s.aborted > 0) text += print(", %zu hung up on", s.aborted);
  if (s.overloaded > 0) text += print(", %zu times 503", s.overloaded);
  const size_t others = s.requests - s.done - s.aborted - s.overloaded - s.interrupted;
  if (others > 0) text += print(", %zu failed", others);
  text += print("\nprompt tokens   %12llu", static_cast<unsigned long long>(s.prompt_tokens));
  if (s.cached_missing < s.done) {
    text += print(", %llu of them cached (%.1f %%)", static_cast<unsigned long long>(s.cached_tokens),
                  100 * share(static_cast<double>(s.cached_tokens), static_cast<double>(s.prompt_tokens)));
  }
  text += print("\noutput tokens   %12llu, %.1f per second (%.1f with prompts)\nrequests        %12.2f per second\n",
                static_cast<unsigned long long>(s.output_tokens), s.output_tokens_per_s, s.total_tokens_per_s,
                s.requests_per_s);
  if (report.slo.any()) {
    text += print("goodput         %12.2f per second; %zu of %zu requests kept the limits (%.1f %%)\n", s.good_per_s,
                  s.good, s.requests, 100 * share(static_cast<double>(s.good), static_cast<double>(s.requests)));
  }
  text += print("\n%-8s %9s %9s %9s %9s %9s %9s\n", "ms", "mean", "p50", "p95", "p99", "max", "count");
  if (report.stream) text += row("TTFT", s.ttft_s) + row("TPOT", s.tpot_s) + row("gap", s.gap_s);
  text += row("whole", s.e2e_s);
  for (const std::string& remark : load_remarks(report)) text += "note: " + remark + "\n";
  return text;
}

std::string load_json(const LoadReport& report) {
  const LoadSummary& s = report.summary;
  Json refused = Json::object(), broken = Json::object();
  if (s.overloaded > 0) refused["503"] = s.overloaded;
  for (const auto& [status, count] : s.refused_by_status) refused[std::to_string(status)] = count;
  for (const auto& [reason, count] : s.broken) broken[reason] = count;
  const LoadTimeline timeline = timeline_of(*report.records, 60);
  const Json json{
      {"url", report.url},
      {"model", report.model},
      {"workload", report.what},
      {"seed", report.seed},
      {"stream", report.stream},
      {"exact_lengths", report.exact_lengths},
      {"interrupted", report.interrupted},
      {"wall_s", s.wall_s},
      {"requests", s.requests},
      {"done", s.done},
      {"aborted", s.aborted},
      {"unfinished", s.interrupted},
      {"refused", std::move(refused)},
      {"broken", std::move(broken)},
      {"prompt_tokens", s.prompt_tokens},
      {"cached_tokens", s.cached_missing < s.done ? Json(s.cached_tokens) : Json(nullptr)},
      {"output_tokens", s.output_tokens},
      {"prompt_lengths_hit", s.lengths_hit},
      {"prompt_lengths_asked", s.lengths_asked},
      {"requests_per_s", s.requests_per_s},
      {"output_tokens_per_s", s.output_tokens_per_s},
      {"total_tokens_per_s", s.total_tokens_per_s},
      {"ttft", spread_json(s.ttft_s)},
      {"tpot", spread_json(s.tpot_s)},
      {"gap", spread_json(s.gap_s)},
      {"e2e", spread_json(s.e2e_s)},
      {"late", spread_json(s.late_s)},
      {"slo", slo_json(report.slo, s)},
      {"timeline",
       {{"slice_s", timeline.slice_s}, {"output_tokens_per_s", timeline.tokens_per_s}, {"running", timeline.running}}},
      {"remarks", load_remarks(report)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvarto

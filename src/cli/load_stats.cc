#include "cli/load_stats.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "format/printable.h"

namespace kvarto {
namespace {

bool has_tokens(const LoadRecord& record) { return record.events > 0; }

// Adds `amount`, spread evenly over [from, to], to slices of `width` seconds from `begin` on.
void spread_over(std::vector<double>& slices, double begin, double width, double from, double to, double amount) {
  const auto last = static_cast<double>(slices.size() - 1);
  const auto slice = [&](double t) { return static_cast<size_t>(std::clamp((t - begin) / width, 0.0, last)); };
  const double length = to - from;
  if (length <= 0) {
    slices[slice(from)] += amount;
    return;
  }
  for (size_t i = slice(from); i <= slice(to); ++i) {
    const double low = begin + static_cast<double>(i) * width;
    const double inside = std::min(to, low + width) - std::max(from, low);
    slices[i] += amount * std::max(0.0, inside) / length;
  }
}

struct Window {
  double begin = 0, end = 0;
};

Window window_of(const std::vector<LoadRecord>& records) {
  if (records.empty()) return {};
  Window window{records.front().start_s, records.front().end_s};
  for (const LoadRecord& record : records) {
    window.begin = std::min(window.begin, record.start_s);
    window.end = std::max(window.end, record.end_s);
  }
  return window;
}

// Everything but percentiles and rates.
void count(LoadSummary& summary, const LoadRecord& record, const Slo& slo) {
  switch (record.outcome) {
    case LoadOutcome::done:
      break;
    case LoadOutcome::aborted:
      ++summary.aborted;
      return;
    case LoadOutcome::interrupted:
      ++summary.interrupted;
      return;
    case LoadOutcome::refused:
      if (record.status == 503) {
        ++summary.overloaded;
      } else {
        ++summary.refused_by_status[record.status];
      }
      return;
    case LoadOutcome::broken:
      ++summary.broken[record.error];
      return;
  }
  ++summary.done;
  summary.prompt_tokens += record.prompt_tokens;
  summary.cached_tokens += record.cached_tokens;
  summary.output_tokens += record.output_tokens;
  summary.usage_missing += record.usage ? 0 : 1;
  summary.cached_missing += record.cached_known ? 0 : 1;
  if (record.prompt_tokens_asked > 0 && record.usage) {
    ++summary.lengths_asked;
    summary.lengths_hit += record.prompt_tokens == record.prompt_tokens_asked ? 1 : 0;
  }
  summary.good += keeps(slo, record) ? 1 : 0;
}

}  // namespace

double quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {values.size(),          sum / static_cast<double>(values.size()),
          quantile(values, 0.50), quantile(values, 0.95),
          quantile(values, 0.99), values.back()};
}

Result<double> parse_seconds(const std::string& flag, const std::string& text) {
  char* rest = nullptr;
  const double value = std::strtod(text.c_str(), &rest);
  const std::string unit = rest;
  const double scale = unit == "s" ? 1 : unit == "ms" ? 1e-3 : unit == "us" ? 1e-6 : unit == "m" ? 60 : 0;
  if (rest != text.c_str() && scale > 0 && std::isfinite(value) && value >= 0) return value * scale;
  return fail(ErrorCode::invalid_argument,
              flag + " " + kvarto::quoted(text) + " is no time; write a number and a unit, such as 1.5s, 50ms or 2m");
}

Result<Slo> parse_slo(const std::string& text) {
  Slo slo;
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find(',', from), text.size());
    const std::string part = text.substr(from, end - from);
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    std::optional<double>* const limit = name == "ttft"   ? &slo.ttft_s
                                         : name == "tpot" ? &slo.tpot_s
                                         : name == "e2e"  ? &slo.e2e_s
                                                          : nullptr;
    if (equals == std::string::npos || limit == nullptr || *limit) {
      return fail(
          ErrorCode::invalid_argument,
          "--slo " + kvarto::quoted(text) + ": wanted ttft=, tpot= or e2e=, each once, such as ttft=1s,tpot=50ms");
    }
    ASSIGN_OR_RETURN(*limit, parse_seconds("--slo " + name + "=", part.substr(equals + 1)));
    from = end + 1;
  }
  return slo;
}

double ttft_of(const LoadRecord& record) { return record.first_s - record.due_s; }
double e2e_of(const LoadRecord& record) { return record.end_s - record.due_s; }

std::optional<double> tpot_of(const LoadRecord& record) {
  if (!has_tokens(record) || record.output_tokens < 2) return std::nullopt;
  return (record.last_s - record.first_s) / static_cast<double>(record.output_tokens - 1);
}

bool keeps(const Slo& slo, const LoadRecord& record) {
  if (record.outcome != LoadOutcome::done) return false;
  if (slo.ttft_s && (!has_tokens(record) || ttft_of(record) > *slo.ttft_s)) return false;
  if (slo.tpot_s && tpot_of(record).value_or(0) > *slo.tpot_s) return false;
  return !slo.e2e_s || e2e_of(record) <= *slo.e2e_s;
}

LoadSummary summarise(const std::vector<LoadRecord>& records, const Slo& slo) {
  LoadSummary summary;
  summary.requests = records.size();
  std::vector<double> ttft, tpot, gaps, e2e, late;
  for (const LoadRecord& record : records) {
    count(summary, record, slo);
    late.push_back(std::max(0.0, record.start_s - record.due_s));
    if (record.outcome != LoadOutcome::done) continue;
    e2e.push_back(e2e_of(record));
    if (has_tokens(record)) ttft.push_back(ttft_of(record));
    if (const std::optional<double> each = tpot_of(record)) tpot.push_back(*each);
    gaps.insert(gaps.end(), record.gaps_s.begin(), record.gaps_s.end());
  }
  summary.ttft_s = spread_of(std::move(ttft));
  summary.tpot_s = spread_of(std::move(tpot));
  summary.gap_s = spread_of(std::move(gaps));
  summary.e2e_s = spread_of(std::move(e2e));
  summary.late_s = spread_of(std::move(late));
  const Window window = window_of(records);
  summary.wall_s = window.end - window.begin;
  if (summary.wall_s > 0) {
    const auto tokens = static_cast<double>(summary.output_tokens);
    summary.requests_per_s = static_cast<double>(summary.done) / summary.wall_s;
    summary.output_tokens_per_s = tokens / summary.wall_s;
    summary.total_tokens_per_s = (tokens + static_cast<double>(summary.prompt_tokens)) / summary.wall_s;
    summary.good_per_s = static_cast<double>(summary.good) / summary.wall_s;
  }
  return summary;
}

LoadTimeline timeline_of(const std::vector<LoadRecord>& records, size_t buckets) {
  LoadTimeline timeline;
  const Window window = window_of(records);
  if (buckets == 0 || window.end <= window.begin) return timeline;
  timeline.slice_s = (window.end - window.begin) / static_cast<double>(buckets);
  timeline.tokens_per_s.assign(buckets, 0);
  timeline.running.assign(buckets, 0);
  for (const LoadRecord& record : records) {
    // Running for a whole slice counts as one request there.
    const double busy = (record.end_s - record.start_s) / timeline.slice_s;
    spread_over(timeline.running, window.begin, timeline.slice_s, record.start_s, record.end_s, busy);
    const auto tokens = static_cast<double>(record.output_tokens) / timeline.slice_s;
    const double first = has_tokens(record) ? record.first_s : record.end_s;
    const double last = has_tokens(record) ? record.last_s : record.end_s;
    spread_over(timeline.tokens_per_s, window.begin, timeline.slice_s, first, last, tokens);
  }
  return timeline;
}

}  // namespace kvarto

// The page: figures and charts.
#include <algorithm>

#include "cli/load_output.h"
#include "text/html_page.h"

namespace kvarto {
namespace {

constexpr size_t kMostPoints = 400;  // of a curve

struct Chart {
  std::string title, x_name, y_name;
  std::vector<html::Point> points;
  double y_max = 0;
  std::optional<double> limit_x = {};
};

std::string drawn(const Chart& chart) {
  if (chart.points.empty()) return html::figure(2, chart.title, "<p>Nothing measured.</p>");
  double x_max = 0, y_max = chart.y_max;
  for (const html::Point& point : chart.points) {
    x_max = std::max(x_max, point.x);
    y_max = std::max(y_max, point.y);
  }
  if (chart.limit_x) x_max = std::max(x_max, *chart.limit_x);
  const html::Frame frame({0, x_max}, {0, y_max});
  std::string drawing =
      html::y_axis(frame, chart.y_name) + html::x_axis(frame, chart.x_name) + html::curve(frame, chart.points);
  if (chart.limit_x) {
    const double x = frame.x(*chart.limit_x);
    drawing += html::line(x, frame.bottom(), x, frame.top(), "limit");
  }
  return html::figure(2, chart.title, html::svg(chart.title, drawing));
}

// Which share of the values is at most x: up to the 99.5th percentile, so that one straggler does not squeeze the rest.
Chart shares(const std::string& title, std::vector<double> seconds, const std::optional<double>& limit_s) {
  Chart chart{title, "ms", "% of them", {}, 100};
  if (limit_s) chart.limit_x = *limit_s * 1e3;
  if (seconds.empty()) return chart;
  std::ranges::sort(seconds);
  const size_t count = std::min(kMostPoints, std::max<size_t>(2, seconds.size()));
  chart.points.push_back({seconds.front() * 1e3, 0});
  for (size_t i = 0; i < count; ++i) {
    const double q = 0.995 * static_cast<double>(i) / static_cast<double>(count - 1);
    chart.points.push_back({quantile(seconds, q) * 1e3, 100 * q});
  }
  return chart;
}

Chart over_time(const std::string& title, const std::string& y_name, const std::vector<double>& values,
                double slice_s) {
  Chart chart{title, "s", y_name, {}, 0};
  for (size_t i = 0; i < values.size(); ++i)
    chart.points.push_back({(static_cast<double>(i) + 0.5) * slice_s, values[i]});
  return chart;
}

std::string cells(const char* name, const Spread& spread) {
  std::string out = "<tr><td>" + std::string(name) + "</td>";
  for (const double value : {spread.mean, spread.p50, spread.p95, spread.p99, spread.max}) {
    out += "<td>" + (spread.count == 0 ? std::string("-") : html::number(1e3 * value)) + "</td>";
  }
  return out + "<td>" + std::to_string(spread.count) + "</td></tr>\n";
}

std::string figures(const LoadReport& report) {
  const LoadSummary& s = report.summary;
  const std::string which = report.url + ", model " + report.model + ": " + report.what;
  std::string out = "<p>" + html::escaped(which) + ", seed " + std::to_string(report.seed) + "</p>\n<p><b>" +
                    html::number(s.output_tokens_per_s) + "</b> output tokens/s, <b>" + html::number(s.requests_per_s) +
                    "</b> requests/s; " + std::to_string(s.done) + " of " + std::to_string(s.requests) +
                    " requests done in " + html::number(s.wall_s) + " s, " + std::to_string(s.overloaded) +
                    " times 503";
  if (s.cached_missing < s.done) {
    out += "; " + std::to_string(s.cached_tokens) + " of " + std::to_string(s.prompt_tokens) + " prompt tokens cached";
  }
  if (report.slo.any()) {
    out += "; goodput " + html::number(s.good_per_s) + " requests/s (" + std::to_string(s.good) + " kept the limits)";
  }
  out +=
      "</p>\n<div class=\"tables\"><table><tr><th>ms</th><th>mean</th><th>p50</th><th>p95</th><th>p99</th><th>max</th>"
      "<th>count</th></tr>\n";
  if (report.stream) {
    out += cells("time to first token", s.ttft_s) + cells("time per output token", s.tpot_s) + cells("gap", s.gap_s);
  }
  out += cells("whole request", s.e2e_s) + "</table></div>\n";
  for (const std::string& remark : load_remarks(report)) out += "<p>" + html::escaped(remark) + "</p>\n";
  return out;
}

}  // namespace

std::string load_html(const LoadReport& report) {
  std::vector<double> ttft, tpot, gaps, e2e;
  for (const LoadRecord& record : *report.records) {
    if (record.outcome != LoadOutcome::done) continue;
    e2e.push_back(e2e_of(record));
    if (record.events > 0) ttft.push_back(ttft_of(record));
    if (const std::optional<double> each = tpot_of(record)) tpot.push_back(*each);
    gaps.insert(gaps.end(), record.gaps_s.begin(), record.gaps_s.end());
  }
  const LoadTimeline timeline = timeline_of(*report.records, 60);
  std::string page =
      html::head("kvarto bench serve") + "<h1>kvarto bench serve</h1>\n" + figures(report) + "<div class=\"charts\">\n";
  if (report.stream) {
    page += drawn(shares("Time to first token", std::move(ttft), report.slo.ttft_s));
    page += drawn(shares("Time per output token", std::move(tpot), report.slo.tpot_s));
    page += drawn(shares("Gaps between tokens", std::move(gaps), std::nullopt));
  }
  page += drawn(shares("Whole request", std::move(e2e), report.slo.e2e_s));
  page += drawn(over_time("Output tokens per second", "tokens/s", timeline.tokens_per_s, timeline.slice_s));
  page += drawn(over_time("Requests running", "requests", timeline.running, timeline.slice_s));
  return page + "</div>" + html::tail();
}

}  // namespace kvarto

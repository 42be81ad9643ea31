// The page: figures, and charts drawn as SVG here. It loads nothing and runs no script.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/load_output.h"

namespace kvarto {
namespace {

constexpr int kWidth = 520, kHeight = 240, kLeft = 58, kRight = 14, kTop = 12, kBottom = 36;
constexpr size_t kMostPoints = 400;  // of a curve

constexpr const char* kHead =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>kvarto bench "
    "serve</title>\n<style>\n"
    ":root{color-scheme:light "
    "dark;--paper:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--curve:#0b62c4;--mark:#b3261e}\n"
    "@media(prefers-color-scheme:dark){:root{--paper:#12161b;--ink:#e6edf3;--soft:#9aa7b4;--line:#333c47;--curve:#"
    "6cb0ff;"
    "--mark:#ff9a91}}\n"
    "body{margin:0 auto;max-width:1140px;padding:1rem;background:var(--paper);color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}\n"
    "h1{font-size:1.3rem}h2{font-size:1rem;margin:.2rem 0}\n"
    ".tables{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.2rem .8rem;text-align:right;"
    "border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:1rem;margin-top:1rem}"
    "\n"
    "figure{margin:0;border:1px solid var(--line);border-radius:6px;padding:.6rem}svg{width:100%;height:auto}\n"
    "svg "
    "text{fill:var(--soft);font-size:12px}.axis{stroke:var(--line)}.curve{fill:none;stroke:var(--curve);stroke-width:2}"
    "\n"
    ".limit{stroke:var(--mark);stroke-dasharray:5 4}\n</style></head><body>\n";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string number(double value) {
  char text[40];
  const double size = std::abs(value);
  std::snprintf(text, sizeof text,
                size >= 100 || value == std::floor(value) ? "%.0f"
                : size >= 1                               ? "%.1f"
                                                          : "%.3g",
                value);
  return text;
}

// A step of 1, 2 or 5 times a power of ten that cuts `range` into four to ten.
double step_of(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 4)));
  const double steps = range / 4 / power;
  return power * (steps >= 5 ? 5 : steps >= 2 ? 2 : 1);
}

struct Point {
  double x = 0, y = 0;
};

struct Chart {
  std::string title, x_name, y_name;
  std::vector<Point> points;
  double y_max = 0;
  std::optional<double> limit_x = {};
};

class Frame {
 public:
  Frame(double x_max, double y_max) : x_max_(x_max > 0 ? x_max : 1), y_max_(y_max > 0 ? y_max : 1) {}
  double x(double value) const { return kLeft + std::min(1.0, value / x_max_) * (kWidth - kLeft - kRight); }
  double y(double value) const {
    return kHeight - kBottom - std::min(1.0, value / y_max_) * (kHeight - kTop - kBottom);
  }
  double x_max() const { return x_max_; }
  double y_max() const { return y_max_; }

 private:
  double x_max_, y_max_;
};

std::string line(double x1, double y1, double x2, double y2, const char* kind) {
  char text[160];
  std::snprintf(text, sizeof text, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", kind, x1, y1,
                x2, y2);
  return text;
}

std::string label(double x, double y, const char* anchor, const std::string& words) {
  char text[120];
  std::snprintf(text, sizeof text, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
  return text + escaped(words) + "</text>";
}

std::string axes(const Frame& frame, const Chart& chart) {
  std::string out;
  for (double at = 0, step = step_of(frame.y_max()); at <= frame.y_max() * 1.0001; at += step) {
    out += line(kLeft, frame.y(at), kWidth - kRight, frame.y(at), "axis");
    out += label(kLeft - 6, frame.y(at) + 4, "end", number(at));
  }
  for (double at = 0, step = step_of(frame.x_max()); at <= frame.x_max() * 1.0001; at += step) {
    out += line(frame.x(at), frame.y(0), frame.x(at), frame.y(0) + 4, "axis");
    out += label(frame.x(at), frame.y(0) + 17, "middle", number(at));
  }
  return out + label(kWidth - kRight, kHeight - 4, "end", chart.x_name) + label(4, kTop, "start", chart.y_name);
}

std::string drawn(const Chart& chart) {
  std::string out = "<figure><h2>" + escaped(chart.title) + "</h2>";
  if (chart.points.empty()) return out + "<p>Nothing measured.</p></figure>\n";
  double x_max = 0, y_max = chart.y_max;
  for (const Point& point : chart.points) {
    x_max = std::max(x_max, point.x);
    y_max = std::max(y_max, point.y);
  }
  if (chart.limit_x) x_max = std::max(x_max, *chart.limit_x);
  const Frame frame(x_max, y_max);
  char text[80];
  std::snprintf(text, sizeof text, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", kWidth, kHeight);
  out += text + escaped(chart.title) + "\">" + axes(frame, chart) + "<polyline class=\"curve\" points=\"";
  for (const Point& point : chart.points) {
    std::snprintf(text, sizeof text, "%.1f,%.1f ", frame.x(point.x), frame.y(point.y));
    out += text;
  }
  out += "\"/>";
  if (chart.limit_x) out += line(frame.x(*chart.limit_x), frame.y(0), frame.x(*chart.limit_x), kTop, "limit");
  return out + "</svg></figure>\n";
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
    out += "<td>" + (spread.count == 0 ? std::string("-") : number(1e3 * value)) + "</td>";
  }
  return out + "<td>" + std::to_string(spread.count) + "</td></tr>\n";
}

std::string figures(const LoadReport& report) {
  const LoadSummary& s = report.summary;
  std::string out = "<p>" + escaped(report.url) + ", model " + escaped(report.model) + ": " + escaped(report.what) +
                    ", seed " + std::to_string(report.seed) + "</p>\n<p><b>" + number(s.output_tokens_per_s) +
                    "</b> output tokens/s, <b>" + number(s.requests_per_s) + "</b> requests/s; " +
                    std::to_string(s.done) + " of " + std::to_string(s.requests) + " requests done in " +
                    number(s.wall_s) + " s, " + std::to_string(s.overloaded) + " times 503";
  if (s.cached_missing < s.done) {
    out += "; " + std::to_string(s.cached_tokens) + " of " + std::to_string(s.prompt_tokens) + " prompt tokens cached";
  }
  if (report.slo.any()) {
    out += "; goodput " + number(s.good_per_s) + " requests/s (" + std::to_string(s.good) + " kept the limits)";
  }
  out +=
      "</p>\n<div class=\"tables\"><table><tr><th>ms</th><th>mean</th><th>p50</th><th>p95</th><th>p99</th><th>max</th>"
      "<th>count</th></tr>\n";
  if (report.stream) {
    out += cells("time to first token", s.ttft_s) + cells("time per output token", s.tpot_s) + cells("gap", s.gap_s);
  }
  out += cells("whole request", s.e2e_s) + "</table></div>\n";
  for (const std::string& remark : load_remarks(report)) out += "<p>" + escaped(remark) + "</p>\n";
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
      kHead + std::string("<h1>kvarto bench serve</h1>\n") + figures(report) + "<div class=\"charts\">\n";
  if (report.stream) {
    page += drawn(shares("Time to first token", std::move(ttft), report.slo.ttft_s));
    page += drawn(shares("Time per output token", std::move(tpot), report.slo.tpot_s));
    page += drawn(shares("Gaps between tokens", std::move(gaps), std::nullopt));
  }
  page += drawn(shares("Whole request", std::move(e2e), report.slo.e2e_s));
  page += drawn(over_time("Output tokens per second", "tokens/s", timeline.tokens_per_s, timeline.slice_s));
  page += drawn(over_time("Requests running", "requests", timeline.running, timeline.slice_s));
  return page + "</div></body></html>\n";
}

}  // namespace kvarto

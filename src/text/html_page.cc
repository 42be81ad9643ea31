#include "text/html_page.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "format/printable.h"

namespace kvarto::html {
namespace {

constexpr int kLeft = 58, kRight = 14, kTop = 26, kBottom = 36;

constexpr std::string_view kStyle =
    ":root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--curve:#0b62c4;"
    "--mark:#b3261e}\n"
    "@media(prefers-color-scheme:dark){:root{--paper:#12161b;--ink:#e6edf3;--soft:#9aa7b4;--line:#333c47;"
    "--curve:#6cb0ff;--mark:#ff9a91}}\n"
    "body{margin:0 auto;max-width:1140px;padding:1rem;background:var(--paper);color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}\n"
    "h1{font-size:1.3rem}h2{font-size:1rem;margin:.2rem 0}\n"
    ".tables{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.2rem .8rem;text-align:right;"
    "border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr));gap:1rem;"
    "margin-top:1rem}\n"
    "figure{margin:0;border:1px solid var(--line);border-radius:6px;padding:.6rem}svg{width:100%;height:auto}\n"
    "svg text{fill:var(--soft);font-size:12px;paint-order:stroke;stroke:var(--paper);stroke-width:3px}"
    ".axis{stroke:var(--line)}.curve{fill:none;stroke:var(--curve);stroke-width:2}.dot{fill:var(--curve)}"
    ".range{stroke:var(--curve);stroke-width:2}\n"
    ".limit{stroke:var(--mark);stroke-dasharray:5 4}\n";

// Finite and long enough to be cut into steps.
Range usable(Range range) {
  constexpr double kShortest = 1e-300;
  if (!(range.to > range.from)) range.to = range.from + 1;
  const double length = range.to - range.from;
  return std::isfinite(length) && length > kShortest ? range : Range{};
}

double share_of(const Range& range, double value) {
  const double share = (value - range.from) / (range.to - range.from);
  return share > 0 ? std::min(share, 1.0) : 0;  // 0 of NaN as well
}

// As many decimals as tell steps apart.
std::string tick(double value, double step) {
  const double decimals = std::max(0.0, -std::floor(std::log10(step) + 1e-9));
  if (decimals > 5) return number(value);
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", static_cast<int>(decimals), value);
  return text;
}

// Calls `mark` with each multiple of a round step in the range, and the words for it.
template <typename Mark>
void for_ticks(const Range& range, const Mark& mark) {
  const double step = step_of(range.to - range.from);
  for (auto i = static_cast<int64_t>(std::ceil(range.from / step - 1e-6));; ++i) {
    const double at = static_cast<double>(i) * step;
    if (at > range.to + 1e-4 * step) return;
    mark(at, tick(at, step));
  }
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text, std::numeric_limits<size_t>::max())) {
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
  if (!std::isfinite(value)) return "-";
  char text[400];
  const double size = std::abs(value);
  std::snprintf(text, sizeof text,
                size >= 100 || value == std::floor(value) ? "%.0f"
                : size >= 1                               ? "%.1f"
                                                          : "%.3g",
                value);
  return text;
}

std::string head(std::string_view title, std::string_view style) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>";
  out += escaped(title);
  out += "</title>\n<style>\n";
  out += kStyle;
  out += style;
  return out + "</style></head><body>\n";
}

std::string tail() { return "</body></html>\n"; }

std::string figure(int level, std::string_view title, std::string_view inside) {
  const std::string heading = "h" + std::to_string(level) + ">";
  return "<figure><" + heading + escaped(title) + "</" + heading + std::string(inside) + "</figure>\n";
}

double step_of(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 4)));
  const double steps = range / 4 / power;
  return power * (steps >= 5 ? 5 : steps >= 2 ? 2 : 1);
}

Frame::Frame(Range x, Range y) : x_(usable(x)), y_(usable(y)) {}

double Frame::x(double value) const { return left() + share_of(x_, value) * (right() - left()); }
double Frame::y(double value) const { return bottom() - share_of(y_, value) * (bottom() - top()); }
double Frame::left() const { return kLeft; }
double Frame::right() const { return kChartWidth - kRight; }
double Frame::top() const { return kTop; }
double Frame::bottom() const { return kChartHeight - kBottom; }

std::string line(double x1, double y1, double x2, double y2, std::string_view kind) {
  char text[160];
  std::snprintf(text, sizeof text, "\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", x1, y1, x2, y2);
  return "<line class=\"" + std::string(kind) + text;
}

std::string label(double x, double y, std::string_view anchor, std::string_view words) {
  char text[80];
  std::snprintf(text, sizeof text, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"", x, y);
  return text + std::string(anchor) + "\">" + escaped(words) + "</text>";
}

std::string dot(double x, double y) {
  char text[80];
  std::snprintf(text, sizeof text, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", x, y);
  return text;
}

std::string curve(const Frame& frame, std::span<const Point> points) {
  std::string out = "<polyline class=\"curve\" points=\"";
  for (const Point& point : points) {
    char text[80];
    std::snprintf(text, sizeof text, "%.1f,%.1f ", frame.x(point.x), frame.y(point.y));
    out += text;
  }
  return out + "\"/>";
}

std::string x_axis(const Frame& frame, std::string_view name) {
  std::string out;
  for_ticks(frame.x_range(), [&](double at, const std::string& words) {
    out += line(frame.x(at), frame.bottom(), frame.x(at), frame.bottom() + 4, "axis");
    out += label(frame.x(at), frame.bottom() + 17, "middle", words);
  });
  return out + label(frame.right(), kChartHeight - 4, "end", name);
}

std::string y_axis(const Frame& frame, std::string_view name) {
  std::string out;
  for_ticks(frame.y_range(), [&](double at, const std::string& words) {
    out += line(frame.left(), frame.y(at), frame.right(), frame.y(at), "axis");
    out += label(frame.left() - 6, frame.y(at) + 4, "end", words);
  });
  return out + label(4, frame.top() - 14, "start", name);
}

std::string svg(std::string_view words, std::string_view drawing) {
  char text[80];
  std::snprintf(text, sizeof text, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", kChartWidth, kChartHeight);
  return text + escaped(words) + "\">" + std::string(drawing) + "</svg>";
}

}  // namespace kvarto::html

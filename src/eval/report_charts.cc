#include "eval/report_charts.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "eval/report_words.h"
#include "eval/verdict.h"
#include "text/html_page.h"

namespace kvarto {
namespace {

using html::Frame;
using html::Point;

struct Limit {
  double value;
  const char* name;
};

// One value per bucket of positions, buckets at equal distances: they double in length.
struct BucketChart {
  const char* title;  // of one setting: the setting's name follows
  const char* y_name;
  html::Range y_range;
  double PositionBucket::*value;
  FigureWords* words;
  std::vector<Limit> limits = {};
};

// Where they are in sight. Limits that lie close together bear the name of the first of them.
std::string limit_lines(const Frame& frame, std::span<const Limit> limits) {
  constexpr double kLineHeight = 14;
  std::string drawing;
  double named = -kLineHeight;
  for (const Limit& limit : limits) {
    if (limit.value < frame.y_range().from || limit.value > frame.y_range().to) continue;
    const double y = frame.y(limit.value);
    drawing += html::line(frame.left(), y, frame.right(), y, "limit");
    if (std::abs(y - named) < kLineHeight) continue;
    drawing += html::label(frame.left() + 4, y - 4, "start", limit.name);
    named = y;
  }
  return drawing;
}

// The words at a point, on the side that the curve does not take.
std::string point_words(const Frame& frame, std::span<const Point> points, size_t i, const std::string& words) {
  const double x = frame.x(points[i].x), y = frame.y(points[i].y);
  const bool rises_before = i > 0 && points[i - 1].y < points[i].y;
  const bool higher_before = i > 0 && points[i - 1].y > points[i].y;
  const bool higher_behind = i + 1 < points.size() && points[i + 1].y > points[i].y;
  if (rises_before && higher_behind) return html::label(x - 6, y - 6, "end", words);
  if (higher_before && i + 1 < points.size() && !higher_behind) return html::label(x + 6, y - 6, "start", words);
  return html::label(x, higher_before || higher_behind ? y + 18 : y - 8, "middle", words);
}

std::string drawn(const SettingReport& setting, const BucketChart& chart) {
  const std::vector<PositionBucket>& buckets = setting.text->buckets;
  const Frame frame({-0.5, static_cast<double>(buckets.size()) - 0.5}, chart.y_range);
  std::string drawing = html::y_axis(frame, chart.y_name), spoken;
  std::vector<Point> points;
  std::vector<std::string> all_words;  // [points]
  for (size_t i = 0; i < buckets.size(); ++i) {
    const auto at = static_cast<double>(i);
    drawing += html::label(frame.x(at), frame.bottom() + 17, "middle", std::to_string(buckets[i].from));
    const double value = buckets[i].*chart.value;
    const std::string words = chart.words(value);
    spoken += (i == 0 ? " " : ", ") + range_of(buckets[i]) + ": " + words;
    if (!std::isfinite(value)) continue;
    points.push_back({at, value});
    all_words.push_back(words);
  }
  std::string marks;
  for (size_t i = 0; i < points.size(); ++i) {
    marks += html::dot(frame.x(points[i].x), frame.y(points[i].y)) + point_words(frame, points, i, all_words[i]);
  }
  drawing += html::label(frame.right(), html::kChartHeight - 4, "end", "from this position on") +
             limit_lines(frame, chart.limits) + html::curve(frame, points) + marks;
  const std::string title = chart.title + (", " + setting.name);
  return html::figure(4, title, html::svg(title + ":" + spoken, drawing));
}

// From the figures that are to be seen, with room for the words above the highest and below the lowest.
html::Range with_room(const html::Range& range) {
  const double room = 0.15 * (range.to - range.from);
  return {range.from - room, range.to + room};
}

bool has_buckets(const SettingReport& setting) { return setting.text && !setting.text->buckets.empty(); }

void widen(html::Range& range, double value) {
  if (!std::isfinite(value)) return;
  range.from = std::min(range.from, value);
  range.to = std::max(range.to, value);
}

}  // namespace

std::string divergence_chart(const SettingReport& setting) {
  if (!has_buckets(setting)) return {};
  // At least as far as where it begins to matter, so that next to nothing looks like it.
  html::Range range{0, kWatchDivergence};
  for (const PositionBucket& bucket : setting.text->buckets) widen(range, bucket.kl_excess);
  return drawn(setting, {"Divergence by position",
                         "mean divergence beyond the noise floor, nats",
                         with_room(range),
                         &PositionBucket::kl_excess,
                         &three_digits,
                         {{kUnsafeDivergence, "unsafe above"}, {kWatchDivergence, "watch above"}}});
}

std::string agreement_chart(const SettingReport& setting) {
  if (!has_buckets(setting)) return {};
  html::Range range{1, 1};
  for (const PositionBucket& bucket : setting.text->buckets) widen(range, bucket.same_top);
  // At least one part in a hundred, so that a single token does not look like a fall.
  return drawn(setting, {"Same likeliest token by position", "share of positions",
                         with_room({std::min(range.from, 0.99), 1}), &PositionBucket::same_top, &as_percent});
}

std::string retention_chart(const SettingReport& setting) {
  html::Range range{0.95, 1.01};
  std::vector<const SkillFigures*> skills;
  for (const SkillFigures& skill : setting.skills) {
    if (!skill.retention || !std::isfinite(skill.retention->value)) continue;
    skills.push_back(&skill);
    for (const double value : {skill.retention->value, skill.retention->low, skill.retention->high}) {
      widen(range, value);
    }
  }
  if (skills.empty()) return {};
  const Frame frame(range, {0, static_cast<double>(skills.size())});
  std::string drawing = html::x_axis(frame, "retention: what is left of the answers' likelihood"), spoken;
  drawing += html::line(frame.x(1), frame.bottom(), frame.x(1), frame.top(), "limit");
  for (size_t i = 0; i < skills.size(); ++i) {
    const Interval& retention = *skills[i]->retention;
    const std::string words = std::string(skill_name(skills[i]->skill)) + ": " + four_places(retention.value) + " [" +
                              four_places(retention.low) + ", " + four_places(retention.high) + "]";
    spoken += (i == 0 ? " " : "; ") + words;
    const double y = frame.y(static_cast<double>(skills.size() - i) - 0.7);
    if (std::isfinite(retention.low) && std::isfinite(retention.high)) {
      drawing += html::line(frame.x(retention.low), y, frame.x(retention.high), y, "range");
    }
    drawing += html::dot(frame.x(retention.value), y) + html::label(frame.left(), y - 9, "start", words);
  }
  const std::string title = "Retention by skill, " + setting.name;
  return html::figure(4, title, html::svg(title + ":" + spoken, drawing));
}

}  // namespace kvarto

#include "eval/report_charts.h"

#include <algorithm>
#include <cmath>

#include "eval/report_words.h"
#include "text/html_page.h"

namespace kvarto {
namespace {

using html::Frame;
using html::Point;

// One value per bucket of positions, buckets at equal distances: they double in length.
struct BucketChart {
  const char* title;  // of one setting: the setting's name follows
  const char* y_name;
  html::Range y_range;
  double PositionBucket::*value;
  FigureWords* words;
};

std::string drawn(const SettingReport& setting, const BucketChart& chart) {
  const std::vector<PositionBucket>& buckets = setting.text->buckets;
  const Frame frame({-0.5, static_cast<double>(buckets.size()) - 0.5}, chart.y_range);
  std::string drawing = html::y_axis(frame, chart.y_name), spoken;
  std::vector<Point> points;
  std::string marks;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const auto at = static_cast<double>(i);
    drawing += html::label(frame.x(at), frame.bottom() + 17, "middle", std::to_string(buckets[i].from));
    const double value = buckets[i].*chart.value;
    const std::string words = chart.words(value);
    spoken += (i == 0 ? " " : ", ") + range_of(buckets[i]) + ": " + words;
    if (!std::isfinite(value)) continue;
    points.push_back({at, value});
    marks += html::dot(frame.x(at), frame.y(value)) + html::label(frame.x(at), frame.y(value) - 8, "middle", words);
  }
  drawing += html::label(frame.right(), html::kChartHeight - 4, "end", "from this position on") +
             html::curve(frame, points) + marks;
  const std::string title = chart.title + (", " + setting.name);
  return html::figure(4, title, html::svg(title + ":" + spoken, drawing));
}

// From the figures that are to be seen, with room above for the words at the highest.
html::Range range_from(double low, double high) {
  const double room = 0.15 * (high - low);
  return {low, high + room};
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
  html::Range range{0, 0};
  for (const PositionBucket& bucket : setting.text->buckets) widen(range, bucket.kl_mean);
  return drawn(setting, {"Divergence by position", "mean KL, nats", range_from(0, range.to), &PositionBucket::kl_mean,
                         &three_digits});
}

std::string agreement_chart(const SettingReport& setting) {
  if (!has_buckets(setting)) return {};
  html::Range range{1, 1};
  for (const PositionBucket& bucket : setting.text->buckets) widen(range, bucket.same_top);
  // At least one part in a hundred, so that a single token does not look like a fall.
  return drawn(setting, {"Same top-1 token by position", "share of positions",
                         range_from(std::min(range.from, 0.99), 1), &PositionBucket::same_top, &as_percent});
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

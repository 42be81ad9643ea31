// Pages that need nothing beside themselves: text as HTML, a head whose colours follow the reader's system (light or
// dark), and charts drawn as SVG. They load nothing and run no script. Plain strings; pure functions; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvarto::html {

// Text of others as text of a page, or as an attribute's value in double quotes. Control characters and bytes that are
// no UTF-8 become \xNN.
std::string escaped(std::string_view text);
// About three digits. What is not finite is "-".
std::string number(double value);

// From the doctype to the start of the body, and its end. `style`: CSS behind the common one.
std::string head(std::string_view title, std::string_view style = {});
std::string tail();
// `inside` with a heading (h2 for level 2) in a frame.
std::string figure(int level, std::string_view title, std::string_view inside);

// --- charts. Coordinates are those of the drawing: x to the right, y downwards.

inline constexpr int kChartWidth = 520, kChartHeight = 240;

// A step of 1, 2 or 5 times a power of ten that cuts `range` > 0 into four to ten.
double step_of(double range);

struct Range {
  double from = 0, to = 1;
};

// Where values lie in the drawing; what is outside of the ranges lies on their edge, NaN at their start. An empty range
// becomes one of length 1, one that is not finite [0, 1].
class Frame {
 public:
  Frame(Range x, Range y);
  double x(double value) const;
  double y(double value) const;
  const Range& x_range() const { return x_; }
  const Range& y_range() const { return y_; }
  double left() const;
  double right() const;
  double top() const;
  double bottom() const;

 private:
  Range x_, y_;
};

struct Point {
  double x = 0, y = 0;  // values
};

// `kind`: a class of the style (axis, limit, range).
std::string line(double x1, double y1, double x2, double y2, std::string_view kind);
// `anchor`: start, middle, end.
std::string label(double x, double y, std::string_view anchor, std::string_view words);
std::string dot(double x, double y);
std::string curve(const Frame& frame, std::span<const Point> points);
std::string x_axis(const Frame& frame, std::string_view name);  // ticks below
std::string y_axis(const Frame& frame, std::string_view name);  // with lines across
// The chart as a picture; `words` are what a screen reader says instead.
std::string svg(std::string_view words, std::string_view drawing);

}  // namespace kvarto::html

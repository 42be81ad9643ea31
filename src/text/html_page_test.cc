#include "text/html_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

namespace kvarto::html {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

TEST(HtmlPage, TextOfOthersStaysText) {
  EXPECT_EQ(escaped("<a href=\"x\">&amp;</a>"), "&lt;a href=&quot;x&quot;&gt;&amp;amp;&lt;/a&gt;");
  EXPECT_EQ(escaped("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(escaped("a\nb\xff"), "a\\x0ab\\xff");
  EXPECT_EQ(escaped(std::string(1000, 'x')), std::string(1000, 'x'));
}

TEST(HtmlPage, NumbersHaveAboutThreeDigits) {
  EXPECT_EQ(number(1234.4), "1234");
  EXPECT_EQ(number(12.34), "12.3");
  EXPECT_EQ(number(3), "3");
  EXPECT_EQ(number(0), "0");
  EXPECT_EQ(number(0.012345), "0.0123");
  EXPECT_EQ(number(kInfinite), "-");
  EXPECT_EQ(number(std::nan("")), "-");
  EXPECT_EQ(number(-1e308).size(), 310u);
}

TEST(HtmlPage, HeadHasTitleAndStyle) {
  const std::string page = head("a<b", ".x{y:z}\n") + tail();
  EXPECT_TRUE(page.starts_with("<!doctype html>\n<html lang=\"en\">"));
  EXPECT_NE(page.find("<title>a&lt;b</title>"), std::string::npos);
  EXPECT_NE(page.find(".x{y:z}\n</style></head><body>\n</body></html>\n"), std::string::npos);
  EXPECT_NE(page.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_EQ(page.find("url("), std::string::npos);
  EXPECT_EQ(figure(3, "a&b", "<p>x</p>"), "<figure><h3>a&amp;b</h3><p>x</p></figure>\n");
}

TEST(HtmlPage, StepsAreRound) {
  EXPECT_DOUBLE_EQ(step_of(4), 1);
  EXPECT_DOUBLE_EQ(step_of(10), 2);
  EXPECT_DOUBLE_EQ(step_of(100), 20);
  EXPECT_DOUBLE_EQ(step_of(0.03), 0.005);
  for (double range = 1e-12; range < 1e12; range *= 1.37) {
    const double step = step_of(range), mantissa = step / std::pow(10, std::floor(std::log10(step) + 1e-9));
    EXPECT_TRUE(range / step > 3.999 && range / step < 10.001) << range;
    EXPECT_TRUE(std::abs(mantissa - 1) < 1e-6 || std::abs(mantissa - 2) < 1e-6 || std::abs(mantissa - 5) < 1e-6)
        << mantissa;
  }
}

TEST(HtmlPage, ValuesLieInTheFrame) {
  const Frame frame({10, 20}, {-1, 1});
  EXPECT_DOUBLE_EQ(frame.x(10), frame.left());
  EXPECT_DOUBLE_EQ(frame.x(15), (frame.left() + frame.right()) / 2);
  EXPECT_DOUBLE_EQ(frame.x(25), frame.right());
  EXPECT_DOUBLE_EQ(frame.y(-1), frame.bottom());
  EXPECT_DOUBLE_EQ(frame.y(1), frame.top());
  EXPECT_DOUBLE_EQ(frame.y(-7), frame.bottom());
  EXPECT_LT(frame.top(), frame.bottom());
  EXPECT_DOUBLE_EQ(frame.x(kInfinite), frame.right());
  EXPECT_DOUBLE_EQ(frame.x(std::nan("")), frame.left());
}

TEST(HtmlPage, RangesThatCannotBeDrawnAreMended) {
  EXPECT_DOUBLE_EQ(Frame({3, 3}, {}).x_range().to, 4);
  EXPECT_DOUBLE_EQ(Frame({3, 2}, {}).x_range().to, 4);
  for (const Range bad : {Range{0, kInfinite}, Range{-kInfinite, 0}, Range{std::nan(""), 1}, Range{0, 1e-310},
                          Range{-1.7e308, 1.7e308}, Range{1e300, 1e300}}) {
    const Frame frame(bad, bad);
    EXPECT_DOUBLE_EQ(frame.x_range().from, 0) << bad.to;
    EXPECT_DOUBLE_EQ(frame.x_range().to, 1) << bad.to;
    const std::string drawn = x_axis(frame, "x") + y_axis(frame, "y");
    EXPECT_TRUE(drawn.find("nan") == std::string::npos && drawn.find("inf") == std::string::npos) << drawn;
  }
}

TEST(HtmlPage, AxesNameTheirTicks) {
  const Frame frame({0, 10}, {0.95, 1.01});
  const std::string x = x_axis(frame, "s<1");
  for (const char* wanted : {">0</text>", ">2</text>", ">8</text>", ">10</text>", ">s&lt;1</text>"}) {
    EXPECT_EQ(count_of(x, wanted), 1u) << wanted << "\n" << x;
  }
  EXPECT_EQ(count_of(x, "<line class=\"axis\""), 6u);
  const std::string y = y_axis(frame, "share");
  for (const char* wanted : {">0.95</text>", ">0.96</text>", ">1.00</text>", ">1.01</text>"}) {
    EXPECT_EQ(count_of(y, wanted), 1u) << wanted << "\n" << y;
  }
  // Below zero: no "-0".
  EXPECT_EQ(count_of(y_axis(Frame({}, {-2, 2}), "y"), ">0</text>"), 1u);
  // Steps too small for decimals are still told apart.
  EXPECT_EQ(count_of(y_axis(Frame({}, {0, 4e-8}), "y"), ">3e-08</text>"), 1u);
}

TEST(HtmlPage, Drawings) {
  const Frame frame({0, 1}, {0, 1});
  const std::vector<Point> points{{0, 0}, {1, 1}};
  char wanted[80];
  std::snprintf(wanted, sizeof wanted, "points=\"%.1f,%.1f %.1f,%.1f \"/>", frame.left(), frame.bottom(), frame.right(),
                frame.top());
  EXPECT_NE(curve(frame, points).find(wanted), std::string::npos) << curve(frame, points);
  EXPECT_EQ(line(1, 2.25, 3, 4, "limit"), "<line class=\"limit\" x1=\"1.0\" y1=\"2.2\" x2=\"3.0\" y2=\"4.0\"/>");
  EXPECT_EQ(label(1, 2, "end", "<"), "<text x=\"1.0\" y=\"2.0\" text-anchor=\"end\">&lt;</text>");
  EXPECT_EQ(dot(1, 2), "<circle class=\"dot\" cx=\"1.0\" cy=\"2.0\" r=\"4\"/>");
  EXPECT_EQ(svg("a\"b", "<g/>"), "<svg viewBox=\"0 0 520 240\" role=\"img\" aria-label=\"a&quot;b\"><g/></svg>");
}

}  // namespace
}  // namespace kvarto::html

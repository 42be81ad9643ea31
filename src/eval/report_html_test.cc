#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "eval/report.h"
#include "eval/report_scene.h"
#include "eval/verdict.h"

namespace kvarto {
namespace {

using namespace report_scene;
using Json = nlohmann::ordered_json;

TEST(ReportHtml, IsWellFormed) { EXPECT_EQ(unbalanced(without_style(report_html(scene()))), ""); }

TEST(ReportHtml, LoadsNothingAndEscapesNames) {
  const std::string page = report_html(scene());
  for (const char* bad : {"http", "<script", "src=", "href", "@import", "url(", "<b>m", "<i>", "\x1b"}) {
    EXPECT_EQ(page.find(bad), std::string::npos) << bad;
  }
  EXPECT_NE(page.find("<h1>kvarto eval: &lt;b&gt;m&lt;/b&gt;&amp;&quot;x&quot;\\x1b[31m.gguf</h1>"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)&lt;/script&gt;.txt, 512 tokens"), std::string::npos);
  EXPECT_NE(page.find("aria-label=\"Skills, k=&lt;i&gt;&quot;&amp;\""), std::string::npos);
}

TEST(ReportHtml, HasItsParts) {
  const std::string page = report_html(scene());
  EXPECT_TRUE(page.starts_with("<!doctype html>\n<html lang=\"en\">"));
  EXPECT_EQ(count_of(page, "<h1>"), 1u);
  EXPECT_EQ(count_of(page, "<svg"), 3u);  // divergence, agreement, retention of the one candidate
  EXPECT_EQ(count_of(page, "role=\"img\" aria-label=\""), 3u);
  EXPECT_EQ(count_of(page, "<th>"), 0u);  // each says what it heads
  EXPECT_EQ(count_of(page, "class=\"tables\" tabindex=\"0\" role=\"region\" aria-label=\""), count_of(page, "<table"));
  EXPECT_NE(page.find("256-511: 0.019\">"), std::string::npos);  // a chart's points for who does not see it
  EXPECT_NE(page.find("retrieval: 0.9870 [0.9710, 1.0020]</text>"), std::string::npos);
  EXPECT_NE(page.find("class=\"badge unsafe\"><span data-at=\"/settings/1/skills/0/verdict\">unsafe</span>"),
            std::string::npos);
  EXPECT_NE(page.find(", was 3/3</td>"), std::string::npos);
  EXPECT_NE(page.find("<td class=\"map2\">"), std::string::npos);  // 2/3
  EXPECT_NE(page.find("<td class=\"map1\">"), std::string::npos);  // 1/3
  EXPECT_EQ(count_of(page, "<details class=\"rule\">"), 1u);
  for (const VerdictCondition& condition : verdict_conditions()) {
    const std::string cells = "<td>" + std::string(verdict_name(condition.verdict)) + "</td><td>";
    EXPECT_NE(page.find(cells), std::string::npos) << cells;
  }
  EXPECT_NE(page.find("<td>a net loss of any size, with p &lt; 0.05</td>"), std::string::npos);
  EXPECT_LT(page.find("</h1>\n<p class=\"conclusion\">k=&lt;i&gt;&quot;&amp;: unsafe for retrieval; "),
            page.find("<h2>Verdicts"));
}

TEST(ReportHtml, ShowsTwentyAnswersThatChanged) {
  EvalReport report = scene();
  const std::string page = report_html(report);
  EXPECT_NE(page.find("<th scope=\"row\">needle-&lt;512&gt;-0</th>"), std::string::npos);
  EXPECT_NE(page.find("<td>the &lt;b&gt;blue&lt;/b&gt; gate</td><td>" + std::string(120, 'x') + "...</td>"),
            std::string::npos);
  report.settings[1].changes.assign(23, report.settings[1].changes[0]);
  const std::string long_page = report_html(report);
  EXPECT_EQ(count_of(long_page, "needle-&lt;512&gt;-0"), 20u);
  EXPECT_NE(long_page.find("3 more: see report.json."), std::string::npos);
  report.settings[1].changes.clear();
  EXPECT_EQ(report_html(report).find("Answers that changed"), std::string::npos);
}

// Excess of 0.003 and 0.019 nats at first.
TEST(ReportHtml, TheDivergenceChartHasTheLinesOfTheVerdict) {
  EvalReport report = scene();
  const auto lines = [&report] {
    const std::string page = report_html(report);
    return std::pair(count_of(page, ">watch above</text>"), count_of(page, ">unsafe above</text>"));
  };
  EXPECT_EQ(lines(), std::pair(size_t{1}, size_t{1})) << "there is room above the highest";
  report.settings[1].text->buckets[1].kl_excess = 0.005;
  EXPECT_EQ(lines(), std::pair(size_t{1}, size_t{0}));
  report.settings[1].text->buckets[1].kl_excess = 5;
  EXPECT_EQ(lines(), std::pair(size_t{0}, size_t{1})) << "both lie on the same pixels";
}

TEST(ReportHtml, HeadingsStepDownOneAtATimeAndRegionsHaveTheirOwnNames) {
  const std::string page = report_html(scene());
  int before = 0;
  const std::regex heading("<h([1-6])>");
  for (std::sregex_iterator it(page.begin(), page.end(), heading), end; it != end; ++it) {
    const int level = std::stoi((*it)[1].str());
    EXPECT_LE(level, before + 1) << it->position();
    before = level;
  }
  std::multiset<std::string> names;
  const std::regex region("role=\"region\" aria-label=\"([^\"]*)\"");
  for (std::sregex_iterator it(page.begin(), page.end(), region), end; it != end; ++it) names.insert((*it)[1].str());
  EXPECT_GE(names.size(), 9u);
  for (const std::string& name : names) EXPECT_EQ(names.count(name), 1u) << name;
}

// Half a unit of the last digit that is written.
double rounding_of(const std::string& words) {
  const size_t e = words.find('e'), point = words.find('.');
  const double power = e == std::string::npos ? 0 : std::stod(words.substr(e + 1));
  const size_t digits_end = std::min(e, words.find_first_not_of("-0123456789."));
  const size_t decimals = point == std::string::npos ? 0 : std::min(digits_end, words.size()) - point - 1;
  return 0.5000001 * std::pow(10, power - static_cast<double>(decimals));
}

struct FigureCounts {
  size_t numbers = 0, absent = 0, texts = 0;
};

FigureCounts expect_figures_of_json(const EvalReport& report) {
  const std::string page = report_html(report);
  const Json json = Json::parse(report_json(report));
  const std::regex figure("<span data-at=\"([^\"]*)\">([^<]*)</span>");
  FigureCounts counts;
  for (std::sregex_iterator it(page.begin(), page.end(), figure), end; it != end; ++it) {
    const std::string pointer = (*it)[1].str(), words = (*it)[2].str();
    const Json::json_pointer place(pointer);
    if (!json.contains(place)) {
      ADD_FAILURE() << pointer << " is not in the JSON";
      continue;
    }
    const Json& value = json[place];
    if (value.is_string()) {
      EXPECT_EQ(words, value.get<std::string>()) << pointer;
      ++counts.texts;
    } else if (value.is_null()) {
      EXPECT_EQ(words, "-") << pointer;
      ++counts.absent;
    } else {
      const double scale = words.ends_with(" %") ? 100 : 1;
      EXPECT_NEAR(std::stod(words), scale * value.get<double>(), rounding_of(words)) << pointer;
      ++counts.numbers;
    }
  }
  EXPECT_EQ(count_of(page, "data-at"), counts.numbers + counts.absent + counts.texts);
  return counts;
}

TEST(ReportHtml, FiguresAreThoseOfTheJson) {
  const FigureCounts counts = expect_figures_of_json(scene());
  EXPECT_GE(counts.numbers, 80u);
  EXPECT_EQ(counts.absent, 11u);  // two of them length and depth of an answer that changed
  EXPECT_EQ(counts.texts, 14u);   // three verdicts, each twice, skills of four families, two answers that changed
}

TEST(ReportHtml, HasOwnQuestionsServersAndRefusedTasks) {
  const EvalReport report = scene_with_own();
  EXPECT_GE(expect_figures_of_json(report).numbers, 100u);
  const std::string page = report_html(report);
  for (const char* wanted :
       {"<td>by likelihood</td>", "<th scope=\"col\">failed</th>", "http://one:8000/v1, model m&lt;1&gt;",
        "data-at=\"/settings/1/families/1/failed\">2<", "sha256 1234"}) {
    EXPECT_NE(page.find(wanted), std::string::npos) << wanted;
  }
  EXPECT_EQ(page.find("/families/2/lost"), std::string::npos);
  EXPECT_EQ(page.find("/skills/2/drop"), std::string::npos);
  EXPECT_EQ(report_html(scene()).find("failed"), std::string::npos);
}

}  // namespace
}  // namespace kvarto

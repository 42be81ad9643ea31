// Hostile templates end with an error that names the limit; none of them hangs, fills the memory or breaks the stack.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace kvarto::jinja {
namespace {

std::string error_of(const std::string& source, const Options& options = {},
                     const nlohmann::ordered_json& context = nlohmann::ordered_json::object()) {
  try {
    std::string text = render(*parse(source), context, options);
    return "no error: " + text.substr(0, 100);
  } catch (const JinjaError& e) {
    return e.what();
  }
}

bool says(const std::string& error, const std::string& words) {
  return error.find("no error") != 0 && error.find(words) != std::string::npos;
}

std::string repeat(const std::string& s, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += s;
  return out;
}

TEST(JinjaLimits, StepsOfNestedLoops) {
  std::string loops = repeat("{% for i in range(1000) %}", 4) + "x" + repeat("{% endfor %}", 4);
  EXPECT_PRED2(says, error_of(loops), "more than 10000000 steps");
}

TEST(JinjaLimits, StepsAreExact) {
  Options options;
  options.limits.steps = 2000;
  EXPECT_PRED2(says, error_of("{% for i in range(1000) %}{{ i }}{% endfor %}", options), "more than 2000 steps");
  EXPECT_EQ(error_of("{% for i in range(10) %}{{ i }}{% endfor %}", options), "no error: 0123456789");
}

TEST(JinjaLimits, OutputBytes) {
  Options options;
  options.limits.output_bytes = 1000;
  EXPECT_PRED2(says, error_of("{{ 'x' * 1001 }}", options), "longer than 1000 bytes");
  EXPECT_EQ(error_of("{{ ('x' * 1000)|length }}{{ 'x' * 996 }}", options).substr(0, 14), "no error: 1000");
  EXPECT_PRED2(says, error_of("{% for i in range(20) %}{{ 'x' * 4000000 }}{% endfor %}"), "longer than 67108864 bytes");
}

TEST(JinjaLimits, MemoryOfDoublingStringsAndLists) {
  Options small;
  small.limits.memory_bytes = 16 << 20;
  std::string doubling =
      "{% set ns = namespace(x=START) %}{% for i in range(200) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
  for (std::string start : {"'aaaaaaaa'", "[1]", "(1,)"}) {
    std::string source = doubling;
    source.replace(source.find("START"), 5, start);
    EXPECT_PRED2(says, error_of(source, small), "more than") << start;
  }
  EXPECT_PRED2(says, error_of("{{ ('x' * 100000000000)|length }}"), "bytes of memory");
  EXPECT_PRED2(says, error_of("{{ ([1] * 9000000000000000000)|length }}", small), "bytes of memory");
  EXPECT_PRED2(says, error_of("{{ ('a' * 1000000).replace('', 'b' * 1000000)|length }}", small), "bytes of memory");
  EXPECT_PRED2(says, error_of("{{ ([('x' * 1000000)] * 100000)|join|length }}", small), "bytes of memory");
  EXPECT_PRED2(
      says,
      error_of("{% set ns = namespace(a=[]) %}{% for i in range(50) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}"
               "{{ ns.a }}",
               small),
      "more than");
}

TEST(JinjaLimits, RangeAndWidths) {
  EXPECT_PRED2(says, error_of("{{ range(100001)|length }}"), "more than 100000 items");
  EXPECT_EQ(error_of("{{ range(100000)|length }}"), "no error: 100000");
  EXPECT_PRED2(says, error_of("{{ range(0, 9223372036854775807, 1)|length }}"), "more than 100000 items");
  EXPECT_EQ(error_of("{{ range(9223372036854775800, 9223372036854775807, 5)|list }}"),
            "no error: [9223372036854775800, 9223372036854775805]");
  EXPECT_PRED2(says, error_of("{{ 'x'.ljust(9000000000) }}"), "too large");
  EXPECT_PRED2(says, error_of("{{ '%999999999d' % 1 }}"), "width above");
  EXPECT_PRED2(says, error_of("{{ 'a'|indent(999999999) }}"), "width above");
  EXPECT_PRED2(says, error_of("{{ [1]|batch(999999999, 0)|list }}"), "size must be");
  EXPECT_PRED2(says, error_of("{{ [1]|tojson(indent=999999999) }}"), "indent above");
}

TEST(JinjaLimits, RecursionOfMacros) {
  EXPECT_PRED2(says, error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "deeper than 200 levels");
  EXPECT_PRED2(says, error_of("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}"),
               "deeper than 200 levels");
  EXPECT_EQ(error_of("{% macro m(n) %}{{ m(n - 1) if n else 'end' }}{% endmacro %}{{ m(199) }}"), "no error: end");
  EXPECT_PRED2(says, error_of("{% macro m(n) %}{{ m(n - 1) if n else 'end' }}{% endmacro %}{{ m(200) }}"), "deeper");
  std::string wide =
      "{% macro m() %}{{ " + repeat("(1 + ", 90) + "m()" + repeat(")", 90) + " }}{% endmacro %}{{ m() }}";
  EXPECT_PRED2(says, error_of(wide), "deeper than");
}

TEST(JinjaLimits, NestingOfTheText) {
  for (auto [open, close] :
       {std::pair("(", ")"), std::pair("[", "]"), std::pair("{1:", "}"), std::pair("-", ""), std::pair("not ", ""),
        std::pair("x[", "]"), std::pair("x(", ")"), std::pair("1 if 1 else ", "")}) {
    EXPECT_PRED2(says, error_of("{{ " + repeat(open, 5000) + "1" + repeat(close, 5000) + " }}"),
                 "nested deeper than 200")
        << open;
  }
  EXPECT_PRED2(says, error_of(repeat("{% if 1 %}", 5000)), "nested deeper than 200");
  EXPECT_PRED2(says, error_of("{% set " + repeat("(", 5000) + "a" + repeat(")", 5000) + " = 1 %}"),
               "nested deeper than 200");
  // Long chains do not nest in the text but in the tree.
  EXPECT_PRED2(says, error_of("{{ 1" + repeat(" + 1", 100000) + " }}"), "deeper than 1000");
  EXPECT_PRED2(says, error_of("{{ 'a'" + repeat("|upper", 100000) + " }}"), "deeper than 1000");
  EXPECT_EQ(error_of("{{ 1" + repeat(" ~ 1", 2000) + " }}").substr(0, 13), "no error: 111");
}

TEST(JinjaLimits, NestedAndCyclicValues) {
  std::string deep = "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}";
  EXPECT_PRED2(says, error_of(deep + "{{ ns.x }}"), "deeper than 200");
  EXPECT_PRED2(says, error_of(deep + "{{ ns.x|tojson }}"), "deeper than 200");
  EXPECT_EQ(error_of(deep + "{{ ns.x|length }}"), "no error: 1");
  EXPECT_PRED2(says, error_of("{% set a = [] %}{% set _ = a.append(a) %}{{ a }}"), "deeper than 200");
  EXPECT_PRED2(says, error_of("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"), "deeper than 200");
  std::string two = "{% set a = [] %}{% set b = [] %}{% set _ = a.append(b) %}{% set _ = b.append(a) %}";
  EXPECT_PRED2(says, error_of(two + "{{ a == b }}"), "deeper than 200");
  nlohmann::ordered_json context = nlohmann::ordered_json::array();
  for (int i = 0; i < 300; ++i) context = nlohmann::ordered_json::array({context});
  EXPECT_PRED2(says, error_of("x", {}, {{"messages", context}}), "deeper than 200");
}

TEST(JinjaLimits, SearchesAreCounted) {
  Options few;
  few.limits.steps = 2'000'000;
  std::string haystack = "{% set h = 'a' * 10000000 %}{% set n = 'a' * 5000 ~ 'b' %}{% for i in range(100000) %}";
  for (std::string use :
       {"n in h", "h.find(n)", "h.rfind(n)", "h.count(n)", "h.replace(n, '')", "h == h ~ ''", "h.rsplit(n)",
        "h.strip('bcd')", "h|upper", "h[1:]", "h < h ~ 'a'", "h.split(n)", "h.rpartition(n)", "h|trim"}) {
    EXPECT_PRED2(says, error_of(haystack + "{% set x = " + use + " %}{% endfor %}", few), "more than") << use;
  }
}

TEST(JinjaLimits, NumbersThatOverflow) {
  for (std::string e : {"9223372036854775807 + 1", "-9223372036854775807 - 2", "9223372036854775807 * 2", "10 ** 19",
                        "2 ** 64", "(-9223372036854775807 - 1) // -1"}) {
    EXPECT_PRED2(says, error_of("{{ " + e + " }}"), "64-bit integer") << e;
  }
  EXPECT_EQ(error_of("{{ (-9223372036854775807 - 1) % -1 }}"), "no error: 0");
  EXPECT_PRED2(says, error_of("{{ 9223372036854775808 }}"), "not a 64-bit integer");
  EXPECT_PRED2(says, error_of("{{ '1e30'|int }}"), "does not fit");
  EXPECT_PRED2(says, error_of("{{ x }}", {}, {{"x", 18446744073709551615ull}}), "does not fit");
}

}  // namespace
}  // namespace kvarto::jinja

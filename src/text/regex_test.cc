#include "text/regex.h"

#include <gtest/gtest.h>

#include <string>

namespace kvarto {
namespace {

constexpr RegexMatcher::Limits kLimits{.steps = 1000};

std::string found(std::string_view pattern, std::string_view text, const RegexMatcher::Find& find = {}) {
  for (const auto engine : {Regex::Engine::interpreter, Regex::Engine::machine_code}) {
    const Result<Regex> regex = Regex::compile(pattern, engine);
    if (!regex) return regex.error().message;
    const auto range = RegexMatcher(kLimits).find(*regex, text, find);
    if (!range) return range.error().message;
    const std::string got = *range ? "'" + std::string(text.substr((*range)->begin, (*range)->end - (*range)->begin)) +
                                         "' at " + std::to_string((*range)->begin)
                                   : "none";
    if (engine == Regex::Engine::machine_code) return got;
  }
  return "";
}

TEST(Regex, FindsTheFirstMatchInCharactersOfUnicode) {
  EXPECT_EQ(found(R"(\p{L}+)", "12 \xc3\xa4\xc3\xb6 x"), "'\xc3\xa4\xc3\xb6' at 3");
  EXPECT_EQ(found(R"(\w)", "- \xc3\xa4"), "'\xc3\xa4' at 2");
  EXPECT_EQ(found("a", "abca", {.from = 1}), "'a' at 3");
  EXPECT_EQ(found("b*", "ab"), "'' at 0");
  EXPECT_EQ(found("b*", "ab", {.not_empty = true}), "'b' at 1");
  EXPECT_EQ(found("x", "abc"), "none");
}

TEST(Regex, ErrorsSayWhereAndWhy) {
  EXPECT_NE(found("a(b", "").find(" at byte 3"), std::string::npos) << found("a(b", "");
  EXPECT_NE(found("a", "\xff").find("UTF-8"), std::string::npos) << found("a", "\xff");
  const std::string hard = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";
  EXPECT_NE(found("(a+)+$", hard).find("limit"), std::string::npos) << found("(a+)+$", hard);
}

}  // namespace
}  // namespace kvarto

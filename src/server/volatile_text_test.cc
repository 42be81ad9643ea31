#include "server/volatile_text.h"

#include <gtest/gtest.h>

#include <fstream>

namespace kvarto {
namespace {

VolatileText rules(std::string_view text) {
  auto parsed = VolatileText::parse(text, "rules.txt");
  EXPECT_TRUE(parsed) << parsed.error().message;
  return std::move(*parsed);
}

std::string error(std::string_view text) {
  const auto parsed = VolatileText::parse(text, "rules.txt");
  return parsed ? "no error" : parsed.error().message;
}

TEST(VolatileText, MovesAndDropsLines) {
  const VolatileText v = rules("# what changes\n\nmove ^Today is\r\n  drop  session [0-9a-f]+$  \nmove Today\n");
  EXPECT_EQ(v.rules(), 3u);
  const VolatileResult got = v.apply("You help.\nToday is Monday.\nsession 12ab\nBe brief.\nUse tools.\n");
  EXPECT_EQ(got.text, "You help.\nBe brief.\nUse tools.\nToday is Monday.\n");
  EXPECT_EQ(got.lines_moved, 1u);
  EXPECT_EQ(got.lines_dropped, 1u);
  EXPECT_EQ(got.lines_given_up, 0u);
  EXPECT_EQ(got.stable_bytes, std::string("Be brief.\nUse tools.\n").size());
  EXPECT_EQ(got.stable_rest(), "Be brief.\nUse tools.\n");
  EXPECT_EQ(v.apply("You help.\nsession 12ab\nBe brief.").stable_rest(), "Be brief.") << "the last line has no end";
  EXPECT_EQ(v.apply("You help.").stable_rest(), "");
}

TEST(VolatileText, KeepsTheEndAsItWas) {
  const VolatileText v = rules("move ^D\ndrop ^X");
  EXPECT_EQ(v.apply("D1\na\nD2\nb").text, "a\nb\nD1\nD2");
  EXPECT_EQ(v.apply("D1\na\n").text, "a\nD1\n");
  EXPECT_EQ(v.apply("a\nX").text, "a");
  EXPECT_EQ(v.apply("X").text, "");
  EXPECT_EQ(v.apply("").text, "");
  EXPECT_EQ(v.apply("\n\n").text, "\n\n");
  EXPECT_EQ(v.apply("a\n\nb\n").text, "a\n\nb\n");
  EXPECT_EQ(v.apply("a\n\nb\n").stable_bytes, 0u);
  EXPECT_EQ(v.apply("a\nD1\n").stable_bytes, 0u);  // it was at the end already
  EXPECT_EQ(v.apply("\u65e5\nD\u00e9").text, "\u65e5\nD\u00e9");
}

TEST(VolatileText, ErrorsNameTheLine) {
  EXPECT_EQ(error("move a\nremove b"), "rules.txt, line 2: a rule begins with move or drop, not with \"remove\"");
  EXPECT_EQ(error("#\n\nmove "), "rules.txt, line 3: the regular expression is missing; write move REGEX");
  EXPECT_TRUE(error("drop a(b").starts_with("rules.txt, line 1: \"a(b\" is no regular expression: "))
      << error("drop a(b");
  EXPECT_TRUE(error("drop a(b").ends_with(" at byte 3"));
  const auto missing = VolatileText::load("no/such/rules.txt");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("no/such/rules.txt"), std::string::npos);
}

TEST(VolatileText, LoadsAFile) {
  const std::string path = ::testing::TempDir() + "volatile_rules.txt";
  std::ofstream(path) << "drop x\n";
  const auto loaded = VolatileText::load(path);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->apply("a\nx").text, "a");
}

TEST(VolatileText, AnExpressionThatWouldRunForeverIsGivenUp) {
  const VolatileText v = rules("move (a+)+$");
  std::string text;
  for (int i = 0; i < 1000; ++i) text += std::string(40, 'a') + "b\n";
  const VolatileResult got = v.apply(text);
  EXPECT_EQ(got.text, text);
  EXPECT_EQ(got.lines_given_up, VolatileText::kMaxGivenUp);
  EXPECT_EQ(got.lines_moved, 0u);
}

TEST(ProposeRule, DatesTimesNumbersAndIds) {
  const auto rule = [](std::string_view a, std::string_view b) { return propose_rule(a, b).value_or("none"); };
  EXPECT_EQ(rule("Today is 2026-11-30.", "Today is 2026-12-01."), R"(move ^Today is \d{4}-\d{2}-\d{2}\.$)");
  EXPECT_EQ(rule("Now: 2026-11-30T08:22:28.5Z", "Now: 2026-11-30T09:00:01.25Z"),
            R"(move ^Now: \d{4}-\d{2}-\d{2}T\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?Z$)");
  EXPECT_EQ(rule("Time: 9:05 am (UTC)", "Time: 10:15 pm (UTC)"),
            R"(move ^Time: \d{1,2}:\d{2}(:\d{2}(\.\d+)?)? [AaPp][Mm] \(UTC\)$)");
  EXPECT_EQ(rule("Monday, 30 Nov 2026", "Tuesday, 1 Dec 2026"),
            R"(move ^[A-Z][a-z]{2,8}, \d+([.,]\d+)* [A-Z][a-z]{2,8} \d+([.,]\d+)*$)");
  EXPECT_EQ(rule("id 0b9a1c2d-0000-4aaa-8bbb-0123456789ab", "id ffffffff-1111-4aaa-8bbb-0123456789ab"),
            R"(move ^id [0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$)");
  EXPECT_EQ(rule("session sess_8fJk2L, model gpt4all-x", "session sess_91aBcD, model gpt4all-x"),
            R"(move ^session [\w-]{6,}, model gpt4all-x$)");
  EXPECT_EQ(rule("1,024 files (50%)", "12 files (3.5%)"), R"(move ^\d+([.,]\d+)* files \(\d+([.,]\d+)*%\)$)");
}

TEST(ProposeRule, NothingWhereWordsDiffer) {
  EXPECT_FALSE(propose_rule("You are a poet.", "You are a pirate."));
  EXPECT_FALSE(propose_rule("Today is 2026-11-30.", "Today is 2026-11-30."));
  EXPECT_FALSE(propose_rule("Today is 2026-11-30.", "Yesterday was 2026-11-29."));
  EXPECT_FALSE(propose_rule("3 files", "many files"));
  EXPECT_FALSE(propose_rule("", "3"));
}

TEST(ProposeRule, TheRuleWorksForTheNextDay) {
  const auto rule =
      propose_rule("Current date: Monday, Nov 30 2026 (day 334)", "Current date: Sunday, Nov 29 2026 (day 333)");
  ASSERT_TRUE(rule);
  const VolatileResult got = rules(*rule).apply("Current date: Friday, Jan 1 2027 (day 1)\nYou help.\nUse 3 tools.");
  EXPECT_EQ(got.text, "You help.\nUse 3 tools.\nCurrent date: Friday, Jan 1 2027 (day 1)");
}

}  // namespace
}  // namespace kvarto

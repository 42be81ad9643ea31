#include "eval/judge.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <utility>

namespace kvarto {
namespace {

Task judged(Judge judge, std::string answer) {
  Task task;
  task.judge = judge;
  task.answer = std::move(answer);
  return task;
}

bool right(Judge judge, std::string answer, std::string_view text) {
  return is_right(judged(judge, std::move(answer)), text);
}

TEST(Judge, FirstLine) {
  EXPECT_TRUE(right(Judge::first_line, " 4821\n", "4821"));
  EXPECT_TRUE(right(Judge::first_line, " 4821\n", " \t4821 \r\nand more"));
  EXPECT_FALSE(right(Judge::first_line, " 4821\n", " 48213"));
  EXPECT_FALSE(right(Judge::first_line, " 4821\n", " 4821."));
  EXPECT_FALSE(right(Judge::first_line, " 4821\n", "\n4821"));
  EXPECT_FALSE(right(Judge::first_line, " 4821\n", ""));
  EXPECT_FALSE(right(Judge::first_line, " Harbour, 4821\n", " harbour, 4821"));
}

TEST(Judge, Contains) {
  EXPECT_TRUE(right(Judge::contains, " Blue Whale\n", "It is the BLUE whale."));
  EXPECT_FALSE(right(Judge::contains, "blue whale", "blue  whale"));
  EXPECT_FALSE(right(Judge::contains, "blue whale", "blue whal"));
  EXPECT_FALSE(right(Judge::contains, " \n", "anything")) << "nothing is in every text";
  EXPECT_TRUE(right(Judge::contains, "caf\xC3\xA9", "\xFF\xFE a Caf\xC3\xA9 \x80"));
}

TEST(Judge, LastNumber) {
  const std::string answer = " 12 + 2 = 14. The answer is 14.\n";
  EXPECT_TRUE(right(Judge::last_number, answer, "The answer is 14."));
  EXPECT_TRUE(right(Judge::last_number, answer, "3, then 0014"));
  EXPECT_TRUE(right(Judge::last_number, answer, "14.00 euros"));
  EXPECT_FALSE(right(Judge::last_number, answer, "14.5"));
  EXPECT_FALSE(right(Judge::last_number, answer, "The answer is 14. Or 15."));
  EXPECT_FALSE(right(Judge::last_number, answer, "The answer is -14."));
  EXPECT_TRUE(right(Judge::last_number, answer, "20-14")) << "a subtraction, no sign";
  EXPECT_TRUE(right(Judge::last_number, answer, "(20)-14")) << "a subtraction, no sign";
  EXPECT_FALSE(right(Judge::last_number, answer, "fourteen"));
  EXPECT_FALSE(right(Judge::last_number, answer, ""));
  EXPECT_FALSE(right(Judge::last_number, "none", "none")) << "an answer without a number";
}

TEST(Judge, LastNumberWithCommasSignsAndZeros) {
  EXPECT_TRUE(right(Judge::last_number, "1234", "1,234"));
  EXPECT_TRUE(right(Judge::last_number, "1,234,567", "it is 1234567."));
  EXPECT_FALSE(right(Judge::last_number, "1234", "1,23,4")) << "a list";
  EXPECT_TRUE(right(Judge::last_number, "4", "1,23,4"));
  EXPECT_FALSE(right(Judge::last_number, "1234", "12,34"));
  EXPECT_FALSE(right(Judge::last_number, "1234567", "1234,567"));
  EXPECT_TRUE(right(Judge::last_number, "-5", "x = -5"));
  EXPECT_TRUE(right(Judge::last_number, "-5", "-5"));
  EXPECT_FALSE(right(Judge::last_number, "-5", "5"));
  EXPECT_TRUE(right(Judge::last_number, "7", "007"));
  EXPECT_TRUE(right(Judge::last_number, "0", "-000"));
  EXPECT_FALSE(right(Judge::last_number, "70", "007"));
}

TEST(Judge, LongNumbersAreNotCut) {
  const std::string many(1 << 20, '9');
  EXPECT_TRUE(right(Judge::last_number, many, "000" + many));
  EXPECT_FALSE(right(Judge::last_number, many, many + "9"));
  EXPECT_FALSE(right(Judge::last_number, "1844674407370955161", "18446744073709551617"));
}

TEST(Judge, Json) {
  const std::string answer = R"( {"tool": "send", "arguments": {"id": 4821, "city": "Linden"}})"
                             "\n";
  EXPECT_TRUE(right(Judge::json, answer, R"({"arguments":{"city":"Linden","id":4821},"tool":"send"})"));
  EXPECT_TRUE(right(Judge::json, answer, answer + "{\"second\": 1}"));
  EXPECT_TRUE(right(Judge::json, R"(["a", 1])", R"([ "\u0061" , 1.0 ])"));
  EXPECT_FALSE(right(Judge::json, R"([1, 2])", R"([2, 1])"));
  EXPECT_FALSE(right(Judge::json, answer, R"({"tool": "send", "arguments": {"id": "4821", "city": "Linden"}})"));
  EXPECT_FALSE(right(Judge::json, answer, R"({"tool": "send", "arguments": {"id": 4821}})"));
  EXPECT_FALSE(right(Judge::json, answer, R"({"tool": "send", "arguments": {"id": 4821, "city": "Linden"})"));
  EXPECT_FALSE(right(Judge::json, answer, answer.substr(0, answer.size() - 1) + " and more"));
  EXPECT_FALSE(right(Judge::json, answer, ""));
}

TEST(Judge, JsonThatIsRefused) {
  EXPECT_FALSE(right(Judge::json, R"({"a": 1})", R"({"a": 2, "a": 1})")) << "a key twice";
  EXPECT_FALSE(right(Judge::json, R"({"a": 1})", std::string(1 << 20, '[')));
  EXPECT_FALSE(right(Judge::json, R"({"a": 1})", std::string(1 << 19, '[') + std::string(1 << 19, ']')));
  EXPECT_FALSE(right(Judge::json, R"({"a": "x"})", "{\"a\": \"\xC3\x28\"}")) << "no UTF-8";
  EXPECT_FALSE(right(Judge::json, R"({"a": 1})", R"({"a": 1e999})"));
  EXPECT_FALSE(right(Judge::json, "not JSON", "not JSON"));
}

TEST(Judge, Code) {
  const std::string answer = "    total = value * 3 + 1\n    if total >= 5:\n        total -= 2\n    return total\n";
  EXPECT_TRUE(right(Judge::code, answer, answer));
  EXPECT_TRUE(right(Judge::code, answer, "  total=value*3+1\n\n  if total>=5: total-=2\n  return total"));
  EXPECT_TRUE(right(Judge::code, answer, answer + "\ndef other(value):\n    return 1\n"));
  EXPECT_TRUE(right(Judge::code, answer, answer + "# the end\nprint(1)\n"));
  EXPECT_TRUE(right(Judge::code, answer, "    total = value * 3 + 1  # as before\n" + answer.substr(26)));
  EXPECT_FALSE(right(Judge::code, answer, answer + "    print(total)\n"));
  EXPECT_FALSE(right(Judge::code, answer, answer.substr(0, answer.size() - 14)));
  EXPECT_FALSE(right(Judge::code, "    return a\n", "    returna\n")) << "one word";
  EXPECT_FALSE(right(Judge::code, "    return a >= b\n", "    return a > = b\n"));
  EXPECT_FALSE(right(Judge::code, answer, ""));
}

TEST(Judge, CodeKeepsWhiteSpaceInTexts) {
  EXPECT_TRUE(right(Judge::code, "    return 'a # b'\n", "  return  'a # b'"));
  EXPECT_FALSE(right(Judge::code, "    return 'a b'\n", "    return 'a  b'"));
  EXPECT_FALSE(right(Judge::code, "    return 'a'\n", "    return 'a"));
  EXPECT_FALSE(right(Judge::code, "    return 'a'\n", "    return 'a\\"));
}

TEST(Judge, Agreement) {
  const Task task = judged(Judge::agreement, "");
  EXPECT_TRUE(is_right(task, "same\xFF", "same\xFF"));
  EXPECT_FALSE(is_right(task, "same", "same "));
  EXPECT_TRUE(is_right(task, "", ""));
}

TEST(Judge, CutsAtTheFirstOfTheStops) {
  Task task;
  task.stop = {"\n\n", "", "END"};
  EXPECT_EQ(cut_at_stop(task, "one\ntwo END three\n\n"), "one\ntwo ");
  EXPECT_EQ(cut_at_stop(task, "one\n\nEND"), "one");
  EXPECT_EQ(cut_at_stop(task, "ENDless"), "");
  EXPECT_EQ(cut_at_stop(task, "no stop"), "no stop");
  task.stop.clear();
  EXPECT_EQ(cut_at_stop(task, "a\nb"), "a\nb");
}

// Whatever a model writes, there is a verdict.
RC_GTEST_PROP(JudgeRandom, AnyBytesAreJudged, (const std::string& text)) {
  const std::string number = std::to_string(*rc::gen::inRange(1000, 9999));
  for (const Judge judge : {Judge::first_line, Judge::contains, Judge::last_number, Judge::json, Judge::code}) {
    const Task task = judged(judge, number);
    RC_ASSERT(is_right(task, number));
    const bool verdict = is_right(task, text);
    RC_ASSERT(is_right(task, text) == verdict);
    if (text.find(number) == std::string::npos && judge != Judge::last_number) {
      RC_ASSERT(!verdict);
    }
  }
}

}  // namespace
}  // namespace kvarto

#include "server/breakers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace kvarto {
namespace {

// A token is a byte, so that positions are offsets that one can count by hand.
std::string byte_piece(TokenId id) { return std::string(1, static_cast<char>(id)); }

struct Chat {
  std::string text, messages, tools;
  std::vector<TokenId> ids;
  std::vector<size_t> ends;

  explicit Chat(std::string spelled, std::string messages_json = "", std::string tools_json = "")
      : text(std::move(spelled)), messages(std::move(messages_json)), tools(std::move(tools_json)), ends(text.size()) {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    std::iota(ends.begin(), ends.end(), size_t{1});
  }
  // Parts in front of the first `mark`.
  PartedPrompt parted_at(std::string_view mark, TokenId known = '?') const {
    const size_t at = text.find(mark);
    EXPECT_NE(at, std::string::npos) << mark;
    return {
        .ids = ids,
        .near = {.matched_tokens = at / 16 * 16, .common_tokens = static_cast<uint32_t>(at % 16), .known_token = known},
        .messages = messages,
        .tools = tools};
  }
  BrokenLine locate(std::string_view mark) const { return locate_parting(text, ends, parted_at(mark)); }
  std::string line(const BrokenLine& line) const {
    return text.substr(line.line_begin, line.line_end - line.line_begin);
  }
};

Chat chat_on(const std::string& date, const std::string& question = "Hi user") {
  return Chat("<|im_start|>system\nYou help.\nToday is " + date + ".\nBe brief.<|im_end|>\n<|im_start|>user\n" +
                  question + "<|im_end|>\n<|im_start|>assistant\n",
              R"([{"role": "system", "content": "You help.\nToday is )" + date +
                  R"(.\nBe brief."}, {"role": "user", "content": ")" + question + R"("}])");
}

TEST(LocateParting, FindsMessageAndLine) {
  const Chat chat = chat_on("2026-11-30");
  const BrokenLine at = chat.locate("1-30");
  EXPECT_EQ(at.place, PromptPlace::message);
  EXPECT_EQ(at.role, "system");
  EXPECT_EQ(at.index, 0u);
  EXPECT_EQ(chat.line(at), "Today is 2026-11-30.");
  EXPECT_EQ(at.part_begin, std::string("You help.\n").size());
  EXPECT_FALSE(at.usual);
  // "1-30.\nBe brief." and the turn's markers up to the question.
  EXPECT_EQ(at.lost_tokens, std::string("1-30.\nBe brief.<|im_end|>\n<|im_start|>user\n").size());
}

TEST(LocateParting, ANewQuestionIsUsual) {
  const Chat chat = chat_on("2026-11-30");
  for (const char* mark : {"Hi user", "user<", "assistant"}) EXPECT_TRUE(chat.locate(mark).usual) << mark;
  EXPECT_EQ(chat.locate("Hi user").lost_tokens, 0u);
}

TEST(LocateParting, AnEarlierQuestionIsNot) {
  const Chat chat("<user>one</s><assistant>two</s><user>three</s><assistant>",
                  R"([{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
                      {"role": "user", "content": "three"}])");
  const BrokenLine answer = chat.locate("wo<");
  EXPECT_EQ(answer.place, PromptPlace::message);
  EXPECT_EQ(answer.role, "assistant");
  EXPECT_EQ(answer.index, 1u);
  EXPECT_EQ(chat.line(answer), "two");
  EXPECT_FALSE(answer.usual);
  EXPECT_EQ(answer.lost_tokens, std::string("wo</s><user>").size());
  EXPECT_TRUE(chat.locate("hree").usual);
}

TEST(LocateParting, TheTemplatesOwnText) {
  const Chat chat("<|system|>\nCutting date: 2023\nToday Date: 30 Nov 2026\n\nYou help.</s><|user|>\nHi</s>",
                  R"([{"role": "system", "content": "You help."}, {"role": "user", "content": "Hi"}])");
  const BrokenLine at = chat.locate("30 Nov");
  EXPECT_EQ(at.place, PromptPlace::template_text);
  EXPECT_EQ(chat.line(at), "Today Date: 30 Nov 2026");
  EXPECT_FALSE(at.usual);
}

TEST(LocateParting, ToolsByTheirNames) {
  const std::string tools =
      R"([{"type": "function", "function": {"name": "weather"}}, {"type": "function", "function": {"name": "clock"}}])";
  const Chat chat(
      "<|system|>\nYou help.\n# Tools\n{\"name\": \"weather\", \"a\": 1}\n{\"name\": \"clock\", \"b\": "
      "2}</s><|user|>\nHi</s>",
      R"([{"role": "system", "content": "You help."}, {"role": "user", "content": "Hi"}])", tools);
  const BrokenLine second = chat.locate("\"b\": 2");
  EXPECT_EQ(second.place, PromptPlace::tools);
  EXPECT_EQ(second.index, 1u);
  EXPECT_EQ(chat.line(second), "{\"name\": \"clock\", \"b\": 2}</s><|user|>");  // up to the next content's line
  EXPECT_EQ(chat.locate("\"a\"").index, 0u);
  EXPECT_EQ(chat.locate("# Tools").place, PromptPlace::template_text);
}

// What a template leaves out is looked for a few times only, whatever the request has of it.
TEST(LocateParting, ManyContentsThatAreNotThereCostLittle) {
  std::string messages = "[";
  for (int i = 0; i < 16'000; ++i) messages += R"({"role": "absent", "content": "nowhere"}, )";
  messages += R"({"role": "user", "content": "Hi"}])";
  std::string tools = "[";
  for (int i = 0; i < 1000; ++i) tools += std::string(i > 0 ? ", " : "") + R"({"name": "missing"})";
  tools += "]";
  std::string text = "<user>Hi";
  for (int i = 0; i < 1 << 22; ++i) text += 'a';
  // 50,000 passes over 4 MiB would take a minute; a watchdog, no measure.
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<size_t> ends = {text.size() - 2, text.size()};
  const BrokenLine at =
      locate_parting(text, ends, {.ids = {}, .near = {.matched_tokens = 1}, .messages = messages, .tools = tools});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(at.place, PromptPlace::template_text);
}

// Tools are looked for in their order: a name in another tool's description is not that tool.
TEST(LocateParting, ANameInAnotherToolsDescription) {
  const Chat chat(R"({"name": "weather", "see": "clock"} {"name": "zones"} {"name": "clock", "b": 2}<user>Hi)",
                  R"([{"role": "user", "content": "Hi"}])",
                  R"([{"name": "weather"}, {"name": "zones"}, {"name": "clock"}])");
  EXPECT_EQ(chat.locate("\"b\"").index, 2u);
  EXPECT_EQ(chat.locate("zones\"}").index, 1u);
}

// Two texts that begin alike over many bytes are told apart without comparing them at every byte.
TEST(LocateParting, ALongRunOfOneLetter) {
  const std::string run(4 << 20, 'a');
  const Chat chat("<user>" + run + "</s>", R"([{"role": "user", "content": ")" + run.substr(run.size() / 2) +
                                               R"(b"}, {"role": "user", "content": "aaa"}])");
  const auto begin = std::chrono::steady_clock::now();  // a watchdog, no measure
  EXPECT_EQ(chat.locate("</s>").place, PromptPlace::template_text);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

// A short content must not be taken for the template's own words.
TEST(LocateParting, ShortContentsBehindTheirRole) {
  const Chat chat("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n",
                  R"([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])");
  EXPECT_EQ(chat.locate("s<|").role, "system");
  EXPECT_EQ(chat.locate("s<|").place, PromptPlace::message);
  EXPECT_TRUE(chat.locate("u<|").usual);
  EXPECT_FALSE(chat.locate("user").usual);
}

TEST(LocateParting, ContentsOfParts) {
  const Chat chat("<user>[one][two 7][three]</s><assistant>four</s><user>Hi",
                  R"([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two 7"},
                       {"type": "text", "text": "three"}]},
                      {"role": "assistant", "content": "four"}, {"role": "user", "content": "Hi"}])");
  const BrokenLine at = chat.locate("7");
  EXPECT_EQ(at.place, PromptPlace::message);
  EXPECT_EQ(at.role, "user");
  EXPECT_EQ(at.index, 0u);
  EXPECT_EQ(chat.line(at), "one][two 7][three");
  EXPECT_EQ(chat.locate("four").index, 1u);
}

TEST(LocateParting, PromptsThatAreNoChat) {
  const Chat prompt("first line\nsecond 7 line\nthird");
  const BrokenLine at = prompt.locate("7");
  EXPECT_EQ(at.place, PromptPlace::prompt);
  EXPECT_EQ(prompt.line(at), "second 7 line");
  EXPECT_EQ(at.part_begin, 11u);
  EXPECT_EQ(at.lost_tokens, std::string("7 line\nthird").size());
  EXPECT_FALSE(at.usual);
  EXPECT_EQ(prompt.line(prompt.locate("first")), "first line");
  // A line's end belongs to the line.
  EXPECT_EQ(prompt.line(prompt.locate("\nsecond")), "first line");
}

// Half of all prompts begin with "You are"; a chat's heading is everybody's.
TEST(LocateParting, AFewLettersAreNoCommonBeginning) {
  const Chat prompt("<s>You are 7.");
  EXPECT_FALSE(prompt.locate("7").usual);
  EXPECT_TRUE(prompt.locate("are").usual);
  const Chat chat("[s]I am a poet.[u]Hi",
                  R"([{"role": "s", "content": "I am a poet."}, {"role": "u", "content": "Hi"}])");
  EXPECT_TRUE(chat.locate("poet").usual);  // behind 7 bytes of its own
  EXPECT_FALSE(chat.locate("oet").usual);  // behind 8
  EXPECT_TRUE(chat.locate("s]").usual);
}

TEST(LocateParting, OddInputIsNoAccident) {
  for (const char* messages : {"", "[]", "{}", "[3]", "[{\"role\": 5, \"content\": [1]}]", "not json"}) {
    const Chat chat("abc", messages);
    EXPECT_EQ(
        locate_parting(chat.text, chat.ends, {.ids = chat.ids, .near = {.matched_tokens = 99}, .messages = messages})
            .lost_tokens,
        0u);
    EXPECT_EQ(locate_parting("", {}, {.ids = {}, .near = {}, .messages = messages}).line_end, 0u);
  }
}

TEST(PrefixBreakers, PutsALineTogether) {
  PrefixBreakers breakers({.keep_text = false, .secret = "s"}, byte_piece);
  // The first difference is in the day, then in the month: the same line.
  const Chat first = chat_on("2026-11-30"), second = chat_on("2026-12-01"), other = chat_on("2026-12-01", "Bye");
  EXPECT_TRUE(breakers.add(first.parted_at("30.")));
  EXPECT_TRUE(breakers.add(second.parted_at("2-01")));
  EXPECT_FALSE(breakers.add(other.parted_at("Bye")));
  EXPECT_EQ(breakers.seen(), 2u);
  EXPECT_EQ(breakers.near_misses(), 3u);
  const auto top = breakers.top(10);
  ASSERT_EQ(top.size(), 1u);
  EXPECT_EQ(top[0].count, 2u);
  EXPECT_EQ(top[0].role, "system");
  EXPECT_EQ(top[0].part_begin, 10u);
  EXPECT_EQ(top[0].line_bytes, std::string("Today is 2026-12-01.").size());
  EXPECT_EQ(top[0].position, second.text.find("2-01"));
  const std::string behind = ".\nBe brief.<|im_end|>\n<|im_start|>user\n";
  EXPECT_EQ(top[0].lost_tokens, 2 * behind.size() + 2 + 4);
}

TEST(PrefixBreakers, KeepsBeginningsApart) {
  PrefixBreakers breakers({}, byte_piece);
  for (const char* text : {"It is now Monday", "It is now Tuesday", "Your name: Ada"}) {
    const Chat prompt(text);
    breakers.add(prompt.parted_at(prompt.text.find("Mon") != std::string::npos   ? "Mon"
                                  : prompt.text.find("Tue") != std::string::npos ? "ue"
                                                                                 : "Ada"));
  }
  const auto top = breakers.top(10);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].count, 2u);
  EXPECT_EQ(top[1].count, 1u);
}

TEST(PrefixBreakers, NoTextUnlessAskedFor) {
  PrefixBreakers breakers({.keep_text = false, .secret = "s"}, byte_piece);
  breakers.add(chat_on("2026-11-30").parted_at("30."));
  breakers.add(chat_on("2026-12-01").parted_at("2-01"));
  const PrefixBreaker one = breakers.top(1).at(0);
  EXPECT_EQ(one.line + one.earlier_line + one.known_piece + one.rule, "");
  EXPECT_EQ(one.hash.size(), 12u);
}

TEST(PrefixBreakers, HashesAreKeyed) {
  const auto hash = [](const std::string& secret, const std::string& date) {
    PrefixBreakers breakers({.secret = secret}, byte_piece);
    breakers.add(chat_on(date).parted_at("\nBe brief"));
    return breakers.top(1).at(0).hash;
  };
  EXPECT_EQ(hash("a", "2026-11-30"), hash("a", "2026-11-30"));
  EXPECT_NE(hash("a", "2026-11-30"), hash("b", "2026-11-30"));
  EXPECT_NE(hash("a", "2026-11-30"), hash("a", "2026-11-29"));
}

TEST(PrefixBreakers, ProposesARuleFromTwoLines) {
  PrefixBreakers breakers({.keep_text = true, .secret = "s"}, byte_piece);
  breakers.add(chat_on("2026-11-30").parted_at("30.", '2'));
  EXPECT_EQ(breakers.top(1).at(0).line, "Today is 2026-11-30.");
  EXPECT_EQ(breakers.top(1).at(0).known_piece, "2");
  EXPECT_EQ(breakers.top(1).at(0).rule, "");
  breakers.add(chat_on("2026-12-01").parted_at("2-01", '1'));
  const PrefixBreaker one = breakers.top(1).at(0);
  EXPECT_EQ(one.line, "Today is 2026-12-01.");
  EXPECT_EQ(one.earlier_line, "Today is 2026-11-30.");
  EXPECT_EQ(one.known_piece, "1");
  EXPECT_EQ(one.rule, R"(move ^Today is \d{4}-\d{2}-\d{2}\.$)");
}

TEST(PrefixBreakers, LongLinesAreCutBetweenCharacters) {
  PrefixBreakers breakers({.keep_text = true}, byte_piece);
  std::string text = "x";
  for (int i = 0; i < 200; ++i) text += "\xc3\xa9";
  const Chat prompt(text + "!");
  breakers.add(prompt.parted_at("!"));
  std::string expected = "x";
  for (int i = 0; i < 119; ++i) expected += "\xc3\xa9";  // 239 bytes; one more character would pass 240
  EXPECT_EQ(breakers.top(1).at(0).line, expected + "\xe2\x80\xa6");
}

TEST(PrefixBreakers, KeepsTheCostliest) {
  PrefixBreakers breakers({.max_kept = 2}, byte_piece);
  const Chat often("often, often 7 and much behind it"), once("only once 7");
  breakers.add(often.parted_at("7"));
  breakers.add(often.parted_at("7"));
  for (int i = 0; i < 50; ++i) breakers.add(Chat("accident " + std::to_string(i) + "\n!").parted_at("!"));
  breakers.add(once.parted_at("7"));
  const auto top = breakers.top(10);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].count, 2u);
  EXPECT_EQ(top[0].lost_tokens, 2 * std::string("7 and much behind it").size());
  EXPECT_EQ(top[1].count, 1u);
  EXPECT_EQ(breakers.top(1).size(), 1u);
  EXPECT_EQ(breakers.seen(), 53u);
  breakers.clear();
  EXPECT_TRUE(breakers.top(10).empty());
}

TEST(PrefixBreakers, UnusualRolesAreNotPassedOn) {
  PrefixBreakers breakers({}, byte_piece);
  const Chat chat("<secret>some text 7 more</s><user>Hi",
                  R"([{"role": "secret", "content": "some text 7 more"}, {"role": "user", "content": "Hi"}])");
  breakers.add(chat.parted_at("7"));
  EXPECT_EQ(breakers.top(1).at(0).role, "other");
}

}  // namespace
}  // namespace kvarto

#include "server/reasoning_parser.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace kvarto {
namespace {

ReasoningDelta parse(std::string_view format, std::string_view prompt, const std::vector<std::string_view>& pieces) {
  ReasoningParser parser(**find_reasoning_format(format), prompt);
  ReasoningDelta whole;
  const auto add = [&](const ReasoningDelta& delta) {
    whole.reasoning += delta.reasoning;
    whole.content += delta.content;
  };
  for (const std::string_view piece : pieces) add(parser.push(piece));
  add(parser.finish());
  return whole;
}

struct Case {
  const char *format, *prompt, *text, *reasoning, *content;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"qwen3", "", "Hello.", "", "Hello."},
      {"qwen3", "", " \n", "", " \n"},
      {"qwen3", "", "<think>\nHm, 1 < 2.\n\nSo?\n</think>\n\nYes.\n", "Hm, 1 < 2.\n\nSo?", "Yes.\n"},
      {"qwen3", "", "\n <think>a</think>b<think>c</think>", "a", "b<think>c</think>"},
      {"qwen3", "", "Use <think> tags </think>.", "", "Use <think> tags </think>."},
      {"qwen3", "assistant\n<think>\n", "a\n</think>\nb", "a", "b"},
      {"qwen3", "assistant\n<think>\n\n</think>\n\n", "a</think>", "", "a</think>"},
      {"qwen3", "a user says <think>, assistant:", "a", "", "a"},
      {"qwen3", "", "<think>cut </thi", "cut </thi", ""},
      {"qwen3", "", "<think>cut\n\n", "cut\n\n", ""},
      {"qwen3", "", "<think></think>", "", ""},
      {"qwen3", "", "<thi", "", "<thi"},
      {"qwen3", "", "<think>a <</think>b", "a <", "b"},
      {"qwen3", "", "<think>\u65e5\u672c\u8a9e</think>\U0001F600", "\u65e5\u672c\u8a9e", "\U0001F600"},
      {"deepseek_r1", "", "why\n</think>\n\nbecause", "why", "because"},
      {"deepseek_r1", "<think>\n", "<think>why</think>because", "why", "because"},
      {"deepseek_r1", "", "never closed", "never closed", ""},
      {"deepseek_r1", "", "<thin", "<thin", ""},
      {"deepseek_r1", "<think>\n\n</think>", "straight", "", "straight"},
      {"think", "", "<think>a</think>b", "a", "b"},
      {"mistral", "", "[THINK]a [1][/THINK]b", "a [1]", "b"},
  };
  return kCases;
}

TEST(ReasoningParser, WholeTextsAndEveryCut) {
  for (const Case& c : cases()) {
    const std::string_view text = c.text;
    std::vector<std::string_view> bytes;
    for (size_t at = 0; at <= text.size(); ++at) {
      const ReasoningDelta got = parse(c.format, c.prompt, {text.substr(0, at), text.substr(at)});
      EXPECT_EQ(got.reasoning, c.reasoning) << c.text << " cut at " << at;
      EXPECT_EQ(got.content, c.content) << c.text << " cut at " << at;
      if (at < text.size()) bytes.push_back(text.substr(at, 1));
    }
    const ReasoningDelta got = parse(c.format, c.prompt, bytes);
    EXPECT_EQ(got.reasoning, c.reasoning) << c.text << " in bytes";
    EXPECT_EQ(got.content, c.content) << c.text << " in bytes";
  }
}

RC_GTEST_PROP(ReasoningParser, RandomTextsInRandomPieces, ()) {
  const auto fragment = rc::gen::element<std::string>("<think>", "</think>", "<", "</thi", "nk>", "\n", "\n\n", " ",
                                                      "word", std::string(70, '\n'), std::string(70, ' '));
  std::string text;
  for (const std::string& part : *rc::gen::container<std::vector<std::string>>(fragment)) text += part;
  const std::string format = *rc::gen::element<std::string>("deepseek_r1", "qwen3");
  const std::string prompt = *rc::gen::element<std::string>("", "<think>\n", "</think>\n\n");
  std::vector<std::string_view> pieces;
  for (std::string_view rest = text; !rest.empty();) {
    pieces.push_back(rest.substr(0, *rc::gen::inRange<size_t>(1, 9)));
    rest.remove_prefix(pieces.back().size());
  }
  const ReasoningDelta whole = parse(format, prompt, {text}), cut = parse(format, prompt, pieces);
  RC_ASSERT(whole.reasoning == cut.reasoning);
  RC_ASSERT(whole.content == cut.content);
}

TEST(ReasoningFormats, UnknownNameListsTheKnown) {
  const auto found = find_reasoning_format("gpt");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().message,
            "reasoning parser \"gpt\" is not known; known are deepseek_r1, qwen3, think, mistral");
}

}  // namespace
}  // namespace kvarto

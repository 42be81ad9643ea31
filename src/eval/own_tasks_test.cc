#include "eval/own_tasks.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

namespace kvarto {
namespace {

std::string refusal(const std::string& jsonl) {
  const Result<std::vector<Task>> tasks = parse_own_tasks(jsonl);
  return tasks ? "" : tasks.error().message;
}

TEST(OwnTasks, FieldsAndTheirDefaults) {
  const auto good = parse_own_tasks(
      "{\"prompt\": \"Capital of France?\"}\r\n"
      "\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"h\\u00e4\"}], \"answer\": \"Paris\", \"id\": \"q 1\", "
      "\"max_tokens\": 4096, \"stop\": [\"\\n\", \"END\"]}");
  ASSERT_TRUE(good) << good.error().message;
  ASSERT_EQ(good->size(), 2u);
  const Task& first = (*good)[0];
  EXPECT_EQ(first.id, "own-1");
  EXPECT_EQ(first.family, "own-agreement");
  EXPECT_EQ(first.skill, Skill::own);
  EXPECT_EQ(first.prompt, "Capital of France?");
  EXPECT_EQ(first.judge, Judge::agreement);
  EXPECT_EQ(first.max_tokens, 128u);
  EXPECT_TRUE(first.messages.empty() && first.answer.empty() && first.floor_prompt.empty() && first.stop.empty());
  EXPECT_FALSE(first.depth);
  const Task& second = (*good)[1];
  EXPECT_EQ(second.id, "q 1");
  EXPECT_EQ(second.messages, "[{\"role\":\"user\",\"content\":\"h\xc3\xa4\"}]");
  EXPECT_EQ(second.family, "own");
  EXPECT_EQ(second.skill, Skill::own);
  EXPECT_EQ(second.answer, "Paris");
  EXPECT_EQ(second.judge, Judge::contains);
  EXPECT_EQ(second.max_tokens, 4096u);
  EXPECT_EQ(second.stop, (std::vector<std::string>{"\n", "END"}));
  EXPECT_TRUE(second.prompt.empty());
}

TEST(OwnTasks, WhatIsWrongIsNamedWithItsLine) {
  const std::string good = "{\"prompt\": \"a\"}\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "there is no task"},
      {" \n\r\n", "there is no task"},
      {good + "[1]", "line 2: no JSON object"},
      {good + "\n{", "line 3: not JSON"},
      {"{}", "neither"},
      {R"({"prompt": "a", "messages": [{"role": "user", "content": "x"}]})", "exclude each other"},
      {R"({"prompt": "a", "prompt": "b"})", "\"prompt\" comes twice"},
      {R"({"prompt": "a", "anwser": "b"})", "there is no key \"anwser\""},
      {R"({"prompt": 1})", "\"prompt\" is not a text"},
      {R"({"prompt": null})", "\"prompt\" is not a text"},
      {R"({"prompt": ""})", "\"prompt\" is empty"},
      {R"({"prompt": "a", "answer": ""})", "\"answer\" is empty"},
      {R"({"prompt": "a", "answer": " \n\t"})", "\"answer\" is white space only"},
      {R"({"prompt": "a", "answer": ["b"]})", "\"answer\" is not a text"},
      {R"({"prompt": "a", "answer": 42})", "\"answer\" is not a text; write it in double quotes"},
      {R"({"prompt": "a", "id": 7})", "\"id\" is not a text"},
      {R"({"prompt": "a", "id": "x\ny"})", "control characters"},
      {"{\"prompt\": \"a\", \"id\": \"" + std::string(201, 'i') + "\"}", "200 bytes"},
      {R"({"prompt": "a", "max_tokens": 0})", "from 1 to 4096"},
      {R"({"prompt": "a", "max_tokens": 4097})", "from 1 to 4096"},
      {R"({"prompt": "a", "max_tokens": 2.5})", "from 1 to 4096"},
      {R"({"prompt": "a", "max_tokens": -1})", "from 1 to 4096"},
      {R"({"prompt": "a", "stop": "x"})", "\"stop\" is not an array"},
      {R"({"prompt": "a", "stop": [""]})", "\"stop\" is empty"},
      {R"({"prompt": "a", "stop": [3]})", "\"stop\" is not a text"},
      {R"({"messages": []})", "at least one message"},
      {R"({"messages": "hi"})", "at least one message"},
      {R"({"messages": ["hi"]})", "no object with role and content"},
      {R"({"messages": [{"role": "user"}]})", "\"content\" is missing"},
      {R"({"messages": [{"role": 1, "content": "x"}]})", "\"role\" is missing or not a text"},
      {R"({"messages": [{"role": "user", "content": "x", "name": "y"}]})", "the key \"name\""},
      {good + "{\"prompt\": \"\xff\"}", "line 2: no UTF-8 at byte 12"},
      {"{\"prompt\": \"a\", \"id\": \"x\"}\n{\"prompt\": \"b\", \"id\": \"x\"}",
       "line 2: the id \"x\" is that of line 1"},
      {"{\"prompt\": \"a\", \"id\": \"own-2\"}\n{\"prompt\": \"b\"}", "the id \"own-2\" is that of line 1"},
      {"{\"prompt\": " + std::string(100, '[') + std::string(100, ']') + "}", "deeper than 64"},
  };
  for (const auto& [jsonl, words] : cases) {
    const std::string message = refusal(jsonl);
    EXPECT_NE(message.find(words), std::string::npos) << jsonl.substr(0, 100) << "\n" << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(OwnTasks, SizesHaveBounds) {
  const std::string head = "{\"prompt\": \"", tail = "\"}";
  const std::string longest = head + std::string((size_t{1} << 20) - head.size() - tail.size(), 'x') + tail;
  EXPECT_EQ(refusal(longest), "");
  EXPECT_NE(refusal(longest + " ").find("line 1: longer than 1 MiB"), std::string::npos);
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += "{\"prompt\":\"a\"}\n";
  EXPECT_EQ(refusal(many), "");
  EXPECT_NE(refusal(many + "{\"prompt\":\"a\"}").find("line 100001: more than 100000"), std::string::npos);
}

RC_GTEST_PROP(OwnTasks, BytesOfAnyKindAreATaskOrAnError, (const std::vector<uint8_t>& bytes)) {
  const std::string text(bytes.begin(), bytes.end());
  for (const std::string& jsonl : {text, "{\"prompt\": \"" + text + "\"}", "{\"prompt\": " + text + "}"}) {
    const std::string message = refusal(jsonl);
    RC_ASSERT(message.find('\n') == std::string::npos);
  }
}

}  // namespace
}  // namespace kvarto

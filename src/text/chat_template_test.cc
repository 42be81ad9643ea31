#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

std::string render(const std::string& source, const Json& context) {
  auto t = ChatTemplate::parse(source);
  if (!t) return "parse: " + t.error().message;
  auto text = t->render(context);
  return text ? *text : "render: " + text.error().message;
}

std::string parse_error(const std::string& source) {
  auto t = ChatTemplate::parse(source);
  if (t) return "no error";
  EXPECT_EQ(t.error().code, ErrorCode::invalid_argument);
  return t.error().message;
}

Json user(const Json& content) { return {{"role", "user"}, {"content", content}}; }

const char* const kGuarded =
    "{{ bos_token }}{% for m in messages %}\n"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\n"
    "{{ raise_exception('Turns must alternate: user, assistant') }}\n"
    "{% endif %}\n"
    "[{{ m.role }}] {{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}\n"
    "{% endfor %}";

TEST(ChatTemplate, SyntaxErrorsNameLineAndWhatWasExpected) {
  EXPECT_EQ(parse_error("a\nb {{ x }\n"), "chat template, line 2: unexpected '}'");
  EXPECT_EQ(parse_error("\n\n{% if x %}\ny"),
            "chat template, line 4: the template ends, expected 'elif' or 'else' or 'endif'");
  EXPECT_EQ(parse_error("{% for x xs %}{% endfor %}"), "chat template, line 1: expected 'in', got 'xs'");
  EXPECT_EQ(parse_error("{{ 1 +\n }}"), "chat template, line 2: expected an expression, got '}}'");
  EXPECT_EQ(parse_error("x\n{% endfor %}").substr(0, 44), "chat template, line 2: unknown tag 'endfor',");
  EXPECT_EQ(parse_error("\n{{ x | shout }}"), "chat template, line 2: no filter named 'shout'");
  EXPECT_EQ(parse_error("\n{{ x is loud }}"), "chat template, line 2: no test named 'loud'");
  EXPECT_EQ(parse_error("{{ (1, 2] }}"), "chat template, line 1: unexpected ']', expected ')'");
  EXPECT_EQ(parse_error("{{ x"),
            "chat template, line 1: the template ends inside a tag that begins in line 1, expected '}}'");
  EXPECT_EQ(parse_error("{# x"), "chat template, line 1: missing '#}', the end of the comment");
  EXPECT_EQ(parse_error("{% include 'x' %}").substr(0, 45), "chat template, line 1: unknown tag 'include',");
}

TEST(ChatTemplate, RuntimeErrorsNameTheLine) {
  EXPECT_EQ(render("a\n{{ x.y }}", Json::object()), "render: chat template, line 2: 'x' is undefined");
  EXPECT_EQ(render("{{ m.a.b }}", {{"m", Json::object()}}),
            "render: chat template, line 1: 'dict object' has no attribute 'a'");
  EXPECT_EQ(render("\n\n{{ 'a' + 1 }}", Json::object()),
            "render: chat template, line 3: can only concatenate str (not \"int\") to str");
  EXPECT_EQ(render("{% macro m(x) %}\n\n{{ x.y }}{% endmacro %}\n{{ m() }}", Json::object()),
            "render: chat template, line 3: 'x' is undefined");
  EXPECT_EQ(render("x", Json::array({1})), "render: chat template, line 0: the context is not a JSON object");
}

TEST(ChatTemplate, RaisedWordsArriveOnOneLine) {
  EXPECT_EQ(render("\n{{ raise_exception('Two\nlines') }}", Json::object()),
            "render: chat template, line 2: Two lines");
}

// cases B21: what the template itself refuses comes with its own words.
TEST(ChatTemplate, AlternationGuard) {
  std::string wanted = "render: chat template, line 3: Turns must alternate: user, assistant";
  Json system = {{"role", "system"}, {"content", "late"}};
  EXPECT_EQ(render(kGuarded, {{"messages", {user("a"), user("b")}}, {"bos_token", "<s>"}}), wanted);
  EXPECT_EQ(render(kGuarded, {{"messages", {user("a"), system, user("b")}}, {"bos_token", "<s>"}}),
            "<s>[user] a[system] late[user] b");
  EXPECT_EQ(render(kGuarded, {{"messages", {system, user("b")}}, {"bos_token", "<s>"}}), wanted);
}

TEST(ChatTemplate, NullContentWithToolCallsThenToolTurn) {
  Json call = {{"role", "assistant"},
               {"content", nullptr},
               {"tool_calls", {{{"name", "f"}, {"arguments", {{"z", 1}, {"a", "ü"}}}}}}};
  Json tool = {{"role", "tool"}, {"content", "ok"}};
  std::string source =
      "{% for m in messages %}{{ m.role }}:{{ m.content if m.content is not none }}"
      "{% for c in m.tool_calls or [] %}{{ c.arguments | tojson }}{% endfor %};{% endfor %}";
  EXPECT_EQ(render(source, {{"messages", {user("x"), call, tool}}}),
            "user:x;assistant:{\"z\": 1, \"a\": \"ü\"};tool:ok;");
}

TEST(ChatTemplate, PartsEmptySystemAndBosOnce) {
  Json parts = Json::array({{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}});
  EXPECT_EQ(render("{% for m in messages %}{{ m.content | map(attribute='text') | join }}{% endfor %}",
                   {{"messages", {user(parts)}}}),
            "ab");
  EXPECT_EQ(
      render("{% if messages[0].content %}S{% endif %}x", {{"messages", {{{"role", "system"}, {"content", ""}}}}}),
      "x");
  EXPECT_EQ(render(kGuarded, {{"messages", {user("a")}}, {"bos_token", "<s>"}}), "<s>[user] a");
  EXPECT_EQ(render(kGuarded, {{"messages", Json::array()}, {"bos_token", "<s>"}}), "<s>");
}

TEST(ChatTemplate, ListsCanBeChangedInPlace) {
  EXPECT_EQ(
      render("{% set a = [1] %}{% set _ = a.append(2) %}{% set _ = a.extend([3]) %}{{ a.pop() }}{{ a.pop(0) }}{{ a }}",
             Json::object()),
      "31[2]");
  EXPECT_EQ(
      render("{% set d = {'a': 1} %}{% set _ = d.update({'b': 2}, c=3) %}{{ d.pop('a') }}{{ d }}", Json::object()),
      "1{'b': 2, 'c': 3}");
  Json context = {{"x", {1}}};
  EXPECT_EQ(render("{% set _ = x.append(2) %}{{ x }}", context), "[1, 2]");
  EXPECT_EQ(context["x"].size(), 1u);
}

TEST(ChatTemplate, KeepsItsSourceAndMoves) {
  auto t = ChatTemplate::parse("{{ x }}\r\n");
  ASSERT_TRUE(t);
  ChatTemplate moved = std::move(*t);
  EXPECT_EQ(moved.source(), "{{ x }}\r\n");
  EXPECT_EQ(moved.render({{"x", 1}}).value(), "1");
}

TEST(ChatTemplate, InvalidUtf8PassesThrough) {
  EXPECT_EQ(render("{{ x }}|{{ x|length }}|{{ x[1:] }}", {{"x", "a\xff\xc3"}}), "a\xff\xc3|3|\xff\xc3");
}

TEST(ChatTemplate, RendersFromManyThreads) {
  auto t = ChatTemplate::parse(
      "{% macro m(i) %}{{ i }}{% endmacro %}{% for i in range(50) %}{{ m(i) }}{{ x }},{% endfor %}");
  ASSERT_TRUE(t);
  std::string wanted = t->render({{"x", "é"}}).value();
  std::vector<std::thread> threads;
  std::atomic<int> same = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) same += t->render({{"x", "é"}}).value() == wanted;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(same, 80);
}

}  // namespace
}  // namespace kvarto

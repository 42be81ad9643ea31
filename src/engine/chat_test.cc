// From messages of the API to the text of a prompt. Expected texts are written by hand after what vLLM and transformers
// do with the same messages.
#include "engine/chat.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvarto {
namespace {

// Text only: joining a list to a text is an error.
const char* const kText =
    "{% for m in messages %}<{{ m.role }}>{{ '' + m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
// Parts or text.
const char* const kBoth =
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'text' %}[{{ part.text }}]{% endif %}{% endfor %}{% endif %}</>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
// Parts only.
const char* const kParts =
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}[{{ part['text'] }}]{% endfor %}</>{% endfor %}";

std::string render(const char* chat_template, ChatContext context) {
  const ChatRenderer renderer(chat_template, nullptr);
  const auto text = renderer.render(context);
  return text ? *text : "error: " + text.error().message;
}
std::string messages(const char* chat_template, std::string_view json) {
  return render(chat_template, {.messages = json, .add_generation_prompt = false});
}

TEST(Chat, PartsBecomeWhatTheTemplateWants) {
  const char* const parts =
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"input_text","text":"b"},"c"]}])";
  EXPECT_EQ(messages(kText, parts), "<user>a\nb\nc</>");
  EXPECT_EQ(messages(kBoth, parts), "<user>[a][b][c]</>");
  EXPECT_EQ(messages(kParts, parts), "<user>[a][b][c]</>");
  EXPECT_EQ(messages(kParts, R"([{"role":"user","content":"hi"}])"), "<user>[hi]</>");
  EXPECT_EQ(messages(kBoth, R"([{"role":"user","content":"hi"}])"), "<user>hi</>");
  EXPECT_EQ(render(kBoth, {.messages = parts, .add_generation_prompt = false, .content_format = ContentFormat::string}),
            "<user>a\nb\nc</>");
  EXPECT_EQ(render(kBoth, {.messages = R"([{"role":"user","content":"hi"}])",
                           .add_generation_prompt = false,
                           .content_format = ContentFormat::parts}),
            "<user>[hi]</>");
}

TEST(Chat, NullIsEmptyAndOtherPartsAreNamed) {
  EXPECT_EQ(messages(kText, R"([{"role":"user","content":""},{"role":"assistant","content":null}])"),
            "<user></><assistant></>");
  EXPECT_EQ(messages(kText, R"([{"role":"assistant"}])"), "<assistant></>");
  EXPECT_NE(messages(kText, R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])")
                .find(R"(messages[0].content[0] is of type "image_url")"),
            std::string::npos);
  EXPECT_NE(messages(kText, R"([{"role":"user","content":7}])").find("messages[0].content is neither"),
            std::string::npos);
  EXPECT_NE(messages(kText, R"([7])").find("messages[0] is not an object"), std::string::npos);
  EXPECT_NE(messages(kText, R"([])").find("at least one message"), std::string::npos);
  EXPECT_NE(messages(kText, R"({)").find("at least one message"), std::string::npos);
}

const char* const kCall =
    R"([{"role":"assistant","content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"b\": 1, \"a\": [2]}"}}]}])";

TEST(Chat, ArgumentsOfToolCallsAreObjectsWhereTheTemplateGoesOverThem) {
  EXPECT_EQ(messages("{% for m in messages %}{% for c in m.tool_calls %}{% for k, v in c.function.arguments.items() %}"
                     "{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}",
                     kCall),
            "b=1;a=[2];");
  EXPECT_EQ(messages("{{ messages[0].tool_calls[0].function.arguments | tojson }}", kCall), R"({"b": 1, "a": [2]})");
  // One that puts them into its text takes them as they came.
  EXPECT_EQ(messages("{{ 'call ' + messages[0].tool_calls[0].function.arguments }}", kCall),
            R"(call {"b": 1, "a": [2]})");
  EXPECT_EQ(messages("{{ messages[0].tool_calls[0].function.arguments }}",
                     R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"not json"}}]}])"),
            "not json");
}

TEST(Chat, VariablesReachTheTemplate) {
  const char* const all =
      "{{ tools is none }} {{ documents is none }} {{ tools | length if tools else 0 }} {{ enable_thinking }}";
  const char* const hi = R"([{"role":"user","content":"hi"}])";
  EXPECT_EQ(render(all, {.messages = hi, .kwargs = R"({"enable_thinking": false})"}), "True True 0 False");
  EXPECT_EQ(render(all, {.messages = hi, .tools = R"([{"a":1},{"b":2}])", .kwargs = R"({"enable_thinking": 3})"}),
            "False True 2 3");
  EXPECT_NE(render(all, {.messages = hi, .kwargs = R"({"messages": []})"}).find("may not set messages"),
            std::string::npos);
  EXPECT_NE(render(all, {.messages = hi, .kwargs = "[]"}).find("chat_template_kwargs"), std::string::npos);
  EXPECT_NE(render(all, {.messages = hi, .tools = "{}"}).find("tools are not a JSON array"), std::string::npos);
}

std::string continued(const char* chat_template, std::string_view content) {
  const std::string all =
      R"([{"role":"user","content":"Hi"},{"role":"assistant","content":")" + std::string(content) + R"("}])";
  return render(chat_template, {.messages = all, .add_generation_prompt = false, .continue_final_message = true});
}

TEST(Chat, TheLastMessageIsContinuedRightBehindItsText) {
  EXPECT_EQ(continued(kText, "Sure: Hi"), "<user>Hi</><assistant>Sure: Hi");
  EXPECT_EQ(continued(kText, "Hi"), "<user>Hi</><assistant>Hi");
  EXPECT_EQ(continued(kText, "Sure, "), "<user>Hi</><assistant>Sure, ");
  const char* const trims = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}";
  EXPECT_EQ(continued(trims, " Sure, "), "<user>Hi</><assistant>Sure,");
  EXPECT_NE(continued("{% for m in messages %}{{ m.role }}{% endfor %}", "Sure").find("does not show"),
            std::string::npos);
  EXPECT_NE(continued(kText, "").find("no text to continue"), std::string::npos);
  EXPECT_NE(render(kText, {.messages = R"([{"role":"user","content":"Hi"}])", .continue_final_message = true})
                .find("exclude each other"),
            std::string::npos);
  EXPECT_EQ(render(kBoth, {.messages = R"([{"role":"assistant","content":[{"type":"text","text":"a b"}]}])",
                           .add_generation_prompt = false,
                           .continue_final_message = true}),
            "<assistant>[a b");
}

TEST(Chat, ATemplateByTextReplacesTheModels) {
  const ChatRenderer renderer(kText, nullptr);
  const char* const hi = R"([{"role":"user","content":"hi"}])";
  for (int i = 0; i < 40; ++i) {  // more than are kept
    const std::string other = std::to_string(i) + "{{ messages[0].content }}";
    EXPECT_EQ(renderer.render({.messages = hi, .chat_template = other}).value(), std::to_string(i) + "hi");
    EXPECT_EQ(renderer.render({.messages = hi}).value(), "<user>hi</><assistant>");
  }
  const auto broken = renderer.render({.messages = hi, .chat_template = "\n{{ x"});
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message.find("line 2"), std::string::npos);
}

TEST(Chat, ABrokenTemplateIsNoticedBeforeItIsUsed) {
  const ChatRenderer broken("a\n\n{% if x %}", nullptr);
  ASSERT_FALSE(broken.check(""));
  EXPECT_NE(broken.check("").error().message.find("line 3"), std::string::npos);
  EXPECT_TRUE(broken.check("fine"));
  const ChatRenderer none("", nullptr);
  EXPECT_EQ(none.check("").error().code, ErrorCode::not_found);
}

TEST(Chat, TheTemplatesOwnWordsComeBack) {
  const char* const guarded =
      "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
      "{{ raise_exception('Turns must alternate') }}{% endif %}{{ m.content }}{% endfor %}";
  const auto text = messages(guarded, R"([{"role":"user","content":"a"},{"role":"user","content":"b"}])");
  EXPECT_NE(text.find("Turns must alternate"), std::string::npos);
}

TEST(Chat, ManyThreadsMayRender) {
  const ChatRenderer renderer(kText, nullptr);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&renderer, t] {
      for (int i = 0; i < 40; ++i) {
        const std::string own = std::to_string((t + i) % 20) + "{{ messages[0].content }}";
        const char* const hi = R"([{"role":"user","content":"hi"}])";
        EXPECT_TRUE(renderer.render({.messages = hi, .chat_template = i % 2 == 0 ? std::string_view() : own}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvarto

#include "server/tool_parser.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "text/unicode.h"

namespace kvarto {
namespace {

using Json = nlohmann::json;

ToolParserOptions options(size_t hold_bytes = 512) {
  return {[draw = uint64_t{1}]() mutable { return draw = draw * 6364136223846793005u + 1442695040888963407u; },
          hold_bytes};
}

std::unique_ptr<ToolParser> make(std::string_view format, size_t hold_bytes = 512) {
  const auto found = find_tool_format(format, "");
  EXPECT_TRUE(found);
  return (*found)->make(options(hold_bytes));
}

struct Streamed {
  Answer answer;
  std::vector<AnswerDelta> deltas;  // of each piece, then of the end
};

Streamed parse(std::string_view format, const std::vector<std::string_view>& pieces, size_t hold_bytes = 512) {
  const auto parser = make(format, hold_bytes);
  Streamed result;
  for (const std::string_view piece : pieces) result.deltas.push_back(parser->push(piece));
  result.deltas.push_back(parser->finish());
  for (const AnswerDelta& delta : result.deltas) result.answer.add(delta);
  EXPECT_EQ(parser->calls(), result.answer.calls.size());
  return result;
}

// "content | name(arguments) | name(arguments)"
std::string shown(const Answer& answer) {
  std::string out = answer.content;
  for (const ToolCall& call : answer.calls) out += " | " + call.name + "(" + call.arguments + ")";
  return out;
}

bool same(const Answer& a, const Answer& b) {
  if (a.content != b.content || a.calls.size() != b.calls.size()) return false;
  for (size_t i = 0; i < a.calls.size(); ++i) {
    if (a.calls[i].id != b.calls[i].id || a.calls[i].name != b.calls[i].name) return false;
    if (a.calls[i].arguments != b.calls[i].arguments) return false;
  }
  return true;
}

struct Case {
  const char* format;
  std::string text, want;
};

const std::vector<Case>& cases() {
  static const std::string kLong(600, 'x');
  static const std::vector<Case> kCases = {
      // --- hermes
      {"hermes", "", ""},
      {"hermes", "  plain, a < b and <tool_box> \n", "  plain, a < b and <tool_box> \n"},
      {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>", " | f({\"x\": 1})"},
      {"hermes", "I look.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n", "I look. | f({})"},
      {"hermes",
       "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\":\"g\",\"arguments\":{ \"a\" : "
       "[1 , "
       "2] }}\n</tool_call>",
       " | f({}) | g({ \"a\" : [1 , 2] })"},
      {"hermes", "a <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> b", "ab | f({})"},
      {"hermes", R"(<tool_call>{"arguments": {"s": "}\"</tool_call>{\\"}, "name": "f", "id": 7}</tool_call>)",
       R"( | f({"s": "}\"</tool_call>{\\"}))"},
      {"hermes", R"(<tool_call>{"name": "caf\u00e9 \"x\"", "arguments": "{\"a\": \"b\"}"}</tool_call>)",
       " | caf\u00e9 \"x\"({\"a\": \"b\"})"},
      {"hermes", R"(<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "now", "arguments": null})",
       " | now({}) | now({})"},
      {"hermes", R"(<tool_call>{"name": "f", "parameters": {"u": "日本語 😀"}})", R"( | f({"u": "日本語 😀"}))"},
      // broken: all of it is content
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}\n</tool_call>",
       "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}\n</tool_call>"},
      {"hermes", "<tool_call>{'name': 'f'}</tool_call>", "<tool_call>{'name': 'f'}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"argum", "<tool_call>{\"name\": \"f\", \"argum"},
      {"hermes", "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
       "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
       "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}",
       "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"name\": \"g\"}", "<tool_call>{\"name\": \"f\", \"name\": \"g\"}"},
      {"hermes", "<tool_call>f()</tool_call> <tool_call>", "<tool_call>f()</tool_call> <tool_call>"},
      {"hermes", "<tool_call>{“name”: 1}", "<tool_call>{“name”: 1}"},
      // a broken one hides no sound one
      {"hermes", R"(<tool_call>{"name": "f<tool_call>{"name":"g","arguments":{}}</tool_call>)",
       R"(<tool_call>{"name": "f | g({}))"},
      {"hermes", R"(<tool_call><tool_call>{"name":"g","arguments":{}}</tool_call>)", "<tool_call> | g({})"},
      {"hermes", R"(<tool_call>{"name":"g","arguments":{}}}</tool_call>)", "}</tool_call> | g({})"},
      // longer than what is held: a call as soon as it is sound so far
      {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"t\":\"" + kLong + "\"}}</tool_call> b",
       "b | f({\"t\":\"" + kLong + "\"})"},
      {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"t\":\"" + kLong + "\n\"}}",
       "\"}} | f({\"t\":\"" + kLong + ")"},
      {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"t\":\"" + kLong, " | f({\"t\":\"" + kLong + ")"},
      {"hermes", "<tool_call>{\"arguments\":{\"t\":\"" + kLong + "\"},\"name\":\"f\"}",
       "<tool_call>{\"arguments\":{\"t\":\"" + kLong + "\"},\"name\":\"f\"}"},
      {"hermes", "a" + std::string(100, '\n') + "b ", "a" + std::string(100, '\n') + "b "},
      // --- llama3_json
      {"llama3_json", " plain {\"name\": 1}", " plain {\"name\": 1}"},
      {"llama3_json", R"({"name": "f", "parameters": {"x": {"y": "}"}}})", R"( | f({"x": {"y": "}"}}))"},
      {"llama3_json", "\n<|python_tag|>{\"name\": \"f\", \"arguments\": {}}", " | f({})"},
      {"llama3_json",
       R"({"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": 1}};{"name": "h", "parameters": {}})",
       R"( | f({}) | g({"a": 1}) | h({}))"},
      {"llama3_json", R"(Let me see.<|python_tag|> {"name": "f", "parameters": {}} done; {"name": "g"})",
       R"(Let me see.done; {"name": "g"} | f({}))"},
      {"llama3_json", R"({"name": "Bob", "age": 5})", R"({"name": "Bob", "age": 5})"},
      {"llama3_json", R"({"answer": "<|python_tag|>"})", R"({"answer": "<|python_tag|>"})"},
      {"llama3_json", R"({"type": "function", "name": "f", "parameters": {}})", " | f({})"},
      {"llama3_json", R"({"name": "f", "parameters": {}}; and)", "; and | f({})"},
      {"llama3_json", R"(<|python_tag|>search.call(query="x"))", R"(<|python_tag|>search.call(query="x"))"},
      {"llama3_json", R"({"name": "f", "parameters": {}};)", "; | f({})"},
      {"llama3_json", "{", "{"},
      // --- mistral
      {"mistral", "see [1] and [TOOL]", "see [1] and [TOOL]"},
      {"mistral",
       R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}}, {"name": "g", "arguments": {}, "id": "abc"}] )",
       R"( | f({"a": "]"}) | g({}))"},
      {"mistral", R"([TOOL_CALLS][{"arguments": {}, "name": "f"}])", " | f({})"},
      {"mistral", R"(Sure. [TOOL_CALLS]get_weather{"city": "Oslo"})", R"(Sure. | get_weather({"city": "Oslo"}))"},
      {"mistral", R"([TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]ns.g[CALL_ID]abc123XYZ[ARGS] {})",
       R"( | f({"a": 1}) | ns.g({}))"},
      {"mistral", R"([TOOL_CALLS]{"name": "f", "arguments": {}})", " | f({})"},
      {"mistral", R"([TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": }])",
       R"(, {"name": "g", "arguments": }] | f({}))"},
      {"mistral", R"([TOOL_CALLS] [{"name": "f", "arguments": {}}, x)", ", x | f({})"},
      {"mistral", "[TOOL_CALLS] []", "[TOOL_CALLS] []"},
      {"mistral", "[TOOL_CALLS] no, I will not", "[TOOL_CALLS] no, I will not"},
      {"mistral", "[TOOL_CALLS]two words{}", "[TOOL_CALLS]two words{}"},
      {"mistral", "[TOOL_CALLS]f{\"a\": ", "[TOOL_CALLS]f{\"a\": "},
      {"mistral", "[TOOL_CALLS]f{\"a\": \"" + kLong, " | f({\"a\": \"" + kLong + ")"},
      {"mistral", "[TOOL_CALLS]" + kLong + "{}", "[TOOL_CALLS]" + kLong + "{}"},
      {"mistral", "[[TOOL_CALLS]f{}", "[ | f({})"},
  };
  return kCases;
}

TEST(ToolParser, WholeTexts) {
  for (const Case& c : cases()) {
    EXPECT_EQ(shown(parse(c.format, {c.text}).answer), c.want) << c.format << ": " << c.text;
  }
}

TEST(ToolParser, EveryCutIntoTwoAndIntoBytes) {
  for (const Case& c : cases()) {
    for (const size_t hold_bytes : {size_t{1}, size_t{45}, size_t{512}}) {
      const std::string_view text = c.text;
      const Answer whole = parse(c.format, {text}, hold_bytes).answer;
      std::vector<std::string_view> bytes;
      for (size_t at = 0; at < text.size(); ++at) {
        bytes.push_back(text.substr(at, 1));
        const Answer halves = parse(c.format, {text.substr(0, at), text.substr(at)}, hold_bytes).answer;
        ASSERT_TRUE(same(halves, whole)) << c.format << " cut at " << at << " of " << text << "\n" << shown(halves);
      }
      ASSERT_TRUE(same(parse(c.format, bytes, hold_bytes).answer, whole)) << c.format << ": " << text;
    }
  }
}

// Fragments that begin, end and break calls of every format, in any order.
std::string random_text() {
  const auto fragment = rc::gen::element<std::string>(
      "<tool_call>", "</tool_call>", "<tool_", "{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\\\"\"]}}",
      "{\"name\": \"g\", \"parameters\": {}}", "{\"name\": \"h\"", ", \"arguments\": ", "{\"k\": \"v\"}", "}", "\"",
      "; ", "[TOOL_CALLS]", "[TOOL_CALLS] [", ", ", "]", "fn", "[ARGS]", "{", "<|python_tag|>", "\n", " ", "word", "é😀",
      "<", "[");
  std::string text;
  for (const std::string& part : *rc::gen::container<std::vector<std::string>>(fragment)) text += part;
  return text;
}

RC_GTEST_PROP(ToolParser, RandomTextsInRandomPieces, ()) {
  const std::string text = random_text();
  const std::string format = *rc::gen::element<std::string>("hermes", "llama3_json", "mistral");
  const size_t hold_bytes = *rc::gen::element<size_t>(1, 16, 40, 512);
  std::vector<std::string_view> pieces;
  for (std::string_view rest = text; !rest.empty();) {
    size_t bytes = *rc::gen::inRange<size_t>(1, 12);
    while (bytes < rest.size() && (static_cast<uint8_t>(rest[bytes]) & 0xC0) == 0x80) ++bytes;
    pieces.push_back(rest.substr(0, bytes));
    rest.remove_prefix(pieces.back().size());
  }
  const Streamed streamed = parse(format, pieces, hold_bytes);
  const Answer whole = parse(format, {text}, hold_bytes).answer;
  RC_ASSERT(same(streamed.answer, whole));
  for (const AnswerDelta& delta : streamed.deltas) {
    RC_ASSERT(!find_invalid_utf8(delta.content));
    for (const ToolCallDelta& call : delta.calls) RC_ASSERT(!find_invalid_utf8(call.arguments));
  }
  if (whole.calls.empty()) RC_ASSERT(whole.content == text);
  // What fits whole into what is held is a sound call.
  if (hold_bytes == 512 && text.size() < 512) {
    for (const ToolCall& call : whole.calls) RC_ASSERT(Json::parse(call.arguments).is_object());
  }
}

TEST(ToolParser, HoldsNoMoreThanItSays) {
  const auto parser = make("hermes", 64);
  const std::string text = "<tool_call>{\"name\":\"f\",\"arguments\":{\"t\":\"" + std::string(500, 'x') + "\"}}";
  size_t given = 0, shown_bytes = 0;
  for (const char c : text) {
    const AnswerDelta delta = parser->push(std::string_view(&c, 1));
    ++given;
    for (const ToolCallDelta& call : delta.calls) shown_bytes += call.arguments.size();
    if (given > 64 && given + 1 < text.size()) {
      EXPECT_EQ(shown_bytes, given - std::string("<tool_call>{\"name\":\"f\",\"arguments\":").size());
    }
  }
}

TEST(ToolParser, DeltasNameACallOnce) {
  // Of 8 bytes nothing can begin a call: all is content.
  const std::string short_hold = "x <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
  EXPECT_EQ(shown(parse("hermes", {short_hold}, 8).answer), short_hold);

  const Streamed begun =
      parse("hermes", {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\"", ":1}", "}</tool_call>"}, 38);
  ASSERT_EQ(begun.deltas[0].calls.size(), 1u);
  EXPECT_EQ(begun.deltas[0].calls[0].name, "f");
  EXPECT_FALSE(begun.deltas[0].calls[0].id.empty());
  ASSERT_EQ(begun.deltas[1].calls.size(), 1u);
  EXPECT_EQ(begun.deltas[1].calls[0].id, "");
  EXPECT_EQ(begun.deltas[1].calls[0].name, "");
  EXPECT_EQ(begun.deltas[1].calls[0].arguments, ":1}");
  EXPECT_TRUE(begun.deltas[2].empty() && begun.deltas[3].empty());
}

TEST(ToolParser, Ids) {
  const auto ids = [](std::string_view format, const std::string& text) {
    std::vector<std::string> out;
    for (const ToolCall& call : parse(format, {text}).answer.calls) out.push_back(call.id);
    return out;
  };
  const auto plain = [](std::string_view text) {
    return text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") ==
           std::string_view::npos;
  };
  const auto mistral = ids("mistral", "[TOOL_CALLS]f{}[TOOL_CALLS]f{}");
  ASSERT_EQ(mistral.size(), 2u);
  EXPECT_NE(mistral[0], mistral[1]);
  for (const std::string& id : mistral) EXPECT_TRUE(id.size() == 9 && plain(id)) << id;
  const auto llama = ids("llama3_json", R"({"name": "f", "parameters": {}}; {"name": "f", "parameters": {}})");
  ASSERT_EQ(llama.size(), 2u);
  EXPECT_NE(llama[0], llama[1]);
  for (const std::string& id : llama) {
    EXPECT_TRUE(id.starts_with("call_") && id.size() == 29 && plain(id.substr(5))) << id;
  }
}

TEST(ToolFormats, FoundByNameAndByTemplate) {
  const auto name = [](std::string_view asked, std::string_view chat_template) {
    const auto found = find_tool_format(asked, chat_template);
    return found ? std::string((*found)->name) : found.error().message;
  };
  EXPECT_EQ(name("mistral", "<tool_call>"), "mistral");
  EXPECT_EQ(name("pythonic", ""),
            "tool call parser \"pythonic\" is not known; known are hermes, llama3_json, mistral, auto");
  EXPECT_NE(name("auto", "{{ messages }}").find("name one of hermes, llama3_json, mistral"), std::string::npos);
  const auto stored = [&](const std::string& file) {
    const auto text = read_file(std::string(KVARTO_SOURCE_DIR) + "/tests/golden/templates/" + file + ".jinja");
    EXPECT_TRUE(text) << file;
    return name("auto", *text);
  };
  for (const char* file : {"qwen2_5", "qwen3", "hermes_tools"}) EXPECT_EQ(stored(file), "hermes") << file;
  EXPECT_EQ(stored("llama3_1"), "llama3_json");
  for (const char* file : {"mistral_v3", "tekken"}) EXPECT_EQ(stored(file), "mistral") << file;
}

}  // namespace
}  // namespace kvarto

#include "server/json_scanner.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

namespace kvarto {
namespace {

using State = JsonScanner::State;

// Whether the scanner takes all of `text` and is complete with its last byte, and never before.
bool takes(std::string_view text) {
  JsonScanner scanner;
  for (size_t i = 0; i < text.size(); ++i) {
    const State state = scanner.push(text[i]);
    if (state == State::broken) return false;
    if (state == State::complete) return i + 1 == text.size();
  }
  return false;
}

TEST(JsonScanner, TakesWhatIsJson) {
  for (const char* text : {"{}", "[]", "[[],{}]", R"({"a":1})", R"({"a" : -0.5e+3 , "b":[true,false,null,"x\"}\\"]})",
                           R"(["\u00e9\n\/"])", "[0,-0,10,1.25,1e9,1E-9]", "[1\n]", R"({"":{"":{}}})"}) {
    EXPECT_TRUE(takes(text)) << text;
  }
}

TEST(JsonScanner, BreaksWhereJsonDoes) {
  for (const char* text : {"",
                           " {}",
                           "1",
                           "\"a\"",
                           "{",
                           "{}}",
                           "[1,]",
                           "{,}",
                           R"({"a"})",
                           R"({"a":})",
                           R"({"a":1,})",
                           R"({a:1})",
                           "{'a':1}",
                           "[01]",
                           "[1.]",
                           "[.5]",
                           "[-]",
                           "[1e]",
                           "[1e+]",
                           "[+1]",
                           "[tru]",
                           "[truee]",
                           "[None]",
                           "[nul]",
                           "[\"\n\"]",
                           R"(["\x"])",
                           R"(["\u12g4"])",
                           "[}",
                           R"({"a":1])",
                           "[1 2]",
                           R"(["a" "b"])",
                           "[\"a]"}) {
    EXPECT_FALSE(takes(text)) << text;
  }
}

TEST(JsonScanner, SixtyFourLevelsAndNoMore) {
  EXPECT_TRUE(takes(std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(takes(std::string(65, '[') + std::string(65, ']')));
}

// Sound texts with up to three bytes changed, taken out or put in. No 'd' among them: \ud8.. is a half of a character,
// of which the scanner knows nothing.
RC_GTEST_PROP(JsonScanner, AgreesWithAParser, ()) {
  std::string text =
      *rc::gen::element<std::string>(R"({"name":"f","arguments":{"a":[1,-2.5e3,"x\n\u00e9"],"b":null,"c":{"":true}}})",
                                     R"([0,[false,{}],"\\\""])", R"({ "k" : [ ] , "l" : 1 })");
  const std::string bytes = "{}[]\",:\\ u019eE+-.tfnals";
  for (int change = *rc::gen::inRange(0, 4); change > 0; --change) {
    const size_t at = *rc::gen::inRange<size_t>(0, text.size());
    const char byte = *rc::gen::elementOf(bytes);
    switch (*rc::gen::inRange(0, 3)) {
      case 0:
        text[at] = byte;
        break;
      case 1:
        text.insert(at, 1, byte);
        break;
      default:
        text.erase(at, 1);
    }
  }
  RC_PRE(!text.empty() && (text[0] == '{' || text[0] == '[') && (text.back() == '}' || text.back() == ']'));
  RC_ASSERT(takes(text) == nlohmann::json::accept(text));
}

}  // namespace
}  // namespace kvarto

#include "text/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvarto {
namespace {

std::string refusal(const std::string& text) {
  const auto json = parse_json(text);
  return json ? "" : json.error().message;
}

TEST(ParseJson, KeepsTheOrderOfKeys) {
  EXPECT_EQ(parse_json(R"({"b": [1, "x"], "a": null})")->dump(), R"({"b":[1,"x"],"a":null})");
}

TEST(ParseJson, RefusesDepthDoubleKeysAndWhatIsNoJson) {
  const auto nested = [](size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_EQ(refusal(nested(64)), "");
  EXPECT_NE(refusal(nested(65)).find("deeper than 64"), std::string::npos);
  EXPECT_NE(refusal(nested(100000)).find("deeper than 64"), std::string::npos);
  EXPECT_NE(refusal(std::string(100000, '[')).find("deeper than 64"), std::string::npos);  // never closed
  EXPECT_NE(refusal(R"({"a": 1, "a": 2})").find("\"a\" comes twice"), std::string::npos);
  EXPECT_EQ(refusal(R"([{"a": 1}, {"a": 2}])"), "");
  EXPECT_NE(refusal("[1e999]").find("floating point"), std::string::npos);
  for (const char* text : {"", "nonsense", "[1", "[NaN]", "[1] 2", "\"\xff\""}) EXPECT_NE(refusal(text), "") << text;
}

}  // namespace
}  // namespace kvarto

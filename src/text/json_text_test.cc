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
  EXPECT_NE(refusal(R"({"x": {"a": 1, "b": 2, "a": 1}})").find("\"a\" comes twice"), std::string::npos);
  for (const char* text : {"", "nonsense", "[1", "[NaN]", "[1] 2", "\"\xff\""}) EXPECT_NE(refusal(text), "") << text;
}

TEST(DumpJson, IsOneLineOfValidUtf8WhateverIsInIt) {
  nlohmann::ordered_json json = {{"b", "x\xF0\x9Fy\n"}, {"a", {1, nullptr}}};
  EXPECT_EQ(dump(json), "{\"b\":\"x\xEF\xBF\xBDy\\n\",\"a\":[1,null]}");
}

// Looking each key up among those before it would take 5 billion comparisons.
TEST(ParseJson, AHundredThousandKeysAreNoTrouble) {
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i)
    text += (i > 0 ? ",\"key" : "\"key") + std::to_string(i) + "\":" + std::to_string(i);
  const auto json = parse_json(text + "}");
  ASSERT_TRUE(json) << json.error().message;
  EXPECT_EQ(json->size(), 100'000u);
  EXPECT_EQ(json->begin().key(), "key0");
  EXPECT_EQ(json->back(), 99'999);
  EXPECT_NE(refusal(text + ",\"key777\":0}").find("\"key777\" comes twice"), std::string::npos);
}

}  // namespace
}  // namespace kvarto

#include "server/sse.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "text/stream_decoder.h"

namespace kvarto {
namespace {

using Json = nlohmann::json;

std::string quoted_json(std::string_view text) {
  std::string out = "before";
  append_json_string(out, text);
  EXPECT_TRUE(out.starts_with("before\""));
  return out.substr(6);
}

TEST(Sse, Events) {
  std::string out;
  append_sse_event(out, R"({"a":1})");
  append_sse_event(out, "two\nlines");
  append_sse_event(out, "");
  EXPECT_EQ(out, "data: {\"a\":1}\n\ndata: two\ndata: lines\n\ndata: \n\n");
}

TEST(Sse, EveryByteAndEveryPlaneOfUnicode) {
  std::string ascii;
  for (int c = 0; c < 128; ++c) ascii += static_cast<char>(c);
  const std::string wide = "\u00e9\u65e5\u672c \U0001F600\U0010FFFF\u2028\uFFFD";
  EXPECT_EQ(quoted_json(ascii), Json(ascii).dump());
  EXPECT_EQ(quoted_json(wide), Json(wide).dump());
  EXPECT_EQ(quoted_json(""), "\"\"");
}

TEST(Sse, InvalidBytesBecomeReplacementCharacters) {
  EXPECT_EQ(quoted_json("a\xFF"
                        "b\xC3"),
            "\"a\uFFFDb\uFFFD\"");
  EXPECT_EQ(quoted_json("\xED\xA0\x80\""), "\"\uFFFD\uFFFD\uFFFD\\\"\"");  // half of a pair is three wrong bytes
}

RC_GTEST_PROP(Sse, AnyBytesGiveJsonThatReadsAsTheirText, (const std::string& bytes)) {
  StreamDecoder decoder;  // independent code for the same practice
  std::string text = decoder.push(bytes);
  text += decoder.finish();
  RC_ASSERT(Json::parse(quoted_json(bytes)).get<std::string>() == text);
}

}  // namespace
}  // namespace kvarto

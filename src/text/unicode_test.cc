#include "text/unicode.h"

#include <gtest/gtest.h>

#include <chrono>

namespace kvarto {
namespace {

using Kind = Utf8Char::Kind;

TEST(Unicode, ReadsCharactersOfEveryLength) {
  const std::string text = "A\u00e9\u4e2d\U0001F600";
  const std::vector<char32_t> expected = {U'A', U'\u00e9', U'\u4e2d', U'\U0001F600'};
  size_t at = 0;
  for (char32_t want : expected) {
    const Utf8Char c = read_utf8(text, at);
    EXPECT_EQ(c.kind, Kind::valid);
    EXPECT_EQ(c.code_point, want);
    at += c.bytes;
  }
  EXPECT_EQ(at, text.size());
}

// Table 3-8 and 3-11 of the Unicode standard: maximal subparts.
TEST(Unicode, InvalidBytesAreMaximalSubparts) {
  const auto lengths = [](std::string_view text) {
    std::vector<int> result;
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = read_utf8(text, at);
      result.push_back(c.kind == Kind::valid ? 10 + c.bytes : c.kind == Kind::invalid ? c.bytes : -c.bytes);
      at += c.bytes;
    }
    return result;
  };
  EXPECT_EQ(lengths("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), (std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1, 11}));
  EXPECT_EQ(lengths("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), (std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1, 11}));
  EXPECT_EQ(lengths("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), (std::vector<int>{1, 1, 1, 1, 1, 11, 1, 1, 11}));
  EXPECT_EQ(lengths("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), (std::vector<int>{2, 1, 3, 2, 11}));
  EXPECT_EQ(lengths("\xF0\x9F\x98"), (std::vector<int>{-3}));
  EXPECT_EQ(lengths("\xE3"), (std::vector<int>{-1}));
}

TEST(Unicode, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("plain ASCII of more than eight bytes, then \u4e2d\u6587"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("0123456789\xFFxyz"), 10u);
  EXPECT_EQ(find_invalid_utf8("abc\xE4\xB8"), 3u);
  EXPECT_EQ(find_invalid_utf8("\xC3\xA9\xED\xA0\x80"), 2u);
}

TEST(Unicode, AppendIsTheInverseOfRead) {
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 257) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Char back = read_utf8(text, 0);
    ASSERT_EQ(back.kind, Kind::valid) << static_cast<uint32_t>(c);
    ASSERT_EQ(back.code_point, c);
    ASSERT_EQ(back.bytes, text.size());
  }
}

// Rows of NormalizationTest.txt.
TEST(Unicode, Nfc) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"plain", "plain"},
      {"e\u0301", "\u00e9"},
      {"\u1E0A\u0323", "\u1E0C\u0307"},
      {"D\u0307\u0323", "\u1E0C\u0307"},
      {"\u0958", "\u0915\u093C"},        // composition exclusion
      {"\u1112\u1161\u11AB", "\uD55C"},  // Hangul
      {"a\u0315\u0300\u05AE\u0300b", "\u00E0\u05AE\u0300\u0315b"},
      {"\u2126\u212B", "\u03A9\u00C5"},
      {"\U0001D15E", "\U0001D157\U0001D165"},
      {"\uFB01", "\uFB01"},  // compatibility forms stay
  };
  for (const auto& [text, nfc] : rows) {
    const auto got = to_nfc(text);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(*got, nfc) << text;
  }
}

TEST(Unicode, NfcOfManyCombiningMarksIsNotQuadratic) {
  std::string text = "a";
  std::string below;
  for (int i = 0; i < 100'000; ++i) {
    text += "\u0315\u0316";  // classes 232 and 220: every pair is out of order
    below += "\u0316";
  }
  const auto start = std::chrono::steady_clock::now();
  const auto got = to_nfc(text);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));  // quadratic: minutes
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->size(), text.size());
  EXPECT_EQ(got->substr(1, below.size()), below);
}

}  // namespace
}  // namespace kvarto

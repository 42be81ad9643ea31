#include "format/printable.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

TEST(Printable, TextStaysAsItIs) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("blk.0.attn_q.weight ~"), "blk.0.attn_q.weight ~");
  EXPECT_EQ(printable("\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80"), "\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80");
}

TEST(Printable, ControlsAndBrokenUtf8AreEscaped) {
  EXPECT_EQ(printable(std::string_view("a\0b\n\t\x7f", 6)), "a\\x00b\\x0a\\x09\\x7f");
  EXPECT_EQ(printable("\xc2\x85"), "\\xc2\\x85");           // a control above 0x7f
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");           // no UTF-8, and cut in the middle
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");           // over-long
}

TEST(Printable, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(printable("12345", 5), "12345");
  EXPECT_EQ(printable("123456", 5), "12345...");
  EXPECT_EQ(printable("1234\xc3\xa9", 5), "1234...");
  EXPECT_EQ(printable("123\n4", 5), "123...");
  EXPECT_EQ(printable(std::string(100000, 'x')).size(), 83u);
}

TEST(Printable, Quoted) { EXPECT_EQ(quoted("a\nb"), "\"a\\x0ab\""); }

}  // namespace
}  // namespace kvarto

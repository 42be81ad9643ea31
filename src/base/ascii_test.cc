#include "base/ascii.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

TEST(Ascii, OnlyItsLettersLoseTheirCase) {
  EXPECT_EQ(ascii_lower("AZaz09@[`{"), "azaz09@[`{");  // what stands before A and behind Z is no letter
  EXPECT_EQ(ascii_lower("\xC3\x84"), "\xC3\x84");
}

TEST(Ascii, EqualIgnoringCase) {
  EXPECT_TRUE(equal_ignoring_case("Content-Length", "cONTENT-lENGTH"));
  EXPECT_TRUE(equal_ignoring_case("", ""));
  EXPECT_FALSE(equal_ignoring_case("Host", "Hos"));
  EXPECT_FALSE(equal_ignoring_case("@", "`"));  // 32 apart, as letters are
  EXPECT_FALSE(equal_ignoring_case("\xC3\x84", "\xC3\xA4"));
}

}  // namespace
}  // namespace kvarto

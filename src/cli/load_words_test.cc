// Tokenizers of a few lines stand for the server's.
#include "cli/load_words.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace kvarto {
namespace {

uint32_t spaces(const std::string& text) { return static_cast<uint32_t>(std::ranges::count(text, ' ')); }

TEST(Filler, HitsLengthsWhereWordsAreTokens) {
  int asked = 0;
  const Result<Filler> filler = Filler::calibrate([&](const std::string& text) -> Result<uint32_t> {
    ++asked;
    return 5 + spaces(text);  // a template of four, the opening, the words
  });
  ASSERT_TRUE(filler);
  EXPECT_EQ(filler->overhead(), 5u);
  EXPECT_TRUE(filler->exact());
  EXPECT_LE(asked, 2);
  EXPECT_EQ(spaces(filler->words(1, 1000)), 1000u);
  EXPECT_EQ(filler->words(1, 0), "");
}

TEST(Filler, LeavesOutWordsOfSeveralTokens) {
  // "government", "information" and "community" are two tokens each here.
  const auto count = [](const std::string& text) -> uint32_t {
    uint32_t tokens = 1 + spaces(text);
    for (const char* word : {" government", " information", " community"}) {
      for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++tokens;
    }
    return tokens;
  };
  const Result<Filler> filler =
      Filler::calibrate([&](const std::string& text) -> Result<uint32_t> { return count(text); });
  ASSERT_TRUE(filler);
  EXPECT_TRUE(filler->exact());
  for (uint64_t id = 0; id < 50; ++id) EXPECT_EQ(count("The" + filler->words(id, 100)), 101u) << id;
}

TEST(Filler, FallsBackToTheAverage) {
  const auto bytes = [](const std::string& text) -> Result<uint32_t> { return static_cast<uint32_t>(text.size()); };
  const Result<Filler> filler = Filler::calibrate(bytes);
  ASSERT_TRUE(filler);
  EXPECT_FALSE(filler->exact());
  EXPECT_NEAR(static_cast<double>(filler->words(3, 6000).size()), 6000, 300);
}

TEST(Filler, RefusesAServerThatCountsNothing) {
  EXPECT_FALSE(Filler::calibrate([](const std::string&) -> Result<uint32_t> { return 3u; }));
  const Result<Filler> broken =
      Filler::calibrate([](const std::string&) -> Result<uint32_t> { return fail(ErrorCode::network, "no route"); });
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().message, "no route");
}

TEST(Filler, TextsFollowFromTheirIdAlone) {
  const auto count = [](const std::string& text) -> Result<uint32_t> { return 1 + spaces(text); };
  const Filler a = *Filler::calibrate(count), b = *Filler::calibrate(count);
  std::set<std::string> texts;
  for (uint64_t id = 0; id < 200; ++id) {
    EXPECT_EQ(a.words(id, 16), b.words(id, 16));
    EXPECT_TRUE(a.words(id, 32).starts_with(a.words(id, 16)));
    texts.insert(a.words(id, 16));
  }
  EXPECT_EQ(texts.size(), 200u);
}

}  // namespace
}  // namespace kvarto

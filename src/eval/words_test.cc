#include "eval/words.h"

#include <gtest/gtest.h>

#include <set>

#include "eval/sentences.h"

namespace kvarto {
namespace {

TEST(Words, ListsAreLongAndHoldNothingTwice) {
  const std::pair<Words, size_t> lists[] = {{first_names(), 64}, {last_names(), 64}, {objects(), 64},
                                            {adjectives(), 64},  {colours(), 16},    {places(), 64},
                                            {professions(), 64}, {departments(), 32}};
  for (const auto& [words, fewest] : lists) {
    EXPECT_GE(words.size(), fewest) << words.front();
    EXPECT_EQ(std::set<std::string_view>(words.begin(), words.end()).size(), words.size()) << words.front();
  }
}

TEST(Words, PatternsDifferAndHaveTwoSlotsAtLeast) {
  std::set<std::string_view> seen;
  for (const std::string_view pattern : sentence_patterns()) {
    EXPECT_TRUE(seen.insert(pattern).second) << pattern;
    size_t slots = 0;
    for (size_t at = pattern.find('{'); at != std::string_view::npos; at = pattern.find('{', at + 1)) {
      ASSERT_LT(at + 2, pattern.size()) << pattern;
      EXPECT_NE(std::string_view("nopcajdmq").find(pattern[at + 1]), std::string_view::npos) << pattern;
      EXPECT_EQ(pattern[at + 2], '}') << pattern;
      ++slots;
    }
    EXPECT_GE(slots, 2u) << pattern;
    EXPECT_EQ(pattern.find_first_of("0123456789\n"), std::string_view::npos) << pattern;
  }
}

TEST(Words, FilledAsksForEachSlot) {
  std::string slots;
  EXPECT_EQ(filled("a {x} b {y}{z", [&](char slot) { return slots += slot, std::string("<") + slot + ">"; }),
            "a <x> b <y>{z");
  EXPECT_EQ(slots, "xy");
}

TEST(Filler, SaysNothingTwice) {
  Filler filler{SplitMix(7)};
  std::set<std::string> seen;
  for (int i = 0; i < 3000; ++i) {
    const std::string sentence = filler.next();
    EXPECT_TRUE(seen.insert(sentence).second) << sentence;
    EXPECT_EQ(sentence.find_first_of("0123456789{}\n"), std::string::npos) << sentence;
    EXPECT_EQ(sentence.back(), '.') << sentence;
    EXPECT_TRUE(sentence.front() >= 'A' && sentence.front() <= 'Z') << sentence;
  }
}

TEST(Filler, PutsTheRightArticleInFront) {
  Filler filler{SplitMix(8)};
  for (int i = 0; i < 1000; ++i) {
    const std::string sentence = filler.next();
    for (const char vowel : std::string("aeio")) {
      EXPECT_EQ(sentence.find(std::string(" a ") + vowel), std::string::npos) << sentence;
    }
  }
}

TEST(Filler, ParagraphsHaveFourToSevenSentences) {
  const std::vector<std::string> pieces = filler_pieces(SplitMix(9), 500);
  ASSERT_EQ(pieces.size(), 500u);
  EXPECT_EQ(pieces.front().front(), ' ');
  size_t length = 0, paragraphs = 0;
  for (const std::string& piece : pieces) {
    if (piece.front() == '\n') {
      EXPECT_GE(length, 4u);
      EXPECT_LE(length, 7u);
      length = 0;
      ++paragraphs;
    } else {
      EXPECT_EQ(piece.front(), ' ');
    }
    ++length;
  }
  EXPECT_GE(paragraphs, 500u / 7);
}

TEST(Filler, StandsEvenlyBehindLines) {
  const std::vector<std::string> lines = {"a\n", "b\n", "c\n"}, five = {"1.", "2.", "3.", "4.", "5."};
  EXPECT_EQ(among_filler(lines, five, "#"), "a\n# 1.\nb\n# 2. 3.\nc\n# 4. 5.\n");
  EXPECT_EQ(among_filler(lines, std::span(five).first(1), "Note:"), "a\nb\nc\nNote: 1.\n");
  EXPECT_EQ(among_filler(lines, {}, "#"), "a\nb\nc\n");
}

TEST(Filler, SentencesAreThoseOfTheSameDraws) {
  Filler filler{SplitMix(4)};
  for (const std::string& sentence : filler_sentences(SplitMix(4), 30)) EXPECT_EQ(sentence, filler.next());
  EXPECT_EQ(filler_sentences(SplitMix(4), 30).size(), 30u);
}

TEST(Filler, SeedsGiveTheirOwnText) {
  EXPECT_EQ(filler_pieces(SplitMix(1), 40), filler_pieces(SplitMix(1), 40));
  EXPECT_NE(filler_pieces(SplitMix(1), 40), filler_pieces(SplitMix(2), 40));
}

}  // namespace
}  // namespace kvarto

#include "text/spm.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <chrono>
#include <limits>

#include "text/unicode.h"

namespace kvarto {
namespace {

using Ids = std::vector<TokenId>;
using Strings = std::vector<std::string>;

constexpr TokenId kBytes = 3;  // ids of <0x00> to <0xFF> follow <unk>, <s>, </s>

Vocabulary vocabulary(const std::vector<std::pair<std::string, float>>& pieces, bool bytes = true) {
  Vocabulary v;
  v.model = "llama";
  v.unk = 0;
  v.bos = 1;
  v.eos = 2;
  const auto add = [&](const std::string& token, float score, TokenKind kind) {
    v.tokens.push_back(token);
    v.scores.push_back(score);
    v.kinds.push_back(kind);
  };
  add("<unk>", 0, TokenKind::unknown);
  add("<s>", 0, TokenKind::control);
  add("</s>", 0, TokenKind::control);
  for (int b = 0; b < 256 && bytes; ++b) {
    const char* digits = "0123456789ABCDEF";
    add(std::string("<0x") + digits[b / 16] + digits[b % 16] + ">", 0, TokenKind::byte);
  }
  for (const auto& [piece, score] : pieces) add(piece, score, TokenKind::normal);
  return v;
}

void add_user_defined(Vocabulary& v, const std::string& token) {
  v.tokens.push_back(token);
  v.scores.push_back(0);
  v.kinds.push_back(TokenKind::user_defined);
}

std::shared_ptr<const Tokenizer> make(Vocabulary v) {
  auto made = Tokenizer::from_vocabulary(std::move(v));
  EXPECT_TRUE(made.has_value()) << made.error().message;
  return *made;
}

Strings spellings(const Tokenizer& t, const std::string& text, bool parse_special = true) {
  const auto ids = t.encode(text, {.parse_special = parse_special});
  EXPECT_TRUE(ids.has_value());
  Strings out;
  for (TokenId id : *ids) out.push_back(t.vocabulary().tokens[id]);
  return out;
}

TEST(Spm, HighestScoreFirstThenLeftmost) {
  Vocabulary v =
      vocabulary({{"▁", -9}, {"a", -9}, {"b", -9}, {"c", -9}, {"ab", -2}, {"bc", -1}, {"aa", -3}, {"▁a", -4}});
  const auto t = make(v);
  EXPECT_EQ(spellings(*t, "abc"), (Strings{"▁a", "bc"}));
  EXPECT_EQ(spellings(*t, "baa"), (Strings{"▁", "b", "aa"}));
  EXPECT_EQ(spellings(*t, "baaa"), (Strings{"▁", "b", "aa", "a"}));
  v.add_space_prefix = false;
  EXPECT_EQ(spellings(*make(v), "abc"), (Strings{"a", "bc"}));
}

TEST(Spm, BytesForWhatHasNoToken) {
  const auto t = make(vocabulary({{"▁", 0}, {"a", 0}}));
  EXPECT_EQ(*t->encode("a\u00e9"), (Ids{259, 260, kBytes + 0xC3, kBytes + 0xA9}));
  EXPECT_EQ(t->piece(kBytes + 0xC3), "\xC3");
  EXPECT_EQ(t->decode(*t->encode("a\u00e9")), "a\u00e9");
  // The spelling of a byte token is ordinary text.
  EXPECT_EQ(t->encode("<0x0A>")->size(), 7u);
}

TEST(Spm, UnknownTokenWhereThereAreNoBytes) {
  Vocabulary v = vocabulary({{"▁", 0}, {"a", 0}}, false);
  EXPECT_EQ(*make(v)->encode("a\u00e9a"), (Ids{3, 4, 0, 4}));
  EXPECT_EQ(make(v)->decode(Ids{3, 4, 0, 4}), "aa");
  v.unk.reset();
  EXPECT_EQ(*make(v)->encode("a\u00e9a"), (Ids{3, 4, 4}));
}

TEST(Spm, PrefixSpaceComesAndGoesOnce) {
  const auto t = make(vocabulary({{"▁", 0}, {"a", 0}, {"▁a", 1}}));
  EXPECT_EQ(spellings(*t, "a"), (Strings{"▁a"}));
  EXPECT_EQ(spellings(*t, " a"), (Strings{"▁", "▁a"}));
  EXPECT_EQ(t->decode(*t->encode("a")), "a");
  EXPECT_EQ(t->decode(*t->encode(" a")), " a");
  EXPECT_EQ(t->piece(261), " a");
  EXPECT_EQ(*t->encode(""), Ids{});
  // Behind a control token text begins anew, as if each part had been encoded by itself.
  EXPECT_EQ(spellings(*t, "<s>a</s>a"), (Strings{"<s>", "▁a", "</s>", "▁a"}));
  EXPECT_EQ(t->decode(*t->encode("<s>a"), true), "<s>a");
}

TEST(Spm, UserDefinedTokensAreCutOutOfTheMarkedText) {
  Vocabulary v = vocabulary({{"▁", 0}, {"a", 0}, {"b", 0}, {"ab", 1}, {"<b>", 5}});
  add_user_defined(v, "<b>");
  add_user_defined(v, "   ");
  const auto t = make(v);
  EXPECT_EQ(spellings(*t, "a<b>b", false), (Strings{"▁", "a", "<b>", "b"}));
  EXPECT_EQ(t->encode("<b>", {.parse_special = false})->back(), 264);
  // Three marks in a row, one of them the prefix.
  EXPECT_EQ(spellings(*t, "  a"), (Strings{"   ", "a"}));
  EXPECT_EQ(t->decode(*t->encode("x   a")), "x   a");
}

TEST(Spm, ControlTokensInPlainTextAreText) {
  const auto t = make(vocabulary({{"▁", 0}, {"<", 0}, {"s", 0}, {">", 0}}));
  EXPECT_EQ(spellings(*t, "<s>", false), (Strings{"▁", "<", "s", ">"}));
  EXPECT_EQ(*t->encode("<s>"), (Ids{1}));
}

TEST(Spm, BadVocabulariesAreErrors) {
  Vocabulary nan = vocabulary({{"a", std::numeric_limits<float>::quiet_NaN()}});
  EXPECT_NE(Tokenizer::from_vocabulary(nan).error().message.find("scores[259]"), std::string::npos);
  Vocabulary byte = vocabulary({{"a", 0}});
  byte.kinds.back() = TokenKind::byte;
  EXPECT_NE(Tokenizer::from_vocabulary(byte).error().message.find("tokens[259]"), std::string::npos);
  Vocabulary scores = vocabulary({{"a", 0}});
  scores.scores.pop_back();
  EXPECT_NE(Tokenizer::from_vocabulary(scores).error().message.find("tokenizer.ggml.scores"), std::string::npos);
}

TEST(Spm, WithoutKindsByteSpellingsAreBytes) {
  Vocabulary v = vocabulary({{"▁", 0}});
  v.kinds.clear();
  EXPECT_EQ(*make(v)->encode("a"), (Ids{259, kBytes + 'a'}));
}

// The definition, quadratic: again and again the best pair of the whole list.
Strings brute_force(const Vocabulary& v, const std::string& marked) {
  Strings parts;
  for (size_t at = 0; at < marked.size(); at += parts.back().size()) {
    parts.push_back(marked.substr(at, read_utf8(marked, at).bytes));
  }
  for (;;) {
    std::optional<float> best;
    size_t where = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = std::find(v.tokens.begin(), v.tokens.end(), parts[i] + parts[i + 1]);
      if (it == v.tokens.end()) continue;
      const float score = v.scores[static_cast<size_t>(it - v.tokens.begin())];
      if (!best || score > *best) best = score, where = i;
    }
    if (!best) return parts;
    parts[where] += parts[where + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(where) + 1);
  }
}

RC_GTEST_PROP(Spm, HeapMergesAsTheDefinitionDoes, ()) {
  // With and without tokens that cross the start of a word: both ways through the merge.
  const Strings symbols = {"▁", "a", "\u00e9"};
  std::vector<std::pair<std::string, float>> pieces;
  for (const std::string& s : symbols) pieces.emplace_back(s, -100.0f);
  const int count = *rc::gen::inRange(0, 15);
  for (int i = 0; i < count; ++i) {
    const std::string piece = pieces[*rc::gen::inRange<size_t>(0, pieces.size())].first +
                              pieces[*rc::gen::inRange<size_t>(0, pieces.size())].first;
    const auto known = std::any_of(pieces.begin(), pieces.end(), [&](const auto& p) { return p.first == piece; });
    if (!known) pieces.emplace_back(piece, static_cast<float>(*rc::gen::inRange(-5, 5)));
  }
  Vocabulary v = vocabulary(pieces);
  v.add_space_prefix = false;
  const Strings plain = {" ", "a", "\u00e9"};
  std::string text, marked;
  for (size_t i : *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, 3))) {
    text += plain[i];
    marked += symbols[i];
  }
  RC_ASSERT(spellings(*make(v), text) == brute_force(v, marked));
}

RC_GTEST_PROP(Spm, DecodeOfEncodeIsTheText, (const std::vector<uint32_t>& points)) {
  std::string text;
  for (uint32_t p : points) {
    const char32_t c = p % 3 == 0 ? U" ab\n"[p % 4] : p % 3 == 1 ? p % 0x3000 : p % 0x110000;
    append_utf8(text, (c >= 0xD800 && c <= 0xDFFF) || c == U'\u2581' ? U' ' : c);
  }
  for (const bool prefix : {true, false}) {
    Vocabulary v = vocabulary({{"▁", -3}, {"a", -3}, {"b", -3}, {"▁a", -1}, {"ab", -2}, {"▁▁", -1}});
    add_user_defined(v, "   ");
    v.add_space_prefix = prefix;
    const auto t = make(v);
    RC_ASSERT(t->decode(*t->encode(text, {.parse_special = false})) == text);
  }
}

TEST(Spm, LongTextsTakeNearLinearTime) {
  std::vector<std::pair<std::string, float>> pieces = {{"▁", -50}, {"a", -50}};
  std::string spaces = "▁", letters = "a";
  for (int i = 0; i < 6; ++i) {
    spaces += spaces;
    letters += letters;
    pieces.emplace_back(spaces, static_cast<float>(-i));
    pieces.emplace_back(letters, static_cast<float>(-i));
  }
  Vocabulary v = vocabulary(pieces);
  v.add_space_prefix = false;
  const auto t = make(v);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(t->encode(std::string(200'000, ' '))->size(), 200'000u / 64);
  EXPECT_EQ(t->encode(std::string(1 << 18, 'a'))->size(), (1u << 18) / 64);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

}  // namespace
}  // namespace kvarto

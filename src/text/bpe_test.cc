#include "text/bpe.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <chrono>

#include "text/unicode.h"

namespace kvarto {
namespace {

using Ids = std::vector<TokenId>;

// The byte-level alphabet in its published wording: the printable bytes, then the rest shifted to U+0100 in order.
std::vector<std::string> byte_alphabet() {
  std::vector<std::string> symbols(256);
  char32_t next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool hidden = b <= 32 || (b >= 127 && b <= 160) || b == 173;
    append_utf8(symbols[b], hidden ? next++ : static_cast<char32_t>(b));
  }
  return symbols;
}

// 256 bytes, then one token per merge.
Vocabulary byte_vocabulary(const std::string& pre, std::vector<std::string> merges) {
  Vocabulary v;
  v.model = "gpt2";
  v.pre = pre;
  v.tokens = byte_alphabet();
  for (const std::string& merge : merges) {
    std::string token = merge;
    token.erase(token.find(' '), 1);
    v.tokens.push_back(token);
  }
  v.merges = std::move(merges);
  return v;
}

std::shared_ptr<const Tokenizer> make(Vocabulary v) {
  auto made = Tokenizer::from_vocabulary(std::move(v));
  EXPECT_TRUE(made.has_value()) << made.error().message;
  return *made;
}

std::vector<std::string> spellings(const Tokenizer& t, const std::string& text) {
  const auto ids = t.encode(text);
  EXPECT_TRUE(ids.has_value());
  std::vector<std::string> out;
  for (TokenId id : *ids) out.push_back(t.vocabulary().tokens[id]);
  return out;
}

using Strings = std::vector<std::string>;

TEST(Bpe, LowestRankFirstThenLeftmost) {
  const auto t = make(byte_vocabulary("gpt-2", {"b c", "a b", "a a", "aa aa"}));
  EXPECT_EQ(spellings(*t, "abc"), (Strings{"a", "bc"}));
  EXPECT_EQ(spellings(*t, "abb"), (Strings{"ab", "b"}));
  EXPECT_EQ(spellings(*t, "aaa"), (Strings{"aa", "a"}));
  EXPECT_EQ(spellings(*t, "aaaaaaa"), (Strings{"aaaa", "aa", "a"}));
}

TEST(Bpe, NothingMergesAcrossPieces) {
  const auto t = make(byte_vocabulary("gpt-2", {"a Ġ", "Ġ b"}));
  EXPECT_EQ(spellings(*t, "a b"), (Strings{"a", "Ġb"}));
}

TEST(Bpe, PieceIsTheBytesOfTheText) {
  const auto t = make(byte_vocabulary("gpt-2", {"h i", "Ġ hi", "Ã ©"}));
  EXPECT_EQ(t->piece(*t->find("Ġhi")), " hi");
  EXPECT_EQ(t->piece(*t->find("Ã©")), "\u00e9");
  EXPECT_EQ(t->piece(0xF0), "\xF0");
  EXPECT_EQ(t->piece(-1), "");
  EXPECT_EQ(t->piece(1'000'000), "");
}

TEST(Bpe, WithoutMergesTheLowestIdWins) {
  Vocabulary v = byte_vocabulary("gpt-2", {});
  for (const char* token : {"bc", "ab", "abc", "abcabc"}) v.tokens.push_back(token);
  const auto t = make(std::move(v));
  EXPECT_EQ(spellings(*t, "abc"), (Strings{"abc"}));  // a + bc
  EXPECT_EQ(spellings(*t, "abb"), (Strings{"ab", "b"}));
  EXPECT_EQ(spellings(*t, "abcabcab"), (Strings{"abcabc", "ab"}));
}

TEST(Bpe, IgnoreMergesTakesWholePieces) {
  for (const auto& [pre, expected] : {std::pair<std::string, Strings>{"llama-bpe", {"dog"}}, {"gpt-2", {"do", "g"}}}) {
    Vocabulary v = byte_vocabulary(pre, {"d o"});
    v.tokens.push_back("dog");  // no merge leads here
    EXPECT_EQ(spellings(*make(std::move(v)), "dog"), expected) << pre;
  }
}

TEST(Bpe, BytesWithoutTokenVanishBeforeTheMerges) {
  Vocabulary v;
  v.model = "gpt2";
  v.pre = "gpt-2";
  v.tokens = {"!", "!!"};
  v.merges = {"! !"};
  EXPECT_EQ(*make(v)->encode("!?!"), (Ids{1}));
  EXPECT_EQ(*make(v)->encode("xyz"), Ids{});
}

TEST(Bpe, AddedTokensThatAreNotByteSymbolsDecodeAsTheyAre) {
  Vocabulary v = byte_vocabulary("gpt-2", {});
  v.tokens.push_back("<｜User｜>");
  const auto t = make(std::move(v));
  EXPECT_EQ(t->piece(256), "<｜User｜>");
}

TEST(Bpe, MalformedMergesAreErrorsUnknownOnesAWarning) {
  for (const char* merge : {"ab", "a ", "", " "}) {
    Vocabulary v = byte_vocabulary("gpt-2", {});
    v.merges = {"a b", merge};
    const auto made = Tokenizer::from_vocabulary(std::move(v));
    ASSERT_FALSE(made.has_value()) << merge;
    EXPECT_NE(made.error().message.find("merges[1]"), std::string::npos) << made.error().message;
  }
  Vocabulary v = byte_vocabulary("gpt-2", {"a b"});
  v.merges.push_back("ab zz");
  const auto t = make(std::move(v));
  ASSERT_EQ(t->warnings().size(), 1u);
  EXPECT_EQ(spellings(*t, "ab"), (Strings{"ab"}));
}

TEST(Bpe, Qwen2NormalisesToNfcBetweenSpecialTokens) {
  Vocabulary v = byte_vocabulary("qwen2", {"Ã ©"});
  v.tokens.push_back("<|x|>");
  v.kinds.assign(v.tokens.size(), TokenKind::normal);
  v.kinds.back() = TokenKind::control;
  const auto t = make(std::move(v));
  EXPECT_EQ(spellings(*t, "e\u0301"), (Strings{"Ã©"}));
  // '>' and U+0338 would compose to U+226F: the special token must be found first.
  EXPECT_EQ(t->encode("<|x|>\u0338")->front(), 257);
}

// The definition, quadratic: again and again the best pair of the whole list.
Strings brute_force(const Vocabulary& v, const std::string& word) {
  const Strings alphabet = byte_alphabet();
  Strings parts;
  for (char c : word) parts.push_back(alphabet[static_cast<uint8_t>(c)]);
  for (;;) {
    size_t best = v.merges.size(), where = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = std::find(v.merges.begin(), v.merges.end(), parts[i] + " " + parts[i + 1]);
      const auto rank = static_cast<size_t>(it - v.merges.begin());
      if (rank < best) best = rank, where = i;
    }
    if (best == v.merges.size()) return parts;
    parts[where] += parts[where + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(where) + 1);
  }
}

RC_GTEST_PROP(Bpe, HeapMergesAsTheDefinitionDoes, ()) {
  // Random merges that build on each other over a tiny alphabet.
  Strings symbols = {"a", "b", "c"}, merges;
  const int count = *rc::gen::inRange(0, 12);
  for (int i = 0; i < count; ++i) {
    const std::string left = *rc::gen::elementOf(symbols), right = *rc::gen::elementOf(symbols);
    if (std::find(merges.begin(), merges.end(), left + " " + right) != merges.end()) continue;
    merges.push_back(left + " " + right);
    symbols.push_back(left + right);
  }
  const Vocabulary v = byte_vocabulary("gpt-2", merges);
  const auto word = *rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c'));
  RC_ASSERT(spellings(*make(v), word) == brute_force(v, word));
}

RC_GTEST_PROP(Bpe, DecodeOfEncodeIsTheText, (const std::vector<uint32_t>& points)) {
  std::string text;
  for (uint32_t p : points) {
    const char32_t c = p % 3 == 0 ? p % 0x80 : p % 3 == 1 ? p % 0x3000 : p % 0x110000;
    append_utf8(text, c >= 0xD800 && c <= 0xDFFF ? U'x' : c);
  }
  for (const std::string& pre : PreTokenizer::known_names()) {
    static std::map<std::string, std::shared_ptr<const Tokenizer>> made;
    auto& t = made[pre];
    if (!t) t = make(byte_vocabulary(pre, {"Ġ a", "a b", "Ã ©", "Ġ Ġ", "1 2", "Ġa b"}));
    const auto ids = t->encode(text);
    RC_ASSERT(ids.has_value());
    RC_ASSERT(t->decode(*ids) == (pre == "qwen2" ? *to_nfc(text) : text));
  }
}

// A quadratic merge loop would need minutes here.
TEST(Bpe, LongPiecesTakeNearLinearTime) {
  Strings merges;
  std::string spaces = "Ġ", letters = "a";
  for (int i = 0; i < 6; ++i) {
    merges.push_back(spaces + " " + spaces);
    merges.push_back(letters + " " + letters);
    spaces += spaces;
    letters += letters;
  }
  const auto t = make(byte_vocabulary("gpt-2", merges));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(t->encode(std::string(200'000, ' '))->size(), 200'000u / 64);
  EXPECT_EQ(t->encode(std::string(1 << 18, 'a'))->size(), (1u << 18) / 64);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

}  // namespace
}  // namespace kvarto

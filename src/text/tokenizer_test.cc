// What both kinds of tokenizer share: special tokens, BOS rules, end tokens, checks, reading from GGUF.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvarto {
namespace {

using Ids = std::vector<TokenId>;

// Ids 0 to 94 are the printable ASCII characters, 95 the space.
Vocabulary ascii(const std::vector<std::pair<std::string, TokenKind>>& added = {}) {
  Vocabulary v;
  v.model = "gpt2";
  v.pre = "gpt-2";
  for (char c = '!'; c <= '~'; ++c) v.tokens.emplace_back(1, c);
  v.tokens.emplace_back("\u0120");
  v.kinds.assign(v.tokens.size(), TokenKind::normal);
  for (const auto& [token, kind] : added) {
    v.tokens.push_back(token);
    v.kinds.push_back(kind);
  }
  return v;
}
constexpr TokenId kAdded = 95;

std::shared_ptr<const Tokenizer> make(Vocabulary v) {
  auto made = Tokenizer::from_vocabulary(std::move(v));
  EXPECT_TRUE(made.has_value()) << made.error().message;
  return *made;
}

TEST(Tokenizer, SpecialTokensInText) {
  const auto t = make(ascii({{"<|a|>", TokenKind::control},
                             {"<|a|>b", TokenKind::control},
                             {"<u>", TokenKind::user_defined},
                             {"[PAD]", TokenKind::unused},
                             {"", TokenKind::control}}));
  const TokenId x = *t->find("x");
  EXPECT_EQ(*t->encode("x<|a|>x"), (Ids{x, kAdded, x}));
  EXPECT_EQ(*t->encode("<|a|>b<|a|>"), (Ids{kAdded + 1, kAdded}));  // the longest
  EXPECT_EQ(*t->encode("<u>"), (Ids{kAdded + 2}));
  EXPECT_EQ(t->encode("[PAD]")->size(), 5u);
  EXPECT_EQ(t->encode("<|a|")->size(), 4u);
  const EncodeOptions plain = {.parse_special = false};
  EXPECT_EQ(t->encode("x<|a|>x", plain)->size(), 7u);
  EXPECT_EQ(*t->encode("<u>", plain), (Ids{kAdded + 2}));
}

TEST(Tokenizer, PiecesOfSpecialTokens) {
  const auto t = make(ascii({{"<c>", TokenKind::control},
                             {"<unk>", TokenKind::unknown},
                             {"<u>", TokenKind::user_defined},
                             {"[PAD]", TokenKind::unused}}));
  EXPECT_EQ(t->decode(Ids{*t->find("a"), kAdded, kAdded + 1, kAdded + 2, kAdded + 3}), "a<u>");
  EXPECT_EQ(t->decode(Ids{kAdded, kAdded + 1, kAdded + 2, kAdded + 3, -5, 99999}, true), "<c><unk><u>[PAD]");
  EXPECT_TRUE(t->is_control(kAdded) && t->is_control(kAdded + 1));
  EXPECT_FALSE(t->is_control(kAdded + 2) || t->is_control(0) || t->is_control(-1) || t->is_control(99999));
}

TEST(Tokenizer, DuplicatesEncodeToTheTextToken) {
  const auto t = make(ascii({{"a", TokenKind::normal}, {"b", TokenKind::control}}));
  EXPECT_EQ(*t->encode("a"), (Ids{'a' - '!'}));
  EXPECT_EQ(t->find("b"), 'b' - '!');
  EXPECT_EQ(t->piece(kAdded), "a");
  EXPECT_EQ(t->find("nothing"), std::nullopt);
}

TEST(Tokenizer, InvalidUtf8IsAnErrorWithItsOffset) {
  const auto t = make(ascii());
  const auto ids = t->encode("0123456789\xFFz");
  ASSERT_FALSE(ids.has_value());
  EXPECT_EQ(ids.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(ids.error().message.find("byte 10"), std::string::npos) << ids.error().message;
}

TEST(Tokenizer, BadVocabulariesAreErrors) {
  const auto message = [](Vocabulary v) {
    const auto made = Tokenizer::from_vocabulary(std::move(v));
    EXPECT_FALSE(made.has_value());
    return made ? std::string() : made.error().message;
  };
  const auto says = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  Vocabulary v = ascii();
  v.tokens.pop_back();
  EXPECT_PRED2(says, message(v), "token_type has 95 entries for 94 tokens");
  v = ascii();
  v.tokens.clear();
  EXPECT_PRED2(says, message(v), "tokens is empty");
  v = ascii();
  v.model = "bert";
  EXPECT_PRED2(says, message(v), "\"bert\"");
  v = ascii();
  v.pre = "pre-x";
  EXPECT_PRED2(says, message(v), "\"pre-x\"");
  v = ascii();
  v.bos = 95;
  EXPECT_PRED2(says, message(v), "bos_token_id = 95");
  v = ascii();
  v.eos = -1;
  EXPECT_PRED2(says, message(v), "eos_token_id = -1");
}

TEST(Tokenizer, MissingPreAndOddPadAreWarnings) {
  Vocabulary v = ascii();
  v.pre = "";
  v.pad = 4000;
  const auto t = make(v);
  ASSERT_EQ(t->warnings().size(), 2u);
  EXPECT_NE(t->warnings()[0].find("padding_token_id = 4000"), std::string::npos);
  EXPECT_NE(t->warnings()[1].find("tokenizer.ggml.pre is missing"), std::string::npos);
  EXPECT_EQ(t->vocabulary().pad, std::nullopt);
}

// B24: a BOS only by the model's own rules, and never twice.
TEST(Tokenizer, BeginningOfSequence) {
  const EncodeOptions with = {.add_bos = true};
  const TokenId x = 'x' - '!';
  struct Case {
    const char* model;
    const char* pre;
    std::optional<TokenId> bos;
    std::optional<bool> add_bos;
    bool wants;
  };
  const std::vector<Case> cases = {
      {"gpt2", "gpt-2", std::nullopt, std::nullopt, false},  // never id 1 or 11 by default
      {"gpt2", "llama-bpe", std::nullopt, std::nullopt, false},
      {"gpt2", "llama-bpe", std::nullopt, true, false},
      {"llama", "", std::nullopt, std::nullopt, false},
      {"gpt2", "gpt-2", kAdded, std::nullopt, false},
      {"gpt2", "gpt-2", kAdded, true, true},
      {"gpt2", "llama-bpe", kAdded, std::nullopt, true},
      {"gpt2", "tekken", kAdded, std::nullopt, true},
      {"gpt2", "llama-bpe", kAdded, false, false},
      {"llama", "", kAdded, std::nullopt, true},
      {"llama", "", kAdded, false, false},
  };
  for (const Case& c : cases) {
    Vocabulary v = ascii({{"<s>", TokenKind::control}});
    v.model = c.model;
    v.pre = c.pre;
    v.bos = c.bos;
    v.add_bos = c.add_bos;
    v.add_space_prefix = false;
    v.scores.assign(v.tokens.size(), 0);
    const auto t = make(v);
    EXPECT_EQ(t->wants_bos(), c.wants) << c.model << c.pre;
    EXPECT_EQ(*t->encode("x"), (Ids{x}));
    EXPECT_EQ(*t->encode("x", with), c.wants ? (Ids{kAdded, x}) : (Ids{x}));
    EXPECT_EQ(*t->encode("", with), c.wants ? (Ids{kAdded}) : Ids{});
    EXPECT_EQ(*t->encode("<s>x", with), (Ids{kAdded, x}));  // a template that prints it, or a raw prompt
    EXPECT_EQ(t->begins_with_bos("<s>x"), c.bos.has_value());
    EXPECT_FALSE(t->begins_with_bos("x<s>"));
  }
  Vocabulary v = ascii();
  v.add_bos = true;
  EXPECT_EQ(make(v)->warnings().size(), 1u);  // wanted but not there
}

TEST(Tokenizer, StopIds) {
  Vocabulary v = ascii({{"<|im_start|>", TokenKind::control},
                        {"<|im_end|>", TokenKind::control},
                        {"<|endoftext|>", TokenKind::control},
                        {"</s>", TokenKind::user_defined},  // a tag, as in Gemma
                        {"<|eot_id|>", TokenKind::normal}});
  EXPECT_EQ(make(v)->stop_ids(), (Ids{kAdded + 1, kAdded + 2}));
  v.eos = kAdded + 2;
  v.eot = 7;
  EXPECT_EQ(make(v)->stop_ids(), (Ids{7, kAdded + 1, kAdded + 2}));
  EXPECT_EQ(make(ascii())->stop_ids(), Ids{});
  // Where an answer has parts, the end of a part is not the end.
  EXPECT_EQ(make(ascii({{"<|end|>", TokenKind::control}}))->stop_ids(), (Ids{kAdded}));
  EXPECT_EQ(make(ascii({{"<|end|>", TokenKind::control}, {"<|return|>", TokenKind::control}}))->stop_ids(),
            (Ids{kAdded + 1}));
}

TEST(Tokenizer, ManyThreadsUseOne) {
  const auto t = make(ascii({{"<c>", TokenKind::control}}));
  const Ids expected = *t->encode("some words <c> and more");
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) right += *t->encode("some words <c> and more") == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

// Writes the header and key-values of a GGUF file without tensors.
class GgufBytes {
 public:
  void string(const std::string& key, const std::string& value) { begin(key, 8), text(value); }
  void u32(const std::string& key, uint32_t value) { begin(key, 4), raw(value); }
  void boolean(const std::string& key, bool value) { begin(key, 7), raw(static_cast<uint8_t>(value)); }
  void strings(const std::string& key, const std::vector<std::string>& values) {
    begin(key, 9), raw(uint32_t{8}), raw(uint64_t{values.size()});
    for (const std::string& v : values) text(v);
  }
  void i32s(const std::string& key, const std::vector<int32_t>& values) {
    begin(key, 9), raw(uint32_t{5}), raw(uint64_t{values.size()});
    for (int32_t v : values) raw(v);
  }
  std::shared_ptr<const GgufFile> parse() {
    file_ = "GGUF";
    std::string head;
    std::swap(head, body_);
    raw(uint32_t{3}), raw(uint64_t{0}), raw(count_);
    file_ += body_ + head;
    file_.resize((file_.size() + 31) / 32 * 32);
    const auto parsed = GgufFile::parse(std::as_bytes(std::span(file_.data(), file_.size())));
    EXPECT_TRUE(parsed.has_value()) << parsed.error().message;
    return *parsed;
  }

 private:
  template <typename T>
  void raw(T value) {
    body_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(const std::string& value) { raw(uint64_t{value.size()}), body_ += value; }
  void begin(const std::string& key, uint32_t type) { text(key), raw(type), ++count_; }
  std::string body_, file_;
  uint64_t count_ = 0;
};

GgufBytes small_file() {
  GgufBytes g;
  g.string("tokenizer.ggml.model", "gpt2");
  g.string("tokenizer.ggml.pre", "llama-bpe");
  g.strings("tokenizer.ggml.tokens", {"a", "b", "ab", "<|s|>", "</s>"});
  g.strings("tokenizer.ggml.merges", {"a b"});
  return g;
}

TEST(Tokenizer, FromGguf) {
  GgufBytes g = small_file();
  g.i32s("tokenizer.ggml.token_type", {1, 1, 0, 3, 3});
  g.u32("tokenizer.ggml.bos_token_id", 3);
  g.u32("tokenizer.ggml.eos_token_id", 4);
  g.u32("tokenizer.ggml.padding_token_id", 0xFFFFFFFF);
  const auto file = g.parse();
  const auto t = Tokenizer::from_gguf(*file);
  ASSERT_TRUE(t.has_value()) << t.error().message;
  EXPECT_EQ(*(*t)->encode("ab<|s|>", {.add_bos = true}), (Ids{3, 2, 3}));
  EXPECT_EQ((*t)->stop_ids(), (Ids{4}));
  EXPECT_EQ((*t)->warnings().size(), 1u);  // the pad id
}

TEST(Tokenizer, FromGgufWithoutBosKey) {
  GgufBytes g = small_file();
  const auto file = g.parse();
  const auto t = Tokenizer::from_gguf(*file);
  ASSERT_TRUE(t.has_value()) << t.error().message;
  EXPECT_FALSE((*t)->wants_bos());
  EXPECT_EQ(*(*t)->encode("ab", {.add_bos = true}), (Ids{2}));
}

TEST(Tokenizer, FromGgufErrorsNameTheKey) {
  const auto message = [](GgufBytes& g) {
    const auto file = g.parse();
    const auto t = Tokenizer::from_gguf(*file);
    EXPECT_FALSE(t.has_value());
    return t ? std::string() : t.error().message;
  };
  const auto says = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  GgufBytes empty;
  EXPECT_PRED2(says, message(empty), "tokenizer.ggml.model is missing");
  GgufBytes no_tokens;
  no_tokens.string("tokenizer.ggml.model", "gpt2");
  EXPECT_PRED2(says, message(no_tokens), "tokenizer.ggml.tokens is missing");
  GgufBytes no_merges;
  no_merges.string("tokenizer.ggml.model", "gpt2");
  no_merges.strings("tokenizer.ggml.tokens", {"a"});
  EXPECT_PRED2(says, message(no_merges), "tokenizer.ggml.merges is missing");
  GgufBytes kind = small_file();
  kind.i32s("tokenizer.ggml.token_type", {1, 1, 1, 9, 3});
  EXPECT_PRED2(says, message(kind), "token_type[3] = 9");
  GgufBytes eos = small_file();
  eos.u32("tokenizer.ggml.eos_token_id", 5);
  EXPECT_PRED2(says, message(eos), "eos_token_id = 5");
}

}  // namespace
}  // namespace kvarto

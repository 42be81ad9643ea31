#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace kvarto {
namespace {

std::vector<std::string> split(const PreTokenizer& pre, const std::string& text) {
  const auto pieces = pre.split(text);
  EXPECT_TRUE(pieces.has_value());
  return {pieces->begin(), pieces->end()};
}

// Expected pieces come from another regex engine (tools/make_pre_tokenizer_golden).
TEST(PreTokenizer, SplitsAsAnotherEngineDoes) {
  const auto text = read_file(KVARTO_SOURCE_DIR "/tests/golden/pre_tokenizer_splits.json");
  ASSERT_TRUE(text.has_value());
  const auto golden = nlohmann::json::parse(*text);
  ASSERT_EQ(golden.size(), 8u);
  for (const auto& [name, cases] : golden.items()) {
    const auto pre = PreTokenizer::create(name);
    ASSERT_TRUE(pre.has_value()) << name;
    ASSERT_GT(cases.size(), 50u);
    for (const auto& expected : cases) {
      const auto pieces = expected.get<std::vector<std::string>>();
      std::string whole;
      for (const std::string& piece : pieces) whole += piece;
      EXPECT_EQ(split(*pre, whole), pieces) << name << ": " << nlohmann::json(whole).dump(-1, ' ', true);
    }
  }
}

TEST(PreTokenizer, AliasesAndRules) {
  for (const char* name : {"llama-bpe", "llama3", "llama-v3"}) {
    const auto pre = PreTokenizer::create(name);
    ASSERT_TRUE(pre.has_value()) << name;
    EXPECT_TRUE(pre->rules().bos_by_default && pre->rules().ignore_merges && !pre->rules().nfc);
    EXPECT_EQ(split(*pre, "12345"), (std::vector<std::string>{"123", "45"}));
  }
  EXPECT_TRUE(PreTokenizer::create("qwen2")->rules().nfc);
  EXPECT_FALSE(PreTokenizer::create("qwen2")->rules().bos_by_default);
  EXPECT_TRUE(PreTokenizer::create("tekken")->rules().ignore_merges);
  EXPECT_FALSE(PreTokenizer::create("gpt-2")->rules().bos_by_default);
}

TEST(PreTokenizer, UnknownNameIsAnErrorThatListsTheKnownOnes) {
  const auto pre = PreTokenizer::create("falcon");
  ASSERT_FALSE(pre.has_value());
  EXPECT_EQ(pre.error().code, ErrorCode::unsupported);
  EXPECT_NE(pre.error().message.find("\"falcon\""), std::string::npos);
  for (const std::string& name : PreTokenizer::known_names()) {
    EXPECT_NE(pre.error().message.find(name), std::string::npos) << name;
  }
}

TEST(PreTokenizer, MatchLimitIsAnError) {
  const auto pre = PreTokenizer::create("gpt-2", 1);
  ASSERT_TRUE(pre.has_value());
  const auto pieces = pre->split(std::string(100, ' ') + "word and word");
  ASSERT_FALSE(pieces.has_value());
  EXPECT_NE(pieces.error().message.find("limit"), std::string::npos) << pieces.error().message;
}

// Long runs that make a backtracking engine go over them again and again.
TEST(PreTokenizer, LongRunsTakeLinearTime) {
  const std::vector<std::string> texts = {
      std::string(300'000, ' '), std::string(300'000, ' ') + "x", std::string(300'000, '\n') + "x",
      std::string(300'000, 'A'), std::string(300'000, 'a'),       std::string(300'000, '7'),
      std::string(300'000, '.'), std::string(300'000, '\x01'),
  };
  for (const std::string& name : PreTokenizer::known_names()) {
    const auto pre = PreTokenizer::create(name);
    ASSERT_TRUE(pre.has_value());
    for (const std::string& text : texts) {
      const auto start = std::chrono::steady_clock::now();
      const auto pieces = pre->split(text);
      EXPECT_TRUE(pieces.has_value()) << name << (pieces ? "" : pieces.error().message);
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << name << " on " << text.back();
    }
  }
}

TEST(PreTokenizer, EmptyText) { EXPECT_TRUE(PreTokenizer::create("gpt-2")->split("")->empty()); }

}  // namespace
}  // namespace kvarto

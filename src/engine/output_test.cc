#include "engine/output.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

// Tokens 0 to 25 are the letters, 26 the two bytes of an e with acute cut in half (26 and 27), 28 ends a text.
std::shared_ptr<const Tokenizer> letters() {
  Vocabulary v;
  v.model = "gpt2";
  v.pre = "gpt-2";
  for (char c = 'a'; c <= 'z'; ++c) v.tokens.push_back(std::string(1, c));
  v.tokens.push_back("\xC3\x83");  // byte C3 in the byte-level alphabet
  v.tokens.push_back("\xC2\xA9");  // byte A9
  v.tokens.push_back("<|endoftext|>");
  v.kinds.assign(v.tokens.size(), TokenKind::normal);
  v.kinds.back() = TokenKind::control;
  v.eos = 28;
  auto made = Tokenizer::from_vocabulary(std::move(v));
  if (!made) throw std::runtime_error(made.error().message);
  return *made;
}

class OutputTest : public ::testing::Test {
 protected:
  // Pushes letters until it ends; returns what was shown, with | between tokens.
  std::string run(const std::vector<TokenId>& ids) {
    rules_.params = &params_;
    output_ = std::make_unique<Output>(rules_, false);
    std::string shown;
    pushed_.clear();
    for (const TokenId id : ids) {
      pushed_.push_back(id);
      shown += output_->push({.token = id}) + "|";
      if (output_->finish_reason() != FinishReason::none) break;
    }
    return shown;
  }
  static std::vector<TokenId> word(std::string_view text) {
    std::vector<TokenId> ids;
    for (const char c : text) ids.push_back(c == '.' ? 28 : c - 'a');
    return ids;
  }

  std::shared_ptr<const Tokenizer> tokenizer_ = letters();
  SamplingParams params_{.max_tokens = 100};
  OutputRules rules_{
      .tokenizer = tokenizer_.get(), .params = nullptr, .stop_ids = {28}, .prompt_tokens = 10, .max_model_len = 1000};
  std::unique_ptr<Output> output_;
  std::vector<TokenId> pushed_;
};

TEST_F(OutputTest, StopTokenEndsWithoutItsText) {
  EXPECT_EQ(run(word("ab.cd")), "a|b||");
  EXPECT_EQ(output_->finish_reason(), FinishReason::stop);
  const SampleResult result = output_->take(pushed_);
  EXPECT_EQ(result.text, "ab");
  EXPECT_EQ(result.tokens, word("ab."));
  EXPECT_EQ(result.finish, FinishReason::stop);
}

TEST_F(OutputTest, LengthEndsAndAStopOnTheLastTokenIsAStop) {
  params_.max_tokens = 3;
  EXPECT_EQ(run(word("abcd")), "a|b|c|");
  EXPECT_EQ(output_->finish_reason(), FinishReason::length);
  run(word("ab."));
  EXPECT_EQ(output_->finish_reason(), FinishReason::stop);
  params_.stop = {"bc"};
  EXPECT_EQ(run(word("abcd")), "a|||");
  EXPECT_EQ(output_->finish_reason(), FinishReason::stop);
  params_ = {.max_tokens = 100};
  rules_.max_model_len = 12;
  run(word("abcd"));
  EXPECT_EQ(pushed_.size(), 2u);
  EXPECT_EQ(output_->finish_reason(), FinishReason::length);
}

TEST_F(OutputTest, StopStringsAreHeldBackAndCutOff) {
  params_.stop = {"lo", "lx"};
  EXPECT_EQ(run(word("helplo")), "h|e||lp|||");
  SampleResult result = output_->take(pushed_);
  EXPECT_EQ(result.text, "help");
  EXPECT_EQ(result.stop_string, "lo");
  params_.include_stop_str_in_output = true;
  run(word("helplo"));
  EXPECT_EQ(output_->take(pushed_).text, "helplo");
  // What was held back comes when the text ends otherwise.
  params_.max_tokens = 3;
  EXPECT_EQ(run(word("hell")), "h|e|l|");
}

TEST_F(OutputTest, StopStringsDoNotCountBeforeMinTokens) {
  params_.stop = {"b"};
  params_.min_tokens = 2;
  EXPECT_EQ(run(word("abcbd")), "a|b|c||");
  EXPECT_EQ(output_->take(pushed_).text, "abc");
}

TEST_F(OutputTest, CharactersAreNeverShownInHalves) {
  EXPECT_EQ(run({0, 26, 27, 1, 28}), "a||\xC3\xA9|b||");
  params_.max_tokens = 2;
  EXPECT_EQ(run({0, 26}), "a|\xEF\xBF\xBD|");
}

TEST_F(OutputTest, EndedFromOutsideItKeepsItsText) {
  params_.stop = {"zz"};
  run(word("abz"));
  EXPECT_EQ(output_->end(FinishReason::cancelled), "z");
  const SampleResult result = output_->take(pushed_);
  EXPECT_EQ(result.text, "abz");
  EXPECT_EQ(result.finish, FinishReason::cancelled);
}

TEST_F(OutputTest, SpecialTokensAreShownWhenAskedForButNotTheStop) {
  rules_.stop_ids = {25};  // z
  EXPECT_EQ(run(word("a.bz")), "a||b||");
  params_.skip_special_tokens = false;
  EXPECT_EQ(run(word("a.bz")), "a|<|endoftext|>|b||");
  EXPECT_EQ(output_->take(pushed_).text, "a<|endoftext|>b");
  rules_.stop_ids = {28};
  EXPECT_EQ(run(word("ab.")), "a|b||");
  params_.include_stop_str_in_output = true;
  EXPECT_EQ(run(word("ab.")), "a|b|<|endoftext|>|");
  params_.skip_special_tokens = true;
  EXPECT_EQ(run(word("ab.")), "a|b||");
  rules_.stop_ids = {25};
  EXPECT_EQ(run(word("abz")), "a|b|z|");
}

TEST_F(OutputTest, WhatStoppedItIsSaid) {
  rules_.stop_ids = {25, 28};
  run(word("az"));
  SampleResult result = output_->take(pushed_);
  EXPECT_EQ(result.stop_token, 25);
  EXPECT_FALSE(result.stop_was_eos);
  run(word("a."));
  result = output_->take(pushed_);
  EXPECT_EQ(result.stop_token, 28);
  EXPECT_TRUE(result.stop_was_eos);
  params_.ignore_eos = true;  // then it is only one of the request's own
  run(word("a."));
  EXPECT_FALSE(output_->take(pushed_).stop_was_eos);
  params_.stop = {"b"};
  run(word("ab"));
  EXPECT_EQ(output_->result().stop_string, "b");
  EXPECT_FALSE(output_->result().stop_token);
}

}  // namespace
}  // namespace kvarto

#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "engine/rng.h"

namespace kvarto {
namespace {

// Known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, MatchesTheKnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, DrawsAreUniformAndKeyedByAllThree) {
  double sum = 0.0;
  for (uint64_t i = 0; i < 4000; ++i) {
    const double u = uniform_draw(7, 0, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / 4000.0, 0.5, 0.02);
  EXPECT_NE(uniform_draw(7, 0, 1), uniform_draw(8, 0, 1));
  EXPECT_NE(uniform_draw(7, 0, 1), uniform_draw(7, 1, 1));
  EXPECT_NE(uniform_draw(7, 0, 1), uniform_draw(7, 0, 2));
  EXPECT_NE(uniform_draw(7, 0, 1), uniform_draw(7 + (1ull << 32), 0, 1));
}

// How often each token comes at 4000 positions.
std::map<TokenId, double> shares(const SamplingParams& params, std::span<const float> logits) {
  Sampler sampler;
  std::map<TokenId, double> counts;
  std::vector<TokenId> tokens = {0};
  for (int i = 0; i < 4000; ++i) {
    const auto chosen =
        sampler.sample(logits, {.params = &params, .stop_ids = {}, .seed = 3, .tokens = tokens, .prompt_tokens = 1});
    counts[chosen->token] += 1.0 / 4000.0;
    tokens.push_back(0);
  }
  return counts;
}

TokenId one(const SamplingParams& params, std::span<const float> logits, SampleContext context = {}) {
  Sampler sampler;
  context.params = &params;
  const auto chosen = sampler.sample(logits, context);
  EXPECT_TRUE(chosen);
  return chosen ? chosen->token : -1;
}

const std::vector<float> kRow = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};

TEST(Sampler, ZeroTemperatureIsArgmaxWithTheLowestIdOnTies) {
  SamplingParams p{.temperature = 0.0f};
  EXPECT_EQ(one(p, kRow), 1);
  EXPECT_EQ(one(p, std::vector<float>{1.0f, 3.0f, 3.0f, 3.0f}), 1);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  auto s = shares({.temperature = 1.0f}, kRow);
  EXPECT_NEAR(s[0], 0.1, 0.03);
  EXPECT_NEAR(s[1], 0.4, 0.03);
  EXPECT_NEAR(s[2], 0.2, 0.03);
  EXPECT_NEAR(s[3], 0.3, 0.03);
  // Temperature 0.5 squares the probabilities: 1, 16, 4, 9 of 30.
  s = shares({.temperature = 0.5f}, kRow);
  EXPECT_NEAR(s[0], 1.0 / 30.0, 0.03);
  EXPECT_NEAR(s[1], 16.0 / 30.0, 0.03);
}

TEST(Sampler, FiltersKeepWhatTheyShould) {
  const auto kept = [](const SamplingParams& p) {
    std::string ids;
    for (const auto& [id, share] : shares(p, kRow)) ids += std::to_string(id);
    return ids;
  };
  EXPECT_EQ(kept({.top_k = 1}), "1");
  EXPECT_EQ(kept({.top_k = 3}), "123");
  EXPECT_EQ(kept({.top_k = 99}), "0123");
  EXPECT_EQ(kept({.top_k = -1}), "0123");
  EXPECT_EQ(kept({.top_p = 0.39f}), "1");
  EXPECT_EQ(kept({.top_p = 0.41f}), "13");  // 0.4 is not yet 0.41
  EXPECT_EQ(kept({.top_p = 0.95f}), "0123");
  EXPECT_EQ(kept({.top_p = 1e-9f}), "1");  // never nothing
  EXPECT_EQ(kept({.min_p = 0.6f}), "13");  // 0.3 / 0.4 stays, 0.2 / 0.4 goes
  EXPECT_EQ(kept({.min_p = 1.0f}), "1");
  // After top_k 2 the two left are 4/7 and 3/7, so top_p 0.5 keeps one: top_p works on what top_k left.
  EXPECT_EQ(kept({.top_p = 0.5f, .top_k = 2}), "1");
  EXPECT_EQ(kept({.top_p = 0.6f, .top_k = 2}), "13");
  // min_p comes first: it leaves two, of which top_k takes nothing more away.
  EXPECT_EQ(kept({.top_k = 3, .min_p = 0.6f}), "13");
}

TEST(Sampler, TopKOnTiesTakesTheLowestIds) {
  const std::vector<float> flat(8, 0.5f);
  for (const auto& [id, share] : shares({.top_k = 3}, flat)) EXPECT_LT(id, 3);
}

TEST(Sampler, BiasPenaltiesAndMinTokensChangeTheRowInOrder) {
  const std::vector<float> row = {1.0f, 2.0f, -1.0f, 1.5f};
  SamplingParams p{.temperature = 0.0f};
  p.logit_bias = {{2, 100000.0f}};  // clamped to 100
  EXPECT_EQ(one(p, row), 2);
  p.logit_bias = {{1, -100.0f}};
  EXPECT_EQ(one(p, row), 3);

  // Repetition divides positive and multiplies negative logits, over prompt and output: 2.0 / 2 < 1.5.
  p = {.temperature = 0.0f, .repetition_penalty = 2.0f};
  const std::vector<TokenId> tokens = {1, 1, 2};
  EXPECT_EQ(one(p, row, {.params = nullptr, .stop_ids = {}, .tokens = tokens, .prompt_tokens = 2}), 3);

  // Frequency counts, presence does not; only output: 2.0 - 2 x 0.2 - 0.3 = 1.3 < 1.5, once it would be 1.5.
  p = {.temperature = 0.0f, .frequency_penalty = 0.2f, .presence_penalty = 0.3f};
  const std::unordered_map<TokenId, uint32_t> twice = {{1, 2}}, none;
  EXPECT_EQ(
      one(p, row, {.params = nullptr, .stop_ids = {}, .tokens = tokens, .prompt_tokens = 1, .output_counts = &twice}),
      3);
  EXPECT_EQ(
      one(p, row, {.params = nullptr, .stop_ids = {}, .tokens = tokens, .prompt_tokens = 3, .output_counts = &none}),
      1);

  // Stop tokens are out until min_tokens are there.
  p = {.min_tokens = 2, .temperature = 0.0f};
  const std::vector<TokenId> stops = {1};
  EXPECT_EQ(one(p, row, {.params = nullptr, .stop_ids = stops, .tokens = tokens, .prompt_tokens = 2}), 3);
  EXPECT_EQ(one(p, row, {.params = nullptr, .stop_ids = stops, .tokens = tokens, .prompt_tokens = 1}), 1);
}

TEST(Sampler, LogprobsAreOfTheRawRow) {
  SamplingParams p{.temperature = 0.0f, .logprobs = 2};
  p.logit_bias = {{0, 50.0f}};
  Sampler sampler;
  const auto chosen = sampler.sample(kRow, {.params = &p});
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->token, 0);
  EXPECT_NEAR(*chosen->logprob, std::log(0.1), 1e-6);
  ASSERT_EQ(chosen->top.size(), 2u);
  EXPECT_EQ(chosen->top[0].token, 1);
  EXPECT_NEAR(chosen->top[0].logprob, std::log(0.4), 1e-6);
  EXPECT_EQ(chosen->top[1].token, 3);
  const std::vector<TokenId> banned = {1};
  const auto best = sampler.best(kRow, 2, banned);
  ASSERT_TRUE(best);
  EXPECT_EQ((*best)[0].token, 3);
  EXPECT_NEAR((*best)[0].logprob, std::log(0.3), 1e-6);  // of the whole row
  EXPECT_EQ((*best)[1].token, 2);
}

TEST(Sampler, RowsWithoutADistributionAreErrors) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Sampler sampler;
  SamplingParams p;
  EXPECT_FALSE(sampler.sample(std::vector<float>{0.0f, std::nanf("")}, {.params = &p}));
  EXPECT_FALSE(sampler.sample(std::vector<float>{0.0f, kInf}, {.params = &p}));
  EXPECT_FALSE(sampler.sample(std::vector<float>{-kInf, -kInf}, {.params = &p}));
  EXPECT_FALSE(sampler.best(std::vector<float>{std::nanf("")}, 1, {}));
  EXPECT_EQ(one(p, std::vector<float>{-kInf, 0.0f}), 1);
  EXPECT_EQ(one({.top_p = 0.5f}, std::vector<float>{-3e38f, 3e38f}), 1);
  // A minimum length with nothing but stop tokens cannot be met.
  p.min_tokens = 1;
  const std::vector<TokenId> stops = {0, 1};
  EXPECT_FALSE(sampler.sample(std::vector<float>{0.0f, 0.0f}, {.params = &p, .stop_ids = stops}));
}

TEST(Sampler, OnlyAllowedIdsAreChosen) {
  SamplingParams p{.temperature = 0.0f, .allowed_token_ids = {2, 0}};
  EXPECT_EQ(one(p, kRow), 2);
  auto s = shares({.allowed_token_ids = {0, 3}}, kRow);
  EXPECT_NEAR(s[0], 0.25, 0.03);
  EXPECT_NEAR(s[3], 0.75, 0.03);
  EXPECT_EQ(s.size(), 2u);
}

// A word's last id is held back where the output ends with the others; the prompt does not count.
TEST(Sampler, BadWordsDoNotComeToTheirEnd) {
  SamplingParams p{.temperature = 0.0f, .bad_words = {{1}}};
  EXPECT_EQ(one(p, kRow), 3);
  p.bad_words = {{2, 0, 1}};
  const std::vector<TokenId> tokens = {2, 0, 2, 0};
  EXPECT_EQ(one(p, kRow, {.tokens = tokens, .prompt_tokens = 2}), 3);
  EXPECT_EQ(one(p, kRow, {.tokens = tokens, .prompt_tokens = 3}), 1);
  EXPECT_EQ(one(p, kRow, {.tokens = std::span(tokens).first(3), .prompt_tokens = 0}), 1);
}

TEST(Sampler, WhenNothingIsLeftTheRequestIsToBlame) {
  SamplingParams p{.temperature = 0.0f, .allowed_token_ids = {1}, .bad_words = {{1}}};
  Sampler sampler;
  const auto chosen = sampler.sample(kRow, {.params = &p});
  ASSERT_FALSE(chosen);
  EXPECT_EQ(chosen.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(chosen.error().message.find("allowed_token_ids"), std::string::npos);
}

// Probabilities 0.1, 0.4, 0.2, 0.3; a bias of log 2 on id 0 makes them 2, 4, 2, 3 elevenths. At temperature 0.5 they
// are squared: 4, 16, 4, 9 of 33. top_k 2 leaves 1 and 3: 16 and 9 of 25.
TEST(Sampler, LogprobsAreOfTheKindAskedFor) {
  SamplingParams p{.temperature = 0.5f, .top_k = 2, .logit_bias = {{0, std::log(2.0f)}}, .logprobs = 3};
  Sampler sampler;
  const auto logprobs = [&](LogprobsMode mode) {
    const auto chosen = sampler.sample(kRow, {.params = &p, .seed = 3, .logprobs_mode = mode});
    std::map<TokenId, double> all;
    for (const TokenLogprob& t : chosen->top) all[t.token] = static_cast<double>(t.logprob);
    EXPECT_EQ(all.contains(chosen->token), true);
    EXPECT_DOUBLE_EQ(all[chosen->token], static_cast<double>(*chosen->logprob));
    EXPECT_EQ(chosen->top.front().token, 1);
    return all;
  };
  auto raw = logprobs(LogprobsMode::raw_logprobs);
  EXPECT_EQ(raw.size(), 3u);
  EXPECT_NEAR(raw[1], std::log(0.4), 1e-6);
  EXPECT_NEAR(raw[2], std::log(0.2), 1e-6);
  auto logits = logprobs(LogprobsMode::raw_logits);
  EXPECT_NEAR(logits[3], static_cast<double>(kRow[3]), 1e-6);
  auto processed = logprobs(LogprobsMode::processed_logprobs);
  EXPECT_EQ(processed.size(), 2u);
  EXPECT_NEAR(processed[1], std::log(16.0 / 25.0), 1e-6);
  EXPECT_NEAR(processed[3], std::log(9.0 / 25.0), 1e-6);
  auto scaled = logprobs(LogprobsMode::processed_logits);
  EXPECT_NEAR(scaled[1], static_cast<double>(kRow[1]) / 0.5, 1e-6);
  // top_p 0.5 leaves one: the likeliest has 16 of 33 and is not enough, the second makes up for it.
  p.top_k = 0;
  p.top_p = 0.5f;
  processed = logprobs(LogprobsMode::processed_logprobs);
  EXPECT_EQ(processed.size(), 2u);
  EXPECT_NEAR(processed[3], std::log(9.0 / 25.0), 1e-6);
  // Without a draw the temperature is none, and nothing is cut.
  p.temperature = 0.0f;
  processed = logprobs(LogprobsMode::processed_logprobs);
  EXPECT_NEAR(processed[1], std::log(4.0 / 11.0), 1e-6);
  EXPECT_EQ(processed.size(), 3u);
}

}  // namespace
}  // namespace kvarto

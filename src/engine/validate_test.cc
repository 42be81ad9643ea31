#include "engine/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/testing.h"

namespace kvarto {
namespace {

const RequestLimits kLimits{
    .vocabulary = 64, .max_model_len = 100, .max_num_seqs = 8, .longest_sequence = 60, .has_text = true};

TEST(Validate, ALengthThatMemorySetIsNotCalledTheModels) {
  RequestLimits limits = kLimits;
  limits.short_of_memory = true;
  Request request;
  request.prompt.assign(100, 1);
  const Status status = validate(request, limits);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("kv_cache_memory_bytes"), std::string::npos);
  EXPECT_EQ(status.error().message.find("this model's"), std::string::npos);
}

// The refusal must name the field.
void expect_refused(const char* field, const std::function<void(Request&)>& change) {
  Request request;
  request.prompt = {1, 2, 3};
  ASSERT_TRUE(validate(request, kLimits));
  change(request);
  const Status status = validate(request, kLimits);
  ASSERT_FALSE(status) << field;
  EXPECT_NE(status.error().message.find(field), std::string::npos) << status.error().message;
  EXPECT_EQ(status.error().message.find('\n'), std::string::npos);
}

TEST(Validate, EveryFieldThatMakesNoSenseIsNamed) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  expect_refused("n 0", [](Request& r) { r.sampling.n = 0; });
  expect_refused("max_num_seqs 8", [](Request& r) { r.sampling.n = 9; });
  expect_refused("beam_width 9", [](Request& r) { r.sampling.beam_width = 9; });
  expect_refused("beam_width 2", [](Request& r) { r.sampling.n = 3, r.sampling.beam_width = 2; });
  expect_refused("max_tokens", [](Request& r) { r.sampling.max_tokens = 0; });
  expect_refused("min_tokens 17", [](Request& r) { r.sampling.min_tokens = 17; });
  for (const float t : {-1.0f, 2.5f, 999999.0f, nan, inf}) {
    expect_refused("temperature", [&](Request& r) { r.sampling.temperature = t; });
  }
  for (const float t : {-1.0f, 0.0f, 1.5f, nan}) expect_refused("top_p", [&](Request& r) { r.sampling.top_p = t; });
  expect_refused("top_k -2", [](Request& r) { r.sampling.top_k = -2; });
  for (const float t : {-0.1f, 1.1f, nan}) expect_refused("min_p", [&](Request& r) { r.sampling.min_p = t; });
  for (const float t : {-1.0f, 0.0f, nan, inf}) {
    expect_refused("repetition_penalty", [&](Request& r) { r.sampling.repetition_penalty = t; });
  }
  for (const float t : {-2.1f, 2.1f, nan}) {
    expect_refused("frequency_penalty", [&](Request& r) { r.sampling.frequency_penalty = t; });
    expect_refused("presence_penalty", [&](Request& r) { r.sampling.presence_penalty = t; });
  }
  expect_refused("logit_bias -1", [](Request& r) { r.sampling.logit_bias = {{-1, 1.0f}}; });
  expect_refused("logit_bias 1000000000", [](Request& r) { r.sampling.logit_bias = {{1000000000, 1.0f}}; });
  expect_refused("logit_bias", [&](Request& r) { r.sampling.logit_bias = {{1, nan}}; });
  expect_refused("stop_token_ids 64", [](Request& r) { r.sampling.stop_token_ids = {64}; });
  expect_refused("allowed_token_ids 64", [](Request& r) { r.sampling.allowed_token_ids = {1, 64}; });
  expect_refused("allowed_token_ids 65", [](Request& r) { r.sampling.allowed_token_ids.assign(65, 1); });
  expect_refused("bad_words -1", [](Request& r) { r.sampling.bad_words = {{1}, {2, -1}}; });
  expect_refused("bad_words", [](Request& r) { r.sampling.bad_words = {{}}; });
  expect_refused("bad_words 1025", [](Request& r) { r.sampling.bad_words.assign(1025, {1}); });
  expect_refused("bad_words 20000", [](Request& r) { r.sampling.bad_words = {std::vector<TokenId>(20000, 1)}; });
  expect_refused("length_penalty", [&](Request& r) { r.sampling.length_penalty = nan; });
  expect_refused("prompt_logprobs 1025", [](Request& r) { r.prompt_logprobs = 1025; });
  expect_refused("priority 3", [](Request& r) { r.priority = 3; });
  expect_refused("stop 100000", [](Request& r) { r.sampling.stop.assign(100000, "x"); });
  expect_refused("stop 0", [](Request& r) { r.sampling.stop = {""}; });
  expect_refused("logprobs", [](Request& r) { r.sampling.logprobs = 1000000000; });
  expect_refused("prompt is empty", [](Request& r) { r.prompt.clear(); });
  expect_refused("prompt 64", [](Request& r) { r.prompt = {64}; });
  expect_refused("prompt -1", [](Request& r) { r.prompt = {-1}; });
  expect_refused("cache_salt 1025", [](Request& r) { r.cache_salt.assign(1025, 's'); });
  expect_refused("maximum context length is 100", [](Request& r) { r.prompt.assign(100, 1); });
}

TEST(Validate, BeamsRefuseWhatTheyWouldIgnore) {
  const auto beam = [](auto change) {
    return [change](Request& r) {
      r.sampling.beam_width = 4;
      change(r);
    };
  };
  expect_refused("temperature", beam([](Request& r) { r.sampling.temperature = 0.7f; }));
  expect_refused("top_p", beam([](Request& r) { r.sampling.top_p = 0.7f; }));
  expect_refused("top_k", beam([](Request& r) { r.sampling.top_k = 7; }));
  expect_refused("min_p", beam([](Request& r) { r.sampling.min_p = 0.7f; }));
  expect_refused("repetition_penalty", beam([](Request& r) { r.sampling.repetition_penalty = 1.1f; }));
  expect_refused("frequency_penalty", beam([](Request& r) { r.sampling.frequency_penalty = 1.1f; }));
  expect_refused("presence_penalty", beam([](Request& r) { r.sampling.presence_penalty = 1.1f; }));
  expect_refused("logit_bias", beam([](Request& r) { r.sampling.logit_bias = {{1, 1.0f}}; }));
  expect_refused("allowed_token_ids", beam([](Request& r) { r.sampling.allowed_token_ids = {1}; }));
  expect_refused("bad_words", beam([](Request& r) { r.sampling.bad_words = {{1}}; }));
  expect_refused("stop", beam([](Request& r) { r.sampling.stop = {"x"}; }));
  expect_refused("logprobs", beam([](Request& r) { r.sampling.logprobs = 0; }));
  expect_refused("hash_logits", beam([](Request& r) { r.hash_logits = true; }));
}

TEST(Validate, WhatCanNeverFitIsRefusedWithTheNumbers) {
  Request request;
  request.prompt.assign(40, 1);
  request.sampling.max_tokens = 21;  // the last one needs no place
  EXPECT_TRUE(validate(request, kLimits));
  request.sampling.max_tokens = 22;
  const Status status = validate(request, kLimits);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::out_of_memory);
  EXPECT_NE(status.error().message.find("62"), std::string::npos);
  EXPECT_NE(status.error().message.find("60"), std::string::npos);
}

TEST(Validate, MaxTokensBeyondTheContextEndsWithLength) {
  FakeEngine fake({.options = {.max_model_len = 50}});
  Request request = fake_request(fake_prompt(45, 1), 1000000);
  const auto result = fake->generate(request);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->samples[0].tokens.size(), 5u);
  EXPECT_EQ(result->samples[0].finish, FinishReason::length);
  request.prompt = fake_prompt(49, 1);
  EXPECT_EQ(fake->generate(request)->samples[0].tokens.size(), 1u);
  request.prompt = fake_prompt(50, 1);
  EXPECT_FALSE(fake->generate(request));
}

TEST(Validate, AnExplicitLengthThatDoesNotFitIsRefused) {
  EXPECT_THROW(FakeEngine({.blocks = 4, .options = {.max_model_len = 1000}}), std::runtime_error);
  FakeEngine fake({.blocks = 4});
  EXPECT_LT(fake->info().max_model_len, 1000u);
  EXPECT_GE(fake->info().max_model_len, 48u);
}

TEST(Validate, PromptLogprobsOfALongPromptAreBounded) {
  RequestLimits limits = kLimits;
  limits.max_model_len = 100000;
  limits.longest_sequence = 100000;
  Request request;
  request.prompt.assign(4097, 1);
  request.prompt_logprobs = 1024;
  const Status status = validate(request, limits);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("4194304"), std::string::npos) << status.error().message;
  request.prompt.resize(4096);
  EXPECT_TRUE(validate(request, limits));
}

TEST(Validate, EngineOptions) {
  EXPECT_TRUE(validate(EngineOptions{}));
  EXPECT_FALSE(validate(EngineOptions{.threads = -1}));
  EXPECT_FALSE(validate(EngineOptions{.max_num_seqs = 0}));
  EXPECT_FALSE(validate(EngineOptions{.max_num_batched_tokens = 0}));
  EXPECT_FALSE(validate(EngineOptions{.max_step_ms = std::nan("")}));
  EXPECT_FALSE(validate(EngineOptions{.watermark = 1.0}));
  EXPECT_FALSE(validate(EngineOptions{.watermark = -0.1}));
}

}  // namespace
}  // namespace kvarto

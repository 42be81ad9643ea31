// Prompts that are scored: what is said of each token is what the tokens before it determine, whatever was cached, in
// whatever chunks, next to whomever. Expected values: libm over the fake model's rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/testing.h"

namespace kvarto {
namespace {

struct Expected {
  double logprob = 0.0;
  uint32_t rank = 0;
  std::vector<TokenId> order;  // all ids, likeliest first
};

Expected expected_at(const std::vector<TokenId>& prompt, size_t i) {
  const std::vector<float> row = FakeModel::reference(std::span(prompt).first(i));
  double sum = 0.0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit));
  Expected e;
  e.order.resize(row.size());
  std::iota(e.order.begin(), e.order.end(), 0);
  std::stable_sort(e.order.begin(), e.order.end(), [&](TokenId a, TokenId b) { return row[a] > row[b]; });
  e.rank = static_cast<uint32_t>(std::ranges::find(e.order, prompt[i]) - e.order.begin()) + 1;
  e.logprob = static_cast<double>(row[static_cast<size_t>(prompt[i])]) - std::log(sum);
  return e;
}

void expect_scored(const Request& request, const RequestResult& result, const std::string& what) {
  ASSERT_FALSE(result.error) << what << ": " << result.error->message;
  ASSERT_EQ(result.prompt_logprobs.size(), request.prompt.size()) << what;
  EXPECT_EQ(result.prompt_logprobs[0].token, request.prompt[0]);
  EXPECT_FALSE(result.prompt_logprobs[0].logprob);
  EXPECT_EQ(result.prompt_logprobs[0].rank, 0u);
  EXPECT_TRUE(result.prompt_logprobs[0].top.empty());
  for (size_t i = 1; i < request.prompt.size(); ++i) {
    const PromptLogprob& at = result.prompt_logprobs[i];
    const Expected expected = expected_at(request.prompt, i);
    EXPECT_EQ(at.token, request.prompt[i]) << what << " " << i;
    ASSERT_TRUE(at.logprob) << what << " " << i;
    EXPECT_NEAR(*at.logprob, expected.logprob, 1e-5) << what << " " << i;
    EXPECT_EQ(at.rank, expected.rank) << what << " " << i;
    ASSERT_EQ(at.top.size(), *request.prompt_logprobs) << what << " " << i;
    for (size_t k = 0; k < at.top.size(); ++k) EXPECT_EQ(at.top[k].token, expected.order[k]) << what << " " << i;
  }
}

// Plain, scored, plain: the second reads nothing from the cache and the third finds what the second could have left.
TEST(PromptLogprobs, OfACachedPromptAreThoseOfAColdOne) {
  for (const size_t length : {55u, 56u, 57u}) {
    FakeEngine fake({.block_tokens = 16});
    const Request plain = fake_request(fake_prompt(length, 3), 4);
    Request scored = plain;
    scored.prompt_logprobs = 3;
    const auto first = fake->generate(plain), second = fake->generate(scored), third = fake->generate(plain);
    ASSERT_TRUE(first && second && third);
    expect_scored(scored, *second, std::to_string(length));
    EXPECT_EQ(second->cached_tokens, 0u);
    EXPECT_EQ(third->cached_tokens, 48u);
    EXPECT_EQ(second->samples[0].tokens, first->samples[0].tokens);
    EXPECT_EQ(third->samples[0].logits_sha256, second->samples[0].logits_sha256);
    // A cold engine says the same, and what it computed serves the next one.
    FakeEngine cold({.block_tokens = 16});
    const auto alone = cold->generate(scored);
    ASSERT_TRUE(alone);
    for (size_t i = 1; i < length; ++i) {
      EXPECT_EQ(alone->prompt_logprobs[i].logprob, second->prompt_logprobs[i].logprob) << i;
    }
    EXPECT_EQ(cold->generate(plain)->cached_tokens, 48u);
  }
}

TEST(PromptLogprobs, AreTheSameInAnyChunksAndNextToOthers) {
  for (const uint32_t chunk : {1u, 7u, 64u, 65u, 512u}) {
    FakeEngine fake({.options = {.max_num_seqs = 8, .max_num_batched_tokens = chunk}});
    std::vector<Request> requests;
    std::vector<RequestId> ids;
    for (uint32_t i = 0; i < 6; ++i) {
      requests.push_back(fake_request(fake_prompt(150 + i, i), 20, i));
      if (i % 2 == 0) requests.back().prompt_logprobs = i;
      ids.push_back(fake.submit(requests.back()));
    }
    fake.run();
    for (uint32_t i = 0; i < 6; ++i) {
      const RequestResult& result = fake.results[ids[i]];
      const std::string what = "chunk " + std::to_string(chunk) + ", request " + std::to_string(i);
      EXPECT_EQ(result.samples[0].tokens, reference_text(requests[i])) << what;
      EXPECT_EQ(result.samples[0].logits_sha256, reference_hash(requests[i].prompt, result.samples[0].tokens)) << what;
      if (i % 2 == 0) {
        expect_scored(requests[i], result, what);
      } else {
        EXPECT_TRUE(result.prompt_logprobs.empty());
      }
    }
    EXPECT_EQ(fake.at_rest(), "");
  }
}

// More prompts at once than there are rows for each to have a chunk.
TEST(PromptLogprobs, ManyAtOnceShareTheRows) {
  FakeEngine fake({.options = {.max_num_seqs = 100}});
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  size_t most_rows = 0;
  fake.model->before_forward = [&](const Batch& batch) { most_rows = std::max(most_rows, batch.logit_rows.size()); };
  for (uint32_t i = 0; i < 90; ++i) {
    requests.push_back(fake_request(fake_prompt(20, i), 3, i));
    requests.back().prompt_logprobs = 1;
    ids.push_back(fake.submit(requests.back()));
  }
  fake.run();
  for (uint32_t i = 0; i < 90; ++i) expect_scored(requests[i], fake.results[ids[i]], std::to_string(i));
  EXPECT_LE(most_rows, 64u + 100u);
  EXPECT_GT(most_rows, 64u);
}

// A pool for three and a half: some give way in the middle of their prompts and go on where they were.
TEST(PromptLogprobs, SurvivePreemption) {
  FakeEngine fake({.blocks = 19, .options = {.max_num_batched_tokens = 16}});
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 5; ++i) {
    requests.push_back(fake_request(fake_prompt(90, 10 + i), 60, i));
    requests.back().prompt_logprobs = 2;
    ids.push_back(fake.submit(requests.back()));
  }
  fake.run();
  uint32_t preemptions = 0;
  for (uint32_t i = 0; i < 5; ++i) {
    expect_scored(requests[i], fake.results[ids[i]], std::to_string(i));
    EXPECT_EQ(fake.results[ids[i]].samples[0].tokens, reference_text(requests[i])) << i;
    preemptions += fake.results[ids[i]].preemptions;
  }
  EXPECT_GT(preemptions, 0u);
  EXPECT_EQ(fake.at_rest(), "");
}

TEST(PromptLogprobs, WithoutTokensToGenerateThePromptIsAllThereIs) {
  FakeEngine fake;
  Request request = fake_request(fake_prompt(70, 4), 0);
  request.prompt_logprobs = 0;
  request.sampling.n = 2;
  std::vector<TokenEvent> events;
  request.on_token = [&](const TokenEvent& event) { events.push_back(event); };
  const auto result = fake->generate(request);
  ASSERT_TRUE(result);
  expect_scored(request, *result, "scoring");
  EXPECT_EQ(result->completion_tokens, 0u);
  ASSERT_EQ(result->samples.size(), 2u);
  ASSERT_EQ(events.size(), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(result->samples[i].finish, FinishReason::length);
    EXPECT_TRUE(result->samples[i].tokens.empty());
    EXPECT_EQ(events[i].sample, i);
    EXPECT_FALSE(events[i].token);
    EXPECT_EQ(events[i].finish, FinishReason::length);
  }
  EXPECT_EQ(fake.at_rest(), "");
  // A single token has nothing before it.
  request.prompt = {5};
  request.sampling.n = 1;
  expect_scored(request, *fake->generate(request), "one token");
}

// Whoever shows them in front of the text need not wait for its end.
TEST(PromptLogprobs, AreToldWithTheFirstToken) {
  for (const size_t length : {1u, 70u}) {
    FakeEngine fake({.options = {.max_num_batched_tokens = 16}});
    Request request = fake_request(fake_prompt(length, 4), 5);
    request.prompt_logprobs = 2;
    request.sampling.n = 3;
    std::vector<RequestResult> told;  // as if each were a result
    uint32_t events = 0;
    request.on_token = [&](const TokenEvent& event) {
      if (events++ == 0) {
        EXPECT_TRUE(event.token);
        told.emplace_back();
        told[0].prompt_logprobs.assign(event.prompt_logprobs.begin(), event.prompt_logprobs.end());
      } else {
        EXPECT_TRUE(event.prompt_logprobs.empty()) << events;
      }
    };
    ASSERT_TRUE(fake->generate(request));
    EXPECT_EQ(events, 15u);
    ASSERT_EQ(told.size(), 1u);
    expect_scored(request, told[0], std::to_string(length));
  }
}

TEST(PromptLogprobs, AsLongAsTheModelReads) {
  FakeEngine fake({.options = {.max_model_len = 50}});
  Request request = fake_request(fake_prompt(50, 4), 0);
  request.prompt_logprobs = 1;
  expect_scored(request, *fake->generate(request), "all of it");
  request.prompt = fake_prompt(51, 4);
  EXPECT_FALSE(fake->submit(request));
  request.prompt = fake_prompt(20, 4);
  request.prompt_logprobs.reset();
  const auto refused = fake->submit(request);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("max_tokens 0"), std::string::npos);
  request.prompt_logprobs = 1;
  request.sampling.beam_width = 2;
  EXPECT_FALSE(fake->submit(request));
}

TEST(PromptLogprobs, CancelledHalfwayTheyAreFewer) {
  FakeEngine fake({.options = {.max_num_batched_tokens = 16}});
  Request request = fake_request(fake_prompt(100, 8), 5);
  request.prompt_logprobs = 1;
  const RequestId id = fake.submit(request);
  for (int i = 0; i < 3; ++i) fake->step();
  fake->cancel(id);
  fake.run();
  EXPECT_EQ(fake.results[id].prompt_logprobs.size(), 49u);
  EXPECT_EQ(fake.at_rest(), "");
}

TEST(PromptLogprobs, BeamsAreScoredToo) {
  FakeEngine fake;
  Request request = fake_request(fake_prompt(40, 9), 6);
  request.hash_logits = false;
  const auto without = [&] {
    Request plain = request;
    plain.sampling.beam_width = 3;
    return fake->generate(plain);
  }();
  request.sampling.beam_width = 3;
  request.prompt_logprobs = 2;
  const auto with = fake->generate(request);
  ASSERT_TRUE(with && without);
  expect_scored(request, *with, "beams");
  EXPECT_EQ(with->samples[0].tokens, without->samples[0].tokens);
}

}  // namespace
}  // namespace kvarto

// What on_token hears: every token in order, and of every sample one last event, however it ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/testing.h"

namespace kvarto {
namespace {

// Events outlive their call here, so what they point to is copied.
struct Heard {
  uint32_t sample = 0;
  std::optional<TokenId> token;
  FinishReason finish = FinishReason::none;
  std::optional<float> logprob;
  std::vector<TokenLogprob> top;
  std::optional<TokenId> stop_token;
  bool stop_was_eos = false;
  uint64_t time_us = 0;
};

class Ears {
 public:
  void listen(Request& request) {
    request.on_token = [this](const TokenEvent& e) {
      heard[e.request].push_back({e.sample,
                                  e.token,
                                  e.finish,
                                  e.logprob,
                                  {e.top.begin(), e.top.end()},
                                  e.stop_token,
                                  e.stop_was_eos,
                                  e.time_us});
    };
  }
  // Tokens of a sample; its last event, and no other, has `finish`.
  std::vector<TokenId> tokens(RequestId id, uint32_t sample, FinishReason finish) {
    std::vector<TokenId> all;
    int ends = 0;
    bool ended = false;
    for (const Heard& event : heard[id]) {
      if (event.sample != sample) continue;
      EXPECT_FALSE(ended) << "an event after the last one";
      if (event.token) all.push_back(*event.token);
      ended = event.finish != FinishReason::none;
      ends += ended;
      if (ended) {
        EXPECT_EQ(event.finish, finish);
      }
    }
    EXPECT_EQ(ends, 1) << "request " << id << ", sample " << sample;
    return all;
  }

  std::map<RequestId, std::vector<Heard>> heard;
};

TEST(Events, TellEveryTokenOfEverySampleAndItsEnd) {
  FakeEngine fake;
  Ears ears;
  Request request = fake_request(fake_prompt(30, 1), 12, 5);
  request.sampling.n = 3;
  request.sampling.logprobs = 2;
  ears.listen(request);
  const RequestId id = fake->submit(request).value();
  fake.run();
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(ears.tokens(id, i, FinishReason::length), reference_text(request, i)) << i;
  }
  for (const Heard& event : ears.heard[id]) {
    ASSERT_TRUE(event.logprob);
    ASSERT_EQ(event.top.size(), 2u);
    EXPECT_LE(*event.logprob, event.top[0].logprob);
    EXPECT_FALSE(event.stop_token);
  }
}

TEST(Events, TellWhatWasCachedFromTheFirstOn) {
  FakeEngine fake({.block_tokens = 16});
  const Request plain = fake_request(fake_prompt(50, 1), 4);
  ASSERT_TRUE(fake->generate(plain));
  Request request = plain;
  std::vector<uint64_t> cached;
  request.on_token = [&](const TokenEvent& event) {
    EXPECT_TRUE(event.prompt_logprobs.empty());
    cached.push_back(event.cached_tokens);
  };
  ASSERT_TRUE(fake->generate(request));
  EXPECT_EQ(cached, std::vector<uint64_t>(4, 48));  // three whole blocks of sixteen
}

TEST(Events, AStopTokenIsToldWithTheLast) {
  FakeEngine fake;
  Ears ears;
  Request request = fake_request(fake_prompt(30, 2), 200, 3);
  request.sampling.stop_token_ids = {1, 2, 3, 4, 5, 6, 7, 8};
  ears.listen(request);
  std::optional<RequestResult> result;
  request.on_finish = [&](const RequestResult& r) { result = r; };
  const RequestId id = *fake->submit(request);
  fake.run();
  const std::vector<TokenId> tokens = ears.tokens(id, 0, FinishReason::stop);
  ASSERT_TRUE(result);
  EXPECT_EQ(ears.heard[id].back().stop_token, tokens.back());
  EXPECT_EQ(result->samples[0].stop_token, tokens.back());
  EXPECT_FALSE(result->samples[0].stop_was_eos);  // no tokenizer, no eos
  EXPECT_LE(tokens.back(), 8);
}

TEST(Events, WhateverEndsASampleIsToldOnce) {
  FakeEngine fake({.options = {.max_num_seqs = 4, .max_num_batched_tokens = 16}});
  Ears ears;
  Request forked = fake_request(fake_prompt(20, 30), 100);
  forked.sampling.n = 3;
  ears.listen(forked);
  const RequestId decoding = *fake->submit(forked);
  for (int i = 0; i < 6; ++i) fake->step();
  forked.prompt = fake_prompt(200, 31);
  forked.sampling.n = 2;
  const RequestId queued = *fake->submit(forked);  // its second sample never comes to be
  fake->step();
  Request single = fake_request(fake_prompt(20, 33), 5);
  ears.listen(single);
  const RequestId unseen = *fake->submit(single);
  for (const RequestId id : {decoding, queued, unseen}) fake->cancel(id);
  fake.run();
  for (uint32_t i = 0; i < 3; ++i) EXPECT_FALSE(ears.tokens(decoding, i, FinishReason::cancelled).empty());
  for (uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(ears.tokens(queued, i, FinishReason::cancelled).empty());
  EXPECT_TRUE(ears.tokens(unseen, 0, FinishReason::cancelled).empty());

  // A bug in a step, a row of NaN.
  const RequestId failing = *fake->submit(single);
  fake->step();
  fake.model->before_forward = [&](const Batch&) {
    fake.model->before_forward = nullptr;
    throw CheckFailure("planted");
  };
  fake.run();
  ears.tokens(failing, 0, FinishReason::error);
  fake.model->poison_token = 5;
  single.sampling.n = 2;
  const RequestId poisoned = *fake->submit(single);
  fake.run();
  for (uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(ears.tokens(poisoned, i, FinishReason::error).empty());
}

TEST(Events, DestructionIsToldToo) {
  Ears ears;
  {
    FakeEngine fake;
    Request request = fake_request(fake_prompt(20, 30), 100);
    ears.listen(request);
    ASSERT_TRUE(fake->submit(request));
    fake->step();
  }
  EXPECT_EQ(ears.tokens(1, 0, FinishReason::cancelled).size(), 1u);
}

// A step of 10 rows takes 1 ms and 0.1 ms per row, then 0.5 ms of logits: its tokens have the time when all is done.
TEST(Events, HaveTheTimeAtWhichTheirStepWasDone) {
  FakeEngine fake;
  fake.model->logits_us = 500;
  Ears ears;
  Request request = fake_request(fake_prompt(10, 1), 3);
  ears.listen(request);
  std::optional<RequestResult> result;
  request.on_finish = [&](const RequestResult& r) { result = r; };
  fake.clock->now = 1000;
  const RequestId id = *fake->submit(request);
  fake.clock->now = 1700;
  fake.run();
  std::vector<uint64_t> times;
  for (const Heard& event : ears.heard[id]) times.push_back(event.time_us);
  EXPECT_EQ(times, (std::vector<uint64_t>{4200, 5800, 7400}));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->arrival_us, 1000u);
  EXPECT_EQ(result->first_scheduled_us, 1700u);
  EXPECT_EQ(result->first_token_us, 4200u);
  EXPECT_EQ(result->last_token_us, 7400u);
}

// Beams are known only at their end.
TEST(Events, BeamsHaveNone) {
  FakeEngine fake;
  Ears ears;
  Request request = fake_request(fake_prompt(20, 3), 5);
  request.hash_logits = false;
  request.sampling.beam_width = 2;
  ears.listen(request);
  ASSERT_TRUE(fake->generate(request));
  EXPECT_TRUE(ears.heard.empty());
}

}  // namespace
}  // namespace kvarto

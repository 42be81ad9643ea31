// Prompts that are computed a few layers at a time beside decodes, and what may happen to them in the middle. Scripted:
// a layer takes 0.5 ms and 0.05 ms per row, there are two, and a stream's step of 1.1 ms leaves prompts 2.09 ms: a pass
// is of about the 75 rows that four such steps would hold, nine tenths full, and a layer of it goes on in each step,
// whatever it takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/testing.h"

namespace kvarto {
namespace {

void expect_right(const Request& request, const RequestResult& result) {
  ASSERT_FALSE(result.error) << result.error->message;
  const std::vector<TokenId> expected = reference_text(request);
  EXPECT_EQ(result.samples[0].tokens, expected);
  EXPECT_EQ(result.samples[0].logits_sha256, reference_hash(request.prompt, expected));
}

// An engine with one stream that decodes, and a pass of prompts under way beside it.
class CutPass : public ::testing::Test {
 protected:
  CutPass() {
    stream_id_ = fake_.submit(stream_);
    for (int i = 0; i < 5; ++i) fake_.engine->step();
  }

  // Steps until one has computed a part of a pass, not the last.
  void step_into_pass() {
    const uint64_t parts = fake_.model->parts;
    for (int i = 0; i < 10 && fake_.model->parts == parts; ++i) fake_.engine->step();
    ASSERT_EQ(fake_.model->parts, parts + 1);
  }
  void finish() {
    fake_.run();
    expect_right(stream_, fake_.results[stream_id_]);
    EXPECT_EQ(fake_.at_rest(), "");
  }

  Request stream_ = fake_request(fake_prompt(10, 1), 80);
  FakeEngine fake_;
  RequestId stream_id_ = 0;
};

TEST_F(CutPass, ALongPromptTakesALayerOfEachStep) {
  const Request prompt = fake_request(fake_prompt(900, 2), 5);
  const RequestId id = fake_.submit(prompt);
  uint64_t longest_us = 0;
  while (!fake_.results.contains(id)) {
    const uint64_t start_us = fake_.clock->now;
    fake_.engine->step();
    longest_us = std::max(longest_us, fake_.clock->now - start_us);
  }
  EXPECT_LE(longest_us, 1100u + 500u + 83 * 50u) << "the stream and one layer of what four steps hold";
  EXPECT_GE(fake_.engine->stats().cut_passes, 10u);
  expect_right(prompt, fake_.results[id]);
  finish();
}

TEST_F(CutPass, WhoLeavesGivesEverythingBackAtOnceAndTheOthersGoOn) {
  std::vector<Request> prompts;
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 3; ++i) {
    prompts.push_back(fake_request(fake_prompt(20 + i, 10 + i), 6, i));
    ids.push_back(fake_.submit(prompts.back()));
  }
  step_into_pass();
  const uint64_t active = fake_.engine->cache().stats().blocks_active;
  fake_.engine->cancel(ids[1]);
  fake_.engine->step();
  EXPECT_LT(fake_.engine->cache().stats().blocks_active, active);
  EXPECT_EQ(fake_.results[ids[1]].samples[0].finish, FinishReason::cancelled);
  fake_.run();
  expect_right(prompts[0], fake_.results[ids[0]]);
  expect_right(prompts[2], fake_.results[ids[2]]);
  finish();
}

TEST_F(CutPass, AllMayLeave) {
  const RequestId id = fake_.submit(fake_request(fake_prompt(50, 3), 5));
  step_into_pass();
  fake_.engine->cancel(id);
  const Request next = fake_request(fake_prompt(50, 4), 5);
  const RequestId next_id = fake_.submit(next);
  fake_.run();
  expect_right(next, fake_.results[next_id]);
  finish();
}

TEST_F(CutPass, EndsAtOnceWhenNothingDecodesAnyMore) {
  const Request prompt = fake_request(fake_prompt(60, 5), 5);
  const RequestId id = fake_.submit(prompt);
  step_into_pass();
  fake_.engine->cancel(stream_id_);
  fake_.engine->step();
  EXPECT_EQ(fake_.engine->stats().computed_prompt_tokens, 10u + 60u);
  fake_.run();
  expect_right(prompt, fake_.results[id]);
  EXPECT_EQ(fake_.at_rest(), "");
}

// The caller's own work needs the buffers: the pass begins again, and is not cut then.
TEST_F(CutPass, StepsAsideForCallersOfTheirOwn) {
  const Request prompt = fake_request(fake_prompt(64, 6), 5);
  const RequestId id = fake_.submit(prompt);
  step_into_pass();
  const std::vector<TokenId> ids = fake_prompt(100, 7);
  size_t rows = 0;
  const Status scored = fake_.engine->score(ids, [&](size_t position, std::span<const float> row) {
    const std::vector<float> expected = FakeModel::reference(std::span(ids).first(position + 1));
    rows += std::ranges::equal(row, expected);
  });
  ASSERT_TRUE(scored);
  EXPECT_EQ(rows, 100u);
  fake_.engine->step();
  EXPECT_EQ(fake_.engine->stats().computed_prompt_tokens, 10u + 64u);
  const Request other = fake_request(fake_prompt(64, 41), 5);
  const RequestId other_id = fake_.submit(other);
  step_into_pass();
  KvSequence own = fake_.engine->cache().open(ids).sequence;
  const auto row = fake_.engine->forward(own, std::span(ids).subspan(own.length()));
  ASSERT_TRUE(row);
  EXPECT_EQ(*row, FakeModel::reference(ids));
  own = KvSequence();
  fake_.run();
  expect_right(prompt, fake_.results[id]);
  expect_right(other, fake_.results[other_id]);
  finish();
}

TEST_F(CutPass, ABugInTheMiddleEndsWhatRunsAndNothingElse) {
  for (const bool in_the_pass : {true, false}) {
    const RequestId stream = in_the_pass ? stream_id_ : fake_.submit(stream_);
    for (int i = 0; i < 5; ++i) fake_.engine->step();
    const RequestId id = fake_.submit(fake_request(fake_prompt(64, 8), 5));
    step_into_pass();
    if (in_the_pass) {
      fake_.model->before_later_part = [] { throw CheckFailure("planted"); };
    } else {
      fake_.model->before_forward = [](const Batch&) { throw CheckFailure("planted"); };
    }
    fake_.engine->step();
    fake_.model->before_later_part = nullptr;
    fake_.model->before_forward = nullptr;
    EXPECT_TRUE(fake_.results[id].error);
    EXPECT_TRUE(fake_.results[stream].error);
    const Request next = fake_request(fake_prompt(64, 9), 5);
    const RequestId next_id = fake_.submit(next);
    fake_.run();
    expect_right(next, fake_.results[next_id]);
    EXPECT_EQ(fake_.at_rest(), "");
  }
}

// Somebody whose own work comes after each step throws every pass away in which prompts are.
TEST_F(CutPass, CallersOfTheirOwnCannotKeepAPromptFromGettingThrough) {
  const Request prompt = fake_request(fake_prompt(300, 40), 5);
  const RequestId id = fake_.submit(prompt);
  KvSequence own = fake_.engine->cache().open({}).sequence;
  for (int i = 0; i < 40 && !fake_.results.contains(id); ++i) {
    fake_.engine->step();
    ASSERT_TRUE(fake_.engine->forward(own, std::vector<TokenId>{5}));
  }
  own = KvSequence();
  ASSERT_TRUE(fake_.results.contains(id));
  EXPECT_FALSE(fake_.results.contains(stream_id_));
  expect_right(prompt, fake_.results[id]);
  finish();
}

// Rows that log-probabilities are made of, several to a prompt, when another such prompt leaves.
TEST_F(CutPass, ScoredPromptsKeepTheirRowsWhenOneLeaves) {
  std::vector<Request> prompts;
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 3; ++i) {
    prompts.push_back(fake_request(fake_prompt(i < 2 ? 9 + i : 60, 50 + i), 3, i));
    if (i < 2) prompts.back().prompt_logprobs = 0;
    ids.push_back(fake_.submit(prompts.back()));
  }
  step_into_pass();
  fake_.engine->cancel(ids[0]);
  fake_.run();
  for (const size_t i : {1u, 2u}) expect_right(prompts[i], fake_.results[ids[i]]);
  const std::vector<PromptLogprob>& scores = fake_.results[ids[1]].prompt_logprobs;
  ASSERT_EQ(scores.size(), prompts[1].prompt.size());
  for (size_t p = 1; p < scores.size(); ++p) {
    const std::vector<float> row = FakeModel::reference(std::span(prompts[1].prompt).first(p));
    double sum = 0.0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    EXPECT_NEAR(*scores[p].logprob, row[static_cast<size_t>(prompts[1].prompt[p])] - std::log(sum), 1e-5);
  }
  finish();
}

// One that is most of the pass takes it along: nobody's stream waits for rows that nobody wants.
TEST_F(CutPass, WithoutMostOfItsRowsItBeginsAgain) {
  const RequestId large = fake_.submit(fake_request(fake_prompt(60, 60), 3));
  const Request small = fake_request(fake_prompt(20, 61), 3);
  const RequestId small_id = fake_.submit(small);
  step_into_pass();
  const uint64_t rows = fake_.model->computed_rows;
  fake_.engine->cancel(large);
  fake_.engine->step();
  EXPECT_EQ(fake_.model->computed_rows, rows + 1 + 20) << "the stream, and the small prompt at once";
  fake_.run();
  expect_right(small, fake_.results[small_id]);
  finish();
}

// What a pass has reserved is not promised once more: a request that fits is admitted beside it.
TEST(CutPassRoom, ReservedBlocksAreCountedOnce) {
  FakeEngine fake({.blocks = 12});
  fake.submit(fake_request(fake_prompt(10, 1), 30));
  for (int i = 0; i < 5; ++i) fake->step();
  fake.submit(fake_request(fake_prompt(70, 2), 3));  // 5 blocks, and one for what comes after
  const uint64_t parts = fake.model->parts;
  for (int i = 0; i < 10 && fake.model->parts == parts; ++i) fake->step();
  ASSERT_GT(fake.model->parts, parts);
  fake.submit(fake_request(fake_prompt(20, 3), 3));  // 2 and 1; the stream holds 1 and is promised 1
  fake->step();
  EXPECT_EQ(fake->stats().running, 3u);
  fake.run();
  EXPECT_EQ(fake.at_rest(), "");
}

// Streams that grow while prompts enter take what these hold, also in the middle.
TEST(CutPassRoom, AnyNumberOfBlocksGivesTheRightTexts) {
  uint64_t preemptions = 0, cut_passes = 0;
  for (size_t blocks = 16; blocks < 24; ++blocks) {
    for (uint32_t first = 3; first < 19; first += 5) {
      FakeEngine fake({.blocks = blocks});
      std::vector<Request> all;
      std::vector<RequestId> ids;
      for (uint32_t i = 0; i < 4; ++i) all.push_back(fake_request(fake_prompt(first + 4 * i, i), 70, i));
      for (uint32_t i = 0; i < 3; ++i) all.push_back(fake_request(fake_prompt(150 + i, 20 + i), 10, i));
      for (size_t i = 0; i < all.size(); ++i) {
        if (i == 4) {
          for (int step = 0; step < 4; ++step) fake->step();
        }
        ids.push_back(fake.submit(all[i]));
      }
      fake.run();
      for (size_t i = 0; i < all.size(); ++i) expect_right(all[i], fake.results[ids[i]]);
      cut_passes += fake->stats().cut_passes;
      preemptions += fake->stats().preemptions;
      EXPECT_EQ(fake.at_rest(), "");
    }
  }
  EXPECT_GT(preemptions, 0u);
  EXPECT_GT(cut_passes, 0u);
}

}  // namespace
}  // namespace kvarto

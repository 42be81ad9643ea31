// Prompts that are computed a few layers at a time beside decodes, and what may happen to them in the middle. Scripted:
// a layer takes 0.5 ms and 0.05 ms per row, there are two, and a stream's step of 1.1 ms leaves prompts 2.09 ms: a pass
// is of the 83 rows that four such steps would hold, and a layer of it goes on in each step, whatever it takes.
#include <gtest/gtest.h>

#include <algorithm>

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
  EXPECT_EQ(longest_us, 1100u + 500u + 83 * 50u) << "the stream and one layer of 83 rows";
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

// The caller's own work needs the buffers: the pass begins again.
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
  step_into_pass();
  KvSequence own = fake_.engine->cache().open(ids).sequence;
  const auto row = fake_.engine->forward(own, std::span(ids).subspan(own.length()));
  ASSERT_TRUE(row);
  EXPECT_EQ(*row, FakeModel::reference(ids));
  own = KvSequence();
  fake_.run();
  expect_right(prompt, fake_.results[id]);
  finish();
}

TEST_F(CutPass, ABugInTheMiddleEndsWhatRunsAndNothingElse) {
  const RequestId id = fake_.submit(fake_request(fake_prompt(64, 8), 5));
  step_into_pass();
#ifndef KVARTO_DEBUG_CHECKS
  fake_.model->before_forward = [&](const Batch&) {
    fake_.model->before_forward = nullptr;
    throw CheckFailure("planted");
  };
  fake_.engine->step();
  EXPECT_TRUE(fake_.results[id].error);
  EXPECT_TRUE(fake_.results[stream_id_].error);
  const Request next = fake_request(fake_prompt(64, 9), 5);
  const RequestId next_id = fake_.submit(next);
  fake_.run();
  expect_right(next, fake_.results[next_id]);
  EXPECT_EQ(fake_.at_rest(), "");
#endif
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

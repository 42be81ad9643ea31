#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "engine/testing.h"

namespace kvarto {
namespace {

// A result is right when it is what the tokens alone determine.
void expect_right(const Request& request, const RequestResult& result, const std::string& what) {
  ASSERT_FALSE(result.error) << what << ": " << result.error->message;
  ASSERT_EQ(result.samples.size(), request.sampling.n) << what;
  for (uint32_t i = 0; i < request.sampling.n; ++i) {
    const std::vector<TokenId> expected = reference_text(request, i);
    EXPECT_EQ(result.samples[i].tokens, expected) << what << ", sample " << i;
    if (request.hash_logits) {
      EXPECT_EQ(result.samples[i].logits_sha256, reference_hash(request.prompt, expected)) << what << ", sample " << i;
    }
  }
}

TEST(Engine, GeneratesWhatTheTokensDetermine) {
  FakeEngine fake;
  for (const float temperature : {0.0f, 1.0f}) {
    Request request = fake_request(fake_prompt(37, 1), 40);
    request.sampling.temperature = temperature;
    const auto result = fake->generate(request);
    ASSERT_TRUE(result);
    expect_right(request, *result, "temperature " + std::to_string(temperature));
    EXPECT_EQ(result->completion_tokens, 40u);
    EXPECT_EQ(result->samples[0].finish, FinishReason::length);
  }
  EXPECT_EQ(fake.at_rest(), "");
}

TEST(Engine, AnyChunkGivesTheSameBits) {
  const Request request = fake_request(fake_prompt(150, 2), 30);
  for (const bool separate_tails : {false, true}) {
    for (const uint32_t chunk : {7u, 16u, 64u, 512u}) {
      FakeEngine fake({.separate_tails = separate_tails, .options = {.max_num_batched_tokens = chunk}});
      const auto result = fake->generate(request);
      ASSERT_TRUE(result);
      expect_right(request, *result, "chunk " + std::to_string(chunk));
      EXPECT_EQ(fake.model->forwards, (150 + chunk - 1) / chunk + 29) << chunk;
    }
  }
}

TEST(Engine, EightInABatchAreAsAlone) {
  FakeEngine fake({.options = {.max_num_batched_tokens = 32}});
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 8; ++i) {
    requests.push_back(fake_request(fake_prompt(20 + 17 * i, i), 60, i));
    ids.push_back(fake.submit(requests.back()));
  }
  fake.run();
  uint32_t peers = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    expect_right(requests[i], fake.results[ids[i]], "request " + std::to_string(i));
    peers = std::max(peers, fake.results[ids[i]].batch_peers_max);
  }
  EXPECT_EQ(peers, 8u);
  EXPECT_EQ(fake.at_rest(), "");
}

TEST(Engine, HitEqualsCold) {
  FakeEngine fake;
  Request request = fake_request(fake_prompt(100, 3), 20);
  const auto cold = fake->generate(request);
  const auto hit = fake->generate(request);
  ASSERT_TRUE(cold && hit);
  EXPECT_EQ(cold->cached_tokens, 0u);
  EXPECT_EQ(cold->miss_reason, MissReason::no_match);
  EXPECT_EQ(hit->cached_tokens, 96u);  // six blocks of 16; the last 4 tokens are computed
  expect_right(request, *cold, "cold");
  expect_right(request, *hit, "hit");
  EXPECT_EQ(fake->stats().computed_prompt_tokens, 104u);

  request.cache_salt = "other";
  const auto salted = fake->generate(request);
  ASSERT_TRUE(salted);
  EXPECT_EQ(salted->cached_tokens, 0u);
  expect_right(request, *salted, "salted");
}

// It takes more steps than anybody waits for one block, but blocks keep coming.
TEST(Engine, WhoWaitsForALongPrefixWaitsToItsEnd) {
  FakeEngine fake({.options = {.max_num_batched_tokens = 8}});
  Request first = fake_request(fake_prompt(3600, 30), 3), second = first;
  second.prompt.resize(3620, 5);
  const RequestId first_id = fake.submit(first), second_id = fake.submit(second);
  while (!fake.results.contains(first_id)) fake->step();
  EXPECT_GT(fake->stats().steps, 400u);
  fake.run();
  EXPECT_EQ(fake.results[second_id].cached_tokens, 3600u);
  expect_right(first, fake.results[first_id], "who came first");
  expect_right(second, fake.results[second_id], "who waited");
}

TEST(Engine, SecondColdRequestWaitsForTheSharedPrefix) {
  FakeEngine fake({.options = {.max_num_batched_tokens = 32}});
  std::vector<TokenId> first = fake_prompt(96, 4), second = first;
  second.resize(80);
  for (const TokenId t : fake_prompt(13, 5)) second.push_back(t);
  const Request a = fake_request(first, 5), b = fake_request(second, 5);
  const RequestId ia = fake.submit(a), ib = fake.submit(b);
  fake.run();
  expect_right(a, fake.results[ia], "first");
  expect_right(b, fake.results[ib], "second");
  EXPECT_EQ(fake.results[ib].cached_tokens, 80u);
  EXPECT_EQ(fake->stats().computed_prompt_tokens, 96u + 13u);  // the prefix once
}

TEST(Engine, CancellingTheFirstLetsTheSecondComputeThePrefix) {
  FakeEngine fake({.options = {.max_num_batched_tokens = 16}});
  const Request request = fake_request(fake_prompt(96, 6), 5);
  const RequestId first = fake.submit(request), second = fake.submit(request);
  fake->step();
  fake->step();
  fake->cancel(first);
  fake.run();
  EXPECT_EQ(fake.results[first].samples[0].finish, FinishReason::cancelled);
  expect_right(request, fake.results[second], "second");
  EXPECT_EQ(fake.results[second].cached_tokens, 32u);
  EXPECT_EQ(fake.at_rest(), "");
}

TEST(Engine, SamplesShareThePromptAndEqualSingleRuns) {
  FakeEngine fake;
  Request request = fake_request(fake_prompt(50, 7), 25, 99);
  request.sampling.n = 4;
  request.sample_index = 3;
  const auto together = fake->generate(request);
  ASSERT_TRUE(together);
  expect_right(request, *together, "n = 4");
  EXPECT_EQ(fake->stats().computed_prompt_tokens, 50u);
  EXPECT_GE(fake->stats().kv.copied_tails, 3u);
  EXPECT_EQ(together->completion_tokens, 100u);
  for (uint32_t i = 0; i < 4; ++i) {
    Request single = request;
    single.sampling.n = 1;
    single.sample_index = 3 + i;
    const auto alone = fake->generate(single);
    ASSERT_TRUE(alone);
    EXPECT_EQ(alone->samples[0].tokens, together->samples[i].tokens) << i;
    EXPECT_EQ(alone->samples[0].logits_sha256, together->samples[i].logits_sha256) << i;
  }
  EXPECT_NE(together->samples[0].tokens, together->samples[1].tokens);
  EXPECT_EQ(fake.at_rest(), "");
}

// Each stream grows to 8 blocks of the full group and 3 of the window; 38 blocks hold three and a half.
TEST(Engine, FourStreamsOnAPoolForThreeAndAHalf) {
  for (const bool prefix_caching : {true, false}) {
    FakeEngine fake({.blocks = 19, .options = {.enable_prefix_caching = prefix_caching}});
    std::vector<Request> requests;
    std::vector<RequestId> ids;
    for (uint32_t i = 0; i < 4; ++i) {
      requests.push_back(fake_request(fake_prompt(40, 10 + i), 88, i));
      ids.push_back(fake.submit(requests.back()));
    }
    fake.run();
    uint32_t preemptions = 0;
    uint64_t recomputed = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      expect_right(requests[i], fake.results[ids[i]], "stream " + std::to_string(i));
      preemptions += fake.results[ids[i]].preemptions;
      recomputed += fake.results[ids[i]].recomputed_tokens;
      EXPECT_EQ(fake.results[ids[i]].cached_tokens, 0u);
    }
    EXPECT_GT(preemptions, 0u);
    EXPECT_GT(recomputed, 0u);
    EXPECT_EQ(fake->stats().preemptions, preemptions);
    EXPECT_EQ(fake->stats().recomputed_tokens, recomputed);
    EXPECT_EQ(fake->stats().prefix_hit_tokens, 0u);  // resuming is not a hit
    EXPECT_EQ(fake->stats().prefix_query_tokens, 160u);
    EXPECT_EQ(fake.at_rest(), "");
  }
}

TEST(Engine, SamplesWithoutRoomForTheirTailsStillCome) {
  FakeEngine fake({.blocks = 8});
  Request request = fake_request(fake_prompt(40, 20), 60, 5);
  request.sampling.n = 6;
  const auto result = fake->generate(request);
  ASSERT_TRUE(result);
  expect_right(request, *result, "n = 6 on 8 blocks");
  EXPECT_GT(result->preemptions, 0u);
  EXPECT_EQ(fake.at_rest(), "");
}

TEST(Engine, CancelWorksInEveryState) {
  FakeEngine fake({.options = {.max_num_seqs = 4, .max_num_batched_tokens = 16}});
  Request forked = fake_request(fake_prompt(20, 30), 100);
  forked.sampling.n = 3;
  const RequestId decoding = fake.submit(forked);
  for (int i = 0; i < 6; ++i) fake->step();
  const RequestId prefilling = fake.submit(fake_request(fake_prompt(200, 31), 5));
  fake->step();
  fake->step();
  const RequestId queued = fake.submit(fake_request(fake_prompt(20, 32), 5));  // no slot is free
  fake->step();
  EXPECT_EQ(fake->stats().running, 4u);
  EXPECT_EQ(fake->stats().waiting, 1u);
  const RequestId unseen = fake.submit(fake_request(fake_prompt(20, 33), 5));
  for (const RequestId id : {queued, prefilling, decoding, unseen, decoding, RequestId{12345}}) fake->cancel(id);
  fake.run();
  for (const RequestId id : {queued, prefilling, decoding, unseen}) {
    EXPECT_EQ(fake.finish_calls[id], 1);
    for (const SampleResult& sample : fake.results[id].samples) EXPECT_EQ(sample.finish, FinishReason::cancelled);
    EXPECT_FALSE(fake.results[id].error);
  }
  EXPECT_EQ(fake.results[decoding].samples.size(), 3u);
  EXPECT_FALSE(fake.results[decoding].samples[2].tokens.empty());
  EXPECT_EQ(fake.at_rest(), "");
  fake->cancel(decoding);
  fake.run();
  EXPECT_EQ(fake.finish_calls[decoding], 1);
}

TEST(Engine, DestructionEndsWhatIsUnfinished) {
  std::vector<FinishReason> ends;
  {
    FakeEngine fake;
    for (uint32_t i = 0; i < 3; ++i) {
      Request request = fake_request(fake_prompt(20, 40 + i), 50);
      request.on_finish = [&](const RequestResult& r) { ends.push_back(r.samples[0].finish); };
      ASSERT_TRUE(fake->submit(request));
      fake->step();
    }
    Request request = fake_request(fake_prompt(20, 44), 50);
    request.on_finish = [&](const RequestResult& r) { ends.push_back(r.samples[0].finish); };
    ASSERT_TRUE(fake->submit(request));
  }
  EXPECT_EQ(ends, std::vector<FinishReason>(4, FinishReason::cancelled));
}

TEST(Engine, ABugInAStepCostsTheRunningRequestsOnly) {
  FakeEngine fake({.options = {.max_num_seqs = 2}});
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 4; ++i) {
    requests.push_back(fake_request(fake_prompt(30, 50 + i), 10));
    ids.push_back(fake.submit(requests.back()));
  }
  fake->step();
  fake.model->before_forward = [&](const Batch&) {
    fake.model->before_forward = nullptr;
    throw CheckFailure("planted");
  };
  fake.run();
  for (const int i : {0, 1}) {
    ASSERT_TRUE(fake.results[ids[i]].error);
    EXPECT_EQ(fake.results[ids[i]].error->code, ErrorCode::internal);
    EXPECT_EQ(fake.results[ids[i]].samples[0].finish, FinishReason::error);
  }
  for (const int i : {2, 3}) expect_right(requests[i], fake.results[ids[i]], "waiting " + std::to_string(i));
  EXPECT_EQ(fake->stats().internal_errors, 1u);
  EXPECT_TRUE(fake->health());
  EXPECT_EQ(fake.at_rest(), "");
}

// Reserved, parked and forked: everything the failed step held goes with the cache.
TEST(Engine, ABugAmongForksAndBeamsLeavesNothingHeld) {
  FakeEngine fake;
  Request samples = fake_request(fake_prompt(30, 55), 20), beams = fake_request(fake_prompt(30, 56), 20);
  samples.sampling.n = 3;
  beams.sampling.beam_width = 3;
  beams.hash_logits = false;
  const RequestId a = fake.submit(samples), b = fake.submit(beams);
  for (int i = 0; i < 4; ++i) fake->step();
  EXPECT_EQ(fake->stats().running, 6u);
  fake.model->before_forward = [&](const Batch&) {
    fake.model->before_forward = nullptr;
    throw CheckFailure("planted");
  };
  fake.run();
  for (const RequestId id : {a, b}) EXPECT_TRUE(fake.results[id].error);
  EXPECT_EQ(fake.at_rest(), "");
  expect_right(samples, *fake->generate(samples), "again");
}

TEST(Engine, ACacheThatCannotBeMadeAgainStopsIt) {
  FakeEngine fake({.options = {.max_num_seqs = 1}});
  const RequestId running = fake.submit(fake_request(fake_prompt(30, 57), 10));
  const RequestId waiting = fake.submit(fake_request(fake_prompt(30, 58), 10));
  fake.ledger = std::make_shared<Ledger>(1);
  fake.model->before_forward = [](const Batch&) { throw CheckFailure("planted"); };
  fake.run();
  for (const RequestId id : {running, waiting}) EXPECT_TRUE(fake.results[id].error);
  ASSERT_FALSE(fake->health());
  EXPECT_NE(fake->health().error().message.find("could not be made again"), std::string::npos);
  EXPECT_EQ(fake->stats().kv.arena_bytes, 0u);
#ifndef KVARTO_DEBUG_CHECKS
  EXPECT_THROW(fake->cache(), CheckFailure);
#endif
}

// A row costs 0.1 ms, a step 1 ms and its logits 8 ms: 20 ms hold a decode and 109 prefill tokens.
TEST(Engine, TheStepBudgetCountsLogits) {
  FakeEngine fake({.options = {.max_step_ms = 20.0}});
  fake.model->logits_us = 8000;
  fake.submit(fake_request(fake_prompt(10, 97), 60));
  for (int i = 0; i < 5; ++i) fake->step();
  fake.submit(fake_request(fake_prompt(900, 98), 5));
  uint64_t longest = 0;
  for (int i = 0; i < 8; ++i) {
    const uint64_t start = fake.clock->now;
    fake->step();
    longest = std::max(longest, fake.clock->now - start);
  }
  EXPECT_LE(longest, 20'500u);
  EXPECT_GE(longest, 19'000u);
}

// One that has to wait opens nothing, however often it is tried.
TEST(Engine, ARequestThatDoesNotFitYetTouchesNothing) {
  FakeEngine fake({.blocks = 12});
  const Request early = fake_request(fake_prompt(60, 99), 1);
  ASSERT_TRUE(fake->generate(early));
  const RequestId first = fake.submit(fake_request(fake_prompt(100, 100), 40));
  fake->step();
  Request second = early;
  for (const TokenId t : fake_prompt(80, 101)) second.prompt.push_back(t);
  const RequestId id = fake.submit(second);
  const uint64_t queries = fake->stats().kv.query_tokens;
  for (int i = 0; i < 5; ++i) fake->step();
  EXPECT_EQ(fake->stats().waiting, 1u);
  EXPECT_EQ(fake->stats().kv.query_tokens, queries);
  fake.run();
  EXPECT_FALSE(fake.results[first].error);
  expect_right(second, fake.results[id], "the one that waited");
  EXPECT_EQ(fake->stats().prefix_query_tokens, 60u + 100u + 140u);
  EXPECT_EQ(fake.at_rest(), "");
}

TEST(Engine, ThreeBugsWithinAMinuteStopIt) {
  for (const bool quick : {true, false}) {
    FakeEngine fake;
    fake.model->before_forward = [&](const Batch&) {
      fake.clock->now += quick ? 1'000'000 : 31'000'000;
      throw CheckFailure("planted");
    };
    for (int i = 0; i < 3; ++i) {
      const auto result = fake->generate(fake_request(fake_prompt(30, 60), 10));
      ASSERT_TRUE(result);
      EXPECT_TRUE(result->error);
    }
    EXPECT_EQ(fake->health().has_value(), !quick);
    const auto refused = fake->submit(fake_request(fake_prompt(30, 60), 10));
    EXPECT_EQ(refused.has_value(), !quick);
    if (quick) {
      EXPECT_NE(refused.error().message.find("3 steps failed"), std::string::npos);
      EXPECT_FALSE(fake->step());
    }
  }
}

TEST(Engine, APoisonedRowEndsItsRequest) {
  FakeEngine fake;
  fake.model->poison_token = 5;
  const auto result = fake->generate(fake_request(fake_prompt(30, 70), 10));
  ASSERT_TRUE(result);
  ASSERT_TRUE(result->error);
  EXPECT_NE(result->error->message.find("token 5"), std::string::npos) << result->error->message;
  fake.model->poison_token.reset();
  const Request next = fake_request(fake_prompt(30, 71), 10);
  expect_right(next, *fake->generate(next), "the next one");
  EXPECT_EQ(fake.at_rest(), "");
}

TEST(Engine, ScoreSeesEveryRowAndLeavesNothingBehind) {
  FakeEngine fake;
  const std::vector<TokenId> ids = fake_prompt(150, 80);
  ASSERT_TRUE(fake->generate(fake_request(ids, 3)));  // score computes everything, found or not
  size_t seen = 0;
  const auto status = fake->score(ids, [&](size_t position, std::span<const float> row) {
    EXPECT_EQ(position, seen++);
    const auto expected = FakeModel::reference(std::span(ids).first(position + 1));
    EXPECT_TRUE(std::ranges::equal(row, expected)) << position;
  });
  ASSERT_TRUE(status);
  EXPECT_EQ(seen, 150u);
  EXPECT_EQ(fake.at_rest(), "");
  EXPECT_FALSE(fake->score({}, [](size_t, std::span<const float>) {}));
  const std::vector<TokenId> outside = {1, 64};
  EXPECT_FALSE(fake->score(outside, [](size_t, std::span<const float>) {}));
}

TEST(Engine, PriorityRunsFirstAndMaxNumSeqsHolds) {
  FakeEngine fake({.options = {.max_num_seqs = 1, .scheduling_policy = SchedulingPolicy::priority}});
  std::vector<int> order;
  for (const int priority : {5, 0, -3, 5}) {
    Request request = fake_request(fake_prompt(10, 90), 3);
    request.priority = priority;
    request.on_finish = [&, priority](const RequestResult&) { order.push_back(priority); };
    ASSERT_TRUE(fake->submit(request));
  }
  while (fake->step()) EXPECT_LE(fake->stats().running, 1u);
  EXPECT_EQ(order, (std::vector<int>{-3, 0, 5, 5}));
}

// Scripted: a step costs 1 ms and 0.1 ms per row, so the second waits for 4 steps of the first.
TEST(Engine, TimesIncludeTheQueue) {
  FakeEngine fake({.options = {.max_num_seqs = 1}});
  const RequestId first = fake.submit(fake_request(fake_prompt(10, 91), 4));
  const RequestId second = fake.submit(fake_request(fake_prompt(10, 92), 4));
  fake.run();
  const RequestResult &a = fake.results[first], &b = fake.results[second];
  EXPECT_DOUBLE_EQ(a.ttft_ms, 2.0);
  EXPECT_DOUBLE_EQ(a.tpot_ms, 1.1);
  EXPECT_DOUBLE_EQ(b.queue_ms, 5.3);
  EXPECT_DOUBLE_EQ(b.ttft_ms, 7.3);
}

TEST(Engine, OtherThreadsMaySubmitAndCancel) {
  FakeEngine fake({.options = {.max_num_seqs = 4}});
  std::atomic<int> finished = 0;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 10; ++i) {
        Request request = fake_request(fake_prompt(20 + i, t), 8);
        request.on_finish = [&](const RequestResult&) { ++finished; };
        const auto id = fake->submit(std::move(request));
        if (i % 3 == 0) fake->cancel(*id);
      }
    });
  }
  while (finished < 30) fake->step();
  for (std::thread& thread : threads) thread.join();
  fake.run();
  EXPECT_EQ(fake.at_rest(), "");
}

TEST(Engine, WasteIsWhatNoTokenFills) {
  FakeEngine fake;
  ASSERT_TRUE(fake->generate(fake_request(fake_prompt(15, 93), 1)));
  // One block per group, 15 of 16 tokens in it.
  EXPECT_NEAR(fake->stats().waste_mean, 1.0 / 16.0, 1e-9);
  EXPECT_NEAR(fake->stats().waste_at_peak, 1.0 / 16.0, 1e-9);
}

}  // namespace
}  // namespace kvarto

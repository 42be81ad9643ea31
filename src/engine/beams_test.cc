#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/testing.h"

namespace kvarto {
namespace {

struct Beam {
  std::vector<TokenId> tokens;
  double sum = 0.0;
  double score(double penalty) const { return sum / std::pow(static_cast<double>(tokens.size()), penalty); }
};

// Beam search written down plainly: libm's logarithm, whole sequences scored anew, no cache, no early end.
std::vector<Beam> plain_beam_search(const std::vector<TokenId>& prompt, size_t width, size_t max_tokens, TokenId stop,
                                    double penalty = 1.0) {
  std::vector<Beam> live = {{}}, finished;
  for (size_t length = 1; length <= max_tokens; ++length) {
    std::vector<Beam> next;
    for (const Beam& beam : live) {
      std::vector<TokenId> tokens = prompt;
      tokens.insert(tokens.end(), beam.tokens.begin(), beam.tokens.end());
      const std::vector<float> row = FakeModel::reference(tokens);
      double norm = 0.0;
      for (const float x : row) norm += std::exp(static_cast<double>(x));
      std::vector<Beam> own;
      for (TokenId id = 0; id < static_cast<TokenId>(kFakeVocabulary); ++id) {
        Beam child = beam;
        child.tokens.push_back(id);
        child.sum += static_cast<double>(row[id]) - std::log(norm);
        own.push_back(child);
      }
      std::stable_sort(own.begin(), own.end(), [](const Beam& a, const Beam& b) { return a.sum > b.sum; });
      own.resize(2 * width);
      next.insert(next.end(), own.begin(), own.end());
    }
    std::stable_sort(next.begin(), next.end(), [](const Beam& a, const Beam& b) { return a.sum > b.sum; });
    live.clear();
    for (const Beam& beam : next) {
      if (beam.tokens.back() == stop || length == max_tokens) {
        finished.push_back(beam);
      } else if (live.size() < width) {
        live.push_back(beam);
      }
    }
  }
  std::stable_sort(finished.begin(), finished.end(),
                   [&](const Beam& a, const Beam& b) { return a.score(penalty) > b.score(penalty); });
  return finished;
}

Request beam_request(uint32_t seed, uint32_t width, uint32_t n, uint32_t max_tokens) {
  Request request;
  request.prompt = fake_prompt(30, seed);
  request.sampling = {.n = n, .beam_width = width, .max_tokens = max_tokens, .stop_token_ids = {7}};
  return request;
}

void expect_right(const Request& request, const RequestResult& result) {
  ASSERT_FALSE(result.error) << result.error->message;
  const auto expected = plain_beam_search(request.prompt, request.sampling.beam_width, request.sampling.max_tokens, 7,
                                          static_cast<double>(request.sampling.length_penalty));
  ASSERT_EQ(result.samples.size(), request.sampling.n);
  for (uint32_t i = 0; i < request.sampling.n; ++i) {
    EXPECT_EQ(result.samples[i].tokens, expected[i].tokens) << i;
    EXPECT_NEAR(result.samples[i].cumulative_logprob, expected[i].sum, 1e-4) << i;
    EXPECT_EQ(result.samples[i].finish, expected[i].tokens.back() == 7 ? FinishReason::stop : FinishReason::length);
  }
}

TEST(Beams, EqualAPlainBeamSearch) {
  FakeEngine fake;
  bool some_stopped = false;
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const Request request = beam_request(seed, 1 + seed % 4, 1 + seed % 4 / 2, 1 + seed);
    const auto result = fake->generate(request);
    ASSERT_TRUE(result);
    expect_right(request, *result);
    for (const SampleResult& s : result->samples) some_stopped |= s.finish == FinishReason::stop;
  }
  EXPECT_TRUE(some_stopped);
  EXPECT_GT(fake->stats().kv.copied_tails, 0u);
  EXPECT_EQ(fake.at_rest(), "");
}

TEST(Beams, AreRankedByTheLengthPenalty) {
  FakeEngine fake;
  size_t shorter = 0, longer = 0;
  for (uint32_t seed = 0; seed < 12; ++seed) {
    for (const float penalty : {-1.0f, 0.0f, 0.5f, 3.0f}) {
      Request request = beam_request(seed, 3, 2, 10);
      request.sampling.length_penalty = penalty;
      const auto result = fake->generate(request);
      ASSERT_TRUE(result);
      expect_right(request, *result);
      (penalty < 0.0f ? shorter : longer) += result->samples[0].tokens.size();
    }
  }
  EXPECT_LT(shorter * 3, longer);
}

TEST(Beams, PromptIsComputedOnce) {
  FakeEngine fake;
  ASSERT_TRUE(fake->generate(beam_request(3, 4, 2, 10)));
  EXPECT_EQ(fake->stats().computed_prompt_tokens, 30u);
}

// The pool holds two beams of three beside nothing else; neighbours come and go.
TEST(Beams, SurvivePreemption) {
  FakeEngine fake({.blocks = 6});
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 3; ++i) {
    requests.push_back(beam_request(20 + i, 4, 2, 40));
    requests.back().sampling.stop_token_ids.clear();
    ids.push_back(fake.submit(requests.back()));
  }
  fake.run();
  uint32_t preemptions = 0;
  for (uint32_t i = 0; i < 3; ++i) {
    const RequestResult& result = fake.results[ids[i]];
    ASSERT_FALSE(result.error) << result.error->message;
    const auto expected = plain_beam_search(requests[i].prompt, 4, 40, -1);
    EXPECT_EQ(result.samples[0].tokens, expected[0].tokens) << i;
    EXPECT_EQ(result.samples[1].tokens, expected[1].tokens) << i;
    preemptions += result.preemptions;
  }
  EXPECT_GT(preemptions, 0u);
  EXPECT_EQ(fake.at_rest(), "");
}

TEST(Beams, CancelGivesEverythingBack) {
  FakeEngine fake;
  const RequestId id = fake.submit(beam_request(5, 4, 2, 50));
  for (int i = 0; i < 5; ++i) fake->step();
  fake->cancel(id);
  fake.run();
  ASSERT_EQ(fake.results[id].samples.size(), 2u);
  EXPECT_EQ(fake.results[id].samples[0].finish, FinishReason::cancelled);
  EXPECT_EQ(fake.at_rest(), "");
}

}  // namespace
}  // namespace kvarto

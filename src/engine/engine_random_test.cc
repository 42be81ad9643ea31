// Random lives of an engine: arrivals, cancels, tiny pools, samples, beams, salts, priorities, shared prefixes. After
// every step the invariants hold; in the end every text is what its tokens alone determine and everything is given
// back.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "engine/testing.h"

namespace kvarto {
namespace {

Request random_request(const EngineOptions& options) {
  // Few families of prompts, so that prefixes meet.
  const auto family = *rc::gen::inRange<uint32_t>(0, 3);
  const auto length = *rc::gen::inRange<size_t>(1, 70);
  std::vector<TokenId> prompt = fake_prompt(length, family);
  if (*rc::gen::inRange(0, 3) == 0) prompt.back() = *rc::gen::inRange(0, 64);
  Request request =
      fake_request(std::move(prompt), *rc::gen::inRange<uint32_t>(1, 80), *rc::gen::inRange<uint64_t>(0, 4));
  request.sampling.temperature = *rc::gen::element(0.0f, 1.0f);
  request.sampling.n = *rc::gen::element<uint32_t>(1, 1, 1, 2, 3);
  if (*rc::gen::inRange(0, 4) == 0) request.sampling.stop_token_ids = {*rc::gen::inRange(0, 64), 3, 17};
  if (*rc::gen::inRange(0, 4) == 0) request.sampling.frequency_penalty = 1.5f;
  if (*rc::gen::inRange(0, 6) == 0) request.cache_salt = "salt";
  request.sample_index = *rc::gen::inRange<uint32_t>(0, 3);
  if (options.scheduling_policy == SchedulingPolicy::priority) request.priority = *rc::gen::element(0, 0, 0, 1, -1);
  if (*rc::gen::inRange(0, 5) == 0) {
    request.prompt_logprobs = *rc::gen::inRange<uint32_t>(0, 4);
    if (*rc::gen::inRange(0, 3) == 0) request.sampling.max_tokens = 0;
  }
  if (*rc::gen::inRange(0, 6) == 0) request.sampling.bad_words = {{5}, {*rc::gen::inRange(0, 64), 6}};
  if (request.sampling.max_tokens > 0 && *rc::gen::inRange(0, 8) == 0) {
    request.sampling.bad_words.clear();
    request.sampling.beam_width = request.sampling.n + 1;
    request.sampling.temperature = 1.0f;
    request.sampling.frequency_penalty = 0.0f;
    request.hash_logits = false;
  }
  return request;
}

// Every row of the prompt once, whatever came between.
void check_scores(const Request& request, const RequestResult& result) {
  const bool whole = result.samples[0].finish != FinishReason::cancelled;
  RC_ASSERT(result.prompt_logprobs.size() == (request.prompt_logprobs ? request.prompt.size() : 0) || !whole);
  for (size_t i = 1; i < result.prompt_logprobs.size(); ++i) {
    const PromptLogprob& at = result.prompt_logprobs[i];
    const std::vector<float> row = FakeModel::reference(std::span(request.prompt).first(i));
    double sum = 0.0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    const float logit = row[static_cast<size_t>(request.prompt[i])];
    RC_ASSERT(at.token == request.prompt[i]);
    RC_ASSERT(std::abs(static_cast<double>(*at.logprob) - (static_cast<double>(logit) - std::log(sum))) < 1e-5);
    RC_ASSERT(at.rank == 1 + std::ranges::count_if(row, [&](float other) { return other > logit; }));
    RC_ASSERT(at.top.size() == *request.prompt_logprobs);
  }
}

void check_result(const Request& request, const RequestResult& result) {
  RC_ASSERT(!result.error);
  RC_ASSERT(result.samples.size() == request.sampling.n);
  check_scores(request, result);
  if (request.sampling.beam_width > 0) return;  // texts of beams: beams_test.cc
  for (uint32_t i = 0; i < request.sampling.n; ++i) {
    const std::vector<TokenId> expected = reference_text(request, i);
    if (result.samples[i].finish == FinishReason::cancelled) {  // what there is of it is right
      const auto& tokens = result.samples[i].tokens;
      RC_ASSERT(tokens.size() <= expected.size());
      RC_ASSERT(std::equal(tokens.begin(), tokens.end(), expected.begin()));
    } else {
      RC_ASSERT(result.samples[i].tokens == expected);
      RC_ASSERT(result.samples[i].logits_sha256 == reference_hash(request.prompt, expected));
    }
  }
}

RC_GTEST_PROP(EngineRandom, EveryTextIsRightAndEverythingIsGivenBack, ()) {
  FakeSetup setup;
  setup.blocks = *rc::gen::inRange<size_t>(8, 16);
  setup.separate_tails = *rc::gen::arbitrary<bool>();
  setup.options.max_num_seqs = *rc::gen::inRange<uint32_t>(4, 10);
  setup.options.max_num_batched_tokens = *rc::gen::element<uint32_t>(5, 16, 37, 128);
  setup.options.enable_prefix_caching = *rc::gen::inRange(0, 4) != 0;
  setup.options.scheduling_policy = *rc::gen::element(SchedulingPolicy::fcfs, SchedulingPolicy::priority);
  setup.options.priority_aging_ms = *rc::gen::element(0u, 5u, 10'000u);
  setup.options.watermark = *rc::gen::element(0.0, 0.0, 0.2);
  setup.options.max_step_ms = *rc::gen::element(0.0, 0.001, 1e6);
  setup.options.long_prefill_token_threshold = *rc::gen::element(0u, 0u, 7u);
  FakeEngine fake(setup);

  std::map<RequestId, Request> requests;
  std::map<std::pair<RequestId, uint32_t>, int> ends;  // last events
  const auto arrivals = *rc::gen::inRange(1, 30);
  int accepted = 0, refused = 0, steps = 0;
  while (accepted + refused < arrivals || !fake->idle()) {
    if (accepted + refused < arrivals && *rc::gen::inRange(0, 3) < 2) {
      const Request request = random_request(setup.options);
      Request copy = request;
      copy.on_token = [&](const TokenEvent& event) {
        ends[{event.request, event.sample}] += event.finish != FinishReason::none;
      };
      copy.on_finish = [&](const RequestResult& r) {
        ++fake.finish_calls[r.request];
        fake.results[r.request] = r;
      };
      if (const auto id = fake->submit(copy)) {
        requests[*id] = request;
        uint32_t& longest = requests[*id].sampling.max_tokens;  // of the expected text
        longest = std::min(longest, fake->info().max_model_len - static_cast<uint32_t>(request.prompt.size()));
        ++accepted;
      } else {
        const bool too_long = request.prompt.size() + 1 > fake->info().max_model_len;
        RC_ASSERT(too_long || id.error().code == ErrorCode::out_of_memory);
        ++refused;
      }
    }
    if (!requests.empty() && *rc::gen::inRange(0, 40) == 0)
      fake->cancel(*rc::gen::inRange<RequestId>(1, requests.size() + 1));
    const uint64_t rows_before = fake.model->computed_rows;
    const uint64_t finished_before = fake.results.size();
    fake->step();
    RC_ASSERT(++steps < 20000);
    const EngineStats stats = fake->stats();
    RC_ASSERT(fake->cache().balanced());
    RC_ASSERT(stats.running <= setup.options.max_num_seqs);
    // Never requests waiting, none running and nothing done.
    RC_ASSERT(stats.waiting == 0 || stats.running > 0 || fake.results.size() > finished_before ||
              fake.model->computed_rows > rows_before);
    RC_ASSERT(fake.model->computed_rows - rows_before <= setup.options.max_num_batched_tokens);
    if (steps % 16 == 0) RC_ASSERT(fake->cache().audit() == "");
  }
  RC_ASSERT(fake.results.size() == requests.size());
  for (const auto& [id, request] : requests) {
    RC_ASSERT(fake.finish_calls[id] == 1);
    for (uint32_t i = 0; i < request.sampling.n; ++i) {
      RC_ASSERT((ends[{id, i}] == (request.sampling.beam_width > 0 ? 0 : 1)));
    }
    check_result(request, fake.results[id]);
  }
  RC_ASSERT(fake.at_rest() == "");
  RC_ASSERT(fake->cache().clear());
  const KvCacheStats kv = fake->stats().kv;
  RC_ASSERT(kv.free_bytes + kv.slab_remainder_bytes == kv.arena_bytes);
  RC_TAG(fake->stats().preemptions > 0, fake->stats().cut_passes > 0);
}

}  // namespace
}  // namespace kvarto

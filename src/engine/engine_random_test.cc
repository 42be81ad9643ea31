// Random lives of an engine: arrivals, cancels, tiny pools, samples, beams, salts, priorities, shared prefixes. After
// every step the invariants hold; in the end every text is what its tokens alone determine and everything is given
// back.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "engine/testing.h"

namespace kvarto {
namespace {

Request random_request() {
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
  request.priority = *rc::gen::element(0, 0, 0, 1, -1);
  if (*rc::gen::inRange(0, 8) == 0) {
    request.sampling.beam_width = request.sampling.n + 1;
    request.sampling.temperature = 1.0f;
    request.sampling.frequency_penalty = 0.0f;
    request.hash_logits = false;
  }
  return request;
}

void check_result(const Request& request, const RequestResult& result) {
  RC_ASSERT(!result.error);
  RC_ASSERT(result.samples.size() == request.sampling.n);
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
  FakeEngine fake(setup);

  std::map<RequestId, Request> requests;
  const auto arrivals = *rc::gen::inRange(1, 30);
  int accepted = 0, refused = 0, steps = 0;
  while (accepted + refused < arrivals || !fake->idle()) {
    if (accepted + refused < arrivals && *rc::gen::inRange(0, 3) < 2) {
      const Request request = random_request();
      Request copy = request;
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
    check_result(request, fake.results[id]);
  }
  RC_ASSERT(fake.at_rest() == "");
  RC_ASSERT(fake->cache().clear());
  const KvCacheStats kv = fake->stats().kv;
  RC_ASSERT(kv.free_bytes + kv.slab_remainder_bytes == kv.arena_bytes);
  RC_TAG(fake->stats().preemptions > 0);
}

}  // namespace
}  // namespace kvarto

// Work beside the queue: the caller's own sequences.
#include <gtest/gtest.h>

#include "engine/testing.h"

namespace kvarto {
namespace {

std::unique_ptr<Engine> tiny() {
  return std::move(Engine::load(std::string(KVARTO_SOURCE_DIR) + "/tests/tiny/tiny_qwen3.gguf",
                                {.threads = 1, .kv_cache_memory_bytes = 8 << 20, .max_num_batched_tokens = 32})
                       .value());
}

// The loop over forward() and the engine's own greedy generation give the same tokens, also after a cache hit.
TEST(Direct, TheTextbookLoopEqualsGenerate) {
  const auto engine = tiny();
  std::vector<TokenId> prompt(70);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i * 13 % 400);
  const RequestResult generated =
      engine->generate({.prompt = prompt, .sampling = {.max_tokens = 20, .temperature = 0.0f, .ignore_eos = true}}).value();
  KvCache::Opened opened = engine->cache().open(prompt);
  EXPECT_EQ(opened.match.tokens, 64u);
  std::vector<TokenId> next(prompt.begin() + 64, prompt.end()), tokens;
  while (tokens.size() < 20) {
    const std::vector<float> logits = engine->forward(opened.sequence, next).value();
    ASSERT_EQ(logits.size(), engine->info().vocabulary);
    next = {static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin())};
    tokens.push_back(next[0]);
  }
  EXPECT_EQ(tokens, generated.samples[0].tokens);
  EXPECT_EQ(opened.sequence.length(), 70u + 19u);
  opened.sequence = KvSequence();
  EXPECT_EQ(engine->stats().kv.blocks_active, 0u);
}

TEST(Direct, RefusesWhatItCannotCompute) {
  const auto engine = tiny();
  KvSequence empty;
  EXPECT_EQ(engine->forward(empty, std::vector<TokenId>{1}).error().code, ErrorCode::invalid_argument);
  const auto other = tiny();
  KvSequence foreign = other->cache().open(std::vector<TokenId>{1, 2}).sequence;
  EXPECT_EQ(engine->forward(foreign, std::vector<TokenId>{1}).error().code, ErrorCode::invalid_argument);
  KvSequence own = engine->cache().open(std::vector<TokenId>{1, 2}).sequence;
  EXPECT_FALSE(engine->forward(own, {}));
  EXPECT_FALSE(engine->forward(own, std::vector<TokenId>{100000}));
  EXPECT_FALSE(engine->forward(own, std::vector<TokenId>{-1}));
  EXPECT_FALSE(engine->forward(own, std::vector<TokenId>(100000, 1)));
  EXPECT_TRUE(engine->forward(own, std::vector<TokenId>{1, 2}));
  EXPECT_EQ(engine->stats().internal_errors, 0u);
}

}  // namespace
}  // namespace kvarto

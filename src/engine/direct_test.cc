// Work beside the queue: the caller's own sequences.
#include <gtest/gtest.h>
#include <immintrin.h>

#include "base/float_mode.h"
#include "engine/testing.h"

namespace kvarto {
namespace {

std::unique_ptr<Engine> tiny() {
  return std::move(Engine::load(KVARTO_SOURCE_DIR "/tests/tiny/tiny_qwen3.gguf",
                                {.threads = 1, .kv_cache_memory_bytes = 8 << 20, .max_num_batched_tokens = 32})
                       .value());
}

// The loop over forward() and the engine's own greedy generation give the same tokens, also after a cache hit.
TEST(Direct, TheTextbookLoopEqualsGenerate) {
  const auto engine = tiny();
  std::vector<TokenId> prompt(70);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i * 13 % 400);
  const RequestResult generated =
      engine->generate({.prompt = prompt, .sampling = {.max_tokens = 20, .temperature = 0.0f, .ignore_eos = true}})
          .value();
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

// A step's worth fits, the next does not: the sequence is back where it was, and goes on when there is room.
TEST(Direct, AnErrorInALaterChunkKeepsNothing) {
  FakeEngine fake({.blocks = 8, .options = {.max_num_batched_tokens = 16}});
  const std::vector<TokenId> other = fake_prompt(90, 1), ids = fake_prompt(110, 2);
  KvSequence mine = fake->cache().open(ids).sequence;
  ASSERT_TRUE(fake->forward(mine, std::span(ids).first(20)));
  {
    KvSequence neighbour = fake->cache().open(other).sequence;
    ASSERT_TRUE(fake->forward(neighbour, other));
    const auto refused = fake->forward(mine, std::span(ids).subspan(20));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
    EXPECT_GT(fake.model->forwards, 2u + 6u);  // not in the first chunk
    EXPECT_LE(mine.length(), 20u);
    EXPECT_GE(mine.length(), 16u);
    EXPECT_EQ(mine.reserved(), 0u);
  }
  const auto logits = fake->forward(mine, std::span(ids).subspan(mine.length()));
  ASSERT_TRUE(logits) << logits.error().message;
  EXPECT_EQ(*logits, FakeModel::reference(ids));
}

// Steps of so many tokens, with so many logits; what is visited is what follows from the tokens up to there.
TEST(Direct, VisitsTheLogitsOfTheLastRows) {
  const std::vector<TokenId> ids = fake_prompt(200, 4);
  struct Steps {
    uint32_t most;
    std::vector<size_t> tokens, logits;
  };
  const Steps cases[] = {{256, {114, 64, 22}, {64, 64, 22}}, {48, {48, 48, 48, 48, 8}, {0, 46, 48, 48, 8}}};
  for (const Steps& want : cases) {
    FakeEngine fake({.options = {.max_num_batched_tokens = want.most}});
    std::vector<size_t> tokens, logits;
    fake.model->before_forward = [&](const Batch& batch) {
      tokens.push_back(batch.tokens.size());
      logits.push_back(batch.logit_rows.size());
    };
    KvSequence sequence = fake->cache().open(ids).sequence;
    size_t visited = 0;
    const Status done = fake->forward(sequence, ids, 150, [&](size_t index, std::span<const float> row) {
      EXPECT_EQ(index, visited++);
      const std::vector<float> wanted = FakeModel::reference(std::span(ids).first(50 + index + 1));
      EXPECT_TRUE(std::ranges::equal(row, wanted)) << index;
    });
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(visited, 150u);
    EXPECT_EQ(tokens, want.tokens);
    EXPECT_EQ(logits, want.logits);
    EXPECT_EQ(sequence.length(), 200u);
  }
}

TEST(Direct, RowsThatDoNotExistAreRefused) {
  FakeEngine fake;
  const std::vector<TokenId> ids = fake_prompt(20, 5);
  KvSequence sequence = fake->cache().open(ids).sequence;
  const auto never = [](size_t, std::span<const float>) { FAIL() << "nothing was computed"; };
  for (const size_t rows : {size_t{0}, size_t{21}}) {
    const Status refused = fake->forward(sequence, ids, rows, never);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message.find(std::to_string(rows)), std::string::npos);
  }
  EXPECT_EQ(sequence.length(), 0u);
  fake.model->before_forward = [](const Batch&) { throw std::runtime_error("planted"); };
  EXPECT_EQ(fake->forward(sequence, ids, 1, never).error().code, ErrorCode::internal);
}

// Whoever calls may have told his thread to flush subnormals and round down; results do not see it and he keeps it.
TEST(Direct, TheCallersFloatModeChangesNothingAndIsKept) {
  const std::vector<TokenId> prompt = fake_prompt(40, 3);
  const auto hash = [&](Engine& engine) {
    Request request = fake_request(prompt, 8);
    request.sampling.temperature = 0.0f;
    request.sampling.ignore_eos = true;
    return engine.generate(request).value().samples[0].logits_sha256;
  };
  const std::string expected = hash(*tiny());
  constexpr unsigned kOdd = FloatMode::kPlain | 0x8040u | 0x2000u;  // FTZ, DAZ, towards minus infinity
  const unsigned before = _mm_getcsr();
  const auto kept = [&] {
    const unsigned now = _mm_getcsr();
    _mm_setcsr(kOdd);
    return now == kOdd;
  };
  FakeEngine fake;
  bool plain = true;
  const auto look = [&] { plain = plain && (_mm_getcsr() & ~0x3fu) == FloatMode::kPlain; };
  fake.model->before_forward = [&](const Batch&) { look(); };
  KvSequence sequence = fake->cache().open(prompt).sequence;
  _mm_setcsr(kOdd);
  const auto engine = tiny();
  const bool after_load = kept();
  const std::string found = hash(*engine);
  const bool after_steps = kept();
  const bool scored = fake->score(prompt, [&](size_t, std::span<const float>) { look(); }).has_value();
  const bool after_score = kept();
  const bool forwarded = fake->forward(sequence, prompt).has_value();
  const bool after_forward = kept();
  fake->submit(fake_request(prompt, 1)).value();
  fake->step();
  const bool after_step = kept();
  _mm_setcsr(before);
  EXPECT_EQ(found, expected);
  EXPECT_TRUE(plain && scored && forwarded);
  EXPECT_TRUE(after_load && after_steps && after_score && after_forward && after_step);
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

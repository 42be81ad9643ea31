#include "cli/step_cost.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

// Two layers of 2 query heads and 1 KV head with 16 dims; the second sees 4 tokens. Written by hand, as are all numbers
// below.
ModelConfig two_layers() {
  ModelConfig config;
  config.width = 32;
  config.vocabulary = 100;
  const LayerConfig full{.heads = 2, .kv_heads = 1, .head_dim = 16, .value_dim = 16, .ffn = 64};
  LayerConfig window = full;
  window.window = 4;
  config.layers = {full, window};
  return config;
}

StepCost cost_of(const MatrixSizes& sizes, uint32_t step_tokens) {
  const Result<KvLayout> layout = KvLayout::make(
      two_layers().kv_geometry(), {.k_dtype = KvDtype::f32, .v_dtype = KvDtype::f32, .auto_dtype = KvDtype::f32});
  return StepCost(two_layers(), sizes, layout.value(), /*pass_bytes=*/1000, step_tokens);
}

constexpr MatrixSizes kInt8{.int8 = 500, .head_int8 = 70};
constexpr double kKvBytes = 2 * 16 * 4;  // of a token in a layer: K and V, 16 floats each
constexpr double kPair = 2 * 2 * 32;     // operations of a query token and a key: 2 heads, 16 + 16 multiply-adds each

TEST(StepCost, APromptThatFitsOneStep) {
  const Cost cost = cost_of(kInt8, 8).prompts(0, 1, 6);
  EXPECT_EQ(cost.int8, 0);
  EXPECT_EQ(cost.int8_few, 2 * (6 * 500 + 70));
  EXPECT_EQ(cost.f32, kPair * (1 + 2 + 3 + 4 + 5 + 6) + kPair * (1 + 2 + 3 + 4 + 4 + 4));
  EXPECT_EQ(cost.bytes, 1000 + kKvBytes * 6 + kKvBytes * 4);
}

TEST(StepCost, APromptInChunksBehindCachedTokens) {
  const Cost cost = cost_of(kInt8, 2).prompts(3, 2, 3);
  EXPECT_EQ(cost.int8_few, 2 * 2 * (3 * 500 + 70));
  EXPECT_EQ(cost.f32, 2 * (kPair * (4 + 5 + 6) + kPair * (4 + 4 + 4)));
  // Six tokens in three steps; each prompt's chunks end behind token 5 and 6.
  EXPECT_EQ(cost.bytes, 3 * 1000 + 2 * (kKvBytes * (5 + 6) + kKvBytes * (4 + 4)));
}

TEST(StepCost, RowsOfAStepChooseTheKernel) {
  // Steps of 20 and of 16 rows; the logits of one.
  const Cost prompt = cost_of(kInt8, 20).prompts(0, 1, 36);
  EXPECT_EQ(prompt.int8, 2 * 20 * 500);
  EXPECT_EQ(prompt.int8_few, 2 * (16 * 500 + 70));
  // The second step has the last 9 tokens of both prompts.
  const Cost two = cost_of(kInt8, 20).prompts(0, 2, 29);
  EXPECT_EQ(two.int8, 2 * 2 * 29 * 500);
  EXPECT_EQ(two.int8_few, 2 * 2 * 70);
  EXPECT_EQ(cost_of(kInt8, 20).generation(0, 16, 3).int8, 0);
  const Cost many = cost_of(kInt8, 20).generation(0, 17, 3);
  EXPECT_EQ(many.int8, 3 * 17 * 2 * (500 + 70));
  EXPECT_EQ(many.int8_few, 0);
}

TEST(StepCost, GenerationReadsTheWeightsOncePerStep) {
  const Cost cost = cost_of({.f32 = 300, .head_f32 = 20}, 8).generation(2, 3, 2);
  EXPECT_EQ(cost.int8 + cost.int8_few, 0);
  EXPECT_EQ(cost.f32, 3 * (2 * 2 * (300 + 20) + kPair * (3 + 4) + kPair * (3 + 4)));
  EXPECT_EQ(cost.bytes, 2 * 1000 + 3 * 2 * kKvBytes * (3 + 4));
}

TEST(StepCost, RecomputingIsAPromptPerToken) {
  const Cost cost = cost_of(kInt8, 8).recompute(2, 1, 2);  // prompts of 2 and of 3 tokens
  EXPECT_EQ(cost.int8_few, 2 * ((2 + 3) * 500 + 2 * 70));
  EXPECT_EQ(cost.f32, 2 * kPair * (1 + 2) + 2 * kPair * (1 + 2 + 3));
  EXPECT_EQ(cost.bytes, 2 * 1000 + 2 * kKvBytes * (2 + 3));
}

TEST(StepCost, TheSlowerOfMemoryAndArithmeticBounds) {
  const Rates rates{.bytes = 100, .f32 = 10, .int8 = 50, .int8_few = 25};
  const Bound arithmetic = bound_of({.int8 = 50, .int8_few = 25, .f32 = 30, .bytes = 400}, rates);
  EXPECT_DOUBLE_EQ(arithmetic.int8, 1 + 1);
  EXPECT_DOUBLE_EQ(arithmetic.f32, 3);
  EXPECT_DOUBLE_EQ(arithmetic.memory, 4);
  EXPECT_DOUBLE_EQ(arithmetic.seconds(), 5);
  EXPECT_FALSE(arithmetic.by_memory());
  const Bound memory = bound_of({.int8 = 100, .f32 = 10, .bytes = 400}, rates);
  EXPECT_DOUBLE_EQ(memory.seconds(), 4);
  EXPECT_TRUE(memory.by_memory());
  EXPECT_DOUBLE_EQ(bound_of({.int8 = 100, .f32 = 10, .bytes = 400}, {.f32 = 10, .int8 = 50}).seconds(), 3);
}

TEST(Cost, SumsAndShares) {
  Cost cost{.int8 = 2, .int8_few = 4, .f32 = 6, .bytes = 8};
  cost += {.int8 = 8, .int8_few = 6, .f32 = 4, .bytes = 2};
  const Cost half = cost / 2;
  EXPECT_EQ(half.int8, 5);
  EXPECT_EQ(half.int8_few, 5);
  EXPECT_EQ(half.f32, 5);
  EXPECT_EQ(half.bytes, 5);
}

// Types as GGUF numbers them: 0 is F32, 3 is Q4_1.
GgufTensor tensor(const char* name, const GgufTypeInfo& type, std::vector<uint64_t> shape) {
  GgufTensor t{.name = name, .type = &type, .shape = std::move(shape), .bytes = {}, .elements = 1};
  for (const uint64_t n : t.shape) t.elements *= n;
  return t;
}

TEST(MatrixSizes, ByArithmeticAndWithoutWhatIsOnlyLookedUp) {
  const GgufTypeInfo &floats = *gguf_type_info(0u), &quantised = *gguf_type_info(3u);
  std::vector<GgufTensor> tensors = {
      tensor("token_embd.weight", quantised, {32, 100}), tensor("blk.0.attn_q.weight", quantised, {32, 64}),
      tensor("blk.0.attn_norm.weight", floats, {32}), tensor("blk.0.ffn_up.weight", floats, {32, 8})};
  MatrixSizes sizes = matrix_sizes(tensors, /*reference=*/false);
  EXPECT_EQ(sizes.head_int8, 3200);  // the embedding is the head
  EXPECT_EQ(sizes.int8, 2048);
  EXPECT_EQ(sizes.f32, 256);
  EXPECT_EQ(sizes.head_f32, 0);
  tensors.push_back(tensor("output.weight", floats, {32, 100}));
  sizes = matrix_sizes(tensors, false);
  EXPECT_EQ(sizes.head_int8, 0);
  EXPECT_EQ(sizes.head_f32, 3200);
  EXPECT_EQ(matrix_sizes(tensors, /*reference=*/true).f32, 2048 + 256);
}

}  // namespace
}  // namespace kvarto

#include "plan/planner.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

KvLayout layout_of(uint32_t layers, uint32_t heads, uint32_t dim, KvDtype dtype, uint32_t block, uint32_t window = 0) {
  KvGeometry geometry;
  for (uint32_t i = 0; i < layers; ++i) {
    const bool windowed = window > 0 && i % 2 == 1;
    geometry.layers.push_back({.kind = windowed ? GroupKind::window : GroupKind::full,
                               .window = windowed ? window : 0,
                               .kv_heads = heads,
                               .key_dim = dim,
                               .value_dim = dim});
  }
  return *KvLayout::make(geometry, {.block_tokens = block, .k_dtype = dtype, .v_dtype = dtype, .auto_dtype = dtype});
}

constexpr size_t kGiB = size_t{1} << 30;

PlanInput input_for(const KvLayout& layout) {
  return {.available_bytes = 64 * kGiB,
          .weight_bytes = kGiB,
          .activation_bytes = 10 << 20,
          .logits_bytes = 1 << 20,
          .layout = &layout,
          .context_length = 131072,
          .max_model_len = 0,
          .max_num_seqs = 4,
          .max_num_batched_tokens = 512};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// 28 layers x 8 heads x 128 dims x K and V x 2 bytes = 114,688 bytes per token; x 40,960 = 4,697,620,480. 4 GiB hold
// 2,340 blocks of 16 (37,440 tokens) or 292 of 128 (37,376 tokens).
TEST(Planner, RefusesALengthThatDoesNotFitWithBothNumbers) {
  for (const auto& [block, longest] : {std::pair{16u, "37440"}, {128u, "37376"}}) {
    const KvLayout layout = layout_of(28, 8, 128, KvDtype::bf16, block);
    PlanInput in = input_for(layout);
    in.max_model_len = 40960;
    in.kv_cache_memory_bytes = 4 * kGiB;
    const auto plan = plan_memory(in);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, ErrorCode::out_of_memory);
    EXPECT_TRUE(contains(plan.error().message, "4697620480")) << plan.error().message;
    EXPECT_TRUE(contains(plan.error().message, "4294967296")) << plan.error().message;
    EXPECT_TRUE(contains(plan.error().message, longest)) << plan.error().message;
  }
}

TEST(Planner, WhatFitsIsMonotoneInTheLength) {
  for (const uint32_t window : {0u, 300u}) {
    const KvLayout layout = layout_of(4, 2, 64, KvDtype::f16, 16, window);
    PlanInput in = input_for(layout);
    in.kv_cache_memory_bytes = 3'000'000;
    bool fitted = true;
    uint32_t last_fit = 0;
    for (uint32_t length = 16; length < 4000; length += 16) {
      in.max_model_len = length;
      const bool fits = plan_memory(in).has_value();
      EXPECT_TRUE(fitted || !fits) << length;
      if (fits) last_fit = length;
      fitted = fits;
    }
    EXPECT_GT(last_fit, 0u);
    EXPECT_FALSE(fitted);
    EXPECT_EQ(longest_that_fits(layout, 3'000'000, 512, 1 << 20), last_fit);
  }
}

TEST(Planner, ShortensTheContextOnlyWhenNobodyAskedForIt) {
  const KvLayout layout = layout_of(28, 8, 128, KvDtype::bf16, 16);
  PlanInput in = input_for(layout);
  in.kv_cache_memory_bytes = 4 * kGiB;
  const auto plan = plan_memory(in);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->max_model_len, 37440u);
  EXPECT_TRUE(contains(plan->max_model_len_reason, "131072"));
  EXPECT_EQ(plan->kv_bytes, 4 * kGiB);  // as asked for, to the byte
  EXPECT_EQ(plan->full_requests, 1u);
  EXPECT_EQ(plan->kv_tokens, 4 * kGiB / 114688);
}

TEST(Planner, DefaultBudgetIsWhatMemoryLeavesOrWhatSequencesCanUse) {
  const KvLayout layout = layout_of(28, 8, 128, KvDtype::bf16, 16);
  PlanInput in = input_for(layout);
  in.available_bytes = 4 * kGiB;  // a small machine
  in.max_model_len = 8192;
  const auto small = plan_memory(in);
  ASSERT_TRUE(small) << small.error().message;
  EXPECT_LE(small->total_bytes, static_cast<size_t>(0.9 * 4 * kGiB) + 1);
  EXPECT_GT(small->total_bytes, static_cast<size_t>(0.9 * 4 * kGiB) - 128);
  size_t sum = 0;
  for (const PlanLine& line : small->lines) sum += line.bytes;
  EXPECT_EQ(sum, small->total_bytes);

  in.available_bytes = 64 * kGiB;
  const auto large = plan_memory(in);
  ASSERT_TRUE(large);
  EXPECT_EQ(large->kv_bytes, size_t{4} * 8192 * 114688);  // four sequences can use no more
  EXPECT_EQ(large->full_requests, 4u);
}

TEST(Planner, RefusesBeforeLoading) {
  const KvLayout layout = layout_of(4, 2, 64, KvDtype::f16, 16);
  PlanInput in = input_for(layout);
  in.weight_bytes = 100 * kGiB;
  auto plan = plan_memory(in);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::out_of_memory);
  EXPECT_TRUE(contains(plan.error().message, std::to_string(64 * kGiB)));

  in = input_for(layout);
  in.kv_cache_memory_bytes = 64 * kGiB;
  plan = plan_memory(in);
  ASSERT_FALSE(plan);
  EXPECT_TRUE(contains(plan.error().message, std::to_string(64 * kGiB)));

  in = input_for(layout);
  in.max_model_len = 131073;
  plan = plan_memory(in);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::invalid_argument);

  in = input_for(layout);
  in.kv_cache_memory_bytes = 64;  // not even one block
  plan = plan_memory(in);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::out_of_memory);
}

// The arena that a refusal offers fits, and one line of 64 bytes more does not.
TEST(Planner, TheArenaThatARefusalOffersIsTheLargest) {
  const KvLayout layout = layout_of(4, 2, 64, KvDtype::f16, 16);
  PlanInput in = input_for(layout);
  in.max_model_len = 1000;
  in.kv_cache_memory_bytes = 1000 * kGiB;
  const auto refused = plan_memory(in);
  ASSERT_FALSE(refused);
  const std::string& message = refused.error().message;
  const std::string before = "give at most ";
  ASSERT_TRUE(contains(message, before)) << message;
  const size_t offered = std::stoull(message.substr(message.find(before) + before.size()));
  EXPECT_GT(offered, 60 * kGiB);
  in.kv_cache_memory_bytes = offered;
  const auto plan = plan_memory(in);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_LE(plan->total_bytes, in.available_bytes);
  in.kv_cache_memory_bytes = offered + 64;
  EXPECT_FALSE(plan_memory(in));
}

// What a refusal asks for is enough: windows and full groups share the arena in slabs of their own.
TEST(Planner, TheBytesOfARefusalAreEnough) {
  KvGeometry geometry;
  for (int i = 0; i < 7; ++i) {
    const bool full = i == 5;
    geometry.layers.push_back({.kind = full ? GroupKind::full : GroupKind::window,
                               .window = full ? 0u : 32u,
                               .kv_heads = 1,
                               .key_dim = 32,
                               .value_dim = 32});
  }
  const KvLayout layout = KvLayout::make(geometry, {}).value();
  PlanInput in{.available_bytes = size_t{1} << 30,
               .layout = &layout,
               .context_length = 2048,
               .max_model_len = 370,
               .kv_cache_memory_bytes = 300000};
  const Result<MemoryPlan> refused = plan_memory(in);
  ASSERT_FALSE(refused);
  const std::string& message = refused.error().message;
  const size_t at = message.find("needs ") + 6;
  in.kv_cache_memory_bytes = std::stoull(message.substr(at));
  EXPECT_TRUE(plan_memory(in)) << message;
  in.kv_cache_memory_bytes -= 64;
  EXPECT_FALSE(plan_memory(in)) << message;
}

}  // namespace
}  // namespace kvarto

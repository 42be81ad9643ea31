#include "server/stats_line.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

KvLayout make_layout(uint32_t layers, uint32_t kv_heads, uint32_t dims) {
  KvGeometry geometry;
  for (uint32_t i = 0; i < layers; ++i) {
    geometry.layers.push_back({.kind = GroupKind::full, .kv_heads = kv_heads, .key_dim = dims, .value_dim = dims});
  }
  return *KvLayout::make(geometry, {});
}

// The worked example of vLLM's figures for Qwen3-4B: 11.47 GiB are 5218 blocks of 2,359,296 bytes.
TEST(KvCacheSizeLine, SaysWhatVllmSays) {
  const KvLayout qwen3_4b = make_layout(36, 8, 128);
  const KvCapacity capacity = kv_capacity(qwen3_4b, size_t{5218} * 2'359'296, 32768, 512);
  EXPECT_EQ(capacity.tokens, 83488u);
  EXPECT_EQ(kv_cache_size_line(capacity),
            "CPU KV cache size: 83,488 tokens, Maximum concurrency for 32,768 tokens per request: 2.55x");
  EXPECT_EQ(kv_cache_size_line(capacity, "GPU").substr(0, 17), "GPU KV cache size");
  // 2048 tokens: 128 blocks.
  EXPECT_EQ(kv_typical_line(qwen3_4b, size_t{5218} * 2'359'296, 2048, 512),
            "Maximum concurrency for 2,048 tokens per request: 40.77x");
}

TEST(KvCacheSizeLine, RoundsRequestsUpToBlocks) {
  // One layer, one head of 16 dims: blocks of 1024 bytes. 17 tokens need two of them.
  const KvCapacity capacity = kv_capacity(make_layout(1, 1, 16), 5 * 1024, 17, 512);
  EXPECT_EQ(capacity.concurrency, 2.5);
  EXPECT_EQ(capacity.tokens, 42u);
}

TEST(StatsLine, GivesRatesOfTheInterval) {
  const StatsNumbers previous{.computed_prompt_tokens = 1000, .generated_tokens = 500, .preemptions = 4};
  const StatsNumbers now{.computed_prompt_tokens = 1123,
                         .generated_tokens = 956,
                         .preemptions = 4,
                         .running = 2,
                         .waiting = 0,
                         .kv_usage = 0.0123,
                         .recent_query_tokens = 1000,
                         .recent_hit_tokens = 345};
  const StatsLine line = stats_line(previous, now, 10);
  EXPECT_EQ(line.text,
            "Engine 000: Avg prompt throughput: 12.3 tokens/s, Avg generation throughput: 45.6 tokens/s, "
            "Running: 2 reqs, Waiting: 0 reqs, CPU KV cache usage: 1.2%, Prefix cache hit rate: 34.5%");
  EXPECT_FALSE(line.quiet);
}

TEST(StatsLine, NamesPreemptionsOnlyWhenThereWereSome) {
  StatsNumbers now{.preemptions = 7, .running = 64, .waiting = 9, .kv_usage = 1};
  const StatsLine line = stats_line({.preemptions = 4}, now, 10, "GPU");
  EXPECT_EQ(line.text,
            "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, "
            "Running: 64 reqs, Waiting: 9 reqs, Preemptions: 3, GPU KV cache usage: 100.0%");
  EXPECT_TRUE(line.quiet);
}

}  // namespace
}  // namespace kvarto

#include "cli/serve_plan.h"

#include <gtest/gtest.h>

#include "format/gguf.h"
#include "kv/layout.h"

namespace kvarto {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kBlock = 2 * 16 * 64 * 2;  // K and V of 16 tokens with 64 values of 2 bytes: 4096

KvLayout one_layer() {
  const LayerKv layer{.kind = GroupKind::full, .kv_heads = 1, .key_dim = 64, .value_dim = 64};
  return KvLayout::make({{layer}}, {.block_tokens = 16}).value();
}

PoolNumbers numbers(const KvLayout& layout) {
  return {.available_bytes = 1000 * kMiB, .other_bytes = 300 * kMiB, .useful_bytes = 200 * kMiB, .layout = &layout};
}

TEST(ChoosePool, WithoutAFlagIsTheSmallerOfHalfAndUseful) {
  const KvLayout layout = one_layer();
  PoolNumbers n = numbers(layout);
  EXPECT_EQ(choose_pool({}, n)->bytes, 200 * kMiB);
  EXPECT_NE(choose_pool({}, n)->reason.find("--max-num-seqs"), std::string::npos);
  EXPECT_FALSE(choose_pool({}, n)->asked);
  n.useful_bytes = 600 * kMiB;
  EXPECT_EQ(choose_pool({}, n)->bytes, 500 * kMiB);
  EXPECT_NE(choose_pool({}, n)->reason.find("half"), std::string::npos);
  EXPECT_NE(choose_pool({}, n)->reason.find("--kv-cache-memory-bytes"), std::string::npos);
}

TEST(ChoosePool, BytesAndBlocksAreExactAndComeFirst) {
  const KvLayout layout = one_layer();
  EXPECT_EQ(choose_pool({.kv_bytes = 12345, .blocks = 7, .utilization = 0.5}, numbers(layout))->bytes, 12345u);
  const Result<Pool> blocks = choose_pool({.kv_bytes = {}, .blocks = 7, .utilization = 0.5}, numbers(layout));
  EXPECT_EQ(blocks->bytes, 7 * kBlock);
  EXPECT_TRUE(blocks->asked);
}

TEST(ChoosePool, AShareIsOfAllThatTheProcessTakes) {
  const KvLayout layout = one_layer();
  const Result<Pool> pool = choose_pool({.kv_bytes = {}, .blocks = {}, .utilization = 0.5}, numbers(layout));
  ASSERT_TRUE(pool);
  const size_t room = 200 * kMiB;  // half of 1000 less 300
  EXPECT_LE(pool->bytes + metadata_bytes(layout, pool->bytes), room);
  EXPECT_GT(pool->bytes + metadata_bytes(layout, pool->bytes), room - 64 * 1024);
  EXPECT_GT(pool->bytes, room / 2);
  const Result<Pool> none = choose_pool({.kv_bytes = {}, .blocks = {}, .utilization = 0.3}, numbers(layout));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message.find("No available memory for the cache blocks"), 0u);
  EXPECT_NE(none.error().message.find("gpu_memory_utilization 0.3"), std::string::npos);
}

TEST(Gib, HasTwoDecimals) {
  EXPECT_EQ(gib(11.47 * 1073741824.0), "11.47");
  EXPECT_EQ(gib(0), "0.00");
}

// A tiny model: 2048 tokens of context.
class PlanServe : public testing::Test {
 protected:
  std::shared_ptr<const GgufFile> file =
      GgufFile::open(std::string(KVARTO_SOURCE_DIR) + "/tests/tiny/tiny_llama.gguf").value();
};

TEST_F(PlanServe, LengthsBeyondTheContextAreRefusedWithTheLargest) {
  ServeFlags flags;
  flags.engine.max_model_len = 32768;
  flags.memory.utilization = 0.9;
  const Result<ServePlan> plan = plan_serve(*file, flags);
  ASSERT_FALSE(plan);
  for (const char* part : {"32768", "2048", "llama.context_length", "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
                           "estimated maximum model length is 2048"}) {
    EXPECT_NE(plan.error().message.find(part), std::string::npos) << plan.error().message;
  }
}

TEST_F(PlanServe, LengthsBeyondTheContextAreTakenWithAWarningWhereTheyAreAllowed) {
  ServeFlags flags;
  flags.engine.max_model_len = 4096;
  flags.engine.beyond_context = true;
  flags.memory.blocks = 4096 / 16;
  const Result<ServePlan> plan = plan_serve(*file, flags);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->plan.max_model_len, 4096u);
  ASSERT_EQ(plan->warnings.size(), 1u);
  EXPECT_NE(plan->warnings[0].find("4096 is greater than the 2048 tokens"), std::string::npos) << plan->warnings[0];
  flags.memory.blocks = 3200 / 16;
  const Result<ServePlan> small = plan_serve(*file, flags);
  ASSERT_FALSE(small);
  EXPECT_NE(small.error().message.find("estimated maximum model length is 3200"), std::string::npos)
      << small.error().message;
  flags.engine.max_model_len = 1024;
  EXPECT_TRUE(plan_serve(*file, flags)->warnings.empty());
}

TEST_F(PlanServe, LengthsThatThePoolCannotHoldAreRefusedWithTheLargest) {
  ServeFlags flags;
  flags.engine.max_model_len = 2048;
  flags.memory.blocks = 20;
  const Result<ServePlan> plan = plan_serve(*file, flags);
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().message.find("estimated maximum model length is 320"), std::string::npos)
      << plan.error().message;
  flags.engine.max_model_len = 320;
  const Result<ServePlan> fits = plan_serve(*file, flags);
  ASSERT_TRUE(fits) << fits.error().message;
  EXPECT_EQ(fits->plan.max_model_len, 320u);
  EXPECT_EQ(fits->plan.kv_bytes, fits->options.kv_cache_memory_bytes);
  EXPECT_TRUE(fits->options.touch_kv);
}

// A G that became a T, or worse: a message, and not what such a pool's records would take.
TEST_F(PlanServe, PoolsBeyondAllMemoryAreRefusedAtOnce) {
  for (const size_t bytes : {size_t{10} << 40, size_t{1000} << 40}) {
    ServeFlags flags;
    flags.memory.kv_bytes = bytes;
    const Result<ServePlan> plan = plan_serve(*file, flags);
    ASSERT_FALSE(plan);
    EXPECT_NE(plan.error().message.find("give at most"), std::string::npos) << plan.error().message;
  }
}

TEST_F(PlanServe, AutoFitsTheLength) {
  ServeFlags flags;
  flags.fit_max_model_len = true;
  flags.memory.blocks = 20;
  const Result<ServePlan> reduced = plan_serve(*file, flags);
  ASSERT_TRUE(reduced) << reduced.error().message;
  EXPECT_EQ(reduced->options.max_model_len, 320u);
  EXPECT_EQ(reduced->notes.front().find("Auto-fit max_model_len: reduced from 2048 to 320"), 0u);
  EXPECT_NE(reduced->plan.max_model_len_reason.find("GiB of KV cache hold"), std::string::npos)
      << reduced->plan.max_model_len_reason;
  flags.memory.blocks = 1000;
  EXPECT_EQ(plan_serve(*file, flags)->notes.front().find("Auto-fit max_model_len: full model context length 2048"), 0u);
  flags.memory.blocks.reset();
  flags.memory.kv_bytes = 64;
  const Result<ServePlan> none = plan_serve(*file, flags);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message.find("Cannot auto-fit max_model_len"), 0u) << none.error().message;
}

TEST_F(PlanServe, WithoutAMemoryFlagTheMostThatRequestsCanUse) {
  ServeFlags flags;
  flags.engine.max_num_seqs = 2;
  const Result<ServePlan> plan = plan_serve(*file, flags);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_FALSE(plan->options.touch_kv);
  EXPECT_EQ(plan->plan.full_requests, 2u);
  const std::string table = plan_table(plan->plan);
  EXPECT_EQ(table.find("as asked for"), std::string::npos) << table;
  EXPECT_NE(table.find(plan->pool.reason), std::string::npos) << table;
  EXPECT_EQ(plan->plan.max_model_len, 2048u);
}

}  // namespace
}  // namespace kvarto

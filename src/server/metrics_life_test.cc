// The histograms of block lives, from a cache under an engine to the text of /metrics, by a scripted clock.
#include <gtest/gtest.h>

#include "engine/testing.h"
#include "server/metrics.h"

namespace kvarto {
namespace {

std::string value_of(const std::string& text, const std::string& name) {
  const std::string series = "\n" + name + R"({engine="0",model_name="tiny"} )";
  const size_t at = text.find(series);
  if (at == std::string::npos) return "absent";
  return text.substr(at + series.size(), text.find('\n', at + 1) - at - series.size());
}

// The model's clock runs 1 ms per step and 0.1 ms per row.
TEST(MetricsOfBlockLives, AreThoseOfTheCache) {
  std::unique_ptr<Metrics> metrics;
  EngineOptions options;
  options.kv_life_sample = 1.0;
  options.on_kv_life = [&](const BlockLife& life) { metrics->block_life(life); };
  FakeEngine fake({.blocks = 8, .options = options});
  metrics = std::make_unique<Metrics>(MetricsOptions{.model_name = "tiny", .kv_block_lives = true}, fake->info(),
                                      options, fake->cache().layout());
  const auto text = [&] {
    MetricsSnapshot snapshot;
    snapshot.engine = fake->stats();
    return metrics->text(snapshot);
  };
  const auto run = [&](const std::vector<TokenId>& prompt) {
    fake.submit(fake_request(prompt, 1));
    fake.run();
  };

  // 33 tokens: two full blocks in both groups, taken at 1 us and given back when the step is done, at 1 + 4300 us.
  const std::vector<TokenId> known = fake_prompt(33, 7);
  run(known);
  ASSERT_EQ(fake.clock->now, 4301u);
  EXPECT_EQ(value_of(text(), "vllm:kv_block_reuse_gap_seconds_count"), "0.0");
  // Half a second later they are found again: all four, since the last 24 tokens before the 33rd lie in both blocks.
  fake.clock->now = 504'301;
  run(known);
  ASSERT_EQ(fake.clock->now, 504'301u + 1100u);
  EXPECT_EQ(value_of(text(), "vllm:kv_block_reuse_gap_seconds_count"), "4.0");
  EXPECT_EQ(value_of(text(), "vllm:kv_block_reuse_gap_seconds_sum"), "2.0");
  EXPECT_EQ(value_of(text(), "vllm:kv_block_lifetime_seconds_count"), "0.0");

  // Another two and a half seconds later somebody needs all the memory there is, in one step: their idle time is 2.5 s,
  // and they have lived for 3.0054 s.
  fake.clock->now = 3'005'401;
  run(fake_prompt(fake->info().max_model_len - 1, 8));
  const uint64_t replaced = fake->stats().kv.replaced_blocks;
  ASSERT_EQ(replaced, 4u);
  EXPECT_EQ(value_of(text(), "vllm:kv_block_lifetime_seconds_count"), "4.0");
  EXPECT_EQ(value_of(text(), "vllm:kv_block_idle_before_evict_seconds_count"), "4.0");
  EXPECT_EQ(value_of(text(), "vllm:kv_block_idle_before_evict_seconds_sum"), "10.0");
  EXPECT_EQ(value_of(text(), "vllm:kv_block_lifetime_seconds_sum").substr(0, 7), "12.0216");
  EXPECT_EQ(value_of(text(), "vllm:kv_block_reuse_gap_seconds_count"), "4.0");
}

}  // namespace
}  // namespace kvarto

#include "cli/figures.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

TEST(KvReadBytes, WindowsEndWhatALayerSees) {
  // Per token 2 planes x 1 head x 16 dims x 4 bytes = 128 bytes in each of the two layers.
  const LayerKv full{.kind = GroupKind::full, .kv_heads = 1, .key_dim = 16, .value_dim = 16};
  LayerKv window = full;
  window.kind = GroupKind::window;
  window.window = 24;
  const Result<KvLayout> layout =
      KvLayout::make({{full, window}}, {.k_dtype = KvDtype::f32, .v_dtype = KvDtype::f32, .auto_dtype = KvDtype::f32});
  ASSERT_TRUE(layout);
  EXPECT_EQ(kv_read_bytes(*layout, 10), 10 * 128 + 10 * 128);
  EXPECT_EQ(kv_read_bytes(*layout, 1000), 1000 * 128 + 24 * 128);
}

TEST(Figures, TextHasEveryFigure) {
  Figures f;
  f.prompt_tokens = 111;
  f.cached_tokens = 96;
  f.completion_tokens = 22;
  f.ttft_ms = 33.3;
  f.tpot_ms = 4.44;
  f.tokens_per_s = 225.2;
  f.weight_bytes_per_s = 5e9;
  f.kv_bytes_per_s = 1e8;
  f.blocks_used = 7;
  f.blocks_total = 512;
  f.waste = 0.0312;
  const std::string text = describe(f, 1e10);
  for (const char* part : {"111", "96", "22", "33.3", "4.44", "225.2", "5.0 GB/s (50.0 %)", "100.0 MB/s (1.0 %)",
                           "10.0 GB/s", "7 of 512", "3.1 %"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  EXPECT_EQ(describe(f, 0).find("measured"), std::string::npos);
}

}  // namespace
}  // namespace kvarto

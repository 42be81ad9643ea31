#include "kv/layout.h"

#include <gtest/gtest.h>

#include "kv/testing.h"

namespace kvarto {
namespace {

using namespace kvarto::testing;

KvLayout make(std::vector<LayerKv> layers, KvLayoutOptions options = {}) {
  Result<KvLayout> layout = KvLayout::make({std::move(layers)}, options);
  EXPECT_TRUE(layout.has_value()) << layout.error().message;
  return *layout;
}

std::vector<LayerKv> repeat(uint32_t count, LayerKv layer) { return std::vector<LayerKv>(count, layer); }

// Bytes per token of well-known shapes, by layers x heads x (key dim + value dim) x 2.
TEST(KvLayout, BytesPerTokenOfKnownModels) {
  EXPECT_EQ(make(repeat(36, full_layer(8, 128))).bytes_per_token(), 147456u);
  EXPECT_EQ(make(repeat(40, full_layer(8, 128))).bytes_per_token(), 163840u);
  EXPECT_EQ(make(repeat(12, full_layer(12, 64))).bytes_per_token() * 8192, 301989888u);
  EXPECT_EQ(make(repeat(24, full_layer(1, 128))).bytes_per_token() * 8192, 100663296u);
  EXPECT_EQ(make(repeat(30, full_layer(3, 64))).bytes_per_token(), 23040u);
  EXPECT_EQ(make(repeat(61, latent_layer(512, 64))).bytes_per_token(), 70272u);
}

TEST(KvLayout, OneBlockOfEightHeads) {
  const KvLayout layout = make({full_layer(8, 128)});
  EXPECT_EQ(layout.groups()[0].block_bytes, 65536u);
  EXPECT_EQ(make({full_layer(8, 128)}, {.k_dtype = KvDtype::f32, .v_dtype = KvDtype::f16}).groups()[0].block_bytes,
            98304u);
}

TEST(KvLayout, GroupsFollowTheirFirstLayer) {
  // Gemma-like: five window layers, then a full one; and a second window of another size.
  std::vector<LayerKv> layers = repeat(5, window_layer(512, 1, 256));
  layers.push_back(full_layer(1, 256));
  layers.push_back(window_layer(512, 1, 256));
  layers.push_back(window_layer(128, 4, 64));
  const KvLayout layout = make(layers);
  ASSERT_EQ(layout.groups().size(), 3u);
  EXPECT_EQ(layout.groups()[0].kind, GroupKind::window);
  EXPECT_EQ(layout.groups()[0].window, 512u);
  EXPECT_EQ(layout.groups()[0].layers.size(), 6u);
  EXPECT_EQ(layout.groups()[1].kind, GroupKind::full);
  EXPECT_EQ(layout.groups()[1].window, 0u);
  EXPECT_EQ(layout.groups()[2].window, 128u);
  EXPECT_EQ(layout.place(5).group, 1u);
  EXPECT_EQ(layout.place(6).group, 0u);
  EXPECT_EQ(layout.place(6).index, 5u);
  EXPECT_EQ(layout.groups()[0].layers[5].layer, 6u);
}

TEST(KvLayout, TilesLieInTheOrderLayerHeadPlaneWithoutGaps) {
  LayerKv ragged = full_layer(3, 72);  // padded to 80
  ragged.value_dim = 20;               // padded to 32
  const KvLayout layout = make({full_layer(2, 64), ragged}, {.block_tokens = 32, .v_dtype = KvDtype::f32});
  const KvGroup& group = layout.groups()[0];
  EXPECT_EQ(group.layers[1].planes[0].padded_dims, 80u);
  EXPECT_EQ(group.layers[1].planes[1].padded_dims, 32u);
  size_t next = 0, next_raw = 0;
  for (const KvGroupLayer& layer : group.layers) {
    EXPECT_EQ(layer.offset, next);
    for (uint32_t head = 0; head < layer.kv_heads; ++head) {
      for (const KvPlane& plane : layer.planes) {
        EXPECT_EQ(layer.offset + head * layer.head_stride + plane.offset, next);
        EXPECT_EQ(layer.raw_offset + head * layer.raw_head_stride + plane.raw_offset, next_raw);
        EXPECT_EQ(plane.tile_bytes % 64, 0u);
        EXPECT_EQ(plane.tile_bytes, 32u * plane.padded_dims * (plane.dtype == KvDtype::f32 ? 4 : 2));
        next += plane.tile_bytes;
        next_raw += plane.raw_tile_bytes;
      }
    }
  }
  EXPECT_EQ(group.block_bytes, next);
  EXPECT_EQ(group.tail_bytes, next_raw);
}

TEST(KvLayout, FloatCodecsSealInPlaceUnlessAskedOtherwise) {
  for (const KvDtype dtype : {KvDtype::f32, KvDtype::f16, KvDtype::bf16}) {
    EXPECT_TRUE(make({full_layer()}, {.k_dtype = dtype, .v_dtype = dtype}).groups()[0].tail_is_block);
    const KvLayoutOptions apart{.k_dtype = dtype, .v_dtype = dtype, .separate_tails = true};
    EXPECT_FALSE(make({full_layer()}, apart).groups()[0].tail_is_block);
  }
}

TEST(KvLayout, LatentsHaveOnePlaneThatIsBothAndRopeApart) {
  const KvLayout layout = make({latent_layer(512, 64)});
  const KvGroupLayer& layer = layout.groups()[0].layers[0];
  ASSERT_EQ(layer.planes.size(), 2u);
  EXPECT_EQ(layer.planes[0].role, PlaneRole::both);
  EXPECT_EQ(layer.planes[1].role, PlaneRole::scored);
  EXPECT_EQ(layer.planes[1].dims, 64u);
}

TEST(KvLayout, RefusesWhatMakesNoSenseAndSaysWhy) {
  const auto message = [](std::vector<LayerKv> layers, KvLayoutOptions options = {}) {
    const Result<KvLayout> layout = KvLayout::make({std::move(layers)}, options);
    return layout.has_value() ? std::string("accepted") : layout.error().message;
  };
  for (const uint32_t size : {0u, 1u, 8u, 24u, 48u, 512u}) {
    EXPECT_NE(message({full_layer()}, {.block_tokens = size}).find("block size " + std::to_string(size)),
              std::string::npos);
  }
  for (const uint32_t size : {16u, 32u, 64u, 128u, 256u}) {
    EXPECT_EQ(message({full_layer()}, {.block_tokens = size}), "accepted");
  }
  EXPECT_NE(message({}).find("0 layers"), std::string::npos);
  EXPECT_NE(message({full_layer(), full_layer(0)}).find("layer 1 has 0 KV heads"), std::string::npos);
  EXPECT_NE(message({window_layer(0)}).find("window of 0"), std::string::npos);
  const Result<KvLayout> state = KvLayout::make({{{.kind = GroupKind::state, .state_bytes = 64}}}, {});
  EXPECT_EQ(state.error().code, ErrorCode::unsupported);
}

TEST(KvLayout, DtypeNames) {
  EXPECT_EQ(*parse_kv_dtype("float16"), KvDtype::f16);
  EXPECT_EQ(*parse_kv_dtype("f16"), KvDtype::f16);
  EXPECT_EQ(*parse_kv_dtype("bfloat16"), KvDtype::bf16);
  EXPECT_EQ(*parse_kv_dtype("float32"), KvDtype::f32);
  EXPECT_EQ(*parse_kv_dtype("auto"), std::nullopt);
  const auto unknown = parse_kv_dtype("fp9");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("fp9"), std::string::npos);
  EXPECT_NE(unknown.error().message.find("bfloat16"), std::string::npos);
  EXPECT_NE(unknown.error().message.find("leave it out, which is auto: float16"), std::string::npos);
  for (const KvDtype dtype : {KvDtype::f32, KvDtype::f16, KvDtype::bf16}) {
    EXPECT_EQ(*parse_kv_dtype(kv_dtype_name(dtype)), dtype);
  }
}

TEST(KvLayout, DescriptionTellsApartWhatBlocksContain) {
  const std::string one = make({full_layer(2, 64)}).description();
  EXPECT_EQ(make({full_layer(2, 64)}).description(), one);
  EXPECT_NE(make({full_layer(4, 32)}).description(), one);  // the same bytes
  EXPECT_NE(make({full_layer(2, 64)}, {.k_dtype = KvDtype::bf16}).description(), one);
  EXPECT_NE(make({full_layer(2, 64)}, {.block_tokens = 32}).description(), one);
  EXPECT_NE(make({window_layer(64, 2, 64)}).description(), one);
  EXPECT_NE(make({window_layer(64)}).description(), make({window_layer(65)}).description());
}

TEST(FirstVisibleBlock, HoldsTheOldestKeyInTheWindow) {
  const KvLayout layout = make({window_layer(20), full_layer()});
  for (uint64_t length = 0; length < 200; ++length) {
    const uint64_t oldest = length < 20 ? 0 : length - 19;  // keys (length - 20, length]
    EXPECT_EQ(first_visible_block(layout.groups()[0], 16, length), oldest / 16);
    EXPECT_EQ(first_visible_block(layout.groups()[1], 16, length), 0u);
  }
}

// Plays every way to grow in equal steps of at most `chunk` from every start, and counts what is held at once.
GroupNeed most_held(const KvGroup& group, uint32_t b, uint64_t tokens, uint32_t chunk) {
  GroupNeed most;
  for (uint64_t length = 0; length < tokens; ++length) {
    for (uint64_t end = length + 1; end <= std::min<uint64_t>(tokens, length + chunk); ++end) {
      const uint64_t first = first_visible_block(group, b, length);
      const uint64_t touched = (end + b - 1) / b - first, sealed = end / b - std::min(first, end / b);
      most.blocks = std::max(most.blocks, group.tail_is_block ? touched : sealed);
      if (group.tail_is_block) continue;
      const bool old_tail = length % b != 0;
      const bool new_tail = end % b != 0 && (!old_tail || end / b > length / b);
      most.tails = std::max<uint64_t>(most.tails, (old_tail ? 1 : 0) + (new_tail ? 1 : 0));
    }
  }
  return most;
}

TEST(GroupNeed, IsNeverLessThanWhatIsHeldAndHardlyMore) {
  for (const bool apart : {false, true}) {
    for (const uint32_t window : {0u, 1u, 16u, 17u, 40u}) {
      const KvLayout layout = make({window == 0 ? full_layer() : window_layer(window)}, {.separate_tails = apart});
      for (const uint64_t tokens : {1u, 15u, 16u, 17u, 33u, 100u, 128u}) {
        for (const uint32_t chunk : {1u, 2u, 7u, 16u, 64u, 200u}) {
          const GroupNeed held = most_held(layout.groups()[0], 16, tokens, chunk);
          const GroupNeed need = group_need(layout.groups()[0], 16, tokens, chunk);
          SCOPED_TRACE(std::to_string(window) + " window " + std::to_string(tokens) + " tokens " +
                       std::to_string(chunk) + " chunk");
          EXPECT_GE(need.blocks, held.blocks);
          EXPECT_GE(need.tails, held.tails);
          EXPECT_LE(need.blocks, held.blocks + (window == 0 ? 0 : 1));
          EXPECT_LE(need.tails, held.tails + 1);
        }
      }
    }
  }
}

TEST(KvLayout, BytesForASequence) {
  const KvLayout layout = make({full_layer(8, 128)});
  EXPECT_EQ(layout.bytes_for_sequence(0, 512), 0u);
  EXPECT_EQ(layout.bytes_for_sequence(1, 512), 65536u);
  EXPECT_EQ(layout.bytes_for_sequence(17, 512), 2 * 65536u);
  // A window of 512 with one token at a time: at most 33 blocks of 16, however long the sequence.
  const KvLayout window = make({window_layer(512, 8, 128)});
  EXPECT_EQ(window.bytes_for_sequence(100000, 1), 33 * 65536u);
}

}  // namespace
}  // namespace kvarto

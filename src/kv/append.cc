#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/check.h"
#include "codec/kernels.h"
#include "kv/attend.h"

namespace kvarto {
namespace {

// Values that a half float cannot hold.
uint64_t count_saturated(std::span<const float> row) {
  return static_cast<uint64_t>(std::ranges::count_if(row, [](float x) { return std::fabs(x) >= 65520.0f; }));
}

// Writes the new tokens of `rows` for one KV head, and seals the blocks they complete; returns how many values
// saturated.
uint64_t append_head(SimdTarget target, const AppendRows& rows, uint32_t head) {
  const KvView& view = *rows.view;
  const KvGroupLayer& layer = view.group->layers[rows.layer];
  const uint32_t block_tokens = view.block_tokens;
  uint64_t saturated = 0;
  for (uint32_t p = 0; p < layer.planes.size(); ++p) {
    const KvPlane& plane = layer.planes[p];
    const CodecKernels& raw = codec_kernels(target, plane.raw_dtype);
    const bool scored = plane.role != PlaneRole::mixed;
    const float* values = scored ? rows.k : rows.v;
    const size_t stride = scored ? rows.k_stride : rows.v_stride;
    const size_t sub_tile_bytes = raw.sub_tile_bytes(plane.padded_dims);
    for (uint32_t t = 0; t < rows.count; ++t) {
      const uint64_t position = rows.first_position + t;
      const auto block = static_cast<uint32_t>(position / block_tokens);
      const auto slot = static_cast<uint32_t>(position % block_tokens);
      std::byte* tile = view.raw_tile(rows.layer, head, p, block);
      const float* row = values + t * stride + size_t{head} * plane.dims;
      if (plane.raw_dtype == KvDtype::f16) saturated += count_saturated({row, plane.dims});
      (scored ? raw.write_scored : raw.write_mixed)(row, plane.dims, plane.padded_dims,
                                                    tile + slot / 16 * sub_tile_bytes, slot % 16);
      if (slot + 1 == block_tokens) {
        std::byte* sealed = view.tile(rows.layer, head, p, block);
        if (sealed != tile) codec_kernels(target, plane.dtype).seal(tile, block_tokens, plane.padded_dims, sealed);
      }
    }
  }
  return saturated;
}

}  // namespace

uint64_t append(SimdTarget target, std::span<const AppendRows> sequences, ThreadPool& pool) {
  if (sequences.empty()) return 0;
  std::atomic<uint64_t> saturated{0};
  const KvGroupLayer& layer = sequences[0].view->group->layers[sequences[0].layer];
  CHECK(has_keys_and_values(layer), "writing a latent plane is not built");
  const uint32_t heads = layer.kv_heads;
  pool.run(sequences.size() * heads, [&](size_t unit, int) {
    const uint64_t n = append_head(target, sequences[unit / heads], static_cast<uint32_t>(unit % heads));
    if (n > 0) saturated.fetch_add(n, std::memory_order_relaxed);
  });
  return saturated.load();
}

}  // namespace kvarto

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "codec/kernels.h"
#include "kv/attend.h"

namespace kvarto {
namespace {

// New rows (tokens times KV heads) up to which one worker writes them all: waking others would cost more.
constexpr size_t kFewRows = 64;

// Writes one plane of the new tokens of `rows` for one KV head, and seals the blocks they complete; returns how many
// values saturated.
uint64_t append_plane(SimdTarget target, const AppendRows& rows, uint32_t head, uint32_t plane_index) {
  const KvView& view = *rows.view;
  const KvPlane& plane = view.group->layers[rows.layer].planes[plane_index];
  const CodecKernels& raw = codec_kernels(target, plane.raw_dtype);
  const bool scored = plane.role != PlaneRole::mixed;
  const CodecKernels::Write write = scored ? raw.write_scored : raw.write_mixed;
  const size_t stride = scored ? rows.k_stride : rows.v_stride;
  const float* const values = (scored ? rows.k : rows.v) + size_t{head} * plane.dims;
  const size_t sub_tile_bytes = raw.sub_tile_bytes(plane.padded_dims);
  uint64_t saturated = 0;
  for (uint32_t t = 0; t < rows.count;) {
    const uint64_t position = rows.first_position + t;
    const auto block = static_cast<uint32_t>(position / view.block_tokens);
    const auto slot = static_cast<uint32_t>(position % view.block_tokens);
    const uint32_t tokens = std::min(16 - slot % 16, rows.count - t);
    std::byte* const tile = view.raw_tile(rows.layer, head, plane_index, block);
    saturated += write(values + t * stride, stride, tokens, plane.dims, plane.padded_dims,
                       tile + slot / 16 * sub_tile_bytes, slot % 16);
    if (slot + tokens == view.block_tokens) {
      std::byte* const sealed = view.tile(rows.layer, head, plane_index, block);
      if (sealed != tile) codec_kernels(target, plane.dtype).seal(tile, view.block_tokens, plane.padded_dims, sealed);
    }
    t += tokens;
  }
  return saturated;
}

}  // namespace

uint64_t append(SimdTarget target, std::span<const AppendRows> sequences, ThreadPool& pool) {
  if (sequences.empty()) return 0;
  const KvGroupLayer& layer = sequences[0].view->group->layers[sequences[0].layer];
  CHECK(has_keys_and_values(layer), "writing a latent plane is not built");
  const size_t planes = layer.planes.size(), parts = layer.kv_heads * planes, units = sequences.size() * parts;
  size_t rows = 0;
  for (const AppendRows& s : sequences) rows += size_t{s.count} * layer.kv_heads;
  const size_t at_once = rows <= kFewRows ? units : 1;
  std::atomic<uint64_t> saturated{0};
  pool.run((units + at_once - 1) / at_once, [&](size_t first, int) {
    uint64_t n = 0;
    for (size_t unit = first * at_once; unit < std::min(units, (first + 1) * at_once); ++unit) {
      const size_t part = unit % parts;
      n += append_plane(target, sequences[unit / parts], static_cast<uint32_t>(part / planes),
                        static_cast<uint32_t>(part % planes));
    }
    if (n > 0) saturated.fetch_add(n, std::memory_order_relaxed);
  });
  return saturated.load();
}

}  // namespace kvarto

// The codecs' kernels as tables of functions, one per SIMD target and KV dtype. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "kvarto/types.h"

namespace kvarto {

// The most queries, or rows of probabilities, that one call handles on any target.
inline constexpr size_t kMaxKernelRows = 12;
// Floats from one row of scores or probabilities to the next: a constant, so that kernels reach all rows from one
// register, and no power of two, so that rows do not crowd the same cache sets. Room for 256 keys.
inline constexpr size_t kScoreStride = 256 + 16;

// A run of sub-tiles (16 tokens of one plane of one layer and head), ascending. The kLookAhead addresses behind the run
// are read next, or are any address: kernels fetch them early and never look at them.
struct SubTiles {
  const std::byte* const* at = nullptr;
  size_t count = 0;
};
inline constexpr size_t kLookAhead = 2;

// Attention of up to `rows` queries over keys and values as they are stored. Kernel r - 1 of a list handles r rows.
struct DirectKernels {
  // out[r][16 i + t] = q . key t of sub-tile i; scored plane. q [dims][rows]; rows of `out` are kScoreStride apart.
  using Score = void (*)(const float* q, size_t dims, SubTiles keys, float* out);
  // out[r][0..padded_dims) += sum over j in [first, last) of p[r][j] * value j of the run; mixed plane. Rows of p are
  // kScoreStride apart, rows of out padded_dims.
  using Mix = void (*)(const float* p, SubTiles values, size_t first, size_t last, size_t padded_dims, float* out);

  size_t rows = 0;  // 0: none, the codec is always unsealed first
  std::array<Score, kMaxKernelRows> score{};
  std::array<Mix, kMaxKernelRows> mix{};
};

struct CodecKernels {
  size_t (*sub_tile_bytes)(size_t padded_dims);
  DirectKernels direct;
  // One sub-tile as floats in the same order, for many rows: [dims][16] of a scored plane, [16][padded_dims] of a mixed
  // one.
  void (*unseal_scored)(const std::byte* sub_tile, size_t dims, float* out);
  void (*unseal_mixed)(const std::byte* sub_tile, size_t padded_dims, float* out);
  // Raw writers: round `tokens` rows [dims] to this dtype (nearest even) into slots [slot, slot + tokens) of a
  // sub-tile; return how many values lay beyond the type's range and were saturated.
  using Write = uint64_t (*)(const float* rows, size_t stride, size_t tokens, size_t dims, size_t padded_dims,
                             std::byte* sub_tile, size_t slot);
  Write write_scored, write_mixed;
  // Raw tile (of the plane's raw dtype) to sealed tile.
  void (*seal)(const std::byte* raw, size_t tokens, size_t padded_dims, std::byte* out);
};

const CodecKernels& codec_kernels(SimdTarget target, KvDtype dtype);
// Over unsealed sub-tiles, which are in the first-level cache.
const DirectKernels& unsealed_kernels(SimdTarget target);

}  // namespace kvarto

// The codecs' kernels as tables of functions, one per SIMD target and KV dtype. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "kvarto/types.h"

namespace kvarto {

// Queries, or rows of probabilities, handled by one call.
inline constexpr size_t kMaxKernelRows = 8;

// Offsets of a sub-tile (16 tokens of one plane of one layer and head) are bytes into its tile.
struct CodecKernels {
  size_t (*sub_tile_bytes)(size_t padded_dims);
  // out[r][0..16) = q[r] . keys of the sub-tile, for rows [1, kMaxKernelRows]; scored plane. q [rows][dims].
  void (*score)(size_t rows, const float* q, size_t q_stride, size_t dims, const std::byte* sub_tile, float* out,
                size_t out_stride);
  // out[r][0..padded_dims) += sum over j in [first, last) of p[r][j] * value j; mixed plane.
  void (*mix)(size_t rows, const float* p, size_t p_stride, size_t first, size_t last, size_t padded_dims,
              const std::byte* sub_tile, float* out, size_t out_stride);
  // Raw writers: rounds row [dims] to this dtype (nearest even) into slot [0, 16) of a sub-tile.
  void (*write_scored)(const float* row, size_t dims, size_t padded_dims, std::byte* sub_tile, size_t slot);
  void (*write_mixed)(const float* row, size_t dims, size_t padded_dims, std::byte* sub_tile, size_t slot);
  // Raw tile (of the plane's raw dtype) to sealed tile.
  void (*seal)(const std::byte* raw, size_t tokens, size_t padded_dims, std::byte* out);
};

const CodecKernels& codec_kernels(SimdTarget target, KvDtype dtype);

}  // namespace kvarto

// How the files of the quantised matmul hang together: quant_matmul.cc cuts the work, quant_matmul_few.cc computes few
// rows straight from the packed form, quant_matmul_many.cc unpacks groups first. Internal; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/quant.h"
#include "ops/quant_panel.h"
#include "ops/weight/list.h"

namespace kvarto {

// The distinct shapes of the list: kernels are compiled once for each.
constexpr size_t count_quant_shapes(std::array<QuantShape, std::size(weight::kList)>& shapes) {
  size_t count = 0;
  for (const WeightFormat& format : weight::kList) {
    bool known = format.block_elements == 1;  // floats (GCC cannot compare addresses here under UBSan)
    for (size_t i = 0; i < count && !known; ++i) known = shapes[i] == format.quant->shape;
    if (!known) shapes[count++] = format.quant->shape;
  }
  return count;
}
inline constexpr auto kQuantShapes = [] {
  constexpr size_t count = [] {
    std::array<QuantShape, std::size(weight::kList)> all{};
    return count_quant_shapes(all);
  }();
  std::array<QuantShape, std::size(weight::kList)> all{};
  count_quant_shapes(all);
  std::array<QuantShape, count> shapes{};
  for (size_t i = 0; i < count; ++i) shapes[i] = all[i];
  return shapes;
}();
constexpr size_t quant_shape_index(const QuantShape& shape) {
  size_t i = 0;
  while (i < kQuantShapes.size() && !(kQuantShapes[i] == shape)) ++i;
  return i;
}

// Rows of one tile of QuantRows, all arrays from its first block on.
struct RowTile {
  size_t rows;              // of the tile: the distance between the blocks of a row
  const int8_t* codes;      // [blocks][rows][32]
  const float* scale;       // [blocks][rows]
  const float* scaled_sum;  // [blocks][rows]
  // What the dots start from because codes are unsigned, [blocks][rows], in halves [2][blocks][rows]; formats with
  // minima have none.
  const int32_t* start;
  const float* half_sums;  // [2][blocks][rows], formats with halves and minima only
};

// One row tile times one group: y[r][0 .. outputs) for its rows.
struct TileOutput {
  const float* bias;  // [outputs], or null
  float* y;
  size_t y_stride;
  size_t outputs;  // 1 .. 16
};

// The same for all groups of a matrix.
struct MatmulOutput {
  const float* bias;
  float* y;  // of the tile's first row
  size_t y_stride;
  size_t outputs;
  MatmulOutput below(size_t rows) const { return {bias, y + rows * y_stride, y_stride, outputs}; }
  TileOutput tile(size_t group) const {
    const size_t at = group * kQuantOutputs, left = outputs - at;
    return {bias == nullptr ? nullptr : bias + at, y + at, y_stride, left < kQuantOutputs ? left : kQuantOutputs};
  }
};

struct FewRowsOps {
  // By shape index.
  void (*groups[kQuantShapes.size()])(const RowTile& x, const QuantMatrix& w, size_t first_group, size_t last_group,
                                      const MatmulOutput& out);
};
struct ManyRowsOps {
  UnpackPanel unpack[kQuantShapes.size()];
  // Consecutive tiles, all whole but the last; `out` is of the first one's first row.
  void (*panel[kQuantShapes.size()])(std::span<const RowTile> x, const QuantPanel& w, size_t blocks, size_t group,
                                     const MatmulOutput& out);
};
struct QuantiseOps {
  decltype(QuantOps::quantise) quantise;
  // The tile of x that starts at row `first`, for weights of this shape; `memory`: 8 bytes per row and block of the
  // tile.
  RowTile (*tile)(const QuantRows& x, size_t first, const QuantShape& shape, std::byte* memory);
};
const FewRowsOps& few_rows_ops(SimdTarget target);
const ManyRowsOps& many_rows_ops(SimdTarget target);
// ops/quant_amx.cc. Between configure and release the calling thread may multiply panels.
const ManyRowsOps& amx_many_rows_ops();
void configure_amx();
void release_amx();
const QuantiseOps& quantise_ops(SimdTarget target);

}  // namespace kvarto

// Cuts the quantised matmul into row tiles times groups and gives few rows and many rows to their kernels.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "ops/quant_matmul_parts.h"

namespace kvarto {
namespace {

constexpr size_t kFewRows = kQuantTile;  // one tile; more are worth a panel

constexpr size_t kLeastRowsAtOnce = 64, kMostRowsAtOnce = 1024;
constexpr size_t kBytesAtOnce = size_t{768} << 10;  // of codes: they stay in the second-level cache
// Rows that the groups pass by.
constexpr size_t rows_at_once(size_t inputs) {
  return std::clamp(kBytesAtOnce / inputs / kQuantTile * kQuantTile, kLeastRowsAtOnce, kMostRowsAtOnce);
}
// Of RowTile::start or half_sums. At least what rows_at_once() take: that goes up and down with the inputs, and memory
// for many has to serve fewer too.
constexpr size_t start_bytes(size_t inputs) {
  const size_t codes = std::min(kMostRowsAtOnce * inputs, std::max(kBytesAtOnce, kLeastRowsAtOnce * inputs));
  return whole_lines(2 * codes / kQuantBlock * sizeof(int32_t));
}

struct Call {
  const QuantRows& x;
  const QuantMatrix& w;
  const float* bias;
  size_t first_group, last_group;
  float* y;
  size_t y_stride;
  std::byte* scratch;
  SimdTarget target;
  size_t shape;

  MatmulOutput output(size_t row) const { return {bias, y + row * y_stride, y_stride, w.outputs}; }
  RowTile tile(size_t row, size_t chunk) const {
    std::byte* const memory = scratch + (row - chunk) * x.blocks() * 2 * sizeof(int32_t);
    return quantise_ops(target).tile(x, row, w.format->shape, memory);
  }
};

void few_rows(const Call& c) {
  few_rows_ops(c.target).groups[c.shape](c.tile(0, 0), c.w, c.first_group, c.last_group, c.output(0));
}

// Rows [first, last) times all groups: one panel at a time, which the row tiles pass by.
void chunk_of_rows(const Call& c, size_t first, size_t last) {
  const ManyRowsOps& ops = c.target == SimdTarget::amx ? amx_many_rows_ops() : many_rows_ops(c.target);
  RowTile tiles[kMostRowsAtOnce / kQuantTile];
  size_t count = 0;
  for (size_t row = first; row < last; row += kQuantTile) tiles[count++] = c.tile(row, first);
  const size_t blocks = c.x.blocks();
  const QuantPanel panel = quant_panel_at(c.scratch + start_bytes(c.x.inputs), blocks);
  for (size_t group = c.first_group; group < c.last_group; ++group) {
    ops.unpack[c.shape](c.w, group, panel);
    ops.panel[c.shape]({tiles, count}, panel, blocks, group, c.output(first));
  }
}

template <SimdTarget kTarget>
void matmul(const QuantRows& x, const QuantMatrix& w, const float* bias, size_t first_group, size_t last_group,
            float* y, size_t y_stride, std::byte* scratch) {
  const size_t shape = quant_shape_index(w.format->shape);
  CHECK(shape < kQuantShapes.size(), "a quantised format that is not in the list has no kernel");
  const Call call{x, w, bias, first_group, last_group, y, y_stride, scratch, kTarget, shape};
  if (x.rows <= kFewRows) return few_rows(call);
  if constexpr (kTarget == SimdTarget::amx) configure_amx();
  const size_t at_once = rows_at_once(x.inputs);
  for (size_t row = 0; row < x.rows; row += at_once) chunk_of_rows(call, row, std::min(row + at_once, x.rows));
  if constexpr (kTarget == SimdTarget::amx) release_amx();
}

template <SimdTarget kTarget>
QuantOps ops() {
  return {quantise_ops(kTarget).quantise, matmul<kTarget>};
}

}  // namespace

const QuantOps& quant_ops(SimdTarget target) {
  static const std::array<QuantOps, 4> kTables = {ops<SimdTarget::scalar>(), ops<SimdTarget::avx2>(),
                                                  ops<SimdTarget::avx512>(), ops<SimdTarget::amx>()};
  return kTables[static_cast<size_t>(target)];
}

size_t quant_scratch_bytes(size_t inputs) {
  const size_t blocks = inputs / kQuantBlock;
  return start_bytes(inputs) + quant_panel_bytes(blocks);
}

}  // namespace kvarto

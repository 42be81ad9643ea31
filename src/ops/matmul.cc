// Matmul over packed weights: tiles of R rows x G groups of 16 outputs keep their sums in registers while the reduced
// dimension ascends. Blocks of the reduced dimension keep a panel of weights in the first-level cache for all rows;
// between blocks the sums wait in y, which is exact, so every output is one fused chain whatever the tile.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/matmul.cc"
#include "hwy/foreach_target.h"  // compiles what follows once per target
// after foreach_target.h
#include "base/dispatch.h"
#include "base/simd.h"
#include "ops/row_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {
namespace {

// As many sums as the registers hold, with room for G weights and one input.
#if HWY_TARGET == HWY_AVX3_DL
constexpr int kMaxRows = 6;
constexpr int groups_for(int rows) { return rows <= 2 ? 8 : 4; }
#else
constexpr int kMaxRows = 6;
constexpr int groups_for(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
#endif
constexpr size_t kDepth = 128;  // of a panel: at most 4 groups x 128 x 64 bytes when rows share it

struct Call {
  const float* x;
  size_t x_stride;
  const PackedMatrix& w;
  const float* bias;
  float* y;
  size_t y_stride;
};

// Inputs [first, last) for rows [row, row + R) and groups [group, group + G).
template <int R, int G>
void tile(const Call& c, size_t row, size_t group, size_t first, size_t last) {
  const size_t group_stride = c.w.inputs * 16;
  const float* x = c.x + row * c.x_stride;
  const float* w = c.w.data + group * group_stride;
  float* y = c.y + row * c.y_stride + group * 16;
  const size_t last_lanes = c.w.outputs - (group + G - 1) * 16;  // >= 16: the last group is whole
  const auto get = [&](const float* p, int g) HWY_ATTR {
    return g < G - 1 || last_lanes >= 16 ? load(p + g * 16) : load_n(p + g * 16, last_lanes, 0.0f);
  };
  F32x16 sum[R][G];
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) {
    if (first == 0) {
      sum[0][g] = c.bias == nullptr ? splat(0.0f) : get(c.bias + group * 16, g);
#pragma GCC unroll 8
      for (int r = 1; r < R; ++r) sum[r][g] = sum[0][g];
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r][g] = get(y + r * c.y_stride, g);
    }
  }
  for (size_t k = first; k < last; ++k) {
    F32x16 weights[G];
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) weights[g] = load(w + g * group_stride + k * 16);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F32x16 input = splat(x[r * c.x_stride + k]);
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) sum[r][g] = fma(weights[g], input, sum[r][g]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      float* p = y + r * c.y_stride + g * 16;
      if (g < G - 1 || last_lanes >= 16) {
        store(sum[r][g], p);
      } else {
        store_n(sum[r][g], p, last_lanes);
      }
    }
  }
}

// All rows of one block of inputs and one set of G groups.
template <int R, int G>
void row_tiles(const Call& c, size_t row, size_t rows, size_t group, size_t first, size_t last) {
  for (; row + R <= rows; row += R) tile<R, G>(c, row, group, first, last);
  if constexpr (R > 1) {
    if (row < rows) row_tiles<R - 1, G>(c, row, rows, group, first, last);
  }
}

// Groups [group, last_group), G at a time, the rest by smaller tiles. R: the most rows a tile may have.
template <int R, int G>
void group_tiles(const Call& c, size_t rows, size_t group, size_t last_group) {
  // One tile of rows reads each weight once: nothing to keep, so no blocks.
  const size_t depth = rows <= R ? c.w.inputs : kDepth;
  for (; group + G <= last_group; group += G) {
    size_t first = 0;
    do {
      const size_t last = c.w.inputs - first < depth ? c.w.inputs : first + depth;
      row_tiles<R, G>(c, 0, rows, group, first, last);
      first = last;
    } while (first < c.w.inputs);
  }
  if constexpr (G > 1) {
    if (group < last_group) group_tiles<R, G / 2>(c, rows, group, last_group);
  }
}

// Tiles of R rows, or of fewer when there are fewer rows.
template <int R>
void rows_at_most(const Call& c, size_t rows, size_t first_group, size_t last_group) {
  if constexpr (R > 1) {
    if (rows < R) return rows_at_most<R - 1>(c, rows, first_group, last_group);
  }
  group_tiles<R, groups_for(R)>(c, rows, first_group, last_group);
}

void matmul(const float* x, size_t x_stride, size_t rows, const PackedMatrix& w, const float* bias, size_t first_group,
            size_t last_group, float* y, size_t y_stride) {
  rows_at_most<kMaxRows>(Call{x, x_stride, w, bias, y, y_stride}, rows, first_group, last_group);
}

void gather_row(const PackedMatrix& w, size_t index, float scale, float* out) {
  const float* p = w.data + index / 16 * w.inputs * 16 + index % 16;
  for (size_t k = 0; k < w.inputs; ++k) out[k] = p[k * 16] * scale;
}

const MatmulOps kMatmulOps = {matmul, gather_row};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvarto {
KVARTO_TARGET_TABLE(MatmulOps, matmul_ops, kMatmulOps);
}  // namespace kvarto
#endif

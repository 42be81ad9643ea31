// Products of many rows on AMX int8 tiles: one tile product is 16 rows x 16 outputs x 32 inputs, so its integers are
// exact per block; they are scaled and summed as on the other targets, with the same bits. The product of the next
// blocks is issued before this one's is scaled. Intrinsics, not base/simd.h: no other target has these registers.
#include <immintrin.h>

#include <utility>

#include "ops/amx_tiles.h"
#include "ops/quant_matmul_parts.h"

#pragma GCC push_options
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 is wrong about its own intrinsics
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prfchw,amx-tile,amx-int8")

namespace kvarto {
namespace {

constexpr size_t kLanes = kQuantOutputs;
constexpr size_t kTileRows = 16;
constexpr size_t kAhead = 3;  // blocks between a tile product and its scaling
constexpr size_t kRing = 4;

// Tiles 0 and 1: sums [16 rows][16 outputs]; 2: activations [16 rows][32], 3: of half a block [16 rows][16]; 4 and 5:
// weights [8 quads][16 outputs][4]; 6 and 7: of half a block.
constexpr TileConfig kTiles = {{16, 64}, {16, 64}, {16, 32}, {16, 16}, {8, 64}, {8, 64}, {4, 64}, {4, 64}};

struct Sums {
  alignas(64) int32_t at[kRing][2][kTileRows][kLanes];  // [..][half][row][output]
};

// Issues integer products, block after block and tile after tile of rows, always kAhead blocks ahead of the scaling, so
// that the units stay busy where one tile of rows ends and the next begins. Neighbours use tiles of their own.
template <bool kHalves>
class Issuer {
 public:
  Issuer(std::span<const RowTile> x, const QuantPanel& w, size_t blocks, Sums& sums)
      : x_(x), w_(w), blocks_(blocks), sums_(sums) {
    for (size_t i = 0; i < kAhead; ++i) next();
  }

  [[gnu::always_inline]] void next() {
    if (tile_ == x_.size()) return;
    const int8_t* codes = x_[tile_].codes + block_ * x_[tile_].rows * kQuantBlock;
    const uint8_t* weights = w_.codes + block_ * kPanelCodeBytes;
    auto* out = sums_.at[issued_ % kRing];
    if constexpr (kHalves) {
      _tile_zero(0);
      _tile_loadd(3, codes, kQuantBlock);
      _tile_loadd(6, weights, 64);
      _tile_dpbssd(0, 3, 6);
      _tile_stored(0, out[0], 64);
      _tile_zero(1);
      _tile_loadd(3, codes + kQuantBlock / 2, kQuantBlock);
      _tile_loadd(7, weights + kPanelCodeBytes / 2, 64);
      _tile_dpbssd(1, 3, 7);
      _tile_stored(1, out[1], 64);
    } else if (issued_ % 2 == 0) {
      _tile_zero(0);
      _tile_loadd(2, codes, kQuantBlock);
      _tile_loadd(4, weights, 64);
      _tile_dpbssd(0, 2, 4);
      _tile_stored(0, out[0], 64);
    } else {
      _tile_zero(1);
      _tile_loadd(2, codes, kQuantBlock);
      _tile_loadd(5, weights, 64);
      _tile_dpbssd(1, 2, 5);
      _tile_stored(1, out[0], 64);
    }
    ++issued_;
    if (++block_ == blocks_) block_ = 0, ++tile_;
  }

 private:
  const std::span<const RowTile> x_;
  const QuantPanel w_;
  const size_t blocks_;
  Sums& sums_;
  size_t tile_ = 0, block_ = 0, issued_ = 0;
};

// acc [rows] += float(dot) * (dw * dx) of one block. `rows` is a constant for whole tiles, so that acc lies in
// registers.
template <bool kMinimum, bool kHalves>
[[gnu::always_inline]] inline void scale_block(const int32_t (*sums)[kTileRows][kLanes], const float* scales,
                                               const float* dx, size_t rows, __m512* acc) {
  constexpr PanelScales kAt(kMinimum, kHalves);
  const __m512 dw = _mm512_load_ps(scales + kAt.dw() * kLanes);
#pragma GCC unroll 16
  for (size_t row = 0; row < rows; ++row) {
    __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(sums[0][row]));
    if constexpr (kHalves) {
      const __m512 later = _mm512_cvtepi32_ps(_mm512_load_si512(sums[1][row]));
      dot = _mm512_mul_ps(dot, _mm512_load_ps(scales + kAt.scale(0) * kLanes));
      dot = _mm512_fmadd_ps(later, _mm512_load_ps(scales + kAt.scale(1) * kLanes), dot);
    }
    acc[row] = _mm512_fmadd_ps(dot, _mm512_mul_ps(dw, _mm512_set1_ps(dx[row])), acc[row]);
  }
}

// The chain of the minima, apart: both chains at once would not fit the registers.
template <bool kHalves>
[[gnu::always_inline]] inline void minima(const RowTile& x, const QuantPanel& w, size_t blocks, size_t rows,
                                          __m512* acc) {
  constexpr PanelScales kAt(true, kHalves);
#pragma GCC unroll 16
  for (size_t row = 0; row < rows; ++row) acc[row] = _mm512_setzero_ps();
  for (size_t block = 0; block < blocks; ++block) {
    const float* scales = w.scales + block * kAt.count() * kLanes;
    const __m512 dm = _mm512_load_ps(scales + kAt.dm() * kLanes);
#pragma GCC unroll 16
    for (size_t row = 0; row < rows; ++row) {
      const size_t at = block * x.rows + row;
      if constexpr (kHalves) {
        const float* second = x.half_sums + blocks * x.rows;
        __m512 sum =
            _mm512_mul_ps(_mm512_load_ps(scales + kAt.minimum_of(0) * kLanes), _mm512_set1_ps(x.half_sums[at]));
        sum = _mm512_fmadd_ps(_mm512_load_ps(scales + kAt.minimum_of(1) * kLanes), _mm512_set1_ps(second[at]), sum);
        acc[row] = _mm512_fmadd_ps(dm, _mm512_mul_ps(_mm512_set1_ps(x.scale[at]), sum), acc[row]);
      } else {
        acc[row] = _mm512_fmadd_ps(dm, _mm512_set1_ps(x.scaled_sum[at]), acc[row]);
      }
    }
  }
}

// One tile of rows, whose first product is number `done` of the issuer's.
template <bool kMinimum, bool kHalves>
[[gnu::always_inline]] inline void finish_tile(const RowTile& x, const QuantPanel& w, size_t blocks, size_t rows,
                                               size_t done, Issuer<kHalves>& issuer, const Sums& sums,
                                               const TileOutput& out) {
  constexpr PanelScales kAt(kMinimum, kHalves);
  const auto mask = static_cast<__mmask16>((1u << out.outputs) - 1);
  const __m512 bias = out.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, out.bias);
  __m512 acc[kTileRows];
#pragma GCC unroll 16
  for (size_t row = 0; row < rows; ++row) acc[row] = bias;
  for (size_t block = 0; block < blocks; ++block) {
    // Ready for the outputs when they are stored; all their lines at once would keep the activations waiting.
    if (block < rows) _mm_prefetch(out.y + block * out.y_stride, _MM_HINT_ET0);
    issuer.next();
    scale_block<kMinimum, kHalves>(sums.at[(done + block) % kRing], w.scales + block * kAt.count() * kLanes,
                                   x.scale + block * x.rows, rows, acc);
  }
  if constexpr (kMinimum) {
    alignas(64) float first[kTileRows][kLanes];
#pragma GCC unroll 16
    for (size_t row = 0; row < rows; ++row) _mm512_store_ps(first[row], acc[row]);
    minima<kHalves>(x, w, blocks, rows, acc);
#pragma GCC unroll 16
    for (size_t row = 0; row < rows; ++row) acc[row] = _mm512_add_ps(_mm512_load_ps(first[row]), acc[row]);
  }
#pragma GCC unroll 16
  for (size_t row = 0; row < rows; ++row) _mm512_mask_storeu_ps(out.y + row * out.y_stride, mask, acc[row]);
}

template <bool kMinimum, bool kHalves>
void panel_times_rows(std::span<const RowTile> x, const QuantPanel& w, size_t blocks, size_t group,
                      const MatmulOutput& out) {
  Sums sums;
  Issuer<kHalves> issuer(x, w, blocks, sums);
  for (size_t tile = 0; tile < x.size(); ++tile) {
    const TileOutput to = out.below(tile * kTileRows).tile(group);
    if (x[tile].rows == kTileRows) {
      finish_tile<kMinimum, kHalves>(x[tile], w, blocks, kTileRows, tile * blocks, issuer, sums, to);
    } else {
      finish_tile<kMinimum, kHalves>(x[tile], w, blocks, x[tile].rows, tile * blocks, issuer, sums, to);
    }
  }
}

// The products are of signed bytes: less the zero, every format's codes fit (Q8_0: -128 to 127).
template <QuantShape S>
void unpack(const QuantMatrix& w, size_t group, const QuantPanel& out) {
  panel_unpacker(SimdTarget::avx512, S)(w, group, out);
  if constexpr (S.zero == 0) return;
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(S.zero));
  for (size_t at = 0; at < w.blocks() * kPanelCodeBytes; at += 64) {
    _mm512_store_si512(out.codes + at, _mm512_sub_epi8(_mm512_load_si512(out.codes + at), zero));
  }
}

template <size_t... I>
constexpr ManyRowsOps all_shapes(std::index_sequence<I...>) {
  return {{unpack<kQuantShapes[I]>...},
          {panel_times_rows<has_minimum(kQuantShapes[I].scale), has_halves(kQuantShapes[I].scale)>...}};
}

}  // namespace

void configure_amx() { _tile_loadconfig(&kTiles); }
void release_amx() { _tile_release(); }

const ManyRowsOps& amx_many_rows_ops() {
  static constexpr ManyRowsOps kOps = all_shapes(std::make_index_sequence<kQuantShapes.size()>());
  return kOps;
}

}  // namespace kvarto
#pragma GCC pop_options

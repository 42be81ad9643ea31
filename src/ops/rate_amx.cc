// The int8 loop of rate_kernels.h on AMX tiles: one tile product is 16 rows x 16 outputs x 32 values; it is stored,
// scaled and summed in float while later products are under way.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "ops/amx_tiles.h"
#include "ops/rate_kernels.h"

#pragma GCC push_options
#pragma GCC target("avx512f,amx-tile,amx-int8")

namespace kvarto {
namespace {

constexpr size_t kRows = 16, kLanes = 16, kDepth = 32;
constexpr size_t kBlocks = 16;  // of a round
constexpr size_t kAhead = 3, kRing = 4;

// Tiles 0 and 1: sums; 2 and 3: rows; 4 and 5: weights.
constexpr TileConfig kTiles = {{kRows, 64},     {kRows, 64},      {kRows, kDepth},
                               {kRows, kDepth}, {kDepth / 4, 64}, {kDepth / 4, 64}};

struct Data {
  alignas(64) int8_t x[kBlocks][kRows][kDepth];
  alignas(64) int8_t codes[kBlocks][kDepth / 4][64];
  alignas(64) float weight_scale[kBlocks][kLanes];
  float x_scale[kBlocks][kRows];
  alignas(64) int32_t sums[kRing][kRows][kLanes];
};

// Neighbouring blocks use tiles of their own, so that they overlap.
[[gnu::always_inline]] inline void multiply(Data& data, size_t at) {
  const size_t block = at % kBlocks;
  if (at % 2 == 0) {
    _tile_zero(0);
    _tile_loadd(2, data.x[block], kDepth);
    _tile_loadd(4, data.codes[block], 64);
    _tile_dpbssd(0, 2, 4);
    _tile_stored(0, data.sums[at % kRing], 64);
  } else {
    _tile_zero(1);
    _tile_loadd(3, data.x[block], kDepth);
    _tile_loadd(5, data.codes[block], 64);
    _tile_dpbssd(1, 3, 5);
    _tile_stored(1, data.sums[at % kRing], 64);
  }
}

void int8_rounds(size_t rounds, float* out) {
  Data data;
  std::memset(data.x, 3, sizeof data.x);
  std::memset(data.codes, 7, sizeof data.codes);
  for (auto& block : data.weight_scale) _mm512_store_ps(block, _mm512_set1_ps(0x1p-20f));
  for (auto& block : data.x_scale) _mm512_storeu_ps(block, _mm512_set1_ps(0x1p-10f));
  _tile_loadconfig(&kTiles);
  __m512 acc[kRows];
#pragma GCC unroll 16
  for (size_t row = 0; row < kRows; ++row) acc[row] = _mm512_setzero_ps();
  for (size_t at = 0; at < kAhead; ++at) multiply(data, at);
  for (size_t at = 0; at < rounds * kBlocks; ++at) {
    multiply(data, at + kAhead);
    const size_t block = at % kBlocks;
    const __m512 dw = _mm512_load_ps(data.weight_scale[block]);
    const auto& sums = data.sums[at % kRing];
#pragma GCC unroll 16
    for (size_t row = 0; row < kRows; ++row) {
      const __m512 dot = __builtin_convertvector((__v16si)_mm512_load_si512(sums[row]), __m512);
      acc[row] = _mm512_fmadd_ps(dot, _mm512_mul_ps(dw, _mm512_set1_ps(data.x_scale[block][row])), acc[row]);
    }
  }
  _tile_release();
#pragma GCC unroll 16
  for (size_t row = 1; row < kRows; ++row) acc[0] = _mm512_add_ps(acc[0], acc[row]);
  _mm512_storeu_ps(out, acc[0]);
}

}  // namespace

RateLoop amx_int8_loop() { return {int8_rounds, 2.0 * kRows * kLanes * kDepth * kBlocks}; }

}  // namespace kvarto
#pragma GCC pop_options

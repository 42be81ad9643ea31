// Activations to int8 per 32 values, with the sums that weights with a minimum or a zero need, and what a kernel makes
// of these sums for one format.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantise.cc"
#include "hwy/foreach_target.h"  // compiles what follows once per target
// after foreach_target.h
#include <algorithm>
#include <limits>

#include "base/dispatch.h"
#include "ops/quant_tile.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {
namespace {

// Blocks of one row that go through each step together: one block's steps wait for each other, sixteen overlap.
constexpr size_t kStrip = 16;
struct Strip {
  size_t count;
  const float* x;  // [count][32]
  int8_t* codes;   // of the first block; the next is `stride` further
  size_t stride;
  float scale[kStrip], inverse[kStrip];
};

// Whether all scales are such that their inverse is finite.
HWY_INLINE bool find_scales(Strip& s) {
  bool ordinary = true;
  for (size_t i = 0; i < s.count; ++i) {
    const float* x = s.x + i * kQuantBlock;
    const uint32_t largest = largest_magnitude(load(x), load(x + 16));
    const float d = std::bit_cast<float>(largest) / 127.0f;
    s.scale[i] = largest < 0x7f800000u ? d : std::numeric_limits<float>::quiet_NaN();
    ordinary &= s.scale[i] >= 0x1p-100f;
  }
  return ordinary;
}

// Codes through products with 1 / d, where they are sure to be those of the definition: a product and the float nearest
// to x / d are within 2^-15 of each other (both below 128, three roundings), so they round to the same whole number
// unless the product is that close to a tie.
HWY_INLINE bool fast_codes(Strip& s) {
  store(splat(1.0f) / load(s.scale), s.inverse);
  F32x16 farthest = splat(0.0f);
  for (size_t i = 0; i < s.count; ++i) {
    const F32x16 inverse = splat(s.inverse[i]);
    const F32x16 a = load(s.x + i * kQuantBlock) * inverse, b = load(s.x + i * kQuantBlock + 16) * inverse;
    const F32x16 whole_a = round_even(a), whole_b = round_even(b);
    farthest = max(farthest, max(abs(a - whole_a), abs(b - whole_b)));
    store_i8(to_i8(whole_a, whole_b), s.codes + i * s.stride);
  }
  return all_below(farthest, 0.5f - 0x1p-15f);
}
void exact_codes(const Strip& s) {
  for (size_t i = 0; i < s.count; ++i) {
    const float* x = s.x + i * kQuantBlock;
    int8_t* codes = s.codes + i * s.stride;
    if (s.scale[i] > 0.0f) {
      const F32x16 d = splat(s.scale[i]);
      store_i8(to_i8(round_even(load(x) / d), round_even(load(x + 16) / d)), codes);
    } else {
      std::memset(codes, 0, kQuantBlock);
    }
  }
}

void quantise_row(const float* x, size_t row, const QuantRows& out) {
  const size_t blocks = out.blocks(), tile = row / kQuantTile * kQuantTile, rows = out.tile_rows(tile);
  Strip s;
  std::fill(s.scale, s.scale + kStrip, 1.0f);
  for (size_t first = 0; first < blocks; first += kStrip) {
    size_t at = tile * blocks + first * rows + (row - tile);  // of the block in the arrays of all rows
    s.count = std::min(kStrip, blocks - first);
    s.x = x + first * kQuantBlock;
    s.codes = out.codes + at * kQuantBlock;
    s.stride = rows * kQuantBlock;
    if (!find_scales(s) || !fast_codes(s)) exact_codes(s);
    int32_t* half_sums_at = out.half_sums + tile * blocks + at;
    for (size_t i = 0; i < s.count; ++i, at += rows, half_sums_at += rows) {
      int32_t sums[2];
      half_sums(load_i8(s.codes + i * s.stride), sums);
      out.scale[at] = s.scale[i];
      out.scaled_sum[at] = s.scale[i] * static_cast<float>(sums[0] + sums[1]);
      half_sums_at[0] = sums[0];
      half_sums_at[blocks * rows] = sums[1];
    }
  }
}

void quantise(const float* x, size_t first, size_t last, const QuantRows& out) {
  for (size_t row = first; row < last; ++row) quantise_row(x + row * out.inputs, row, out);
}

// out[i] = a[i] * factor, as integers.
void multiply(const int32_t* a, size_t n, int32_t factor, int32_t* out) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) store_int(load_int(a + i) * splat_int(factor), out + i);
  for (; i < n; ++i) out[i] = a[i] * factor;
}
// out[i] = (a[i] + b[i]) * factor
void add_multiply(const int32_t* a, const int32_t* b, size_t n, int32_t factor, int32_t* out) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) store_int((load_int(a + i) + load_int(b + i)) * splat_int(factor), out + i);
  for (; i < n; ++i) out[i] = (a[i] + b[i]) * factor;
}
void convert(const int32_t* a, size_t n, float* out) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) store(to_float(load_int(a + i)), out + i);
  for (; i < n; ++i) out[i] = static_cast<float>(a[i]);
}

// The tile of x that starts at row `first`. `memory` holds 8 bytes per row and block for it.
RowTile tile_at(const QuantRows& x, size_t first, const QuantShape& shape, std::byte* memory) {
  const size_t blocks = x.blocks(), rows = x.tile_rows(first), n = blocks * rows;
  const int32_t* sums = x.half_sums + 2 * first * blocks;
  auto* start = reinterpret_cast<int32_t*>(memory);
  auto* floats = reinterpret_cast<float*>(memory);
  const int32_t factor = (is_wide(shape) ? kWideZero : 0) - int32_t{shape.zero};
  if (has_minimum(shape.scale)) {
    if (has_halves(shape.scale)) convert(sums, 2 * n, floats);
  } else if (has_halves(shape.scale)) {
    multiply(sums, 2 * n, factor, start);
  } else {
    add_multiply(sums, sums + n, n, factor, start);
  }
  return {rows, x.codes + first * x.inputs, x.scale + first * blocks, x.scaled_sum + first * blocks, start, floats};
}

constexpr QuantiseOps kQuantiseOps = {quantise, tile_at};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvarto {
KVARTO_TARGET_TABLE(QuantiseOps, quantise_ops, kQuantiseOps);
}  // namespace kvarto
#endif

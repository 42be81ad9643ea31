// The one inner loop of the quantised matmul: R rows times a group of 16 outputs, blocks ascending, as ops/quant.h
// defines the sums. What a group is made of (packed, or a panel) comes as a type with
//   kScales   which scales a block has         kRun   quads that dot_add may add up, 0: dot_wide
//   quad<J>(block)   codes of quad J           load_scales(block, scales)
// Included by kernel files like base/simd.h, which see for the toggled guard.
#if defined(KVARTO_OPS_QUANT_TILE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTO_OPS_QUANT_TILE_H_
#undef KVARTO_OPS_QUANT_TILE_H_
#else
#define KVARTO_OPS_QUANT_TILE_H_
#endif

#include <algorithm>

#include "base/simd.h"
#include "base/simd_int8.h"
#include "ops/quant_matmul_parts.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

constexpr int kQuads = static_cast<int>(kQuantBlock / 4);

// Sanitizers take minutes to compile what is unrolled over many rows: they get smaller tiles.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr bool is_wide(const QuantShape& s) { return s.table || s.bits == 8; }
// The whole block at most; a half where the halves are summed apart.
constexpr int quads_per_run(const QuantShape& s) {
  if (is_wide(s)) return 0;
  const int most = has_halves(s.scale) ? kQuads / 2 : kQuads;
  const int run = dot_run((1 << s.bits) - 1);
  return run >= most ? most : run >= 4 ? 4 : 2;
}

// The kernels rely on it: dots of formats with minima start from 0, since there is no zero to take off, and their codes
// are as narrow as dot_add wants them.
static_assert(std::ranges::all_of(kQuantShapes, [](const QuantShape& s) {
  return !has_minimum(s.scale) || (s.zero == 0 && !is_wide(s));
}));

struct BlockScales {
  F32x16 dw, dm, scale[2], minimum[2];
};

template <QuantShape S>
struct PackedGroup {
  static constexpr PanelScales kScales{S.scale};
  static constexpr int kRun = quads_per_run(S);
  const std::byte* codes;
  const std::byte* scales;
  const std::byte* supers;
  const uint8_t* table;

  HWY_INLINE PackedGroup(const QuantMatrix& w, size_t group) {
    codes = w.group(group);
    scales = codes + w.scales_offset();
    supers = codes + w.supers_offset();
    table = w.format->table;
  }
  // The group that lies `bytes` behind this one.
  HWY_INLINE PackedGroup behind(size_t bytes) const {
    PackedGroup other = *this;
    other.codes += bytes;
    other.scales += bytes;
    other.supers += bytes;
    return other;
  }

  template <int J>
  HWY_INLINE U8x64 quad(size_t block) const {
    const std::byte* p = codes + block * S.code_bytes();
    if constexpr (S.bits == 8) {
      return load_u8(p + 64 * J);
    } else if constexpr (S.bits < 4) {
      const U8x64 low = move_bits<2 * (J % 4), 0, 2>(load_u8(p + 64 * (J / 4)));
      if constexpr (S.bits == 2) return low;
      if constexpr (S.bits == 3) return low | move_bits<J, 2, 1>(load_u8(p + 128));
    } else {
      const U8x64 low = move_bits<4 * (J % 2), 0, 4>(load_u8(p + 64 * (J / 2)));
      if constexpr (S.table) return lookup(load_table(table), low);
      if constexpr (S.bits == 4) return low;
      if constexpr (S.bits == 5) return low | move_bits<J, 4, 1>(load_u8(p + 256));
      if constexpr (S.bits == 6) return low | move_bits<2 * (J % 4), 4, 2>(load_u8(p + 256 + 64 * (J / 4)));
    }
  }

  HWY_INLINE void load_scales(size_t block, BlockScales& out) const {
    const std::byte* p = scales + block * scale_bytes(S.scale);
    const auto* halves = reinterpret_cast<const uint16_t*>(p);
    if constexpr (S.scale == QuantScale::single) out.dw = load(reinterpret_cast<const float*>(p));
    if constexpr (S.scale == QuantScale::half || S.scale == QuantScale::half_min) out.dw = load_f16(halves);
    if constexpr (S.scale == QuantScale::half_min) out.dm = load_f16(halves + 16);
    if constexpr (has_super(S.scale)) {
      const auto* super = reinterpret_cast<const uint16_t*>(supers + block / kSuperBlocks * super_bytes(S.scale));
      out.dw = load_f16(super);
      if constexpr (has_minimum(S.scale)) out.dm = load_f16(super + 16);
    }
    if constexpr (S.scale == QuantScale::super) out.dw = out.dw * load_i8_as_float(p);
    if constexpr (S.scale == QuantScale::super_min) {
      out.dw = out.dw * load_u8_as_float(p);
      out.dm = out.dm * load_u8_as_float(p + 16);
    }
    if constexpr (S.scale == QuantScale::super16) {
      out.scale[0] = load_i8_as_float(p);
      out.scale[1] = load_i8_as_float(p + 16);
    }
    if constexpr (S.scale == QuantScale::super16_min) {
      out.scale[0] = load_u8_as_float(p);
      out.scale[1] = load_u8_as_float(p + 16);
      out.minimum[0] = load_u8_as_float(p + 32);
      out.minimum[1] = load_u8_as_float(p + 48);
    }
  }
};

// Quads [J, End) of a block for R rows: sum[r] += codes * x[r]. x: the rows' 32 codes of the block, one after the
// other.
template <class Group, int J, int End, int R>
HWY_INLINE void add_wide(const Group& w, size_t block, const int8_t* x, I32x16* sum) {
  if constexpr (J < End) {
    const U8x64 codes = w.template quad<J>(block);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = dot_wide(sum[r], codes, load_i8x4(x + r * kQuantBlock + 4 * J));
    add_wide<Group, J + 1, End, R>(w, block, x, sum);
  }
}
template <class Group, int J, int End, int R>
HWY_INLINE void add_run(const Group& w, size_t block, const int8_t* x, DotRun* run) {
  if constexpr (J < End) {
    const U8x64 codes = w.template quad<J>(block);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) run[r] = dot_add(run[r], codes, load_i8x4(x + r * kQuantBlock + 4 * J));
    add_run<Group, J + 1, End, R>(w, block, x, run);
  }
}
template <class Group, int J, int End, int R>
HWY_INLINE void add_runs(const Group& w, size_t block, const int8_t* x, I32x16* sum) {
  if constexpr (J < End) {
    constexpr int kNext = End - J < Group::kRun ? End : J + Group::kRun;
    DotRun run[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) run[r] = dot_start(sum[r]);
    add_run<Group, J, kNext, R>(w, block, x, run);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = dot_end(sum[r], run[r]);
    add_runs<Group, kNext, End, R>(w, block, x, sum);
  }
}
// Floats of the dots over quads [J, End), which start from start[r], or 0 where there are minima.
template <class Group, int J, int End, int R>
HWY_INLINE void dots(const Group& w, size_t block, const int8_t* x, const int32_t* start, F32x16* out) {
  I32x16 sum[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r] = splat_int(Group::kScales.minimum ? 0 : start[r]);
  if constexpr (Group::kRun == 0) {
    add_wide<Group, J, End, R>(w, block, x, sum);
  } else {
    add_runs<Group, J, End, R>(w, block, x, sum);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) out[r] = to_float(sum[r]);
}

// The rows [first, ..) of a tile, at one of its blocks.
struct RowCursor {
  size_t rows, half;  // from a row's block to its next; to the second plane of what is kept per half
  const int8_t* codes;
  const float* scale;
  const float* scaled_sum;
  const int32_t* start;
  const float* half_sums;

  HWY_INLINE RowCursor(const RowTile& x, size_t first, size_t blocks)
      : rows(x.rows),
        half(blocks * x.rows),
        codes(x.codes + first * kQuantBlock),
        scale(x.scale + first),
        scaled_sum(x.scaled_sum + first),
        start(x.start + first),
        half_sums(x.half_sums + first) {}
  template <class Group>
  HWY_INLINE void next_block() {
    codes += rows * kQuantBlock;
    scale += rows;
    if constexpr (!Group::kScales.minimum) start += rows;
    if constexpr (Group::kScales.minimum && !Group::kScales.halves) scaled_sum += rows;
    if constexpr (Group::kScales.minimum && Group::kScales.halves) half_sums += rows;
  }
};

// One block for R rows.
template <class Group, int R>
HWY_INLINE void add_block(const Group& w, size_t block, const RowCursor& x, F32x16* acc, F32x16* accm) {
  constexpr PanelScales kScales = Group::kScales;
  BlockScales s;
  w.load_scales(block, s);
  F32x16 dot[R];
  if constexpr (kScales.halves) {
    F32x16 second[R];
    dots<Group, 0, kQuads / 2, R>(w, block, x.codes, x.start, dot);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) dot[r] = dot[r] * s.scale[0];
    dots<Group, kQuads / 2, kQuads, R>(w, block, x.codes, x.start + x.half, second);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) dot[r] = fma(second[r], s.scale[1], dot[r]);  // exact: integers below 2^24
  } else {
    dots<Group, 0, kQuads, R>(w, block, x.codes, x.start, dot);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) acc[r] = fma(dot[r], s.dw * splat(x.scale[r]), acc[r]);
  if constexpr (kScales.minimum && kScales.halves) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F32x16 second = s.minimum[1] * splat(x.half_sums[x.half + static_cast<size_t>(r)]);
      const F32x16 sum = fma(s.minimum[0], splat(x.half_sums[r]), second);  // exact
      accm[r] = fma(s.dm, splat(x.scale[r]) * sum, accm[r]);
    }
  } else if constexpr (kScales.minimum) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) accm[r] = fma(s.dm, splat(x.scaled_sum[r]), accm[r]);
  }
}

// body.template operator()<R>(first) for R rows at a time; the last ones overlap those before, which writes the same
// values again. Fewer rows than R: half as many at a time.
template <int R, class Body>
HWY_INLINE void row_tiles(size_t rows, const Body& body) {
  if constexpr (R > 1) {
    if (rows < R) return row_tiles<R / 2>(rows, body);
  }
  for (size_t next = 0; next < rows; next += R) body.template operator()<R>(next + R <= rows ? next : rows - R);
}

template <int R>
HWY_INLINE void start_sums(const TileOutput& out, F32x16* acc, F32x16* accm) {
  const F32x16 bias = out.bias == nullptr ? splat(0.0f)
                      : out.outputs < 16  ? load_n(out.bias, out.outputs, 0.0f)
                                          : load(out.bias);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    acc[r] = bias;
    accm[r] = splat(0.0f);
  }
}
template <class Group, int R>
HWY_INLINE void store_sums(const F32x16* acc, const F32x16* accm, size_t first, const TileOutput& out) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const F32x16 y = Group::kScales.minimum ? acc[r] + accm[r] : acc[r];
    float* p = out.y + (first + static_cast<size_t>(r)) * out.y_stride;
    if (out.outputs < 16) {
      store_n(y, p, out.outputs);
    } else {
      store(y, p);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#endif  // toggled guard

// Many rows: a group's codes and scales are unpacked once into a panel, which all rows read.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant_matmul_many.cc"
#include "hwy/foreach_target.h"  // compiles what follows once per target
// after foreach_target.h
#include <utility>

#include "base/dispatch.h"
#include "ops/quant_tile.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {
namespace {

// As many rows as the registers hold. Only AVX2 cares how wide the codes are.
#if HWY_TARGET == HWY_AVX3_DL
constexpr int kRows = kSanitized ? 2 : 8;
constexpr int kernel_run(int) { return kQuads; }
#elif HWY_TARGET == HWY_AVX2
constexpr int kRows = 2;
constexpr int kernel_run(int run) { return run; }
#else
constexpr int kRows = 1;
constexpr int kernel_run(int) { return kQuads; }
#endif

template <int J>
HWY_INLINE void store_quads(const auto& group, size_t block, uint8_t* out) {
  if constexpr (J < kQuads) {
    store_u8(group.template quad<J>(block), out + 64 * J);
    store_quads<J + 1>(group, block, out);
  }
}

template <QuantShape S>
void unpack(const QuantMatrix& w, size_t group, const QuantPanel& out) {
  constexpr PanelScales kScales{S.scale};
  const PackedGroup<S> packed(w, group);
  for (size_t b = 0; b < w.blocks(); ++b) {
    store_quads<0>(packed, b, out.codes + b * kPanelCodeBytes);
    BlockScales s;
    packed.load_scales(b, s);
    float* to = out.scales + b * kScales.count() * 16;
    store(s.dw, to + 16 * kScales.dw());
    if constexpr (kScales.minimum) store(s.dm, to + 16 * kScales.dm());
    if constexpr (kScales.halves) {
      for (size_t half = 0; half < 2; ++half) store(s.scale[half], to + 16 * kScales.scale(half));
    }
    if constexpr (kScales.minimum && kScales.halves) {
      for (size_t half = 0; half < 2; ++half) store(s.minimum[half], to + 16 * kScales.minimum_of(half));
    }
  }
}

template <bool kMinimum, bool kHalves, int kQuadsPerRun>
struct PanelGroup {
  static constexpr PanelScales kScales{kMinimum, kHalves};
  static constexpr int kRun = kQuadsPerRun;
  const uint8_t* codes;
  const float* scales;

  template <int J>
  HWY_INLINE U8x64 quad(size_t block) const {
    return load_u8(codes + block * kPanelCodeBytes + 64 * J);
  }
  HWY_INLINE void load_scales(size_t block, BlockScales& out) const {
    const float* p = scales + block * kScales.count() * 16;
    out.dw = load(p + 16 * kScales.dw());
    if constexpr (kMinimum) out.dm = load(p + 16 * kScales.dm());
    if constexpr (kHalves) {
      for (size_t half = 0; half < 2; ++half) out.scale[half] = load(p + 16 * kScales.scale(half));
    }
    if constexpr (kMinimum && kHalves) {
      for (size_t half = 0; half < 2; ++half) out.minimum[half] = load(p + 16 * kScales.minimum_of(half));
    }
  }
};

// Rows [first, first + R) of a tile times a panel.
template <class Group, int R>
HWY_INLINE void tile(const RowTile& x, size_t first, const Group& w, size_t blocks, const TileOutput& out) {
  F32x16 acc[R], accm[R];
  start_sums<R>(out, acc, accm);
  RowCursor cursor(x, first, blocks);
  for (size_t b = 0; b < blocks; ++b) {
    // Ready for the outputs when they are stored, a line per block.
    if (b < R) __builtin_prefetch(out.y + (first + b) * out.y_stride, 1);
    add_block<Group, R>(w, b, cursor, acc, accm);
    cursor.next_block<Group>();
  }
  store_sums<Group, R>(acc, accm, first, out);
}

template <bool kMinimum, bool kHalves, int kQuadsPerRun>
void panel_times_rows(std::span<const RowTile> x, const QuantPanel& w, size_t blocks, size_t group,
                      const MatmulOutput& out) {
  using Group = PanelGroup<kMinimum, kHalves, kQuadsPerRun>;
  const Group panel{w.codes, w.scales};
  for (size_t i = 0; i < x.size(); ++i) {
    const TileOutput to = out.below(i * kQuantTile).tile(group);
    row_tiles<kRows>(x[i].rows, [&]<int R>(size_t first) HWY_ATTR { tile<Group, R>(x[i], first, panel, blocks, to); });
  }
}

template <size_t... I>
constexpr ManyRowsOps all_shapes(std::index_sequence<I...>) {
  return {{unpack<kQuantShapes[I]>...},
          {panel_times_rows<has_minimum(kQuantShapes[I].scale), has_halves(kQuantShapes[I].scale),
                            kernel_run(quads_per_run(kQuantShapes[I]))>...}};
}
constexpr ManyRowsOps kManyRowsOps = all_shapes(std::make_index_sequence<kQuantShapes.size()>());

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvarto {
KVARTO_TARGET_TABLE(ManyRowsOps, many_rows_ops, kManyRowsOps);

UnpackPanel panel_unpacker(SimdTarget target, const QuantShape& shape) {
  return many_rows_ops(target).unpack[quant_shape_index(shape)];
}
}  // namespace kvarto
#endif

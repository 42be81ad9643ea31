// Few rows: weights straight from the packed form, unpacked in registers for a handful of rows at a time. One row is
// bound by how fast memory gives the weights.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant_matmul_few.cc"
#include "hwy/foreach_target.h"  // compiles what follows once per target
// after foreach_target.h
#include <utility>

#include "base/dispatch.h"
#include "ops/quant_tile.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {
namespace {

// The sums wait in the first-level cache, so rows are limited by the integers alone.
#if HWY_TARGET == HWY_AVX3_DL
constexpr int kRows = kSanitized ? 1 : 8;
#elif HWY_TARGET == HWY_AVX2
constexpr int kRows = kSanitized ? 1 : 4;
#else
constexpr int kRows = 1;
#endif

// Groups side by side: memory serves four streams half as fast again as one, whose prefetcher ends at every page.
constexpr size_t kStreams = 4;
constexpr size_t kAheadBlocks = 8;

// Asks for the block kAheadBlocks ahead of `block`, in the group or in the one that comes when it is done.
template <QuantShape S>
struct Prefetch {
  size_t codes, scales;  // offsets from the group's
  HWY_INLINE Prefetch(size_t block, size_t blocks, size_t group_bytes) {
    const size_t ahead = block + kAheadBlocks;
    const bool here = ahead < blocks;
    codes = here ? ahead * S.code_bytes() : kStreams * group_bytes + (ahead - blocks) * S.code_bytes();
    scales = here ? ahead * scale_bytes(S.scale) : kStreams * group_bytes + (ahead - blocks) * scale_bytes(S.scale);
  }
  HWY_INLINE void ask(const PackedGroup<S>& w) const {
    ask_lines(w.codes + codes, std::make_index_sequence<S.code_bytes() / 64>());
    __builtin_prefetch(w.scales + scales);
  }
  template <size_t... kLine>
  static HWY_INLINE void ask_lines(const std::byte* p, std::index_sequence<kLine...>) {
    (__builtin_prefetch(p + 64 * kLine), ...);
  }
};

// Loads behind this line stay behind it: the rows' codes are read by broadcasts anew for every group, which costs
// nothing, where the compiler would hoist all of them out of the loop and spill them.
HWY_INLINE void keep_in_place() { __asm__ volatile("" ::: "memory"); }

// Rows [first, first + R) of a tile times groups [group, group + count).
template <QuantShape S, int R>
HWY_INLINE void tile(const RowTile& x, size_t first, const QuantMatrix& w, size_t group, size_t count,
                     const MatmulOutput& out) {
  using Group = PackedGroup<S>;
  const size_t blocks = w.blocks(), group_bytes = w.group_bytes();
  F32x16 acc[kStreams][R], accm[kStreams][R];
  for (size_t g = 0; g < count; ++g) start_sums<R>(out.tile(group + g), acc[g], accm[g]);
  const Group leader(w, group);
  RowCursor cursor(x, first, blocks);
  for (size_t b = 0; b < blocks; ++b) {
    const Prefetch<S> prefetch(b, blocks, group_bytes);
    for (size_t g = 0; g < count; ++g) {
      keep_in_place();
      const Group member = leader.behind(g * group_bytes);
      prefetch.ask(member);
      add_block<Group, R>(member, b, cursor, acc[g], accm[g]);
    }
    cursor.next_block<Group>();
  }
  for (size_t g = 0; g < count; ++g) store_sums<Group, R>(acc[g], accm[g], first, out.tile(group + g));
}

template <QuantShape S>
void groups_times_rows(const RowTile& x, const QuantMatrix& w, size_t first_group, size_t last_group,
                       const MatmulOutput& out) {
  for (size_t group = first_group; group < last_group; group += kStreams) {
    const size_t count = last_group - group < kStreams ? last_group - group : kStreams;
    row_tiles<kRows>(x.rows, [&]<int R>(size_t first) HWY_ATTR { tile<S, R>(x, first, w, group, count, out); });
  }
}

template <size_t... I>
constexpr FewRowsOps all_shapes(std::index_sequence<I...>) {
  return {{groups_times_rows<kQuantShapes[I]>...}};
}
constexpr FewRowsOps kFewRowsOps = all_shapes(std::make_index_sequence<kQuantShapes.size()>());

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvarto {
KVARTO_TARGET_TABLE(FewRowsOps, few_rows_ops, kFewRowsOps);
}  // namespace kvarto
#endif

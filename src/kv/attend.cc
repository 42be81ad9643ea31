#include "kv/attend.h"

#include <algorithm>
#include <limits>

#include "base/fault.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kv/attend.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h: compiled once per target.
#include "base/simd.h"
#include "base/simd_math.h"
#include "codec/kernels.h"
#include "kv/softmax_state.h"

#ifndef KVARTO_ATTEND_TILE_ONCE
#define KVARTO_ATTEND_TILE_ONCE
namespace kvarto {

// The rows of one unit: the query heads of one KV head, over tokens that share their own (raw) 16-token sub-tile. Row
// r = token * group + head; positions ascend with the token.
struct AttendTile {
  const KvView* view = nullptr;
  uint32_t layer = 0, head = 0;
  uint64_t first_position = 0;
  uint32_t tokens = 0, group = 0;
  uint32_t window = 0;  // 0: none
  const AttentionShape* shape = nullptr;
  const float* q = nullptr;  // [rows][key_dim], gathered
  float* scores = nullptr;   // [rows][kSplitTokens]
  size_t rows() const { return size_t{tokens} * group; }
  uint64_t position(size_t row) const { return first_position + row / group; }
  // Newest key that the row sees: its own.
  uint64_t newest(size_t row) const {
    return fault(9) ? std::min(position(row) + 1, position(row) | 15) : position(row);
  }
  // Oldest key that the row sees.
  uint64_t oldest(size_t row) const {
    const uint64_t p = position(row);
    return window == 0 || p + 1 < window ? 0 : p + (fault(10) ? 2 : 1) - window;
  }
};

// What a target offers. Partial states are max_sum [rows][2] and out [rows][padded_dims].
struct AttendKernels {
  // The states of all rows over one split.
  void (*split)(SimdTarget, const AttendTile&, uint64_t split, float* max_sum, float* out);
  // Merges later states into earlier ones, row by row.
  void (*merge)(size_t rows, size_t padded_dims, float* into_max_sum, float* into_out, const float* max_sum,
                float* out);
  // One row's result [dims].
  void (*finish)(const float* max_sum, float* out, const float* sink, size_t dims, float* result);
};

}  // namespace kvarto
#endif

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {

// Address of the 16-token sub-tile that holds position `key`: raw when it lies in the rows' own block, sealed before
// it.
struct SubTile {
  const CodecKernels* kernels;
  const std::byte* bytes;
};
HWY_INLINE SubTile sub_tile(SimdTarget target, const AttendTile& tile, uint32_t plane_index, uint64_t key) {
  const KvView& view = *tile.view;
  const KvPlane& plane = view.group->layers[tile.layer].planes[plane_index];
  const auto block = static_cast<uint32_t>(key / view.block_tokens);
  const bool own = block == tile.first_position / view.block_tokens;
  const CodecKernels& kernels = codec_kernels(target, own ? plane.raw_dtype : plane.dtype);
  const std::byte* base = own ? view.raw_tile(tile.layer, tile.head, plane_index, block)
                              : view.tile(tile.layer, tile.head, plane_index, block);
  return {&kernels, base + key % view.block_tokens / 16 * kernels.sub_tile_bytes(plane.padded_dims)};
}

HWY_INLINE F32x16 finish_scores(const F32x16& dot, const AttentionShape& shape) {
  const F32x16 score = dot * splat(shape.scale);
  if (shape.soft_cap == 0.0f) return score;
  const F32x16 cap = splat(shape.soft_cap);
  return cap * tanh(score / cap);
}

// All scores of keys [first, last) (multiples of 16 apart from the ends) of one split, into tile.scores at key - split
// start.
inline void score_split(SimdTarget target, const AttendTile& tile, uint64_t split_start, uint64_t first,
                        uint64_t last) {
  const KvGroupLayer& layer = tile.view->group->layers[tile.layer];
  const KvPlane& plane = layer.planes[0];
  for (uint64_t key = first / 16 * 16; key < last; key += 16) {
    const SubTile keys = sub_tile(target, tile, 0, key);
    float* column = tile.scores + (key - split_start);
    for (size_t row = 0; row < tile.rows(); row += kMaxKernelRows) {
      const size_t n = std::min(kMaxKernelRows, tile.rows() - row);
      keys.kernels->score(n, tile.q + row * plane.dims, plane.dims, plane.dims, keys.bytes, column + row * kSplitTokens,
                          kSplitTokens);
    }
  }
}

// Turns one row's scores [from, to) of the split into probabilities in place (zeros around them up to the sub-tile
// edges); returns max and sum. The sum runs in lane position mod 16, ascending, then folds.
inline void softmax_row(const AttentionShape& shape, float* scores, size_t from, size_t to, float& max_out,
                        float& sum_out) {
  const F32x16 lowest = splat(-std::numeric_limits<float>::infinity());
  const size_t begin = from / 16 * 16, end = (to + 15) / 16 * 16;
  F32x16 m = lowest;
  for (size_t i = begin; i < end; i += 16) {
    F32x16 s = finish_scores(load(scores + i), shape);
    if (i + 16 > to) s = first_n(to - i, s, lowest);
    if (i < from) s = first_n(from - i, lowest, s);
    store(s, scores + i);
    m = max(s, m);
  }
  max_out = fold_max(m);
  const F32x16 top = splat(max_out);
  F32x16 sum = splat(0.0f);
  for (size_t i = begin; i < end; i += 16) {
    F32x16 p = exp(load(scores + i) - top);
    if (i + 16 > to) p = first_n(to - i, p, splat(0.0f));
    if (i < from) p = first_n(from - i, splat(0.0f), p);
    store(p, scores + i);
    sum = sum + p;
  }
  sum_out = fold_sum(sum);
}

// Adds probabilities x values of keys [first, last) to out [rows][padded_dims]; each row only over keys it sees.
inline void mix_split(SimdTarget target, const AttendTile& tile, uint64_t split_start, uint64_t first, uint64_t last,
                      float* out) {
  const KvPlane& plane = tile.view->group->layers[tile.layer].planes[1];
  const size_t dims = plane.padded_dims;
  const uint64_t newest_common = tile.first_position, oldest_common = tile.oldest(tile.rows() - 1);
  for (uint64_t key = first / 16 * 16; key < last; key += 16) {
    const SubTile values = sub_tile(target, tile, 1, key);
    const float* column = tile.scores + (key - split_start);
    const bool whole = key >= oldest_common && key + 15 <= newest_common;
    for (size_t row = 0; row < tile.rows(); row += whole ? kMaxKernelRows : 1) {
      const size_t n = whole ? std::min(kMaxKernelRows, tile.rows() - row) : 1;
      size_t from = 0, to = 16;
      if (!whole) {
        const uint64_t oldest = tile.oldest(row), newest = tile.newest(row);
        if (newest < key || oldest > key + 15) continue;
        from = oldest > key ? oldest - key : 0;
        to = std::min<uint64_t>(16, newest - key + 1);
      }
      values.kernels->mix(n, column + row * kSplitTokens, kSplitTokens, from, to, dims, values.bytes, out + row * dims,
                          dims);
    }
  }
}

// The partial state of every row over one split: max_sum [rows][2], out [rows][padded_dims].
void attend_split(SimdTarget target, const AttendTile& tile, uint64_t split, float* max_sum, float* out) {
  const size_t dims = tile.view->group->layers[tile.layer].planes[1].padded_dims;
  const uint64_t start = split * kSplitTokens;
  const uint64_t first = std::max(start, tile.oldest(0));
  const uint64_t last = std::min(start + kSplitTokens, tile.newest(tile.rows() - 1) + 1);
  std::fill_n(out, tile.rows() * dims, 0.0f);
  for (size_t row = 0; row < tile.rows(); ++row) {
    max_sum[2 * row] = -std::numeric_limits<float>::infinity();
    max_sum[2 * row + 1] = 0.0f;
  }
  if (first >= last) return;
  score_split(target, tile, start, first, last);
  for (size_t row = 0; row < tile.rows(); ++row) {
    const uint64_t from = std::max(start, tile.oldest(row)), to = std::min(last, tile.newest(row) + 1);
    if (from >= to) continue;
    softmax_row(*tile.shape, tile.scores + row * kSplitTokens, from - start, to - start, max_sum[2 * row],
                max_sum[2 * row + 1]);
  }
  mix_split(target, tile, start, first, last, out);
}

void merge_rows(size_t rows, size_t padded_dims, float* into_max_sum, float* into_out, const float* max_sum,
                float* out) {
  for (size_t row = 0; row < rows; ++row) {
    SoftmaxState into{into_max_sum[2 * row], into_max_sum[2 * row + 1], into_out + row * padded_dims};
    merge(into, {max_sum[2 * row], max_sum[2 * row + 1], out + row * padded_dims}, padded_dims);
    into_max_sum[2 * row] = into.max;
    into_max_sum[2 * row + 1] = into.sum;
  }
}

void finish_row(const float* max_sum, float* out, const float* sink, size_t dims, float* result) {
  SoftmaxState state{max_sum[0], max_sum[1], out};
  finish(state, sink, dims, result);
}

constexpr AttendKernels kAttendKernels{attend_split, merge_rows, finish_row};

}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"
#include "base/dispatch.h"

namespace kvarto {
namespace {

KVARTO_TARGET_TABLE(AttendKernels, attend_kernels, kAttendKernels);

// One call of attend(): shapes shared by its units.
class AttendCall {
 public:
  AttendCall(SimdTarget target, std::span<const AttendRows> sequences, const AttentionShape& shape,
             AttendScratch& scratch)
      : target_(target), kernels_(attend_kernels(target)), sequences_(sequences), shape_(shape), scratch_(scratch) {
    const KvGroupLayer& layer = sequences[0].view->group->layers[sequences[0].layer];
    CHECK(has_keys_and_values(layer), "attention over a latent plane is not built");
    kv_heads_ = layer.kv_heads;
    group_ = shape.heads / kv_heads_;
    key_dim_ = layer.planes[0].dims;
    value_dim_ = layer.planes[1].dims;
    padded_dims_ = layer.planes[1].padded_dims;
  }

  void plan() {
    scratch_.units.clear();
    scratch_.merges.clear();
    size_t partial_floats = 0;
    for (uint32_t s = 0; s < sequences_.size(); ++s) {
      for (uint32_t head = 0; head < kv_heads_; ++head) plan_head(s, head, partial_floats);
    }
    if (scratch_.partial.size() < partial_floats) scratch_.partial.resize(partial_floats);
  }

  void reserve_workers(int threads) {
    const size_t rows = size_t{16} * group_;
    const size_t floats = rows * (key_dim_ + kSplitTokens + 2 * state_floats());
    if (scratch_.worker.size() < static_cast<size_t>(threads)) scratch_.worker.resize(static_cast<size_t>(threads));
    for (std::vector<float>& w : scratch_.worker) {
      if (w.size() < floats) w.resize(floats);
    }
  }

  void run_unit(size_t index, int worker) {
    const AttendScratch::Unit& unit = scratch_.units[index];
    float* memory = scratch_.worker[static_cast<size_t>(worker)].data();
    const AttendTile tile = gather(unit, memory);
    float* max_sum = memory + tile.rows() * (key_dim_ + kSplitTokens);
    if (!unit.whole) {
      float* slot = scratch_.partial.data() + unit.partial;
      kernels_.split(target_, tile, unit.split, slot, slot + 2 * tile.rows());
      return;
    }
    float* out = max_sum + 2 * tile.rows();
    float* part = max_sum + tile.rows() * state_floats();
    kernels_.split(target_, tile, unit.split, max_sum, out);
    for (uint32_t i = 1; i < unit.splits; ++i) {
      kernels_.split(target_, tile, unit.split + i, part, part + 2 * tile.rows());
      kernels_.merge(tile.rows(), padded_dims_, max_sum, out, part, part + 2 * tile.rows());
    }
    finish(unit, max_sum, out);
  }

  // The partial states of one unit's splits, earliest first, meet in the first.
  void run_merge(size_t index) {
    const AttendScratch::Unit& unit = scratch_.merges[index];
    const size_t rows = size_t{unit.tokens} * group_;
    float* first = scratch_.partial.data() + unit.partial;
    for (uint32_t i = 1; i < unit.splits; ++i) {
      float* later = first + i * rows * state_floats();
      kernels_.merge(rows, padded_dims_, first, first + 2 * rows, later, later + 2 * rows);
    }
    finish(unit, first, first + 2 * rows);
  }

 private:
  size_t state_floats() const { return 2 + padded_dims_; }

  void plan_head(uint32_t s, uint32_t head, size_t& partial_floats) {
    const AttendRows& rows = sequences_[s];
    const uint32_t window = rows.view->group->window;
    for (uint32_t t = 0; t < rows.count;) {
      const uint64_t position = rows.first_position + t;
      const auto tokens = static_cast<uint32_t>(std::min<uint64_t>(16 - position % 16, rows.count - t));
      const uint64_t oldest = window == 0 || position + 1 < window ? 0 : position + 1 - window;
      const auto first_split = static_cast<uint32_t>(oldest / kSplitTokens);
      const auto splits = static_cast<uint32_t>((position + tokens - 1) / kSplitTokens) - first_split + 1;
      AttendScratch::Unit unit{.sequence = s,
                               .head = head,
                               .first = t,
                               .tokens = tokens,
                               .split = first_split,
                               .splits = splits,
                               .whole = true,
                               .partial = 0};
      // Few rows over many keys (decoding): splits are units of their own. The bits are the same either way.
      if (rows.count <= 4 && splits > 1) {
        unit.whole = false;
        unit.partial = partial_floats;
        scratch_.merges.push_back(unit);
        for (uint32_t i = 0; i < splits; ++i, ++unit.split) {
          unit.partial = partial_floats;
          scratch_.units.push_back(unit);
          partial_floats += size_t{tokens} * group_ * state_floats();
        }
      } else {
        scratch_.units.push_back(unit);
      }
      t += tokens;
    }
  }

  AttendTile gather(const AttendScratch::Unit& unit, float* memory) const {
    const AttendRows& rows = sequences_[unit.sequence];
    for (uint32_t t = 0; t < unit.tokens; ++t) {
      const float* q = rows.q + (unit.first + t) * rows.q_stride + size_t{unit.head} * group_ * key_dim_;
      std::copy_n(q, size_t{group_} * key_dim_, memory + size_t{t} * group_ * key_dim_);
    }
    AttendTile tile;
    tile.view = rows.view;
    tile.layer = rows.layer;
    tile.head = unit.head;
    tile.first_position = rows.first_position + unit.first;
    tile.tokens = unit.tokens;
    tile.group = group_;
    tile.window = rows.view->group->window;
    tile.shape = &shape_;
    tile.q = memory;
    tile.scores = memory + tile.rows() * key_dim_;
    return tile;
  }

  void finish(const AttendScratch::Unit& unit, const float* max_sum, float* out) const {
    const AttendRows& rows = sequences_[unit.sequence];
    for (uint32_t r = 0; r < unit.tokens * group_; ++r) {
      const uint32_t query_head = unit.head * group_ + r % group_;
      const float* sink = shape_.sinks == nullptr ? nullptr : shape_.sinks + query_head;
      float* result = rows.out + (unit.first + r / group_) * rows.out_stride + size_t{query_head} * value_dim_;
      kernels_.finish(max_sum + 2 * r, out + r * padded_dims_, sink, value_dim_, result);
    }
  }

  SimdTarget target_;
  const AttendKernels& kernels_;
  std::span<const AttendRows> sequences_;
  const AttentionShape& shape_;
  AttendScratch& scratch_;
  uint32_t kv_heads_ = 0, group_ = 0;
  size_t key_dim_ = 0, value_dim_ = 0, padded_dims_ = 0;
};

}  // namespace

void attend(SimdTarget target, std::span<const AttendRows> sequences, const AttentionShape& shape, ThreadPool& pool,
            AttendScratch& scratch) {
  if (sequences.empty()) return;
  AttendCall call(target, sequences, shape, scratch);
  call.plan();
  call.reserve_workers(pool.threads());
  pool.run(scratch.units.size(), [&](size_t unit, int worker) { call.run_unit(unit, worker); });
  pool.run(scratch.merges.size(), [&](size_t unit, int) { call.run_merge(unit); });
}

}  // namespace kvarto
#endif  // HWY_ONCE

#include "kv/attend_kernels.h"

#include <array>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kv/attend_kernels.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h: compiled once per target.
#include "base/simd.h"
#include "base/simd_math.h"
#include "kv/softmax_state.h"

HWY_BEFORE_NAMESPACE();
namespace kvarto {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kSplitSubTiles = kSplitTokens / 16;

// Rows of one kernel call when `rows` are more than the `most` one call takes: about equal parts, since a kernel of few
// rows waits for its sums.
size_t rows_per_call(size_t rows, size_t most) {
  const size_t calls = (rows + most - 1) / most;
  return (rows + calls - 1) / calls;
}

HWY_INLINE F32x16 finish_scores(const F32x16& dot, const AttentionShape& shape) {
  const F32x16 score = dot * splat(shape.scale);
  if (shape.soft_cap == 0.0f) return score;
  const F32x16 cap = splat(shape.soft_cap);
  return cap * tanh(score / cap);
}

// Sixteen values at `i` of which [from, to) count; the others become `other`.
HWY_INLINE F32x16 keep(const F32x16& x, size_t i, size_t from, size_t to, float other) {
  if (from <= i && i + 16 <= to) return x;
  F32x16 kept = i + 16 > to ? first_n(to - i, x, splat(other)) : x;
  return i < from ? first_n(from - i, splat(other), kept) : kept;
}

// Beside any real score nothing is left of its weight: exp(kHiddenScore - max) is 0, in a split and in merge(). Finite,
// so that a split without any other key has a maximum.
constexpr float kHiddenScore = -1e30f;
constexpr AttentionShape kFinished{};  // of scores that hide() has finished: changes nothing more

// Finishes one row's scores [from, to); those of hidden keys become kHiddenScore, but for the row's own token.
void hide(const AttentionShape& shape, float* scores, size_t from, size_t to, const uint8_t* hidden, size_t own) {
  for (size_t i = from / 16 * 16; i < to; i += 16) store(finish_scores(load(scores + i), shape), scores + i);
  for (size_t key = from; key < to; ++key) {
    if (hidden[key] != 0 && key != own) scores[key] = kHiddenScore;
  }
}

// Turns one row's scores [from, to) into probabilities in place (zeros around them up to the sub-tiles' edges). The
// maximum is exact, so it may run in several chains; the sum runs in lane position mod 16, ascending, then folds.
HWY_INLINE void softmax_row(const AttentionShape& shape, float* scores, size_t from, size_t to, float& max_out,
                            float& sum_out) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const size_t begin = from / 16 * 16, end = (to + 15) / 16 * 16;
  F32x16 m = splat(kLowest), odd = m;
  for (size_t i = begin; i < end; i += 16) {
    const F32x16 s = keep(finish_scores(load(scores + i), shape), i, from, to, kLowest);
    store(s, scores + i);
    if (i % 32 == 0) {
      m = max(s, m);
    } else {
      odd = max(s, odd);
    }
  }
  max_out = fold_max(max(m, odd));
  const F32x16 top = splat(max_out);
  F32x16 sum = splat(0.0f);
  for (size_t i = begin; i < end; i += 16) {
    const F32x16 p = keep(exp_nonpositive(load(scores + i) - top), i, from, to, 0.0f);
    store(p, scores + i);
    sum = sum + p;
  }
  sum_out = fold_sum(sum);
}

// One unit over one split: where its sub-tiles are, and what each token sees.
class Split {
 public:
  Split(const AttendTile& tile, uint64_t split, const SoftmaxStates& states)
      : tile_(tile),
        states_(states),
        start_(split * kSplitTokens),
        key_dims_(tile.plane(0).dims),
        value_dims_(tile.plane(1).padded_dims) {
    first_ = std::max(start_, tile.oldest(0));
    last_ = std::min(start_ + kSplitTokens, tile.newest(tile.tokens - 1) + 1);
  }

  void run() {
    clear(states_);
    if (first_ >= last_) return;
    locate();
    score();
    for (uint32_t t = 0; t < tile_.tokens; ++t) softmax(t);
    mix();
  }

 private:
  // Keys that a token sees in this split, as offsets from its start.
  size_t from(uint32_t token) const { return std::max(start_, tile_.oldest(token)) - start_; }
  size_t to(uint32_t token) const {
    const uint64_t end = std::min(last_, tile_.newest(token) + 1);
    return end > start_ ? end - start_ : 0;
  }

  // Addresses of the split's sub-tiles of keys, then of values; sealed ones before raw ones.
  void locate() {
    const KvView& view = *tile_.view;
    const uint64_t own = tile_.first_position / view.block_tokens;
    first_sub_tile_ = (first_ - start_) / 16;
    count_ = (last_ - start_ + 15) / 16 - first_sub_tile_;
    const uint64_t first_key = start_ + first_sub_tile_ * 16, own_key = own * view.block_tokens;
    sealed_ = own_key <= first_key ? 0 : std::min<size_t>(count_, (own_key - first_key) / 16);
    for (uint32_t p = 0; p < 2; ++p) {
      for (size_t i = 0; i < count_; ++i) {
        const uint64_t key = first_key + i * 16;
        const auto block = static_cast<uint32_t>(key / view.block_tokens);
        const bool raw = i >= sealed_;
        const CodecKernels& codec = raw ? *tile_.raw[p] : *tile_.sealed[p];
        const std::byte* base =
            raw ? view.raw_tile(tile_.layer, tile_.head, p, block) : view.tile(tile_.layer, tile_.head, p, block);
        at_[p * count_ + i] = base + key % view.block_tokens / 16 * codec.sub_tile_bytes(tile_.plane(p).padded_dims);
      }
    }
    for (size_t i = 0; i < kLookAhead; ++i) at_[2 * count_ + i] = at_[2 * count_ - 1];
  }

  // Calls run(codec, sub-tiles, first of them) for the sealed and for the raw sub-tiles of a plane.
  template <class Run>
  HWY_INLINE void each_codec(uint32_t plane, const Run& run) {
    const std::byte* const* at = at_.data() + plane * count_;
    const CodecKernels &sealed = *tile_.sealed[plane], &raw = *tile_.raw[plane];
    if (&sealed == &raw) return run(sealed, SubTiles{at, count_}, first_sub_tile_);
    if (sealed_ > 0) run(sealed, SubTiles{at, sealed_}, first_sub_tile_);
    if (sealed_ < count_) run(raw, SubTiles{at + sealed_, count_ - sealed_}, first_sub_tile_ + sealed_);
  }

  bool direct(const CodecKernels& codec) const {
    return tile_.rows() <= std::min(codec.direct.rows, tile_.unsealed->rows);
  }

  void score() {
    each_codec(0, [&](const CodecKernels& codec, SubTiles keys, size_t first) HWY_ATTR {
      if (direct(codec)) {
        codec.direct.score[tile_.rows() - 1](tile_.q, key_dims_, keys, tile_.scores + first * 16);
      } else {
        score_unsealed(codec, keys, first);
      }
    });
  }

  // A few sub-tiles at a time, for all rows that see any of them.
  void score_unsealed(const CodecKernels& codec, SubTiles keys, size_t first) {
    const size_t floats = size_t{16} * tile_.plane(0).padded_dims,
                 panel = rows_per_call(tile_.rows(), tile_.unsealed->rows);
    const size_t bytes = codec.sub_tile_bytes(tile_.plane(0).padded_dims);
    std::array<const std::byte*, kKeysAtOnce> at;
    for (size_t k = 0; k < at.size(); ++k) at[k] = reinterpret_cast<const std::byte*>(tile_.unseal_to + k * floats);
    for (size_t i = 0; i < keys.count; i += kKeysAtOnce) {
      const size_t n = std::min(kKeysAtOnce, keys.count - i);
      for (size_t k = 0; k < n; ++k) codec.unseal_scored(keys.at[i + k], key_dims_, tile_.unseal_to + k * floats);
      for (size_t k = 0; k < n; ++k) fetch(keys.at[i + n + k], bytes);
      const uint64_t key = start_ + (first + i) * 16;
      const size_t blind = key <= tile_.first_position ? 0 : (key - tile_.first_position) * tile_.group;
      for (size_t row = blind / panel * panel; row < tile_.rows(); row += panel) {
        const size_t rows = std::min(panel, tile_.rows() - row);
        tile_.unsealed->score[rows - 1](tile_.q + row * key_dims_, key_dims_, {at.data(), n},
                                        tile_.scores + row * kScoreStride + (first + i) * 16);
      }
    }
  }

  // Brings a sub-tile near while others are being computed.
  static HWY_INLINE void fetch(const std::byte* sub_tile, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(sub_tile + line);
  }

  // Turns the scores of one token's rows into probabilities in place.
  void softmax(uint32_t token) {
    const size_t from = this->from(token), to = this->to(token);
    if (from >= to) return;
    const bool hides = tile_.shape->hidden != nullptr;
    const AttentionShape& shape = hides ? kFinished : *tile_.shape;
    for (size_t row = size_t{token} * tile_.group; row < size_t{token + 1} * tile_.group; ++row) {
      float* const scores = tile_.scores + row * kScoreStride;
      if (hides) hide(*tile_.shape, scores, from, to, tile_.shape->hidden + start_, tile_.position(token) - start_);
      softmax_row(shape, scores, from, to, states_.max[row], states_.sum[row]);
    }
  }

  void mix() {
    // Keys that all tokens see; when there are none, each token goes alone.
    common_from_ = from(tile_.tokens - 1);
    common_to_ = to(0);
    if (common_from_ >= common_to_) common_from_ = common_to_ = kSplitTokens;
    each_codec(1, [&](const CodecKernels& codec, SubTiles values, size_t first) HWY_ATTR {
      if (direct(codec)) return mix_keys(codec.direct, values, first, first + values.count);
      const size_t floats = 16 * value_dims_, bytes = codec.sub_tile_bytes(value_dims_);
      for (size_t i = 0; i < values.count; i += kValuesAtOnce) {
        const size_t n = std::min(kValuesAtOnce, values.count - i);
        std::array<const std::byte*, kValuesAtOnce> at;
        for (size_t k = 0; k < n; ++k) {
          codec.unseal_mixed(values.at[i + k], value_dims_, tile_.unseal_to + k * floats);
          at[k] = reinterpret_cast<const std::byte*>(tile_.unseal_to + k * floats);
        }
        for (size_t k = 0; k < n; ++k) fetch(values.at[std::min(i + n + k, values.count)], bytes);
        mix_keys(*tile_.unsealed, {at.data(), n}, first + i, first + i + n);
      }
    });
  }

  // Adds the values of sub-tiles [first, last): each row only over the keys it sees, ascending.
  void mix_keys(const DirectKernels& kernels, SubTiles values, size_t first, size_t last) {
    const size_t begin = first * 16, end = last * 16;
    const auto add = [&](size_t row, size_t rows, size_t from, size_t to) HWY_ATTR {
      from = std::max(from, begin);
      to = std::min(to, end);
      if (from >= to) return;
      const size_t per_call = rows_per_call(rows, kernels.rows);
      for (const size_t past = row + rows; row < past; row += per_call) {
        kernels.mix[std::min(per_call, past - row) - 1](tile_.scores + row * kScoreStride + begin, values, from - begin,
                                                        to - begin, value_dims_, states_.out + row * value_dims_);
      }
    };
    const size_t group = tile_.group;
    if (common_from_ <= begin && end <= common_to_) return add(0, tile_.rows(), begin, end);
    for (uint32_t t = 0; t < tile_.tokens; ++t) add(t * group, group, from(t), std::min(to(t), common_from_));
    add(0, tile_.rows(), common_from_, common_to_);
    for (uint32_t t = 0; t < tile_.tokens; ++t) add(t * group, group, std::max(from(t), common_to_), to(t));
  }

  const AttendTile& tile_;
  const SoftmaxStates& states_;
  uint64_t start_, first_ = 0, last_ = 0;
  size_t key_dims_, value_dims_;
  size_t first_sub_tile_ = 0, count_ = 0, sealed_ = 0;  // sub-tiles of the split; the sealed ones come first
  size_t common_from_ = 0, common_to_ = 0;
  std::array<const std::byte*, 2 * kSplitSubTiles + kLookAhead> at_;
};

void pack(const AttendTile& tile, const float* q, size_t q_stride) {
  const size_t dims = tile.plane(0).dims, rows = tile.rows(), panel = rows_per_call(rows, tile.unsealed->rows);
  for (size_t first = 0; first < rows; first += panel) {
    const size_t n = std::min(panel, rows - first);
    float* const to = tile.q + first * dims;
    std::array<const float*, kMaxKernelRows> from;
    for (size_t r = 0; r < n; ++r) from[r] = q + (first + r) / tile.group * q_stride + (first + r) % tile.group * dims;
    for (size_t d = 0; d < dims; ++d) {
      for (size_t r = 0; r < n; ++r) to[d * n + r] = from[r][d];
    }
  }
}

void split_states(const AttendTile& tile, uint64_t split, const SoftmaxStates& states) {
  Split(tile, split, states).run();
}

constexpr AttendKernels kAttendKernels{pack, split_states, merge, finish};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvarto
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/dispatch.h"

namespace kvarto {
KVARTO_TARGET_TABLE(AttendKernels, attend_kernels, kAttendKernels);
}  // namespace kvarto
#endif  // HWY_ONCE

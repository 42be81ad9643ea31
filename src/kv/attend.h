// Paged attention over KvViews, and the writing and sealing of tiles: with append.cc the only code in kv/ that touches
// KV bytes. Called through the backend's op table; the work is cut into units fixed by shape, each unit computed by one
// worker. All SIMD targets give the same bits. Order of arithmetic: DESIGN section 2. Split-K and the mergeable state:
// Flash-Decoding (Dao et al. 2023), FlashInfer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "kv/view.h"
#include "kvarto/kv_cache.h"

namespace kvarto {

// The new tokens of one sequence in one layer.
struct AttendRows {
  const KvView* view = nullptr;
  uint32_t layer = 0;           // index inside the view's group
  uint64_t first_position = 0;  // of the first new token
  uint32_t count = 0;
  const float* q = nullptr;  // [count][heads][key_dim], stride q_stride per token
  size_t q_stride = 0;
  float* out = nullptr;  // [count][heads][value_dim], stride out_stride per token
  size_t out_stride = 0;
};
struct AppendRows {
  const KvView* view = nullptr;
  uint32_t layer = 0;
  uint64_t first_position = 0;
  uint32_t count = 0;
  const float* k = nullptr;  // [count][kv_heads][key_dim]
  size_t k_stride = 0;
  const float* v = nullptr;  // [count][kv_heads][value_dim]
  size_t v_stride = 0;
};

// Whether a layer has keys and values apart; attention over a latent plane is not built.
inline bool has_keys_and_values(const KvGroupLayer& layer) {
  return layer.planes.size() == 2 && layer.planes[0].role == PlaneRole::scored &&
         layer.planes[1].role == PlaneRole::mixed;
}

// Positions per split; splits start at absolute multiples.
inline constexpr uint32_t kSplitTokens = 256;

// Scratch of attend(): grows to what a call needs and keeps it, so that steps after warm-up allocate nothing.
class AttendScratch {
 public:
  // Query heads of one KV head over `tokens` new tokens that share a 16-token sub-tile, over `splits` splits from
  // `split` on (whole), or over one of them, whose states then lie at `partial` until they are merged.
  struct Unit {
    uint32_t sequence, head, first, tokens, split, splits;
    bool whole;
    size_t partial;  // floats into `partial`
  };
  std::vector<Unit> units;
  std::vector<Unit> merges;
  std::vector<float> partial;              // per unit: max_sum [rows][2], out [rows][padded_dims]
  std::vector<std::vector<float>> worker;  // [worker]
};

// Rounds the new tokens' K and V into raw tiles, then seals the blocks that they fill. Returns how many values lay
// beyond the range of a half float and were saturated.
uint64_t append(SimdTarget target, std::span<const AppendRows> sequences, ThreadPool& pool);
// out = softmax(scale * q.k) v over each row's visible keys. After append() of the same rows and layer.
void attend(SimdTarget target, std::span<const AttendRows> sequences, const AttentionShape& shape, ThreadPool& pool,
            AttendScratch& scratch);

}  // namespace kvarto

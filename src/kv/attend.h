// Paged attention over KvViews, and the writing and sealing of tiles: with append.cc the only code in kv/ that touches
// KV bytes. Called through the backend's op table; the work is cut into units fixed by shape, each unit computed by one
// worker. All SIMD targets give the same bits. Order of arithmetic: DESIGN section 2. Split-K and the mergeable state:
// Flash-Decoding (Dao et al. 2023), FlashInfer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/cpu.h"
#include "base/memory.h"
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

// Shapes of an attention layer that decide how much memory attend() needs. It does not depend on how many rows or
// sequences there are, nor on how long they are: work is planned in waves of bounded size.
struct AttendSizes {
  uint32_t heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
};
size_t attend_scratch_bytes(const AttendSizes& sizes, int threads);

// Memory of attend(), charged as activations. After reserve() for the largest of a model's layers, calls allocate
// nothing; without it they allocate as they go.
class AttendScratch {
 public:
  explicit AttendScratch(std::shared_ptr<Ledger> ledger = nullptr) : ledger_(std::move(ledger)) {}
  Status reserve(const AttendSizes& sizes, int threads);
  std::byte* data() const { return slab_.data(); }

 private:
  std::shared_ptr<Ledger> ledger_;
  Slab slab_;
};

// Rounds the new tokens' K and V into raw tiles, then seals the blocks that they fill. Returns how many values lay
// beyond the range of a half float and were saturated.
uint64_t append(SimdTarget target, std::span<const AppendRows> sequences, ThreadPool& pool);
// out = softmax(scale * q.k) v over each row's visible keys. After append() of the same rows and layer.
void attend(SimdTarget target, std::span<const AttendRows> sequences, const AttentionShape& shape, ThreadPool& pool,
            AttendScratch& scratch);

}  // namespace kvarto

// The paged KV cache: blocks, sequences, prefix reuse, copy-on-write forks. Usable under one's own model code:
//
//   auto cache = KvCache::create(layout, cpu_block_memory(), {.bytes = 64 << 20});
//   auto opened = (*cache)->open(prompt);                        // finds cached blocks of the prompt
//   (*cache)->reserve(opened.sequence, n);                       // blocks for the next n tokens, or an error
//   for each layer: kernels write K/V and attend through (*cache)->views(opened.sequence);   // see CacheKernels
//   (*cache)->commit(opened.sequence, tokens);                   // those n tokens are computed; full blocks become
//   findable
//
// Exactness: a token sees its own block open and every earlier block sealed, so what it computes depends on its
// position alone; a hit, a fork or a trim changes no byte. One thread owns a cache and its sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/kv_events.h"
#include "kvarto/result.h"
#include "kvarto/types.h"

namespace kvarto {

class BlockMemory;  // base/memory.h; cpu_block_memory() makes the one for plain memory
struct KvView;      // kv/view.h; opaque to users, read by kernels
struct KvSequenceState;

enum class Replacement : uint8_t { lru, lfu, fifo };

struct KvCacheOptions {
  size_t bytes = 0;  // of the arena; every block and tail comes from it
  bool prefix_caching = true;
  Replacement replacement = Replacement::lru;
  // Everything besides the layout that decides what every block of this cache contains: weights, tokenizer, rope
  // settings, numerics.
  std::string name_space = {};
  uint32_t max_step_tokens =
      512;  // most tokens reserved at once over all sequences of a step; sizes scratch for lossy codecs

  // --- for those who watch; off unless asked for, and without cost then
  bool record_events = false;               // for take_events()
  size_t event_bytes = size_t{16} << 20;    // of events that may wait to be taken, about; see KvEvents::lost
  std::function<uint64_t()> clock_us = {};  // microseconds of any steady clock; gives block_map() its times
  // Hears of moments in the lives of `life_sample` (0 to 1) of all blocks. Needs clock_us; called on the owner's thread
  // in the middle of an operation, so it must not call the cache.
  std::function<void(const BlockLife&)> on_life = {};
  double life_sample = 0.0;
};

struct OpenOptions {
  std::string cache_salt = {};  // sequences with different salts share nothing; "" = none
  // What is laid over the weights, by its contents (a hash of them and their scale, no name that others may get); ""
  // = nothing. Sequences with different adapters share nothing.
  std::string adapter = {};
  bool read_cache = true;  // false: compute everything (blocks are still named)
  std::optional<uint64_t> max_cached_tokens =
      {};  // at most so many; default: prompt length - 1, so that logits are computed
};

// A sequence's hold on blocks: tables of sealed blocks, one open tail per group, its tokens. Move-only; destruction
// gives the references back (sealed blocks stay findable while nobody needs their memory). Must not outlive its cache.
class KvSequence {
 public:
  KvSequence();
  KvSequence(KvSequence&&) noexcept;
  KvSequence& operator=(KvSequence&&) noexcept;
  ~KvSequence();
  explicit operator bool() const { return state_ != nullptr; }

  uint64_t length() const;                  // tokens whose K/V are in the cache
  std::span<const TokenId> tokens() const;  // [length]
  uint32_t reserved() const;                // tokens reserved and not yet committed

 private:
  friend class KvCache;
  std::unique_ptr<KvSequenceState> state_;
};

struct PrefixMatch {
  uint64_t tokens = 0;                   // a multiple of block_tokens
  MissReason reason = MissReason::none;  // why not more; none when everything possible was found
  size_t idle_bytes = 0;                 // from match(): of cached_bytes, what open() would put to use
};

// Bytes of the arena by state: free + active + cached + slab_remainder == arena, always. Tails count as active.
struct KvCacheStats {
  size_t arena_bytes = 0, free_bytes = 0, active_bytes = 0, cached_bytes = 0, slab_remainder_bytes = 0;
  uint64_t blocks_total =
      0;  // that fit if the arena held blocks in the proportion of the groups (one per group and position)
  uint64_t blocks_active = 0, blocks_cached = 0;  // block ids, all groups
  size_t live_bytes = 0;         // of active bytes: those holding a token that a running sequence can still see
  uint64_t replaced_blocks = 0;  // cached blocks given up for new ones, since creation
  uint64_t query_tokens = 0, hit_tokens = 0;  // over open() calls
  uint64_t window_blocks_freed = 0;           // blocks given back because a window moved on
  uint64_t copied_tails = 0;                  // by forks
  double usage() const {
    return arena_bytes == 0 ? 0.0 : static_cast<double>(active_bytes) / static_cast<double>(arena_bytes);
  }
};

// One block's worth of the arena, in use or not.
struct BlockCell {
  enum class State : uint8_t {
    free,
    open,    // being filled by one sequence
    active,  // full, held by `references` sequences
    cached,  // held by none, can be found
  };
  State state = State::free;
  bool named = false;           // can be found; of two active blocks with the same tokens only one is
  uint32_t group = UINT32_MAX;  // of the layout; UINT32_MAX for a free one
  uint32_t references = 0;
  size_t bytes = 0;
  uint64_t age_us = 0, idle_us = 0;  // since it was taken, since it was last used (0 while held); 0 without a clock
};

// Where a prompt parts from something that is known, although both begin alike.
struct NearMiss {
  uint64_t matched_tokens = 0;  // in whole blocks with a name, whether or not all of their memory is still there
  uint32_t common_tokens = 0;   // further ones that it shares with the known block that agrees longest
  TokenId known_token = 0;      // what that block has at position()
  uint64_t position() const { return matched_tokens + common_tokens; }  // of the first token that differs
};

// Every call takes sequences that were opened in this cache; another one is a bug of the caller (CHECK).
class KvCache {
 public:
  // Errors: an arena too small for one block and tail per group (with the numbers), memory refused by the OS.
  static Result<std::unique_ptr<KvCache>> create(const KvLayout& layout, std::shared_ptr<BlockMemory> memory,
                                                 const KvCacheOptions& options);
  ~KvCache();

  const KvLayout& layout() const;
  const KvCacheOptions& options() const;

  // The longest prefix of `prompt` that open() would find now. Changes nothing (not even recency).
  PrefixMatch match(std::span<const TokenId> prompt, const OpenOptions& options = {}) const;

  struct Opened {
    KvSequence sequence;  // length() == match.tokens
    PrefixMatch match;
  };
  // A new sequence that shares the cached prefix of `prompt`. Takes no new block, never fails.
  Opened open(std::span<const TokenId> prompt, const OpenOptions& options = {});

  // Whether `sequence` was opened here and this is still the cache it was opened in.
  bool owns(const KvSequence& sequence) const;

  // Takes the blocks that the next `count` tokens need in every group, replacing idle cached blocks where nothing is
  // free. All or nothing: on out_of_memory (needs/has in the message) the sequence is unchanged. At most one
  // reservation at a time; count >= 1.
  Status reserve(KvSequence& sequence, uint32_t count);
  // Gives a reservation back.
  void cancel(KvSequence& sequence);
  // One view per group, [layout().groups()]; valid between reserve() and commit()/cancel().
  std::span<const KvView> views(const KvSequence& sequence) const;
  // The reserved tokens are computed. Names full blocks, moves windows on. tokens.size() == reserved().
  void commit(KvSequence& sequence, std::span<const TokenId> tokens);

  // A second sequence with the same tokens: shares every sealed block, copies the open tail (out_of_memory if there is
  // no block for it). No reservation may be open.
  Result<KvSequence> fork(const KvSequence& sequence);
  // Forgets tokens from `length` on; returns the new length, which may be less (down to the last block edge whose
  // blocks are all there) but not by more than block_tokens - 1 unless a window has moved past it. What is missing is
  // to be computed again.
  uint64_t trim(KvSequence& sequence, uint64_t length);

  // Whether a sequence of `tokens` tokens computed in chunks of at most `chunk_tokens` could run in an otherwise empty
  // arena.
  bool could_ever_fit(uint64_t tokens, uint32_t chunk_tokens) const;
  // Tokens of one sequence for which could_ever_fit holds.
  uint64_t longest_sequence(uint32_t chunk_tokens) const;

  // Forgets all idle cached blocks; false when some blocks are in use (they stay).
  bool clear();

  // What happened to names since the last call; empty without KvCacheOptions::record_events.
  KvEvents take_events();
  // The arena in the order of addresses, one cell per block (an empty slab shows as blocks of the first group's size).
  // O(blocks + blocks held by sequences), no more than some tens of ns each.
  void block_map(std::vector<BlockCell>& out) const;
  // Where `prompt` parts from what is known under its salt: none when it shares nothing, not even its first token, or
  // when it only ends or goes on where nothing is known. Changes nothing. Costs a hash per known block, and looks at
  // no more than the 1024 newest continuations there.
  std::optional<NearMiss> nearest(std::span<const TokenId> prompt, const OpenOptions& options = {}) const;

  KvCacheStats stats() const;  // O(1)
  // The O(1) equation of KvCacheStats; false means a bug. Debug builds call it after every operation that changes
  // blocks.
  bool balanced() const;
  // Walks everything: reference counts, tables, index, slabs. For tests; empty when all is well, else what is wrong.
  std::string audit() const;
  // SHA-256 over the bytes of the sequence's sealed blocks in order, all groups (64 hex digits): a change detector.
  std::string hash_blocks(const KvSequence& sequence) const;

 private:
  friend class KvSequence;
  KvCache();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The block memory of this machine's RAM: huge pages where the OS gives them. `cap_bytes` 0 = no cap.
std::shared_ptr<BlockMemory> cpu_block_memory(size_t cap_bytes = 0);

// Shape and options of one attention layer.
struct AttentionShape {
  uint32_t heads = 0;            // query heads; a multiple of the layer's KV heads
  float scale = 1.0f;            // multiplies q.k
  float soft_cap = 0.0f;         // 0 = none; cap * tanh(score / cap)
  const float* sinks = nullptr;  // [heads] sink logits, or null
  // [positions] or null: 1 where a token is seen by no later one. It still sees itself.
  const uint8_t* hidden = nullptr;
};

// The CPU attention kernels over a cache, for one's own model code. One caller at a time.
class CacheKernels {
 public:
  explicit CacheKernels(int threads = 0);  // 0: one per usable physical core
  ~CacheKernels();
  // Writes the reserved tokens' keys and values of `layer`: k [reserved][kv_heads][key_dim], v
  // [reserved][kv_heads][value_dim]; keys already rotated. Then seals the blocks that these tokens fill.
  void append(const KvCache& cache, const KvSequence& sequence, uint32_t layer, const float* k, const float* v);
  // Causal attention of the reserved tokens: q, out [reserved][heads][dim]. After append() of the same layer.
  void attend(const KvCache& cache, const KvSequence& sequence, uint32_t layer, const AttentionShape& shape,
              const float* q, float* out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarto

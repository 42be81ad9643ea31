// MemoryPlan: where the bytes of a run go, decided before anything is loaded, so that what cannot fit is refused with
// the numbers. The engine allocates what the plan says; KvLayout is the only source of KV bytes in both. Pure function
// over plain numbers; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kvarto/result.h"
#include "kvarto/types.h"

namespace kvarto {

struct PlanInput {
  size_t available_bytes = 0;   // that this process may still use (cgroup limits included)
  size_t weight_bytes = 0;      // of the model in memory
  size_t activation_bytes = 0;  // buffers of one step
  size_t logits_bytes = 0;
  const KvLayout* layout = nullptr;
  uint32_t context_length = 0;  // the model's own
  uint32_t max_model_len = 0;   // asked for; 0: the context length, or what fits
  uint32_t max_num_seqs = 1;
  uint32_t max_num_batched_tokens = 512;
  size_t kv_cache_memory_bytes = 0;  // asked for; 0: what is sensible
};

struct PlanLine {
  std::string name;  // "weights", "kv_arena", "kv_metadata", ...
  size_t bytes = 0;
  std::string reason;  // one sentence
};

struct MemoryPlan {
  std::vector<PlanLine> lines;  // tails lie in the arena
  size_t total_bytes = 0, available_bytes = 0;
  size_t kv_bytes = 0;  // of the arena, tails included
  uint32_t max_model_len = 0;
  std::string max_model_len_reason;
  uint64_t kv_tokens = 0;      // tokens that the arena holds in the long run
  uint64_t full_requests = 0;  // requests of max_model_len tokens that it holds at once
};

// Errors: out_of_memory with what is needed, what there is and the largest length that fits; invalid_argument for
// lengths beyond the model's context.
Result<MemoryPlan> plan_memory(const PlanInput& input);

// The longest sequence whose blocks and tails fit `bytes`, computed in steps of at most `chunk_tokens`; a multiple of
// the block size, at most `limit`.
uint64_t longest_that_fits(const KvLayout& layout, size_t bytes, uint32_t chunk_tokens, uint64_t limit);

}  // namespace kvarto

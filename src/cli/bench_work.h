// The units of work that `kvarto bench` times. Main thread, which owns the engine.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cli/bench.h"
#include "kvarto/engine.h"

namespace kvarto {

struct WorkTime {
  double seconds = 0;
  uint64_t tokens = 0;  // computed or generated, all sequences together
  // When asked for: of all rows of logits that chose a token; of several sequences (or steps of a recomputation), of
  // their hex digests in order. Hashing takes time of its own.
  std::string logits_sha256;
};

// `depth` tokens that the sequences of one case share; in the cache after warm_up().
std::vector<TokenId> depth_ids(const Engine& engine, uint32_t depth);
Status warm_up(Engine& engine, const std::vector<TokenId>& shared);
// `batch` prompts of `count` own tokens each behind the shared ones.
Result<WorkTime> time_prompt(Engine& engine, const std::vector<TokenId>& shared, uint32_t batch, uint32_t count,
                             std::mt19937_64& random, bool hash);
// `batch` sequences generate `count` tokens each; timed from the moment all have their first.
Result<WorkTime> time_generation(Engine& engine, const std::vector<TokenId>& shared, uint32_t batch, uint32_t count,
                                 std::mt19937_64& random, bool hash);
// The same tokens without a KV cache: each is a prompt of all before it. One step per token.
Result<WorkTime> time_recompute(Engine& engine, const std::vector<TokenId>& shared, uint32_t batch, uint32_t count,
                                std::mt19937_64& random, bool hash);

}  // namespace kvarto

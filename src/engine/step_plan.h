// StepPlan: what one step computes: for each chosen sequence a run of its next tokens. Plain data made by
// Scheduler::plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace kvarto {

struct PlannedChunk {
  size_t sequence = 0;  // index into the loads the plan was made from
  uint64_t first = 0;   // position
  uint32_t count = 0;
};

// What a step costs depends on these.
struct StepWork {
  uint64_t tokens = 0;
  uint64_t context = 0;     // keys attended, all rows together
  uint64_t logit_rows = 0;  // rows that logits are made of, and tokens chosen from
};

struct StepPlan {
  std::vector<PlannedChunk> chunks;  // in the order of the loads
  StepWork work;
  uint64_t decodes = 0;
  bool decodes_only = false;
  // What prompts may take of a step beside these decodes, microseconds; infinity where nothing limits them. Where the
  // prefills of this plan take longer they are `cut`: computed a few layers at a time beside the decodes of several
  // steps, since few tokens in all layers cost more per token than more tokens in few layers.
  double prefill_us = std::numeric_limits<double>::infinity();
  bool cut = false;

  // Memory of the making, kept so that planning a step allocates nothing. Indexes into the loads; `counts` per load.
  struct Workings {
    std::vector<uint64_t> counts;
    std::vector<size_t> decodes, prefills, by_wait;
    std::vector<std::pair<uint32_t, bool>> turns;
  } workings;
};

// Keys that `count` rows from position `first` on attend.
inline uint64_t chunk_context(uint64_t first, uint64_t count) { return count * first + count * (count + 1) / 2; }

}  // namespace kvarto

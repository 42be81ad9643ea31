// StepPlan: what one step computes: for each chosen sequence a run of its next tokens. Plain data made by
// Scheduler::plan.
#pragma once

#include <algorithm>
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

// What a step does of a pass that is cut: a layer, or so many that no pass takes more than kMostPassSteps steps,
// whatever they take; then one more as long as it is likely to be within the budget.
inline constexpr uint32_t kMostPassSteps = 32;
class LayerBudget {
 public:
  LayerBudget(uint32_t layers, double budget_us)
      : least_((layers + kMostPassSteps - 1) / kMostPassSteps), budget_us_(budget_us) {}
  bool holds_another() const { return done_ < least_ || spent_us_ + layer_us_ <= budget_us_; }
  void took(double us) {
    ++done_;
    spent_us_ += us;
    layer_us_ = std::max(layer_us_, us);
  }
  double spent_us() const { return spent_us_; }

 private:
  uint32_t least_, done_ = 0;
  double budget_us_, spent_us_ = 0.0, layer_us_ = 0.0;  // the last: of the dearest layer so far
};

// Keys that `count` rows from position `first` on attend.
inline uint64_t chunk_context(uint64_t first, uint64_t count) { return count * first + count * (count + 1) / 2; }

}  // namespace kvarto

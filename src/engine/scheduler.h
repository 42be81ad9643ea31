// Scheduler: pure decisions over plain numbers: what the next step computes, who may start, who gives way. Reads no
// clock and touches no cache; time comes in through a CostModel. Const; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/cost_model.h"
#include "engine/step_plan.h"

namespace kvarto {

struct SchedulerOptions {
  uint32_t max_num_batched_tokens = 512;
  double max_step_us = 0.0;  // of steps with decodes; 0: 2.8x the slow ones of decode-only steps
};

// A running sequence with something to compute. One token left is a decode (or as cheap as one), more are a prefill.
struct SequenceLoad {
  uint64_t computed = 0;
  uint64_t remaining = 0;      // >= 1
  uint32_t idle_steps = 0;     // steps since it last advanced
  uint64_t most = UINT64_MAX;  // tokens of it in one step
  bool every_row = false;      // logits of every token are wanted, not of the last alone
};

// A running sequence, as a candidate for giving its blocks back.
struct VictimLoad {
  int64_t priority = 0;      // larger goes first
  uint32_t preemptions = 0;  // so far
  uint64_t lost_tokens = 0;  // computed tokens that would have to be computed again
  uint64_t order = 0;        // of arrival; of equals the youngest goes
};

// A waiting sequence's wish to start. All sizes for the tokens known now and one more block.
struct AdmissionLoad {
  size_t available_bytes = 0;  // free or held by idle cached blocks
  size_t needed_bytes = 0;     // that it does not share already
  size_t promised_bytes = 0;   // that running sequences will still take
  size_t kept_bytes = 0;       // to stay available beside running sequences
  bool others_running = false;
  uint32_t slots_wanted = 1, slots_free = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options) : options_(options) {}

  // All decodes, and prefill chunks in the order of `loads` under the token budget; while anything decodes, as many as
  // keep the step within the time budget too, or 64 tokens that are to be cut over several steps (see StepPlan::cut).
  // Every prefill is in at least every 4th plan that has any; where there are more than 4 per token of the budget,
  // whoever waited longest goes first, decodes included. Reuses `plan`'s memory.
  void plan(std::span<const SequenceLoad> loads, const CostModel& cost, StepPlan& plan) const;

  // Never one for the third time while another can go; then the least important, then least work lost, then youngest.
  static std::optional<size_t> victim(std::span<const VictimLoad> candidates);

  // A sequence starts when it fits as a whole beside what the others were promised, so that it is not thrown out at
  // once; alone it may always try.
  static bool may_admit(const AdmissionLoad& load);

 private:
  SchedulerOptions options_;
};

}  // namespace kvarto

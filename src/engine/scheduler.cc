#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "base/fault.h"

namespace kvarto {
namespace {

constexpr uint64_t kPassTokens = 64;  // of prompts at least, in one step or, where they take too long, cut over several
constexpr uint64_t kPrefillShare = 16;             // of one whose turn it is, at most
constexpr uint64_t kUnmeasuredPrefillTokens = 64;  // of mixed steps before the first decode-only step was measured
constexpr double kFilled = 0.9;      // of what prompts may take of a step: a pass is cut between layers only
constexpr double kStepFactor = 2.8;  // of the slow ones of steps that only decode: gaps are held to what streams know
constexpr uint64_t kAdvanceEvery = 4;
constexpr uint32_t kPreemptionsEach = 2;

// The plan under construction: how much each load gets, and what that comes to.
struct Draft {
  std::span<const SequenceLoad> loads;
  std::vector<uint64_t>& counts;
  StepWork work = {};

  StepWork with(size_t i, uint64_t count) const {
    const SequenceLoad& load = loads[i];
    const bool to_the_end = count > 0 && counts[i] + count == load.remaining;
    return {.tokens = work.tokens + count,
            .context = work.context + chunk_context(load.computed + counts[i], count),
            .logit_rows = work.logit_rows + (load.every_row ? count
                                             : to_the_end   ? 1
                                                            : 0)};
  }
  void add(size_t i, uint64_t count) {
    work = with(i, count);
    counts[i] += count;
  }
  uint64_t left(size_t i) const { return std::min(loads[i].remaining, loads[i].most) - counts[i]; }
};

// Those that waited longest first; of equals, the first. (std::stable_sort would allocate.)
void sort_by_wait(std::span<const SequenceLoad> loads, std::vector<size_t>& indexes) {
  std::ranges::sort(indexes, [&](size_t a, size_t b) {
    return loads[a].idle_steps != loads[b].idle_steps ? loads[a].idle_steps > loads[b].idle_steps : a < b;
  });
}

void add_decodes(Draft& draft, uint64_t max_tokens, std::vector<size_t>& decodes) {
  decodes.clear();
  for (size_t i = 0; i < draft.loads.size(); ++i) {
    if (draft.loads[i].remaining == 1) decodes.push_back(i);
  }
  if (decodes.size() > max_tokens) {
    sort_by_wait(draft.loads, decodes);
    decodes.resize(max_tokens);
  }
  for (const size_t i : decodes) draft.add(i, 1);
}

uint64_t quarter_of(uint64_t prefills) { return (prefills + kAdvanceEvery - 1) / kAdvanceEvery; }

// Tokens of this step that decodes leave to prefills: a quarter of these, but half the step at most, and more for those
// that could not advance every 4th step otherwise. One that has waited i steps can wait 3 - i more, and each step can
// serve `budget` of them.
uint64_t kept_for_prefills(std::span<const SequenceLoad> loads, std::span<const size_t> by_wait, uint64_t budget,
                           std::vector<std::pair<uint32_t, bool>>& turns) {
  if (by_wait.size() <= kAdvanceEvery * budget) {
    uint64_t due = std::min(quarter_of(by_wait.size()), budget / 2);
    for (uint64_t k = 0; k < by_wait.size(); ++k) {
      const uint64_t idle = std::min<uint64_t>(loads[by_wait[k]].idle_steps, kAdvanceEvery - 1);
      const uint64_t later = budget * (kAdvanceEvery - 1 - idle);
      if (k + 1 > later) due = std::max(due, k + 1 - later);
    }
    return std::min(due, budget);
  }
  // Too many for that: fair turns among all. Of equals a prefill goes first, as its first token is waited for.
  turns.clear();
  for (const SequenceLoad& load : loads) turns.emplace_back(load.idle_steps, load.remaining > 1);
  const auto first = static_cast<std::ptrdiff_t>(std::min<uint64_t>(budget, turns.size()));
  std::partial_sort(turns.begin(), turns.begin() + first, turns.end(), std::greater<>());
  return static_cast<uint64_t>(
      std::count_if(turns.begin(), turns.begin() + first, [](const auto& turn) { return turn.second; }));
}

// The most tokens of load `i`, at most `cap`, that keep the step within `limit_us`.
uint64_t within_time(const Draft& draft, size_t i, uint64_t cap, const CostModel& cost, double limit_us) {
  if (limit_us == std::numeric_limits<double>::infinity()) return cap;
  uint64_t low = 0, high = cap;
  while (low < high) {
    const uint64_t middle = (low + high + 1) / 2;
    if (cost.estimate(draft.with(i, middle)) <= limit_us) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// What prefills may take: tokens at all, of these whatever they take, of these for those whose turn it is; and the time
// of a step and of all that is planned. Logits come after the last layer, all in one step: those that want them of
// every token are never cut, and get what one step holds, or one token.
struct Allowance {
  uint64_t room, floor, share;
  double step_us, limit_us;
};

// Beside decodes of a known cost.
void limit_prefills(const Draft& draft, std::span<const size_t> by_wait, uint64_t served, const CostModel& cost,
                    double decodes_us, double prefill_us, Allowance& allowed) {
  allowed.floor = std::min(allowed.room, std::max(kPassTokens, served));
  // What has to be cut fills the last of its steps too.
  StepWork least = draft.work;
  for (size_t k = 0; k < by_wait.size() && least.tokens < draft.work.tokens + allowed.floor; ++k) {
    if (draft.loads[by_wait[k]].every_row) continue;
    const uint64_t left = draft.work.tokens + allowed.floor - least.tokens;
    const uint64_t count = std::min(draft.left(by_wait[k]), left);
    least.tokens += count;
    least.context += chunk_context(draft.loads[by_wait[k]].computed, count);
  }
  const double least_us = cost.estimate(least) - decodes_us;
  const double filled_us = kFilled * prefill_us;
  if (filled_us > 0.0 && least_us > prefill_us) {
    allowed.limit_us = decodes_us + std::ceil(least_us / filled_us) * filled_us;
  }
  const uint64_t most = std::min(allowed.room, kPrefillShare * served);
  allowed.share = std::max(allowed.floor, within_time(draft, by_wait.front(), most, cost, allowed.limit_us));
}

// The `served` prefills that waited longest get a share of their own.
uint64_t add_shares(Draft& draft, std::span<const size_t> by_wait, uint64_t served, const CostModel& cost,
                    const Allowance& allowed) {
  const uint64_t share = std::clamp<uint64_t>(allowed.share / served, 1, kPrefillShare);
  uint64_t used = 0;
  for (size_t k = 0; k < served && used < allowed.room; ++k) {
    const size_t i = by_wait[k];
    uint64_t count = std::min({share, draft.left(i), allowed.room - used});
    if (draft.loads[i].every_row) {
      count = std::max<uint64_t>(1, within_time(draft, i, count, cost, allowed.step_us));
    }
    draft.add(i, count);
    used += count;
  }
  return used;
}

void add_prefills(Draft& draft, std::span<const size_t> prefills, std::span<const size_t> by_wait, uint64_t served,
                  const CostModel& cost, const Allowance& allowed) {
  if (prefills.empty() || allowed.room == 0) return;
  uint64_t used = add_shares(draft, by_wait, served, cost, allowed);
  for (const size_t i : prefills) {
    const bool whole = draft.loads[i].every_row;
    const uint64_t most = std::min(draft.left(i), allowed.room - used);
    const uint64_t least = whole ? (used == 0 ? 1 : 0) : used < allowed.floor ? allowed.floor - used : 0;
    const double limit_us = whole ? allowed.step_us : allowed.limit_us;
    const uint64_t count = std::max(std::min(most, least), within_time(draft, i, most, cost, limit_us));
    if (count == 0) continue;
    draft.add(i, count);
    used += count;
  }
}

}  // namespace

void Scheduler::plan(std::span<const SequenceLoad> loads, const CostModel& cost, StepPlan& plan) const {
  auto& [counts, decode_indexes, prefills, by_wait, turns] = plan.workings;
  counts.assign(loads.size(), 0);
  Draft draft{.loads = loads, .counts = counts};
  prefills.clear();
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].remaining > 1) prefills.push_back(i);
  }
  by_wait = prefills;
  sort_by_wait(loads, by_wait);
  const uint64_t kept = kept_for_prefills(loads, by_wait, options_.max_num_batched_tokens, turns);
  add_decodes(draft, options_.max_num_batched_tokens - kept, decode_indexes);
  const uint64_t decodes = draft.work.tokens;
  const bool decoding = decodes > 0;
  const uint64_t room = fault(8) && decoding ? 0 : options_.max_num_batched_tokens - decodes;
  const bool timed = decoding && cost.decode_measured();
  const double decodes_us = timed ? cost.estimate_decodes(draft.work) : 0.0;
  const double step_us = !timed                       ? std::numeric_limits<double>::infinity()
                         : options_.max_step_us > 0.0 ? options_.max_step_us
                                                      : kStepFactor * cost.decode_spread() * decodes_us;
  plan.prefill_us = std::max(0.0, step_us - decodes_us);
  const uint64_t served = std::max(quarter_of(prefills.size()), kept);
  Allowance allowed{.room = room, .floor = room, .share = room, .step_us = step_us, .limit_us = step_us};
  if (decoding && !timed) {
    allowed.room = allowed.floor = allowed.share = std::min(room, std::max(kUnmeasuredPrefillTokens, served));
  } else if (decoding && !prefills.empty()) {
    // A step of decodes alone, now and then, for the cost model to see, where that delays no prefill's turn.
    const bool due = options_.max_step_us <= 0.0 && cost.decode_due() && loads[by_wait.front()].idle_steps == 0;
    if (due) allowed.room = 0;
    limit_prefills(draft, by_wait, served, cost, decodes_us, plan.prefill_us, allowed);
  }
  add_prefills(draft, prefills, by_wait, served, cost, allowed);

  plan.chunks.clear();
  for (size_t i = 0; i < loads.size(); ++i) {
    if (draft.counts[i] > 0) plan.chunks.push_back({i, loads[i].computed, static_cast<uint32_t>(draft.counts[i])});
  }
  plan.work = draft.work;
  plan.decodes = decodes;
  plan.decodes_only = decoding && draft.work.tokens == decodes;
  const bool cuttable =
      std::ranges::any_of(prefills, [&](size_t i) { return draft.counts[i] > 0 && !loads[i].every_row; });
  plan.cut = timed && cuttable && cost.estimate(draft.work) > step_us;
}

std::optional<size_t> Scheduler::victim(std::span<const VictimLoad> candidates) {
  if (candidates.empty()) return std::nullopt;
  const auto key = [](const VictimLoad& v) {
    return std::tuple(v.preemptions >= kPreemptionsEach, -v.priority, v.lost_tokens, ~v.order);
  };
  return static_cast<size_t>(std::ranges::min_element(candidates, {}, key) - candidates.begin());
}

bool Scheduler::may_admit(const AdmissionLoad& load) {
  if (load.slots_wanted > load.slots_free) return false;
  return !load.others_running || load.needed_bytes + load.promised_bytes + load.kept_bytes <= load.available_bytes;
}

}  // namespace kvarto

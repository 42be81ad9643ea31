// Blocks for the step that begins, and who gives way when there are none: reservation, preemption.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/engine_impl.h"

namespace kvarto {

void Engine::Impl::plan_step() {
  loads.clear();
  planned.clear();
  step.entries.clear();
  const auto scoring = static_cast<uint32_t>(
      std::ranges::count_if(running, [](const Sample* sample) { return sample->request->scoring(); }));
  for (Sample* sample : running) {
    if (sample->state != SampleState::running || sample->sequence.reserved() > 0) continue;
    if (pass.under_way() && sample->remaining() > 1) continue;  // for the next one
    planned.push_back(sample);
    loads.push_back({.computed = sample->sequence.length(),
                     .remaining = sample->remaining(),
                     .idle_steps = sample->idle_steps,
                     .most = most_in_a_step(*sample, scoring),
                     .every_row = sample->request->scoring()});
    ++sample->idle_steps;
  }
  scheduler.plan(loads, *parts.cost, plan);
  for (const PlannedChunk& chunk : plan.chunks) {
    Sample& sample = *planned[chunk.sequence];
    uint32_t count = chunk.count;
    if (sample.state != SampleState::running || !reserve(sample, count)) continue;  // it gave way
    step.entries.push_back({&sample, chunk.first, count});
  }
  if (plan.cut && !std::exchange(pass_abandoned, false)) begin_pass();
  plan.decodes_only = plan.decodes_only && !pass.under_way();
}

// Tokens of one sample in one step: logits of prompts that are scored have kLogitRows rows among them.
uint64_t Engine::Impl::most_in_a_step(const Sample& sample, uint32_t scoring) const {
  const uint32_t threshold = parts.options.long_prefill_token_threshold;
  uint64_t most = threshold > 0 ? threshold : UINT64_MAX;
  if (sample.request->scoring()) most = std::min<uint64_t>(most, std::max(1u, kLogitRows / scoring));
  return most;
}

// Takes the blocks for `count` tokens, preempting until they are there; false when the sample itself had to go. One
// that ends takes its request's other samples along, also those that this step was to compute.
bool Engine::Impl::reserve(Sample& sample, uint32_t& count) {
  const auto fail_request = [&](const Error& error) {
    end_request(*sample.request, FinishReason::error, error);
    std::erase_if(step.entries, [&](const Entry& entry) { return entry.sample->request == sample.request; });
    return false;
  };
  while (true) {
    const Status reserved = cache->reserve(sample.sequence, count);
    if (reserved) return true;
    if (reserved.error().code != ErrorCode::out_of_memory) return fail_request(reserved.error());
    const bool alone = std::ranges::none_of(running, [&](const Sample* other) {
      return other != &sample && other->sequence.length() + other->sequence.reserved() > 0;
    });
    if (alone && count == 1) return fail_request(reserved.error());
    if (alone) {
      count = (count + 1) / 2;
      continue;
    }
    Sample* victim = pick_victim(&sample);
    preempt(*victim);
    if (victim == &sample) return false;
  }
}

// Among those that hold blocks, and the one that needs some; without one in need, among parked beams only.
Sample* Engine::Impl::pick_victim(const Sample* needy) const {
  std::vector<VictimLoad> candidates;
  std::vector<Sample*> samples;
  for (Sample* sample : running) {
    if (needy == nullptr && sample->state != SampleState::parked) continue;
    const bool holds_blocks = sample->sequence.length() + sample->sequence.reserved() > 0;
    if (!holds_blocks && sample != needy) continue;
    const uint64_t computed = sample->sequence.length();
    // Of a pass under way as many of its tokens as layers are done.
    const uint64_t under_way = uint64_t{sample->sequence.reserved()} * pass.layers_done / parts.model->layers();
    const uint64_t kept = parts.options.enable_prefix_caching ? computed / block_tokens() * block_tokens() : 0;
    candidates.push_back({sample->level, sample->preemptions, computed - kept + under_way, sample->request->id});
    samples.push_back(sample);
  }
  const std::optional<size_t> chosen = Scheduler::victim(candidates);
  return chosen ? samples[*chosen] : nullptr;
}

// Gives its blocks back. A parked beam has what it needs until its siblings are done; any other waits to resume.
void Engine::Impl::preempt(Sample& sample) {
  ++sample.preemptions;
  ++sample.request->result.preemptions;
  ++totals.preemptions;
  const uint64_t held = sample.sequence.length();
  totals.preempted_tokens += held;
  preempted.push_back({sample.request->id, sample.index, held});
  log(LogLevel::info,
      "request " + std::to_string(sample.request->id) + " is preempted; it held " + std::to_string(held) + " tokens");
  sample.held_before = held;
  sample.computed_before = std::max(sample.computed_before, held);
  leave_pass(sample);
  if (sample.sequence.reserved() > 0) cache->cancel(sample.sequence);
  sample.sequence = KvSequence();
  std::erase(running, &sample);
  std::erase_if(step.entries, [&](const Entry& entry) { return entry.sample == &sample; });
  if (sample.state != SampleState::parked) enqueue(sample);
}

}  // namespace kvarto

// What callers and metrics get to know of a step: its tokens, its report, the numbers for other threads.
#include <utility>

#include "engine/engine_impl.h"

namespace kvarto {

// Tokens of a step come together when it is done, so that all have its time; ends from outside in between.
void Engine::Impl::report_tokens() {
  if (events.empty()) return;
  const uint64_t now = parts.clock->now_us();
  for (const PendingEvent& event : events) {
    RequestState& request = *event.request;
    if (event.token) {
      request.last_token_us = now;
      if (request.first_token_us == 0) request.first_token_us = now;
    }
    if (!request.request.on_token) continue;
    TokenEvent told{.request = request.id,
                    .sample = event.index,
                    .token = event.token,
                    .text = event.text,
                    .finish = event.finish,
                    .time_us = now,
                    .cached_tokens = request.result.cached_tokens};
    if (request.request.prompt_logprobs && !request.scoring() && !std::exchange(request.scores_told, true)) {
      told.prompt_logprobs = request.result.prompt_logprobs;
    }
    if (event.sample != nullptr) {
      const SampleResult& so_far = event.sample->output.result();
      if (event.token && request.params().logprobs) {
        told.logprob = so_far.token_logprobs.back().logprob;
        told.top = so_far.top_logprobs.back();
      }
      if (event.finish != FinishReason::none) {
        told.stop_string = so_far.stop_string;
        told.stop_token = so_far.stop_token;
        told.stop_was_eos = so_far.stop_was_eos;
      }
    }
    request.request.on_token(told);
  }
  events.clear();
}

EngineStats Engine::Impl::stats() const {
  EngineStats stats = totals;
  if (cache != nullptr) {
    stats.kv = cache->stats();
    stats.kv_balanced = cache->balanced();
  }
  stats.saturated_kv_values = parts.model->saturated_kv_values();
  stats.running = static_cast<uint32_t>(running.size());
  stats.waiting = static_cast<uint32_t>(waiting.size());
  stats.queued_tokens = queued_tokens;
  if (waste_steps > 0) stats.waste_mean = waste_sum / static_cast<double>(waste_steps);
  return stats;
}

// The end of a step; `computed`: it came to the forward pass.
void Engine::Impl::publish(bool computed) {
  const EngineStats now = stats();
  {
    const std::lock_guard lock(snapshot_mutex);
    snapshot = now;
  }
  if (parts.observer) {
    parts.observer({.step = now.steps,
                    .start_us = computed ? step_start_us : step_end_us,
                    .end_us = step_end_us,
                    .sequences = static_cast<uint32_t>(computed ? step.entries.size() : 0),
                    .prompt_tokens = now.computed_prompt_tokens - reported_prompt_tokens,
                    .generated_tokens = now.generated_tokens - reported_generated_tokens,
                    .decodes_only = computed && plan.decodes_only,
                    .cache_rebuilt = cache_rebuilt,
                    .running = now.running,
                    .waiting = now.waiting,
                    .admitted = admitted,
                    .preempted = preempted,
                    .resumed = resumed,
                    .kv = now.kv});
  }
  reported_prompt_tokens = now.computed_prompt_tokens;
  reported_generated_tokens = now.generated_tokens;
  cache_rebuilt = false;
  admitted.clear();
  preempted.clear();
  resumed.clear();
}

EngineStats Engine::stats() const { return impl_->stats(); }

EngineStats Engine::stats_snapshot() const {
  const Inbox::Arrived arrived = impl_->inbox.arrived();
  const std::lock_guard lock(impl_->snapshot_mutex);
  EngineStats stats = impl_->snapshot;
  stats.waiting += arrived.requests;
  stats.queued_tokens += arrived.prompt_tokens;
  return stats;
}

void Engine::observe(std::function<void(const StepReport&)> observer) { impl_->parts.observer = std::move(observer); }

}  // namespace kvarto

// One step's work: the batch, the forward pass, what is committed, and the tokens that follow from the logits.
#include <algorithm>

#include "base/fault.h"
#include "engine/engine_impl.h"

namespace kvarto {

// The rows of `rows.entries`, and which of them logits are made of.
void Engine::Impl::fill(Rows& rows) {
  rows.tokens.clear();
  rows.sequences.clear();
  rows.logit_rows.clear();
  rows.logit_from.clear();
  rows.context = 0;
  for (const Entry& entry : rows.entries) {
    const auto first_row = static_cast<uint32_t>(rows.tokens.size());
    const auto from = entry.sample->tokens.begin() + static_cast<std::ptrdiff_t>(entry.first);
    rows.tokens.insert(rows.tokens.end(), from, from + entry.count);
    rows.sequences.push_back({first_row, entry.count, entry.first, cache->views(entry.sample->sequence)});
    rows.context += chunk_context(entry.first, entry.count);
    const uint64_t end = entry.first + entry.count;
    const RequestState& request = *entry.sample->request;
    if (request.scoring()) {
      const uint64_t scored_end = std::min<uint64_t>(end, request.prompt_tokens() - 1);
      for (uint64_t p = std::max(entry.first, request.scored); p < scored_end; ++p) {
        rows.logit_rows.push_back(first_row + static_cast<uint32_t>(p - entry.first));
        rows.logit_from.push_back({entry.sample, p, true});
      }
    }
    if (end == entry.sample->tokens.size()) {
      rows.logit_rows.push_back(first_row + entry.count - 1);
      rows.logit_from.push_back({entry.sample, end - 1, false});
    }
  }
}

void Engine::Impl::compute() {
  step_start_us = parts.clock->now_us();
  if (parts.ledger != nullptr) parts.ledger->set_step(totals.steps + 1);
  fill(step);
  if (!step.entries.empty()) {
    parts.model->forward(
        {.tokens = step.tokens, .sequences = step.sequences, .logit_rows = step.logit_rows, .trace = {}},
        pass.under_way() ? parts.decode_workspace : parts.workspace, reinterpret_cast<float*>(hidden.data()));
  }
  pass_advanced = false;
  if (pass.under_way()) advance_pass();
  ++totals.steps;
}

void Engine::Impl::commit() {
  const auto peers = static_cast<uint32_t>(step.entries.size());
  for (const Entry& entry : step.entries) {
    Sample& sample = *entry.sample;
    cache->commit(sample.sequence, std::span(sample.tokens).subspan(entry.first, entry.count));
    count_commit(sample, entry.first, entry.count);
    uint32_t& most = sample.request->result.batch_peers_max;
    most = std::max(most, peers);
  }
  const KvCacheStats kv = cache->stats();
  if (kv.active_bytes == 0 || pass.under_way()) return;  // what is reserved would count as waste
  const double waste = static_cast<double>(kv.active_bytes - kv.live_bytes) / static_cast<double>(kv.active_bytes);
  waste_sum += waste;
  ++waste_steps;
  if (kv.active_bytes > totals.peak_active_bytes) {
    totals.peak_active_bytes = kv.active_bytes;
    totals.waste_at_peak = waste;
  }
}

void Engine::Impl::count_commit(Sample& sample, uint64_t first, uint32_t count) {
  const uint64_t end = first + count;
  const uint64_t again = std::min(end, sample.computed_before) - std::min(first, sample.computed_before);
  sample.request->result.recomputed_tokens += again;
  totals.recomputed_tokens += again;
  const uint64_t prompt = sample.request->prompt_tokens();
  totals.computed_prompt_tokens += std::min(end, prompt) - std::min(first, prompt);
  sample.idle_steps = 0;
}

void Engine::Impl::choose() {
  const size_t width = parts.model->config().width;
  auto* const rows = reinterpret_cast<float*>(logits.data());
  for (size_t first = 0; first < step.logit_from.size(); first += kLogitRows) {
    const size_t count = std::min<size_t>(kLogitRows, step.logit_from.size() - first);
    parts.model->logits(reinterpret_cast<const float*>(hidden.data()) + first * width, count, rows);
    for (size_t i = 0; i < count; ++i) {
      const LogitRow& from = step.logit_from[first + i];
      const std::span<const float> row(rows + i * vocabulary(), vocabulary());
      if (from.scored) {
        score_row(*from.sample, from.position, row);
      } else {
        take_row(*from.sample, row);
      }
    }
  }
  for (RequestState* request : beams_ready) expand_beams(*request);
  beams_ready.clear();
  // What users wait for is the whole step: the pass, logits and sampling.
  step_end_us = parts.clock->now_us();
  observe_step();
}

// A step that advanced a cut pass says nothing of decodes alone: its decodes find the caches full of something else.
void Engine::Impl::observe_step() {
  if (pass_advanced) return;
  const StepKind kind = plan.decodes_only && step.tokens.size() == step.logit_rows.size() ? StepKind::decodes
                        : plan.decodes > 0                                                ? StepKind::mixed
                                                                                          : StepKind::prefills;
  parts.cost->observe(step.work(), static_cast<double>(step_end_us - step_start_us), kind, 1);
}

// One row of a prompt whose log-probabilities were asked for: what it says of the token that follows.
void Engine::Impl::score_row(Sample& sample, uint64_t position, std::span<const float> row) {
  RequestState& request = *sample.request;
  if (request.ended) return;
  const TokenId next = request.request.prompt[position + 1];
  Result<PromptLogprob> scored = sampler.score(row, next, *request.request.prompt_logprobs);
  if (!scored) return end_request(request, FinishReason::error, scored.error());
  request.result.prompt_logprobs.push_back(*std::move(scored));
  request.scored = position + 1;
}

// All tokens of the sample are computed; `row` says what may come next. The last prompt row serves all samples of a
// request.
void Engine::Impl::take_row(Sample& sample, std::span<const float> row) {
  RequestState& request = *sample.request;
  if (request.ended) return;
  if (request.params().max_tokens == 0) return end_scored(request);
  if (request.is_beam()) return take_beam_row(sample, row);
  const bool first_token = request.unborn > 0;
  if (first_token) bear_children(sample);
  choose_token(sample, row);
  if (!first_token) return;
  for (size_t i = 1; i < request.samples.size() && !request.ended; ++i) choose_token(*request.samples[i], row);
}

// The prompt was all that was asked for.
void Engine::Impl::end_scored(RequestState& request) {
  for (; request.unborn > 0; --request.unborn) {
    const auto index = static_cast<uint32_t>(request.samples.size());
    request.samples.push_back(std::make_unique<Sample>(request, index, request.request.prompt));
  }
  for (const auto& sample : request.samples) end_sample(*sample, FinishReason::length);
}

// Children share the prompt's blocks and copy its open tail; one that finds no block for that starts as if preempted.
void Engine::Impl::bear_children(Sample& parent) {
  RequestState& request = *parent.request;
  for (; request.unborn > 0; --request.unborn) {
    const auto index = static_cast<uint32_t>(request.samples.size());
    request.samples.push_back(std::make_unique<Sample>(request, index, parent.tokens));
    Sample& child = *request.samples.back();
    child.computed_before = parent.sequence.length();
    child.level = parent.level;
    child.waited_us = parent.waited_us;
    Result<KvSequence> forked = cache->fork(parent.sequence);
    if (forked) {
      child.sequence = std::move(*forked);
      start_running(child);
    } else {
      enqueue(child);
    }
  }
}

void Engine::Impl::choose_token(Sample& sample, std::span<const float> row) {
  RequestState& request = *sample.request;
  const SampleContext context{
      .params = &request.params(),
      .stop_ids = request.rules.stop_ids,
      .seed = request.seed,
      .sample_index = request.request.sample_index + sample.index + (fault(7) ? sample.preemptions : 0),
      .tokens = sample.tokens,
      .prompt_tokens = request.prompt_tokens(),
      .output_counts = sample.output.counts(),
      .logprobs_mode = parts.options.logprobs_mode};
  const Result<SampledToken> chosen = sampler.sample(row, context);
  if (!chosen) return end_request(request, FinishReason::error, chosen.error());
  sample.output.hash_row(row);
  sample.tokens.push_back(chosen->token);
  std::string text = sample.output.push(*chosen);
  ++totals.generated_tokens;
  ++request.result.completion_tokens;
  const FinishReason finish = sample.output.finish_reason();
  events.push_back({&request, sample.index, &sample, chosen->token, std::move(text), finish});
  if (finish != FinishReason::none) end_sample(sample, finish);
}

}  // namespace kvarto

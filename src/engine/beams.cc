// Beam search through fork and release: every round each live beam names its likeliest continuations; when all have,
// the best ones live on. The last child of a beam takes over its sequence, others fork it. Ranked by the sum of raw
// log-probabilities; a finished beam by that over its length to the power of the length penalty (1: their mean). Same
// candidates as vLLM: 2 x width per beam.
#include <algorithm>
#include <tuple>

#include "base/vmath.h"
#include "engine/engine_impl.h"

namespace kvarto {
namespace {

// Every live beam's continuations, best first; ties by parent, then token id.
std::vector<BeamStep> gather(const RequestState& request) {
  std::vector<BeamStep> all;
  for (size_t i = 0; i < request.samples.size(); ++i) {
    const Sample& beam = *request.samples[i];
    for (const TokenLogprob& next : beam.continuations) {
      all.push_back({i, next.token, beam.cumulative_logprob + static_cast<double>(next.logprob)});
    }
  }
  std::ranges::sort(all, {}, [](const BeamStep& s) { return std::tuple(-s.cumulative_logprob, s.parent, s.token); });
  return all;
}

double score_of(const RequestState& request, const FinishedBeam& beam) {
  return beam_score(beam.cumulative_logprob, beam.tokens.size(), request.params().length_penalty);
}

// Whether no continuation of `cumulative` can still come before the n-th finished beam: log-probabilities only fall,
// and the longest text divides them by most (or, where a penalty below 0 makes it multiply, the shortest by least).
bool settled(const RequestState& request, double cumulative, uint64_t next, uint64_t longest) {
  const size_t n = request.params().n;
  const float penalty = request.params().length_penalty;
  return request.finished_beams.size() >= n && score_of(request, request.finished_beams[n - 1]) >=
                                                   beam_score(cumulative, penalty < 0.0f ? next : longest, penalty);
}

}  // namespace

double beam_score(double cumulative_logprob, uint64_t tokens, float length_penalty) {
  const auto length = static_cast<double>(tokens);
  return cumulative_logprob / (length_penalty == 1.0f ? length : pow_d(length, length_penalty));
}

void Engine::Impl::take_beam_row(Sample& sample, std::span<const float> row) {
  RequestState& request = *sample.request;
  const bool hold_stops = sample.generated().size() < request.params().min_tokens;
  auto best = sampler.best(row, 2 * size_t{request.params().beam_width},
                           hold_stops ? std::span<const TokenId>(request.rules.stop_ids) : std::span<const TokenId>());
  if (!best) return end_request(request, FinishReason::error, best.error());
  sample.continuations = *std::move(best);
  sample.state = SampleState::parked;
  if (request.first_token_us == 0) request.first_token_us = parts.clock->now_us();
  const bool all = std::ranges::all_of(request.samples, [](const auto& s) { return s->state == SampleState::parked; });
  if (all) beams_ready.push_back(&request);
}

void Engine::Impl::expand_beams(RequestState& request) {
  if (request.ended) return;
  const SamplingParams& params = request.params();
  const uint64_t longest = std::min<uint64_t>(params.max_tokens, limits.max_model_len - request.prompt_tokens());
  const uint64_t length = request.samples.front()->generated().size() + 1;
  std::vector<BeamStep> live;
  for (const BeamStep& next : gather(request)) {
    const bool stops = std::ranges::binary_search(request.rules.stop_ids, next.token);
    if (!stops && length < longest) {
      if (live.size() < params.beam_width) live.push_back(next);
      continue;
    }
    const std::span<const TokenId> before = request.samples[next.parent]->generated();
    FinishedBeam beam{.tokens = {before.begin(), before.end()},
                      .cumulative_logprob = next.cumulative_logprob,
                      .finish = stops ? FinishReason::stop : FinishReason::length};
    beam.tokens.push_back(next.token);
    request.finished_beams.push_back(std::move(beam));
  }
  std::ranges::stable_sort(request.finished_beams, std::greater<>(),
                           [&](const FinishedBeam& beam) { return score_of(request, beam); });
  if (request.finished_beams.size() > params.n) request.finished_beams.resize(params.n);
  if (live.empty() || settled(request, live.front().cumulative_logprob, length + 1, longest)) {
    finish_beams(request);
  } else {
    replace_beams(request, live);
  }
}

// The last child of a parent takes its sequence over, earlier ones fork it. One that finds no block for its tail, or
// whose parent had to give way, starts as if preempted.
void Engine::Impl::replace_beams(RequestState& request, std::span<const BeamStep> live) {
  const std::vector<std::unique_ptr<Sample>> parents = std::exchange(request.samples, {});
  request.unborn = 0;
  std::erase_if(running, [&](const Sample* sample) { return sample->request == &request; });
  const auto is_parent = [](size_t i) { return [i](const BeamStep& step) { return step.parent == i; }; };
  for (size_t i = 0; i < parents.size(); ++i) {  // dead ends first: their tails are wanted
    if (std::ranges::none_of(live, is_parent(i))) parents[i]->sequence = KvSequence();
  }
  for (size_t i = 0; i < live.size(); ++i) {
    Sample& parent = *parents[live[i].parent];
    request.samples.push_back(std::make_unique<Sample>(request, static_cast<uint32_t>(i), parent.tokens));
    Sample& child = *request.samples.back();
    child.tokens.push_back(live[i].token);
    child.cumulative_logprob = live[i].cumulative_logprob;
    child.preemptions = parent.preemptions;
    child.level = parent.level;
    child.waited_us = parent.waited_us;
    child.computed_before = std::max(parent.computed_before, parent.sequence ? parent.sequence.length() : 0);
    if (parent.sequence) {
      if (std::ranges::none_of(live.subspan(i + 1), is_parent(live[i].parent))) {
        child.sequence = std::move(parent.sequence);
      } else if (Result<KvSequence> forked = cache->fork(parent.sequence)) {
        child.sequence = std::move(*forked);
      }
    }
    // The slot of a parent that gave way may be taken by now.
    if (slots_used() == parts.options.max_num_seqs) child.sequence = KvSequence();
    if (child.sequence) {
      start_running(child);
    } else {
      enqueue(child);
    }
  }
  totals.generated_tokens += live.size();
}

void Engine::Impl::finish_beams(RequestState& request) {
  for (const FinishedBeam& beam : request.finished_beams) {
    SampleResult result;
    result.tokens = beam.tokens;
    result.finish = beam.finish;
    result.cumulative_logprob = beam.cumulative_logprob;
    if (beam.finish == FinishReason::stop) {
      result.stop_token = beam.tokens.back();
      result.stop_was_eos = request.rules.is_eos(beam.tokens.back());
    }
    if (parts.tokenizer != nullptr) {
      StreamDecoder text;
      const bool special = !request.params().skip_special_tokens;
      const size_t shown = beam.tokens.size() - (beam.finish == FinishReason::stop ? 1 : 0);
      for (size_t i = 0; i < shown; ++i) result.text += text.push(parts.tokenizer->piece(beam.tokens[i], special));
      result.text += text.finish();
    }
    request.result.completion_tokens += beam.tokens.size();
    request.result.samples.push_back(std::move(result));
  }
  request.last_token_us = parts.clock->now_us();
  end_request(request, FinishReason::none, std::nullopt);
}

}  // namespace kvarto

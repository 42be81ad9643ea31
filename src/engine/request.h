// A request inside the engine, and its samples. A sample is one output in the making: its tokens, its hold on the
// cache, its place in the queues. A request starts with one sample; the others (n samples, beams) are forked off when
// the prompt is computed. Owned by Engine::Impl; owner's thread, but for what submit() fills before handing it over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/output.h"
#include "kvarto/engine.h"
#include "kvarto/kv_cache.h"

namespace kvarto {

struct RequestState;

enum class SampleState : uint8_t {
  waiting,  // holds no blocks
  running,  // holds a sequence; computes whenever the plan says so
  parked,   // a beam that has its logits and waits for its siblings
  finished,
};

struct Sample {
  Sample(RequestState& owner, uint32_t sample_index, std::vector<TokenId> all_tokens);

  RequestState* request;
  uint32_t index;               // in [0, n)
  std::vector<TokenId> tokens;  // prompt and output
  KvSequence sequence;
  SampleState state = SampleState::waiting;
  Output output;
  uint32_t preemptions = 0;
  uint64_t computed_before = 0;  // tokens that were computed once already, by this sample or the one it was forked from
  uint32_t idle_steps = 0;       // steps since it last advanced
  // Waits for another request to compute the same prefix: how many blocks of it were there last, and steps since then.
  uint64_t prefix_wait_block = 0;
  uint32_t prefix_wait_steps = 0;
  std::optional<uint64_t> held_before;  // preempted: tokens that it held then
  // Its place in the queues: the request's priority, one less for every while that it has waited so far. As of its
  // last admission once it runs; always 0 under fcfs.
  int64_t level = 0;
  uint64_t waited_us = 0, enqueued_us = 0;  // before it was enqueued last; when that was
  // Beams only: sum of logprobs so far, and the continuations found in this round.
  double cumulative_logprob = 0.0;
  std::vector<TokenLogprob> continuations;

  uint64_t remaining() const { return tokens.size() - sequence.length(); }
  std::span<const TokenId> generated() const;
};

// One way a beam may go on.
struct BeamStep {
  size_t parent = 0;  // index among the live beams
  TokenId token = 0;
  double cumulative_logprob = 0.0;
};

// A beam that is complete.
struct FinishedBeam {
  std::vector<TokenId> tokens;  // generated
  double cumulative_logprob = 0.0;
  FinishReason finish = FinishReason::none;
};

// How beams are ranked. The last token of a beam counts, whether it ends the text or not.
double beam_score(double cumulative_logprob, uint64_t tokens, float length_penalty);

struct RequestState {
  RequestId id = 0;  // ids ascend in the order of arrival
  Request request;
  OutputRules rules;
  uint64_t seed = 0;
  std::vector<BlockHash> prompt_hashes;  // chain hashes of the prompt's whole blocks; empty when nothing is shared
  std::vector<std::unique_ptr<Sample>> samples;
  uint32_t unborn = 0;  // samples still to be forked
  uint64_t scored = 0;  // rows of the prompt that prompt_logprobs were taken from
  std::vector<FinishedBeam> finished_beams;
  RequestResult result;  // counters; samples are filled at the end
  bool admitted = false, ended = false;
  bool scores_told = false;  // prompt_logprobs, with an event
  uint64_t submitted_us = 0, admitted_us = 0, first_token_us = 0, last_token_us = 0;

  const SamplingParams& params() const { return request.sampling; }
  bool is_beam() const { return request.sampling.beam_width > 0; }
  size_t prompt_tokens() const { return request.prompt.size(); }
  // Whether rows of the prompt are still to be scored: all but the last, which says what comes after the prompt.
  bool scoring() const { return request.prompt_logprobs && scored + 1 < prompt_tokens(); }
};

inline Sample::Sample(RequestState& owner, uint32_t sample_index, std::vector<TokenId> all_tokens)
    : request(&owner),
      index(sample_index),
      tokens(std::move(all_tokens)),
      output(owner.rules, owner.request.hash_logits) {
  // As long as it can become: a step that decodes allocates nothing.
  const uint64_t longest = owner.prompt_tokens() + owner.rules.params->max_tokens;
  tokens.reserve(std::min<uint64_t>(longest, owner.rules.max_model_len));
}

inline std::span<const TokenId> Sample::generated() const {
  return std::span(tokens).subspan(request->prompt_tokens());
}

// The order of queues: by level, then arrival.
inline std::tuple<int64_t, RequestId, uint32_t> queue_key(const Sample& sample) {
  return {sample.level, sample.request->id, sample.index};
}

}  // namespace kvarto

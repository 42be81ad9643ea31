// Sampler: one row of logits and a request's parameters in, one token out, in vLLM's order: allowed_token_ids,
// bad_words, min_tokens and logit bias, penalties (repetition, then frequency and presence), temperature, min_p, top_k,
// top_p, one draw. Candidates are
// ordered by logit descending, id ascending; all sums are in double with our own exp and log, so the same logits give
// the same token on every machine. Keeps scratch between calls; owner's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvarto/engine.h"
#include "kvarto/options.h"
#include "kvarto/result.h"
#include "kvarto/types.h"

namespace kvarto {

// What the sampler knows of a sample besides the row.
struct SampleContext {
  const SamplingParams* params = nullptr;
  std::span<const TokenId> stop_ids = {};  // ascending; may not come before min_tokens
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  std::span<const TokenId> tokens = {};  // prompt and output
  size_t prompt_tokens = 0;
  // Occurrences in the output; kept only where a penalty wants them.
  const std::unordered_map<TokenId, uint32_t>* output_counts = nullptr;
  LogprobsMode logprobs_mode = LogprobsMode::raw_logprobs;
};

struct SampledToken {
  TokenId token = 0;
  std::optional<float> logprob = {};   // when logprobs were asked for, of the kind of logprobs_mode
  std::vector<TokenLogprob> top = {};  // params.logprobs alternatives, best first
};

class Sampler {
 public:
  // Errors: a row with NaN or +infinity, or without any finite candidate.
  Result<SampledToken> sample(std::span<const float> logits, const SampleContext& context);
  // The `count` most likely tokens by log-softmax of the raw row, without the `banned` (ascending) ones: for beams.
  Result<std::vector<TokenLogprob>> best(std::span<const float> logits, size_t count, std::span<const TokenId> banned);
  // What the raw row says of `token`: its log-softmax and rank, and the `count` most likely alternatives.
  Result<PromptLogprob> score(std::span<const float> logits, TokenId token, size_t count);

 private:
  struct Candidate {
    double logit;
    TokenId id;
  };
  static bool before(const Candidate& a, const Candidate& b);  // the order of candidates
  std::span<const float> adjust(std::span<const float> logits, const SampleContext& context);
  void ban_words(const SampleContext& context);
  void penalise(const SampleContext& context);
  TokenId draw(std::span<const float> logits, const SampleContext& context);
  std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, size_t count, double norm,
                                         std::span<const TokenId> banned);
  // The first `count` of candidates_[from, end), best first.
  std::vector<TokenLogprob> first_of(size_t from, size_t count, double norm);
  void report_raw(std::span<const float> logits, const SampleContext& context, SampledToken& result);
  void report_processed(std::span<const float> row, const SampleContext& context, SampledToken& result);

  std::vector<float> row_;  // a changed copy of the logits
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
  size_t drawn_from_ = 0;      // candidates_ from here on were what draw() chose from
  double drawn_max_ = 0.0;     // and their logits were less by this
  std::vector<uint8_t> seen_;  // [vocabulary], all zero between calls
};

// Whether output_counts is needed.
inline bool wants_counts(const SamplingParams& p) { return p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f; }

// Below this a temperature means argmax, as in vLLM.
inline constexpr float kGreedyTemperature = 1e-5f;

}  // namespace kvarto

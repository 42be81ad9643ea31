#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fault.h"
#include "base/vmath.h"
#include "engine/rng.h"

namespace kvarto {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

TokenId argmax(std::span<const float> row) {
  size_t best = 0;
  for (size_t i = 1; i < row.size(); ++i) {
    if (row[i] > row[best] || (fault(12) && row[i] == row[best])) best = i;
  }
  return static_cast<TokenId>(best);
}

// An error for rows that no distribution follows from.
Status check_row(std::span<const float> row) {
  float max = kMinusInfinity;
  for (size_t i = 0; i < row.size(); ++i) {
    if (std::isnan(row[i]) || row[i] == std::numeric_limits<float>::infinity()) {
      return fail(ErrorCode::internal, "logit of token " + std::to_string(i) + " is " +
                                           (std::isnan(row[i]) ? "NaN" : "inf") +
                                           "; the model's weights or its KV overflow, try --kv-cache-dtype float32");
    }
    max = std::max(max, row[i]);
  }
  if (max == kMinusInfinity) return fail(ErrorCode::internal, "every logit is -inf: no token can be chosen");
  return {};
}

}  // namespace

bool Sampler::before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

void Sampler::penalise(const SampleContext& context) {
  const SamplingParams& p = *context.params;
  if (p.repetition_penalty != 1.0f) {
    seen_.resize(row_.size());
    for (const TokenId id : context.tokens) {
      uint8_t& seen = seen_[static_cast<size_t>(id)];
      float& logit = row_[static_cast<size_t>(id)];
      if (seen == 0) logit = logit > 0.0f ? logit / p.repetition_penalty : logit * p.repetition_penalty;
      seen = 1;
    }
    for (const TokenId id : context.tokens) seen_[static_cast<size_t>(id)] = 0;
  }
  if (context.output_counts == nullptr) return;
  for (const auto& [id, count] : *context.output_counts) {
    row_[static_cast<size_t>(id)] -= p.frequency_penalty * static_cast<float>(count) + p.presence_penalty;
  }
}

std::span<const float> Sampler::adjust(std::span<const float> logits, const SampleContext& context) {
  const SamplingParams& p = *context.params;
  const size_t generated = context.tokens.size() - context.prompt_tokens;
  const bool hold_stops = generated < p.min_tokens && !context.stop_ids.empty();
  if (!hold_stops && p.logit_bias.empty() && p.repetition_penalty == 1.0f && !wants_counts(p)) return logits;
  row_.assign(logits.begin(), logits.end());
  if (hold_stops) {
    for (const TokenId id : context.stop_ids) row_[static_cast<size_t>(id)] = kMinusInfinity;
  }
  for (const auto& [id, bias] : p.logit_bias) row_[static_cast<size_t>(id)] += std::clamp(bias, -100.0f, 100.0f);
  penalise(context);
  return row_;
}

TokenId Sampler::draw(std::span<const float> logits, const SampleContext& context) {
  const SamplingParams& p = *context.params;
  const double temperature = p.temperature;
  const double max = static_cast<double>(logits[static_cast<size_t>(argmax(logits))]) / temperature;
  // min_p relates to the most likely token, so it is a bound on the distance of logits.
  const double floor = p.min_p > 0.0f ? log_d(p.min_p) : -std::numeric_limits<double>::infinity();
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == kMinusInfinity) continue;
    const double x = static_cast<double>(logits[i]) / temperature - max;
    if (x >= floor) candidates_.push_back({x, static_cast<TokenId>(i)});
  }
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + p.top_k - 1, candidates_.end(), before);
    candidates_.resize(static_cast<size_t>(p.top_k));
    // Back in order of ids, as they came: the sum must not depend on how nth_element left them.
    std::ranges::sort(candidates_, {}, &Candidate::id);
  }
  double total = 0.0;
  for (const Candidate& c : candidates_) total += exp_d(c.logit);

  // In order of likelihood, taken from a heap: a draw rarely needs more than the first few of them.
  const auto later = [](const Candidate& a, const Candidate& b) { return before(b, a); };
  std::make_heap(candidates_.begin(), candidates_.end(), later);
  auto end = candidates_.end();
  const auto next = [&] {
    std::pop_heap(candidates_.begin(), end, later);
    return *--end;
  };
  const double uniform = uniform_draw(context.seed, context.sample_index, context.tokens.size());
  if (p.top_p >= 1.0f) {
    double sum = 0.0;
    TokenId id = 0;
    while (end != candidates_.begin()) {
      const Candidate c = next();
      id = c.id;
      sum += exp_d(c.logit);
      if (sum > uniform * total) break;
    }
    return id;
  }
  // A token stays while those before it do not yet make up top_p.
  weights_.clear();
  double kept = 0.0;
  const auto first_popped = candidates_.rbegin();
  while (end != candidates_.begin() && (weights_.empty() || kept < static_cast<double>(p.top_p) * total)) {
    weights_.push_back(exp_d(next().logit));
    kept += weights_.back();
  }
  double sum = 0.0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    sum += weights_[i];
    if (sum > uniform * kept) return (first_popped + static_cast<std::ptrdiff_t>(i))->id;
  }
  return (first_popped + static_cast<std::ptrdiff_t>(weights_.size() - 1))->id;
}

std::vector<TokenLogprob> Sampler::top_logprobs(std::span<const float> logits, size_t count, double norm,
                                                std::span<const TokenId> banned) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (!std::binary_search(banned.begin(), banned.end(), id)) candidates_.push_back({logits[i], id});
  }
  const size_t n = std::min(count, candidates_.size());
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(n), candidates_.end(),
                    before);
  std::vector<TokenLogprob> out;
  for (size_t i = 0; i < n; ++i) out.push_back({candidates_[i].id, static_cast<float>(candidates_[i].logit - norm)});
  return out;
}

Result<SampledToken> Sampler::sample(std::span<const float> logits, const SampleContext& context) {
  RETURN_IF_ERROR(check_row(logits));
  const SamplingParams& p = *context.params;
  const std::span<const float> row = adjust(logits, context);
  if (row.data() != logits.data()) RETURN_IF_ERROR(check_row(row));
  SampledToken result;
  result.token = p.temperature < kGreedyTemperature ? argmax(row) : draw(row, context);
  if (p.logprobs) {
    const double norm = log_sum_exp(logits);
    result.logprob = static_cast<float>(static_cast<double>(logits[static_cast<size_t>(result.token)]) - norm);
    result.top = top_logprobs(logits, *p.logprobs, norm, {});
  }
  return result;
}

Result<std::vector<TokenLogprob>> Sampler::best(std::span<const float> logits, size_t count,
                                                std::span<const TokenId> banned) {
  RETURN_IF_ERROR(check_row(logits));
  return top_logprobs(logits, count, log_sum_exp(logits), banned);
}

}  // namespace kvarto

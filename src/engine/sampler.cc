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

// The last id of a sequence whose others end the output may not come.
void Sampler::ban_words(const SampleContext& context) {
  const std::span<const TokenId> output = context.tokens.subspan(context.prompt_tokens);
  for (const std::vector<TokenId>& word : context.params->bad_words) {
    const std::span<const TokenId> before(word.data(), word.size() - 1);
    if (before.size() > output.size()) continue;
    if (std::ranges::equal(before, output.last(before.size()))) row_[static_cast<size_t>(word.back())] = kMinusInfinity;
  }
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
  const bool limits_ids = !p.allowed_token_ids.empty() || !p.bad_words.empty();
  if (!hold_stops && !limits_ids && p.logit_bias.empty() && p.repetition_penalty == 1.0f && !wants_counts(p)) {
    return logits;
  }
  if (p.allowed_token_ids.empty()) {
    row_.assign(logits.begin(), logits.end());
  } else {
    row_.assign(logits.size(), kMinusInfinity);
    for (const TokenId id : p.allowed_token_ids) row_[static_cast<size_t>(id)] = logits[static_cast<size_t>(id)];
  }
  ban_words(context);
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
  drawn_from_ = 0;
  drawn_max_ = max;
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
  drawn_from_ = candidates_.size() - weights_.size();
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
  return first_of(0, count, norm);
}

std::vector<TokenLogprob> Sampler::first_of(size_t from, size_t count, double norm) {
  const auto begin = candidates_.begin() + static_cast<std::ptrdiff_t>(from);
  const auto end = begin + static_cast<std::ptrdiff_t>(std::min(count, candidates_.size() - from));
  std::partial_sort(begin, end, candidates_.end(), before);
  std::vector<TokenLogprob> out;
  for (auto c = begin; c != end; ++c) out.push_back({c->id, static_cast<float>(c->logit - norm)});
  return out;
}

void Sampler::report_raw(std::span<const float> logits, const SampleContext& context, SampledToken& result) {
  const double norm = context.logprobs_mode == LogprobsMode::raw_logits ? 0.0 : log_sum_exp(logits);
  result.logprob = static_cast<float>(static_cast<double>(logits[static_cast<size_t>(result.token)]) - norm);
  result.top = top_logprobs(logits, *context.params->logprobs, norm, {});
}

// After adjust() and, where there was one, draw().
void Sampler::report_processed(std::span<const float> row, const SampleContext& context, SampledToken& result) {
  if (context.params->temperature < kGreedyTemperature) {
    candidates_.clear();
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i] != kMinusInfinity) candidates_.push_back({row[i], static_cast<TokenId>(i)});
    }
    drawn_from_ = 0;
    drawn_max_ = static_cast<double>(row[static_cast<size_t>(argmax(row))]);
    for (Candidate& c : candidates_) c.logit -= drawn_max_;
  }
  double norm = -drawn_max_;
  if (context.logprobs_mode == LogprobsMode::processed_logprobs) {
    double total = 0.0;
    for (size_t i = drawn_from_; i < candidates_.size(); ++i) total += exp_d(candidates_[i].logit);
    norm = log_d(total);
  }
  for (size_t i = drawn_from_; i < candidates_.size(); ++i) {
    if (candidates_[i].id == result.token) result.logprob = static_cast<float>(candidates_[i].logit - norm);
  }
  result.top = first_of(drawn_from_, *context.params->logprobs, norm);
}

Result<SampledToken> Sampler::sample(std::span<const float> logits, const SampleContext& context) {
  RETURN_IF_ERROR(check_row(logits));
  const SamplingParams& p = *context.params;
  const std::span<const float> row = adjust(logits, context);
  if (row.data() != logits.data()) {
    if (std::ranges::all_of(row, [](float logit) { return logit == kMinusInfinity; })) {
      return fail(ErrorCode::invalid_argument,
                  "allowed_token_ids, bad_words, logit_bias and min_tokens together leave no token that may come next; "
                  "loosen one of them");
    }
    RETURN_IF_ERROR(check_row(row));
  }
  SampledToken result;
  result.token = p.temperature < kGreedyTemperature ? argmax(row) : draw(row, context);
  if (!p.logprobs) return result;
  const LogprobsMode mode = context.logprobs_mode;
  if (mode == LogprobsMode::processed_logprobs || mode == LogprobsMode::processed_logits) {
    report_processed(row, context, result);
  } else {
    report_raw(logits, context, result);
  }
  return result;
}

Result<PromptLogprob> Sampler::score(std::span<const float> logits, TokenId token, size_t count) {
  RETURN_IF_ERROR(check_row(logits));
  const double norm = log_sum_exp(logits);
  const auto place = static_cast<size_t>(token);
  const float logit = logits[place];
  PromptLogprob scored{.token = token, .logprob = static_cast<float>(static_cast<double>(logit) - norm), .rank = 1};
  for (size_t i = 0; i < logits.size(); ++i) scored.rank += logits[i] > logit || (logits[i] == logit && i < place);
  if (count > 0) scored.top = top_logprobs(logits, count, norm, {});
  return scored;
}

Result<std::vector<TokenLogprob>> Sampler::best(std::span<const float> logits, size_t count,
                                                std::span<const TokenId> banned) {
  RETURN_IF_ERROR(check_row(logits));
  return top_logprobs(logits, count, log_sum_exp(logits), banned);
}

}  // namespace kvarto

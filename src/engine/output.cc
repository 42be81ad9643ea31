#include "engine/output.h"

#include <algorithm>
#include <bit>

namespace kvarto {

// The hash is of little-endian floats; every machine that is supported has them.
static_assert(std::endian::native == std::endian::little);

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return "none";
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::error:
      return "error";
  }
  return "?";
}

bool OutputRules::is_eos(TokenId token) const {
  return tokenizer != nullptr && !params->ignore_eos && std::ranges::binary_search(tokenizer->stop_ids(), token);
}

Output::Output(const OutputRules& rules, bool hash_logits)
    : rules_(&rules), stops_(rules.params->stop, rules.params->include_stop_str_in_output) {
  if (hash_logits) hash_.emplace();
}

void Output::hash_row(std::span<const float> logits) {
  if (hash_) hash_->update(std::as_bytes(logits));
}

std::string Output::add_text(TokenId token) {
  if (rules_->tokenizer == nullptr) return {};
  std::string text = utf8_.push(rules_->tokenizer->piece(token, !rules_->params->skip_special_tokens));
  if (generated_ <= rules_->params->min_tokens && rules_->params->min_tokens > 0) return text;
  return stops_.push(text);
}

void Output::note_stop(TokenId token) {
  finish_ = FinishReason::stop;
  result_.stop_token = token;
  result_.stop_was_eos = rules_->is_eos(token);
}

std::string Output::flush() {
  if (rules_->tokenizer == nullptr) return {};
  if (stops_.stopped()) return {};
  std::string text = stops_.push(utf8_.finish());
  return text + stops_.finish();
}

std::string Output::push(const SampledToken& chosen) {
  const SamplingParams& params = *rules_->params;
  ++generated_;
  if (wants_counts(params)) ++counts_[chosen.token];
  if (chosen.logprob) {
    result_.cumulative_logprob += static_cast<double>(*chosen.logprob);
    result_.token_logprobs.push_back({chosen.token, *chosen.logprob});
    result_.top_logprobs.push_back(chosen.top);
  }
  std::string text;
  if (std::ranges::binary_search(rules_->stop_ids, chosen.token)) {
    note_stop(chosen.token);
    if (params.include_stop_str_in_output) text = add_text(chosen.token);
  } else {
    text = add_text(chosen.token);
    if (stops_.stopped()) {
      finish_ = FinishReason::stop;
    } else if (generated_ >= params.max_tokens || rules_->prompt_tokens + generated_ >= rules_->max_model_len) {
      finish_ = FinishReason::length;
    }
  }
  if (finish_ != FinishReason::none) {
    text += flush();
    // The end of the text may have completed a stop string that an unfinished character had held back.
    if (stops_.stopped()) finish_ = FinishReason::stop;
    result_.stop_string = stops_.stop_string();
  }
  result_.text += text;
  return text;
}

std::string Output::end(FinishReason reason) {
  if (finish_ != FinishReason::none) return {};
  finish_ = reason;
  std::string text = flush();
  result_.text += text;
  result_.stop_string = stops_.stop_string();
  return text;
}

SampleResult Output::take(std::span<const TokenId> tokens) {
  result_.tokens.assign(tokens.begin(), tokens.end());
  result_.finish = finish_;
  if (hash_) {
    result_.logits_sha256 = to_hex(hash_->finish());
    hash_.reset();
  }
  return std::move(result_);
}

}  // namespace kvarto

#include "engine/validate.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>

namespace kvarto {
namespace {

constexpr size_t kMostStops = 64, kLongestStop = 1024;
constexpr size_t kLongestSalt = 1024;
constexpr uint32_t kMostLogprobs = 1024;
constexpr uint64_t kMostPromptLogprobs = uint64_t{1} << 22;  // over a whole prompt: 32 MiB
constexpr size_t kMostBadWords = 1024, kMostBadWordIds = 16384;

template <typename T>
tl::unexpected<Error> bad(const char* field, const T& value, const std::string& rule) {
  std::ostringstream text;
  text << field << ' ' << value << ' ' << rule;
  return fail(ErrorCode::invalid_argument, text.str());
}

Status in_range(const char* field, float value, float low, float high) {
  if (value >= low && value <= high) return {};  // false for NaN
  std::ostringstream rule;
  rule << "is not in [" << low << ", " << high << "]";
  return bad(field, value, rule.str());
}

Status known_token(const char* field, TokenId id, uint32_t vocabulary) {
  if (id >= 0 && static_cast<uint32_t>(id) < vocabulary) return {};
  return bad(field, id, "is not a token id; the vocabulary has ids 0 to " + std::to_string(vocabulary - 1));
}

Status check_prompt_logprobs(const Request& request) {
  const SamplingParams& p = request.sampling;
  if (!request.prompt_logprobs) {
    if (p.max_tokens > 0) return {};
    return bad("max_tokens", p.max_tokens, "asks for nothing; it must be at least 1, or 0 with prompt_logprobs");
  }
  if (p.max_tokens == 0 && p.beam_width > 0) {
    return bad("max_tokens", p.max_tokens, "leaves beams nothing to do; leave out beam_width");
  }
  const uint32_t count = *request.prompt_logprobs;
  if (count > kMostLogprobs) return bad("prompt_logprobs", count, "is more than " + std::to_string(kMostLogprobs));
  if (count * uint64_t{request.prompt.size()} > kMostPromptLogprobs) {
    return bad("prompt_logprobs", count,
               "for each of " + std::to_string(request.prompt.size()) + " prompt tokens are " + "more than " +
                   std::to_string(kMostPromptLogprobs) + " in all; ask for less");
  }
  return {};
}

Status check_counts(const SamplingParams& p, const RequestLimits& limits) {
  const std::string most = std::to_string(limits.max_num_seqs);
  if (p.n == 0) return bad("n", p.n, "asks for nothing; it must be at least 1");
  if (p.n > limits.max_num_seqs)
    return bad("n", p.n, "is more than max_num_seqs " + most + " can run; ask for at most that");
  if (p.beam_width > limits.max_num_seqs) {
    return bad("beam_width", p.beam_width, "is more than max_num_seqs " + most + " can run; ask for at most that");
  }
  if (p.beam_width > 0 && p.beam_width < p.n) {
    return bad("beam_width", p.beam_width, "is less than n " + std::to_string(p.n) + "; use at least as many beams");
  }
  if (p.min_tokens > p.max_tokens) {
    return bad("min_tokens", p.min_tokens, "is more than max_tokens " + std::to_string(p.max_tokens));
  }
  if (p.logprobs && *p.logprobs > kMostLogprobs) {
    return bad("logprobs", *p.logprobs, "is more than " + std::to_string(kMostLogprobs));
  }
  return {};
}

Status check_distribution(const SamplingParams& p) {
  RETURN_IF_ERROR(in_range("temperature", p.temperature, 0.0f, 2.0f));
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f)) return bad("top_p", p.top_p, "is not in (0, 1]");
  if (p.top_k < -1) return bad("top_k", p.top_k, "is negative; 0 or -1 turns it off");
  RETURN_IF_ERROR(in_range("min_p", p.min_p, 0.0f, 1.0f));
  RETURN_IF_ERROR(in_range("frequency_penalty", p.frequency_penalty, -2.0f, 2.0f));
  RETURN_IF_ERROR(in_range("presence_penalty", p.presence_penalty, -2.0f, 2.0f));
  if (!(p.repetition_penalty > 0.0f) || std::isinf(p.repetition_penalty)) {
    return bad("repetition_penalty", p.repetition_penalty, "is not a number above 0; 1 turns it off");
  }
  if (!std::isfinite(p.length_penalty)) return bad("length_penalty", p.length_penalty, "is not a finite number");
  return {};
}

Status check_bad_words(const std::vector<std::vector<TokenId>>& words, const RequestLimits& limits) {
  if (words.size() > kMostBadWords) {
    return bad("bad_words", words.size(), "sequences are too many; give at most " + std::to_string(kMostBadWords));
  }
  size_t ids = 0;
  for (const std::vector<TokenId>& word : words) {
    if (word.empty()) return fail(ErrorCode::invalid_argument, "bad_words has a word without tokens; leave it out");
    ids += word.size();
    for (const TokenId id : word) RETURN_IF_ERROR(known_token("bad_words", id, limits.vocabulary));
  }
  if (ids > kMostBadWordIds) {
    return bad("bad_words", ids, "tokens in all are too many; give at most " + std::to_string(kMostBadWordIds));
  }
  return {};
}

Status check_lists(const SamplingParams& p, const RequestLimits& limits) {
  for (const auto& [id, bias] : p.logit_bias) {
    RETURN_IF_ERROR(known_token("logit_bias", id, limits.vocabulary));
    if (!std::isfinite(bias))
      return bad("logit_bias", bias, "of token " + std::to_string(id) + " is not a finite number");
  }
  if (p.stop_token_ids.size() > limits.vocabulary) {
    return bad("stop_token_ids", p.stop_token_ids.size(), "entries are more than the vocabulary has");
  }
  for (const TokenId id : p.stop_token_ids) RETURN_IF_ERROR(known_token("stop_token_ids", id, limits.vocabulary));
  if (p.allowed_token_ids.size() > limits.vocabulary) {
    return bad("allowed_token_ids", p.allowed_token_ids.size(), "entries are more than the vocabulary has");
  }
  for (const TokenId id : p.allowed_token_ids) {
    RETURN_IF_ERROR(known_token("allowed_token_ids", id, limits.vocabulary));
  }
  RETURN_IF_ERROR(check_bad_words(p.bad_words, limits));
  if (p.stop.size() > kMostStops) {
    return bad("stop", p.stop.size(), "strings are too many; give at most " + std::to_string(kMostStops));
  }
  for (const std::string& stop : p.stop) {
    if (stop.empty() || stop.size() > kLongestStop) {
      return bad("stop", stop.size(), "bytes long; a stop string has 1 to " + std::to_string(kLongestStop) + " bytes");
    }
  }
  if (!p.stop.empty() && !limits.has_text) {
    return fail(ErrorCode::unsupported, "stop strings need a tokenizer and this engine has none; use stop_token_ids");
  }
  return {};
}

// Beams are ranked by the model's own probabilities; what would change those is not quietly left out.
Status check_beam(const Request& request) {
  const SamplingParams& p = request.sampling;
  if (p.beam_width == 0) return {};
  const char* field = p.temperature != 1.0f && p.temperature != 0.0f ? "temperature"
                      : p.top_p != 1.0f                              ? "top_p"
                      : p.top_k > 0                                  ? "top_k"
                      : p.min_p != 0.0f                              ? "min_p"
                      : p.repetition_penalty != 1.0f                 ? "repetition_penalty"
                      : p.frequency_penalty != 0.0f                  ? "frequency_penalty"
                      : p.presence_penalty != 0.0f                   ? "presence_penalty"
                      : !p.logit_bias.empty()                        ? "logit_bias"
                      : !p.allowed_token_ids.empty()                 ? "allowed_token_ids"
                      : !p.bad_words.empty()                         ? "bad_words"
                      : !p.stop.empty()                              ? "stop"
                      : p.logprobs                                   ? "logprobs"
                      : request.hash_logits                          ? "hash_logits"
                                                                     : nullptr;
  if (field == nullptr) return {};
  return fail(ErrorCode::unsupported, std::string(field) + " does not go with beam_width; leave one of them out");
}

}  // namespace

Status validate(const Request& request, const RequestLimits& limits) {
  const SamplingParams& p = request.sampling;
  RETURN_IF_ERROR(check_counts(p, limits));
  RETURN_IF_ERROR(check_distribution(p));
  RETURN_IF_ERROR(check_lists(p, limits));
  RETURN_IF_ERROR(check_beam(request));
  RETURN_IF_ERROR(check_prompt_logprobs(request));
  if (request.priority != 0 && !limits.priorities) {
    return bad("priority", request.priority,
               "has no effect under scheduling policy fcfs; start with --scheduling-policy priority or leave it out");
  }
  if (request.cache_salt.size() > kLongestSalt) {
    return bad("cache_salt", request.cache_salt.size(),
               "bytes long; it has at most " + std::to_string(kLongestSalt) + " bytes");
  }
  if (request.prompt.empty())
    return fail(ErrorCode::invalid_argument, "the prompt is empty; it needs at least 1 token");
  const uint64_t prompt = request.prompt.size();
  const bool generates = p.max_tokens > 0;
  if (prompt + (generates ? 1 : 0) > limits.max_model_len) {
    const std::string length = std::to_string(limits.max_model_len);
    const std::string tokens = std::to_string(prompt) + (generates ? " plus at least 1 output token" : "");
    if (limits.short_of_memory) {
      return fail(ErrorCode::out_of_memory, "memory limits max_model_len to " + length + " tokens, and the prompt's " +
                                                tokens + " exceed it; shorten the prompt, raise " +
                                                "kv_cache_memory_bytes or free memory");
    }
    return fail(ErrorCode::invalid_argument, "this model's maximum context length is " + length +
                                                 " tokens, and the prompt's " + tokens +
                                                 " exceed it; shorten the prompt");
  }
  for (const TokenId id : request.prompt) RETURN_IF_ERROR(known_token("prompt", id, limits.vocabulary));
  const uint64_t total = std::min<uint64_t>(prompt + p.max_tokens, limits.max_model_len);
  if (total - (generates ? 1 : 0) > limits.longest_sequence) {  // the last token is never fed back
    return fail(ErrorCode::out_of_memory,
                "prompt " + std::to_string(prompt) + " plus max_tokens " + std::to_string(p.max_tokens) + " are " +
                    std::to_string(total) + " tokens, and the KV cache holds a sequence of at most " +
                    std::to_string(limits.longest_sequence) + "; ask for less or raise kv_cache_memory_bytes");
  }
  return {};
}

Status validate(const EngineOptions& options) {
  if (options.threads < 0 || options.threads > 1024) return bad("threads", options.threads, "is not in [0, 1024]");
  if (options.max_num_seqs < 1 || options.max_num_seqs > 4096) {
    return bad("max_num_seqs", options.max_num_seqs, "is not in [1, 4096]");
  }
  if (options.max_num_batched_tokens < 1 || options.max_num_batched_tokens > 65536) {
    return bad("max_num_batched_tokens", options.max_num_batched_tokens, "is not in [1, 65536]");
  }
  if (!(options.max_step_ms >= 0.0) || std::isinf(options.max_step_ms)) {
    return bad("max_step_ms", options.max_step_ms,
               "is not a number from 0 up; 0 means 2.8x the slow ones of decode-only steps");
  }
  if (!(options.watermark >= 0.0 && options.watermark < 1.0))
    return bad("watermark", options.watermark, "is not in [0, 1)");
  if (!(options.kv_life_sample >= 0.0 && options.kv_life_sample <= 1.0)) {
    return bad("kv_life_sample", options.kv_life_sample, "is not in [0, 1]");
  }
  return {};
}

}  // namespace kvarto

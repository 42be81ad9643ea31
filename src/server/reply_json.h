// The JSON of replies, in vLLM's key order. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/engine.h"

namespace kvarto {

struct Usage {
  uint64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  uint64_t truncated_tokens = 0;  // of the prompt, left out because the request asked for it
};
nlohmann::ordered_json usage_json(const Usage& usage);
// The `metrics` object of a finished request, in milliseconds.
nlohmann::ordered_json request_metrics_json(const RequestResult& result);
// Per prompt token: null for the first, else {"id": {"logprob", "rank", "decoded_token"}}.
nlohmann::ordered_json prompt_logprobs_json(const Engine& engine, const RequestResult& result);
// Text of a token as logprobs show it: never empty of meaning, valid UTF-8.
std::string shown_token(const Engine& engine, TokenId token, bool as_id);

// GET /v1/models.
std::string models_body(std::span<const std::string> names, std::string_view root, uint32_t max_model_len,
                        int64_t created);

}  // namespace kvarto

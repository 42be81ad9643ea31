#include "server/reply_json.h"

#include <nlohmann/json.hpp>

#include "text/json_text.h"

namespace kvarto {

using Json = nlohmann::ordered_json;

Json usage_json(const Usage& usage) {
  Json details = {{"cached_tokens", usage.cached_tokens}};
  if (usage.truncated_tokens > 0) details["truncated_tokens"] = usage.truncated_tokens;
  return {{"prompt_tokens", usage.prompt_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"prompt_tokens_details", std::move(details)},
          {"completion_tokens_details", nullptr}};
}

Json request_metrics_json(const RequestResult& result) {
  const double decode_ms = result.tpot_ms * static_cast<double>(std::max<uint64_t>(result.completion_tokens, 1) - 1);
  const double total_ms = result.ttft_ms + decode_ms;
  return {{"time_to_first_token_ms", result.ttft_ms},
          {"generation_time_ms", decode_ms},
          {"queue_time_ms", result.queue_ms},
          {"mean_itl_ms", result.tpot_ms},
          {"tokens_per_second", total_ms > 0 ? static_cast<double>(result.completion_tokens) * 1000.0 / total_ms : 0.0},
          {"speculative_decoding", nullptr}};
}

std::string shown_token(const Engine& engine, TokenId token, bool as_id) {
  if (as_id) return "token_id:" + std::to_string(token);
  return engine.piece(token, true);
}

Json prompt_logprobs_json(const Engine& engine, const RequestResult& result) {
  Json all = Json::array();
  for (const PromptLogprob& at : result.prompt_logprobs) {
    if (!at.logprob) {
      all.push_back(nullptr);
      continue;
    }
    Json row = Json::object();
    const auto add = [&](TokenId token, float logprob, uint32_t rank) {
      row[std::to_string(token)] = {
          {"logprob", logprob}, {"rank", rank}, {"decoded_token", shown_token(engine, token, false)}};
    };
    add(at.token, *at.logprob, at.rank);
    uint32_t rank = 0;
    for (const TokenLogprob& other : at.top) add(other.token, other.logprob, ++rank);
    all.push_back(std::move(row));
  }
  return all;
}

std::string models_body(std::span<const std::string> names, std::string_view root, uint32_t max_model_len,
                        int64_t created) {
  Json data = Json::array();
  for (const std::string& name : names) {
    Json permission = {{"id", "modelperm-" + name},
                       {"object", "model_permission"},
                       {"created", created},
                       {"allow_create_engine", false},
                       {"allow_sampling", true},
                       {"allow_logprobs", true},
                       {"allow_search_indices", false},
                       {"allow_view", true},
                       {"allow_fine_tuning", false},
                       {"organization", "*"},
                       {"group", nullptr},
                       {"is_blocking", false}};
    data.push_back({{"id", name},
                    {"object", "model"},
                    {"created", created},
                    {"owned_by", "kvarto"},
                    {"root", root},
                    {"parent", nullptr},
                    {"max_model_len", max_model_len},
                    {"permission", Json::array({std::move(permission)})}});
  }
  return dump({{"object", "list"}, {"data", std::move(data)}});
}

}  // namespace kvarto

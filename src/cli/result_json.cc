#include "cli/result_json.h"

#include <nlohmann/json.hpp>

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

Json logprob_json(const TokenLogprob& logprob, const Engine& engine) {
  return {{"token", engine.decode({&logprob.token, 1}, /*special=*/true)},
          {"id", logprob.token},
          {"logprob", logprob.logprob}};
}

Json logprobs_json(const SampleResult& sample, const Engine& engine) {
  Json list = Json::array();
  for (size_t i = 0; i < sample.token_logprobs.size(); ++i) {
    Json entry = logprob_json(sample.token_logprobs[i], engine);
    entry["top_logprobs"] = Json::array();
    if (i < sample.top_logprobs.size()) {
      for (const TokenLogprob& other : sample.top_logprobs[i])
        entry["top_logprobs"].push_back(logprob_json(other, engine));
    }
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

Json sample_json(const SampleResult& sample, const Engine& engine) {
  Json object;
  object["text"] = sample.text;
  object["tokens"] = sample.tokens;
  object["finish_reason"] = finish_reason_name(sample.finish);
  if (!sample.stop_string.empty()) object["stop_string"] = sample.stop_string;
  if (!sample.token_logprobs.empty()) object["logprobs"] = logprobs_json(sample, engine);
  if (!sample.token_logprobs.empty() || sample.cumulative_logprob != 0.0) {
    object["cumulative_logprob"] = sample.cumulative_logprob;
  }
  if (!sample.logits_sha256.empty()) object["logits_sha256"] = sample.logits_sha256;
  return object;
}

void add_samples(Json& object, const RequestResult& result, const Engine& engine) {
  Json samples = Json::array();
  for (const SampleResult& sample : result.samples) samples.push_back(sample_json(sample, engine));
  if (samples.empty()) return;
  object.update(samples.front());
  if (samples.size() > 1) object["samples"] = std::move(samples);
}

std::string run_json(const Generation& generation, const Engine& engine) {
  const RequestResult& result = generation.result;
  Json object;
  add_samples(object, result, engine);
  object["usage"] = {{"prompt_tokens", result.prompt_tokens},
                     {"cached_tokens", result.cached_tokens},
                     {"completion_tokens", result.completion_tokens}};
  object["ttft_ms"] = result.ttft_ms;
  object["tpot_ms"] = result.tpot_ms;
  object["kv"] = {{"blocks_used", generation.blocks_used},
                  {"blocks_total", engine.stats().kv.blocks_total},
                  {"waste", generation.waste},
                  {"preemptions", result.preemptions},
                  {"saturated_values", engine.stats().saturated_kv_values},
                  {"numerics", engine.info().numerics}};
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvarto

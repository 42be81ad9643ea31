#include "cli/batch_line.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/result_json.h"
#include "format/printable.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

Result<Json> parse_object(std::string_view text) {
  Result<Json> object = parse_json(text);
  if (!object && object.error().code != ErrorCode::corrupt) return object;
  if (!object || !object->is_object()) return fail(ErrorCode::invalid_argument, "the line is not a JSON object");
  return object;
}

tl::unexpected<Error> wrong(std::string_view key, std::string_view wanted) {
  return fail(ErrorCode::invalid_argument, quoted(key) + " is not " + std::string(wanted));
}

template <typename T>
Status read_uint(std::string_view key, const Json& value, T& out) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<T>::max()) {
    return wrong(key, "a whole number from 0 up");
  }
  out = value.get<T>();
  return {};
}

Status read_int(std::string_view key, const Json& value, int32_t& out) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= std::numeric_limits<int32_t>::max()) &&
                    value.get<int64_t>() >= std::numeric_limits<int32_t>::min();
  if (!fits) return wrong(key, "a whole number of 32 bits");
  out = value.get<int32_t>();
  return {};
}

Status read_float(std::string_view key, const Json& value, float& out) {
  if (!value.is_number() || std::abs(value.get<double>()) > std::numeric_limits<float>::max())
    return wrong(key, "a number that a float holds");
  out = value.get<float>();
  return {};
}

Status read_bool(std::string_view key, const Json& value, bool& out) {
  if (!value.is_boolean()) return wrong(key, "true or false");
  out = value.get<bool>();
  return {};
}

Status read_string(std::string_view key, const Json& value, std::string& out) {
  if (!value.is_string()) return wrong(key, "a string");
  out = value.get<std::string>();
  return {};
}

Status read_ids(std::string_view key, const Json& value, std::vector<TokenId>& out) {
  if (!value.is_array()) return wrong(key, "an array of token ids");
  out.clear();
  for (const Json& element : value) {
    TokenId id = 0;
    RETURN_IF_ERROR(read_int(key, element, id));
    out.push_back(id);
  }
  return {};
}

Status read_stop(std::string_view key, const Json& value, std::vector<std::string>& out) {
  out.clear();
  if (value.is_string()) {
    out.push_back(value.get<std::string>());
    return {};
  }
  if (!value.is_array()) return wrong(key, "a string or an array of strings");
  for (const Json& element : value) {
    out.emplace_back();
    RETURN_IF_ERROR(read_string(key, element, out.back()));
  }
  return {};
}

Status read_logit_bias(std::string_view key, const Json& value, std::vector<std::pair<TokenId, float>>& out) {
  if (!value.is_object()) return wrong(key, "an object of token ids and numbers");
  out.clear();
  for (const auto& [name, bias] : value.items()) {
    const Json id = Json::parse(name, nullptr, /*allow_exceptions=*/false);
    out.emplace_back();
    RETURN_IF_ERROR(read_int(key, id, out.back().first));
    RETURN_IF_ERROR(read_float(key, bias, out.back().second));
  }
  return {};
}

// Sampling fields, the same names in both dialects. False: not one of them.
Result<bool> read_sampling(std::string_view key, const Json& value, Request& request) {
  SamplingParams& p = request.sampling;
  Status status;
  if (key == "max_tokens" || key == "max_completion_tokens") {
    status = read_uint(key, value, p.max_tokens);
  } else if (key == "min_tokens") {
    status = read_uint(key, value, p.min_tokens);
  } else if (key == "n") {
    status = read_uint(key, value, p.n);
  } else if (key == "beam_width") {
    status = read_uint(key, value, p.beam_width);
  } else if (key == "seed") {
    p.seed.emplace();
    status = read_uint(key, value, *p.seed);
  } else if (key == "temperature") {
    status = read_float(key, value, p.temperature);
  } else if (key == "top_p") {
    status = read_float(key, value, p.top_p);
  } else if (key == "top_k") {
    status = read_int(key, value, p.top_k);
  } else if (key == "min_p") {
    status = read_float(key, value, p.min_p);
  } else if (key == "repetition_penalty") {
    status = read_float(key, value, p.repetition_penalty);
  } else if (key == "frequency_penalty") {
    status = read_float(key, value, p.frequency_penalty);
  } else if (key == "presence_penalty") {
    status = read_float(key, value, p.presence_penalty);
  } else if (key == "stop") {
    status = read_stop(key, value, p.stop);
  } else if (key == "stop_token_ids") {
    status = read_ids(key, value, p.stop_token_ids);
  } else if (key == "logit_bias") {
    status = read_logit_bias(key, value, p.logit_bias);
  } else if (key == "ignore_eos") {
    status = read_bool(key, value, p.ignore_eos);
  } else if (key == "include_stop_str_in_output") {
    status = read_bool(key, value, p.include_stop_str_in_output);
  } else if (key == "cache_salt") {
    status = read_string(key, value, request.cache_salt);
  } else if (key == "sample_index") {
    status = read_uint(key, value, request.sample_index);
  } else if (key == "priority") {
    status = read_int(key, value, request.priority);
  } else {
    return false;
  }
  RETURN_IF_ERROR(status);
  return true;
}

// Fields of OpenAI's bodies that ask for nothing a file of results could show differently.
bool is_harmless(std::string_view key, const Json& value) {
  return key == "model" || key == "user" || key == "metadata" || (key == "stream" && value == false) ||
         (key == "logprobs" && value == false) || (key == "store" && value == false);
}

Status read_messages(const Json& value, BatchLine& line) {
  if (!value.is_array() || value.empty()) return wrong("messages", "an array with at least one message");
  line.messages = value.dump();
  return {};
}

Status read_fields(const Json& object, BatchLine& line) {
  const bool plain = line.dialect == BatchDialect::plain;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;
    if (key == "messages" && line.dialect != BatchDialect::openai_completion) {
      RETURN_IF_ERROR(read_messages(value, line));
    } else if (key == "prompt" && line.dialect != BatchDialect::openai_chat) {
      if (value.is_array() && !plain) {
        RETURN_IF_ERROR(read_ids(key, value, line.ids));
      } else {
        RETURN_IF_ERROR(read_string(key, value, line.prompt.emplace()));
      }
    } else if (key == "ids" && plain) {
      RETURN_IF_ERROR(read_ids(key, value, line.ids));
    } else if (key == "custom_id" && plain) {
      RETURN_IF_ERROR(read_string(key, value, line.custom_id));
    } else {
      ASSIGN_OR_RETURN(const bool known, read_sampling(key, value, line.request));
      if (!known && (plain || !is_harmless(key, value))) {
        return fail(ErrorCode::unsupported, "field " + kvarto::quoted(key) + " is not built here; leave it out");
      }
    }
  }
  const int given = int{line.prompt.has_value()} + int{!line.messages.empty()} + int{!line.ids.empty()};
  if (given == 1) return {};
  return fail(ErrorCode::invalid_argument, given == 0
                                               ? "there is no prompt; give prompt, messages or ids, and not empty"
                                               : "prompt, messages and ids exclude each other; give one");
}

Status read_openai(const Json& object, BatchLine& line) {
  for (const char* key : {"custom_id", "method", "url", "body"}) {
    if (!object.contains(key))
      return fail(ErrorCode::invalid_argument, "an OpenAI batch line needs " + kvarto::quoted(key));
  }
  RETURN_IF_ERROR(read_string("custom_id", object["custom_id"], line.custom_id));
  std::string method, url;
  RETURN_IF_ERROR(read_string("method", object["method"], method));
  RETURN_IF_ERROR(read_string("url", object["url"], url));
  if (method != "POST") return wrong("method", "POST");
  if (url == "/v1/chat/completions") {
    line.dialect = BatchDialect::openai_chat;
  } else if (url == "/v1/completions") {
    line.dialect = BatchDialect::openai_completion;
  } else {
    return wrong("url", "/v1/chat/completions or /v1/completions");
  }
  if (!object["body"].is_object()) return wrong("body", "an object");
  return read_fields(object["body"], line);
}

// vLLM's spelling of what OpenAI calls the finish reason has only these two for a finished request.
Json choice_json(const BatchLine& line, const SampleResult& sample, size_t index) {
  Json choice{{"index", index}};
  if (line.dialect == BatchDialect::openai_chat) {
    choice["message"] = {{"role", "assistant"}, {"content", sample.text}};
  } else {
    choice["text"] = sample.text;
  }
  choice["finish_reason"] = finish_reason_name(sample.finish);
  return choice;
}

Json response_json(const BatchLine& line, const RequestResult& result, const Engine& engine, int64_t created) {
  const bool chat = line.dialect == BatchDialect::openai_chat;
  const std::string id = (chat ? "chatcmpl-" : "cmpl-") + line.custom_id;
  Json choices = Json::array();
  for (size_t i = 0; i < result.samples.size(); ++i) choices.push_back(choice_json(line, result.samples[i], i));
  const Json usage{{"prompt_tokens", result.prompt_tokens},
                   {"completion_tokens", result.completion_tokens},
                   {"total_tokens", result.prompt_tokens + result.completion_tokens},
                   {"prompt_tokens_details", {{"cached_tokens", result.cached_tokens}}}};
  return {{"status_code", 200},
          {"request_id", id},
          {"body",
           {{"id", id},
            {"object", chat ? "chat.completion" : "text_completion"},
            {"created", created},
            {"model", engine.info().model_name},
            {"choices", std::move(choices)},
            {"usage", usage}}}};
}

}  // namespace

Result<BatchLine> parse_batch_line(std::string_view text, const Request& defaults) {
  ASSIGN_OR_RETURN(const Json object, parse_object(text));
  BatchLine line;
  line.request = defaults;
  if (object.contains("body") || object.contains("url")) {
    RETURN_IF_ERROR(read_openai(object, line));
  } else {
    RETURN_IF_ERROR(read_fields(object, line));
  }
  return line;
}

std::string answer_line(const BatchLine& line, const RequestResult& result, const Engine& engine, int64_t created) {
  Json answer = Json::object();
  if (line.dialect != BatchDialect::plain) {
    answer["id"] = "batch_req_" + line.custom_id;
    answer["custom_id"] = line.custom_id;
    answer["response"] = response_json(line, result, engine, created);
    answer["error"] = nullptr;
  } else if (!line.custom_id.empty()) {
    answer["custom_id"] = line.custom_id;
  }
  add_samples(answer, result, engine);
  answer["prompt_tokens"] = result.prompt_tokens;
  answer["cached_tokens"] = result.cached_tokens;
  answer["completion_tokens"] = result.completion_tokens;
  answer["miss_reason"] = miss_reason_name(result.miss_reason);
  answer["preemptions"] = result.preemptions;
  answer["recomputed_tokens"] = result.recomputed_tokens;
  answer["batch_peers_max"] = result.batch_peers_max;
  answer["queue_ms"] = result.queue_ms;
  answer["ttft_ms"] = result.ttft_ms;
  answer["tpot_ms"] = result.tpot_ms;
  return dump(answer);
}

std::string error_line(std::string_view text, const Error& error) {
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Json answer = Json::object();
  const bool named = object.is_object() && object.contains("custom_id") && object["custom_id"].is_string();
  if (named) answer["custom_id"] = object["custom_id"];
  if (named && object.contains("body")) answer["response"] = nullptr;
  answer["error"] = {{"message", error.message}};
  return dump(answer);
}

}  // namespace kvarto

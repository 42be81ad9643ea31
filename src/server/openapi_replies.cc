// Schemas of replies, in vLLM's key order.
#include <nlohmann/json.hpp>

#include "server/openapi_schemas.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

Json type_of(const char* type) { return {{"type", type}}; }
Json nullable(const char* type) { return {{"type", {type, "null"}}}; }
Json array_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
Json constant(const char* value) { return {{"const", value}}; }
Json reference(const char* name) { return {{"$ref", std::string("#/components/schemas/") + name}}; }
Json or_null(Json schema) { return {{"anyOf", Json::array({std::move(schema), type_of("null")})}}; }
Json count() { return {{"type", "integer"}, {"minimum", 0}}; }

// All properties are required unless they stand in `optional`.
Json object_of(Json properties, const std::vector<std::string>& optional = {}) {
  Json required = Json::array();
  for (const auto& [name, schema] : properties.items()) {
    if (std::find(optional.begin(), optional.end(), name) == optional.end()) required.push_back(name);
  }
  Json schema = type_of("object");
  if (!required.empty()) schema["required"] = std::move(required);
  schema["properties"] = std::move(properties);
  return schema;
}

Json error_schema() {
  return object_of({{"error", object_of({{"message", type_of("string")},
                                         {"type", type_of("string")},
                                         {"param", nullable("string")},
                                         {"code", {{"type", {"integer", "string"}}}}})}});
}

Json usage_schema() {
  const Json prompt = object_of({{"cached_tokens", count()}, {"truncated_tokens", count()}}, {"truncated_tokens"});
  return object_of({{"prompt_tokens", count()},
                    {"total_tokens", count()},
                    {"completion_tokens", count()},
                    {"prompt_tokens_details", or_null(prompt)},
                    {"completion_tokens_details", nullable("object")}});
}

Json finish_reason() { return {{"enum", {"stop", "length", "tool_calls", "abort", "error", nullptr}}}; }

Json stop_reason() { return {{"type", {"string", "integer", "null"}}}; }

// Per prompt token: null for the first, else alternatives by id.
Json prompt_logprobs() {
  Json row = type_of("object");
  row["additionalProperties"] =
      object_of({{"logprob", type_of("number")}, {"rank", nullable("integer")}, {"decoded_token", nullable("string")}});
  return or_null(array_of(or_null(row)));
}

Json completion_logprobs() {
  Json top = type_of("object");
  top["additionalProperties"] = type_of("number");
  return object_of({{"text_offset", array_of(count())},
                    {"token_logprobs", array_of(nullable("number"))},
                    {"tokens", array_of(type_of("string"))},
                    {"top_logprobs", array_of(or_null(top))}});
}

Json chat_logprobs() {
  const Json token{{"token", type_of("string")}, {"logprob", type_of("number")}, {"bytes", or_null(array_of(count()))}};
  Json with_top = token;
  with_top["top_logprobs"] = array_of(object_of(token));
  return object_of({{"content", or_null(array_of(object_of(with_top)))}});
}

Json tool_call() {
  return object_of({{"id", type_of("string")},
                    {"type", constant("function")},
                    {"function", object_of({{"name", type_of("string")}, {"arguments", type_of("string")}})}});
}

Json message() {
  return object_of({{"role", type_of("string")},
                    {"content", nullable("string")},
                    {"refusal", type_of("null")},
                    {"annotations", type_of("null")},
                    {"audio", type_of("null")},
                    {"function_call", type_of("null")},
                    {"tool_calls", array_of(tool_call())},
                    {"reasoning", nullable("string")}},
                   {"tool_calls"});
}

Json ids() { return or_null(array_of(count())); }

Json metrics() {
  return or_null(object_of({{"time_to_first_token_ms", nullable("number")},
                            {"generation_time_ms", nullable("number")},
                            {"queue_time_ms", nullable("number")},
                            {"mean_itl_ms", nullable("number")},
                            {"tokens_per_second", nullable("number")},
                            {"speculative_decoding", type_of("null")}}));
}

Json completion_reply() {
  const Json choice = object_of({{"index", count()},
                                 {"text", type_of("string")},
                                 {"logprobs", or_null(completion_logprobs())},
                                 {"finish_reason", finish_reason()},
                                 {"stop_reason", stop_reason()},
                                 {"token_ids", ids()},
                                 {"prompt_logprobs", prompt_logprobs()},
                                 {"prompt_token_ids", ids()},
                                 {"routed_experts", type_of("null")},
                                 {"weight_versions", type_of("null")}});
  return object_of({{"id", type_of("string")},
                    {"object", constant("text_completion")},
                    {"created", type_of("integer")},
                    {"model", type_of("string")},
                    {"choices", array_of(choice)},
                    {"service_tier", nullable("string")},
                    {"system_fingerprint", nullable("string")},
                    {"usage", reference("Usage")},
                    {"kv_transfer_params", type_of("null")},
                    {"ec_transfer_params", type_of("null")},
                    {"metrics", metrics()}});
}

Json chat_reply() {
  const Json choice = object_of({{"index", count()},
                                 {"message", message()},
                                 {"logprobs", or_null(chat_logprobs())},
                                 {"finish_reason", finish_reason()},
                                 {"stop_reason", stop_reason()},
                                 {"token_ids", ids()},
                                 {"routed_experts", type_of("null")},
                                 {"weight_versions", type_of("null")}});
  return object_of({{"id", type_of("string")},
                    {"object", constant("chat.completion")},
                    {"created", type_of("integer")},
                    {"model", type_of("string")},
                    {"choices", array_of(choice)},
                    {"service_tier", nullable("string")},
                    {"system_fingerprint", nullable("string")},
                    {"usage", reference("Usage")},
                    {"prompt_logprobs", prompt_logprobs()},
                    {"prompt_token_ids", ids()},
                    {"prompt_text", nullable("string")},
                    {"kv_transfer_params", type_of("null")},
                    {"ec_transfer_params", type_of("null")},
                    {"metrics", metrics()}});
}

Json model_list() {
  const Json model = object_of({{"id", type_of("string")},
                                {"object", constant("model")},
                                {"created", type_of("integer")},
                                {"owned_by", type_of("string")},
                                {"root", nullable("string")},
                                {"parent", nullable("string")},
                                {"max_model_len", nullable("integer")},
                                {"permission", array_of(type_of("object"))}});
  return object_of({{"object", constant("list")}, {"data", array_of(model)}});
}

}  // namespace

Json reply_schemas() {
  return {{"Error", error_schema()},
          {"Detail", object_of({{"detail", type_of("string")}})},
          {"Unauthorized", object_of({{"error", constant("Unauthorized")}})},
          {"Usage", usage_schema()},
          {"CompletionReply", completion_reply()},
          {"ChatReply", chat_reply()},
          {"ModelList", model_list()},
          {"TokenizeReply", object_of({{"count", count()},
                                       {"max_model_len", count()},
                                       {"tokens", array_of(count())},
                                       {"token_strs", or_null(array_of(type_of("string")))}})},
          {"DetokenizeReply", object_of({{"prompt", type_of("string")}})},
          {"Version", object_of({{"version", type_of("string")}})},
          {"Load", object_of({{"server_load", count()}})}};
}

}  // namespace kvarto

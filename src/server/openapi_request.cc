// Schemas of request bodies, from the table of fields.
#include <cmath>
#include <nlohmann/json.hpp>

#include "server/api_messages.h"
#include "server/openapi_schemas.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

Json nullable(const char* type) { return {{"type", {type, "null"}}}; }
Json string_schema() { return {{"type", "string"}}; }

Json any_of(std::initializer_list<Json> schemas) {
  Json list = Json::array();
  for (const Json& schema : schemas) list.push_back(schema);
  list.push_back({{"type", "null"}});
  return {{"anyOf", std::move(list)}};
}

// What the server's limits leave of a field's upper end.
double high_of(const ApiField& field, const ApiLimits& limits) {
  switch (field.cap) {
    case FieldCap::none:
      return field.high;
    case FieldCap::n:
      return std::min<double>(field.high, limits.max_n);
    case FieldCap::logprobs:
      return std::min<double>(field.high, limits.max_logprobs);
    case FieldCap::model_len:
      return std::min<double>(field.high, limits.max_model_len);
    case FieldCap::vocabulary:
      return std::min<double>(field.high, limits.vocabulary - 1.0);
  }
  return field.high;
}

Json integer_schema(const ApiField& field, const ApiLimits& limits) {
  Json schema = nullable("integer");
  double low = field.low;
  const double high = high_of(field, limits);
  if (field.cap == FieldCap::logprobs && limits.max_logprobs != UINT32_MAX)
    low = std::max(low, 0.0);  // -1 asks for all
  schema["minimum"] = std::isinf(low) ? INT64_MIN : static_cast<int64_t>(low);
  schema["maximum"] = std::isinf(high) ? INT64_MAX : static_cast<int64_t>(high);
  return schema;
}

Json number_schema(const ApiField& field) {
  Json schema = nullable("number");
  if (std::isfinite(field.low)) schema[field.above_low ? "exclusiveMinimum" : "minimum"] = field.low;
  if (std::isfinite(field.high)) schema["maximum"] = field.high;
  return schema;
}

Json ids_schema(const ApiField& field, const ApiLimits& limits) {
  return {{"type", "array"},
          {"items", {{"type", "integer"}, {"minimum", 0}, {"maximum", static_cast<int64_t>(high_of(field, limits))}}}};
}

Json text_schema(const ApiField& field) {
  Json schema = string_schema();
  if (field.name == "stop" || field.name == "bad_words") schema.update({{"minLength", 1}, {"maxLength", 256}});
  if (field.name == "cache_salt") {
    schema.update({{"minLength", 1}, {"maxLength", 128}, {"pattern", "^[^@/\\\\\\x00]+$"}});
  }
  if (field.name == "request_id") schema.update({{"minLength", 1}, {"maxLength", 256}, {"pattern", "^[!-~]+$"}});
  return schema;
}

Json strings_schema(const ApiField& field, const ApiLimits& limits) {
  const size_t most = field.name == "stop" ? limits.max_stop_strings : 1024;
  const Json list{{"type", "array"}, {"items", text_schema(field)}, {"maxItems", most}};
  if (field.kind == FieldKind::strings) return any_of({list});
  return any_of({text_schema(field), list});
}

Json prompt_schema(const ApiLimits& limits) {
  const ApiField id{.low = 0, .high = INT32_MAX, .cap = FieldCap::vocabulary};
  Json ids = ids_schema(id, limits);
  ids["minItems"] = 1;
  const auto list = [&](Json items) {
    return Json{{"type", "array"}, {"items", std::move(items)}, {"minItems", 1}, {"maxItems", limits.max_prompts}};
  };
  return {{"anyOf", {string_schema(), list(string_schema()), ids, list(ids)}}};
}

Json messages_schema(const ApiLimits& limits) {
  const Json part{{"type", "object"},
                  {"required", {"type", "text"}},
                  {"properties", {{"type", {{"enum", {"text"}}}}, {"text", string_schema()}}}};
  const Json function{
      {"type", "object"},
      {"required", {"name"}},
      {"properties",
       {{"name", {{"type", "string"}, {"minLength", 1}, {"maxLength", kLongestFunctionName}}},
        {"arguments",
         any_of({Json{{"type", "string"}, {"enum", {"", "{}"}}, {"description", "The text of a JSON object."}},
                 Json{{"type", "object"}}})}}}};
  const Json call{
      {"type", "object"},
      {"required", {"function"}},
      {"properties", {{"id", nullable("string")}, {"type", {{"enum", {"function"}}}}, {"function", function}}}};
  const Json message{{"type", "object"},
                     {"required", {"role"}},
                     {"properties",
                      {{"role", {{"enum", {"system", "developer", "user", "assistant", "tool"}}}},
                       {"content", any_of({string_schema(), Json{{"type", "array"}, {"items", part}}})},
                       {"name", nullable("string")},
                       {"reasoning", nullable("string")},
                       {"reasoning_content", nullable("string")},
                       {"tool_call_id", nullable("string")},
                       {"tool_calls", any_of({Json{{"type", "array"}, {"items", call}}})}}}};
  return {{"type", "array"}, {"items", message}, {"minItems", 1}, {"maxItems", limits.max_messages}};
}

Json tools_schema(const ApiLimits& limits) {
  const Json function{{"type", "object"},
                      {"required", {"name"}},
                      {"properties",
                       {{"name", {{"type", "string"}, {"minLength", 1}, {"maxLength", kLongestFunctionName}}},
                        {"description", nullable("string")},
                        {"parameters", nullable("object")}}}};
  const Json tool{{"type", "object"},
                  {"required", {"type", "function"}},
                  {"properties", {{"type", {{"enum", {"function"}}}}, {"function", function}}}};
  return any_of({Json{{"type", "array"}, {"items", tool}, {"minItems", 1}, {"maxItems", limits.max_tools}}});
}

Json choice_schema(const ApiField& field) {
  Json values = Json::array();
  std::string_view rest = field.choices;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find('|'));
    values.push_back(one);
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
  }
  values.push_back(nullptr);
  return {{"enum", std::move(values)}};
}

// Only values that ask for nothing.
Json refused_schema(const ApiField& field) {
  if (field.fallback.empty()) return {{"type", "null"}};
  return {{"enum", Json::array({nullptr, Json::parse(field.fallback)})}};
}

Json shape(const ApiField& field, const ApiLimits& limits) {
  if (field.use == FieldUse::refused) return refused_schema(field);
  switch (field.kind) {
    case FieldKind::boolean:
      return nullable("boolean");
    case FieldKind::integer:
      return integer_schema(field, limits);
    case FieldKind::number:
      return number_schema(field);
    case FieldKind::string:
      if (field.name == "chat_template" && !limits.trust_chat_template) return {{"type", "null"}};
      return any_of({text_schema(field)});
    case FieldKind::choice:
      return choice_schema(field);
    case FieldKind::string_or_strings:
    case FieldKind::strings:
      return strings_schema(field, limits);
    case FieldKind::ids: {
      Json ids = ids_schema(field, limits);
      if (field.name == "tokens") return ids;
      if (field.name == "allowed_token_ids") ids["minItems"] = 1;
      return any_of({ids});
    }
    case FieldKind::object:
      return nullable("object");
    case FieldKind::objects:
      return any_of({Json{{"type", "array"}, {"items", {{"type", "object"}}}}});
    case FieldKind::text_prompt:
      return string_schema();
    case FieldKind::prompt:
      return prompt_schema(limits);
    case FieldKind::messages:
      return messages_schema(limits);
    case FieldKind::tools:
      return tools_schema(limits);
    case FieldKind::tool_choice:
      return limits.tool_calls ? Json{{"enum", {"none", "auto", nullptr}}} : Json{{"enum", {"none", nullptr}}};
    case FieldKind::response_format:
      return any_of(
          {Json{{"type", "object"}, {"required", {"type"}}, {"properties", {{"type", {{"enum", {"text"}}}}}}}});
    case FieldKind::stream_options:
      return any_of({Json{{"type", "object"},
                          {"properties",
                           {{"include_usage", nullable("boolean")},
                            {"continuous_usage_stats", nullable("boolean")},
                            {"include_obfuscation", nullable("boolean")}}}}});
    case FieldKind::logit_bias: {
      const auto most = std::min<int64_t>(int64_t{limits.vocabulary} - 1, INT32_MAX);
      return any_of({Json{{"type", "object"},
                          {"description", "Keys are ids from 0 to " + std::to_string(most) + "."},
                          {"propertyNames", {{"pattern", "^(0|[1-9][0-9]{0,2})$"}}},
                          {"additionalProperties", {{"type", "number"}}}}});
    }
    case FieldKind::modalities:
      return {{"enum", Json::array({nullptr, Json::array({"text"})})}};
    case FieldKind::any:
      return Json::object();
  }
  return Json::object();
}

}  // namespace

Json field_schema(const ApiField& field, const ApiLimits& limits) {
  Json schema = shape(field, limits);
  const bool refused = field.use == FieldUse::refused;
  schema["description"] = (refused ? "Not built here: " : "") + std::string(field.text);
  if (!refused && !field.fallback.empty() && field.fallback != "null") schema["default"] = Json::parse(field.fallback);
  schema["x-kvarto-use"] = field_use_name(field.use);
  return schema;
}

Json request_schema(ApiRoute route, const ApiLimits& limits) {
  Json properties = Json::object();
  for (const ApiField& field : api_fields()) {
    if (field.on(route)) properties[std::string(field.name)] = field_schema(field, limits);
  }
  Json schema{{"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", true}};
  switch (route) {
    case ApiRoute::completions:
      schema["required"] = {"prompt"};
      break;
    case ApiRoute::chat:
      schema["required"] = {"messages"};
      break;
    case ApiRoute::tokenize:
      schema["oneOf"] = {{{"required", {"prompt"}}}, {{"required", {"messages"}}}};
      break;
    case ApiRoute::detokenize:
      schema["required"] = {"tokens"};
      break;
  }
  return schema;
}

}  // namespace kvarto

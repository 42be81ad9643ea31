#include "server/api_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "format/printable.h"
#include "server/api_body.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLongestStop = 256, kLongestSalt = 128, kLongestRequestId = 256;  // characters
constexpr size_t kMostBadWords = 1024;

tl::unexpected<ApiError> wrong(std::string path, std::string_view wanted, const Json& value) {
  return tl::unexpected(wrong_value(std::move(path), wanted, value));
}

tl::unexpected<ApiError> refuse(std::string path, const std::string& message) {
  std::string text = path + ' ' + message;
  return tl::unexpected(bad_field(std::move(path), std::move(text)));
}

std::string number_text(double value) { return Json(value).dump(); }

std::string rule_of(const ApiField& field) {
  if (!field.rule.empty()) return std::string(field.rule);
  return "in [" + number_text(field.low) + ", " + number_text(field.high) + "]";
}

ApiStatus check_range(const ApiField& field, double value, const Json& given) {
  // What is computed with is a float: a double may be above zero and its float not.
  const double used = field.kind == FieldKind::number ? static_cast<float>(value) : value;
  const bool above = field.above_low ? value > field.low && used > field.low : value >= field.low;
  if (above && value <= field.high) return {};
  const std::string name(field.name), number = given.dump();
  return refuse(name,
                "must be " + rule_of(field) + ", got " + number + " (parameter=" + name + ", value=" + number + ")");
}

ApiStatus check_logprobs(const ApiField& field, int64_t value, const ApiLimits& limits) {
  if (limits.max_logprobs == UINT32_MAX || (value >= 0 && value <= int64_t{limits.max_logprobs})) return {};
  const std::string name(field.name), number = std::to_string(value);
  return tl::unexpected(
      bad_field(name, "Requested " + name + " of " + number + ", which is greater than max allowed: " +
                          std::to_string(limits.max_logprobs) + " (parameter=" + name + ", value=" + number + ")"));
}

ApiStatus check_cap(const ApiField& field, int64_t value, const ApiLimits& limits) {
  const std::string name(field.name);
  if (field.cap == FieldCap::logprobs) return check_logprobs(field, value, limits);
  if (field.cap == FieldCap::n && value > int64_t{limits.max_n}) {
    return refuse(name,
                  "must be at most " + std::to_string(limits.max_n) + " on this server, got " + std::to_string(value));
  }
  if (field.cap == FieldCap::model_len && value > int64_t{limits.max_model_len}) {
    return tl::unexpected(max_tokens_error(name, value, limits.max_model_len));
  }
  return {};
}

ApiStatus check_integer(const ApiField& field, const Json& value, const ApiLimits& limits) {
  const std::optional<int64_t> number = whole_number(value);
  if (!number) return wrong(std::string(field.name), "an integer of 64 bits", value);
  // The cap first: its message has the limit that matters.
  if (*number > 0) RETURN_IF_API_ERROR(check_cap(field, *number, limits));
  RETURN_IF_API_ERROR(check_range(field, static_cast<double>(*number), value));
  return check_cap(field, *number, limits);
}

ApiStatus check_ids(const ApiField& field, const Json& value, const ApiLimits& limits) {
  const std::string name(field.name);
  if (!value.is_array()) return wrong(name, "an array of token ids", value);
  const int64_t most = std::min<int64_t>(static_cast<int64_t>(field.high), int64_t{limits.vocabulary} - 1);
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string path = name + '[' + std::to_string(i) + ']';
    const std::optional<int64_t> id = whole_number(value[i]);
    if (!id) return wrong(path, "a token id", value[i]);
    if (*id < 0 || *id > most) {
      return refuse(path, std::to_string(*id) + " is out of vocabulary; ids are 0 to " + std::to_string(most));
    }
  }
  if (name == "allowed_token_ids" && value.empty()) return refuse(name, "must not be empty; leave it out to allow all");
  return {};
}

ApiStatus check_text(const ApiField& field, const std::string& path, const Json& value, const ApiLimits& limits) {
  if (!value.is_string()) return wrong(path, "a string", value);
  const auto& text = value.get_ref<const std::string&>();
  const size_t characters = count_characters(text);
  const auto length = [&](size_t most) -> ApiStatus {
    if (characters >= 1 && characters <= most) return {};
    return refuse(path, "has " + std::to_string(characters) + " characters; it must have 1 to " + std::to_string(most));
  };
  if (field.name == "stop") {
    if (text.empty()) return refuse(path, "cannot be an empty string");
    return length(kLongestStop);
  }
  if (field.name == "bad_words") return length(kLongestStop);
  if (field.name == "cache_salt") {
    RETURN_IF_API_ERROR(length(kLongestSalt));
    if (text.find_first_of(std::string_view("@/\\\0", 4)) == std::string::npos) return {};
    return refuse(path, kvarto::quoted(text) + " must not contain @, /, \\ or NUL");
  }
  if (field.name == "request_id") {
    RETURN_IF_API_ERROR(length(kLongestRequestId));
    if (std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; })) return {};
    return refuse(path, kvarto::quoted(text) + " must be printable ASCII without spaces");
  }
  if (field.name == "chat_template" && !limits.trust_chat_template) {
    return refuse(path, "is only taken from a request when the server runs with --trust-request-chat-template");
  }
  return {};
}

ApiStatus check_strings(const ApiField& field, const Json& value, const ApiLimits& limits) {
  const std::string name(field.name);
  if (value.is_string() && field.kind == FieldKind::string_or_strings) return check_text(field, name, value, limits);
  if (!value.is_array()) {
    return wrong(name, field.kind == FieldKind::strings ? "an array of strings" : "a string or an array of strings",
                 value);
  }
  if (field.name == "stop" && value.size() > limits.max_stop_strings) {
    return refuse(name, "has " + std::to_string(value.size()) + " strings; at most " +
                            std::to_string(limits.max_stop_strings) + " are allowed");
  }
  if (field.name == "bad_words" && value.size() > kMostBadWords) {
    return refuse(name, "has " + std::to_string(value.size()) + " strings; at most " + std::to_string(kMostBadWords) +
                            " are allowed");
  }
  for (size_t i = 0; i < value.size(); ++i) {
    RETURN_IF_API_ERROR(check_text(field, name + '[' + std::to_string(i) + ']', value[i], limits));
  }
  return {};
}

ApiStatus check_choice(const ApiField& field, const Json& value) {
  std::string_view rest = field.choices;
  std::string all;
  while (!rest.empty()) {
    const std::string one(rest.substr(0, rest.find('|')));
    if (value == one) return {};
    all += (all.empty() ? "" : ", ") + one;
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
  }
  return wrong(std::string(field.name), "one of " + all, value);
}

ApiStatus check_bias(const Json& value, const ApiLimits& limits) {
  if (!value.is_object()) return wrong("logit_bias", "an object of token ids and numbers", value);
  for (const auto& [key, bias] : value.items()) {
    const std::string path = "logit_bias." + printable(key, 40);
    int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error == std::errc::invalid_argument || end != key.data() + key.size()) {
      return tl::unexpected(bad_body(path, path + " is not a token id; keys are ids in decimal digits"));
    }
    if (error != std::errc() || id < 0 || id >= int64_t{limits.vocabulary} || id > INT32_MAX) {
      const uint32_t most = std::min<uint32_t>(limits.vocabulary - 1, INT32_MAX);
      return refuse(path, "is out of vocabulary; ids are 0 to " + std::to_string(most));
    }
    if (!bias.is_number()) return wrong(path, "a number", bias);
  }
  return {};
}

ApiStatus check_response_format(const Json& value) {
  if (!value.is_object()) return wrong("response_format", "an object with type", value);
  const auto type = value.find("type");
  if (type == value.end()) {
    return tl::unexpected(bad_body("response_format.type", "response_format.type is missing; give \"text\""));
  }
  if (*type == "text") return {};
  if (*type == "json_object" || *type == "json_schema" || *type == "structural_tag") {
    return refuse("response_format", "of type " + type->get<std::string>() +
                                         " is not built here: output is not constrained yet; say in the prompt what " +
                                         "form you want, with response_format of type text");
  }
  return wrong("response_format.type", "\"text\"", *type);
}

ApiStatus check_stream_options(const Json& value) {
  if (!value.is_object()) return wrong("stream_options", "an object", value);
  for (const char* name : {"include_usage", "continuous_usage_stats", "include_obfuscation"}) {
    const auto found = value.find(name);
    if (found == value.end() || found->is_null() || found->is_boolean()) continue;
    return wrong("stream_options." + std::string(name), "true or false", *found);
  }
  return {};
}

ApiStatus check_refused(const ApiField& field, const Json& value) {
  if (!field.fallback.empty() && value == Json::parse(field.fallback)) return {};
  return refuse(std::string(field.name), "is not built here: " + std::string(field.text));
}

ApiStatus check_objects(const ApiField& field, const Json& value) {
  const std::string name(field.name);
  if (!value.is_array()) return wrong(name, "an array of objects", value);
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_object()) return wrong(name + '[' + std::to_string(i) + ']', "an object", value[i]);
  }
  return {};
}

ApiStatus check_modalities(const Json& value) {
  if (value == Json::array({"text"})) return {};
  if (!value.is_array()) return wrong("modalities", "[\"text\"]", value);
  return refuse("modalities", "is not built here: there is only text; give [\"text\"]");
}

}  // namespace

ApiStatus check_value(const ApiField& field, const Json& value, const ApiLimits& limits) {
  if (field.use == FieldUse::refused) return check_refused(field, value);
  const std::string name(field.name);
  switch (field.kind) {
    case FieldKind::boolean:
      if (!value.is_boolean()) return wrong(name, "true or false", value);
      return {};
    case FieldKind::integer:
      return check_integer(field, value, limits);
    case FieldKind::number:
      if (!value.is_number()) return wrong(name, "a number", value);
      return check_range(field, value.get<double>(), value);
    case FieldKind::string:
    case FieldKind::text_prompt:
      return check_text(field, name, value, limits);
    case FieldKind::choice:
      return check_choice(field, value);
    case FieldKind::string_or_strings:
    case FieldKind::strings:
      return check_strings(field, value, limits);
    case FieldKind::ids:
      return check_ids(field, value, limits);
    case FieldKind::object:
      if (!value.is_object()) return wrong(name, "an object", value);
      return {};
    case FieldKind::objects:
      return check_objects(field, value);
    case FieldKind::prompt:
      if (value.is_string() || value.is_array()) return {};
      return wrong(name, "a string, an array of strings, of token ids or of arrays of token ids", value);
    case FieldKind::response_format:
      return check_response_format(value);
    case FieldKind::stream_options:
      return check_stream_options(value);
    case FieldKind::logit_bias:
      return check_bias(value, limits);
    case FieldKind::modalities:
      return check_modalities(value);
    case FieldKind::tool_choice:
      if (value.is_object() || value == "none" || value == "auto" || value == "required") return {};
      return wrong(name, "none or auto", value);
    case FieldKind::messages:
    case FieldKind::tools:
    case FieldKind::any:
      return {};
  }
  return {};
}

}  // namespace kvarto

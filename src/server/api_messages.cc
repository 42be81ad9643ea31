#include "server/api_messages.h"

#include <initializer_list>
#include <nlohmann/json.hpp>

#include "format/printable.h"
#include "server/api_body.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

// Levels above the arguments of a tool call inside `messages`.
constexpr size_t kLevelsAboveArguments = 5;
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

std::string at(std::string_view path, size_t index) { return std::string(path) + '[' + std::to_string(index) + ']'; }

tl::unexpected<ApiError> wrong(std::string path, std::string_view wanted, const Json& value) {
  return tl::unexpected(wrong_value(std::move(path), wanted, value));
}

tl::unexpected<ApiError> missing(std::string path) {
  std::string message = path + " is missing; give it";
  return tl::unexpected(bad_body(std::move(path), std::move(message)));
}

// Null when absent.
Json* member(Json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

ApiStatus optional_string(Json& object, std::string_view name, const std::string& path) {
  const Json* value = member(object, name);
  if (value == nullptr || value->is_null() || value->is_string()) return {};
  return wrong(path + '.' + std::string(name), "a string", *value);
}

ApiStatus function_name(Json& function, const std::string& path) {
  const Json* name = member(function, "name");
  if (name == nullptr) return missing(path + ".name");
  if (!name->is_string()) return wrong(path + ".name", "a string", *name);
  const auto& text = name->get_ref<const std::string&>();
  if (!text.empty() && text.size() <= kLongestFunctionName) return {};
  return tl::unexpected(bad_field(path + ".name", path + ".name has " + std::to_string(text.size()) +
                                                      " bytes; it must have 1 to " +
                                                      std::to_string(kLongestFunctionName)));
}

ApiStatus check_parts(Json& parts, const std::string& path) {
  for (size_t i = 0; i < parts.size(); ++i) {
    Json& part = parts[i];
    const std::string here = at(path, i);
    if (!part.is_object()) return wrong(here, "an object with type and text", part);
    const Json* type = member(part, "type");
    if (type == nullptr) return missing(here + ".type");
    if (!type->is_string()) return wrong(here + ".type", "a string", *type);
    if (*type != "text") {
      return tl::unexpected(bad_field(here + ".type", here + ".type " +
                                                          kvarto::quoted(type->get_ref<const std::string&>()) +
                                                          " is unsupported; only text parts are read here"));
    }
    const Json* value = member(part, "text");
    if (value == nullptr) return missing(here + ".text");
    if (!value->is_string()) return wrong(here + ".text", "a string", *value);
    part = {{"type", "text"}, {"text", std::move(*member(part, "text"))}};
  }
  return {};
}

ApiStatus read_content(Json& message, const std::string& path) {
  Json* content = member(message, "content");
  if (content == nullptr || content->is_null()) {
    message["content"] = "";
  } else if (content->is_array()) {
    return check_parts(*content, path + ".content");
  } else if (!content->is_string()) {
    return wrong(path + ".content", "a string, null or an array of parts", *content);
  }
  return {};
}

// Templates want an object; clients send its text, as the API returns it.
ApiStatus read_arguments(Json& function, const ApiLimits& limits, const std::string& path) {
  Json* arguments = member(function, "arguments");
  if (arguments == nullptr || arguments->is_null() ||
      (arguments->is_string() && arguments->get_ref<const std::string&>().empty())) {
    function["arguments"] = Json::object();
    return {};
  }
  if (arguments->is_object()) return {};
  if (!arguments->is_string()) return wrong(path + ".arguments", "a string of JSON or an object", *arguments);
  ApiResult<Json> parsed = parse_inner_json(arguments->get_ref<const std::string&>(), limits, path + ".arguments",
                                            kDeepestBody - kLevelsAboveArguments);
  if (!parsed) return tl::unexpected(std::move(parsed.error()));
  if (!parsed->is_object()) return wrong(path + ".arguments", "an object", *parsed);
  *arguments = *std::move(parsed);
  return {};
}

ApiStatus read_tool_calls(Json& message, const ApiLimits& limits, const std::string& path) {
  Json* calls = member(message, "tool_calls");
  if (calls == nullptr || calls->is_null()) return {};
  if (!calls->is_array()) return wrong(path + ".tool_calls", "an array", *calls);
  for (size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    const std::string here = at(path + ".tool_calls", i);
    if (!call.is_object()) return wrong(here, "an object with id, type and function", call);
    RETURN_IF_API_ERROR(optional_string(call, "id", here));
    const Json* type = member(call, "type");
    if (type != nullptr && *type != "function") return wrong(here + ".type", "\"function\"", *type);
    Json* function = member(call, "function");
    if (function == nullptr) return missing(here + ".function");
    if (!function->is_object()) return wrong(here + ".function", "an object with name and arguments", *function);
    RETURN_IF_API_ERROR(function_name(*function, here + ".function"));
    RETURN_IF_API_ERROR(read_arguments(*function, limits, here + ".function"));
  }
  return {};
}

// Replies have had it under both names, and templates look for either.
ApiStatus read_reasoning(Json& message, const std::string& path) {
  constexpr std::string_view kNames[] = {"reasoning", "reasoning_content"};
  for (const std::string_view name : kNames) RETURN_IF_API_ERROR(optional_string(message, name, path));
  for (const auto& [given, other] : {std::pair(kNames[0], kNames[1]), std::pair(kNames[1], kNames[0])}) {
    const Json* text = member(message, given);
    if (text == nullptr || text->is_null() || member(message, other) != nullptr) continue;
    Json copy = *text;
    message[std::string(other)] = std::move(copy);
  }
  return {};
}

ApiStatus read_message(Json& message, const ApiLimits& limits, const std::string& path) {
  if (!message.is_object()) return wrong(path, "an object with role and content", message);
  const Json* role = member(message, "role");
  if (role == nullptr) return missing(path + ".role");
  if (std::find(std::begin(kRoles), std::end(kRoles), *role) == std::end(kRoles)) {
    return wrong(path + ".role", "system, developer, user, assistant or tool", *role);
  }
  RETURN_IF_API_ERROR(optional_string(message, "name", path));
  RETURN_IF_API_ERROR(optional_string(message, "tool_call_id", path));
  RETURN_IF_API_ERROR(read_content(message, path));
  RETURN_IF_API_ERROR(read_reasoning(message, path));
  return read_tool_calls(message, limits, path);
}

// All keys sorted, at every level, but for `first`, which come in front.
Json arranged(const Json& object, std::initializer_list<const char*> first) {
  Json sorted = nlohmann::json(object);  // which keeps keys by name
  Json out = Json::object();
  for (const char* name : first) {
    if (const auto found = sorted.find(name); found != sorted.end()) {
      out[name] = std::move(*found);
      sorted.erase(name);
    }
  }
  out.update(sorted);
  return out;
}

// One spelling of a tool: the keys of its schema sorted, its own as OpenAI's documentation has them.
Json sorted_tool(const Json& tool) {
  Json out = arranged(tool, {"type", "function"});
  out["function"] = arranged(out["function"], {"name", "description", "parameters"});
  return out;
}

}  // namespace

std::string content_text(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) text += (i > 0 ? "\n" : "") + content[i]["text"].get<std::string>();
  return text;
}

ApiStatus read_messages(Json& messages, const ApiLimits& limits, ApiRequest& out) {
  if (!messages.is_array()) return wrong("messages", "an array of messages", messages);
  if (messages.empty()) {
    return tl::unexpected(bad_body("messages", "messages is empty; give at least 1 message"));
  }
  if (messages.size() > limits.max_messages) {
    return tl::unexpected(bad_field("messages", "messages has " + std::to_string(messages.size()) +
                                                    " entries; at most " + std::to_string(limits.max_messages)));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    RETURN_IF_API_ERROR(read_message(messages[i], limits, at("messages", i)));
  }
  out.last_role = messages.back()["role"].get<std::string>();
  out.last_content = content_text(messages.back()["content"]);
  out.messages = messages.dump();
  return {};
}

ApiStatus read_tools(Json& tools, const ApiLimits& limits, ApiRequest& out) {
  if (!tools.is_array()) return wrong("tools", "an array of tools", tools);
  if (tools.empty()) {
    return tl::unexpected(bad_field("tools", "tools must not be an empty array; leave it out to offer none"));
  }
  if (tools.size() > limits.max_tools) {
    return tl::unexpected(bad_field("tools", "tools has " + std::to_string(tools.size()) + " entries; at most " +
                                                 std::to_string(limits.max_tools)));
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    Json& tool = tools[i];
    const std::string here = at("tools", i);
    if (!tool.is_object()) return wrong(here, "an object with type and function", tool);
    const Json* type = member(tool, "type");
    if (type == nullptr) return missing(here + ".type");
    if (*type != "function") return wrong(here + ".type", "\"function\"", *type);
    Json* function = member(tool, "function");
    if (function == nullptr) return missing(here + ".function");
    if (!function->is_object()) return wrong(here + ".function", "an object with name and parameters", *function);
    RETURN_IF_API_ERROR(function_name(*function, here + ".function"));
    RETURN_IF_API_ERROR(optional_string(*function, "description", here + ".function"));
    const Json* parameters = member(*function, "parameters");
    if (parameters != nullptr && !parameters->is_null() && !parameters->is_object()) {
      return wrong(here + ".function.parameters", "an object", *parameters);
    }
    if (limits.sort_tool_keys) tool = sorted_tool(tool);
  }
  out.tools = tools.dump();
  return {};
}

}  // namespace kvarto

#include "server/api_error.h"

#include <nlohmann/json.hpp>

#include "engine/inbox.h"
#include "format/printable.h"
#include "server/api_fields.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

std::string_view type_of_status(int status) {
  switch (status) {
    case 400:
      return "BadRequestError";
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 408:
      return "RequestTimeoutError";
    case 413:
      return "RequestEntityTooLargeError";
    case 431:
      return "RequestHeaderFieldsTooLargeError";
    case 501:
      return "NotImplementedError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return status < 500 ? "BadRequestError" : "InternalServerError";
  }
}

// Words that are absolute paths or addresses of memory say nothing to a client and something to an attacker.
std::string without_paths(std::string_view message) {
  std::string out;
  size_t at = 0;
  while (at < message.size()) {
    const size_t end = std::min(message.find(' ', at), message.size());
    const std::string_view word = message.substr(at, end - at);
    const size_t start = std::min(word.find_first_not_of("\"'(["), word.size());
    const std::string_view bare = word.substr(start);
    if (bare.starts_with("/") && bare.size() > 1) {
      out += "[path]";
    } else if (bare.starts_with("0x")) {
      out += "[address]";
    } else {
      out += word;
    }
    if (end < message.size()) out += ' ';
    at = end + 1;
  }
  return out;
}

// The engine's messages begin with the field that they are about.
std::optional<std::string> field_of(std::string_view message) {
  const std::string_view word = message.substr(0, message.find(' '));
  for (const ApiField& field : api_fields()) {
    if (field.name == word) return std::string(word);
  }
  return std::nullopt;
}

std::string context_length(uint32_t max_model_len) {
  return "This model's maximum context length is " + std::to_string(max_model_len) +
         " tokens. However, your prompt contains ";
}

}  // namespace

ApiError bad_field(std::string param, std::string message) {
  return {.message = std::move(message), .param = std::move(param)};
}

ApiError bad_body(std::string param, std::string message) {
  ApiError error{.type = "Bad Request", .message = std::move(message)};
  if (!param.empty()) error.param = std::move(param);
  return error;
}

ApiError not_found_error(std::string param, std::string message) {
  return {.status = 404, .type = "NotFoundError", .message = std::move(message), .param = std::move(param)};
}

ApiError unknown_model(std::string_view name, std::span<const std::string> served) {
  std::string names;
  for (const std::string& one : served) names += (names.empty() ? "" : ", ") + kvarto::quoted(one);
  return not_found_error("model", "The model " + kvarto::quoted(name) + " does not exist; this server has " + names);
}

ApiError overloaded(std::string message, uint32_t retry_after_s) {
  return {.status = 503,
          .type = "Service Unavailable",
          .message = std::move(message),
          .code = "server_overloaded",
          .retry_after_s = retry_after_s};
}

ApiError unsupported_media_type(std::string_view content_type) {
  return bad_body("",
                  "Unsupported Media Type: " + kvarto::quoted(content_type) + ". Only 'application/json' is allowed");
}

ApiError status_error(int status, std::string message) {
  return {.status = status, .type = std::string(type_of_status(status)), .message = std::move(message)};
}

ApiError context_length_error(uint32_t max_model_len, uint64_t tokens, bool at_least) {
  const std::string count = std::to_string(tokens);
  return bad_field("input_tokens", context_length(max_model_len) + (at_least ? "at least " : "") + count +
                                       " input tokens. Please reduce the length of the input prompt. " +
                                       "(parameter=input_tokens, value=" + count + ")");
}

ApiError context_length_of_text(uint32_t max_model_len, uint64_t characters, uint64_t tokens) {
  const std::string count = std::to_string(characters);
  return bad_field("input_text", context_length(max_model_len) + count + " characters, which are at least " +
                                     std::to_string(tokens) + " input tokens. Please reduce the length of the input " +
                                     "prompt. (parameter=input_text, value=" + count + ")");
}

ApiError no_room_for_output(uint32_t max_model_len) {
  const std::string length = std::to_string(max_model_len);
  return {.message = "This model's maximum context length is " + length + " tokens. The prompt's " + length +
                     " tokens plus at least 1 output token exceed it; shorten the prompt"};
}

ApiError empty_prompt() { return {.message = "The decoder prompt cannot be empty; give at least 1 token"}; }

ApiError max_tokens_error(std::string field, int64_t max_tokens, uint32_t max_model_len) {
  const std::string value = std::to_string(max_tokens);
  std::string message = field + "=" + value + " cannot be greater than max_model_len=" + std::to_string(max_model_len) +
                        "; ask for fewer tokens (parameter=" + field + ", value=" + value + ")";
  return bad_field(std::move(field), std::move(message));
}

ApiError api_error(const Error& error) {
  if (is_inbox_full(error)) return overloaded(error.message, 1);
  switch (error.code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::unsupported:
    case ErrorCode::corrupt:
    case ErrorCode::out_of_memory:
      return {.message = error.message, .param = field_of(error.message)};
    case ErrorCode::not_found:
      return {.status = 404, .type = "NotFoundError", .message = error.message};
    case ErrorCode::cancelled:
      return status_error(503, error.message);
    case ErrorCode::io:
    case ErrorCode::network:
    case ErrorCode::internal:
      break;
  }
  return status_error(500, without_paths(error.message));
}

std::string error_body(const ApiError& error) {
  Json inner{{"message", error.message}, {"type", error.type}, {"param", nullptr}, {"code", error.status}};
  if (error.param) inner["param"] = *error.param;
  if (!error.code.empty()) inner["code"] = error.code;
  return dump({{"error", std::move(inner)}});
}

ServerReply json_reply(int status, std::string body) {
  return {.status = status, .headers = {{"Content-Type", "application/json"}}, .body = std::move(body)};
}

ServerReply error_reply(const ApiError& error) {
  ServerReply reply = json_reply(error.status, error_body(error));
  if (error.retry_after_s > 0) reply.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  return reply;
}

ServerReply unauthorized_reply() {
  ServerReply reply = json_reply(401, R"({"error":"Unauthorized"})");
  reply.headers.push_back({"WWW-Authenticate", "Bearer"});
  return reply;
}

ServerReply no_route_reply(std::string_view list) {
  ServerReply reply = json_reply(404, R"({"detail":"Not Found"})");
  if (!list.empty()) reply.headers.push_back({"Link", "<" + std::string(list) + ">; rel=\"service-desc\""});
  return reply;
}

ServerReply wrong_method_reply(std::string allow) {
  ServerReply reply = json_reply(405, R"({"detail":"Method Not Allowed"})");
  reply.headers.push_back({"Allow", std::move(allow)});
  return reply;
}

}  // namespace kvarto

// What a client did wrong, or what went wrong for it, as the API says it: HTTP status and OpenAI's error envelope.
// Plain data; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "http/server.h"
#include "kvarto/result.h"

namespace kvarto {

struct ApiError {
  int status = 400;
  std::string type = "BadRequestError";
  std::string message = {};               // one line: the value, the rule, the remedy
  std::optional<std::string> param = {};  // the field, dotted: "messages[2].content"
  std::string code = {};                  // beside the status, e.g. "server_overloaded"; empty: none
  uint32_t retry_after_s = 0;             // > 0: a Retry-After header
};

template <typename T>
using ApiResult = tl::expected<T, ApiError>;
using ApiStatus = ApiResult<void>;

ApiError bad_field(std::string param, std::string message);  // 400: a value that makes no sense or is not built
// 400, type "Bad Request": a body that is no JSON, a field of the wrong type, a field that is missing. An empty param
// is none.
ApiError bad_body(std::string param, std::string message);
ApiError not_found_error(std::string param, std::string message);  // 404
ApiError unknown_model(std::string_view name, std::span<const std::string> served);
ApiError overloaded(std::string message, uint32_t retry_after_s);  // 503, code server_overloaded
// Of a Content-Type that is not JSON: 400, as vLLM has it.
ApiError unsupported_media_type(std::string_view content_type);
// What the HTTP server refuses by itself: 400, 408, 413, 431, 503, ...
ApiError status_error(int status, std::string message);

// A prompt that does not fit. Clients look for "maximum context length". `at_least`: counting stopped at `tokens`.
ApiError context_length_error(uint32_t max_model_len, uint64_t tokens, bool at_least = false);
// ... of a text whose characters alone prove it; it has at least `tokens` tokens.
ApiError context_length_of_text(uint32_t max_model_len, uint64_t characters, uint64_t tokens);
// ... that leaves no room for a single token of output.
ApiError no_room_for_output(uint32_t max_model_len);
ApiError empty_prompt();
// `field`: max_tokens or max_completion_tokens.
ApiError max_tokens_error(std::string field, int64_t max_tokens, uint32_t max_model_len);

// Of the engine: a full inbox is an overload; invalid_argument, unsupported, corrupt and out_of_memory (what can never
// fit, with the numbers) are 400, not_found 404, cancelled 503, all others 500 without paths and addresses of this
// machine.
ApiError api_error(const Error& error);

// {"error":{"message","type","param","code"}}; `code` is the status unless the error has one of its own.
std::string error_body(const ApiError& error);
ServerReply json_reply(int status, std::string body);
ServerReply error_reply(const ApiError& error);
ServerReply unauthorized_reply();                        // 401
ServerReply no_route_reply(std::string_view list = {});  // 404; `list`: the path of what names the routes
ServerReply wrong_method_reply(std::string allow);       // 405; "GET, HEAD"

}  // namespace kvarto

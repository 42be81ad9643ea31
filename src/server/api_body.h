// The JSON of a request's body: parsed with a limit on everything that can be large, and words for its values in
// errors. Used by api_request.cc and api_messages.cc. Pure; any thread.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/api_request.h"

namespace kvarto {

inline constexpr size_t kDeepestBody = 64;

// RETURN_IF_ERROR for ApiStatus.
#define RETURN_IF_API_ERROR(expr)                                                            \
  do {                                                                                       \
    auto kvarto_status_ = (expr);                                                            \
    if (!kvarto_status_) return tl::unexpected<ApiError>(std::move(kvarto_status_.error())); \
  } while (false)

// The top-level field whose token ids are kept apart.
struct IdsField {
  std::string_view name;  // empty: none
  bool prompts = false;   // also strings and lists of ids, not only ids
};

// The whole body, an object. What the array `ids_field` holds goes to `prompts`, where an id takes a quarter of what a
// JSON value takes, and the key keeps an empty array. Errors: no JSON, not UTF-8, a key twice, deeper than 64 levels, a
// number that no double holds, more of something than `limits` allow; `param` says where.
ApiResult<nlohmann::ordered_json> parse_api_body(std::string_view body, const ApiLimits& limits, IdsField ids_field,
                                                 std::vector<ApiPrompt>& prompts);
// JSON inside a string of the body at `path`, of any kind.
ApiResult<nlohmann::ordered_json> parse_inner_json(std::string_view text, const ApiLimits& limits, std::string path,
                                                   size_t deepest);

// "messages must be an array, got the number 3"
ApiError wrong_value(std::string path, std::string_view wanted, const nlohmann::ordered_json& value);
// A whole number of 64 bits; 5.0 is one.
std::optional<int64_t> whole_number(const nlohmann::ordered_json& value);
size_t count_characters(std::string_view utf8);

}  // namespace kvarto

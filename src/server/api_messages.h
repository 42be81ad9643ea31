// Messages and tools of a chat request: checked piece by piece and brought into the form that templates expect. Used by
// api_request.cc; what it made of them is read by generation.cc. Pure; any thread.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/api_request.h"

namespace kvarto {

inline constexpr size_t kLongestFunctionName = 256;  // bytes

// Fills messages, last_role and last_content. Content becomes text: parts are joined by a line feed, null is empty.
// Arguments of tool calls become objects. All other keys stay, in their order.
ApiStatus read_messages(nlohmann::ordered_json& messages, const ApiLimits& limits, ApiRequest& out);
// The content of a message that read_messages let through: parts as one text, as templates that know no parts see them.
std::string content_text(const nlohmann::ordered_json& content);
// Fills tools, as given.
ApiStatus read_tools(nlohmann::ordered_json& tools, const ApiLimits& limits, ApiRequest& out);

}  // namespace kvarto

// Messages and tools of a chat request: checked piece by piece and brought into the form that templates expect. Used by
// api_request.cc alone. Pure; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/api_request.h"

namespace kvarto {

// Fills messages, last_role and last_content. Content becomes text: parts are joined by a line feed, null is empty.
// Arguments of tool calls become objects. All other keys stay, in their order.
ApiStatus read_messages(nlohmann::ordered_json& messages, const ApiLimits& limits, ApiRequest& out);
// Fills tools, as given.
ApiStatus read_tools(nlohmann::ordered_json& tools, const ApiLimits& limits, ApiRequest& out);

}  // namespace kvarto

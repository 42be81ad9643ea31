// Whether a value is what the table of fields says, with the error that names the field when not. Used by
// api_request.cc alone. Pure; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/api_fields.h"
#include "server/api_request.h"

namespace kvarto {

// `value` is not null. Messages and tools are left to api_messages.h.
ApiStatus check_value(const ApiField& field, const nlohmann::ordered_json& value, const ApiLimits& limits);

}  // namespace kvarto

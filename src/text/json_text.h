// JSON that somebody else wrote, parsed with limits: a key twice in one object, of which a reader would drop one in
// silence, and nesting beyond 64 levels, which only an attack needs and which code that recurses over values would not
// survive. And JSON as text for others. Pure; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kvarto/result.h"

namespace kvarto {

// Errors: corrupt for text that is not JSON, invalid_argument for JSON that is refused.
Result<nlohmann::ordered_json> parse_json(std::string_view text);

// One line of valid UTF-8; bytes that are none are replaced.
std::string dump(const nlohmann::ordered_json& json);

}  // namespace kvarto

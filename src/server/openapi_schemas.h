// JSON schemas of request bodies and of replies, for openapi.cc. Pure; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/api_request.h"

namespace kvarto {

nlohmann::ordered_json field_schema(const ApiField& field, const ApiLimits& limits);
nlohmann::ordered_json request_schema(ApiRoute route, const ApiLimits& limits);
// By component name: Error, Usage, CompletionReply, ChatReply, ModelList, ...
nlohmann::ordered_json reply_schemas();

}  // namespace kvarto

// /openapi.json: OpenAPI 3.1, made from the tables of fields and of routes, so that it cannot say what the code
// does not do. Pure; any thread.
#pragma once

#include <string>

#include "server/api_request.h"

namespace kvarto {

struct OpenApiOptions {
  std::string version = {};  // of the program
  bool keys = false;         // the server has API keys
  bool public_metrics = false;
  bool dev_mode = false;
};
std::string openapi_json(const ApiLimits& limits, const OpenApiOptions& options);

}  // namespace kvarto

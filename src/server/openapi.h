// /openapi.json: OpenAPI 3.1, made from the table of fields and the list of routes, so that it cannot say what the code
// does not do. Pure; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/api_request.h"

namespace kvarto {

enum class RouteGuard : uint8_t {
  key,      // needs an API key when the server has any
  open,     // never does
  metrics,  // not with --public-metrics
};

struct RouteInfo {
  std::string_view method, path;
  RouteGuard guard = RouteGuard::key;
  bool dev = false;  // only in dev mode
  std::string_view summary;
};
// Every route of the server.
std::span<const RouteInfo> server_routes();

struct OpenApiOptions {
  std::string version = {};  // of the program
  bool keys = false;         // the server has API keys
  bool public_metrics = false;
  bool dev_mode = false;
};
std::string openapi_json(const ApiLimits& limits, const OpenApiOptions& options);

}  // namespace kvarto

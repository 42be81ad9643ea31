// The server's routes, in one table: requests are answered by it (server.cc), and /openapi.json and the lines at the
// start are made from it. Immutable; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace kvarto {

enum class RouteId : uint8_t {
  completions,
  chat,
  models,
  tokenize,
  detokenize,
  health,
  ping,
  version,
  load,
  metrics,
  dashboard_state,
  reset_prefix_cache,
  openapi,
  page,
};

enum class RouteGuard : uint8_t {
  key,      // needs an API key when the server has any
  open,     // never does
  metrics,  // not with --public-metrics
};

struct RouteInfo {
  RouteId id;
  std::string_view methods;  // as Allow has them: "GET" or "GET, POST"; HEAD goes where GET does
  std::string_view path;
  RouteGuard guard = RouteGuard::key;
  bool dev = false;      // only in dev mode
  bool loading = false;  // answers before the model is there
  bool leaving = false;  // answers while the server shuts down
  std::string_view summary;

  bool takes(std::string_view method) const;
};

// Every route but the dashboard's files (dashboard.h).
std::span<const RouteInfo> server_routes();
// Null: there is none of this path.
const RouteInfo* find_route(std::string_view path, bool dev_mode);
// Whether a request of it needs a key on a server that has keys.
bool needs_key(const RouteInfo& route, bool public_metrics);

}  // namespace kvarto

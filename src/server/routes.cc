#include "server/routes.h"

#include <algorithm>

namespace kvarto {
namespace {

constexpr RouteInfo kRoutes[] = {
    {.id = RouteId::completions,
     .methods = "POST",
     .path = "/v1/completions",
     .summary = "Continues prompts, whole or as server-sent events."},
    {.id = RouteId::chat,
     .methods = "POST",
     .path = "/v1/chat/completions",
     .summary = "Answers a conversation, whole or as server-sent events."},
    {.id = RouteId::models,
     .methods = "GET",
     .path = "/v1/models",
     .summary = "Names under which the model is served."},
    {.id = RouteId::tokenize,
     .methods = "POST",
     .path = "/tokenize",
     .summary = "Token ids of a text or of a rendered conversation."},
    {.id = RouteId::detokenize, .methods = "POST", .path = "/detokenize", .summary = "Text of token ids."},
    {.id = RouteId::health,
     .methods = "GET",
     .path = "/health",
     .guard = RouteGuard::open,
     .loading = true,
     .leaving = true,
     .summary = "200 while the server makes progress; for what routes requests."},
    {.id = RouteId::ping,
     .methods = "GET, POST",
     .path = "/ping",
     .guard = RouteGuard::open,
     .loading = true,
     .leaving = true,
     .summary = "200 while the process lives; for what restarts processes."},
    {.id = RouteId::version,
     .methods = "GET",
     .path = "/version",
     .loading = true,
     .leaving = true,
     .summary = "The version of the program."},
    {.id = RouteId::load,
     .methods = "GET",
     .path = "/load",
     .loading = true,
     .leaving = true,
     .summary = "Requests that are being answered."},
    {.id = RouteId::metrics,
     .methods = "GET",
     .path = "/metrics",
     .guard = RouteGuard::metrics,
     .leaving = true,
     .summary = "Prometheus text."},
    {.id = RouteId::dashboard_state,
     .methods = "GET",
     .path = "/dashboard/state",
     .leaving = true,
     .summary = "What the dashboard shows; its form may change with every version."},
    {.id = RouteId::reset_prefix_cache,
     .methods = "POST",
     .path = "/reset_prefix_cache",
     .dev = true,
     .summary = "Forgets cached blocks that nobody uses."},
    {.id = RouteId::openapi,
     .methods = "GET",
     .path = "/openapi.json",
     .loading = true,
     .leaving = true,
     .summary = "This document."},
    {.id = RouteId::page,
     .methods = "GET",
     .path = "/",
     .guard = RouteGuard::open,
     .loading = true,
     .leaving = true,
     .summary = "The dashboard."},
};

}  // namespace

bool RouteInfo::takes(std::string_view method) const {
  if (method == "HEAD") method = "GET";
  std::string_view rest = methods;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(", "));
    if (one == method) return true;
    rest.remove_prefix(std::min(rest.size(), one.size() + 2));
  }
  return false;
}

std::span<const RouteInfo> server_routes() { return kRoutes; }

const RouteInfo* find_route(std::string_view path, bool dev_mode) {
  const auto found =
      std::ranges::find_if(kRoutes, [&](const RouteInfo& r) { return r.path == path && (!r.dev || dev_mode); });
  return found == std::end(kRoutes) ? nullptr : &*found;
}

bool needs_key(const RouteInfo& route, bool public_metrics) {
  return route.guard == RouteGuard::key || (route.guard == RouteGuard::metrics && !public_metrics);
}

}  // namespace kvarto

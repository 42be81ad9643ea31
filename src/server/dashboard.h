// The dashboard's page: files that the build compiled into the program, the headers under which they are served, and
// whom they are served to. The page loads nothing from elsewhere, and its headers forbid it to. Pure functions; any
// thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/server.h"

namespace kvarto {

// "/" and "/dashboard/NAME"; 404 for all else. The page itself holds no data and may be given to anybody who passes
// refuse_foreign(); what it shows comes from /dashboard/state, which needs the key. A path ends with "/" for the page:
// its links are relative, so that it works behind a prefix.
ServerReply dashboard_asset(std::string_view path);
// Whether `path` is one of the above.
bool is_dashboard_asset(std::string_view path);

// By which names a browser may come. A page of somebody else's that lets its name point to this machine (DNS
// rebinding) sends its own name as Host.
struct HostRules {
  std::string bound_host;                  // HttpServerOptions::host; empty: a Unix socket
  std::vector<std::string> allowed_hosts;  // further names, "*": any
};
// `host`: the Host header: localhost, 127.0.0.1, [::1], the bound address, one of the allowed names, each with any port
// or none; bound to every address (0.0.0.0, ::): any address in digits, since only names can be rebound.
bool allowed_host(std::string_view host, const HostRules& rules);
// Whether a request with `origin` (its Origin header) comes from a page of this server, as `host` names it.
bool same_origin(std::string_view origin, std::string_view host);
// Whether a browser sent the request. One tells the origin wherever something may change, and, to servers that it
// trusts, which site asks; its own name goes with all requests. (Node's fetch sends Sec-Fetch-Mode, but none of these.)
bool from_browser(const ServerRequest& request);
// 403 with the reason for a Host that is not allowed.
std::optional<ServerReply> refuse_host(const ServerRequest& request, const HostRules& rules);
// 403 with the reason for a request that another site's page sends: a Host that is not allowed, or an Origin that is
// not this server. Browsers send an Origin with what may change something, and with what other origins ask for.
std::optional<ServerReply> refuse_foreign(const ServerRequest& request, const HostRules& rules);

}  // namespace kvarto

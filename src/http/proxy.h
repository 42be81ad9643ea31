// Which proxy, if any, stands between us and a server: http_proxy, https_proxy and no_proxy as curl reads them (lower
// case first, then upper case). Plain values; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "http/url.h"
#include "kvarto/result.h"

namespace kvarto {

struct ProxySettings {
  std::optional<Url> http;   // for http:// servers, which get absolute targets
  std::optional<Url> https;  // for https:// servers, reached through CONNECT
  std::string exceptions;    // no_proxy: "host", ".domain", "host:port" or "*", separated by commas or spaces
};

Result<ProxySettings> proxy_from_environment();
std::optional<Url> proxy_for(const ProxySettings& settings, const Url& server);

}  // namespace kvarto

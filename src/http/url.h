// Addresses of the web: split, joined and written out. Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvarto/result.h"

namespace kvarto {

struct Url {
  bool tls = false;  // https
  std::string host;  // lower case; an IPv6 address without its brackets
  uint16_t port = 0;
  std::string target;     // path and query, starts with "/"; percent-encoded, no fragment
  std::string user_info;  // "name:password", decoded; only proxies may have one
};

// http:// and https:// only. Control characters are refused; other bytes that a URL may not hold are percent-encoded.
Result<Url> parse_url(std::string_view text);
// What a Location header means, seen from the page that sent it.
Result<Url> resolve_location(const Url& base, std::string_view location);

std::string authority(const Url& url);  // "host" or "host:port" when the port is not the scheme's own
std::string origin(const Url& url);     // "https://host:port", port as above
std::string shown(const Url& url);      // for messages: no query (it may hold a signature), no user
// Percent-encodes everything but letters, digits and "-._~"; "/" stays when `keep_slashes`.
std::string percent_encode(std::string_view text, bool keep_slashes);
std::string percent_decode(std::string_view text);  // what is no escape stays

}  // namespace kvarto

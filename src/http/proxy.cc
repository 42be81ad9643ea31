#include "http/proxy.h"

#include <algorithm>
#include <cstdlib>

#include "base/ascii.h"

namespace kvarto {
namespace {

std::string_view environment(const char* lower, const char* upper) {
  for (const char* name : {lower, upper}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  return {};
}

Result<std::optional<Url>> read_proxy(const char* lower, const char* upper) {
  const std::string_view text = environment(lower, upper);
  if (text.empty()) return std::optional<Url>();
  // "host:port" alone is common and means http.
  const bool bare = text.find("://") == std::string_view::npos;
  Result<Url> url = parse_url(bare ? "http://" + std::string(text) : std::string(text));
  // The value may hold a password: it is not repeated.
  if (!url || url->tls) {
    return fail(ErrorCode::invalid_argument,
                std::string(lower) + ": not an http proxy; set it to http://host:port, or unset it");
  }
  return std::optional<Url>(*url);
}

bool excepts(std::string entry, const Url& server) {
  if (entry == "*") return true;
  const size_t colon = entry.rfind(':');
  const bool has_port = colon != std::string::npos && entry.find(':') == colon;  // more than one: an IPv6 address
  if (has_port) {
    if (entry.substr(colon + 1) != std::to_string(server.port)) return false;
    entry.resize(colon);
  }
  if (entry.starts_with('.')) entry.erase(0, 1);
  if (entry.empty()) return false;
  return server.host == entry || server.host.ends_with("." + entry);
}

}  // namespace

Result<ProxySettings> proxy_from_environment() {
  ProxySettings settings;
  ASSIGN_OR_RETURN(settings.http, read_proxy("http_proxy", "HTTP_PROXY"));
  ASSIGN_OR_RETURN(settings.https, read_proxy("https_proxy", "HTTPS_PROXY"));
  settings.exceptions = environment("no_proxy", "NO_PROXY");
  return settings;
}

std::optional<Url> proxy_for(const ProxySettings& settings, const Url& server) {
  std::string_view rest = settings.exceptions;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find_first_of(", \t"), rest.size());
    if (excepts(ascii_lower(rest.substr(0, end)), server)) return std::nullopt;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return server.tls ? settings.https : settings.http;
}

}  // namespace kvarto

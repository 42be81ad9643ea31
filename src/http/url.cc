#include "http/url.h"

#include <algorithm>
#include <charconv>

#include "base/ascii.h"
#include "format/printable.h"

namespace kvarto {
namespace {

constexpr std::string_view kUnreserved = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
constexpr size_t kMaxUrlBytes = 16384;

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }
bool is_letter_or_digit(char c) { return (ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z') || (c >= '0' && c <= '9'); }

void append_encoded(std::string& out, char c) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  const auto byte = static_cast<unsigned char>(c);
  out += '%';
  out += digits[byte >> 4];
  out += digits[byte & 15];
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (ascii_lower(c) >= 'a' && ascii_lower(c) <= 'f') return ascii_lower(c) - 'a' + 10;
  return -1;
}

// Path and query as they may stand in a request line: the fragment goes, what a URL may not hold is encoded.
std::string clean_target(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, text.find('#'))) {
    const bool unfit =
        static_cast<unsigned char>(c) > 0x7e || std::string_view(" \"<>\\^`{|}").find(c) != std::string_view::npos;
    if (unfit) {
      append_encoded(out, c);
    } else {
      out += c;
    }
  }
  return out.starts_with('/') ? out : "/" + out;
}

Status read_host_and_port(std::string_view text, Url& url) {
  std::string_view host = text, port;
  const bool v6 = text.starts_with('[');
  const size_t end_of_host = v6 ? text.find(']') : std::min(text.find(':'), text.size());
  if (end_of_host == std::string_view::npos)
    return fail(ErrorCode::invalid_argument, "no closing ']' after the address");
  host = v6 ? text.substr(1, end_of_host - 1) : text.substr(0, end_of_host);
  port = text.substr(v6 ? end_of_host + 1 : end_of_host);
  const bool fit = std::all_of(host.begin(), host.end(), [&](char c) {
    return v6 ? hex_value(c) >= 0 || c == ':' || c == '.' : is_letter_or_digit(c) || c == '-' || c == '.' || c == '_';
  });
  if (host.empty() || host.size() > 255 || !fit) return fail(ErrorCode::invalid_argument, "no valid host name");
  url.host = ascii_lower(host);
  url.port = url.tls ? 443 : 80;
  if (port.empty() || port == ":") return {};
  const auto [end, error] = std::from_chars(port.data() + 1, port.data() + port.size(), url.port);
  if (port[0] != ':' || error != std::errc() || end != port.data() + port.size() || url.port == 0) {
    return fail(ErrorCode::invalid_argument, "no valid port (1 to 65535)");
  }
  return {};
}

}  // namespace

std::string percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 && hex_value(text[i + 2]) >= 0;
    out += escape ? static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return out;
}

std::string percent_encode(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    if (kUnreserved.find(c) != std::string_view::npos || (keep_slashes && c == '/')) {
      out += c;
    } else {
      append_encoded(out, c);
    }
  }
  return out;
}

Result<Url> parse_url(std::string_view text) {
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::invalid_argument, "URL " + kvarto::quoted(text, 120) + ": " + why);
  };
  if (text.size() > kMaxUrlBytes) return refuse("longer than " + std::to_string(kMaxUrlBytes) + " bytes");
  if (std::any_of(text.begin(), text.end(), is_control)) return refuse("control characters");
  Url url;
  const size_t colon = std::min(text.find("://"), text.size());
  const std::string scheme = ascii_lower(text.substr(0, colon));
  if (scheme != "http" && scheme != "https") return refuse("must start with http:// or https://");
  url.tls = scheme == "https";
  std::string_view rest = text.substr(colon + 3);
  std::string_view place = rest.substr(0, rest.find_first_of("/?#"));
  url.target = clean_target(rest.substr(place.size()));
  if (const size_t at = place.rfind('@'); at != std::string_view::npos) {
    url.user_info = percent_decode(place.substr(0, at));
    place.remove_prefix(at + 1);
  }
  if (Status status = read_host_and_port(place, url); !status) return refuse(status.error().message);
  return url;
}

Result<Url> resolve_location(const Url& base, std::string_view location) {
  const size_t end_of_scheme = location.find_first_of(":/?#");
  if (end_of_scheme != std::string_view::npos && location[end_of_scheme] == ':') return parse_url(location);
  const std::string scheme = base.tls ? "https:" : "http:";
  if (location.starts_with("//")) return parse_url(scheme + std::string(location));
  std::string path(location);
  if (!location.starts_with('/')) {
    const std::string_view page = std::string_view(base.target).substr(0, base.target.find('?'));
    path = std::string(page.substr(0, page.rfind('/') + 1)) + path;
  }
  return parse_url(origin(base) + path);
}

std::string authority(const Url& url) {
  const std::string host = url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]";
  return url.port == (url.tls ? 443 : 80) ? host : host + ":" + std::to_string(url.port);
}

std::string origin(const Url& url) { return (url.tls ? "https://" : "http://") + authority(url); }

std::string shown(const Url& url) { return printable(origin(url) + url.target.substr(0, url.target.find('?')), 300); }

}  // namespace kvarto

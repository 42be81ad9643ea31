#include "server/dashboard.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/ascii.h"
#include "format/printable.h"
#include "server/api_error.h"

// The assembler copies the files in; KVARTO_WEB_FOLDER and KVARTO_CHART_JS come from CMake.
#define KVARTO_EMBED(name, path)                                                                                      \
  asm(".pushsection .rodata\n.hidden " #name "_begin\n.hidden " #name "_end\n.global " #name "_begin\n.global " #name \
      "_end\n" #name "_begin:\n.incbin \"" path "\"\n" #name "_end:\n.popsection\n");                                 \
  extern "C" {                                                                                                        \
  extern const char name##_begin[];                                                                                   \
  extern const char name##_end[];                                                                                     \
  }

KVARTO_EMBED(kvarto_web_index, KVARTO_WEB_FOLDER "/index.html")
KVARTO_EMBED(kvarto_web_style, KVARTO_WEB_FOLDER "/dashboard.css")
KVARTO_EMBED(kvarto_web_page, KVARTO_WEB_FOLDER "/dashboard.js")
KVARTO_EMBED(kvarto_web_state, KVARTO_WEB_FOLDER "/state.js")
KVARTO_EMBED(kvarto_web_map, KVARTO_WEB_FOLDER "/block_map.js")
KVARTO_EMBED(kvarto_web_charts, KVARTO_WEB_FOLDER "/charts.js")
KVARTO_EMBED(kvarto_web_tables, KVARTO_WEB_FOLDER "/tables.js")
KVARTO_EMBED(kvarto_web_try, KVARTO_WEB_FOLDER "/try_prompt.js")
KVARTO_EMBED(kvarto_web_chart_js, KVARTO_CHART_JS)

namespace kvarto {
namespace {

constexpr std::string_view kHtml = "text/html; charset=utf-8", kCss = "text/css; charset=utf-8",
                           kScript = "text/javascript; charset=utf-8";

struct Asset {
  std::string_view path, type;
  std::span<const char> bytes;
};

std::span<const Asset> assets() {
  static const std::array<Asset, 9> kAssets{{
      {"/", kHtml, {kvarto_web_index_begin, kvarto_web_index_end}},
      {"/dashboard/dashboard.css", kCss, {kvarto_web_style_begin, kvarto_web_style_end}},
      {"/dashboard/dashboard.js", kScript, {kvarto_web_page_begin, kvarto_web_page_end}},
      {"/dashboard/state.js", kScript, {kvarto_web_state_begin, kvarto_web_state_end}},
      {"/dashboard/block_map.js", kScript, {kvarto_web_map_begin, kvarto_web_map_end}},
      {"/dashboard/charts.js", kScript, {kvarto_web_charts_begin, kvarto_web_charts_end}},
      {"/dashboard/tables.js", kScript, {kvarto_web_tables_begin, kvarto_web_tables_end}},
      {"/dashboard/try_prompt.js", kScript, {kvarto_web_try_begin, kvarto_web_try_end}},
      {"/dashboard/chart.js", kScript, {kvarto_web_chart_js_begin, kvarto_web_chart_js_end}},
  }};
  return kAssets;
}

const Asset* find_asset(std::string_view path) {
  const auto found = std::ranges::find(assets(), path, &Asset::path);
  return found == assets().end() ? nullptr : &*found;
}

bool all_digits(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Host and port of "name", "name:80", "[::1]", "[::1]:80"; the host is lower case, without brackets and without the dot
// of a full name. Nothing: it is none of these.
struct Authority {
  std::string host;
  std::string port;
  bool bracketed = false;
};
std::optional<Authority> parse_authority(std::string_view text) {
  Authority out;
  size_t end;
  if (text.starts_with('[')) {
    end = text.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    out.host = ascii_lower(text.substr(1, end - 1));
    out.bracketed = true;
    ++end;
  } else {
    end = std::min(text.find(':'), text.size());
    out.host = ascii_lower(text.substr(0, end));
    if (out.host.ends_with('.')) out.host.pop_back();
  }
  if (end < text.size()) {
    if (text[end] != ':' || !all_digits(text.substr(end + 1))) return std::nullopt;
    out.port = text.substr(end + 1);
  }
  if (out.host.empty()) return std::nullopt;
  return out;
}

// Four numbers, or anything in brackets: a browser resolves no name for these.
bool is_address(const Authority& authority) {
  if (authority.bracketed) {
    return std::ranges::all_of(authority.host,
                               [](unsigned char c) { return std::isxdigit(c) || c == ':' || c == '.'; });
  }
  std::string_view rest = authority.host;
  for (int i = 0; i < 4; ++i) {
    const std::string_view number = rest.substr(0, rest.find('.'));
    if (number.empty() || number.size() > 3 || !all_digits(number)) return false;
    if (i == 3) return number.size() == rest.size();
    if (number.size() == rest.size()) return false;
    rest.remove_prefix(number.size() + 1);
  }
  return false;
}

std::string unbracketed(std::string_view host) {
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return ascii_lower(host);
}

ServerReply forbidden(std::string message) { return error_reply(status_error(403, std::move(message))); }

}  // namespace

bool is_dashboard_asset(std::string_view path) { return find_asset(path) != nullptr; }

ServerReply dashboard_asset(std::string_view path) {
  const Asset* asset = find_asset(path);
  if (asset == nullptr) return no_route_reply();
  ServerReply reply;
  reply.headers = {
      {"Content-Type", std::string(asset->type)},
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Cache-Control", "no-cache"}};
  reply.body.assign(asset->bytes.begin(), asset->bytes.end());
  return reply;
}

bool allowed_host(std::string_view host, const HostRules& rules) {
  const std::optional<Authority> asked = parse_authority(host);
  if (!asked) return false;
  if (asked->host == "localhost" || asked->host == "127.0.0.1" || asked->host == "::1") return true;
  const std::string bound = unbracketed(rules.bound_host);
  if (asked->host == bound) return true;
  if ((bound == "0.0.0.0" || bound == "::") && is_address(*asked)) return true;
  return std::ranges::any_of(rules.allowed_hosts,
                             [&](const std::string& name) { return name == "*" || unbracketed(name) == asked->host; });
}

bool same_origin(std::string_view origin, std::string_view host) {
  const size_t scheme_end = origin.find("://");
  if (scheme_end == std::string_view::npos) return false;  // "null": a sandboxed frame, a file
  const std::string scheme = ascii_lower(origin.substr(0, scheme_end));
  if (scheme != "http" && scheme != "https") return false;
  std::optional<Authority> from = parse_authority(origin.substr(scheme_end + 3)), here = parse_authority(host);
  if (!from || !here) return false;
  for (Authority* one : {&*from, &*here}) {
    if (one->port.empty()) one->port = scheme == "http" ? "80" : "443";
  }
  return from->host == here->host && from->port == here->port;
}

bool from_browser(const ServerRequest& request) {
  const std::string* agent = request.header("User-Agent");
  return request.header("Origin") != nullptr || request.header("Sec-Fetch-Site") != nullptr ||
         (agent != nullptr && agent->starts_with("Mozilla/"));
}

std::optional<ServerReply> refuse_host(const ServerRequest& request, const HostRules& rules) {
  const std::string* host = request.header("Host");
  if (host != nullptr && allowed_host(*host, rules)) return std::nullopt;
  return forbidden("This server is not called \"" + printable(host == nullptr ? "" : *host) +
                   "\"; use its address, or name it with --allowed-hosts");
}

std::optional<ServerReply> refuse_foreign(const ServerRequest& request, const HostRules& rules) {
  if (auto refused = refuse_host(request, rules)) return refused;
  const std::string* origin = request.header("Origin");
  if (origin != nullptr && !same_origin(*origin, *request.header("Host"))) {
    return forbidden("The page \"" + printable(*origin) + "\" is not of this server");
  }
  return std::nullopt;
}

}  // namespace kvarto

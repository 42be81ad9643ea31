#include "cli/serve_report.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "format/printable.h"
#include "server/routes.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

// For a shell between single quotes.
std::string single_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// Where this machine reaches what listens everywhere.
std::string reachable(std::string address) {
  for (const auto& [any, here] : {std::pair{"//0.0.0.0:", "//127.0.0.1:"}, std::pair{"//[::]:", "//[::1]:"}}) {
    const size_t at = address.find(any);
    if (at != std::string::npos) address.replace(at, std::string_view(any).size(), here);
  }
  return address;
}

bool is_local(const std::string& address) {
  return address.starts_with("unix:") || address.find("//127.") != std::string::npos ||
         address.find("//[::1]:") != std::string::npos || address.find("//localhost:") != std::string::npos;
}

std::string curl_line(const ReachOptions& o, const std::string& url) {
  const bool unix_socket = url.starts_with("unix:");
  std::string line = "curl ";
  if (unix_socket) line += "--unix-socket " + single_quoted(url.substr(5)) + " ";
  if (url.starts_with("https:")) line += "-k ";
  line += (unix_socket ? "http://localhost" : url) + (o.chat ? "/v1/chat/completions" : "/v1/completions");
  line += " -H 'Content-Type: application/json'";
  const std::string key = o.key_variable ? "$VLLM_API_KEY" : "YOUR_KEY";
  if (o.keys) line += " -H \"Authorization: Bearer " + key + "\"";
  Json body = {{"model", o.model}};
  if (o.chat) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", "Why is the sky blue?"}}});
  } else {
    body["prompt"] = "The sky is";
  }
  // A small model answers without end, and at temperature 1 anything.
  body["max_tokens"] = 64;
  body["temperature"] = 0;
  return line + " -d " + single_quoted(dump(body));
}

}  // namespace

std::string given_line(const ServeFlags& flags) {
  if (flags.given.empty()) return "";
  Json given = Json::object();
  for (const auto& [name, value] : flags.given) given[name] = value;
  return "non-default args: " + dump(given);
}

std::vector<std::string> route_lines(bool dev_mode) {
  std::vector<std::string> lines;
  for (const RouteInfo& route : server_routes()) {
    if (route.dev && !dev_mode) continue;
    lines.push_back("Route: " + std::string(route.path) + ", Methods: " + std::string(route.methods));
  }
  return lines;
}

std::vector<std::string> reach_lines(const ReachOptions& o) {
  const std::string url = reachable(o.address);
  const bool unix_socket = url.starts_with("unix:");
  std::vector<std::string> lines;
  lines.push_back("API:       " + (unix_socket ? url : url + "/v1"));
  if (!unix_socket) lines.push_back("dashboard: " + url + "/");
  lines.push_back("try:       " + curl_line(o, url));
  if (o.keys) {
    lines.push_back(o.key_variable ? "           where VLLM_API_KEY has the value that it has for this server"
                                   : "           with a key of --api-key or --api-key-file in place of YOUR_KEY");
  }
  if (!is_local(o.address) && !o.keys) {
    lines.push_back("Whoever reaches " + o.address + " may use this server; --api-key KEY asks for a key");
  }
  if (o.container && is_local(o.address) && !unix_socket) {
    lines.push_back("This is a container and the server listens at " + o.address +
                    ": nothing outside can reach it; start it with --host 0.0.0.0 and publish the port");
  }
  return lines;
}

bool in_container(const std::string& root) {
  for (const char* mark : {"/.dockerenv", "/run/.containerenv"}) {
    if (::access((root + mark).c_str(), F_OK) == 0) return true;
  }
  const Result<std::string> groups = read_file(root + "/proc/1/cgroup", 1 << 16);
  if (!groups) return false;
  for (const char* word : {"docker", "kubepods", "containerd", "libpod", "lxc"}) {
    if (groups->find(word) != std::string::npos) return true;
  }
  return false;
}

}  // namespace kvarto

// What `kvarto serve` says on its way: lines that operators of vLLM know, and how to reach the server. Pure functions
// but for in_container(); any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/serve_flags.h"

namespace kvarto {

// "non-default args: {"port": "9000"}"; empty when there are none.
std::string given_line(const ServeFlags& flags);
// "Route: /health, Methods: GET", in the order of the list of routes.
std::vector<std::string> route_lines(bool dev_mode);

struct ReachOptions {
  std::string address;        // "http://127.0.0.1:8000", "unix:/path"
  std::string model;          // first served name
  bool keys = false;          // a request needs one
  bool key_variable = false;  // VLLM_API_KEY of the environment is one
  bool chat = true;           // the model has a chat template
  bool container = false;
};
// URL, dashboard, a line to try it with, and warnings about who can and who cannot reach it; one line each.
std::vector<std::string> reach_lines(const ReachOptions& options);

// Whether this process runs in a container. `root` prefixes the paths in tests.
bool in_container(const std::string& root = "");

}  // namespace kvarto

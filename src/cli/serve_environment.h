// The environment variables of vLLM that concern a server. None of them changes what a request is answered. Main
// thread.
#pragma once

#include <vector>

#include "cli/serve_flags.h"

namespace kvarto {

// What flags are laid over. Values that make no sense, and variables that are not honoured, are reports.
void read_environment(Environment environment, ServeFlags& flags, std::vector<FlagReport>& reports);
// VLLM_API_KEY, for when no flag gave a key.
void read_key_variable(Environment environment, ServeFlags& flags, std::vector<FlagReport>& reports);
// The numbers of "0-3,8": at most 1024 of them. Errors: not such a list.
Result<std::vector<int>> parse_cpu_list(std::string_view text);

struct VariableRow {
  std::string_view name, text;
};
std::span<const VariableRow> variable_rows();  // for the documentation

}  // namespace kvarto

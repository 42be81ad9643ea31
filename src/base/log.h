// Log lines for operators, on stderr, through spdlog; results and prompts never go here. Any thread.
#pragma once

#include <string_view>

namespace kvarto {

enum class LogLevel { debug, info, warning, error, off };
void set_log_level(LogLevel level);
void log(LogLevel level, std::string_view message);

}  // namespace kvarto

// Log lines for operators, on stderr, through spdlog; results and prompts never go here. Any thread.
#pragma once

#include <chrono>
#include <string_view>

namespace kvarto {

enum class LogLevel { debug, info, warning, error, off };
void set_log_level(LogLevel level);
void log(LogLevel level, std::string_view message);

// From then on a thread writes the lines, so that whoever holds stderr's other end and does not read stops nobody who
// logs. The newest 4,096 lines wait; how many were dropped is a line of its own. For a process that flushes at its end.
void queue_log_lines();
// Waits until all that was logged is written; false: it was not within `limit`.
bool flush_log(std::chrono::milliseconds limit);

}  // namespace kvarto

// Right or wrong: what a model wrote against what was asked for. Pure functions, any thread.
#pragma once

#include <string_view>

#include "eval/task.h"

namespace kvarto {

// `text`: generated, cut at the task's stop strings. Text of any bytes is fine; what cannot be parsed is wrong. A task
// judged by agreement is right when `text` equals `baseline`.
bool is_right(const Task& task, std::string_view text, std::string_view baseline = {});
// `text` up to the first of the task's stop strings.
std::string_view cut_at_stop(const Task& task, std::string_view text);

}  // namespace kvarto

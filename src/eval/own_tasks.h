// The user's own questions: JSON lines, each an object with "prompt" (text) or "messages" (chat), and optionally
// "answer" (text that must be in what the model writes), "id", "max_tokens" (1 to 4096, default 128), "stop" (texts).
// What is measured of all of them is how likely the baseline's text stays; those without an answer are a family of
// their own. Pure functions, any thread.
#pragma once

#include <string_view>
#include <vector>

#include "eval/task.h"
#include "kvarto/result.h"

namespace kvarto {

// Errors name the line and what may stand there. Ids that are missing become "own-LINE"; two equal ones are an error.
Result<std::vector<Task>> parse_own_tasks(std::string_view jsonl);

}  // namespace kvarto

// What tasks are, as one name: two runs asked the same when theirs are equal. Pure function, any thread.
#pragma once

#include <span>
#include <string>

#include "eval/task.h"

namespace kvarto {

// SHA-256, in hex, over every field of every task, in order; empty: no tasks.
std::string tasks_sha256(std::span<const Task> tasks);

}  // namespace kvarto

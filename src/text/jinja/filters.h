// The two tables behind find_filter, split because of their size: filters of one value, and filters of sequences.
#pragma once

#include "text/jinja/builtins.h"

namespace kvarto::jinja {

const Native* find_sequence_filter(std::string_view name);

}  // namespace kvarto::jinja

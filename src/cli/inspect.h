// `kvarto inspect --numerics`, apart because it computes. Main thread.
#pragma once

#include <string>

#include "cli/options.h"

namespace kvarto {

// Runs a built-in prompt on every SIMD target of this machine and compares the bytes of the KV blocks. Without MODEL:
// the tiny models compiled into the program. Exit code 1 when two targets differ.
Result<int> inspect_numerics(const ModelFlags& flags, bool json);

}  // namespace kvarto

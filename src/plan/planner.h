// The planner's own numbers; its interface is kvarto/plan.h. Any thread.
#pragma once

#include <cstddef>

#include "kvarto/plan.h"

namespace kvarto {

// Of available memory, how much a default plan uses in all.
inline constexpr double kPlanShare = 0.9;
// Tokenizer, tables, threads' stacks, code. Scoring three ids with SmolLM2 was seen to take 33 MB beside its
// weights; larger vocabularies take more.
inline constexpr size_t kOverheadBytes = size_t{64} << 20;

}  // namespace kvarto

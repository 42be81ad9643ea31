// A backend that does its work badly on purpose (see Setting): keys get noise as they are written, or tokens are hidden
// from all later ones. What it does to a token depends on the fault's seed, layer, head and position alone, so equal
// runs give equal bits. Owner's thread, as every backend.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "eval/setting.h"

namespace kvarto {

// `max_tokens`: the longest sequence. The fault's share hides the same tokens in all layers and heads; the first token
// of a text stays. Without any fault it is `backend` itself.
std::shared_ptr<Backend> plant(std::shared_ptr<Backend> backend, const PlantedFault& fault, uint64_t max_tokens);

}  // namespace kvarto

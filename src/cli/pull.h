// Pulling a model: what is missing of it is fetched from a hub into the local Hugging Face cache and checked. One
// thread.
#pragma once

#include <string>

#include "kvarto/result.h"

namespace kvarto {

struct PullOptions {
  std::string model;              // "org/name" or "org/name:quant"
  std::string revision = "main";  // branch, tag or commit
};

// The path of the model in the cache (its first part). Notes and progress go to stderr. What arrived before a failure
// is kept for the next pull.
Result<std::string> pull_model(const PullOptions& options);

}  // namespace kvarto

// Names of models on a hub, "org/name[:quant]", and which of a repository's GGUF files such a name means: the same rule
// for the hub and for the local cache. Pure functions; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/result.h"

namespace kvarto {

struct ModelName {
  std::string repo;   // "org/name"
  std::string quant;  // "Q4_K_M", or empty
};

Result<ModelName> parse_model_name(std::string_view text);

// The parts, in order, of the one model that `quant` means among `paths` (others than GGUF are passed over, and so are
// image projectors, "mmproj..."). A quant picks the files whose path contains it in any case; are there several, those
// in which it stands as a word of its own (F16 against BF16). None or still several: an error that lists what there is.
Result<std::vector<std::string>> choose_gguf(std::span<const std::string> paths, std::string_view quant);

}  // namespace kvarto

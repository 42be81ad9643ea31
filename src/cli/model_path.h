// What MODEL means on a command line. Never touches the network; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvarto/result.h"

namespace kvarto {

struct ResolvedModel {
  std::string path;  // a GGUF file; of a split model its first part
  std::string how;   // why it is this one: "path", "alias smollm2 in models", "Hugging Face cache, commit 1234abcd"
};

// Where models are looked for.
struct ModelPlaces {
  std::vector<std::string> folders;  // models/ here, and models/ of the source tree that the program was built in
  std::string cache_root;            // of the Hugging Face cache
};
ModelPlaces model_places();

// In this order: a path (a file, or a folder with one GGUF), an alias, a folder or GGUF in one of the model folders,
// org/name[:quant] in the local Hugging Face cache. The first that is there decides: an ambiguous folder is an error,
// not a reason to look further.
Result<ResolvedModel> resolve_model(std::string_view model, const ModelPlaces& places);
inline Result<ResolvedModel> resolve_model(std::string_view model) { return resolve_model(model, model_places()); }

}  // namespace kvarto

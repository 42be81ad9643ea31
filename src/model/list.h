// The list of architectures: the one line to add for a new one. Aliases share a row.
#pragma once

#include <span>
#include <string_view>

#include "model/config.h"

namespace kvarto {

struct Architecture {
  std::string_view name;    // general.architecture
  std::string_view models;  // for people: what runs through it
  Result<ModelConfig> (*config)(const GgufFile&);
};
std::span<const Architecture> architectures();

Result<ModelConfig> llama_config(const GgufFile& file);
Result<ModelConfig> qwen2_config(const GgufFile& file);
Result<ModelConfig> qwen3_config(const GgufFile& file);
Result<ModelConfig> gemma3_config(const GgufFile& file);

}  // namespace kvarto

#include "model/list.h"

#include <array>

namespace kvarto {
namespace {

constexpr std::array kArchitectures = {
    Architecture{"llama", "Llama 2 and 3, Mistral, SmolLM2 and kin", llama_config},
    Architecture{"qwen2", "Qwen2 and Qwen2.5, dense", qwen2_config},
    Architecture{"qwen3", "Qwen3, dense", qwen3_config},
    Architecture{"gemma3", "Gemma 3 (text)", gemma3_config},
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

}  // namespace kvarto

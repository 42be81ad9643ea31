// Llama 2/3, Mistral, SmolLM2: pre-norm, SwiGLU, grouped-query attention, rotary pairs (2i, 2i+1) as GGUF permutes
// them.
#include "model/list.h"

namespace kvarto {

Result<ModelConfig> llama_config(const GgufFile& file) {
  ASSIGN_OR_RETURN(ModelConfig config, read_common_config(file));
  config.rope_pairs = RopePairs::neighbours;
  config.attention_bias = Presence::optional;
  return config;
}

}  // namespace kvarto

// Qwen2 and Qwen2.5: as Llama, with biases on q, k and v, and rotary pairs (i, i + dims/2).
#include "model/list.h"

namespace kvarto {

Result<ModelConfig> qwen2_config(const GgufFile& file) {
  ASSIGN_OR_RETURN(ModelConfig config, read_common_config(file));
  config.rope_pairs = RopePairs::halves;
  config.attention_bias = Presence::required;
  return config;
}

}  // namespace kvarto

// Qwen3 (dense): RMS norm per head on q and k before the rotation, no biases, rotary pairs (i, i + dims/2).
#include "model/list.h"

namespace kvarto {

Result<ModelConfig> qwen3_config(const GgufFile& file) {
  ASSIGN_OR_RETURN(ModelConfig config, read_common_config(file));
  config.rope_pairs = RopePairs::halves;
  config.attention_bias = Presence::absent;
  config.qk_norm = Presence::required;
  return config;
}

}  // namespace kvarto

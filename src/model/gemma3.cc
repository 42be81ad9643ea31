// Gemma 3: alternating windows (five sliding layers, then a full one), two rope bases, QK-norm, norms after both
// branches, GeGLU, embeddings scaled by sqrt(width). What the GGUF leaves out is known here (see the model's public
// configuration).
#include <cmath>

#include "model/list.h"

namespace kvarto {
namespace {

constexpr uint32_t kPeriod = 6;            // every sixth layer is full, unless the file says otherwise
constexpr double kWindowRopeBase = 10000;  // of sliding layers; never scaled
constexpr size_t kLayersOf27B = 62;        // the one size whose query scale follows width / heads

// True for layers with a sliding window.
Result<std::vector<bool>> window_layers(const GgufFile& file, size_t layers) {
  const std::string key = "gemma3.attention.sliding_window_pattern";
  if (auto flags = file.get_bools(key); flags && flags->has_value() && (*flags)->size() > 1) {
    if ((*flags)->size() != layers) {
      return fail(ErrorCode::corrupt, file.name() + ": " + key + " has " + std::to_string((*flags)->size()) +
                                          " entries for " + std::to_string(layers) + " layers");
    }
    return **flags;
  }
  ASSIGN_OR_RETURN(const std::optional<uint64_t> period, file.get_uint(key));
  const uint64_t n = period.value_or(kPeriod);
  if (n == 0) return fail(ErrorCode::corrupt, file.name() + ": " + key + " is 0; expected a period of at least 1");
  std::vector<bool> result(layers);
  for (size_t i = 0; i < layers; ++i) result[i] = (i + 1) % n != 0;
  return result;
}

}  // namespace

Result<ModelConfig> gemma3_config(const GgufFile& file) {
  ASSIGN_OR_RETURN(ModelConfig config, read_common_config(file));
  config.rope_pairs = RopePairs::halves;
  config.attention_bias = Presence::absent;
  config.qk_norm = Presence::required;
  config.post_norms = Presence::required;
  config.activation = Activation::gelu_tanh;
  config.embedding_scale = std::sqrt(static_cast<float>(config.width));

  ASSIGN_OR_RETURN(const std::optional<uint64_t> window, file.get_uint("gemma3.attention.sliding_window"));
  if (!window.has_value() || *window == 0 || *window > UINT32_MAX) {
    return fail(ErrorCode::corrupt,
                file.name() + ": gemma3.attention.sliding_window is missing or not a positive number");
  }
  ASSIGN_OR_RETURN(const std::vector<bool> sliding, window_layers(file, config.layers.size()));
  RopeSpec local;
  local.base = kWindowRopeBase;
  local.dims = config.ropes[0].dims;
  config.ropes.push_back(local);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    LayerConfig& layer = config.layers[i];
    layer.window = sliding[i] ? static_cast<uint32_t>(*window) : 0;
    layer.rope = sliding[i] ? 1 : 0;
    const uint32_t scale_dim = config.layers.size() == kLayersOf27B ? config.width / layer.heads : layer.head_dim;
    layer.scale = 1.0f / std::sqrt(static_cast<float>(scale_dim));
  }
  return config;
}

}  // namespace kvarto

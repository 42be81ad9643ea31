// The tensors of a model, loaded into the backend's layout, by the names that GGUF gives them. Immutable after load.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/config.h"

namespace kvarto {

struct LayerWeights {
  std::unique_ptr<Matrix> q, k, v, output;      // [heads*dim x width], ..., [width x heads*value_dim]
  std::unique_ptr<Matrix> gate, up, down;       // [ffn x width], [ffn x width], [width x ffn]
  std::vector<float> attention_norm, ffn_norm;  // [width]
  // Empty when the model has none.
  std::vector<float> q_bias, k_bias, v_bias, output_bias;
  std::vector<float> q_norm, k_norm;                      // [head_dim]
  std::vector<float> post_attention_norm, post_ffn_norm;  // [width]
};

struct ModelWeights {
  std::unique_ptr<Matrix> embedding;      // [vocabulary x width]
  std::unique_ptr<Matrix> separate_head;  // null: tied to the embedding
  std::vector<float> output_norm;         // [width]
  std::vector<LayerWeights> layers;
  const Matrix& head() const { return separate_head ? *separate_head : *embedding; }
};

// `progress` gets bytes of the file done and in all; may be empty. Errors name the tensor.
Result<ModelWeights> load_weights(const GgufFile& file, const ModelConfig& config, Backend& backend,
                                  const std::function<void(size_t, size_t)>& progress);

}  // namespace kvarto

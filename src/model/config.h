// ModelConfig: everything the forward pass needs to know about a model besides its weights. Data, not behaviour: an
// architecture is a function that fills it from a file (one file each; list.h). Immutable after reading; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/gguf.h"
#include "kvarto/result.h"
#include "kvarto/types.h"
#include "ops/ops.h"
#include "ops/rope_table.h"

namespace kvarto {

enum class Activation : uint8_t { silu, gelu_tanh };
// Whether tensors of a kind are part of a model.
enum class Presence : uint8_t { absent, optional, required };

struct LayerConfig {
  uint32_t heads = 0, kv_heads = 0;
  uint32_t head_dim = 0;  // of q and k
  uint32_t value_dim = 0;
  uint32_t ffn = 0;     // width of the gated feed-forward
  uint32_t window = 0;  // 0: full attention
  uint32_t rope = 0;    // index into ropes
  float scale = 1.0f;   // of q.k
};

struct ModelConfig {
  std::string architecture, name;
  uint32_t width = 0, vocabulary = 0, context_length = 0;
  float rms_eps = 1e-5f;
  float embedding_scale = 1.0f;
  float attention_soft_cap = 0.0f, final_soft_cap = 0.0f;  // 0: none
  Activation activation = Activation::silu;
  RopePairs rope_pairs = RopePairs::neighbours;
  Presence attention_bias = Presence::optional;  // q, k, v (and output, when optional)
  Presence qk_norm = Presence::absent;           // RMS norm per head on q and k, before rope
  Presence post_norms = Presence::absent;        // norms on the branch outputs
  std::vector<RopeSpec> ropes;
  std::vector<LayerConfig> layers;

  KvGeometry kv_geometry() const;
};

// Reads the keys that all architectures share (counts, dims, eps, rope base and scaling) and checks them.
Result<ModelConfig> read_common_config(const GgufFile& file);

// Chooses the architecture's row by general.architecture. Errors: unknown architecture (lists what is known), bad keys.
Result<ModelConfig> read_config(const GgufFile& file);

}  // namespace kvarto

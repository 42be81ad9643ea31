#include "model/weights.h"

namespace kvarto {
namespace {

std::string shape_text(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// Loads tensors by name, checks shapes, reports progress, and knows at the end which tensors nobody asked for.
class Loader {
 public:
  Loader(const GgufFile& file, Backend& backend, const std::function<void(size_t, size_t)>& progress)
      : file_(file), backend_(backend), progress_(progress) {
    for (const GgufTensor& tensor : file.tensors()) {
      unused_.insert(tensor.name);
      total_bytes_ += tensor.bytes.size();
    }
  }

  Status matrix(const std::string& name, uint64_t inputs, uint64_t outputs, std::unique_ptr<Matrix>& into) {
    ASSIGN_OR_RETURN(const GgufTensor* tensor, take(name, {inputs, outputs}, Presence::required));
    ASSIGN_OR_RETURN(into, backend_.load_matrix(file_, *tensor));
    report(*tensor);
    return {};
  }

  Status vector(const std::string& name, uint64_t size, Presence presence, std::vector<float>& into) {
    if (presence == Presence::absent) return {};
    ASSIGN_OR_RETURN(const GgufTensor* tensor, take(name, {size}, presence));
    if (tensor == nullptr) return {};
    ASSIGN_OR_RETURN(into, backend_.load_vector(file_, *tensor));
    report(*tensor);
    return {};
  }

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  void ignore(const std::string& name) {
    if (unused_.erase(name) > 0) total_bytes_ -= file_.find_tensor(name)->bytes.size();  // else progress never ends
  }

  // A tensor that would silently not be used means that the model is not what its architecture key says.
  Status check_all_used() const {
    if (unused_.empty()) return {};
    return fail(ErrorCode::unsupported,
                file_.name() + ": tensor " + *unused_.begin() + " (and " + std::to_string(unused_.size() - 1) +
                    " more) is not part of this architecture as built; the model may be a variant");
  }

 private:
  Result<const GgufTensor*> take(const std::string& name, std::vector<uint64_t> shape, Presence presence) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr) {
      if (presence == Presence::optional) return nullptr;
      return fail(ErrorCode::corrupt, file_.name() + ": tensor " + name + " is missing");
    }
    if (tensor->shape != shape) {
      return fail(ErrorCode::corrupt, file_.name() + ": tensor " + name + " has shape " + shape_text(tensor->shape) +
                                          "; expected " + shape_text(shape));
    }
    unused_.erase(name);
    return tensor;
  }

  void report(const GgufTensor& tensor) {
    done_bytes_ += tensor.bytes.size();
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  const GgufFile& file_;
  Backend& backend_;
  const std::function<void(size_t, size_t)>& progress_;
  std::set<std::string> unused_;
  size_t done_bytes_ = 0, total_bytes_ = 0;
};

Status load_layer(Loader& loader, const ModelConfig& config, size_t index, LayerWeights& layer) {
  const LayerConfig& c = config.layers[index];
  const std::string p = "blk." + std::to_string(index) + ".";
  const uint64_t width = config.width, q = uint64_t{c.heads} * c.head_dim, k = uint64_t{c.kv_heads} * c.head_dim,
                 v = uint64_t{c.kv_heads} * c.value_dim;
  // An output bias exists in a few Llama kin only.
  const Presence output_bias = config.attention_bias == Presence::required ? Presence::optional : config.attention_bias;
  RETURN_IF_ERROR(loader.vector(p + "attn_norm.weight", width, Presence::required, layer.attention_norm));
  RETURN_IF_ERROR(loader.matrix(p + "attn_q.weight", width, q, layer.q));
  RETURN_IF_ERROR(loader.matrix(p + "attn_k.weight", width, k, layer.k));
  RETURN_IF_ERROR(loader.matrix(p + "attn_v.weight", width, v, layer.v));
  RETURN_IF_ERROR(loader.vector(p + "attn_q.bias", q, config.attention_bias, layer.q_bias));
  RETURN_IF_ERROR(loader.vector(p + "attn_k.bias", k, config.attention_bias, layer.k_bias));
  RETURN_IF_ERROR(loader.vector(p + "attn_v.bias", v, config.attention_bias, layer.v_bias));
  RETURN_IF_ERROR(loader.vector(p + "attn_q_norm.weight", c.head_dim, config.qk_norm, layer.q_norm));
  RETURN_IF_ERROR(loader.vector(p + "attn_k_norm.weight", c.head_dim, config.qk_norm, layer.k_norm));
  RETURN_IF_ERROR(loader.matrix(p + "attn_output.weight", uint64_t{c.heads} * c.value_dim, width, layer.output));
  RETURN_IF_ERROR(loader.vector(p + "attn_output.bias", width, output_bias, layer.output_bias));
  RETURN_IF_ERROR(loader.vector(p + "post_attention_norm.weight", width, config.post_norms, layer.post_attention_norm));
  RETURN_IF_ERROR(loader.vector(p + "ffn_norm.weight", width, Presence::required, layer.ffn_norm));
  RETURN_IF_ERROR(loader.matrix(p + "ffn_gate.weight", width, c.ffn, layer.gate));
  RETURN_IF_ERROR(loader.matrix(p + "ffn_up.weight", width, c.ffn, layer.up));
  RETURN_IF_ERROR(loader.matrix(p + "ffn_down.weight", c.ffn, width, layer.down));
  RETURN_IF_ERROR(loader.vector(p + "post_ffw_norm.weight", width, config.post_norms, layer.post_ffn_norm));
  return {};
}

}  // namespace

Result<ModelWeights> load_weights(const GgufFile& file, const ModelConfig& config, Backend& backend,
                                  const std::function<void(size_t, size_t)>& progress) {
  ModelWeights weights;
  Loader loader(file, backend, progress);
  loader.ignore("rope_freqs.weight");  // read with the configuration
  RETURN_IF_ERROR(loader.matrix("token_embd.weight", config.width, config.vocabulary, weights.embedding));
  RETURN_IF_ERROR(loader.vector("output_norm.weight", config.width, Presence::required, weights.output_norm));
  if (loader.has("output.weight")) {
    RETURN_IF_ERROR(loader.matrix("output.weight", config.width, config.vocabulary, weights.separate_head));
  }
  weights.layers.resize(config.layers.size());
  for (size_t i = 0; i < config.layers.size(); ++i) RETURN_IF_ERROR(load_layer(loader, config, i, weights.layers[i]));
  RETURN_IF_ERROR(loader.check_all_used());
  return weights;
}

}  // namespace kvarto

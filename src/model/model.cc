#include "model/model.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/fault.h"
#include "model/weights.h"

namespace kvarto {
namespace {

using KvLayoutPlaces = std::vector<KvLayout::Place>;

// Largest row width of each buffer over all layers.
struct Widths {
  size_t q = 0, k = 0, v = 0, mixed = 0, ffn = 0, h = 0;
  explicit Widths(const ModelConfig& config) {
    for (const LayerConfig& layer : config.layers) {
      q = std::max(q, size_t{layer.heads} * layer.head_dim);
      k = std::max(k, size_t{layer.kv_heads} * layer.head_dim);
      v = std::max(v, size_t{layer.kv_heads} * layer.value_dim);
      mixed = std::max(mixed, size_t{layer.heads} * layer.value_dim);
      ffn = std::max<size_t>(ffn, layer.ffn);
    }
    h = config.width;
  }
};

size_t padded(size_t floats) { return (floats + 15) / 16 * 16; }

// Floats of a row: those that a pass needs from its start to its end, and those of one layer.
size_t kept_floats(const ModelConfig& config) {
  size_t floats = padded(config.width);
  for (const RopeSpec& rope : config.ropes) floats += 2 * padded(rope.dims / 2);
  return floats;
}
size_t layer_floats(const Widths& w) {
  return padded(w.h) + padded(w.q) + padded(w.k) + padded(w.v) + padded(w.mixed) + 2 * padded(w.ffn);
}

class Transformer : public Model {
 public:
  Transformer(ModelConfig config, ModelWeights weights, std::vector<RopeTable> ropes, KvLayoutPlaces places,
              std::shared_ptr<Backend> backend)
      : config_(std::move(config)),
        weights_(std::move(weights)),
        ropes_(std::move(ropes)),
        places_(std::move(places)),
        backend_(std::move(backend)) {}

  const ModelConfig& config() const override { return config_; }

  void run(const Batch& batch, LayerRange range, Workspace& ws, float* hidden) const override {
    const size_t rows = batch.tokens.size();
    if (range.first == 0) begin(batch, ws);
    for (uint32_t i = range.first; i < range.end; ++i) {
      attention(batch, i, ws, rows);
      feed_forward(i, ws, rows);
      if (batch.trace) batch.trace(i + 1, ws.x);
    }
    if (range.end < layers()) return;
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      std::copy_n(ws.x + batch.logit_rows[i] * config_.width, config_.width, hidden + i * config_.width);
    }
    backend_->rms_norm(hidden, batch.logit_rows.size(), config_.width, weights_.output_norm.data(), config_.rms_eps,
                       hidden);
  }

  void logits(const float* hidden, size_t rows, float* out) const override {
    multiply(hidden, rows, {{&weights_.head(), nullptr, out}});
    if (config_.final_soft_cap != 0.0f) backend_->soft_cap(out, rows, config_.vocabulary, config_.final_soft_cap);
  }

  uint64_t saturated_kv_values() const override { return backend_->saturated_values(); }

  size_t pass_bytes() const override {
    size_t bytes = weights_.head().bytes();
    for (const LayerWeights& w : weights_.layers) {
      for (const auto* m : {&w.q, &w.k, &w.v, &w.output, &w.gate, &w.up, &w.down}) bytes += (*m)->bytes();
    }
    return bytes;
  }

 private:
  void begin(const Batch& batch, Workspace& ws) const {
    const size_t rows = batch.tokens.size();
    CHECK(rows <= ws.max_rows,
          "a batch of " + std::to_string(rows) + " rows in a workspace of " + std::to_string(ws.max_rows));
    fill_positions(batch, ws);
    backend_->embed(batch.tokens, *weights_.embedding, config_.embedding_scale, ws.x);
    if (batch.trace) batch.trace(0, ws.x);
  }

  void fill_positions(const Batch& batch, Workspace& ws) const {
    ws.positions.resize(batch.tokens.size());
    for (const BatchSequence& sequence : batch.sequences) {
      const uint64_t first = sequence.first_position - (fault(11) && sequence.first_position > 0 && sequence.count > 1);
      for (uint32_t t = 0; t < sequence.count; ++t) ws.positions[sequence.first_row + t] = first + t;
    }
    for (size_t r = 0; r < ropes_.size(); ++r) backend_->rope_rows(ropes_[r], ws.positions, ws.cos[r], ws.sin[r]);
  }

  // x += output(attention(norm(x))): project, normalise heads, rotate, append to the cache, attend, project back.
  void attention(const Batch& batch, uint32_t index, Workspace& ws, size_t rows) const {
    const LayerConfig& layer = config_.layers[index];
    const LayerWeights& w = weights_.layers[index];
    backend_->rms_norm(ws.x, rows, config_.width, w.attention_norm.data(), config_.rms_eps, ws.h);
    multiply(ws.h, rows,
             {{w.q.get(), data(w.q_bias), ws.q}, {w.k.get(), data(w.k_bias), ws.k}, {w.v.get(), data(w.v_bias), ws.v}});
    if (!w.q_norm.empty()) {
      backend_->rms_norm(ws.q, rows * layer.heads, layer.head_dim, w.q_norm.data(), config_.rms_eps, ws.q);
      backend_->rms_norm(ws.k, rows * layer.kv_heads, layer.head_dim, w.k_norm.data(), config_.rms_eps, ws.k);
    }
    const RopeRows rope{ws.cos[layer.rope], ws.sin[layer.rope], ropes_[layer.rope].pairs()};
    backend_->rope(ws.q, rows, layer.heads, layer.head_dim, config_.rope_pairs, rope);
    backend_->rope(ws.k, rows, layer.kv_heads, layer.head_dim, config_.rope_pairs, rope);
    attend_cache(batch, index, ws);
    multiply(ws.mixed, rows, {{w.output.get(), data(w.output_bias), ws.h}});
    add_branch(ws, rows, w.post_attention_norm);
  }

  void attend_cache(const Batch& batch, uint32_t index, Workspace& ws) const {
    const LayerConfig& layer = config_.layers[index];
    const KvLayoutPlaces::value_type place = places_[index];
    const size_t q = size_t{layer.heads} * layer.head_dim, k = size_t{layer.kv_heads} * layer.head_dim,
                 v = size_t{layer.kv_heads} * layer.value_dim, mixed = size_t{layer.heads} * layer.value_dim;
    ws.append_rows.clear();
    ws.attend_rows.clear();
    for (const BatchSequence& s : batch.sequences) {
      const KvView& view = s.views[place.group];
      ws.append_rows.push_back(
          {&view, place.index, s.first_position, s.count, ws.k + s.first_row * k, k, ws.v + s.first_row * v, v});
      ws.attend_rows.push_back({&view, place.index, s.first_position, s.count, ws.q + s.first_row * q, q,
                                ws.mixed + s.first_row * mixed, mixed});
    }
    backend_->append(ws.append_rows);
    backend_->attend(
        ws.attend_rows,
        {.heads = layer.heads, .scale = layer.scale, .soft_cap = config_.attention_soft_cap, .sinks = nullptr});
  }

  // x += down(act(gate(norm(x))) * up(norm(x))).
  void feed_forward(uint32_t index, Workspace& ws, size_t rows) const {
    const LayerWeights& w = weights_.layers[index];
    const size_t ffn = config_.layers[index].ffn;
    backend_->rms_norm(ws.x, rows, config_.width, w.ffn_norm.data(), config_.rms_eps, ws.h);
    multiply(ws.h, rows, {{w.gate.get(), nullptr, ws.gate}, {w.up.get(), nullptr, ws.up}});
    switch (config_.activation) {
      case Activation::silu:
        backend_->silu_mul(ws.gate, ws.up, rows, ffn, ws.gate);
        break;
      case Activation::gelu_tanh:
        backend_->gelu_mul(ws.gate, ws.up, rows, ffn, ws.gate);
        break;
    }
    multiply(ws.gate, rows, {{w.down.get(), nullptr, ws.h}});
    add_branch(ws, rows, w.post_ffn_norm);
  }

  void add_branch(Workspace& ws, size_t rows, const std::vector<float>& post_norm) const {
    if (!post_norm.empty()) backend_->rms_norm(ws.h, rows, config_.width, post_norm.data(), config_.rms_eps, ws.h);
    backend_->add(ws.h, rows, config_.width, ws.x);
  }

  void multiply(const float* x, size_t rows, std::initializer_list<Product> products) const {
    backend_->matmul(x, rows, {products.begin(), products.size()});
  }

  static const float* data(const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); }

  ModelConfig config_;
  ModelWeights weights_;
  std::vector<RopeTable> ropes_;
  KvLayoutPlaces places_;
  std::shared_ptr<Backend> backend_;
};

}  // namespace

size_t Workspace::bytes(const ModelConfig& config, uint32_t max_rows) {
  return (kept_floats(config) + layer_floats(Widths(config))) * max_rows * sizeof(float);
}

size_t Workspace::bytes_beside(const ModelConfig& config, uint32_t max_rows) {
  return kept_floats(config) * max_rows * sizeof(float);
}

// Lays out what is held through a pass from `next` on; returns what comes behind.
float* Workspace::take_kept(const ModelConfig& config, float* next) {
  const auto take = [&](size_t width) { return std::exchange(next, next + padded(width) * max_rows); };
  x = take(config.width);
  for (const RopeSpec& rope : config.ropes) {
    cos.push_back(take(rope.dims / 2));
    sin.push_back(take(rope.dims / 2));
  }
  positions.reserve(max_rows);
  return next;
}

Result<Workspace> Workspace::make(const ModelConfig& config, uint32_t max_rows, std::shared_ptr<Ledger> ledger) {
  Workspace ws;
  ASSIGN_OR_RETURN(ws.slab_, Slab::allocate(bytes(config, max_rows), MemoryTag::activations, std::move(ledger)));
  ws.max_rows = max_rows;
  float* next = ws.take_kept(config, reinterpret_cast<float*>(ws.slab_.data()));
  const auto take = [&](size_t width) { return std::exchange(next, next + padded(width) * max_rows); };
  const Widths w(config);
  ws.h = take(w.h);
  ws.q = take(w.q);
  ws.k = take(w.k);
  ws.v = take(w.v);
  ws.mixed = take(w.mixed);
  ws.gate = take(w.ffn);
  ws.up = take(w.ffn);
  return ws;
}

Result<Workspace> Workspace::make_beside(const Workspace& other, const ModelConfig& config, uint32_t max_rows,
                                         std::shared_ptr<Ledger> ledger) {
  CHECK(max_rows <= other.max_rows, "a workspace cannot borrow more rows than there are");
  Workspace ws;
  ASSIGN_OR_RETURN(ws.slab_, Slab::allocate(bytes_beside(config, max_rows), MemoryTag::activations, std::move(ledger)));
  ws.max_rows = max_rows;
  ws.take_kept(config, reinterpret_cast<float*>(ws.slab_.data()));
  ws.h = other.h;
  ws.q = other.q;
  ws.k = other.k;
  ws.v = other.v;
  ws.mixed = other.mixed;
  ws.gate = other.gate;
  ws.up = other.up;
  return ws;
}

Result<std::shared_ptr<const Model>> load_model(std::shared_ptr<const GgufFile> file, std::shared_ptr<Backend> backend,
                                                const LoadOptions& options) {
  ASSIGN_OR_RETURN(ModelConfig config, read_config(*file));
  std::vector<RopeTable> ropes;
  for (const RopeSpec& spec : config.ropes) {
    ASSIGN_OR_RETURN(RopeTable table, RopeTable::make(spec));
    ropes.push_back(std::move(table));
  }
  // Which group and index a layer has does not depend on dtypes or block size.
  ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::make(config.kv_geometry(), {}));
  KvLayoutPlaces places;
  for (uint32_t i = 0; i < config.layers.size(); ++i) places.push_back(layout.place(i));
  ASSIGN_OR_RETURN(ModelWeights weights, load_weights(*file, config, *backend, options.progress));
  return std::make_shared<const Transformer>(std::move(config), std::move(weights), std::move(ropes), std::move(places),
                                             std::move(backend));
}

Result<size_t> loaded_weight_bytes(const GgufFile& file, bool reference) {
  size_t bytes = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    ASSIGN_OR_RETURN(const size_t in_memory, cpu_weight_bytes(file, tensor, reference));
    bytes += in_memory;
  }
  return bytes;
}

StepShape step_shape(const ModelConfig& config, uint32_t max_rows) {
  const Widths w(config);
  StepShape shape{.rows = max_rows, .inputs = std::max({w.h, w.mixed, w.ffn}), .attention = {}};
  for (const LayerConfig& layer : config.layers) {
    shape.attention.push_back({layer.heads, layer.kv_heads, layer.head_dim, layer.value_dim});
  }
  return shape;
}

}  // namespace kvarto

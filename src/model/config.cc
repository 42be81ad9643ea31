#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/list.h"

namespace kvarto {
namespace {

// Limits above any real model; they keep later products from overflowing, and plans, whose effort grows with the
// context, from taking long.
constexpr uint64_t kMaxLayers = 4096, kMaxWidth = 1 << 20, kMaxHeads = 4096, kMaxContext = uint64_t{1} << 24;

// Keys of one architecture's section, with the checks every count needs.
class Section {
 public:
  Section(const GgufFile& file, std::string architecture) : file_(file), prefix_(std::move(architecture) + ".") {}

  std::string key(std::string_view suffix) const { return prefix_ + std::string(suffix); }

  // A number in [1, limit]; `fallback` when the key is missing (nullopt: the key is required).
  Result<uint32_t> count(std::string_view suffix, uint64_t limit,
                         std::optional<uint64_t> fallback = std::nullopt) const {
    ASSIGN_OR_RETURN(const std::optional<uint64_t> found, file_.get_uint(key(suffix)));
    if (!found.has_value() && !fallback.has_value()) {
      return fail(ErrorCode::corrupt, file_.name() + ": key " + key(suffix) + " is missing");
    }
    return checked(suffix, found.value_or(fallback.value_or(0)), limit);
  }

  // One number for all layers, or one per layer.
  Result<std::vector<uint32_t>> per_layer(std::string_view suffix, size_t layers, uint64_t limit,
                                          std::optional<uint64_t> fallback = std::nullopt) const {
    ASSIGN_OR_RETURN(const auto found, file_.get_uints(key(suffix)));
    if (!found.has_value() || found->size() == 1) {
      ASSIGN_OR_RETURN(const uint32_t one, count_or_single(suffix, found, limit, fallback));
      return std::vector<uint32_t>(layers, one);
    }
    if (found->size() != layers) {
      return fail(ErrorCode::corrupt, file_.name() + ": key " + key(suffix) + " has " + std::to_string(found->size()) +
                                          " entries for " + std::to_string(layers) + " layers");
    }
    std::vector<uint32_t> result;
    for (const uint64_t value : *found) {
      ASSIGN_OR_RETURN(const uint32_t checked_value, checked(suffix, value, limit));
      result.push_back(checked_value);
    }
    return result;
  }

  // A finite number > 0.
  Result<double> positive(std::string_view suffix, std::optional<double> fallback = std::nullopt) const {
    ASSIGN_OR_RETURN(const std::optional<double> found, file_.get_float(key(suffix)));
    if (!found.has_value() && !fallback.has_value()) {
      return fail(ErrorCode::corrupt, file_.name() + ": key " + key(suffix) + " is missing");
    }
    const double value = found.value_or(fallback.value_or(0));
    if (!std::isfinite(value) || value <= 0) {
      return fail(ErrorCode::corrupt, file_.name() + ": key " + key(suffix) + " is " + std::to_string(value) +
                                          "; expected a finite number above 0");
    }
    return value;
  }

  Result<std::string> text(std::string_view suffix, std::string_view fallback) const {
    ASSIGN_OR_RETURN(const auto found, file_.get_string(key(suffix)));
    return std::string(found.value_or(fallback));
  }

 private:
  Result<uint32_t> checked(std::string_view suffix, uint64_t value, uint64_t limit) const {
    if (value < 1 || value > limit) {
      return fail(ErrorCode::corrupt, file_.name() + ": key " + key(suffix) + " is " + std::to_string(value) +
                                          "; expected 1 to " + std::to_string(limit) + " (a damaged file?)");
    }
    return static_cast<uint32_t>(value);
  }
  Result<uint32_t> count_or_single(std::string_view suffix, const std::optional<std::vector<uint64_t>>& found,
                                   uint64_t limit, std::optional<uint64_t> fallback) const {
    if (found.has_value()) return checked(suffix, found->front(), limit);
    return count(suffix, limit, fallback);
  }

  const GgufFile& file_;
  std::string prefix_;
};

Result<RopeSpec> read_rope(const GgufFile& file, const Section& section, uint32_t head_dim) {
  RopeSpec rope;
  ASSIGN_OR_RETURN(rope.dims, section.count("rope.dimension_count", head_dim, head_dim));
  ASSIGN_OR_RETURN(rope.base, section.positive("rope.freq_base", 10000.0));
  ASSIGN_OR_RETURN(const std::string type, section.text("rope.scaling.type", "none"));
  if (type == "linear") {
    rope.scaling = RopeSpec::Scaling::linear;
    ASSIGN_OR_RETURN(rope.factor, section.positive("rope.scaling.factor", 1.0));
  } else if (type == "yarn") {
    rope.scaling = RopeSpec::Scaling::yarn;
    ASSIGN_OR_RETURN(rope.factor, section.positive("rope.scaling.factor"));
    ASSIGN_OR_RETURN(rope.original_context, section.count("rope.scaling.original_context_length", kMaxContext));
    ASSIGN_OR_RETURN(rope.attention_factor, section.positive("rope.scaling.attn_factor", 1.0));
  } else if (type != "none") {
    return fail(ErrorCode::unsupported, file.name() + ": key " + section.key("rope.scaling.type") + " is \"" + type +
                                            "\"; built are none, linear and yarn");
  }
  if (const GgufTensor* divisors = file.find_tensor("rope_freqs.weight")) {
    if (std::string_view(divisors->type->name) != "F32" || divisors->elements != rope.dims / 2) {
      return fail(ErrorCode::corrupt, file.name() + ": tensor rope_freqs.weight must be F32 with " +
                                          std::to_string(rope.dims / 2) + " values");
    }
    rope.divisors.resize(rope.dims / 2);
    std::memcpy(rope.divisors.data(), divisors->bytes.data(), divisors->bytes.size());
  }
  RETURN_IF_ERROR(RopeTable::make(rope));
  return rope;
}

Result<uint32_t> read_vocabulary(const GgufFile& file) {
  const GgufTensor* table = file.find_tensor("token_embd.weight");
  if (table == nullptr || table->shape.size() != 2) {
    return fail(ErrorCode::corrupt, file.name() + ": tensor token_embd.weight is missing or not two-dimensional");
  }
  if (table->shape[1] < 1 || table->shape[1] > (uint64_t{1} << 24)) {
    return fail(ErrorCode::corrupt, file.name() + ": tensor token_embd.weight has " + std::to_string(table->shape[1]) +
                                        " rows; expected 1 to 2^24");
  }
  return static_cast<uint32_t>(table->shape[1]);
}

}  // namespace

KvGeometry ModelConfig::kv_geometry() const {
  KvGeometry geometry;
  for (const LayerConfig& layer : layers) {
    geometry.layers.push_back({.kind = layer.window == 0 ? GroupKind::full : GroupKind::window,
                               .window = layer.window,
                               .kv_heads = layer.kv_heads,
                               .key_dim = layer.head_dim,
                               .value_dim = layer.value_dim});
  }
  return geometry;
}

Result<ModelConfig> read_common_config(const GgufFile& file) {
  ModelConfig config;
  ASSIGN_OR_RETURN(const auto architecture, file.get_string("general.architecture"));
  config.architecture = std::string(architecture.value_or(""));
  ASSIGN_OR_RETURN(const auto name, file.get_string("general.name"));
  config.name = std::string(name.value_or(""));
  const Section section(file, config.architecture);

  ASSIGN_OR_RETURN(const uint32_t layers, section.count("block_count", kMaxLayers));
  ASSIGN_OR_RETURN(config.width, section.count("embedding_length", kMaxWidth));
  ASSIGN_OR_RETURN(config.context_length, section.count("context_length", kMaxContext));
  ASSIGN_OR_RETURN(config.vocabulary, read_vocabulary(file));
  ASSIGN_OR_RETURN(const double eps, section.positive("attention.layer_norm_rms_epsilon"));
  config.rms_eps = static_cast<float>(eps);
  ASSIGN_OR_RETURN(const auto ffn, section.per_layer("feed_forward_length", layers, kMaxWidth));
  ASSIGN_OR_RETURN(const auto heads, section.per_layer("attention.head_count", layers, kMaxHeads));

  config.layers.resize(layers);
  for (uint32_t i = 0; i < layers; ++i) {
    LayerConfig& layer = config.layers[i];
    layer.heads = heads[i];
    layer.ffn = ffn[i];
  }
  ASSIGN_OR_RETURN(const auto kv_heads, section.per_layer("attention.head_count_kv", layers, kMaxHeads, heads[0]));
  ASSIGN_OR_RETURN(const auto head_dim, section.count("attention.key_length", 8192, config.width / heads[0]));
  ASSIGN_OR_RETURN(const auto value_dim, section.count("attention.value_length", 8192, config.width / heads[0]));
  if (!file.has(section.key("attention.key_length")) && config.width % heads[0] != 0) {
    return fail(ErrorCode::corrupt, file.name() + ": embedding_length " + std::to_string(config.width) +
                                        " is not a multiple of head_count " + std::to_string(heads[0]) +
                                        " and attention.key_length is missing");
  }
  for (uint32_t i = 0; i < layers; ++i) {
    LayerConfig& layer = config.layers[i];
    layer.kv_heads = kv_heads[i];
    layer.head_dim = head_dim;
    layer.value_dim = value_dim;
    layer.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    if (layer.heads % layer.kv_heads != 0) {
      return fail(ErrorCode::corrupt, file.name() + ": layer " + std::to_string(i) + " has " +
                                          std::to_string(layer.heads) + " heads, not a multiple of its " +
                                          std::to_string(layer.kv_heads) + " KV heads");
    }
  }
  ASSIGN_OR_RETURN(RopeSpec rope, read_rope(file, section, head_dim));
  config.ropes.push_back(std::move(rope));
  return config;
}

Result<ModelConfig> read_config(const GgufFile& file) {
  ASSIGN_OR_RETURN(const auto architecture, file.get_string("general.architecture"));
  if (!architecture.has_value()) return fail(ErrorCode::corrupt, file.name() + ": key general.architecture is missing");
  std::string known;
  for (const Architecture& row : architectures()) {
    if (row.name == *architecture) return row.config(file);
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return fail(ErrorCode::unsupported,
              file.name() + ": architecture \"" + std::string(*architecture) + "\" is not built; built are " + known);
}

}  // namespace kvarto

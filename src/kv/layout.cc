#include "kv/layout.h"

#include <algorithm>
#include <string>

#include "codec/list.h"

namespace kvarto {
namespace {

constexpr size_t kTileAlign = 64;
constexpr uint32_t kLanes = 16;

constexpr size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

std::string_view role_name(PlaneRole role) {
  switch (role) {
    case PlaneRole::scored:
      return "scored";
    case PlaneRole::mixed:
      return "mixed";
    case PlaneRole::both:
      return "both";
  }
  return "?";
}

Status check_options(const KvLayoutOptions& options) {
  const uint32_t b = options.block_tokens;
  if (b != 16 && b != 32 && b != 64 && b != 128 && b != 256) {
    return fail(
        ErrorCode::invalid_argument,
        "block size " + std::to_string(b) +
            " is not one of 16, 32, 64, 128, 256: kernels work in sub-tiles of 16 tokens and attention splits at "
            "multiples of 256 positions; choose one of these");
  }
  if (!codec_info(options.auto_dtype).identity) {
    return fail(ErrorCode::invalid_argument, "open blocks cannot be kept as " +
                                                 std::string(codec_info(options.auto_dtype).name) +
                                                 "; choose float16, bfloat16 or float32");
  }
  return {};
}

Status check_layer(const LayerKv& layer, size_t index) {
  const std::string at = "layer " + std::to_string(index);
  if (layer.kind == GroupKind::state) {
    return fail(ErrorCode::unsupported,
                at + " keeps a recurrent state, which is not built yet; models with attention layers only run");
  }
  if (layer.kind == GroupKind::window && layer.window == 0) {
    return fail(ErrorCode::invalid_argument, at + " has a sliding window of 0 tokens; a window holds at least 1");
  }
  if (layer.kv_heads == 0 || layer.key_dim == 0) {
    return fail(ErrorCode::invalid_argument, at + " has " + std::to_string(layer.kv_heads) + " KV heads of " +
                                                 std::to_string(layer.key_dim) + " key dims; both must be at least 1");
  }
  const bool latent = layer.kind == GroupKind::latent;
  if (latent && (layer.kv_heads != 1 || layer.value_dim != 0)) {
    return fail(ErrorCode::invalid_argument, at + " is latent and has " + std::to_string(layer.kv_heads) +
                                                 " KV heads and " + std::to_string(layer.value_dim) +
                                                 " value dims; a latent is one row, its own value (1 and 0)");
  }
  if (!latent && (layer.value_dim == 0 || layer.rope_dim != 0)) {
    return fail(ErrorCode::invalid_argument,
                at + " has " + std::to_string(layer.value_dim) + " value dims and " + std::to_string(layer.rope_dim) +
                    " separate rope dims; it needs values, and only latents split rope off");
  }
  return {};
}

// The type of a tile before it is sealed: the codec's own where sealing keeps the bits, else the 16-bit type of the
// model.
KvDtype raw_type(KvDtype dtype, const KvLayoutOptions& options) {
  return codec_info(dtype).identity ? dtype : options.auto_dtype;
}

KvPlane make_plane(PlaneRole role, uint32_t dims, KvDtype dtype, const KvLayoutOptions& options) {
  KvPlane plane;
  plane.role = role;
  plane.dims = dims;
  plane.padded_dims = static_cast<uint32_t>(round_up(dims, kLanes));
  plane.dtype = dtype;
  plane.raw_dtype = raw_type(dtype, options);
  const auto bytes = [&](KvDtype type) {
    return round_up(codec_info(type).tile_bytes(options.block_tokens, plane.padded_dims), kTileAlign);
  };
  plane.tile_bytes = bytes(plane.dtype);
  plane.raw_tile_bytes = bytes(plane.raw_dtype);
  return plane;
}

KvGroupLayer make_group_layer(const LayerKv& layer, uint32_t index, const KvLayoutOptions& options) {
  KvGroupLayer out;
  out.layer = index;
  out.kv_heads = layer.kv_heads;
  if (layer.kind == GroupKind::latent) {
    out.planes.push_back(make_plane(PlaneRole::both, layer.key_dim, options.k_dtype, options));
    // The rotated part is never quantised: it carries the positions.
    if (layer.rope_dim > 0) {
      out.planes.push_back(make_plane(PlaneRole::scored, layer.rope_dim, raw_type(options.k_dtype, options), options));
    }
  } else {
    out.planes.push_back(make_plane(PlaneRole::scored, layer.key_dim, options.k_dtype, options));
    out.planes.push_back(make_plane(PlaneRole::mixed, layer.value_dim, options.v_dtype, options));
  }
  for (KvPlane& plane : out.planes) {
    plane.offset = out.head_stride;
    plane.raw_offset = out.raw_head_stride;
    out.head_stride += plane.tile_bytes;
    out.raw_head_stride += plane.raw_tile_bytes;
  }
  return out;
}

void append_layer(KvGroup& group, KvGroupLayer layer) {
  layer.offset = group.block_bytes;
  layer.raw_offset = group.tail_bytes;
  group.block_bytes += layer.head_stride * layer.kv_heads;
  group.tail_bytes += layer.raw_bytes();
  group.layers.push_back(std::move(layer));
}

bool seals_in_place(const KvGroup& group, const KvLayoutOptions& options) {
  if (options.separate_tails) return false;
  for (const KvGroupLayer& layer : group.layers) {
    for (const KvPlane& plane : layer.planes) {
      if (plane.dtype != plane.raw_dtype) return false;
    }
  }
  return true;
}

}  // namespace

std::string_view group_kind_name(GroupKind kind) {
  switch (kind) {
    case GroupKind::full:
      return "full";
    case GroupKind::window:
      return "window";
    case GroupKind::latent:
      return "latent";
    case GroupKind::state:
      return "state";
  }
  return "?";
}

Result<std::optional<KvDtype>> parse_kv_dtype(std::string_view name) {
  if (name == "auto") return std::optional<KvDtype>();
  if (const CodecInfo* codec = find_codec(name)) return std::optional(codec->dtype);
  std::string known = "auto";
  for (const CodecInfo& codec : codec_list()) known += ", " + std::string(codec.name);
  return fail(ErrorCode::invalid_argument, "KV dtype \"" + std::string(name) + "\" is not known; choose one of " +
                                               known + ", or leave it out, which is auto: float16 for a GGUF model");
}

std::string_view kv_dtype_name(KvDtype dtype) { return codec_info(dtype).name; }

std::string_view miss_reason_name(MissReason reason) {
  switch (reason) {
    case MissReason::none:
      return "none";
    case MissReason::no_match:
      return "no_match";
    case MissReason::shorter_than_block:
      return "shorter_than_block";
    case MissReason::evicted:
      return "evicted";
    case MissReason::salt:
      return "salt";
    case MissReason::disabled:
      return "disabled";
  }
  return "?";
}

Result<KvLayout> KvLayout::make(const KvGeometry& geometry, const KvLayoutOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  if (geometry.layers.empty()) {
    return fail(ErrorCode::invalid_argument, "a geometry of 0 layers has no KV; give at least 1 layer");
  }
  KvLayout layout;
  layout.options_ = options;
  for (size_t i = 0; i < geometry.layers.size(); ++i) {
    const LayerKv& layer = geometry.layers[i];
    RETURN_IF_ERROR(check_layer(layer, i));
    const uint32_t window = layer.kind == GroupKind::window ? layer.window : 0;
    auto group = std::ranges::find_if(layout.groups_,
                                      [&](const KvGroup& g) { return g.kind == layer.kind && g.window == window; });
    if (group == layout.groups_.end()) {
      group = layout.groups_.insert(group, KvGroup{.kind = layer.kind, .window = window, .layers = {}});
    }
    layout.places_.push_back(
        {static_cast<uint32_t>(group - layout.groups_.begin()), static_cast<uint32_t>(group->layers.size())});
    append_layer(*group, make_group_layer(layer, static_cast<uint32_t>(i), options));
  }
  for (KvGroup& group : layout.groups_) group.tail_is_block = seals_in_place(group, options);
  return layout;
}

size_t KvLayout::bytes_per_token() const {
  size_t block_bytes = 0;
  for (const KvGroup& group : groups_) block_bytes += group.block_bytes;
  return ceil_div(block_bytes, block_tokens());
}

size_t KvLayout::bytes_for_sequence(uint64_t tokens, uint32_t chunk_tokens) const {
  size_t bytes = 0;
  for (const KvGroup& group : groups_) {
    const GroupNeed need = group_need(group, block_tokens(), tokens, chunk_tokens);
    bytes += need.blocks * group.block_bytes + need.tails * group.tail_bytes;
  }
  return bytes;
}

std::string KvLayout::description() const {
  std::string out = "kv-layout-1 block_tokens=" + std::to_string(block_tokens());
  for (const KvGroup& group : groups_) {
    out += " group(" + std::string(group_kind_name(group.kind));
    if (group.kind == GroupKind::window) out += " window=" + std::to_string(group.window);
    out += " bytes=" + std::to_string(group.block_bytes);
    for (const KvGroupLayer& layer : group.layers) {
      out += " layer(" + std::to_string(layer.layer) + " heads=" + std::to_string(layer.kv_heads);
      for (const KvPlane& plane : layer.planes) {
        out += " " + std::string(role_name(plane.role)) + "=" + std::to_string(plane.dims) + ":" +
               std::string(kv_dtype_name(plane.dtype)) + ":" + std::string(kv_dtype_name(plane.raw_dtype));
      }
      out += ")";
    }
    out += ")";
  }
  return out;
}

GroupNeed group_need(const KvGroup& group, uint32_t block_tokens, uint64_t tokens, uint32_t chunk_tokens) {
  const uint64_t chunk = std::clamp<uint64_t>(chunk_tokens, 1, std::max<uint64_t>(tokens, 1));
  uint64_t touched = ceil_div(tokens, block_tokens);  // blocks with a token in them
  uint64_t whole = tokens / block_tokens;
  if (group.kind == GroupKind::window) {
    // The oldest query of a step sees window - 1 tokens before itself: these and the chunk, at the worst alignment.
    const uint64_t span = uint64_t{group.window} - 1 + chunk;
    const uint64_t at_once = ceil_div(span - 1, block_tokens) + 1;
    touched = std::min(touched, at_once);
    whole = std::min(whole, at_once);
  }
  if (group.tail_is_block) return {.blocks = touched, .tails = 0};
  // A step that fills the open block and opens the next holds both tails.
  const bool crosses = chunk > 1 && tokens > block_tokens;
  return {.blocks = whole, .tails = tokens == 0 ? 0u : crosses ? 2u : 1u};
}

size_t metadata_bytes(const KvLayout& layout, size_t arena_bytes) {
  constexpr size_t kRecord = 32;  // BlockPool: record and slot
  constexpr size_t kTable = 64;   // a sequence's id, address and hash
  constexpr size_t kNode = 128;   // PrefixIndex: node and hash map
  constexpr size_t kEntry = 96;   // PrefixIndex: entry and its place in a queue
  size_t smallest = SIZE_MAX;
  for (const KvGroup& group : layout.groups()) smallest = std::min(smallest, group.block_bytes);
  const size_t node = kNode + layout.block_tokens() * sizeof(TokenId) + layout.groups().size() * kEntry;
  return arena_bytes / smallest * (kRecord + kTable + node);
}

}  // namespace kvarto

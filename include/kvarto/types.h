// The plain types everything else is said in: ids, KV dtypes, the geometry of a model's KV, and KvLayout, the one place
// where bytes of KV are computed (for the planner and for the allocator alike). Immutable after make(); any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/result.h"

namespace kvarto {

using TokenId = int32_t;
using BlockId = uint32_t;
inline constexpr BlockId kNoBlock = 0xffffffffu;

// How K or V is stored. One row per value in codec/list.h.
enum class KvDtype : uint8_t { f32, f16, bf16 };
// "auto" is not a dtype: the model says which 16-bit type it means (f16 for GGUF).
Result<std::optional<KvDtype>> parse_kv_dtype(std::string_view name);  // nullopt = auto
std::string_view kv_dtype_name(KvDtype dtype);                         // "float16"

// Retention rule of a group of layers.
enum class GroupKind : uint8_t {
  full,    // every token stays
  window,  // only the last `window` tokens are ever seen
  latent,  // one shared row per token (MLA); stays like full
  state,   // recurrent state, no tokens; its block is a snapshot
};
std::string_view group_kind_name(GroupKind kind);  // "full"
// scored: keys (dot products with queries); mixed: values (weighted sums); both: latents.
enum class PlaneRole : uint8_t { scored, mixed, both };

// What one layer of a model keeps per token.
struct LayerKv {
  GroupKind kind = GroupKind::full;
  uint32_t window = 0;     // tokens, the current one included; window layers only
  uint32_t kv_heads = 0;   // latent: 1
  uint32_t key_dim = 0;    // latent: dims of the latent
  uint32_t value_dim = 0;  // latent: 0
  uint32_t rope_dim = 0;   // latent only: dims of the rope plane
  size_t state_bytes = 0;  // state only
};
struct KvGeometry {
  std::vector<LayerKv> layers;  // [layers of the model]
};

// One plane of one layer: its tiles hold block_tokens tokens x padded_dims values.
struct KvPlane {
  PlaneRole role = PlaneRole::scored;
  uint32_t dims = 0;
  uint32_t padded_dims = 0;          // dims rounded up to 16; the padding is zeros and is counted
  KvDtype dtype = KvDtype::f16;      // of the sealed tile
  KvDtype raw_dtype = KvDtype::f16;  // of the open tail and of scratch
  size_t offset = 0;                 // of the sealed tile behind the head's first tile, bytes
  size_t raw_offset = 0;
  size_t tile_bytes = 0;  // a multiple of 64
  size_t raw_tile_bytes = 0;
};
struct KvGroupLayer {
  uint32_t layer = 0;  // index in the model
  uint32_t kv_heads = 0;
  std::vector<KvPlane> planes;
  size_t offset = 0, raw_offset = 0;            // of the layer's tiles inside a block / a tail
  size_t head_stride = 0, raw_head_stride = 0;  // bytes of one head's tiles
  size_t raw_bytes() const { return raw_head_stride * kv_heads; }
};
struct KvGroup {
  GroupKind kind = GroupKind::full;
  uint32_t window = 0;
  std::vector<KvGroupLayer> layers;
  size_t block_bytes = 0;  // sealed block, a multiple of 64
  size_t tail_bytes = 0;   // open block
  // True when sealing changes nothing (every plane's dtype is its raw dtype): the tail becomes the sealed block in
  // place.
  bool tail_is_block = false;
};

struct KvLayoutOptions {
  uint32_t block_tokens = 16;  // 16, 32, 64, 128 or 256
  KvDtype k_dtype = KvDtype::f16;
  KvDtype v_dtype = KvDtype::f16;
  KvDtype auto_dtype = KvDtype::f16;  // the raw type under codecs that are not 16 or 32 bit floats
  // Keeps tails apart and copies on sealing even where the codec would allow sealing in place (equivalence tests).
  bool separate_tails = false;
};

class KvLayout {
 public:
  // Layers with the same kind, window and shape rule share a group; groups are ordered by their first layer.
  static Result<KvLayout> make(const KvGeometry& geometry, const KvLayoutOptions& options);

  uint32_t block_tokens() const { return options_.block_tokens; }
  const KvLayoutOptions& options() const { return options_; }
  std::span<const KvGroup> groups() const { return groups_; }
  uint32_t layer_count() const { return static_cast<uint32_t>(places_.size()); }
  struct Place {
    uint32_t group, index;  // groups()[group].layers[index]
  };
  Place place(uint32_t layer) const { return places_[layer]; }

  // Bytes one more token costs in the long run: sum over groups of block_bytes / block_tokens, window groups included.
  size_t bytes_per_token() const;
  // Bytes of blocks and tails that one sequence of `tokens` tokens holds while it runs (window groups: what the window
  // and a prefill chunk of `chunk_tokens` need at most).
  size_t bytes_for_sequence(uint64_t tokens, uint32_t chunk_tokens) const;
  // Canonical text of everything that decides bytes and meaning of a block; part of the namespace of block names.
  std::string description() const;

 private:
  KvLayoutOptions options_;
  std::vector<KvGroup> groups_;
  std::vector<Place> places_;
};

// Why a request found fewer cached tokens than it might have.
enum class MissReason : uint8_t { none, no_match, shorter_than_block, evicted, salt, disabled };
std::string_view miss_reason_name(MissReason reason);  // "no_match"

}  // namespace kvarto

// Codecs: how a tile of K or V is stored once sealed. One KV dtype = one file here + one line in list.h. A codec is a
// static description (CodecInfo, for layout, planner and docs) and kernels compiled per SIMD target (the file's
// HWY_NAMESPACE part, instantiated by kv/attend and kv/append). Any thread.
//
// Inside a tile, sub-tiles of 16 tokens ascend. A scored plane's sub-tile is [padded_dims][16 tokens], a mixed plane's
// [16 tokens][padded_dims]; a plane that is both is stored as scored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvarto/types.h"

namespace kvarto {

struct CodecInfo {
  KvDtype dtype;
  std::string_view name;                      // vLLM's word: "float16"
  std::span<const std::string_view> aliases;  // "f16", "fp16", "half"
  uint32_t bits;                              // per value, scales not counted
  bool identity;                              // sealing keeps the raw bits: the codec is its own raw type
  size_t (*tile_bytes)(uint32_t tokens, uint32_t padded_dims);  // before rounding up to 64
};

}  // namespace kvarto

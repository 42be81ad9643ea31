// KvView: what attention kernels see of one sequence in one group: plain addresses and counts, valid for one engine
// step. Built by KvCache on the owner's thread, read by every worker. A token attends blocks before its own as sealed
// tiles, and its own block as a raw tile; `blocks` and `raw` hold the two kinds of address.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvarto/types.h"

namespace kvarto {

// Where the raw (unsealed) tiles of one block are during a step: the sequence's tail, the block itself (when sealing is
// the identity), or scratch that is reused by every layer.
struct RawBlock {
  std::byte* base = nullptr;
  bool one_layer = false;  // scratch: holds the tiles of the layer being computed only
};

// One list of blocks. All layers and heads of a group share one, unless eviction made the sequence ragged.
struct KvList {
  std::byte* const* blocks =
      nullptr;                    // [block index]; sealed blocks; null where the window has moved on, or not sealed yet
  const RawBlock* raw = nullptr;  // [block index - first_raw]; blocks that this step's tokens lie in
  uint32_t first_raw = 0;
  uint64_t tokens = 0;  // visible at the end of the step: first new token + count
};

struct KvView {
  const KvGroup* group = nullptr;
  uint32_t block_tokens = 16;
  const KvList* lists = nullptr;
  uint32_t list_stride = 0;  // 0: one list for all; else lists[layer_in_group * list_stride + head]

  const KvList& list(uint32_t layer, uint32_t head) const {
    return lists[list_stride == 0 ? 0 : layer * list_stride + head];
  }
  // First byte of a sealed tile; `layer` counts inside the group.
  std::byte* tile(uint32_t layer, uint32_t head, uint32_t plane, uint32_t block) const {
    const KvGroupLayer& l = group->layers[layer];
    return list(layer, head).blocks[block] + l.offset + head * l.head_stride + l.planes[plane].offset;
  }
  // First byte of a raw tile of one of the step's own blocks.
  std::byte* raw_tile(uint32_t layer, uint32_t head, uint32_t plane, uint32_t block) const {
    const KvGroupLayer& l = group->layers[layer];
    const KvList& places = list(layer, head);
    const RawBlock& raw = places.raw[block - places.first_raw];
    return raw.base + (raw.one_layer ? 0 : l.raw_offset) + head * l.raw_head_stride + l.planes[plane].raw_offset;
  }
};

}  // namespace kvarto

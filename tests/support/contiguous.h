// The reference of "paged = contiguous": one sequence whose K/V lie in one plain buffer in order of position, in blocks
// of 256 tokens, without pool, index or tables. Feeds Model::forward through the same KvView as the real cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "kv/view.h"
#include "model/model.h"

namespace kvarto::testing {

class ContiguousCache {
 public:
  ContiguousCache(const KvGeometry& geometry, KvDtype dtype, uint64_t max_tokens, uint32_t block_tokens = 256)
      : layout_(KvLayout::make(geometry, {.block_tokens = block_tokens, .k_dtype = dtype, .v_dtype = dtype}).value()) {
    const uint64_t blocks = (max_tokens + block_tokens - 1) / block_tokens;
    for (const KvGroup& group : layout_.groups()) {
      CHECK(group.tail_is_block, "the reference seals in place");
      Group& g = groups_.emplace_back();
      g.memory.resize(group.block_bytes * blocks + 64);
      auto* base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(g.memory.data()) + 63) / 64 * 64);
      for (uint64_t b = 0; b < blocks; ++b) {
        g.blocks.push_back(base + b * group.block_bytes);
        g.raw.push_back({.base = g.blocks.back()});
      }
    }
  }

  const KvLayout& layout() const { return layout_; }
  uint64_t length() const { return length_; }

  // Views for computing `count` more tokens; the caller computes them and then calls advance(count).
  std::span<const KvView> views(uint32_t count) {
    views_.clear();
    for (size_t i = 0; i < groups_.size(); ++i) {
      groups_[i].list = {
          .blocks = groups_[i].blocks.data(), .raw = groups_[i].raw.data(), .first_raw = 0, .tokens = length_ + count};
      views_.push_back({.group = &layout_.groups()[i],
                        .block_tokens = layout_.block_tokens(),
                        .lists = &groups_[i].list,
                        .list_stride = 0});
    }
    return views_;
  }
  void advance(uint32_t count) { length_ += count; }

 private:
  struct Group {
    std::vector<std::byte> memory;
    std::vector<std::byte*> blocks;
    std::vector<RawBlock> raw;
    KvList list;
  };
  KvLayout layout_;
  std::vector<Group> groups_;
  std::vector<KvView> views_;
  uint64_t length_ = 0;
};

}  // namespace kvarto::testing

// For tests of kv/ only: plain block memory, and stand-ins for the attention kernels that write a mark for every token
// into every tile and check the marks that a token would attend. A mark depends on the whole prefix, the salt and the
// tile's place, so a block shared, freed, moved or sealed wrongly shows.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "kv/view.h"
#include "kvarto/kv_cache.h"

namespace kvarto::testing {

class PlainMemory : public BlockMemory {
 public:
  Result<std::byte*> reserve_arena(size_t bytes) override { return grow(arena_, bytes); }
  Result<std::byte*> reserve_scratch(size_t bytes) override { return grow(scratch_, bytes); }
  Status charge_metadata(size_t) override { return {}; }
  Fence copy(std::byte* to, const std::byte* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    ++copies;
    return {};
  }
  Fence gather(std::byte* to, std::span<const std::span<const std::byte>> pieces) override {
    for (const auto& piece : pieces) to = std::copy(piece.begin(), piece.end(), to);
    return {};
  }
  Fence stage_out(std::span<std::byte> host, const std::byte* block) override {
    std::memcpy(host.data(), block, host.size());
    return {};
  }
  Fence stage_in(std::byte* block, std::span<const std::byte> host) override {
    std::memcpy(block, host.data(), host.size());
    return {};
  }
  void wait(Fence) override {}
  int copies = 0;

 private:
  // Filled with a pattern that is no mark.
  static std::byte* grow(std::unique_ptr<std::byte[]>& area, size_t bytes) {
    area.reset(new std::byte[bytes]);
    std::memset(area.get(), 0xa5, bytes);
    return area.get();
  }
  std::unique_ptr<std::byte[]> arena_, scratch_;
};

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

// [token] a value of everything up to and including the token.
inline std::vector<uint64_t> prefix_values(std::span<const TokenId> tokens, std::string_view salt) {
  uint64_t value = 7;
  for (const char c : salt) value = mix(value, static_cast<uint8_t>(c) + 1000);
  std::vector<uint64_t> out;
  for (const TokenId token : tokens) out.push_back(value = mix(value, static_cast<uint64_t>(token)));
  return out;
}

inline uint64_t mark_of(uint64_t prefix, uint32_t layer, uint32_t head, uint32_t plane) {
  return mix(prefix, layer * 10000u + head * 100u + plane);
}

// Where token `at` of a tile has its mark. The tests read no numbers, so tokens simply follow each other.
inline std::byte* mark_place(std::byte* tile, size_t tile_bytes, uint32_t block_tokens, uint64_t at) {
  return tile + at * (tile_bytes / block_tokens);
}

inline bool has_mark(const std::byte* place, uint64_t mark) { return std::memcmp(place, &mark, sizeof(mark)) == 0; }

// One layer of a step as the real kernels do it: write raw rows, seal what the step fills, then look at everything each
// row attends. Returns what is wrong, or nothing.
inline std::string fake_layer(const KvView& view, uint32_t layer, uint64_t first, std::span<const uint64_t> prefix) {
  const uint32_t b = view.block_tokens;
  const KvGroupLayer& l = view.group->layers[layer];
  const std::string where = "layer " + std::to_string(l.layer) + " position ";
  for (uint32_t head = 0; head < l.kv_heads; ++head) {
    for (uint32_t plane = 0; plane < l.planes.size(); ++plane) {
      const KvPlane& p = l.planes[plane];
      const KvList& list = view.list(layer, head);
      const auto mark = [&](uint64_t position) { return mark_of(prefix[position], l.layer, head, plane); };
      for (uint64_t t = first; t < list.tokens; ++t) {
        const uint64_t value = mark(t);
        std::byte* tile = view.raw_tile(layer, head, plane, static_cast<uint32_t>(t / b));
        std::memcpy(mark_place(tile, p.raw_tile_bytes, b, t % b), &value, sizeof(value));
      }
      if (!view.group->tail_is_block) {
        for (uint64_t i = first / b; i < list.tokens / b; ++i) {
          const std::byte* raw = view.raw_tile(layer, head, plane, static_cast<uint32_t>(i));
          std::memcpy(view.tile(layer, head, plane, static_cast<uint32_t>(i)), raw, p.tile_bytes);
        }
      }
      for (uint64_t t = first; t < list.tokens; ++t) {
        const uint64_t from =
            view.group->kind == GroupKind::window && t + 1 > view.group->window ? t + 1 - view.group->window : 0;
        for (uint64_t k = from; k <= t; ++k) {
          const uint32_t i = static_cast<uint32_t>(k / b);
          if (k / b != t / b && list.blocks[i] == nullptr) return where + std::to_string(k) + " is gone";
          std::byte* tile = k / b == t / b ? view.raw_tile(layer, head, plane, i) : view.tile(layer, head, plane, i);
          if (!has_mark(mark_place(tile, p.tile_bytes, b, k % b), mark(k))) {
            return where + std::to_string(k) + " is wrong, seen from " + std::to_string(t);
          }
        }
      }
    }
  }
  return {};
}

// All layers of a step whose tokens are reserved; `prefix` covers them.
inline std::string fake_forward(std::span<const KvView> views, const KvLayout& layout, uint64_t first,
                                std::span<const uint64_t> prefix) {
  for (uint32_t layer = 0; layer < layout.layer_count(); ++layer) {
    const KvLayout::Place place = layout.place(layer);
    std::string wrong = fake_layer(views[place.group], place.index, first, prefix);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

inline LayerKv full_layer(uint32_t heads = 2, uint32_t dim = 16) {
  return {.kind = GroupKind::full, .kv_heads = heads, .key_dim = dim, .value_dim = dim};
}
inline LayerKv window_layer(uint32_t window, uint32_t heads = 1, uint32_t dim = 16) {
  return {.kind = GroupKind::window, .window = window, .kv_heads = heads, .key_dim = dim, .value_dim = dim};
}
inline LayerKv latent_layer(uint32_t latent, uint32_t rope) {
  return {.kind = GroupKind::latent, .kv_heads = 1, .key_dim = latent, .rope_dim = rope};
}

}  // namespace kvarto::testing

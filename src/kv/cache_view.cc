// CacheCore's part that is only looked at: events, the map of blocks, near misses.
#include <algorithm>

#include "kv/cache_core.h"

namespace kvarto {

KvEvents CacheCore::take_events() { return store_->take_events(); }

// --- the map of blocks

// What the tables say of the blocks they hold: [block id] the group, and whether the block is still open.
std::vector<CacheCore::Holder> CacheCore::holders() const {
  std::vector<Holder> out(store_->pool().id_bound());
  for (const KvSequenceState* s = sequences_; s != nullptr; s = s->next) {
    const uint64_t whole = s->length() / block_tokens();
    for (uint32_t g = 0; g < group_count(); ++g) {
      const GroupTable& table = s->groups[g];
      for (uint64_t i = table.first; i < table.ids.size(); ++i) {
        if (table.ids[i] != kNoBlock) out[table.ids[i]] = {.group = g, .open = i >= whole};
      }
      if (table.tail != kNoBlock) out[table.tail] = {.group = g, .open = true};
      if (table.next_tail != kNoBlock) out[table.next_tail] = {.group = g, .open = true};
    }
  }
  return out;
}

BlockCell CacheCore::cell(BlockId id, std::span<const Holder> holders, uint64_t now) const {
  const BlockPool& pool = store_->pool();
  BlockCell cell{.references = pool.refs(id)};
  cell.named = pool.tag(id) != BlockPool::kNoTag;
  cell.group = cell.named ? store_->index().entry(pool.tag(id)).group : holders[id].group;
  cell.state = BlockCell::State::cached;
  if (cell.references > 0) cell.state = holders[id].open ? BlockCell::State::open : BlockCell::State::active;
  if (const BlockLives* lives = store_->lives()) {
    cell.age_us = now - lives->taken_us(id);
    cell.idle_us = cell.references > 0 ? 0 : now - lives->used_us(id);
  }
  return cell;
}

void CacheCore::block_map(std::vector<BlockCell>& out) const {
  const BlockPool& pool = store_->pool();
  const std::vector<Holder> held = holders();
  const uint64_t now = store_->lives() != nullptr ? store_->lives()->now() : 0;
  out.clear();
  for (uint32_t slab = 0; slab < pool.slab_count(); ++slab) {
    const BlockPool::SlabUse use = pool.slab(slab);
    const bool empty = use.size_class == BlockPool::kNone;
    const uint32_t size_class = empty ? classes_[0].block : use.size_class;
    const uint32_t slots = empty ? pool.slots(slab, size_class) : use.slots;
    for (uint32_t i = 0; i < slots; ++i) {
      const BlockId id = empty ? kNoBlock : pool.block_at(slab, i);
      out.push_back(id == kNoBlock ? BlockCell{} : cell(id, held, now));
      out.back().bytes = pool.class_bytes(size_class);
    }
  }
}

// --- near misses

std::optional<NearMiss> CacheCore::nearest(std::span<const TokenId> prompt, const OpenOptions& options) const {
  if (!options_.prefix_caching || !options.read_cache) return std::nullopt;
  const PrefixIndex& index = store_->index();
  const BlockHash root = adapter_root(options.adapter);
  BlockHash hash = root;
  NodeId node = kNoNode;
  uint64_t known = 0;  // blocks
  while ((known + 1) * block_tokens() <= prompt.size()) {
    hash = block_hash(prompt, known, hash, options.cache_salt);
    const NodeId next = index.find(hash, block_of(prompt, known));
    if (next == kNoNode) break;
    node = next;
    ++known;
  }
  const std::span<const TokenId> whole_rest = prompt.subspan(known * block_tokens());
  const std::span<const TokenId> rest = whole_rest.first(std::min<size_t>(whole_rest.size(), block_tokens()));
  const PrefixIndex::Child child = index.closest_child(node, options.cache_salt, rest, root);
  if (child.node == kNoNode || child.common == rest.size()) return std::nullopt;
  if (known == 0 && child.common == 0) return std::nullopt;
  return NearMiss{.matched_tokens = known * block_tokens(),
                  .common_tokens = child.common,
                  .known_token = index.tokens(child.node)[child.common]};
}

}  // namespace kvarto

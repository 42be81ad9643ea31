// CacheCore's part that walks everything: the audit that tests call after every operation, and the change detector.
#include <map>

#include "kv/cache_core.h"
#include "kv/layout.h"

namespace kvarto {

// Every reference the pool counts is held by a table, and the other way round.
std::string CacheCore::audit_references() const {
  std::map<BlockId, uint32_t> refs;
  for (const KvSequenceState* s = sequences_; s != nullptr; s = s->next) {
    for (const GroupTable& table : s->groups) {
      for (const BlockId id : table.ids) ++refs[id];
      ++refs[table.tail];
      ++refs[table.next_tail];
    }
  }
  refs.erase(kNoBlock);
  for (const auto& [id, count] : refs) {
    if (!store_->pool().taken(id)) return "block " + std::to_string(id) + " is in use and free";
    if (store_->pool().refs(id) != count) return "block " + std::to_string(id) + ": references miscounted";
  }
  if (refs.size() != store_->pool().active_blocks()) return "active blocks that no sequence holds";
  return {};
}

// Every tag leads to an entry with this block, every entry to a tagged block.
std::string CacheCore::audit_names() const {
  const BlockPool& pool = store_->pool();
  const PrefixIndex& index = store_->index();
  uint64_t named = 0;
  std::vector<BlockId> blocks;
  for (uint32_t slab = 0; slab < pool.slab_count(); ++slab) {
    pool.blocks_of(slab, blocks);
    for (const BlockId id : blocks) {
      if (pool.tag(id) == BlockPool::kNoTag) continue;
      ++named;
      const IndexEntry entry = index.entry(pool.tag(id));
      if (index.block(entry.node, entry.group) != id) return "block " + std::to_string(id) + " has a name not its own";
      if (pool.size_class(id) != classes_[entry.group].block) return "a named block of the wrong size";
    }
  }
  if (named != index.entry_count()) return "names without a block";
  return {};
}

std::string CacheCore::audit_sequence(const KvSequenceState& s) const {
  const uint64_t b = block_tokens();
  const uint64_t whole = s.length() / b, reach = s.end() / b;
  const uint64_t touched = (s.end() + b - 1) / b;
  if (options_.prefix_caching && s.hashes.size() != whole) return "a sequence's hashes do not match its length";
  for (uint32_t g = 0; g < group_count(); ++g) {
    const GroupTable& table = s.groups[g];
    const bool in_place = group(g).tail_is_block;
    if (table.ids.size() != (in_place ? touched : reach)) return "a table's length does not match its tokens";
    if (table.addresses.size() != (s.reserved > 0 ? touched : table.ids.size())) return "addresses do not match ids";
    if (table.first != first_visible_block(group(g), block_tokens(), s.length())) return "a window is not where it was";
    if ((table.tail != kNoBlock) != (!in_place && s.length() % b != 0)) return "a tail without an open block, or none";
    for (uint64_t i = 0; i < table.ids.size(); ++i) {
      const BlockId id = table.ids[i];
      if ((id == kNoBlock) != (i < table.first)) return "a block is missing, or kept behind the window";
      if (table.addresses[i] != (id == kNoBlock ? nullptr : store_->pool().address(id))) return "a stale address";
      if (i >= whole && (store_->pool().refs(id) != 1 || store_->pool().tag(id) != BlockPool::kNoTag)) {
        return "an open block is shared or named";
      }
      if (id == kNoBlock || store_->pool().tag(id) == BlockPool::kNoTag) continue;
      const IndexEntry entry = store_->index().entry(store_->pool().tag(id));
      if (entry.group != g || store_->index().find(s.hashes[i], block_of(s.tokens, i)) != entry.node) {
        return "a block is named after other tokens";
      }
    }
    if (table.tail != kNoBlock && store_->pool().refs(table.tail) != 1) return "a tail is shared";
  }
  return {};
}

std::string CacheCore::audit_live() const {
  uint64_t scratch = free_scratch_.size();
  for (uint32_t g = 0; g < group_count(); ++g) {
    std::map<BlockId, bool> sealed;
    uint64_t open = 0;
    for (const KvSequenceState* s = sequences_; s != nullptr; s = s->next) {
      for (uint64_t i = 0; i < s->length() / block_tokens(); ++i) sealed[s->groups[g].ids[i]] = true;
      open += s->length() % block_tokens();
    }
    sealed.erase(kNoBlock);
    if (sealed.size() != live_[g].sealed || open != live_[g].open_tokens) return "live bytes are off";
  }
  for (const KvSequenceState* s = sequences_; s != nullptr; s = s->next) scratch += s->scratch.size();
  if (scratch != scratch_slots_) return "scratch slots are lost";
  const KvCacheStats now = stats();
  if (now.live_bytes > now.active_bytes) return "more live bytes than active ones";
  return {};
}

std::string CacheCore::audit() const {
  if (std::string wrong = store_->pool().audit(); !wrong.empty()) return "pool: " + wrong;
  if (std::string wrong = store_->index().audit(); !wrong.empty()) return "index: " + wrong;
  if (std::string wrong = audit_references(); !wrong.empty()) return wrong;
  if (std::string wrong = audit_names(); !wrong.empty()) return wrong;
  for (const KvSequenceState* s = sequences_; s != nullptr; s = s->next) {
    if (std::string wrong = audit_sequence(*s); !wrong.empty()) return wrong;
  }
  return audit_live();
}

std::string CacheCore::hash_blocks(const KvSequenceState& s) const {
  Sha256 sha;
  std::vector<std::byte> host;
  for (uint32_t g = 0; g < group_count(); ++g) {
    host.resize(group(g).block_bytes);
    for (uint64_t i = s.groups[g].first; i < s.length() / block_tokens(); ++i) {
      BlockMemory& memory = store_->memory();
      memory.wait(memory.stage_out(host, store_->pool().address(s.groups[g].ids[i])));
      sha.update(std::span<const std::byte>(host));
    }
  }
  return to_hex(sha.finish());
}

}  // namespace kvarto

#include "kv/block_store.h"

#include <algorithm>

#include "base/check.h"
#include "base/fault.h"

namespace kvarto {

BlockStore::BlockStore(BlockPool pool, PrefixIndex index, std::shared_ptr<BlockMemory> memory,
                       std::function<void(uint32_t)> moved)
    : pool_(std::move(pool)), index_(std::move(index)), memory_(std::move(memory)), moved_(std::move(moved)) {}

void BlockStore::watch(std::unique_ptr<EventLog> events, std::unique_ptr<BlockLives> lives) {
  events_ = std::move(events);
  lives_ = std::move(lives);
}

std::optional<BlockId> BlockStore::take(uint32_t size_class) {
  for (;;) {
    if (const std::optional<BlockId> id = pool_.take(size_class)) {
      if (lives_ != nullptr) lives_->taken(*id);
      return id;
    }
    if (!replace_one(size_class) && !empty_a_slab(size_class)) return std::nullopt;
  }
}

bool BlockStore::has_bytes_for(std::span<const uint64_t> counts) const {
  size_t bytes = 0;
  for (uint32_t c = 0; c < counts.size(); ++c) bytes += counts[c] * pool_.class_bytes(c);
  return bytes <= pool_.free_bytes() + pool_.cached_bytes();
}

bool BlockStore::hold(NodeId node, uint32_t group) {
  const BlockId id = index_.block(node, group);
  const bool was_idle = pool_.refs(id) == 0;
  pool_.add_ref(id);
  index_.set_busy(node, group);
  if (lives_ != nullptr) lives_->hit(id, group);
  return was_idle;
}

bool BlockStore::drop(BlockId id) {
  if (fault(1)) return false;
  const uint32_t tag = pool_.tag(id);
  if (!pool_.drop_ref(id)) return false;
  if (lives_ != nullptr) lives_->given_back(id);
  if (tag != BlockPool::kNoTag) index_.set_idle(index_.entry(tag).node, index_.entry(tag).group);
  return true;
}

void BlockStore::name(NodeId node, uint32_t group, BlockId id) {
  if (index_.block(node, group) != kNoBlock || pool_.tag(id) != BlockPool::kNoTag) return;
  index_.attach(node, group, id);
  pool_.set_tag(id, index_.tag(node, group));
  if (events_ != nullptr) events_->stored(index_, node, group);
}

void BlockStore::forget(IndexEntry entry) {
  const BlockId id = index_.block(entry.node, entry.group);
  if (events_ != nullptr) events_->removed(index_.hash(entry.node), entry.group);
  index_.detach(entry.node, entry.group);
  pool_.clear_tag(id);
}

void BlockStore::replace(IndexEntry entry) {
  index_.remember_replaced(index_.hash(entry.node));
  const BlockId id = index_.block(entry.node, entry.group);
  if (!clearing_ && pool_.refs(id) == 0) {
    ++replaced_;
    if (lives_ != nullptr) lives_->replaced(id, entry.group);
  }
  forget(entry);
}

// Descendants go first: none of them can be found without the block. One that is in use loses its name only.
void BlockStore::replace_with_descendants(BlockId id) {
  const IndexEntry top = index_.entry(pool_.tag(id));
  std::vector<IndexEntry> entries;
  index_.subtree(top.node, top.group, entries);
  for (const IndexEntry& entry : entries) replace(entry);
}

// The usual way is the queue. An idle block can be missing from it when a descendant is in use by a sequence that
// computed its own copy of this one.
bool BlockStore::replace_one(uint32_t size_class) {
  if (const std::optional<IndexEntry> entry = index_.best(size_class)) {
    replace(*entry);
    return true;
  }
  if (pool_.cached_blocks(size_class) == 0) return false;
  std::vector<BlockId> blocks;
  for (uint32_t slab = 0; slab < pool_.slab_count(); ++slab) {
    if (pool_.slab(slab).size_class != size_class || pool_.slab(slab).cached == 0) continue;
    pool_.blocks_of(slab, blocks);
    replace_with_descendants(*std::ranges::find_if(blocks, [&](BlockId id) { return pool_.refs(id) == 0; }));
    return true;
  }
  return false;
}

// --- slabs that change their class

bool BlockStore::empty_a_slab(uint32_t for_class) {
  std::optional<uint32_t> slab = idle_slab(for_class);
  if (!slab) slab = movable_slab(for_class);
  if (!slab) return false;
  std::vector<BlockId> blocks;
  pool_.blocks_of(*slab, blocks);
  for (const BlockId id : blocks) {
    if (pool_.taken(id) && pool_.refs(id) == 0) replace_with_descendants(id);
  }
  if (pool_.slab(*slab).active > 0) move_blocks_out(*slab);
  return true;
}

// Of the slabs with nothing in use, the one whose newest block is the oldest.
std::optional<uint32_t> BlockStore::idle_slab(uint32_t for_class) const {
  std::optional<uint32_t> best;
  uint64_t best_use = 0;
  std::vector<BlockId> blocks;
  for (uint32_t slab = 0; slab < pool_.slab_count(); ++slab) {
    const BlockPool::SlabUse use = pool_.slab(slab);
    if (use.size_class == BlockPool::kNone || use.size_class == for_class) continue;
    if (use.active > 0 || pool_.slots(slab, for_class) == 0) continue;
    pool_.blocks_of(slab, blocks);
    uint64_t newest = 0;
    for (const BlockId id : blocks) {
      const IndexEntry entry = index_.entry(pool_.tag(id));
      newest = std::max(newest, index_.last_use(entry.node, entry.group));
    }
    if (!best || newest < best_use) {
      best = slab;
      best_use = newest;
    }
  }
  return best;
}

// Of the slabs whose blocks in use find room in the other slabs of their class (free or idle), the one with the fewest.
std::optional<uint32_t> BlockStore::movable_slab(uint32_t for_class) const {
  std::vector<uint64_t> room(pool_.class_count(), 0);
  for (uint32_t slab = 0; slab < pool_.slab_count(); ++slab) {
    const BlockPool::SlabUse use = pool_.slab(slab);
    if (use.size_class != BlockPool::kNone) room[use.size_class] += use.slots - use.active;
  }
  std::optional<uint32_t> best;
  for (uint32_t slab = 0; slab < pool_.slab_count(); ++slab) {
    const BlockPool::SlabUse use = pool_.slab(slab);
    if (use.size_class == BlockPool::kNone || use.size_class == for_class || pool_.slots(slab, for_class) == 0)
      continue;
    if (room[use.size_class] < use.slots) continue;  // room elsewhere = room - (slots - active), for `active` blocks
    if (!best || use.active < pool_.slab(*best).active) best = slab;
  }
  return best;
}

void BlockStore::move_blocks_out(uint32_t slab) {
  const uint32_t size_class = pool_.slab(slab).size_class;
  std::vector<BlockId> blocks;
  pool_.blocks_of(slab, blocks);
  pool_.close(slab);
  for (const BlockId id : blocks) {
    std::optional<BlockPool::Move> move;
    while (!(move = pool_.move_out(id)))
      CHECK(replace_one(size_class), "no room for blocks that were found to have room");
    memory_->wait(memory_->copy(move->to, move->from, move->bytes));
  }
  moved_(size_class);
}

void BlockStore::clear() {
  const EventLog::Mark before = events_ != nullptr ? events_->mark() : EventLog::Mark{};
  clearing_ = true;
  for (uint32_t c = 0; c < pool_.class_count(); ++c) {
    while (replace_one(c)) {
    }
  }
  clearing_ = false;
  index_.forget_replaced();
  if (events_ != nullptr && index_.entry_count() == 0) events_->cleared(before);
}

}  // namespace kvarto

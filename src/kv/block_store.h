// Pool and prefix index kept in step: takes blocks, replacing what nobody uses, and names them. Owned by CacheCore; the
// owner's thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/memory.h"
#include "kv/block_lives.h"
#include "kv/block_pool.h"
#include "kv/event_log.h"
#include "kv/prefix_index.h"

namespace kvarto {

class BlockStore {
 public:
  // `moved(size_class)` is called after blocks of that class changed their addresses.
  BlockStore(BlockPool pool, PrefixIndex index, std::shared_ptr<BlockMemory> memory,
             std::function<void(uint32_t)> moved);

  // From here on events and lives are recorded; null where nobody asks for them.
  void watch(std::unique_ptr<EventLog> events, std::unique_ptr<BlockLives> lives);
  KvEvents take_events() { return events_ == nullptr ? KvEvents{} : events_->take(index_); }
  const BlockLives* lives() const { return lives_.get(); }

  const BlockPool& pool() const { return pool_; }
  const PrefixIndex& index() const { return index_; }
  BlockMemory& memory() const { return *memory_; }

  // A block with one reference. In this order: free or in an empty slab; the idle block of the class whose turn it is;
  // a slab of another class with nothing in use, the least recently used first; a slab that runs empty when its blocks
  // in use are moved together. So whatever fits an empty arena fits one where nothing else is in use.
  std::optional<BlockId> take(uint32_t size_class);
  // Whether there are bytes for `counts` [class] more blocks, free or idle. Necessary, not sufficient: slabs may be
  // split badly between classes.
  bool has_bytes_for(std::span<const uint64_t> counts) const;

  // A hit: one more reference to a named block; true when nobody held it before.
  bool hold(NodeId node, uint32_t group);
  void share(BlockId id) { pool_.add_ref(id); }
  // One reference less; true when it was the last (the block is cached when named, else free).
  bool drop(BlockId id);

  // A node of the index for the block of tokens after `parent`; see PrefixIndex::add.
  NodeId add_node(NodeId parent, const BlockHash& hash, std::span<const TokenId> tokens, std::string_view salt,
                  const BlockHash& root) {
    return index_.add(parent, hash, tokens, salt, root);
  }
  // Names a block in use. A name that is taken stays where it is and the block stays private.
  void name(NodeId node, uint32_t group, BlockId id);

  void clear();  // all idle blocks, without counting them as replaced
  uint64_t replaced_blocks() const { return replaced_; }

 private:
  void forget(IndexEntry entry);
  void replace(IndexEntry entry);
  void replace_with_descendants(BlockId id);
  bool replace_one(uint32_t size_class);
  bool empty_a_slab(uint32_t for_class);
  std::optional<uint32_t> idle_slab(uint32_t for_class) const;
  std::optional<uint32_t> movable_slab(uint32_t for_class) const;
  void move_blocks_out(uint32_t slab);

  BlockPool pool_;
  PrefixIndex index_;
  std::shared_ptr<BlockMemory> memory_;
  std::function<void(uint32_t)> moved_;
  std::unique_ptr<EventLog> events_;
  std::unique_ptr<BlockLives> lives_;
  bool clearing_ = false;
  uint64_t replaced_ = 0;
};

}  // namespace kvarto

// The arena, cut into slabs, cut into blocks: ids, reference counts, tags and running totals in bytes. Knows nothing of
// tokens, names or groups. Owned by BlockStore; the owner's thread only. Addresses are computed, never dereferenced.
//
// A slab serves one block size (a "size class") at a time and may change it while it is empty. A block id is a handle:
// the block behind it can be moved to another slab (move_out), its address changes, its id does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvarto/types.h"

namespace kvarto {

class BlockPool {
 public:
  static constexpr uint32_t kNoTag = 0xffffffffu;
  static constexpr uint32_t kNone = 0xffffffffu;

  // 8 blocks of the largest size, or up to 2 MiB in arenas of at least 64 MiB (1/32 of smaller ones); a whole number of
  // the largest size. Where several sizes share the arena there are at least 4 slabs per size if one block each allows
  // it, so that a small arena still serves them all. The last slab may be shorter and serves what fits.
  static size_t slab_bytes(size_t arena_bytes, std::span<const size_t> class_bytes);

  // `class_bytes`: distinct multiples of 64, at least one. `bytes`: a multiple of 64.
  BlockPool(std::byte* arena, size_t bytes, std::vector<size_t> class_bytes);

  uint32_t class_count() const { return static_cast<uint32_t>(class_bytes_.size()); }
  size_t class_bytes(uint32_t size_class) const { return class_bytes_[size_class]; }

  // A block with one reference, from a slab of its class or an empty slab; nullopt when neither has room. O(1).
  std::optional<BlockId> take(uint32_t size_class);
  // One more reference; a cached block becomes active again.
  void add_ref(BlockId id);
  // One less. With the last one a tagged block becomes cached, any other is free; true when it was the last.
  bool drop_ref(BlockId id);
  // A tag says that somebody can find the block again. Clearing the tag of a cached block frees it.
  void set_tag(BlockId id, uint32_t tag);
  void clear_tag(BlockId id);

  bool taken(BlockId id) const { return id < records_.size() && records_[id].slab != kNone; }
  uint32_t refs(BlockId id) const { return records_[id].refs; }
  uint32_t tag(BlockId id) const { return records_[id].tag; }
  uint32_t size_class(BlockId id) const { return slabs_[records_[id].slab].size_class; }
  std::byte* address(BlockId id) const { return slot_address(records_[id].slab, records_[id].slot); }

  // Whether `counts` blocks [class] fit into the arena when nothing else is in it, whatever the order of taking and
  // giving.
  bool fits(std::span<const uint64_t> counts) const;

  struct SlabUse {
    uint32_t size_class = kNone;  // kNone: empty
    uint32_t slots = 0, active = 0, cached = 0;
  };
  uint32_t slab_count() const { return static_cast<uint32_t>(slabs_.size()); }
  SlabUse slab(uint32_t slab) const;
  uint32_t slots(uint32_t slab, uint32_t size_class) const;  // blocks of that size it could hold
  BlockId block_at(uint32_t slab, uint32_t slot) const { return slot_block_[size_t{slab} * max_slots_ + slot]; }
  BlockId id_bound() const { return static_cast<BlockId>(records_.size()); }  // every id is below it
  void blocks_of(uint32_t slab, std::vector<BlockId>& out) const;
  // Nothing new lands in a closed slab; it opens again when it runs empty. For emptying it with move_out.
  void close(uint32_t slab);
  // Gives the block a place outside its (closed) slab and tells both addresses; the caller copies the bytes.
  struct Move {
    std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  std::optional<Move> move_out(BlockId id);

  size_t arena_bytes() const { return arena_bytes_; }
  size_t free_bytes() const { return free_bytes_; }
  size_t active_bytes() const { return active_bytes_; }
  size_t cached_bytes() const { return cached_bytes_; }
  size_t remainder_bytes() const { return remainder_bytes_; }
  uint64_t active_blocks() const { return active_blocks_; }
  uint64_t cached_blocks() const { return cached_blocks_; }
  uint64_t cached_blocks(uint32_t size_class) const { return cached_of_class_[size_class]; }
  uint64_t active_blocks(uint32_t size_class) const { return active_of_class_[size_class]; }
  bool balanced() const { return free_bytes_ + active_bytes_ + cached_bytes_ + remainder_bytes_ == arena_bytes_; }
  // Recounts everything; empty when all is well.
  std::string audit() const;

 private:
  struct Record {
    uint32_t slab = kNone, slot = 0;
    uint32_t refs = 0;
    uint32_t tag = kNoTag;
  };
  struct Slab {
    uint32_t size_class = kNone;
    uint32_t slots = 0;  // of its class
    uint32_t active = 0, cached = 0;
    uint32_t fresh = 0;                   // slots from here on were never used since the slab took its class
    uint32_t free_slot = kNone;           // head of the list of given back slots
    uint32_t prev = kNone, next = kNone;  // in its class's list of slabs with room
    bool listed = false, closed = false;
  };
  struct Slot {
    uint32_t slab, slot;
  };

  std::byte* slot_address(uint32_t slab, uint32_t slot) const;
  size_t slab_size(uint32_t slab) const;
  size_t remainder_of(uint32_t slab) const;
  std::optional<Slot> take_slot(uint32_t size_class);
  void give_slot(Slot place);
  std::optional<uint32_t> pop_empty(uint32_t size_class);
  void assign(uint32_t slab, uint32_t size_class);
  void unassign(uint32_t slab);
  void list(uint32_t slab);
  void unlist(uint32_t slab);
  void free_block(BlockId id);
  void count_active(BlockId id, int sign);
  void count_cached(BlockId id, int sign);
  std::string audit_slab(uint32_t slab) const;

  std::byte* arena_;
  size_t arena_bytes_;
  std::vector<size_t> class_bytes_;
  size_t slab_bytes_;
  uint32_t max_slots_;  // of any slab, at the smallest class
  std::vector<Slab> slabs_;
  std::vector<BlockId> slot_block_;    // [slab * max_slots_ + slot]: who is there, kNoBlock when free
  std::vector<uint32_t> slot_next_;    // [slab * max_slots_ + slot]: next free slot
  std::vector<uint32_t> empty_slabs_;  // full-sized, without a class
  bool short_slab_empty_ = false;      // the same for the last, shorter one
  std::vector<uint32_t> room_;         // [class] head of the list of slabs with room
  std::vector<Record> records_;
  std::vector<BlockId> free_ids_;
  std::vector<uint64_t> cached_of_class_, active_of_class_;
  size_t free_bytes_ = 0, active_bytes_ = 0, cached_bytes_ = 0, remainder_bytes_ = 0;
  uint64_t active_blocks_ = 0, cached_blocks_ = 0;
};

}  // namespace kvarto

#include "kv/block_pool.h"

#include <algorithm>

#include "base/check.h"

namespace kvarto {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kSlabBlocks = 8;
constexpr size_t kSlabBytes = size_t{2} << 20;
constexpr size_t kArenaShare = 32;
constexpr size_t kSlabsPerClass = 4;

}  // namespace

size_t BlockPool::slab_bytes(size_t arena_bytes, std::span<const size_t> class_bytes) {
  const size_t largest = *std::ranges::max_element(class_bytes);
  size_t bytes = std::max(kSlabBlocks * largest, std::min(kSlabBytes, arena_bytes / kArenaShare));
  if (class_bytes.size() > 1) bytes = std::min(bytes, arena_bytes / (kSlabsPerClass * class_bytes.size()));
  return std::max(bytes / largest, size_t{1}) * largest;
}

BlockPool::BlockPool(std::byte* arena, size_t bytes, std::vector<size_t> class_bytes)
    : arena_(arena), arena_bytes_(bytes), class_bytes_(std::move(class_bytes)) {
  CHECK(!class_bytes_.empty() && bytes % kAlign == 0, "a pool needs block sizes and whole lines");
  for (const size_t size : class_bytes_) CHECK(size > 0 && size % kAlign == 0, "block sizes are multiples of 64");
  slab_bytes_ = slab_bytes(bytes, class_bytes_);
  max_slots_ = static_cast<uint32_t>(slab_bytes_ / *std::ranges::min_element(class_bytes_));
  const size_t full = bytes / slab_bytes_;
  short_slab_empty_ = bytes % slab_bytes_ != 0;
  slabs_.resize(full + (short_slab_empty_ ? 1 : 0));
  slot_block_.assign(slabs_.size() * max_slots_, kNoBlock);
  slot_next_.assign(slabs_.size() * max_slots_, kNone);
  for (size_t i = full; i > 0; --i) empty_slabs_.push_back(static_cast<uint32_t>(i - 1));
  room_.assign(class_bytes_.size(), kNone);
  cached_of_class_.assign(class_bytes_.size(), 0);
  active_of_class_.assign(class_bytes_.size(), 0);
  records_.reserve(slot_block_.size());
  free_ids_.reserve(slot_block_.size());
  free_bytes_ = bytes;
}

std::byte* BlockPool::slot_address(uint32_t slab, uint32_t slot) const {
  return arena_ + slab * slab_bytes_ + slot * class_bytes_[slabs_[slab].size_class];
}

size_t BlockPool::slab_size(uint32_t slab) const { return std::min(slab_bytes_, arena_bytes_ - slab * slab_bytes_); }

uint32_t BlockPool::slots(uint32_t slab, uint32_t size_class) const {
  return static_cast<uint32_t>(slab_size(slab) / class_bytes_[size_class]);
}

size_t BlockPool::remainder_of(uint32_t slab) const {
  return slab_size(slab) - slabs_[slab].slots * class_bytes_[slabs_[slab].size_class];
}

// --- slabs

// The short slab goes first where it serves at all: the others stay whole for whoever needs them.
std::optional<uint32_t> BlockPool::pop_empty(uint32_t size_class) {
  const uint32_t last = slab_count() - 1;
  if (short_slab_empty_ && slots(last, size_class) > 0) {
    short_slab_empty_ = false;
    return last;
  }
  if (empty_slabs_.empty()) return std::nullopt;
  const uint32_t slab = empty_slabs_.back();
  empty_slabs_.pop_back();
  return slab;
}

void BlockPool::assign(uint32_t slab, uint32_t size_class) {
  slabs_[slab] = Slab{.size_class = size_class, .slots = slots(slab, size_class)};
  remainder_bytes_ += remainder_of(slab);
  free_bytes_ -= remainder_of(slab);
  list(slab);
}

void BlockPool::unassign(uint32_t slab) {
  if (slabs_[slab].listed) unlist(slab);
  remainder_bytes_ -= remainder_of(slab);
  free_bytes_ += remainder_of(slab);
  slabs_[slab] = Slab{};
  if (slab_size(slab) < slab_bytes_) {
    short_slab_empty_ = true;
  } else {
    empty_slabs_.push_back(slab);
  }
}

void BlockPool::list(uint32_t slab) {
  Slab& s = slabs_[slab];
  s.listed = true;
  s.prev = kNone;
  s.next = room_[s.size_class];
  if (s.next != kNone) slabs_[s.next].prev = slab;
  room_[s.size_class] = slab;
}

void BlockPool::unlist(uint32_t slab) {
  Slab& s = slabs_[slab];
  s.listed = false;
  (s.prev == kNone ? room_[s.size_class] : slabs_[s.prev].next) = s.next;
  if (s.next != kNone) slabs_[s.next].prev = s.prev;
}

void BlockPool::close(uint32_t slab) {
  slabs_[slab].closed = true;
  if (slabs_[slab].listed) unlist(slab);
}

std::optional<BlockPool::Slot> BlockPool::take_slot(uint32_t size_class) {
  if (room_[size_class] == kNone) {
    const std::optional<uint32_t> empty = pop_empty(size_class);
    if (!empty) return std::nullopt;
    assign(*empty, size_class);
  }
  const uint32_t slab = room_[size_class];
  Slab& s = slabs_[slab];
  uint32_t slot = s.free_slot;
  if (slot != kNone) {
    s.free_slot = slot_next_[slab * max_slots_ + slot];
  } else {
    slot = s.fresh++;
  }
  if (s.free_slot == kNone && s.fresh == s.slots) unlist(slab);
  free_bytes_ -= class_bytes_[size_class];
  return Slot{slab, slot};
}

void BlockPool::give_slot(Slot place) {
  Slab& s = slabs_[place.slab];
  slot_block_[place.slab * max_slots_ + place.slot] = kNoBlock;
  slot_next_[place.slab * max_slots_ + place.slot] = s.free_slot;
  s.free_slot = place.slot;
  free_bytes_ += class_bytes_[s.size_class];
  if (s.active + s.cached == 0) {
    unassign(place.slab);
  } else if (!s.listed && !s.closed) {
    list(place.slab);
  }
}

// --- blocks

void BlockPool::count_active(BlockId id, int sign) {
  Slab& s = slabs_[records_[id].slab];
  s.active += sign;
  active_bytes_ += sign * class_bytes_[s.size_class];
  active_blocks_ += sign;
  active_of_class_[s.size_class] += sign;
}

void BlockPool::count_cached(BlockId id, int sign) {
  Slab& s = slabs_[records_[id].slab];
  s.cached += sign;
  cached_bytes_ += sign * class_bytes_[s.size_class];
  cached_blocks_ += sign;
  cached_of_class_[s.size_class] += sign;
}

std::optional<BlockId> BlockPool::take(uint32_t size_class) {
  const std::optional<Slot> place = take_slot(size_class);
  if (!place) return std::nullopt;
  BlockId id;
  if (free_ids_.empty()) {
    id = static_cast<BlockId>(records_.size());
    records_.emplace_back();
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  records_[id] = Record{.slab = place->slab, .slot = place->slot, .refs = 1, .tag = kNoTag};
  slot_block_[place->slab * max_slots_ + place->slot] = id;
  count_active(id, +1);
  return id;
}

void BlockPool::add_ref(BlockId id) {
  CHECK(taken(id), "reference to a free block");
  if (records_[id].refs++ == 0) {
    count_cached(id, -1);
    count_active(id, +1);
  }
}

bool BlockPool::drop_ref(BlockId id) {
  CHECK(taken(id) && records_[id].refs > 0, "a block is given back more often than it was taken");
  if (--records_[id].refs > 0) return false;
  count_active(id, -1);
  if (records_[id].tag == kNoTag) {
    free_block(id);
  } else {
    count_cached(id, +1);
  }
  return true;
}

void BlockPool::free_block(BlockId id) {
  const Slot place{records_[id].slab, records_[id].slot};
  records_[id] = Record{};
  free_ids_.push_back(id);
  give_slot(place);
}

void BlockPool::set_tag(BlockId id, uint32_t tag) {
  CHECK(taken(id) && records_[id].refs > 0 && records_[id].tag == kNoTag && tag != kNoTag,
        "only an active block without a tag gets one");
  records_[id].tag = tag;
}

void BlockPool::clear_tag(BlockId id) {
  CHECK(taken(id) && records_[id].tag != kNoTag, "a block without a tag cannot lose it");
  records_[id].tag = kNoTag;
  if (records_[id].refs > 0) return;
  count_cached(id, -1);
  free_block(id);
}

std::optional<BlockPool::Move> BlockPool::move_out(BlockId id) {
  Record& record = records_[id];
  CHECK(taken(id) && record.refs > 0 && slabs_[record.slab].closed, "only active blocks of a closed slab move");
  const uint32_t size_class = slabs_[record.slab].size_class;
  const std::optional<Slot> place = take_slot(size_class);
  if (!place) return std::nullopt;
  const Move move{address(id), slot_address(place->slab, place->slot), class_bytes_[size_class]};
  const Slot old{record.slab, record.slot};
  count_active(id, -1);
  record.slab = place->slab;
  record.slot = place->slot;
  slot_block_[place->slab * max_slots_ + place->slot] = id;
  count_active(id, +1);
  give_slot(old);
  return move;
}

// --- questions

BlockPool::SlabUse BlockPool::slab(uint32_t slab) const {
  const Slab& s = slabs_[slab];
  return {.size_class = s.size_class, .slots = s.slots, .active = s.active, .cached = s.cached};
}

void BlockPool::blocks_of(uint32_t slab, std::vector<BlockId>& out) const {
  out.clear();
  for (uint32_t i = 0; i < slabs_[slab].slots; ++i) {
    const BlockId id = slot_block_[slab * max_slots_ + i];
    if (id != kNoBlock) out.push_back(id);
  }
}

bool BlockPool::fits(std::span<const uint64_t> counts) const {
  const uint64_t full = arena_bytes_ / slab_bytes_;
  if (class_count() == 1) {
    const uint64_t last = full < slab_count() ? slots(slab_count() - 1, 0) : 0;
    return counts[0] <= full * (slab_bytes_ / class_bytes_[0]) + last;
  }
  // Which class gets the short slab depends on the order of things, so it is not counted on.
  uint64_t needed = 0;
  for (uint32_t c = 0; c < class_count(); ++c) {
    const uint64_t per_slab = slab_bytes_ / class_bytes_[c];
    needed += counts[c] / per_slab + (counts[c] % per_slab != 0 ? 1 : 0);
  }
  return needed <= full;
}

std::string BlockPool::audit_slab(uint32_t slab) const {
  const Slab& s = slabs_[slab];
  const std::string name = "slab " + std::to_string(slab);
  uint32_t active = 0, cached = 0, free = 0;
  for (uint32_t i = 0; i < s.slots; ++i) {
    const BlockId id = slot_block_[slab * max_slots_ + i];
    if (id == kNoBlock) {
      ++free;
      continue;
    }
    if (records_[id].slab != slab || records_[id].slot != i) return name + ": block and slot disagree";
    ++(records_[id].refs > 0 ? active : cached);
    if (records_[id].refs == 0 && records_[id].tag == kNoTag) return name + ": a cached block that nobody can find";
  }
  if (active != s.active || cached != s.cached) return name + ": counts are off";
  if (s.size_class == kNone) return {};
  if (active + cached == 0) return name + ": empty but not given back";
  uint32_t listed_free = s.slots - s.fresh;
  for (uint32_t i = s.free_slot; i != kNone; i = slot_next_[slab * max_slots_ + i]) ++listed_free;
  if (listed_free != free) return name + ": free slots are lost";
  if (s.listed != (free > 0) || s.closed) return name + ": not where slabs with room are listed";
  return {};
}

std::string BlockPool::audit() const {
  size_t free = 0, active = 0, cached = 0, remainder = 0, empty = 0;
  for (uint32_t i = 0; i < slab_count(); ++i) {
    if (std::string wrong = audit_slab(i); !wrong.empty()) return wrong;
    const Slab& s = slabs_[i];
    if (s.size_class == kNone) {
      free += slab_size(i);
      ++empty;
      continue;
    }
    const size_t block = class_bytes_[s.size_class];
    active += s.active * block;
    cached += s.cached * block;
    free += (s.slots - s.active - s.cached) * block;
    remainder += remainder_of(i);
  }
  if (empty != empty_slabs_.size() + (short_slab_empty_ ? 1 : 0)) return "empty slabs are lost";
  if (free != free_bytes_ || active != active_bytes_ || cached != cached_bytes_ || remainder != remainder_bytes_) {
    return "running totals are off";
  }
  if (!balanced()) return "free + active + cached + remainder is not the arena";
  return {};
}

}  // namespace kvarto

#include "kv/cache_core.h"

#include <algorithm>

#include "base/check.h"
#include "base/fault.h"
#include "kv/layout.h"

namespace kvarto {
namespace {

constexpr size_t kLine = 64;
constexpr uint64_t kMostTokens = uint64_t{1} << 40;  // where nothing limits the length of a sequence

}  // namespace

// --- making

Result<std::unique_ptr<CacheCore>> CacheCore::create(const KvLayout& layout, std::shared_ptr<BlockMemory> memory,
                                                     const KvCacheOptions& options) {
  if (layout.groups().empty()) {
    return fail(ErrorCode::invalid_argument, "the layout has 0 groups of layers; make it with KvLayout::make");
  }
  if (memory == nullptr) return fail(ErrorCode::invalid_argument, "no block memory was given; pass cpu_block_memory()");
  std::unique_ptr<CacheCore> core(new CacheCore(layout, options));
  RETURN_IF_ERROR(core->allocate(std::move(memory)));
  return core;
}

void CacheCore::sort_into_classes(std::vector<size_t>& class_bytes) {
  const auto class_of = [&](size_t bytes) {
    const auto found = std::ranges::find(class_bytes, bytes);
    if (found != class_bytes.end()) return static_cast<uint32_t>(found - class_bytes.begin());
    class_bytes.push_back(bytes);
    return static_cast<uint32_t>(class_bytes.size() - 1);
  };
  for (const KvGroup& group : layout_.groups()) {
    const uint32_t block = class_of(group.block_bytes);
    classes_.push_back({.block = block, .tail = group.tail_is_block ? block : class_of(group.tail_bytes)});
  }
}

Status CacheCore::allocate(std::shared_ptr<BlockMemory> memory) {
  std::vector<size_t> class_bytes;
  sort_into_classes(class_bytes);
  const size_t bytes = options_.bytes / kLine * kLine;
  const size_t least = layout_.bytes_for_sequence(block_tokens(), 1);
  const std::string too_small = "a KV arena of " + std::to_string(options_.bytes) +
                                " bytes is too small: one block and tail of each of the " +
                                std::to_string(group_count()) + " groups need " + std::to_string(least) + " bytes";
  if (bytes < least) return fail(ErrorCode::out_of_memory, too_small + "; give it more");
  counts_.resize(class_bytes.size());
  live_.resize(group_count());

  // Layers are computed one after the other and groups too: one slot per block serves all.
  for (const KvGroup& group : layout_.groups()) {
    uses_scratch_ |= !group.tail_is_block;
    for (const KvGroupLayer& layer : group.layers)
      scratch_.slot_bytes = std::max(scratch_.slot_bytes, layer.raw_bytes());
  }
  if (uses_scratch_) {
    scratch_slots_ = options_.max_step_tokens / block_tokens();
    for (uint32_t i = scratch_slots_; i > 0; --i) free_scratch_.push_back(i - 1);
    ASSIGN_OR_RETURN(scratch_.base, memory->reserve_scratch(scratch_slots_ * scratch_.slot_bytes));
  }

  RETURN_IF_ERROR(memory->charge_metadata(metadata_bytes(layout_, bytes)));
  ASSIGN_OR_RETURN(std::byte * arena, memory->reserve_arena(bytes));
  std::vector<PrefixIndex::GroupRule> rules;
  for (uint32_t g = 0; g < group_count(); ++g) {
    rules.push_back({.size_class = classes_[g].block, .leaf_first = group(g).kind != GroupKind::window});
  }
  const uint32_t class_count = static_cast<uint32_t>(class_bytes.size());
  const auto moved = [this](uint32_t) {
    for (KvSequenceState* s = sequences_; s != nullptr; s = s->next) {
      refresh_addresses(*s, store_->pool());
      if (s->reserved > 0) build_views(*s, layout_, store_->pool(), scratch_);
    }
  };
  store_ = std::make_unique<BlockStore>(
      BlockPool(arena, bytes, std::move(class_bytes)),
      PrefixIndex(block_tokens(), std::move(rules), class_count, options_.replacement), std::move(memory), moved);
  store_->watch(options_.record_events
                    ? std::make_unique<EventLog>(block_tokens(), layout_.groups(), options_.event_bytes)
                    : nullptr,
                options_.clock_us != nullptr
                    ? std::make_unique<BlockLives>(options_.clock_us, options_.life_sample, options_.on_life)
                    : nullptr);
  if (could_ever_fit(block_tokens(), 1)) return {};
  return fail(ErrorCode::out_of_memory, too_small + " in slabs of their own; give it twice that or more");
}

CacheCore::~CacheCore() {
  for (KvSequenceState* s = sequences_; s != nullptr; s = s->next) s->cache = nullptr;
}

void CacheCore::join(KvSequenceState& s) {
  s.cache = this;
  s.groups.resize(group_count());
  s.next = sequences_;
  if (sequences_ != nullptr) sequences_->prev = &s;
  sequences_ = &s;
}

void CacheCore::leave(KvSequenceState& s) {
  (s.prev == nullptr ? sequences_ : s.prev->next) = s.next;
  if (s.next != nullptr) s.next->prev = s.prev;
  s.cache = nullptr;
}

void CacheCore::check_balance() const {
#ifdef KVARTO_DEBUG_CHECKS
  CHECK(balanced(), "free + active + cached + slab remainders is not the arena");
#endif
}

// --- reserving

// Counts what `count` more tokens take, per class; returns how many blocks begin and end within the step.
uint64_t CacheCore::needs(const KvSequenceState& s, uint32_t count, std::vector<uint64_t>& counts) const {
  const uint64_t b = block_tokens();
  const uint64_t length = s.length(), end = length + count;
  const bool open = length % b != 0;
  const uint64_t filled = end / b - length / b;
  const bool opens = end % b != 0 && (!open || filled > 0);
  std::ranges::fill(counts, 0);
  for (uint32_t g = 0; g < group_count(); ++g) {
    if (group(g).tail_is_block) {
      counts[classes_[g].block] += ceil_div(end, b) - ceil_div(length, b);
    } else {
      counts[classes_[g].block] += filled;
      counts[classes_[g].tail] += opens ? 1 : 0;
    }
  }
  return filled - (open && filled > 0 ? 1 : 0);
}

bool CacheCore::take(uint32_t size_class, BlockId& id) {
  const std::optional<BlockId> taken = store_->take(size_class);
  if (taken) id = *taken;
  return taken.has_value();
}

// Takes the blocks that reach up to `end`; false when they ran out, with some taken.
bool CacheCore::take_blocks(KvSequenceState& s, uint64_t end) {
  const uint64_t b = block_tokens();
  const uint64_t whole = s.length() / b;
  for (uint32_t g = 0; g < group_count(); ++g) {
    GroupTable& table = s.groups[g];
    const uint64_t blocks = group(g).tail_is_block ? ceil_div(end, b) : end / b;
    while (table.ids.size() < blocks) {
      BlockId id;
      if (!take(classes_[g].block, id)) return false;
      table.ids.push_back(id);
    }
    const bool opens = end % b != 0 && (s.length() % b == 0 || end / b > whole);
    if (!group(g).tail_is_block && opens && !take(classes_[g].tail, table.next_tail)) return false;
  }
  return true;
}

Status CacheCore::reserve(KvSequenceState& s, uint32_t count) {
  CHECK(!broken_, "the books did not add up when a sequence was released");
  if (count == 0) return fail(ErrorCode::invalid_argument, "a reservation of 0 tokens; reserve at least 1");
  if (s.reserved > 0) {
    return fail(ErrorCode::invalid_argument, "the sequence has " + std::to_string(s.reserved) +
                                                 " tokens reserved already; commit or cancel them first");
  }
  const uint64_t inner = needs(s, count, counts_);
  const uint64_t scratch = uses_scratch_ ? inner : 0;
  if (scratch > free_scratch_.size()) {
    return fail(ErrorCode::invalid_argument,
                std::to_string(count) + " tokens are more than this step has left of its " +
                    std::to_string(options_.max_step_tokens) + "; raise max_step_tokens or reserve fewer");
  }
  const bool taken = store_->has_bytes_for(counts_) && take_blocks(s, s.length() + count);
  if (!taken) {
    give_back_reserved(s);
    check_balance();
    size_t bytes = 0;
    for (size_t c = 0; c < counts_.size(); ++c)
      bytes += counts_[c] * store_->pool().class_bytes(static_cast<uint32_t>(c));
    const KvCacheStats has = stats();
    return fail(ErrorCode::out_of_memory, std::to_string(count) + " tokens need " + std::to_string(bytes) +
                                              " bytes of KV blocks and " +
                                              std::to_string(has.free_bytes + has.cached_bytes) + " of " +
                                              std::to_string(has.arena_bytes) + " are free or idle");
  }
  for (uint64_t i = 0; i < scratch; ++i) {
    s.scratch.push_back(free_scratch_.back());
    free_scratch_.pop_back();
  }
  s.reserved = count;
  // Room for the whole block at once: steps inside a block allocate nothing.
  const uint64_t room = ceil_div(s.end(), block_tokens()) * block_tokens();
  if (s.tokens.capacity() < room) s.tokens.reserve(std::max<uint64_t>(room, 2 * s.tokens.capacity()));
  build_views(s, layout_, store_->pool(), scratch_);
  publish_prompt_early(s, s.end());
  check_balance();
  return {};
}

// Drops what the tables hold beyond the tokens that are in place, and the step's scratch.
void CacheCore::give_back_reserved(KvSequenceState& s) {
  for (uint32_t g = 0; g < group_count(); ++g) {
    GroupTable& table = s.groups[g];
    const uint64_t blocks = group(g).tail_is_block ? ceil_div(s.length(), block_tokens()) : s.length() / block_tokens();
    while (table.ids.size() > blocks) {
      store_->drop(table.ids.back());
      table.ids.pop_back();
    }
    table.addresses.resize(table.ids.size());
    drop_open(table.next_tail);
  }
  free_scratch_.insert(free_scratch_.end(), s.scratch.begin(), s.scratch.end());
  s.scratch.clear();
  s.reserved = 0;
}

void CacheCore::cancel(KvSequenceState& s) {
  give_back_reserved(s);
  check_balance();
}

// --- committing

void CacheCore::commit(KvSequenceState& s, std::span<const TokenId> tokens) {
  CHECK(!broken_, "the books did not add up when a sequence was released");
  CHECK(s.reserved > 0 && tokens.size() == s.reserved, "a commit brings as many tokens as were reserved");
  const uint64_t before = s.length(), whole_before = before / block_tokens();
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  s.reserved = 0;
  const uint64_t whole = s.length() / block_tokens();
  for (uint32_t g = 0; g < group_count(); ++g) {
    GroupTable& table = s.groups[g];
    live_[g].sealed += whole - whole_before;
    if (whole > whole_before) drop_open(table.tail);
    if (table.next_tail != kNoBlock) table.tail = std::exchange(table.next_tail, kNoBlock);
  }
  count_open_tokens(before, s.length());
  give_back_reserved(s);
  name_blocks(s, whole_before, whole);
  move_windows(s);
  check_balance();
}

void CacheCore::count_open_tokens(uint64_t before, uint64_t after) {
  for (Live& live : live_) live.open_tokens += after % block_tokens() - before % block_tokens();
}

// Gives back blocks that the next token does not see.
void CacheCore::move_windows(KvSequenceState& s) {
  for (uint32_t g = 0; g < group_count(); ++g) {
    if (group(g).kind != GroupKind::window) continue;
    GroupTable& table = s.groups[g];
    uint64_t first = first_visible_block(group(g), block_tokens(), s.length());
    if (fault(4)) first = std::min(first + 1, s.length() / block_tokens());
    for (; table.first < first; ++table.first) {
      drop_sealed(table, g, table.first);
      ++window_blocks_freed_;
    }
  }
}

void CacheCore::drop_sealed(GroupTable& table, uint32_t g, uint64_t block) {
  if (table.ids[block] == kNoBlock) return;
  if (store_->drop(table.ids[block])) --live_[g].sealed;
  table.ids[block] = kNoBlock;
  table.addresses[block] = nullptr;
}

void CacheCore::drop_open(BlockId& id) {
  if (id == kNoBlock) return;
  store_->drop(id);
  id = kNoBlock;
}

// --- forking and trimming

Status CacheCore::fork(const KvSequenceState& parent, KvSequenceState& child) {
  if (parent.reserved > 0) {
    return fail(ErrorCode::invalid_argument, "the sequence has " + std::to_string(parent.reserved) +
                                                 " tokens reserved; commit or cancel them before a fork");
  }
  join(child);
  child.root = parent.root;
  child.salt = parent.salt;
  child.tokens = parent.tokens;
  child.hashes = parent.hashes;
  const uint64_t whole = parent.length() / block_tokens();
  for (uint32_t g = 0; g < group_count(); ++g) {
    const GroupTable& from = parent.groups[g];
    GroupTable& to = child.groups[g];
    to.first = from.first;
    to.ids.assign(from.ids.begin(), from.ids.begin() + static_cast<ptrdiff_t>(whole));
    to.addresses.assign(from.addresses.begin(), from.addresses.begin() + static_cast<ptrdiff_t>(whole));
    for (const BlockId id : to.ids) {
      if (id != kNoBlock) store_->share(id);
    }
  }
  if (parent.length() % block_tokens() != 0) {
    count_open_tokens(0, child.length());
    if (Status copied = copy_open(parent, child); !copied) {
      release(child);
      return copied;
    }
  }
  check_balance();
  return {};
}

Status CacheCore::copy_open(const KvSequenceState& parent, KvSequenceState& child) {
  for (uint32_t g = 0; g < group_count(); ++g) {
    const GroupTable& from = parent.groups[g];
    GroupTable& to = child.groups[g];
    const bool in_place = group(g).tail_is_block;
    const BlockId source = in_place ? from.ids.back() : from.tail;
    BlockId copy = source;
    if (fault(6)) {
      store_->share(source);
    } else if (!take(in_place ? classes_[g].block : classes_[g].tail, copy)) {
      return fail(ErrorCode::out_of_memory, "a fork copies an open block of " +
                                                std::to_string(in_place ? group(g).block_bytes : group(g).tail_bytes) +
                                                " bytes and none is free or idle; release a sequence first");
    }
    BlockMemory& memory = store_->memory();
    const BlockPool& pool = store_->pool();
    if (copy != source) {
      const size_t bytes = in_place ? group(g).block_bytes : group(g).tail_bytes;
      memory.wait(memory.copy(pool.address(copy), pool.address(source), bytes));
      ++copied_tails_;
    }
    if (in_place) {
      to.ids.push_back(copy);
      to.addresses.push_back(pool.address(copy));
    } else {
      to.tail = copy;
    }
  }
  return {};
}

// Whether a token at `length` would find everything it sees in the tables.
bool CacheCore::windows_held(const KvSequenceState& s, uint64_t length) const {
  for (uint32_t g = 0; g < group_count(); ++g) {
    if (s.groups[g].first > first_visible_block(group(g), block_tokens(), length)) return false;
  }
  return true;
}

// The same at a block edge, counting blocks that were given back and can still be found.
bool CacheCore::windows_in_reach(const KvSequenceState& s, uint64_t edge) const {
  for (uint32_t g = 0; g < group_count(); ++g) {
    const uint64_t held = std::min(s.groups[g].first, edge / block_tokens());
    for (uint64_t i = first_visible_block(group(g), block_tokens(), edge); i < held; ++i) {
      if (!options_.prefix_caching) return false;
      const NodeId node = store_->index().find(s.hashes[i], block_of(s.tokens, i));
      if (node == kNoNode || store_->index().block(node, g) == kNoBlock) return false;
    }
  }
  return true;
}

uint64_t CacheCore::trim(KvSequenceState& s, uint64_t length) {
  CHECK(s.reserved == 0, "commit or cancel a reservation before a trim");
  if (length >= s.length()) return s.length();
  const uint64_t open_from = s.length() / block_tokens() * block_tokens();
  if (length > open_from && windows_held(s, length)) {
    count_open_tokens(s.length(), length);
    s.tokens.resize(length);
    return length;
  }
  uint64_t edge = length / block_tokens() * block_tokens();
  while (edge > 0 && !windows_in_reach(s, edge)) edge -= block_tokens();
  cut(s, edge);
  check_balance();
  return edge;
}

// Forgets everything from the block edge on, and takes back window blocks that the next token sees again.
void CacheCore::cut(KvSequenceState& s, uint64_t edge) {
  const uint64_t blocks = edge / block_tokens();
  for (uint32_t g = 0; g < group_count(); ++g) {
    GroupTable& table = s.groups[g];
    const uint64_t first = first_visible_block(group(g), block_tokens(), edge);
    for (uint64_t i = first; i < std::min(table.first, blocks); ++i) {
      const NodeId node = store_->index().find(s.hashes[i], block_of(s.tokens, i));
      if (store_->hold(node, g)) ++live_[g].sealed;
      table.ids[i] = store_->index().block(node, g);
      table.addresses[i] = store_->pool().address(table.ids[i]);
    }
    table.first = first;
  }
  drop_from(s, blocks);
  count_open_tokens(s.length(), edge);
  s.tokens.resize(edge);
  s.hashes.resize(std::min<uint64_t>(s.hashes.size(), blocks));
}

// Gives back blocks from `block` on, the last first, so that what many prompts begin with is the last to be replaced.
void CacheCore::drop_from(KvSequenceState& s, uint64_t block) {
  const uint64_t whole = s.length() / block_tokens();
  for (GroupTable& table : s.groups) {
    drop_open(table.tail);
    if (table.ids.size() > whole) drop_open(table.ids.back());
  }
  for (uint64_t i = whole; i > block; --i) {
    for (uint32_t g = 0; g < group_count(); ++g) drop_sealed(s.groups[g], g, i - 1);
  }
  for (GroupTable& table : s.groups) {
    table.ids.resize(std::min<uint64_t>(table.ids.size(), block));
    table.addresses.resize(table.ids.size());
  }
}

void CacheCore::release(KvSequenceState& s) {
  give_back_reserved(s);
  drop_from(s, 0);
  count_open_tokens(s.length(), 0);
  leave(s);
  check_balance();
}

bool CacheCore::clear() {
  store_->clear();
  check_balance();
  return store_->pool().active_blocks() == 0;
}

// --- figures

bool CacheCore::could_ever_fit(uint64_t tokens, uint32_t chunk_tokens) const {
  std::vector<uint64_t> counts(counts_.size(), 0);
  for (uint32_t g = 0; g < group_count(); ++g) {
    const GroupNeed need = group_need(group(g), block_tokens(), tokens, chunk_tokens);
    counts[classes_[g].block] += need.blocks;
    counts[classes_[g].tail] += need.tails;
  }
  return store_->pool().fits(counts);
}

uint64_t CacheCore::longest_sequence(uint32_t chunk_tokens) const {
  uint64_t fits = 0, too_long = kMostTokens;
  while (too_long - fits > 1) {
    const uint64_t middle = fits + (too_long - fits) / 2;
    (could_ever_fit(middle, chunk_tokens) ? fits : too_long) = middle;
  }
  return fits;
}

KvCacheStats CacheCore::stats() const {
  const BlockPool& pool = store_->pool();
  KvCacheStats out;
  out.arena_bytes = pool.arena_bytes();
  out.free_bytes = pool.free_bytes();
  out.active_bytes = pool.active_bytes();
  out.cached_bytes = pool.cached_bytes();
  out.slab_remainder_bytes = pool.remainder_bytes();
  size_t all_groups = 0;
  for (uint32_t g = 0; g < group_count(); ++g) {
    const size_t open_bytes = group(g).tail_is_block ? group(g).block_bytes : group(g).tail_bytes;
    all_groups += group(g).block_bytes;
    out.live_bytes += live_[g].sealed * group(g).block_bytes + live_[g].open_tokens * open_bytes / block_tokens();
  }
  out.blocks_total = out.arena_bytes / all_groups * group_count();
  out.blocks_active = pool.active_blocks();
  out.blocks_cached = pool.cached_blocks();
  out.replaced_blocks = store_->replaced_blocks();
  out.query_tokens = query_tokens_;
  out.hit_tokens = hit_tokens_;
  out.window_blocks_freed = window_blocks_freed_;
  out.copied_tails = copied_tails_;
  return out;
}

}  // namespace kvarto

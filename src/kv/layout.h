// What one sequence needs of a group, in blocks: the arithmetic that allocator, prefix index and planner share. Pure
// functions; any thread.
#pragma once

#include <cstdint>

#include "kvarto/types.h"

namespace kvarto {

constexpr uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Index of the oldest block that the token at position `length` still sees (the blocks before it may go). Keys from
// length - window + 1 on are visible to it.
inline uint64_t first_visible_block(const KvGroup& group, uint32_t block_tokens, uint64_t length) {
  if (group.kind != GroupKind::window || length + 1 <= group.window) return 0;
  return (length + 1 - group.window) / block_tokens;
}

// The most blocks and tails (of their own class) a sequence holds at once while it grows to `tokens` tokens in steps of
// at most `chunk_tokens`. Groups that seal in place count their open block as a block and need no tails.
struct GroupNeed {
  uint64_t blocks = 0;
  uint64_t tails = 0;
};
GroupNeed group_need(const KvGroup& group, uint32_t block_tokens, uint64_t tokens, uint32_t chunk_tokens);

// What the cache keeps about the blocks of an arena beside it, at most: pool records, tables, names in the prefix index
// (nodes with their tokens and entries, hash map and queues). For the ledger and the planner.
size_t metadata_bytes(const KvLayout& layout, size_t arena_bytes);

}  // namespace kvarto

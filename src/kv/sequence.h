// What a sequence holds: per group a table of blocks and an open tail, its tokens and their chain of hashes. Plain
// data, changed by CacheCore only; the owner's thread only.
#pragma once

#include <string>
#include <vector>

#include "base/hash.h"
#include "kv/view.h"
#include "kvarto/kv_cache.h"

namespace kvarto {

class CacheCore;

// One group's blocks. Between steps `ids` holds the sealed blocks and, where the group seals in place, the open one
// behind them; during a step also the blocks that the step fills.
struct GroupTable {
  std::vector<BlockId> ids;           // [block]; kNoBlock where the window has moved on
  std::vector<std::byte*> addresses;  // [block]; null there, and for an open block with a tail of its own
  uint64_t first = 0;                 // the oldest block held
  BlockId tail = kNoBlock;            // of the open block, where it does not seal in place
  BlockId next_tail = kNoBlock;       // of the block that the step leaves open, when it is another one
  std::vector<RawBlock> raw;          // [block - list.first_raw]
  KvList list;
};

struct KvSequenceState {
  CacheCore* cache = nullptr;  // null once the cache is gone
  KvSequenceState* prev = nullptr;
  KvSequenceState* next = nullptr;  // all sequences of a cache
  BlockHash root = root_hash();     // where its chain of names begins; see adapter_root()
  std::string salt;
  std::vector<TokenId> tokens;
  std::vector<BlockHash> hashes;  // [whole blocks]; empty without prefix caching
  uint32_t reserved = 0;
  std::vector<GroupTable> groups;
  std::vector<KvView> views;      // [groups], while something is reserved
  std::vector<uint32_t> scratch;  // slots of blocks that begin and end within the step
#ifdef KVARTO_FAULTS
  std::vector<TokenId> prompt;  // for planted bug 3
#endif

  uint64_t length() const { return tokens.size(); }
  uint64_t end() const { return tokens.size() + reserved; }
};

// The scratch area for raw tiles of blocks that begin and end within a step: slots that each hold one layer.
struct ScratchPlace {
  std::byte* base = nullptr;
  size_t slot_bytes = 0;
};
class BlockPool;
// Fills in what the reservation [length, end) adds: addresses, raw places and the views over them.
void build_views(KvSequenceState& state, const KvLayout& layout, const BlockPool& pool, const ScratchPlace& scratch);
// Reads every address again, after blocks were moved.
void refresh_addresses(KvSequenceState& state, const BlockPool& pool);

}  // namespace kvarto

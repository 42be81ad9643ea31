// What a KvCache tells about its blocks: which names come and go (for routers that send a prompt where its prefix
// lies), and how long blocks live. Plain values; made on the owner's thread, then anybody's.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvarto/types.h"

namespace kvarto {

// The name of a full block of tokens; it commits to every token before it (see chain_hash in base/hash.h).
using BlockHash = std::array<uint8_t, 32>;

// Names as they come and go, in the order of application: a name whose memory is used again is removed before the
// block that uses it is stored. Blocks appear when they are full and findable, never before, and stay announced until
// their memory is given to others, whatever becomes of the sequence. A hit is no event.
//
// A name (hash, group) has one block at most: a second block with the same tokens stays private to its sequence and is
// no event, neither when it is filled nor when it is dropped. So a name is stored, removed, stored ... in turns, and a
// router may count copies or not.
struct KvEvent {
  enum class Kind : uint8_t {
    stored,   // a run of blocks that follow each other
    removed,  // one block
    cleared,  // every name of this cache is gone
  };
  Kind kind = Kind::cleared;
  uint32_t group = 0;                    // of the layout
  std::vector<BlockHash> hashes = {};    // oldest first
  std::optional<BlockHash> parent = {};  // stored: what comes before the run; none at the start of a sequence
  std::vector<TokenId> tokens = {};      // stored: [hashes.size() * block_tokens]
  std::string cache_salt = {};           // stored without parent: the salt of the first block, "" = none
  uint32_t block_tokens = 0;             // stored: this and the rest describe the group
  GroupKind group_kind = GroupKind::full;
  uint32_t window = 0;  // window groups: tokens
};

struct KvEvents {
  std::vector<KvEvent> list;
  // More had been recorded than was allowed to wait. The list then begins with `cleared` and stores every name that
  // there is now: who applies it knows all again.
  bool lost = false;
};

// A moment in the life of a sampled block.
struct BlockLife {
  enum class Moment : uint8_t { reused, replaced };
  Moment moment = Moment::reused;
  uint32_t group = 0;
  uint64_t idle_us = 0;      // since it was last taken, hit or given back
  uint64_t lifetime_us = 0;  // since its memory was taken
};

}  // namespace kvarto

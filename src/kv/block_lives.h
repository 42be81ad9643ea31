// When each block was taken and last used, and the lives of sampled ones. Owned by BlockStore, which tells it, and made
// only where somebody gave a clock; the owner's thread only. A block keeps its id when it is moved, so ids will do.
#pragma once

#include <functional>
#include <vector>

#include "kvarto/kv_events.h"
#include "kvarto/types.h"

namespace kvarto {

class BlockLives {
 public:
  // `sample`: share of lives, 0 to 1, that `sink` hears of. Which ones is decided by a hash of their running number:
  // the same operations sample the same lives, and no block is left out for its id.
  BlockLives(std::function<uint64_t()> now_us, double sample, std::function<void(const BlockLife&)> sink);

  void taken(BlockId id);
  void hit(BlockId id, uint32_t group);
  void given_back(BlockId id) { lives_[id].used = now(); }
  void replaced(BlockId id, uint32_t group);

  uint64_t now() const { return now_us_(); }
  uint64_t taken_us(BlockId id) const { return lives_[id].taken; }
  uint64_t used_us(BlockId id) const { return lives_[id].used; }

 private:
  struct Life {
    uint64_t taken = 0, used = 0;
    bool sampled = false;
  };
  void tell(BlockLife::Moment moment, const Life& life, uint32_t group, uint64_t at) const;

  std::function<uint64_t()> now_us_;
  uint64_t sampled_below_ = 0;  // of hashes; UINT64_MAX: all
  std::function<void(const BlockLife&)> sink_;
  uint64_t number_ = 0;
  std::vector<Life> lives_;  // [block id]
};

}  // namespace kvarto

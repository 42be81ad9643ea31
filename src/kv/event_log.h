// Names that came and went since somebody last asked. Owned by BlockStore, which tells it; the owner's thread only.
#pragma once

#include <span>
#include <vector>

#include "kv/prefix_index.h"
#include "kvarto/kv_events.h"
#include "kvarto/types.h"

namespace kvarto {

class EventLog {
 public:
  // At most about `cap_bytes` wait to be taken.
  EventLog(uint32_t block_tokens, std::span<const KvGroup> groups, size_t cap_bytes);

  void stored(const PrefixIndex& index, NodeId node, uint32_t group);
  void removed(const BlockHash& hash, uint32_t group);
  struct Mark {
    size_t events = 0, bytes = 0;
  };
  Mark mark() const { return {events_.size(), bytes_}; }
  // What was recorded since `from` are removals that left nothing.
  void cleared(Mark from);

  // What was recorded since the last call; everything that `index` holds when some of it was given up.
  KvEvents take(const PrefixIndex& index);

 private:
  struct Group {
    GroupKind kind;
    uint32_t window;
  };
  bool room_for(size_t bytes);
  void append(const PrefixIndex& index, NodeId node, uint32_t group);
  void end_runs() { runs_.assign(groups_.size(), kNoRun); }
  KvEvent new_run(const PrefixIndex& index, NodeId node, uint32_t group) const;

  static constexpr size_t kNoRun = SIZE_MAX;
  uint32_t block_tokens_;
  std::vector<Group> groups_;
  size_t cap_bytes_;
  size_t bytes_ = 0;
  bool lost_ = false;
  std::vector<KvEvent> events_;
  std::vector<size_t> runs_;  // [group] the event that the next block may lengthen
};

}  // namespace kvarto

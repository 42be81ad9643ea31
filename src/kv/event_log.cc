#include "kv/event_log.h"

#include <utility>

namespace kvarto {

EventLog::EventLog(uint32_t block_tokens, std::span<const KvGroup> groups, size_t cap_bytes)
    : block_tokens_(block_tokens), cap_bytes_(cap_bytes) {
  for (const KvGroup& group : groups) groups_.push_back({group.kind, group.window});
  end_runs();
}

// Over the cap what waits is worth nothing any more: a list with a hole cannot be applied.
bool EventLog::room_for(size_t bytes) {
  if (lost_) return false;
  bytes_ += bytes;
  if (bytes_ <= cap_bytes_) return true;
  lost_ = true;
  events_ = {};
  bytes_ = 0;
  end_runs();
  return false;
}

void EventLog::stored(const PrefixIndex& index, NodeId node, uint32_t group) {
  if (room_for(sizeof(KvEvent) + sizeof(BlockHash) + block_tokens_ * sizeof(TokenId))) append(index, node, group);
}

// A block that follows the last one of its group lengthens that event: between the two nothing went, and what other
// groups stored in between does not depend on it.
void EventLog::append(const PrefixIndex& index, NodeId node, uint32_t group) {
  const NodeId parent = index.parent(node);
  const size_t run = runs_[group];
  const bool follows = run != kNoRun && parent != kNoNode && events_[run].hashes.back() == index.hash(parent);
  if (!follows) {
    runs_[group] = events_.size();
    events_.push_back(new_run(index, node, group));
  }
  KvEvent& event = events_[runs_[group]];
  event.hashes.push_back(index.hash(node));
  const std::span<const TokenId> tokens = index.tokens(node);
  event.tokens.insert(event.tokens.end(), tokens.begin(), tokens.end());
}

KvEvent EventLog::new_run(const PrefixIndex& index, NodeId node, uint32_t group) const {
  KvEvent event{.kind = KvEvent::Kind::stored,
                .group = group,
                .block_tokens = block_tokens_,
                .group_kind = groups_[group].kind,
                .window = groups_[group].window};
  if (const NodeId parent = index.parent(node); parent != kNoNode) {
    event.parent = index.hash(parent);
  } else {
    event.cache_salt = index.salt(node);
  }
  return event;
}

void EventLog::removed(const BlockHash& hash, uint32_t group) {
  if (!room_for(sizeof(KvEvent) + sizeof(BlockHash))) return;
  events_.push_back({.kind = KvEvent::Kind::removed, .group = group, .hashes = {hash}});
  end_runs();
}

void EventLog::cleared(Mark from) {
  if (lost_) return;
  events_.resize(from.events);
  bytes_ = from.bytes;
  if (!room_for(sizeof(KvEvent))) return;
  events_.push_back({.kind = KvEvent::Kind::cleared});
  end_runs();
}

KvEvents EventLog::take(const PrefixIndex& index) {
  KvEvents out{.list = {}, .lost = std::exchange(lost_, false)};
  if (out.lost) {
    events_.push_back({.kind = KvEvent::Kind::cleared});
    for (const NodeId node : index.all_nodes()) {
      for (uint32_t g = 0; g < groups_.size(); ++g) {
        if (index.block(node, g) != kNoBlock) append(index, node, g);
      }
    }
  }
  out.list = std::exchange(events_, {});
  bytes_ = 0;
  end_runs();
  return out;
}

}  // namespace kvarto

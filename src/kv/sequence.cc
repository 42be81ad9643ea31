#include "kv/sequence.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "kv/block_pool.h"
#include "kv/cache_core.h"
#include "kv/layout.h"

namespace kvarto {
namespace {

// The raw places of the blocks that the step's tokens lie in: the block itself where sealing changes nothing; else the
// open block's tail, scratch for blocks that begin and end within the step, and the next tail for the one left open.
void build_raw(KvSequenceState& state, GroupTable& table, const KvGroup& group, uint32_t block_tokens,
               const BlockPool& pool, const ScratchPlace& scratch) {
  const uint64_t length = state.length();
  const uint64_t sealed = state.end() / block_tokens;
  const uint64_t begun = length % block_tokens != 0 ? length / block_tokens : UINT64_MAX;
  size_t used = 0;
  table.raw.clear();
  for (uint64_t i = length / block_tokens; i < ceil_div(state.end(), block_tokens); ++i) {
    if (group.tail_is_block) {
      table.raw.push_back({table.addresses[i], false});
    } else if (i == begun) {
      table.raw.push_back({pool.address(table.tail), false});
    } else if (i == sealed) {
      table.raw.push_back({pool.address(table.next_tail), false});
    } else {
      table.raw.push_back({scratch.base + state.scratch[used++] * scratch.slot_bytes, true});
    }
  }
}

}  // namespace

void build_views(KvSequenceState& state, const KvLayout& layout, const BlockPool& pool, const ScratchPlace& scratch) {
  const uint32_t block_tokens = layout.block_tokens();
  state.views.resize(state.groups.size());
  for (size_t g = 0; g < state.groups.size(); ++g) {
    GroupTable& table = state.groups[g];
    for (uint64_t i = table.addresses.size(); i < ceil_div(state.end(), block_tokens); ++i) {
      table.addresses.push_back(i < table.ids.size() ? pool.address(table.ids[i]) : nullptr);
    }
    build_raw(state, table, layout.groups()[g], block_tokens, pool, scratch);
    table.list = KvList{.blocks = table.addresses.data(),
                        .raw = table.raw.data(),
                        .first_raw = static_cast<uint32_t>(state.length() / block_tokens),
                        .tokens = state.end()};
    state.views[g] =
        KvView{.group = &layout.groups()[g], .block_tokens = block_tokens, .lists = &table.list, .list_stride = 0};
  }
}

void refresh_addresses(KvSequenceState& state, const BlockPool& pool) {
  for (GroupTable& table : state.groups) {
    for (size_t i = 0; i < std::min(table.ids.size(), table.addresses.size()); ++i) {
      if (table.ids[i] != kNoBlock) table.addresses[i] = pool.address(table.ids[i]);
    }
  }
}

KvSequence::KvSequence() = default;
KvSequence::KvSequence(KvSequence&&) noexcept = default;
KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  // A swap would keep this one's blocks alive as long as the other object.
  KvSequence gone;
  gone.state_ = std::move(state_);
  state_ = std::move(other.state_);
  return *this;
}
KvSequence::~KvSequence() {
  if (state_ == nullptr || state_->cache == nullptr) return;
  try {
    state_->cache->release(*state_);
  } catch (const CheckFailure& bug) {  // books that do not add up: no blocks are handed out any more
    log(LogLevel::error, bug.what());
    state_->cache->mark_broken();
  }
}
uint64_t KvSequence::length() const { return state_ == nullptr ? 0 : state_->length(); }
std::span<const TokenId> KvSequence::tokens() const {
  return state_ == nullptr ? std::span<const TokenId>() : std::span<const TokenId>(state_->tokens);
}
uint32_t KvSequence::reserved() const { return state_ == nullptr ? 0 : state_->reserved; }

}  // namespace kvarto

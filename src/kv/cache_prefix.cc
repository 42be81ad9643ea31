// CacheCore's part that deals in names: finding the cached prefix of a prompt, opening on it, naming full blocks.
#include <algorithm>

#include "base/fault.h"
#include "kv/cache_core.h"
#include "kv/layout.h"

namespace kvarto {

BlockHash CacheCore::block_hash(std::span<const TokenId> tokens, uint64_t block, const BlockHash& parent,
                                std::string_view salt) const {
  const bool salted = block == 0 && !salt.empty() && !fault(5);
  return chain_hash(parent, block_of(tokens, block), salted ? std::optional(salt) : std::nullopt);
}

bool CacheCore::has_full_groups(NodeId node) const {
  for (uint32_t g = 0; g < group_count(); ++g) {
    if (group(g).kind != GroupKind::window && store_->index().block(node, g) == kNoBlock) return false;
  }
  return true;
}

// The most blocks of `nodes` at whose end every window group has all blocks that the next token sees.
uint64_t CacheCore::window_length(std::span<const NodeId> nodes) const {
  const PrefixIndex& index = store_->index();
  std::vector<uint64_t> whole_from(group_count(), 0);  // blocks [whole_from, i) are all there
  uint64_t best = 0;
  for (uint64_t i = 0; i < nodes.size(); ++i) {
    bool all = true;
    for (uint32_t g = 0; g < group_count(); ++g) {
      if (index.block(nodes[i], g) == kNoBlock) whole_from[g] = i + 1;
      all &= whole_from[g] <= first_visible_block(group(g), block_tokens(), (i + 1) * block_tokens());
    }
    if (all) best = i + 1;
  }
  return best;
}

MissReason CacheCore::why_not(std::span<const TokenId> prompt, const BlockHash& next, bool first,
                              const OpenOptions& options) const {
  const PrefixIndex& index = store_->index();
  if (index.was_replaced(next)) return MissReason::evicted;
  if (!first) return MissReason::no_match;
  const BlockHash root = adapter_root(options.adapter);
  if (index.knows_unsalted(chain_hash(root, block_of(prompt, 0)))) return MissReason::salt;
  if (index.knows_beginning(options.cache_salt, prompt, root)) return MissReason::shorter_than_block;
  return MissReason::no_match;
}

CacheCore::Found CacheCore::find(std::span<const TokenId> prompt, const OpenOptions& options) const {
  Found found;
  if (!options_.prefix_caching || !options.read_cache) {
    found.reason = MissReason::disabled;
    return found;
  }
  const uint64_t most = prompt.empty() ? 0 : prompt.size() - 1;
  const uint64_t limit = std::min<uint64_t>(options.max_cached_tokens.value_or(most), prompt.size());
  const uint64_t max_blocks = limit / block_tokens();
  if (max_blocks == 0) {
    const bool asked_for = options.max_cached_tokens && most >= block_tokens();
    found.reason = asked_for ? MissReason::disabled : MissReason::shorter_than_block;
    return found;
  }
  BlockHash hash = adapter_root(options.adapter);
  while (found.nodes.size() < max_blocks) {
    const uint64_t i = found.nodes.size();
    hash = block_hash(prompt, i, hash, options.cache_salt);
    const NodeId node = store_->index().find(hash, block_of(prompt, i));
    // A node without the blocks of a group that keeps all tokens has lost them to others.
    if (node == kNoNode || !has_full_groups(node)) {
      found.reason = node != kNoNode ? MissReason::evicted : why_not(prompt, hash, i == 0, options);
      break;
    }
    found.nodes.push_back(node);
  }
  const uint64_t usable = window_length(found.nodes);
  if (usable < found.nodes.size()) found.reason = MissReason::evicted;
  found.nodes.resize(usable);
  return found;
}

PrefixMatch CacheCore::match(std::span<const TokenId> prompt, const OpenOptions& options) const {
  const Found found = find(prompt, options);
  PrefixMatch match{.tokens = found.nodes.size() * block_tokens(), .reason = found.reason};
  const BlockPool& pool = store_->pool();
  for (uint32_t g = 0; g < group_count(); ++g) {
    for (uint64_t i = first_visible_block(group(g), block_tokens(), match.tokens); i < found.nodes.size(); ++i) {
      const BlockId id = store_->index().block(found.nodes[i], g);
      if (pool.refs(id) == 0) match.idle_bytes += pool.class_bytes(pool.size_class(id));
    }
  }
  return match;
}

PrefixMatch CacheCore::open(KvSequenceState& s, std::span<const TokenId> prompt, const OpenOptions& options) {
  const Found found = find(prompt, options);
  const uint64_t blocks = found.nodes.size();
  join(s);
  s.root = adapter_root(options.adapter);
  s.salt = options.cache_salt;
  s.tokens.reserve(prompt.size() + block_tokens());
  s.tokens.assign(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(blocks * block_tokens()));
  s.hashes.reserve(prompt.size() / block_tokens() + 1);
  for (const NodeId node : found.nodes) s.hashes.push_back(store_->index().hash(node));
  // Tables for the whole prompt at once: its steps take no memory for them.
  const uint64_t prompt_blocks = ceil_div(prompt.size(), block_tokens());
  const uint64_t step_blocks = std::min<uint64_t>(prompt_blocks, options_.max_step_tokens / block_tokens() + 2);
  for (uint32_t g = 0; g < group_count(); ++g) {
    GroupTable& table = s.groups[g];
    table.ids.reserve(prompt_blocks);
    table.addresses.reserve(prompt_blocks);
    table.raw.reserve(step_blocks);
    table.first = first_visible_block(group(g), block_tokens(), s.length());
    table.ids.assign(blocks, kNoBlock);
    table.addresses.assign(blocks, nullptr);
    for (uint64_t i = table.first; i < blocks; ++i) {
      table.ids[i] = store_->index().block(found.nodes[i], g);
      table.addresses[i] = store_->pool().address(table.ids[i]);
      if (store_->hold(found.nodes[i], g)) ++live_[g].sealed;
    }
  }
#ifdef KVARTO_FAULTS
  s.prompt.assign(prompt.begin(), prompt.end());
#endif
  query_tokens_ += prompt.size();
  hit_tokens_ += s.length();
  check_balance();
  return {.tokens = s.length(), .reason = found.reason};
}

// --- naming

// Names whole blocks [from, to), whose tokens are in place.
void CacheCore::name_blocks(KvSequenceState& s, uint64_t from, uint64_t to) {
  if (!options_.prefix_caching) return;
  for (uint64_t i = s.hashes.size(); i < to; ++i) {
    s.hashes.push_back(block_hash(s.tokens, i, i == 0 ? s.root : s.hashes[i - 1], s.salt));
  }
  for (uint64_t i = from; i < to; ++i) {
    if (node_of(s, i) == kNoNode) return;  // its hash belongs to other tokens
  }
}

// The node of the sequence's block; made, with all its ancestors, where there is none, from the blocks it holds itself.
// (An ancestor's node goes when the sequence has its own copy of the block and the named one is replaced.)
NodeId CacheCore::node_of(KvSequenceState& s, uint64_t block) {
  uint64_t known = block + 1;  // nodes of [0, known) exist
  NodeId node = kNoNode;
  while (known > 0 && node == kNoNode) {
    node = store_->index().find(s.hashes[known - 1], block_of(s.tokens, known - 1));
    if (node == kNoNode) --known;
  }
  if (known == block + 1) name_own(s, block, node);
  for (uint64_t i = known; i <= block; ++i) {
    node = store_->add_node(node, s.hashes[i], block_of(s.tokens, i), s.salt, s.root);
    if (node == kNoNode) return kNoNode;
    name_own(s, i, node);
  }
  return node;
}

void CacheCore::name_own(KvSequenceState& s, uint64_t block, NodeId node) {
  for (uint32_t g = 0; g < group_count(); ++g) {
    const BlockId id = s.groups[g].ids[block];
    if (id != kNoBlock) store_->name(node, g, id);
  }
}

// Planted bug 3: names blocks of the prompt when they are reserved, before anybody has written them.
void CacheCore::publish_prompt_early([[maybe_unused]] KvSequenceState& s, [[maybe_unused]] uint64_t end) {
#ifdef KVARTO_FAULTS
  const uint64_t whole = std::min<uint64_t>(end, s.prompt.size()) / block_tokens();
  if (!fault(3) || whole <= s.length() / block_tokens()) return;
  std::swap(s.tokens, s.prompt);
  name_blocks(s, s.hashes.size(), whole);
  std::swap(s.tokens, s.prompt);
#endif
}

}  // namespace kvarto

// The trie of named blocks: who can be found again, and whose turn it is to go. A node is one block of tokens under a
// chain hash; per group it holds a block id or none. Tokens are compared on every hit. Owned by BlockStore; the owner's
// thread only. Knows ids, not memory: BlockStore keeps it and the pool in step.
//
// An entry (node, group) is busy while a sequence holds its block and idle otherwise; idle entries can be replaced.
// Groups that keep all tokens lose leaves first: an entry goes only when no child holds a block of that group. Windows
// lose any.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "kvarto/kv_cache.h"
#include "kvarto/types.h"

namespace kvarto {

using NodeId = uint32_t;
inline constexpr NodeId kNoNode = 0xffffffffu;

struct BlockHashKey {
  size_t operator()(const BlockHash& hash) const {
    size_t value;
    static_assert(sizeof(value) <= sizeof(hash));
    std::memcpy(&value, hash.data(), sizeof(value));
    return value;
  }
};

struct IndexEntry {
  NodeId node = kNoNode;
  uint32_t group = 0;
};

class PrefixIndex {
 public:
  struct GroupRule {
    uint32_t size_class = 0;
    bool leaf_first = true;
  };
  PrefixIndex(uint32_t block_tokens, std::vector<GroupRule> groups, uint32_t class_count, Replacement replacement);

  // --- finding
  NodeId find(const BlockHash& hash, std::span<const TokenId> tokens) const;  // kNoNode: unknown, or other tokens
  BlockId block(NodeId node, uint32_t group) const { return entries_[slot(node, group)].block; }
  const BlockHash& hash(NodeId node) const { return nodes_[node].hash; }
  NodeId parent(NodeId node) const { return nodes_[node].parent; }
  std::span<const TokenId> tokens(NodeId node) const {
    return std::span(tokens_).subspan(size_t{node} * block_tokens_, block_tokens_);
  }
  std::string_view salt(NodeId first_block) const;
  std::vector<NodeId> all_nodes() const;  // parents before their children, chains in one run
  // Of the children of `parent` (kNoNode: the first blocks under `salt` and `root`) the one that begins with the most
  // of `tokens`; only the newest kMostChildren are looked at. kNoNode: there is none.
  struct Child {
    NodeId node = kNoNode;
    uint32_t common = 0;
  };
  static constexpr uint32_t kMostChildren = 1024;
  Child closest_child(NodeId parent, std::string_view salt, std::span<const TokenId> tokens,
                      const BlockHash& root = root_hash()) const;
  // Why a chain of hashes ends: the first hash not found was replaced here; the first block is known under another
  // salt; a first block with the same salt (and root, see adapter_root()) begins with the same kBeginningTokens. Fewer
  // are what a tokenizer or a chat template puts in front of every prompt.
  static constexpr uint32_t kBeginningTokens = 8;
  bool was_replaced(const BlockHash& hash) const { return replaced_.contains(hash); }
  bool knows_unsalted(const BlockHash& hash) const { return unsalted_.contains(hash); }
  bool knows_beginning(std::string_view salt, std::span<const TokenId> tokens,
                       const BlockHash& root = root_hash()) const;

  // --- naming
  // A node for a child of `parent` (kNoNode: a first block, whose salt and root are kept for miss reasons); the node
  // that is there already if there is one, kNoNode if its hash belongs to other tokens.
  NodeId add(NodeId parent, const BlockHash& hash, std::span<const TokenId> tokens, std::string_view salt,
             const BlockHash& root = root_hash());
  void attach(NodeId node, uint32_t group, BlockId block);  // busy; the entry must be empty
  // Forgets one entry, and nodes that then hold nothing and lead nowhere.
  void detach(NodeId node, uint32_t group);

  // --- replacing
  void set_busy(NodeId node, uint32_t group);                 // a hit
  void set_idle(NodeId node, uint32_t group);                 // given back
  std::optional<IndexEntry> best(uint32_t size_class) const;  // the next to be replaced
  uint64_t last_use(NodeId node, uint32_t group) const { return entries_[slot(node, group)].last_use; }
  // The entries of `group` below and at `node`, deepest first.
  void subtree(NodeId node, uint32_t group, std::vector<IndexEntry>& out) const;
  void remember_replaced(const BlockHash& hash);
  void forget_replaced();

  uint32_t tag(NodeId node, uint32_t group) const { return static_cast<uint32_t>(slot(node, group)); }
  IndexEntry entry(uint32_t tag) const { return {tag / group_count(), tag % group_count()}; }
  uint32_t group_count() const { return static_cast<uint32_t>(groups_.size()); }
  uint64_t node_count() const { return by_hash_.size(); }
  uint64_t entry_count() const { return entry_count_; }
  std::string audit() const;

 private:
  struct Node {
    BlockHash hash{};
    NodeId parent = kNoNode, child = kNoNode, prev = kNoNode,
           next = kNoNode;  // `child` is the first, the others its siblings
    uint32_t held = 0;      // entries with a block
    bool used = false;
  };
  struct Entry {
    BlockId block = kNoBlock;
    uint32_t children = 0;  // child nodes with a block of this group
    uint32_t uses = 0;
    bool idle = false;
    uint64_t created = 0, last_use = 0;
  };
  struct FirstBlock {
    BlockHash unsalted;
    std::string salted_beginning;  // the first tokens as a number, scope_of()
    size_t root_bytes = 0;         // in front of the salt there
  };
  // What decides who goes first, smallest first; the last part names the entry.
  struct Turn {
    uint64_t first, second;
    uint32_t tag;
    auto operator<=>(const Turn&) const = default;
  };

  size_t slot(NodeId node, uint32_t group) const { return size_t{node} * groups_.size() + group; }
  Turn turn(size_t slot) const;
  bool replaceable(size_t slot) const;
  void queue(size_t slot);
  void unqueue(size_t slot);
  NodeId new_node();
  NodeId first_child(NodeId parent) const { return parent == kNoNode ? first_root_ : nodes_[parent].child; }
  void set_first_child(NodeId parent, NodeId child) {
    (parent == kNoNode ? first_root_ : nodes_[parent].child) = child;
  }
  void keep_first(NodeId node, std::string_view salt, const BlockHash& root);
  std::string_view scope(NodeId first_block) const;
  void forget_first(NodeId node);
  void remove_if_bare(NodeId node);
  std::string audit_node(NodeId node) const;

  uint32_t block_tokens_;
  std::vector<GroupRule> groups_;
  Replacement replacement_;
  std::vector<Node> nodes_;
  NodeId first_root_ = kNoNode;  // first blocks are siblings like any others
  std::vector<TokenId> tokens_;  // [node * block_tokens]
  std::vector<Entry> entries_;   // [node * groups + group]
  std::vector<NodeId> free_nodes_;
  std::unordered_map<BlockHash, NodeId, BlockHashKey> by_hash_;
  std::vector<std::set<Turn>> queues_;  // [size class] entries that may go, in the order they go
  uint64_t clock_ = 0;
  uint64_t entry_count_ = 0;
  std::unordered_map<NodeId, FirstBlock> firsts_;
  std::unordered_map<BlockHash, uint32_t, BlockHashKey> unsalted_;  // first blocks by their name without salt: how many
  std::unordered_map<std::string, uint32_t> beginnings_;            // first blocks by salt and beginning: how many
  std::unordered_map<BlockHash, uint32_t, BlockHashKey> replaced_;  // bounded: the newest kRememberedReplaced
  std::deque<BlockHash> replaced_order_;
};

}  // namespace kvarto

#include "kv/prefix_index.h"

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "base/fault.h"

namespace kvarto {
namespace {

constexpr size_t kRememberedReplaced = 16384;         // names, about 1.5 MB of them
constexpr size_t kBeginningBytes = sizeof(uint64_t);  // in front of a scope

// Whose blocks are alike: the salt, behind the root where that is an adapter's.
std::string scope_of(const BlockHash& root, std::string_view salt) {
  std::string scope;
  if (root != root_hash()) scope.assign(root.begin(), root.end());
  return scope.append(salt);
}

// The beginning as a number, so that the key stays short: two that agree by chance make a miss reason wrong, no more.
std::string salted_beginning(const BlockHash& root, std::string_view salt, std::span<const TokenId> tokens) {
  const auto beginning = tokens.first(PrefixIndex::kBeginningTokens);
  const uint64_t number = std::hash<std::string_view>()(
      std::string_view(reinterpret_cast<const char*>(beginning.data()), beginning.size_bytes()));
  std::string key(reinterpret_cast<const char*>(&number), kBeginningBytes);
  return key.append(scope_of(root, salt));
}

// Takes one from a counted map.
template <typename Map, typename Key>
void count_down(Map& map, const Key& key) {
  const auto found = map.find(key);
  CHECK(found != map.end(), "a counted name is missing");
  if (--found->second == 0) map.erase(found);
}

}  // namespace

PrefixIndex::PrefixIndex(uint32_t block_tokens, std::vector<GroupRule> groups, uint32_t class_count,
                         Replacement replacement)
    : block_tokens_(block_tokens), groups_(std::move(groups)), replacement_(replacement), queues_(class_count) {}

// --- finding

NodeId PrefixIndex::find(const BlockHash& hash, std::span<const TokenId> tokens) const {
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end()) return kNoNode;
  const TokenId* own = &tokens_[size_t{found->second} * block_tokens_];
  return std::ranges::equal(tokens, std::span(own, block_tokens_)) ? found->second : kNoNode;
}

bool PrefixIndex::knows_beginning(std::string_view salt, std::span<const TokenId> tokens, const BlockHash& root) const {
  return tokens.size() >= kBeginningTokens && beginnings_.contains(salted_beginning(root, salt, tokens));
}

std::string_view PrefixIndex::scope(NodeId first_block) const {
  const auto first = firsts_.find(first_block);
  CHECK(first != firsts_.end(), "only first blocks keep their salt");
  return std::string_view(first->second.salted_beginning).substr(kBeginningBytes);
}

std::string_view PrefixIndex::salt(NodeId first_block) const {
  const std::string_view with_root = scope(first_block);
  return with_root.substr(firsts_.at(first_block).root_bytes);
}

std::vector<NodeId> PrefixIndex::all_nodes() const {
  std::vector<NodeId> out, open;
  const auto open_children = [&](NodeId parent) {
    for (NodeId child = first_child(parent); child != kNoNode; child = nodes_[child].next) open.push_back(child);
  };
  open_children(kNoNode);
  while (!open.empty()) {
    const NodeId at = open.back();
    open.pop_back();
    out.push_back(at);
    open_children(at);
  }
  return out;
}

PrefixIndex::Child PrefixIndex::closest_child(NodeId parent, std::string_view salt, std::span<const TokenId> wanted,
                                              const BlockHash& root) const {
  const std::string own_scope = scope_of(root, salt);
  Child best;
  uint32_t looked_at = 0;
  for (NodeId node = first_child(parent); node != kNoNode && looked_at < kMostChildren; node = nodes_[node].next) {
    ++looked_at;
    const std::span<const TokenId> own = tokens(node);
    const auto parted = std::ranges::mismatch(own, wanted);
    const uint32_t common = static_cast<uint32_t>(parted.in1 - own.begin());
    const bool better = best.node == kNoNode || common > best.common;
    if (better && (parent != kNoNode || scope(node) == own_scope)) best = {.node = node, .common = common};
  }
  return best;
}

// --- naming

NodeId PrefixIndex::new_node() {
  if (!free_nodes_.empty()) {
    const NodeId node = free_nodes_.back();
    free_nodes_.pop_back();
    return node;
  }
  const NodeId node = static_cast<NodeId>(nodes_.size());
  nodes_.emplace_back();
  tokens_.resize(tokens_.size() + block_tokens_);
  entries_.resize(entries_.size() + groups_.size());
  return node;
}

NodeId PrefixIndex::add(NodeId parent, const BlockHash& hash, std::span<const TokenId> tokens, std::string_view salt,
                        const BlockHash& root) {
  CHECK(tokens.size() == block_tokens_, "a node is a whole block of tokens");
  if (by_hash_.contains(hash)) return find(hash, tokens);
  const NodeId node = new_node();
  std::ranges::copy(tokens, &tokens_[size_t{node} * block_tokens_]);
  Node& n = nodes_[node];
  n = Node{.hash = hash, .parent = parent, .used = true};
  by_hash_.emplace(hash, node);
  n.next = first_child(parent);
  if (n.next != kNoNode) nodes_[n.next].prev = node;
  set_first_child(parent, node);
  if (parent == kNoNode) keep_first(node, salt, root);
  return node;
}

void PrefixIndex::keep_first(NodeId node, std::string_view salt, const BlockHash& root) {
  const std::span<const TokenId> tokens(&tokens_[size_t{node} * block_tokens_], block_tokens_);
  FirstBlock first{.unsalted = salt.empty() ? nodes_[node].hash : chain_hash(root, tokens),
                   .salted_beginning = salted_beginning(root, salt, tokens),
                   .root_bytes = root == root_hash() ? 0 : root.size()};
  ++unsalted_[first.unsalted];
  ++beginnings_[first.salted_beginning];
  firsts_.emplace(node, std::move(first));
}

void PrefixIndex::forget_first(NodeId node) {
  const auto first = firsts_.find(node);
  CHECK(first != firsts_.end(), "a first block is not listed");
  count_down(unsalted_, first->second.unsalted);
  count_down(beginnings_, first->second.salted_beginning);
  firsts_.erase(first);
}

void PrefixIndex::attach(NodeId node, uint32_t group, BlockId block) {
  Entry& entry = entries_[slot(node, group)];
  CHECK(entry.block == kNoBlock && block != kNoBlock, "an entry holds one block");
  const uint32_t children = entry.children;
  entry = Entry{.block = block, .children = children, .uses = 1, .created = ++clock_, .last_use = clock_};
  ++nodes_[node].held;
  ++entry_count_;
  if (nodes_[node].parent == kNoNode) return;
  const size_t above = slot(nodes_[node].parent, group);
  unqueue(above);
  ++entries_[above].children;
  queue(above);
}

void PrefixIndex::detach(NodeId node, uint32_t group) {
  const size_t at = slot(node, group);
  CHECK(entries_[at].block != kNoBlock, "an empty entry cannot be forgotten");
  unqueue(at);
  entries_[at] = Entry{.children = entries_[at].children};
  --nodes_[node].held;
  --entry_count_;
  if (nodes_[node].parent != kNoNode) {
    const size_t above = slot(nodes_[node].parent, group);
    --entries_[above].children;
    queue(above);
  }
  remove_if_bare(node);
}

void PrefixIndex::remove_if_bare(NodeId node) {
  while (node != kNoNode && nodes_[node].held == 0 && nodes_[node].child == kNoNode) {
    const Node n = nodes_[node];
    by_hash_.erase(n.hash);
    if (n.parent == kNoNode) forget_first(node);
    if (n.prev == kNoNode) {
      set_first_child(n.parent, n.next);
    } else {
      nodes_[n.prev].next = n.next;
    }
    if (n.next != kNoNode) nodes_[n.next].prev = n.prev;
    nodes_[node] = Node{};
    free_nodes_.push_back(node);
    node = n.parent;
  }
}

// --- replacing

// The policies: what makes an entry's turn come sooner. One line each.
PrefixIndex::Turn PrefixIndex::turn(size_t slot) const {
  const Entry& e = entries_[slot];
  const uint32_t tag = static_cast<uint32_t>(slot);
  switch (replacement_) {
    case Replacement::lru:
      return {fault(2) ? ~e.last_use : e.last_use, 0, tag};
    case Replacement::lfu:
      return {e.uses, e.last_use, tag};
    case Replacement::fifo:
      return {e.created, 0, tag};
  }
  return {};
}

bool PrefixIndex::replaceable(size_t slot) const {
  const Entry& e = entries_[slot];
  return e.block != kNoBlock && e.idle && (e.children == 0 || !groups_[slot % groups_.size()].leaf_first);
}

// Both leave an entry alone that may not go now, and may be called for any entry.
void PrefixIndex::queue(size_t slot) {
  if (replaceable(slot)) queues_[groups_[slot % groups_.size()].size_class].insert(turn(slot));
}
void PrefixIndex::unqueue(size_t slot) {
  if (replaceable(slot)) queues_[groups_[slot % groups_.size()].size_class].erase(turn(slot));
}

void PrefixIndex::set_busy(NodeId node, uint32_t group) {
  const size_t at = slot(node, group);
  unqueue(at);
  ++entries_[at].uses;
  entries_[at].idle = false;
}

void PrefixIndex::set_idle(NodeId node, uint32_t group) {
  const size_t at = slot(node, group);
  CHECK(entries_[at].block != kNoBlock && !entries_[at].idle, "an entry becomes idle once");
  entries_[at].idle = true;
  entries_[at].last_use = ++clock_;
  queue(at);
}

std::optional<IndexEntry> PrefixIndex::best(uint32_t size_class) const {
  const std::set<Turn>& queue = queues_[size_class];
  if (queue.empty()) return std::nullopt;
  return entry(queue.begin()->tag);
}

void PrefixIndex::subtree(NodeId node, uint32_t group, std::vector<IndexEntry>& out) const {
  out.clear();
  std::vector<NodeId> open{node};
  while (!open.empty()) {
    const NodeId at = open.back();
    open.pop_back();
    if (block(at, group) != kNoBlock) out.push_back({at, group});
    for (NodeId child = nodes_[at].child; child != kNoNode; child = nodes_[child].next) open.push_back(child);
  }
  std::ranges::reverse(out);  // parents were met before their children
}

void PrefixIndex::remember_replaced(const BlockHash& hash) {
  ++replaced_[hash];
  replaced_order_.push_back(hash);
  if (replaced_order_.size() <= kRememberedReplaced) return;
  count_down(replaced_, replaced_order_.front());
  replaced_order_.pop_front();
}

void PrefixIndex::forget_replaced() {
  replaced_.clear();
  replaced_order_.clear();
}

// --- audit

std::string PrefixIndex::audit_node(NodeId node) const {
  const Node& n = nodes_[node];
  const std::string name = "node " + std::to_string(node);
  const auto known = by_hash_.find(n.hash);
  if (known == by_hash_.end() || known->second != node) return name + ": not found under its hash";
  if (n.held == 0 && n.child == kNoNode) return name + ": holds nothing and leads nowhere";
  std::vector<uint32_t> children(groups_.size(), 0);
  for (NodeId c = n.child; c != kNoNode; c = nodes_[c].next) {
    if (!nodes_[c].used || nodes_[c].parent != node) return name + ": a child does not know it";
    for (uint32_t g = 0; g < groups_.size(); ++g) children[g] += block(c, g) != kNoBlock;
  }
  uint32_t held = 0;
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    const Entry& e = entries_[slot(node, g)];
    held += e.block != kNoBlock;
    if (e.children != children[g]) return name + ": children miscounted";
    const bool queued = queues_[groups_[g].size_class].contains(turn(slot(node, g)));
    if (queued != replaceable(slot(node, g))) return name + ": in the queue against the rule";
  }
  if (held != n.held) return name + ": entries miscounted";
  if ((n.parent == kNoNode) != firsts_.contains(node)) return name + ": first blocks misfiled";
  return {};
}

std::string PrefixIndex::audit() const {
  size_t used = 0, entries = 0, queued = 0, firsts = 0, may_go = 0;
  for (NodeId node = 0; node < nodes_.size(); ++node) {
    if (!nodes_[node].used) continue;
    if (std::string wrong = audit_node(node); !wrong.empty()) return wrong;
    ++used;
    entries += nodes_[node].held;
    for (uint32_t g = 0; g < groups_.size(); ++g) may_go += replaceable(slot(node, g));
  }
  for (const auto& queue : queues_) queued += queue.size();
  for (const auto& [hash, count] : unsalted_) firsts += count;
  if (all_nodes().size() != used) return "nodes that no root leads to";
  if (used != by_hash_.size() || used + free_nodes_.size() != nodes_.size()) return "nodes are lost";
  if (entries != entry_count_) return "entries miscounted";
  if (queued != may_go) return "the queue holds entries that are gone";
  if (firsts != firsts_.size()) return "first blocks miscounted";
  return {};
}

}  // namespace kvarto

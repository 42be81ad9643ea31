#include "kv/prefix_index.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

namespace kvarto {
namespace {

using Tokens = std::vector<TokenId>;

Tokens block(TokenId first) {
  Tokens out;
  for (TokenId i = 0; i < 16; ++i) out.push_back(first + i);
  return out;
}

BlockHash hash_of(int n) {
  BlockHash hash{};
  hash[0] = static_cast<uint8_t>(n);
  return hash;
}

// One group that keeps all tokens and one window, each of its own size class.
PrefixIndex make(Replacement replacement = Replacement::lru) {
  return PrefixIndex(16, {{.size_class = 0, .leaf_first = true}, {.size_class = 1, .leaf_first = false}}, 2,
                     replacement);
}

// A chain of `count` blocks, block ids 10 * (n + 1) + group, all idle, released back to front.
std::vector<NodeId> chain(PrefixIndex& index, int first_hash, int count) {
  std::vector<NodeId> nodes;
  for (int i = 0; i < count; ++i) {
    const int n = first_hash + i;
    nodes.push_back(index.add(nodes.empty() ? kNoNode : nodes.back(), hash_of(n), block(n * 100), ""));
    for (uint32_t g = 0; g < 2; ++g) index.attach(nodes.back(), g, static_cast<BlockId>(10 * (n + 1)) + g);
  }
  for (int i = count; i > 0; --i) {
    for (uint32_t g = 0; g < 2; ++g) index.set_idle(nodes[static_cast<size_t>(i - 1)], g);
  }
  return nodes;
}

std::vector<BlockId> order(PrefixIndex& index, uint32_t size_class) {
  std::vector<BlockId> out;
  while (const auto entry = index.best(size_class)) {
    out.push_back(index.block(entry->node, entry->group));
    index.detach(entry->node, entry->group);
    EXPECT_EQ(index.audit(), "");
  }
  return out;
}

TEST(PrefixIndex, FindsByHashAndComparesTokens) {
  PrefixIndex index = make();
  const NodeId node = index.add(kNoNode, hash_of(1), block(5), "");
  index.attach(node, 0, 77);
  EXPECT_EQ(index.find(hash_of(1), block(5)), node);
  EXPECT_EQ(index.find(hash_of(2), block(5)), kNoNode);
  // The same hash with other tokens is no hit, and the name is not given twice.
  EXPECT_EQ(index.find(hash_of(1), block(6)), kNoNode);
  EXPECT_EQ(index.add(kNoNode, hash_of(1), block(6), ""), kNoNode);
  EXPECT_EQ(index.add(kNoNode, hash_of(1), block(5), ""), node);
  EXPECT_EQ(index.block(node, 0), 77u);
  EXPECT_EQ(index.audit(), "");
}

TEST(PrefixIndex, LruGivesUpTheLeastRecentlyUsedFirst) {
  PrefixIndex index = make();
  const auto a = chain(index, 1, 2);
  const auto b = chain(index, 3, 2);
  for (const NodeId node : a) index.set_busy(node, 0);  // a hit on a
  index.set_idle(a[1], 0);
  index.set_idle(a[0], 0);
  EXPECT_EQ(order(index, 0), (std::vector<BlockId>{50, 40, 30, 20}));
  EXPECT_EQ(index.entry_count(), 4u);  // the window's entries are still there
}

TEST(PrefixIndex, FullGroupsLoseLeavesFirstWhateverThePolicy) {
  for (const Replacement r : {Replacement::lru, Replacement::lfu, Replacement::fifo}) {
    PrefixIndex index = make(r);
    const auto nodes = chain(index, 1, 3);
    EXPECT_EQ(order(index, 0), (std::vector<BlockId>{40, 30, 20}));
  }
}

TEST(PrefixIndex, FifoGoesByAgeLfuByUses) {
  const auto use = [](PrefixIndex& index, NodeId node, int times) {
    for (int i = 0; i < times; ++i) {
      index.set_busy(node, 1);
      index.set_idle(node, 1);
    }
  };
  PrefixIndex fifo = make(Replacement::fifo);
  PrefixIndex lfu = make(Replacement::lfu);
  for (PrefixIndex* index : {&fifo, &lfu}) {
    const auto nodes = chain(*index, 1, 3);
    use(*index, nodes[0], 3);
    use(*index, nodes[2], 1);
  }
  EXPECT_EQ(order(fifo, 1), (std::vector<BlockId>{21, 31, 41}));
  EXPECT_EQ(order(lfu, 1), (std::vector<BlockId>{31, 41, 21}));
}

TEST(PrefixIndex, WindowsLoseAnyBlockAndTheChainStays) {
  PrefixIndex index = make();
  const auto nodes = chain(index, 1, 3);
  index.detach(nodes[0], 1);
  EXPECT_EQ(index.block(nodes[0], 1), kNoBlock);
  EXPECT_EQ(index.find(hash_of(3), block(300)), nodes[2]);
  EXPECT_EQ(index.audit(), "");
}

TEST(PrefixIndex, BusyEntriesAreNotGivenUp) {
  PrefixIndex index = make();
  const auto nodes = chain(index, 1, 2);
  index.set_busy(nodes[1], 0);
  EXPECT_FALSE(index.best(0).has_value());  // the parent has a child that holds a block
  index.set_idle(nodes[1], 0);
  EXPECT_EQ(index.best(0)->node, nodes[1]);
}

TEST(PrefixIndex, NodesGoWhenTheyHoldNothingAndLeadNowhere) {
  PrefixIndex index = make();
  const auto nodes = chain(index, 1, 2);
  index.detach(nodes[0], 1);
  index.detach(nodes[1], 0);
  index.detach(nodes[0], 0);
  EXPECT_EQ(index.node_count(), 2u);  // nodes[0] holds nothing, but leads to a window block
  EXPECT_EQ(index.audit(), "");
  index.detach(nodes[1], 1);
  EXPECT_EQ(index.node_count(), 0u);
  EXPECT_FALSE(index.knows_beginning("", block(100)));
  EXPECT_EQ(index.audit(), "");
}

TEST(PrefixIndex, SubtreeComesDeepestFirst) {
  PrefixIndex index = make();
  const auto trunk = chain(index, 1, 3);
  const NodeId side = index.add(trunk[0], hash_of(9), block(900), "");
  index.attach(side, 0, 99);
  std::vector<IndexEntry> out;
  index.subtree(trunk[0], 0, out);
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out.back().node, trunk[0]);
  const auto at = [&](NodeId node) {
    return std::ranges::find_if(out, [&](const IndexEntry& e) { return e.node == node; }) - out.begin();
  };
  EXPECT_LT(at(trunk[2]), at(trunk[1]));
}

TEST(PrefixIndex, RemembersWhatWasReplacedWithinBounds) {
  PrefixIndex index = make();
  index.remember_replaced(hash_of(1));
  EXPECT_TRUE(index.was_replaced(hash_of(1)));
  for (int i = 0; i < 16384; ++i) {
    BlockHash hash = hash_of(2);
    std::memcpy(&hash[1], &i, sizeof(i));
    index.remember_replaced(hash);
  }
  EXPECT_FALSE(index.was_replaced(hash_of(1)));
  index.forget_replaced();
  EXPECT_FALSE(index.was_replaced(hash_of(2)));
}

// The trie as a plain map from the path of a node (which child of which child...) to what it holds.
class IndexAndModel {
 public:
  explicit IndexAndModel(Replacement replacement) : replacement_(replacement), index_(make(replacement)) {}

  void step(uint64_t dice, uint64_t which) {
    if (dice < 5 || nodes_.empty()) {
      add(which);
    } else {
      const auto node = std::next(nodes_.begin(), static_cast<ptrdiff_t>(which / 2 % nodes_.size()));
      const auto group = static_cast<uint32_t>(which % 2);
      Entry& entry = node->second.entries[group];
      if (entry.block == kNoBlock) {
        attach(node->second, group);
      } else if (dice < 8) {
        toggle(node->second, group);
      } else if (entry.idle && (group == 1 || children_with_block(node->first) == 0)) {
        detach(node->first, group);
      }
    }
    check();
  }

  // Gives up everything that is idle, in the index's order.
  void drain() {
    for (uint32_t group = 0; group < 2; ++group) {
      while (const auto entry = index_.best(group)) {
        const auto node = std::ranges::find_if(nodes_, [&](const auto& n) { return n.second.id == entry->node; });
        RC_ASSERT(node != nodes_.end());
        detach(node->first, group);
        check();
      }
    }
  }

 private:
  using Path = std::string;
  struct Entry {
    BlockId block = kNoBlock;
    bool idle = false;
    uint64_t created = 0, used = 0, uses = 0;
  };
  struct Node {
    NodeId id = kNoNode;
    Tokens tokens;
    Entry entries[2];
  };

  static BlockHash hash_of_path(const Path& path) {
    BlockHash hash{};
    for (size_t i = 0; i < path.size(); ++i) hash[i] = static_cast<uint8_t>(path[i]);
    return hash;
  }
  static bool is_child(const Path& path, const Path& parent) {
    return path.size() == parent.size() + 1 && path.starts_with(parent);
  }
  size_t children_with_block(const Path& parent) const {
    return static_cast<size_t>(std::ranges::count_if(
        nodes_, [&](const auto& n) { return is_child(n.first, parent) && n.second.entries[0].block != kNoBlock; }));
  }

  // One of three children of some node, or of the root; it gets a block at once, as a named block does.
  void add(uint64_t which) {
    Path path;
    NodeId parent = kNoNode;
    if (!nodes_.empty() && which % 4 != 0) {
      const auto above = std::next(nodes_.begin(), static_cast<ptrdiff_t>(which / 16 % nodes_.size()));
      if (above->first.size() == 12) return;
      path = above->first;
      parent = above->second.id;
    }
    path.push_back(static_cast<char>('a' + which / 4 % 3));
    const Tokens tokens = block(static_cast<TokenId>(path.size() * 1000 + static_cast<size_t>(path.back())));
    const NodeId id = index_.add(parent, hash_of_path(path), tokens, "");
    if (const auto known = nodes_.find(path); known != nodes_.end()) {
      RC_ASSERT(known->second.id == id);
      return;
    }
    RC_ASSERT(id != kNoNode);
    Node& node = nodes_[path] = {.id = id, .tokens = tokens, .entries = {}};
    attach(node, 0);
  }

  void attach(Node& node, uint32_t group) {
    index_.attach(node.id, group, ++last_block_);
    node.entries[group] = {.block = last_block_, .idle = false, .created = ++clock_, .used = clock_, .uses = 1};
  }

  void toggle(Node& node, uint32_t group) {
    Entry& entry = node.entries[group];
    if (entry.idle) {
      index_.set_busy(node.id, group);
      ++entry.uses;
    } else {
      index_.set_idle(node.id, group);
      entry.used = ++clock_;
    }
    entry.idle = !entry.idle;
  }

  void detach(Path path, uint32_t group) {
    index_.detach(nodes_[path].id, group);
    nodes_[path].entries[group] = {};
    const auto bare = [&] {
      const Node& node = nodes_[path];
      return node.entries[0].block == kNoBlock && node.entries[1].block == kNoBlock &&
             std::ranges::none_of(nodes_, [&](const auto& n) { return is_child(n.first, path); });
    };
    while (!path.empty() && bare()) {
      nodes_.erase(path);
      path.pop_back();
    }
  }

  uint64_t turn(const Entry& entry) const {
    if (replacement_ == Replacement::lfu) return entry.uses * 1'000'000 + entry.used;
    return replacement_ == Replacement::lru ? entry.used : entry.created;
  }

  void check() {
    RC_ASSERT(index_.audit() == "");
    RC_ASSERT(index_.node_count() == nodes_.size());
    std::optional<BlockId> first[2];
    uint64_t soonest[2] = {UINT64_MAX, UINT64_MAX};
    for (const auto& [path, node] : nodes_) {
      RC_ASSERT(index_.find(hash_of_path(path), node.tokens) == node.id);
      for (uint32_t group = 0; group < 2; ++group) {
        const Entry& entry = node.entries[group];
        RC_ASSERT(index_.block(node.id, group) == entry.block);
        const bool may_go = entry.block != kNoBlock && entry.idle && (group == 1 || children_with_block(path) == 0);
        if (may_go && turn(entry) < soonest[group]) {
          soonest[group] = turn(entry);
          first[group] = entry.block;
        }
      }
    }
    for (uint32_t group = 0; group < 2; ++group) {
      const auto best = index_.best(group);
      RC_ASSERT(best.has_value() == first[group].has_value());
      if (best) RC_ASSERT(index_.block(best->node, best->group) == *first[group]);
    }
  }

  Replacement replacement_;
  PrefixIndex index_;
  std::map<Path, Node> nodes_;
  BlockId last_block_ = 0;
  uint64_t clock_ = 0;
};

RC_GTEST_PROP(PrefixIndexRandom, AgreesWithAPlainMap, ()) {
  using Operation = std::pair<uint32_t, uint32_t>;  // dice and which node
  const auto operation = rc::gen::pair(rc::gen::inRange<uint32_t>(0, 10), rc::gen::inRange<uint32_t>(0, 1u << 20));
  const auto operations = *rc::gen::scale(2.0, rc::gen::container<std::vector<Operation>>(operation));
  IndexAndModel world(*rc::gen::element(Replacement::lru, Replacement::lfu, Replacement::fifo));
  for (const auto& [dice, which] : operations) world.step(dice, which);
  world.drain();
}

}  // namespace
}  // namespace kvarto

#include "kv/prefix_index.h"

#include <gtest/gtest.h>

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
  EXPECT_FALSE(index.knows_first_token("", 100));
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

}  // namespace
}  // namespace kvarto

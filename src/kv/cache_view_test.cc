// What is looked at from outside: the map of blocks, lives of blocks, near misses.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kv/block_lives.h"
#include "kv/cache_testing.h"
#include "kv/prefix_index.h"

namespace kvarto {
namespace {

using namespace kvarto::testing;
using State = BlockCell::State;

std::vector<BlockCell> map_of(const Cache& cache) {
  std::vector<BlockCell> out;
  cache->block_map(out);
  return out;
}

std::map<State, int> states(const std::vector<BlockCell>& cells) {
  std::map<State, int> out;
  for (const BlockCell& cell : cells) ++out[cell.state];
  return out;
}

// --- the map of blocks

TEST(BlockMap, CountsWhatIsThere) {
  Cache cache({full_layer()}, 16);
  EXPECT_EQ(states(map_of(cache)), (std::map<State, int>{{State::free, 16}}));
  cache.run(text(1, 40));  // two full blocks stay, the open one goes
  KvCache::Opened opened = cache->open(text(2, 60));
  cache.grow(opened.sequence, text(2, 50));
  KvSequence child = *cache->fork(opened.sequence);
  const std::vector<BlockCell> cells = map_of(cache);
  EXPECT_EQ(states(cells),
            (std::map<State, int>{{State::free, 9}, {State::open, 2}, {State::active, 3}, {State::cached, 2}}));
  for (const BlockCell& cell : cells) {
    EXPECT_EQ(cell.bytes, cache->layout().groups()[0].block_bytes);
    EXPECT_EQ(cell.group, cell.state == State::free ? UINT32_MAX : 0u);
    EXPECT_EQ(cell.named, cell.state == State::active || cell.state == State::cached);
    const uint32_t references[] = {0, 1, 2, 0};
    EXPECT_EQ(cell.references, references[static_cast<int>(cell.state)]);
    EXPECT_EQ(cell.age_us, 0u) << "there is no clock";
  }
}

TEST(BlockMap, OfTwoEqualBlocksOneHasTheName) {
  Cache cache({full_layer()}, 16);
  KvCache::Opened first = cache->open(text(1, 32)), second = cache->open(text(1, 32));
  cache.grow(first.sequence, text(1, 32));
  cache.grow(second.sequence, text(1, 32));
  const std::vector<BlockCell> cells = map_of(cache);
  EXPECT_EQ(states(cells)[State::active], 4);
  EXPECT_EQ(std::ranges::count_if(cells, [](const BlockCell& cell) { return cell.named; }), 2);
}

TEST(BlockMap, TailsOfTheirOwnAreOpenAndGroupsAreToldApart) {
  Cache cache({window_layer(32, 1), full_layer()}, 16, {.separate_tails = true});
  KvCache::Opened opened = cache->open(text(1, 60));
  cache.grow(opened.sequence, text(1, 53));
  std::map<std::pair<State, uint32_t>, int> counted;
  size_t bytes = 0;
  for (const BlockCell& cell : map_of(cache)) {
    bytes += cell.bytes;
    if (cell.references > 0) ++counted[{cell.state, cell.group}];
  }
  // 53 tokens are 3 full blocks and an open one; the next token sees positions 22 to 53 of the window group.
  EXPECT_EQ(counted,
            (std::map<std::pair<State, uint32_t>, int>{
                {{State::open, 0}, 1}, {{State::open, 1}, 1}, {{State::active, 0}, 2}, {{State::active, 1}, 3}}));
  EXPECT_LE(bytes, cache->stats().arena_bytes);
}

TEST(BlockMap, TellsTimesOfTheClockItWasGiven) {
  uint64_t now = 1000;
  Cache cache({full_layer()}, 16, {}, {.clock_us = [&] { return now; }});
  now = 5000;
  KvCache::Opened opened = cache->open(text(1, 32));
  cache.grow(opened.sequence, text(1, 32));
  now = 9000;
  std::vector<BlockCell> cells = map_of(cache);
  auto used = std::ranges::find(cells, State::active, &BlockCell::state);
  ASSERT_NE(used, cells.end());
  EXPECT_EQ(used->age_us, 4000u);
  EXPECT_EQ(used->idle_us, 0u) << "held blocks are in use";
  opened.sequence = KvSequence();
  now = 9700;
  cells = map_of(cache);
  used = std::ranges::find(cells, State::cached, &BlockCell::state);
  ASSERT_NE(used, cells.end());
  EXPECT_EQ(used->age_us, 4700u);
  EXPECT_EQ(used->idle_us, 700u);
}

// --- lives

TEST(BlockLives, TellOfReuseAndReplacement) {
  uint64_t now = 0;
  std::vector<BlockLife> heard;
  Cache cache({full_layer()}, 2, {},
              {.clock_us = [&] { return now; },
               .on_life = [&](const BlockLife& life) { heard.push_back(life); },
               .life_sample = 1.0});
  now = 100;
  cache.run(text(1, 17));  // taken and given back at 100; the open block too
  now = 350;
  EXPECT_EQ(cache.run(text(1, 17)).tokens, 16u);  // hit at 350, given back at once
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].moment, BlockLife::Moment::reused);
  EXPECT_EQ(heard[0].idle_us, 250u);
  EXPECT_EQ(heard[0].lifetime_us, 250u);
  now = 1000;
  cache.run(text(2, 32));  // needs both
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(heard[1].moment, BlockLife::Moment::replaced);
  EXPECT_EQ(heard[1].group, 0u);
  EXPECT_EQ(heard[1].idle_us, 650u);
  EXPECT_EQ(heard[1].lifetime_us, 900u);
  EXPECT_TRUE(cache->clear());
  EXPECT_EQ(heard.size(), 2u) << "a clear replaces nothing";
}

std::vector<int> sampled_of(int count, double share) {
  int at = 0;
  std::vector<int> out;
  BlockLives lives([] { return 0; }, share, [&](const BlockLife&) { out.push_back(at); });
  for (at = 0; at < count; ++at) {
    lives.taken(static_cast<BlockId>(at % 8));
    lives.replaced(static_cast<BlockId>(at % 8), 0);
  }
  return out;
}

TEST(BlockLives, AShareIsSampledTheSameEachTime) {
  const std::vector<int> tenth = sampled_of(20'000, 0.1);
  // 2000 expected, standard deviation 42.
  EXPECT_GT(tenth.size(), 1790u);
  EXPECT_LT(tenth.size(), 2210u);
  EXPECT_EQ(tenth, sampled_of(20'000, 0.1));
  std::map<int, int> of_block;
  for (const int at : tenth) ++of_block[at % 8];
  EXPECT_EQ(of_block.size(), 8u) << "a block is never sampled";
  EXPECT_EQ(sampled_of(100, 1.0).size(), 100u);
  EXPECT_EQ(sampled_of(100, 0.0).size(), 0u);
}

// --- near misses

TEST(NearMiss, TellsTheTokenAtWhichPromptsPart) {
  for (const uint64_t shared : {1u, 15u, 16u, 17u, 31u, 40u}) {
    Cache cache({full_layer()});
    cache.run(join(text(1, shared), text(2, 60)));
    const std::optional<NearMiss> near = cache->nearest(join(text(1, shared), text(3, 60)));
    ASSERT_TRUE(near.has_value()) << shared;
    EXPECT_EQ(near->position(), shared);
    EXPECT_EQ(near->matched_tokens, shared / 16 * 16);
    EXPECT_EQ(near->common_tokens, shared % 16);
    EXPECT_EQ(near->known_token, 20000);
  }
}

TEST(NearMiss, IsNoneWherePromptsShareNothingOrDoNotPart) {
  Cache cache({full_layer()});
  EXPECT_FALSE(cache->nearest(text(1, 50)).has_value()) << "nothing is known";
  cache.run(text(1, 48));
  EXPECT_FALSE(cache->nearest(text(2, 50)).has_value()) << "nothing is shared";
  EXPECT_FALSE(cache->nearest(text(1, 48)).has_value()) << "the same prompt";
  EXPECT_FALSE(cache->nearest(text(1, 20)).has_value()) << "a shorter one";
  EXPECT_FALSE(cache->nearest(text(1, 70)).has_value()) << "a longer one";
  EXPECT_FALSE(cache->nearest({}).has_value());
  const Tokens other = join(text(1, 20), text(2, 20));
  EXPECT_TRUE(cache->nearest(other).has_value());
  EXPECT_FALSE(cache->nearest(other, {.cache_salt = "s"}).has_value()) << "another salt's text shows";
  EXPECT_FALSE(cache->nearest(other, {.read_cache = false}).has_value());
  cache->clear();
  EXPECT_FALSE(cache->nearest(other).has_value());
}

TEST(NearMiss, TakesTheContinuationThatAgreesLongest) {
  Cache cache({full_layer()});
  const Tokens begin = text(1, 16);
  cache.run(join(join(begin, text(2, 3)), text(3, 40)));
  cache.run(join(join(begin, text(2, 9)), text(4, 40)));
  cache.run(join(join(begin, text(2, 5)), text(5, 40)));
  const std::optional<NearMiss> near = cache->nearest(join(join(begin, text(2, 11)), text(6, 40)));
  ASSERT_TRUE(near.has_value());
  EXPECT_EQ(near->position(), 25u);
  EXPECT_EQ(near->known_token, 40000);
}

TEST(NearMiss, LooksAtTheNewestContinuationsOnly) {
  PrefixIndex index(16, {{}}, 1, Replacement::lru);
  Tokens wanted = text(1, 16);
  for (uint32_t i = 0; i <= PrefixIndex::kMostChildren; ++i) {
    BlockHash hash{};
    hash[0] = static_cast<uint8_t>(i);
    hash[1] = static_cast<uint8_t>(i >> 8);
    const Tokens tokens = join(head(wanted, i == 0 ? 8 : 4), text(static_cast<TokenId>(i + 2), i == 0 ? 8 : 12));
    index.attach(index.add(kNoNode, hash, tokens, ""), 0, i);
    const uint32_t expected = i < PrefixIndex::kMostChildren ? 8 : 4;
    if (i + 2 >= PrefixIndex::kMostChildren) {
      EXPECT_EQ(index.closest_child(kNoNode, "", wanted).common, expected) << i;
    }
  }
  EXPECT_EQ(index.closest_child(kNoNode, "salt", wanted).node, kNoNode);
}

}  // namespace
}  // namespace kvarto

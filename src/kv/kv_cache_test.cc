// KvCache through its public contract: prefix hits and why not, salts, windows, forks, trims, replacement, books.
#include "kvarto/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "kv/cache_testing.h"

namespace kvarto {
namespace {

using namespace kvarto::testing;
// --- hits and misses

// A token or seven in front are what every prompt of a chat has: they say nothing about blocks.
TEST(KvCache, PromptsThatShareSomeTokens) {
  for (const auto& [shared, cached] :
       {std::pair{1u, 0u}, {7u, 0u}, {8u, 0u}, {15u, 0u}, {16u, 16u}, {17u, 16u}, {31u, 16u}}) {
    Cache cache({full_layer()});
    const Tokens common = text(1, shared);
    EXPECT_EQ(cache.run(join(common, text(2, 40))).reason, MissReason::no_match);
    const PrefixMatch found = cache.run(join(common, text(3, 40)));
    EXPECT_EQ(found.tokens, cached) << shared;
    const bool nearly = shared == 8 || shared == 15;
    EXPECT_EQ(found.reason, nearly ? MissReason::shorter_than_block : MissReason::no_match) << shared;
    EXPECT_EQ(cache.run(text(4, 50)).reason, MissReason::no_match);
  }
}

TEST(KvCache, AnExactRepeatLeavesTheLastTokenToCompute) {
  Cache cache({full_layer()});
  cache.run(text(1, 16));
  const PrefixMatch sixteen = cache.run(text(1, 16));
  EXPECT_EQ(sixteen.tokens, 0u);
  EXPECT_EQ(sixteen.reason, MissReason::shorter_than_block);
  cache.run(text(2, 32));
  EXPECT_EQ(cache.run(text(2, 32)).tokens, 16u);
  EXPECT_EQ(cache.run(text(2, 32)).reason, MissReason::none);
  EXPECT_EQ(cache->match(text(2, 32), {.max_cached_tokens = 32}).tokens, 32u);
  EXPECT_EQ(cache->match(text(2, 32), {.max_cached_tokens = 31}).tokens, 16u);
  EXPECT_EQ(cache->match(text(2, 32), {.max_cached_tokens = 0}).reason, MissReason::disabled);
}

TEST(KvCache, SaltsShareNothing) {
  Cache cache({full_layer()});
  const Tokens prompt = text(1, 50);
  EXPECT_EQ(cache.run(prompt, {.cache_salt = "s1"}).tokens, 0u);
  EXPECT_EQ(cache.run(prompt, {.cache_salt = "s1"}).tokens, 48u);
  const PrefixMatch other = cache.run(prompt, {.cache_salt = "s2"});
  EXPECT_EQ(other.tokens, 0u);
  EXPECT_EQ(other.reason, MissReason::salt);
  const PrefixMatch none = cache.run(prompt);
  EXPECT_EQ(none.tokens, 0u);
  EXPECT_EQ(none.reason, MissReason::salt);
  EXPECT_EQ(cache.run(prompt).tokens, 48u);
  // Half a block under another salt says nothing about this one.
  EXPECT_EQ(cache->match(join(head(prompt, 9), text(2, 30)), {.cache_salt = "s3"}).reason, MissReason::no_match);
}

// B08. An adapter is known by its contents: another one under the same name, or the same name loaded again with other
// weights, is another one. What is read back would tell if a block of another adapter were used.
TEST(KvCache, AdaptersShareNothing) {
  Cache cache({full_layer()});
  const Tokens prompt = text(1, 50);
  for (const char* adapter : {"", "hash of x", "hash of x, trained further", "hash of another x"}) {
    const PrefixMatch cold = cache.run(prompt, {.adapter = adapter});
    EXPECT_EQ(cold.tokens, 0u) << adapter;
    EXPECT_EQ(cold.reason, MissReason::no_match) << adapter;
    const Tokens parting = join(head(prompt, 9), text(2, 30));
    EXPECT_TRUE(cache->nearest(parting, {.adapter = adapter})) << adapter;
    EXPECT_FALSE(cache->nearest(parting, {.adapter = "never used"})) << adapter;
    EXPECT_EQ(cache->match(parting, {.adapter = "never used"}).reason, MissReason::no_match) << adapter;
    EXPECT_EQ(cache.run(prompt, {.cache_salt = "s1", .adapter = adapter}).reason, MissReason::salt) << adapter;
    EXPECT_EQ(cache.run(prompt, {.cache_salt = "s1", .adapter = adapter}).tokens, 48u) << adapter;
    EXPECT_EQ(cache.run(prompt, {.adapter = adapter}).tokens, 48u) << adapter;
  }
  EXPECT_EQ(cache->stats().blocks_cached, 8u * 3) << "four adapters, with and without a salt, three blocks each";
  // A salt is no adapter, nor are both together another pair.
  EXPECT_EQ(cache->match(prompt, {.cache_salt = "hash of x"}).tokens, 0u);
  EXPECT_EQ(cache->match(prompt, {.cache_salt = "1", .adapter = "hash of xs"}).tokens, 0u);
  // What is forked off keeps it.
  KvCache::Opened opened = cache->open(prompt, {.adapter = "hash of x"});
  cache.grow(opened.sequence, Tokens(prompt.begin() + 48, prompt.end()), 64, "hash of x");
  Result<KvSequence> child = cache->fork(opened.sequence);
  ASSERT_TRUE(child);
  cache.grow(*child, text(7, 30), 64, "hash of x");
  const Tokens whole = join(prompt, text(7, 30));
  EXPECT_EQ(cache->match(whole, {.adapter = "hash of x"}).tokens, 64u);
  EXPECT_EQ(cache->match(whole).tokens, 48u);
}

TEST(KvCache, NoCachingAndNoReading) {
  Cache off({full_layer()}, 64, {}, {.prefix_caching = false});
  off.run(text(1, 50));
  EXPECT_EQ(off.run(text(1, 50)).reason, MissReason::disabled);
  EXPECT_EQ(off->stats().cached_bytes, 0u);
  Cache on({full_layer()});
  on.run(text(1, 50));
  EXPECT_EQ(on.run(text(1, 50), {.read_cache = false}).tokens, 0u);
  EXPECT_EQ(on->match(text(1, 50), {.read_cache = false}).reason, MissReason::disabled);
  EXPECT_EQ(on->stats().blocks_cached, 3u);
}

TEST(KvCache, MatchChangesNothing) {
  Cache cache({full_layer()}, 8);
  cache.run(text(1, 64));
  cache.run(text(2, 64));  // full now
  for (int i = 0; i < 5; ++i) EXPECT_EQ(cache->match(text(1, 65)).tokens, 64u);
  const KvCacheStats before = cache->stats();
  EXPECT_EQ(before.query_tokens, 128u);
  cache.run(text(3, 16));
  EXPECT_EQ(cache->match(text(1, 65)).tokens, 48u);  // still the older one: its leaf goes first
  EXPECT_EQ(cache->match(text(2, 65)).tokens, 64u);
}

TEST(KvCache, TheLeastRecentlyUsedPrefixGoesAndTheReasonSaysSo) {
  Cache cache({full_layer()}, 12);
  cache.run(text(1, 64));
  cache.run(text(2, 64));
  cache.run(text(1, 65));  // a hit makes it the newer one
  cache.run(text(3, 96));
  EXPECT_EQ(cache->match(text(1, 65)).tokens, 64u);
  const PrefixMatch gone = cache->match(text(2, 65));
  EXPECT_LT(gone.tokens, 64u);
  EXPECT_EQ(gone.reason, MissReason::evicted);
  EXPECT_GT(cache->stats().replaced_blocks, 0u);
  cache->clear();
  EXPECT_EQ(cache->match(text(2, 65)).reason, MissReason::no_match);
}

TEST(KvCache, TwoColdSequencesOfOneTextKeepOneName) {
  Cache cache({full_layer()});
  KvSequence a = cache->open(text(1, 40)).sequence, b = cache->open(text(1, 40)).sequence;
  cache.grow(a, text(1, 40));
  cache.grow(b, text(1, 40));
  EXPECT_EQ(cache->stats().blocks_active, 6u);
  EXPECT_EQ(cache->hash_blocks(a), cache->hash_blocks(b));
  a = {};
  b = {};
  EXPECT_EQ(cache->stats().blocks_cached, 2u);
  EXPECT_EQ(cache->stats().active_bytes, 0u);
  EXPECT_EQ(cache->audit(), "");
}

TEST(KvCache, NothingIsFoundBeforeItIsCommitted) {
  Cache cache({full_layer()});
  KvSequence s = cache->open(text(1, 40)).sequence;
  ASSERT_TRUE(cache->reserve(s, 40).has_value());
  EXPECT_EQ(cache->match(text(1, 40)).tokens, 0u);
  cache->cancel(s);
  EXPECT_EQ(cache->match(text(1, 40)).tokens, 0u);
  cache.grow(s, text(1, 40));
  EXPECT_EQ(cache->match(text(1, 40)).tokens, 32u);
}

// The named copy of a block can be replaced while a sequence with its own copy goes on, and names grow back from there.
TEST(KvCache, NamesGrowBackFromASequencesOwnBlocks) {
  Cache cache({full_layer()}, 10);
  KvSequence a = cache->open(text(1, 32)).sequence, b = cache->open(text(1, 32)).sequence;
  cache.grow(a, text(1, 32));
  cache.grow(b, text(1, 32));  // duplicates
  a = {};
  cache.run(text(2, 8 * 16));  // replaces the named ones
  EXPECT_EQ(cache->match(text(1, 33)).tokens, 0u);
  cache.grow(b, text(5, 16));
  EXPECT_EQ(cache->match(text(1, 33)).tokens, 32u);
  EXPECT_EQ(cache->match(join(text(1, 32), text(5, 17))).tokens, 48u);
  EXPECT_EQ(cache->audit(), "");
}

// --- windows

TEST(KvCache, TheSamePromptFourTimesOverAWindow) {
  Cache cache({window_layer(8), full_layer()});
  const Tokens prompt = text(1, 40);
  EXPECT_EQ(cache.run(prompt).tokens, 0u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cache.run(prompt).tokens, 32u);
  EXPECT_EQ(cache.run(join(prompt, text(2, 5))).tokens, 32u);
  EXPECT_GT(cache->stats().window_blocks_freed, 0u);
}

TEST(KvCache, AShorterPromptDoesNotUseAWindowThatIsGone) {
  // Room for the full group's blocks, but few window blocks survive.
  Cache cache({window_layer(16), full_layer()}, 8);
  cache.run(text(1, 112), {}, 16);
  cache.run(text(2, 32), {}, 16);
  int shorter = 0;
  for (size_t length = 17; length <= 112; length += 16) {
    const PrefixMatch found = cache->match(text(1, length));
    EXPECT_EQ(found.tokens % 16, 0u);
    shorter += found.tokens < length - 1 ? 1 : 0;
    KvCache::Opened opened = cache->open(text(1, length));
    // Reads every key that the next tokens see.
    cache.grow(opened.sequence, text(50, 3));
  }
  EXPECT_GT(shorter, 0);
}

TEST(KvCache, WindowBlocksBehindAreGivenBackAndCanBeFound) {
  Cache cache({window_layer(32)}, 64);
  KvSequence s = cache->open(text(1, 160)).sequence;
  cache.grow(s, text(1, 160), 16);
  // The token at 160 sees keys from 129 on: blocks 8 and 9.
  EXPECT_EQ(cache->stats().blocks_active, 2u);
  EXPECT_EQ(cache->stats().blocks_cached, 8u);
  EXPECT_EQ(cache->stats().window_blocks_freed, 8u);
  EXPECT_EQ(cache->match(text(1, 97)).tokens, 96u);
  EXPECT_EQ(cache->trim(s, 100), 96u);  // takes blocks 4 and 5 back
  EXPECT_EQ(cache->audit(), "");
  cache.grow(s, text(7, 40), 13);
}

TEST(KvCache, ATrimBehindALostWindowStartsOver) {
  Cache cache({window_layer(32)}, 64, {}, {.prefix_caching = false});
  KvSequence s = cache->open({}).sequence;
  cache.grow(s, text(1, 100), 10);
  EXPECT_EQ(cache->trim(s, 98), 98u);  // inside the open block, the window still holds
  EXPECT_EQ(cache->trim(s, 90), 0u);   // needs keys from 59 on, and block 3 is gone
  EXPECT_EQ(s.length(), 0u);
  EXPECT_EQ(cache->stats().active_bytes, 0u);
  cache.grow(s, text(1, 50), 10);
}

// --- forks and trims

TEST(KvCache, ForksShareSealedBlocksAndCopyOneTail) {
  for (const bool apart : {false, true}) {
    Cache cache({full_layer(), window_layer(64)}, 64, {.separate_tails = apart});
    KvSequence parent = cache->open({}).sequence;
    cache.grow(parent, text(1, 40));
    const KvCacheStats before = cache->stats();
    const int copies = cache.memory().copies;
    std::vector<KvSequence> children;
    for (int i = 0; i < 4; ++i) children.push_back(std::move(*cache->fork(parent)));
    EXPECT_EQ(cache->stats().blocks_active, before.blocks_active + 4 * 2);  // an open block per group each
    EXPECT_EQ(cache->stats().copied_tails, 8u);
    EXPECT_EQ(cache.memory().copies, copies + 8);
    for (TokenId i = 0; i < 4; ++i) cache.grow(children[static_cast<size_t>(i)], text(10 + i, 30), 7);
    cache.grow(parent, text(20, 30), 7);  // reads its own tail back too
    EXPECT_NE(cache->hash_blocks(children[0]), cache->hash_blocks(children[1]));
    parent = {};
    cache.grow(children[0], text(30, 20));
    EXPECT_EQ(cache->audit(), "");
  }
}

TEST(KvCache, AForkAtABlockEdgeCopiesNothing) {
  Cache cache({full_layer()});
  KvSequence parent = cache->open({}).sequence;
  cache.grow(parent, text(1, 48));
  const Result<KvSequence> child = cache->fork(parent);
  EXPECT_EQ(cache->stats().copied_tails, 0u);
  EXPECT_EQ(cache->stats().blocks_active, 3u);
}

TEST(KvCache, AForkWithoutRoomChangesNothing) {
  Cache cache({full_layer()}, 3);
  KvSequence parent = cache->open({}).sequence;
  cache.grow(parent, text(1, 40));
  const Result<KvSequence> child = cache->fork(parent);
  ASSERT_FALSE(child.has_value());
  EXPECT_EQ(child.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(cache->audit(), "");
  cache.grow(parent, text(2, 8));
}

TEST(KvCache, TrimsKeepAnOpenBlockAndCutSealedOnes) {
  for (const bool apart : {false, true}) {
    Cache cache({full_layer()}, 64, {.separate_tails = apart});
    KvSequence s = cache->open({}).sequence;
    cache.grow(s, text(1, 60));
    KvSequence other = std::move(*cache->fork(s));
    const std::string hash = cache->hash_blocks(other);
    EXPECT_EQ(cache->trim(s, 50), 50u);
    EXPECT_EQ(cache->trim(s, 48), 48u);
    EXPECT_EQ(cache->trim(s, 47), 32u);
    cache.grow(s, text(2, 30));  // new blocks: a sealed one is never written again
    EXPECT_EQ(cache->hash_blocks(other), hash);
    cache.grow(other, text(3, 10));
    EXPECT_EQ(cache->trim(s, 0), 0u);
    EXPECT_EQ(cache->trim(s, 100), 0u);
    EXPECT_EQ(cache->audit(), "");
  }
}

// --- memory

TEST(KvCache, ReservationsAreAllOrNothing) {
  Cache cache({full_layer(), window_layer(32)}, 5);
  KvSequence s = cache->open({}).sequence;
  cache.grow(s, text(1, 20));
  const KvCacheStats before = cache->stats();
  const Status refused = cache->reserve(s, 100);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
  EXPECT_NE(refused.error().message.find("100 tokens need"), std::string::npos);
  EXPECT_EQ(cache->stats().active_bytes, before.active_bytes);
  EXPECT_EQ(s.reserved(), 0u);
  EXPECT_EQ(cache->reserve(s, 0).error().code, ErrorCode::invalid_argument);
  ASSERT_TRUE(cache->reserve(s, 16).has_value());
  EXPECT_EQ(cache->reserve(s, 1).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(cache->fork(s).error().code, ErrorCode::invalid_argument);
  cache->cancel(s);
  EXPECT_EQ(cache->stats().active_bytes, before.active_bytes);
  EXPECT_EQ(cache->audit(), "");
}

TEST(KvCache, StepsShareScratch) {
  Cache cache({full_layer()}, 64, {.separate_tails = true}, {.max_step_tokens = 64});
  KvSequence a = cache->open({}).sequence, b = cache->open({}).sequence;
  ASSERT_TRUE(cache->reserve(a, 40).has_value());
  EXPECT_EQ(cache->reserve(b, 48).error().code, ErrorCode::invalid_argument);  // 88 tokens in one step
  ASSERT_TRUE(cache->reserve(b, 24).has_value());
  cache->cancel(a);
  cache->cancel(b);
  EXPECT_EQ(cache->audit(), "");
}

TEST(KvCache, AnArenaTooSmallIsRefusedWithTheNumbers) {
  const KvLayout layout = *KvLayout::make({{full_layer(2, 64), window_layer(32, 2, 64)}}, {});
  const size_t block = 2 * 64 * 2 * 16 * 2;
  const auto cache = KvCache::create(layout, std::make_shared<PlainMemory>(), {.bytes = 2 * block - 1});
  ASSERT_FALSE(cache.has_value());
  EXPECT_EQ(cache.error().code, ErrorCode::out_of_memory);
  EXPECT_NE(cache.error().message.find(std::to_string(2 * block)), std::string::npos);
  EXPECT_TRUE(KvCache::create(layout, std::make_shared<PlainMemory>(), {.bytes = 2 * block}).has_value());
}

TEST(KvCache, LengthsThatFit) {
  Cache cache({full_layer()}, 20);
  EXPECT_EQ(cache->longest_sequence(512), 320u);
  EXPECT_TRUE(cache->could_ever_fit(320, 1));
  EXPECT_FALSE(cache->could_ever_fit(321, 1));
  Cache windows({window_layer(32)}, 6);
  EXPECT_GT(windows->longest_sequence(16), 1000000u);  // nothing limits it
  EXPECT_FALSE(windows->could_ever_fit(1000, 512));
}

// Slabs of one size whose few blocks in use lie far apart give way to another size: the blocks are moved together.
TEST(KvCache, BlocksInUseMoveTogetherWhenAnotherSizeNeedsTheRoom) {
  Cache cache({full_layer(1), window_layer(32, 4)}, 32);
  std::vector<KvSequence> short_ones, kept;
  for (TokenId i = 0; i < 24; ++i) {
    KvSequence s = cache->open({}, {.read_cache = false}).sequence;
    cache.grow(s, text(100 + i, 16));
    (i % 6 == 0 ? kept : short_ones).push_back(std::move(s));
  }
  short_ones.clear();
  const int copies = cache.memory().copies;
  const uint64_t before = kept[0].length();
  while (cache->reserve(kept[0], 16)) {
    cache->cancel(kept[0]);
    cache.grow(kept[0], text(static_cast<TokenId>(500 + kept[0].length()), 16));
  }
  EXPECT_GT(cache.memory().copies, copies);
  EXPECT_GT(kept[0].length(), before);
  for (size_t i = 1; i < kept.size(); ++i) {
    cache->clear();
    EXPECT_EQ(kept[i].length(), 16u);
  }
  kept.erase(kept.begin());  // room again
  for (TokenId i = 0; i < 3; ++i) cache.grow(kept[static_cast<size_t>(i)], text(900 + i, 20));
}

TEST(KvCache, AllGoesBackWhenSequencesEnd) {
  Cache cache({full_layer(), window_layer(32)}, 64, {.separate_tails = true});
  {
    KvSequence a = cache->open({}).sequence;
    cache.grow(a, text(1, 100));
    KvSequence b = std::move(*cache->fork(a));
    ASSERT_TRUE(cache->reserve(b, 30).has_value());
    a = std::move(b);  // the first a ends here
    EXPECT_EQ(a.reserved(), 30u);
  }
  const KvCacheStats stats = cache->stats();
  EXPECT_EQ(stats.active_bytes, 0u);
  EXPECT_EQ(stats.live_bytes, 0u);
  EXPECT_GT(stats.cached_bytes, 0u);
  EXPECT_TRUE(cache->clear());
  EXPECT_EQ(cache->stats().free_bytes, stats.arena_bytes);
  EXPECT_EQ(cache->audit(), "");
}

TEST(KvCache, ASequenceThatOutlivesItsCacheIsHarmless) {
  KvSequence s;
  {
    Cache cache({full_layer()});
    s = cache->open({}).sequence;
    cache.grow(s, text(1, 20));
  }
  s = {};
  EXPECT_EQ(s.length(), 0u);
}

TEST(KvCache, LiveBytesCountTokensNotBlocks) {
  Cache cache({full_layer(8, 128)});  // 65,536 bytes a block, 4,096 a token
  KvSequence s = cache->open({}).sequence;
  cache.grow(s, text(1, 20));
  EXPECT_EQ(cache->stats().active_bytes, 2 * 65536u);
  EXPECT_EQ(cache->stats().live_bytes, 20 * 4096u);
  KvSequence t = std::move(*cache->fork(s));
  EXPECT_EQ(cache->stats().live_bytes, 24 * 4096u);  // the sealed block counts once
  cache->trim(t, 17);
  EXPECT_EQ(cache->stats().live_bytes, 21 * 4096u);
}

// 64 sequences with lengths drawn log-uniformly from 50 to 2,000: what their blocks hold besides tokens stays under 4
// %.
TEST(KvCache, LittleIsWasted) {
  Cache cache({full_layer(1)}, 64 * 128);
  std::mt19937_64 random(2026);
  std::vector<KvSequence> sequences;
  for (TokenId i = 0; i < 64; ++i) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    const size_t length = static_cast<size_t>(50 * std::pow(40.0, u));
    sequences.push_back(cache->open({}).sequence);
    for (size_t at = 0; at < length; at += 512) {
      const size_t count = std::min<size_t>(512, length - at);
      ASSERT_TRUE(cache->reserve(sequences.back(), static_cast<uint32_t>(count)).has_value());
      cache->commit(sequences.back(), text(i, count));
    }
  }
  const KvCacheStats stats = cache->stats();
  const double waste = 1.0 - static_cast<double>(stats.live_bytes) / static_cast<double>(stats.active_bytes);
  EXPECT_GT(waste, 0.0);
  EXPECT_LT(waste, 0.04);
}

TEST(KvCache, FiguresOfQueriesAndHits) {
  Cache cache({full_layer()});
  cache.run(text(1, 100), {}, 16);
  cache.run(text(1, 100), {}, 16);
  EXPECT_EQ(cache->stats().query_tokens, 200u);
  EXPECT_EQ(cache->stats().hit_tokens, 96u);
  EXPECT_EQ(cache->stats().blocks_total, 64u);
}

}  // namespace
}  // namespace kvarto

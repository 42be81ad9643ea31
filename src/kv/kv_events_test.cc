// Events of the cache: what is announced when, by whose name, and in which order.
#include <gtest/gtest.h>

#include "base/hash.h"
#include "kv/cache_testing.h"

namespace kvarto {
namespace {

using namespace kvarto::testing;
using Kind = KvEvent::Kind;

const KvCacheOptions kRecording{.record_events = true};

std::vector<std::string> hex(const std::vector<BlockHash>& hashes) {
  std::vector<std::string> out;
  for (const BlockHash& hash : hashes) out.push_back(to_hex(hash));
  return out;
}

std::vector<Kind> kinds(const KvEvents& events) {
  std::vector<Kind> out;
  for (const KvEvent& event : events.list) out.push_back(event.kind);
  return out;
}

// vLLM's published vectors of sha256_cbor over tokens 0 to 15 and 16 to 31.
constexpr const char* kFirst = "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749";
constexpr const char* kSecond = "c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c";
constexpr const char* kFirstSalted = "37a188ca0f395fb17edb7613ec9f0f06e16dd32556cf8209ea1772c6a9134909";

TEST(KvEvents, ARunOfFullBlocksIsOneEvent) {
  Cache cache({full_layer()}, 64, {}, kRecording);
  cache.run(text(0, 40), {}, 7);
  const KvEvents events = cache->take_events();
  EXPECT_FALSE(events.lost);
  ASSERT_EQ(kinds(events), std::vector{Kind::stored});
  const KvEvent& stored = events.list[0];
  EXPECT_EQ(hex(stored.hashes), (std::vector<std::string>{kFirst, kSecond}));
  EXPECT_FALSE(stored.parent.has_value());
  EXPECT_EQ(stored.tokens, text(0, 32));
  EXPECT_EQ(stored.cache_salt, "");
  EXPECT_EQ(stored.block_tokens, 16u);
  EXPECT_EQ(stored.group, 0u);
  EXPECT_EQ(stored.group_kind, GroupKind::full);
  EXPECT_TRUE(cache->take_events().list.empty());
}

TEST(KvEvents, ALaterRunNamesItsParent) {
  Cache cache({full_layer()}, 64, {}, kRecording);
  KvCache::Opened opened = cache->open(text(0, 40));
  cache.grow(opened.sequence, text(0, 15));
  EXPECT_TRUE(cache->take_events().list.empty()) << "a partial block is announced";
  cache.grow(opened.sequence, {15});
  EXPECT_EQ(hex(cache->take_events().list.at(0).hashes), std::vector<std::string>{kFirst});
  Tokens rest = text(0, 40);
  rest.erase(rest.begin(), rest.begin() + 16);
  cache.grow(opened.sequence, rest);
  const KvEvents events = cache->take_events();
  ASSERT_EQ(events.list.size(), 1u);
  EXPECT_EQ(hex(events.list[0].hashes), std::vector<std::string>{kSecond});
  ASSERT_TRUE(events.list[0].parent.has_value());
  EXPECT_EQ(to_hex(*events.list[0].parent), kFirst);
}

TEST(KvEvents, TheSaltGoesWithTheFirstBlock) {
  Cache cache({full_layer()}, 64, {}, kRecording);
  cache.run(text(0, 16), {.cache_salt = "s1"});
  const KvEvents events = cache->take_events();
  ASSERT_EQ(events.list.size(), 1u);
  EXPECT_EQ(hex(events.list[0].hashes), std::vector<std::string>{kFirstSalted});
  EXPECT_EQ(events.list[0].cache_salt, "s1");
  cache.run(text(0, 32), {.cache_salt = "s1"});
  const KvEvents more = cache->take_events();
  ASSERT_EQ(more.list.size(), 1u);
  EXPECT_EQ(more.list[0].cache_salt, "");
  EXPECT_EQ(to_hex(more.list[0].parent.value()), kFirstSalted);
}

TEST(KvEvents, HitsAndSequencesThatEndSayNothing) {
  Cache cache({full_layer()}, 64, {}, kRecording);
  cache.run(text(0, 33));
  cache->take_events();
  EXPECT_EQ(cache.run(text(0, 33)).tokens, 32u);
  EXPECT_TRUE(cache->take_events().list.empty());
}

TEST(KvEvents, ASecondCopyOfABlockIsNoEvent) {
  Cache cache({full_layer()}, 64, {}, kRecording);
  {
    KvCache::Opened first = cache->open(text(0, 40)), second = cache->open(text(0, 40));
    cache.grow(first.sequence, text(0, 40));
    cache.grow(second.sequence, text(0, 40));
    const KvEvents events = cache->take_events();
    ASSERT_EQ(events.list.size(), 1u);
    EXPECT_EQ(events.list[0].hashes.size(), 2u);
  }
  EXPECT_TRUE(cache->take_events().list.empty()) << "dropping the private copy is announced";
}

TEST(KvEvents, ARemovalComesBeforeWhatUsesTheMemory) {
  Cache cache({full_layer()}, 4, {}, kRecording);
  cache.run(text(0, 64));  // the whole arena
  const std::vector<std::string> old = hex(cache->take_events().list.at(0).hashes);
  cache.run(text(2, 32));
  const KvEvents events = cache->take_events();
  // The end of a sequence goes before its beginning.
  ASSERT_EQ(kinds(events), (std::vector{Kind::removed, Kind::removed, Kind::stored}));
  EXPECT_EQ(hex(events.list[0].hashes), std::vector<std::string>{old[3]});
  EXPECT_EQ(hex(events.list[1].hashes), std::vector<std::string>{old[2]});
  EXPECT_EQ(events.list[2].tokens, text(2, 32));
}

TEST(KvEvents, ARemovalEndsARun) {
  Cache cache({full_layer()}, 4, {}, kRecording);
  cache.run(text(0, 32));
  KvCache::Opened opened = cache->open(text(2, 64));
  cache->take_events();
  cache.grow(opened.sequence, text(2, 64), 16);
  // Two blocks fit beside the old ones, then each new one takes the place of an old one.
  EXPECT_EQ(kinds(cache->take_events()),
            (std::vector{Kind::stored, Kind::removed, Kind::stored, Kind::removed, Kind::stored}));
}

TEST(KvEvents, ClearingAnIdleCacheIsOneEvent) {
  Cache cache({full_layer()}, 64, {}, kRecording);
  cache.run(text(0, 64));
  cache.run(text(2, 64));
  EXPECT_TRUE(cache->clear());
  EXPECT_EQ(kinds(cache->take_events()), (std::vector{Kind::stored, Kind::stored, Kind::cleared}));
}

TEST(KvEvents, ClearingWhileSomethingRunsRemovesTheRest) {
  Cache cache({full_layer()}, 64, {}, kRecording);
  cache.run(text(0, 32));
  KvCache::Opened opened = cache->open(text(2, 40));
  cache.grow(opened.sequence, text(2, 40));
  cache->take_events();
  EXPECT_FALSE(cache->clear());
  const KvEvents events = cache->take_events();
  ASSERT_EQ(kinds(events), (std::vector{Kind::removed, Kind::removed}));
  EXPECT_EQ(hex(events.list[0].hashes), std::vector<std::string>{kSecond});
  EXPECT_EQ(hex(events.list[1].hashes), std::vector<std::string>{kFirst});
}

TEST(KvEvents, EachGroupHasItsOwn) {
  Cache cache({window_layer(32), full_layer()}, 8, {}, kRecording);
  cache.run(text(0, 32));
  const KvEvents events = cache->take_events();
  ASSERT_EQ(kinds(events), (std::vector{Kind::stored, Kind::stored}));
  for (uint32_t g = 0; g < 2; ++g) {
    EXPECT_EQ(events.list[g].group, g);
    EXPECT_EQ(events.list[g].hashes.size(), 2u);
  }
  EXPECT_EQ(events.list[0].group_kind, GroupKind::window);
  EXPECT_EQ(events.list[0].window, 32u);
  EXPECT_EQ(events.list[1].group_kind, GroupKind::full);
  EXPECT_EQ(events.list[1].window, 0u);
}

TEST(KvEvents, NothingIsRecordedUnlessAskedFor) {
  Cache cache({full_layer()});
  cache.run(text(0, 40));
  EXPECT_TRUE(cache->take_events().list.empty());
}

TEST(KvEvents, WhatNobodyTakesIsGivenUpAndToldAnew) {
  Cache cache({full_layer()}, 64, {}, {.record_events = true, .event_bytes = 2000});
  cache.run(text(0, 48));
  cache.run(text(2, 160));
  cache.run(join(text(0, 16), text(3, 16)));
  const KvEvents events = cache->take_events();
  EXPECT_TRUE(events.lost);
  ASSERT_FALSE(events.list.empty());
  EXPECT_EQ(events.list[0].kind, Kind::cleared);
  size_t blocks = 0;
  for (const KvEvent& event : events.list) blocks += event.hashes.size();
  EXPECT_EQ(blocks, 3u + 10u + 1u);
  cache.run(text(4, 16));
  const KvEvents after = cache->take_events();
  EXPECT_FALSE(after.lost);
  EXPECT_EQ(kinds(after), std::vector{Kind::stored});
}

}  // namespace
}  // namespace kvarto

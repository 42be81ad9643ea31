#include "kv/block_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace kvarto {
namespace {

// The pool computes addresses and touches nothing: a made-up arena will do.
std::byte* const kArena = reinterpret_cast<std::byte*>(uintptr_t{1} << 20);

TEST(BlockPool, SlabsAreEightBlocksOrTwoMebibytes) {
  const auto bytes = [](size_t arena, std::vector<size_t> classes) { return BlockPool::slab_bytes(arena, classes); };
  EXPECT_EQ(bytes(size_t{1} << 30, {64}), size_t{2} << 20);
  EXPECT_EQ(bytes(size_t{1} << 30, {368640}), 8u * 368640);
  EXPECT_EQ(bytes(size_t{1} << 30, {65536, 491520}), 8u * 491520);
  EXPECT_EQ(bytes(64000, {640}), 5120u);
  EXPECT_EQ(bytes(64000, {640, 6400}), 6400u);  // one block each, so that ten slabs serve two sizes
  EXPECT_EQ(bytes(size_t{64} << 20, {320}) % 320, 0u);
}

TEST(BlockPool, BlocksDoNotOverlapAndFillTheArena) {
  BlockPool pool(kArena, 64 * 101, {64 * 3});
  std::map<std::byte*, BlockId> seen;
  while (const auto id = pool.take(0)) seen[pool.address(*id)] = *id;
  EXPECT_EQ(seen.size(), 33u);
  EXPECT_EQ(pool.remainder_bytes(), 64u * 2);
  EXPECT_EQ(pool.free_bytes(), 0u);
  std::byte* last = nullptr;
  for (const auto& [address, id] : seen) {
    if (last != nullptr) {
      EXPECT_GE(address - last, 64 * 3);
    }
    last = address;
    EXPECT_GE(address, kArena);
    EXPECT_LE(address + 64 * 3, kArena + 64 * 101);
  }
  EXPECT_EQ(pool.audit(), "");
  const uint64_t fits[] = {33}, not_fits[] = {34};
  EXPECT_TRUE(pool.fits(fits));
  EXPECT_FALSE(pool.fits(not_fits));
}

TEST(BlockPool, AnEmptySlabChangesItsSize) {
  BlockPool pool(kArena, 64 * 80, {64, 640});  // 8 slabs of 640
  std::vector<BlockId> large;
  while (const auto id = pool.take(1)) large.push_back(*id);
  EXPECT_EQ(large.size(), 8u);
  EXPECT_FALSE(pool.take(0).has_value());
  pool.drop_ref(large[3]);
  std::vector<BlockId> small;
  while (const auto id = pool.take(0)) small.push_back(*id);
  EXPECT_EQ(small.size(), 10u);
  EXPECT_FALSE(pool.take(1).has_value());
  for (const BlockId id : small) pool.drop_ref(id);
  EXPECT_TRUE(pool.take(1).has_value());
  EXPECT_EQ(pool.audit(), "");
}

TEST(BlockPool, TheShortSlabServesWhatFits) {
  BlockPool pool(kArena, 64 * 85, {64, 640});  // 8 slabs and 5 lines
  EXPECT_EQ(pool.slab_count(), 9u);
  std::vector<BlockId> large;
  while (const auto id = pool.take(1)) large.push_back(*id);
  EXPECT_EQ(large.size(), 8u);
  int small = 0;
  while (pool.take(0)) ++small;
  EXPECT_EQ(small, 5);
  EXPECT_EQ(pool.free_bytes(), 0u);
  EXPECT_EQ(pool.audit(), "");
}

TEST(BlockPool, TheLastReferenceDecides) {
  BlockPool pool(kArena, 6400, {64});
  const BlockId named = *pool.take(0), plain = *pool.take(0);
  pool.set_tag(named, 5);
  pool.add_ref(named);
  EXPECT_FALSE(pool.drop_ref(named));
  EXPECT_EQ(pool.active_bytes(), 128u);
  EXPECT_TRUE(pool.drop_ref(named));
  EXPECT_TRUE(pool.drop_ref(plain));
  EXPECT_EQ(pool.cached_bytes(), 64u);
  EXPECT_FALSE(pool.taken(plain));
  pool.add_ref(named);  // found again
  EXPECT_EQ(pool.cached_bytes(), 0u);
  EXPECT_EQ(pool.refs(named), 1u);
  pool.drop_ref(named);
  pool.clear_tag(named);
  EXPECT_EQ(pool.free_bytes(), 6400u);
  EXPECT_EQ(pool.audit(), "");
}

TEST(BlockPool, AMovedBlockKeepsItsIdAndLeavesTheSlab) {
  BlockPool pool(kArena, 64 * 32, {64});  // slabs of 8
  std::vector<BlockId> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(*pool.take(0));
  std::byte* const from = pool.address(ids[0]);
  std::vector<BlockId> in_slab;
  const uint32_t slab = static_cast<uint32_t>((from - kArena) / (64 * 8));
  pool.blocks_of(slab, in_slab);
  ASSERT_EQ(in_slab.size(), 8u);
  for (size_t i = 3; i < 8; ++i) pool.drop_ref(in_slab[i]);
  pool.close(slab);
  for (size_t i = 0; i < 3; ++i) {
    const auto move = pool.move_out(in_slab[i]);
    ASSERT_TRUE(move.has_value());
    EXPECT_EQ(move->to, pool.address(in_slab[i]));
    EXPECT_NE(static_cast<uint32_t>((move->to - kArena) / (64 * 8)), slab);
    EXPECT_EQ(move->bytes, 64u);
  }
  EXPECT_EQ(pool.slab(slab).size_class, BlockPool::kNone);
  EXPECT_EQ(pool.active_blocks(), 7u);
  EXPECT_EQ(pool.audit(), "");
}

// A pool of three block sizes and what its user knows: each block's references, tag and size.
class PoolAndModel {
 public:
  void step(uint64_t dice, uint64_t which) {
    auto at = model_.begin();
    if (!model_.empty()) std::advance(at, which % model_.size());
    if (dice < 5 || model_.empty()) {
      take(static_cast<uint32_t>(which % 3));
    } else if (dice < 6) {
      pool_.add_ref(at->first);
      ++at->second.refs;
    } else if (dice < 9 && at->second.refs > 0) {
      RC_ASSERT(pool_.drop_ref(at->first) == (at->second.refs == 1));
      if (--at->second.refs == 0 && !at->second.tagged) model_.erase(at);
    } else if (dice == 9 && at->second.tagged) {
      pool_.clear_tag(at->first);
      at->second.tagged = false;
      if (at->second.refs == 0) model_.erase(at);
    } else if (dice == 9) {
      pool_.set_tag(at->first, next_tag_++);
      at->second.tagged = true;
    }
    size_t active = 0, cached = 0;
    for (const auto& [id, held] : model_) (held.refs > 0 ? active : cached) += sizes_[held.size_class];
    RC_ASSERT(pool_.active_bytes() == active);
    RC_ASSERT(pool_.cached_bytes() == cached);
    RC_ASSERT(pool_.audit() == "");
  }

 private:
  struct Held {
    uint32_t refs;
    bool tagged;
    uint32_t size_class;
  };
  void take(uint32_t size_class) {
    const auto id = pool_.take(size_class);
    if (!id) return;
    RC_ASSERT(!model_.contains(*id));
    model_[*id] = {1, false, size_class};
  }

  const std::vector<size_t> sizes_{192, 64 * 7, 1280};
  BlockPool pool_{kArena, 64 * 777, sizes_};
  std::map<BlockId, Held> model_;
  uint32_t next_tag_ = 0;
};

RC_GTEST_PROP(BlockPoolRandom, OperationsKeepTheBooks, ()) {
  using Operation = std::pair<uint32_t, uint32_t>;  // dice and which block
  const auto operation = rc::gen::pair(rc::gen::inRange<uint32_t>(0, 10), rc::gen::inRange<uint32_t>(0, 1u << 20));
  const auto operations = *rc::gen::scale(20.0, rc::gen::container<std::vector<Operation>>(operation));
  PoolAndModel world;
  for (const auto& [dice, which] : operations) world.step(dice, which);
}

}  // namespace
}  // namespace kvarto

#include "base/memory.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kvarto {
namespace {

TEST(Ledger, CountsByTagAndRefusesBeyondTheCap) {
  Ledger ledger(1000);
  ASSERT_TRUE(ledger.charge(MemoryTag::weights, 600));
  ASSERT_TRUE(ledger.charge(MemoryTag::kv_arena, 400));
  const Status refused = ledger.charge(MemoryTag::logits, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
  EXPECT_NE(refused.error().message.find("1 bytes of logits"), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("1000 of the 1000 bytes"), std::string::npos) << refused.error().message;
  EXPECT_EQ(ledger.used(MemoryTag::logits), 0u);
  EXPECT_EQ(ledger.total(), 1000u);
  ledger.release(MemoryTag::weights, 100);
  EXPECT_EQ(ledger.used(MemoryTag::weights), 500u);
  EXPECT_TRUE(ledger.charge(MemoryTag::logits, 100));
  EXPECT_FALSE(ledger.charge(MemoryTag::logits, SIZE_MAX));  // no wrap-around
}

TEST(Ledger, ThreadsNeverPassTheCapTogether) {
  Ledger ledger(1000);
  std::vector<std::thread> threads;
  std::atomic<size_t> granted{0};
  std::atomic<bool> over{false};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        if (!ledger.charge(MemoryTag::staging, 300)) continue;
        if (granted.fetch_add(300) + 300 > 1000) over = true;
        granted -= 300;
        ledger.release(MemoryTag::staging, 300);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_FALSE(over);
  EXPECT_EQ(ledger.total(), 0u);
  EXPECT_EQ(ledger.used(MemoryTag::staging), 0u);
}

TEST(Slab, IsZeroedAlignedAndCountedWhileItLives) {
  auto ledger = std::make_shared<Ledger>(size_t{64} << 20);
  for (size_t bytes : {size_t{1}, size_t{4096}, size_t{100001}, size_t{2} << 20, (size_t{5} << 20) + 3}) {
    Result<Slab> slab = Slab::allocate(bytes, MemoryTag::kv_arena, ledger);
    ASSERT_TRUE(slab) << slab.error().message;
    EXPECT_EQ(slab->size(), bytes);
    EXPECT_EQ(ledger->used(MemoryTag::kv_arena), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slab->data()) % (bytes >= (2u << 20) ? 2u << 20 : 64), 0u);
    for (size_t i = 0; i < bytes; i += i + 1 < bytes ? std::min<size_t>(997, bytes - 1 - i) : 1) {
      ASSERT_EQ(slab->data()[i], std::byte{0});
      slab->data()[i] = std::byte{1};
    }
  }
  EXPECT_EQ(ledger->total(), 0u);
}

TEST(Slab, MovesWithoutCopies) {
  auto ledger = std::make_shared<Ledger>(10000);
  Slab first = *Slab::allocate(6000, MemoryTag::weights, ledger);
  std::byte* place = first.data();
  Slab second = std::move(first);
  EXPECT_EQ(second.data(), place);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(ledger->total(), 6000u);
  second = Slab();
  EXPECT_EQ(second.data(), nullptr);
  EXPECT_EQ(ledger->total(), 0u);
}

TEST(Slab, RefusalsLeaveTheLedgerAsItWas) {
  auto ledger = std::make_shared<Ledger>(SIZE_MAX);
  for (size_t bytes : {SIZE_MAX, SIZE_MAX / 2, size_t{1} << 60}) {
    const Result<Slab> slab = Slab::allocate(bytes, MemoryTag::kv_arena, ledger);
    ASSERT_FALSE(slab);
    EXPECT_EQ(slab.error().code, ErrorCode::out_of_memory);
    EXPECT_EQ(ledger->total(), 0u);
  }
  auto small = std::make_shared<Ledger>(100);
  EXPECT_FALSE(Slab::allocate(101, MemoryTag::kv_arena, small));
  EXPECT_TRUE(Slab::allocate(101, MemoryTag::kv_arena, nullptr));
  const Result<Slab> empty = Slab::allocate(0, MemoryTag::kv_arena, small);
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->size(), 0u);
}

TEST(MemoryTag, EveryTagHasItsOwnName) {
  std::vector<std::string_view> names;
  for (size_t t = 0; t < static_cast<size_t>(MemoryTag::count); ++t) {
    const std::string_view name = memory_tag_name(static_cast<MemoryTag>(t));
    EXPECT_NE(name, "unknown");
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 0);
    names.push_back(name);
  }
}

TEST(Ledger, RemembersPeaksAndTheirStep) {
  Ledger ledger(1000);
  ASSERT_TRUE(ledger.charge(MemoryTag::weights, 300));
  ledger.set_step(7);
  ASSERT_TRUE(ledger.charge(MemoryTag::kv_scratch, 100));
  ledger.release(MemoryTag::kv_scratch, 60);
  ledger.set_step(8);
  ASSERT_TRUE(ledger.charge(MemoryTag::kv_scratch, 60));  // as much as before, not more
  EXPECT_EQ(ledger.peak(MemoryTag::weights).bytes, 300u);
  EXPECT_EQ(ledger.peak(MemoryTag::weights).step, 0u);
  EXPECT_EQ(ledger.peak(MemoryTag::kv_scratch).bytes, 100u);
  EXPECT_EQ(ledger.peak(MemoryTag::kv_scratch).step, 7u);
  EXPECT_FALSE(ledger.charge(MemoryTag::kv_scratch, 5000));
  EXPECT_EQ(ledger.peak(MemoryTag::kv_scratch).bytes, 100u);
}

}  // namespace
}  // namespace kvarto

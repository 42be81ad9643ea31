#include "server/health.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

constexpr uint64_t kSecond = 1'000'000;

EngineStats stats_of(uint32_t running, uint32_t waiting, uint64_t steps) {
  EngineStats stats;
  stats.running = running;
  stats.waiting = waiting;
  stats.steps = steps;
  return stats;
}

TEST(Health, AnIdleEngineThatTicksIsWell) {
  Health health;
  for (uint64_t s = 1; s < 300; ++s) {
    EXPECT_FALSE(health.look(s * kSecond, s * kSecond, stats_of(0, 0, 7), {}));
    EXPECT_FALSE(health.trouble());
  }
}

TEST(Health, AThreadThatDoesNotTickIsTrouble) {
  Health health;
  health.look(100 * kSecond, 95 * kSecond, stats_of(0, 0, 7), {});
  EXPECT_FALSE(health.trouble());
  health.look(106 * kSecond, 95 * kSecond, stats_of(0, 0, 7), {});
  ASSERT_TRUE(health.trouble());
  EXPECT_NE(health.trouble()->find("11 s"), std::string::npos) << *health.trouble();
  health.look(107 * kSecond, 107 * kSecond, stats_of(0, 0, 7), {});
  EXPECT_FALSE(health.trouble());
}

// A step may take long; without a token for a minute something is wrong, and it is well again with the next one.
TEST(Health, RunningWithoutTokensIsTrouble) {
  Health health;
  health.look(1 * kSecond, 1 * kSecond, stats_of(2, 0, 1), {});
  health.look(60 * kSecond, 1 * kSecond, stats_of(2, 0, 1), {});
  EXPECT_FALSE(health.trouble());
  health.look(62 * kSecond, 1 * kSecond, stats_of(2, 0, 1), {});
  EXPECT_TRUE(health.trouble());
  health.look(63 * kSecond, 63 * kSecond, stats_of(2, 0, 2), {});
  EXPECT_FALSE(health.trouble());
}

TEST(Health, WaitingWithNothingRunningIsPushedFromTheSecondLookOn) {
  Health health;
  EXPECT_FALSE(health.look(1 * kSecond, 1 * kSecond, stats_of(0, 3, 5), {}));
  EXPECT_TRUE(health.look(2 * kSecond, 2 * kSecond, stats_of(0, 3, 5), {}));
  EXPECT_EQ(health.pushes(), 1u);
  EXPECT_FALSE(health.look(3 * kSecond, 3 * kSecond, stats_of(1, 2, 6), {}));
  EXPECT_FALSE(health.look(4 * kSecond, 4 * kSecond, stats_of(0, 3, 7), {}));  // it had moved
}

// Of a request that an idle engine got, nothing shows before its first step is done, and that may take long: neither is
// the loop dead then, nor is the scheduler stuck because others have come meanwhile.
TEST(Health, ALongFirstStepIsNoTrouble) {
  Health health;
  health.look(1 * kSecond, 1 * kSecond, stats_of(0, 0, 0), {});
  for (uint64_t s = 2; s < 60; ++s) {
    EXPECT_FALSE(health.look(s * kSecond, 1 * kSecond, stats_of(0, s < 20 ? 0 : 3, 0), {}, true)) << s;
    EXPECT_FALSE(health.trouble()) << s << ": " << *health.trouble();
  }
  health.look(63 * kSecond, 1 * kSecond, stats_of(0, 3, 0), {}, true);
  EXPECT_TRUE(health.trouble());
  EXPECT_FALSE(health.look(64 * kSecond, 64 * kSecond, stats_of(1, 3, 1), {}, true));
  EXPECT_FALSE(health.trouble());
  EXPECT_EQ(health.pushes(), 0u);
}

TEST(Health, TheFirstLookAtAWaitingRequestIsNoTrouble) {
  Health health;
  EXPECT_FALSE(health.look(5000 * kSecond, 5000 * kSecond, stats_of(0, 1, 0), {}));
  EXPECT_FALSE(health.trouble());
}

TEST(Health, AStoppedEngineSaysWhy) {
  Health health;
  health.look(1 * kSecond, 1 * kSecond, stats_of(0, 0, 0), fail(ErrorCode::internal, "three failures"));
  ASSERT_TRUE(health.trouble());
  EXPECT_NE(health.trouble()->find("three failures"), std::string::npos);
}

}  // namespace
}  // namespace kvarto

#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "base/cpu.h"

namespace kvarto {
namespace {

constexpr unsigned kStatusFlags = 0x3f;
constexpr unsigned kFlushAndDazAndDown = 0x8040 | 0x2000;

TEST(ThreadPool, EveryUnitRunsOnce) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads, false);
    EXPECT_EQ(pool.threads(), threads);
    for (size_t units : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<int> runs(units, 0), worker_of(units, -1);  // plain: each unit has one writer, run() publishes it
      pool.run(units, [&](size_t unit, int worker) {
        ++runs[unit];
        worker_of[unit] = worker;
      });
      for (size_t u = 0; u < units; ++u) {
        ASSERT_EQ(runs[u], 1) << u;
        ASSERT_GE(worker_of[u], 0);
        ASSERT_LT(worker_of[u], threads);
      }
    }
  }
}

TEST(ThreadPool, ManyTinyLoops) {
  ThreadPool pool(3, false);
  std::vector<size_t> sums(8, 0);
  constexpr size_t kLoops = 5000;
  for (size_t loop = 0; loop < kLoops; ++loop) pool.run(sums.size(), [&](size_t unit, int) { sums[unit] += loop; });
  for (size_t sum : sums) EXPECT_EQ(sum, kLoops * (kLoops - 1) / 2);
}

TEST(ThreadPool, SleepersWakeUp) {
  ThreadPool pool(2, false);
  std::atomic<bool> helped{false};
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // far beyond the spin
    pool.run(2, [&](size_t, int worker) {
      if (worker == 1) helped = true;
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
      while (worker == 0 && !helped && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    });
  }
  EXPECT_TRUE(helped);
}

TEST(ThreadPool, ASlowUnitDoesNotHoldTheOthers) {
  ThreadPool pool(2, false);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> done{0};
    pool.run(100, [&](size_t, int worker) {
      while (worker == 1 && done < 99) std::this_thread::yield();  // the caller must take all the rest
      ++done;
    });
    ASSERT_EQ(done, 100);
  }
}

TEST(ThreadPool, EveryWorkerComputesWithPlainArithmetic) {
  const unsigned original = _mm_getcsr();
  const unsigned odd = (original & ~kStatusFlags) | kFlushAndDazAndDown;
  for (int threads : {1, 3}) {
    _mm_setcsr(odd);  // workers inherit nothing from whoever made them
    {
      ThreadPool pool(threads, false);
      std::vector<unsigned> seen(64, 0);
      pool.run(seen.size(), [&](size_t unit, int) {
        seen[unit] = _mm_getcsr() & ~kStatusFlags;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      });
      for (unsigned csr : seen) EXPECT_EQ(csr, 0x1f80u);
    }
    EXPECT_EQ(_mm_getcsr() & ~kStatusFlags, odd);  // the caller has its own settings back
  }
  _mm_setcsr(original);
}

TEST(ThreadPool, WorkersArePinnedAndTheCallerIsNot) {
  const std::vector<int> cores = usable_cores();
  if (cores.size() < 2) GTEST_SKIP() << "one usable core: nothing to pin to";
  cpu_set_t before, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  std::set<int> places;
  {
    ThreadPool pool(2);
    for (int round = 0; round < 1000 && places.empty(); ++round) {
      pool.run(2, [&](size_t, int worker) {
        if (worker == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(200));
          return;
        }
        cpu_set_t mine;
        sched_getaffinity(0, sizeof mine, &mine);
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
          if (CPU_ISSET(cpu, &mine)) places.insert(cpu);
        }
      });
    }
  }
  EXPECT_EQ(places, std::set<int>{cores[1]});
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(ThreadPool, ComesAndGoesAtAnyMoment) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(3, false);
    std::atomic<int> sum{0};
    if (round % 2 == 0) pool.run(5, [&](size_t unit, int) { sum += static_cast<int>(unit); });
    EXPECT_EQ(sum, round % 2 == 0 ? 10 : 0);
  }
}

}  // namespace
}  // namespace kvarto

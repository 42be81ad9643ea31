#include "base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/cpu.h"
#include "base/float_mode.h"
#include "base/log.h"

namespace kvarto {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);

// Waits at most kSpin for `ready`; says whether it came.
template <typename Ready>
bool spin_until(const Ready& ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

void pin_this_thread(int cpu) {
  constexpr size_t kMaxCpus = 16384;
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  const size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(cpu, bytes, set);
  sched_setaffinity(0, bytes, set);  // a wish: unpinned threads compute the same
  CPU_FREE(set);
}

}  // namespace

// `gate` says in one word whether a loop is open, which one, and how many workers are inside. A worker enters only an
// open loop, by a compare-and-swap, and reads the job after that; the caller closes the gate when no unit is left and
// waits for those inside only. So a worker whose core was taken away before it entered delays nobody.
struct ThreadPool::State {
  static constexpr uint64_t kInsideMask = 0xffff;
  static constexpr uint64_t kOpen = uint64_t{1} << 16;
  static constexpr uint64_t kLoop = uint64_t{1} << 17;  // the number of the loop starts here

  std::atomic<uint64_t> gate{0};
  std::atomic<size_t> next{0};
  size_t units = 0;
  Trampoline call = nullptr;
  const void* body = nullptr;

  std::atomic<bool> stop{false};
  std::atomic<int> sleepers{0};
  std::atomic<bool> caller_sleeps{false};
  std::mutex mutex;
  std::condition_variable work_came, workers_left;
  std::vector<std::thread> workers;

  void work(int worker) {
    for (size_t unit = next.fetch_add(1, std::memory_order_relaxed); unit < units;
         unit = next.fetch_add(1, std::memory_order_relaxed)) {
      call(body, unit, worker);
    }
  }

  // True when inside; `seen` is the last loop this worker was in.
  bool enter(uint64_t& seen) {
    uint64_t now = gate.load();
    while ((now & kOpen) && now / kLoop != seen) {
      if (!gate.compare_exchange_weak(now, now + 1)) continue;
      seen = now / kLoop;
      return true;
    }
    return false;
  }

  void leave() {
    const uint64_t after = gate.fetch_sub(1) - 1;
    if ((after & (kOpen | kInsideMask)) == 0 && caller_sleeps.load()) {
      const std::lock_guard lock(mutex);
      workers_left.notify_one();
    }
  }

  void worker_main(int worker) {
    const FloatMode plain;
    uint64_t seen = 0;
    bool inside = false;
    const auto ready = [&] { return stop.load() || (inside = enter(seen)); };
    for (;;) {
      inside = false;
      if (!spin_until(ready)) {
        std::unique_lock lock(mutex);
        ++sleepers;
        work_came.wait(lock, ready);
        --sleepers;
      }
      if (!inside) return;
      work(worker);
      leave();
    }
  }

  void wake(size_t wanted) {
    if (sleepers.load() == 0) return;
    const std::lock_guard lock(mutex);
    if (wanted >= workers.size()) {
      work_came.notify_all();
    } else {
      for (size_t i = 0; i < wanted; ++i) work_came.notify_one();
    }
  }

  void wait_until_empty() {
    const auto empty = [&] { return (gate.load() & kInsideMask) == 0; };
    if (spin_until(empty)) return;
    std::unique_lock lock(mutex);
    caller_sleeps = true;
    workers_left.wait(lock, empty);
    caller_sleeps = false;
  }
};

ThreadPool::ThreadPool(int threads, bool pin) : state_(std::make_unique<State>()) {
  CHECK(threads >= 1 && threads < static_cast<int>(State::kInsideMask), "a pool has 1 to 65534 threads");
  const std::vector<int> cores = pin ? usable_cores() : std::vector<int>();
  const bool pinned = cores.size() >= static_cast<size_t>(threads);
  state_->workers.reserve(static_cast<size_t>(threads) - 1);
  for (int worker = 1; worker < threads; ++worker) {
    try {
      state_->workers.emplace_back([state = state_.get(), worker, cpu = pinned ? cores[worker] : -1] {
        if (cpu >= 0) pin_this_thread(cpu);
        state->worker_main(worker);
      });
    } catch (const std::system_error& error) {  // a limit on threads; those that started compute the same
      log(LogLevel::warning, "only " + std::to_string(worker) + " of " + std::to_string(threads) +
                                 " compute threads could be started: " + error.what());
      return;
    }
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->work_came.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

// noexcept: a body that throws ends the process here, with its message, instead of leaving workers on a dead stack.
void ThreadPool::run_erased(size_t units, Trampoline call, const void* body) noexcept {
  State& s = *state_;
  const FloatMode plain;
  if (units <= 1 || s.workers.empty()) {
    for (size_t unit = 0; unit < units; ++unit) call(body, unit, 0);
  } else {
    s.units = units;
    s.call = call;
    s.body = body;
    s.next.store(0, std::memory_order_relaxed);
    const uint64_t loop = s.gate.load(std::memory_order_relaxed) / State::kLoop + 1;
    s.gate.store(loop * State::kLoop | State::kOpen);
    s.wake(units - 1);
    s.work(0);
    s.gate.fetch_and(~State::kOpen);
    s.wait_until_empty();
  }
}

}  // namespace kvarto

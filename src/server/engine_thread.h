// EngineThread: an engine and the thread that owns it. The thread steps while there is work and sleeps otherwise,
// waking at least once a second to tick. Calls from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kvarto/engine.h"

namespace kvarto {

class EngineThread {
 public:
  explicit EngineThread(std::unique_ptr<Engine> engine);
  // What runs ends as cancelled.
  ~EngineThread();

  // For its calls that any thread may make: text, info, health, stats_snapshot.
  const Engine& engine() const { return *engine_; }
  // See Engine::submit; the callbacks of the request run on this thread and must not block.
  Result<RequestId> submit(Request request);
  void cancel(RequestId id);
  // Runs `call` on the thread between two steps. An exception out of it is taken for a bug of the engine, which ends
  // what runs and drops the cache, as a failed step does. The caller bounds how many wait.
  void between_steps(std::function<void(Engine&)> call);
  // Steady time of the loop's last tick.
  uint64_t last_tick_us() const { return tick_us_; }
  // The thread is in a step that it began with work to do; a request shows in no statistics before its first is done.
  bool in_step() const { return in_step_; }
  // Tests: the thread sleeps so long before each step; a shorter time ends a sleep that is longer already.
  void stall(uint64_t us) { stall_us_ = us; }

 private:
  void wake();
  void loop();
  void guard(const std::function<void()>& work);
  void sleep_planted();

  const std::unique_ptr<Engine> engine_;
  std::atomic<uint64_t> tick_us_, stall_us_ = 0;
  std::atomic<bool> in_step_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool awake_ = false, stopping_ = false;
  std::vector<std::function<void(Engine&)>> calls_;
  std::thread thread_;  // last: it uses the above
};

uint64_t steady_us();

}  // namespace kvarto

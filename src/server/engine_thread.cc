#include "server/engine_thread.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "base/log.h"
#include "engine/engine_parts.h"

namespace kvarto {

uint64_t steady_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

EngineThread::EngineThread(std::unique_ptr<Engine> engine)
    : engine_(std::move(engine)), tick_us_(steady_us()), thread_([this] { loop(); }) {}

EngineThread::~EngineThread() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Result<RequestId> EngineThread::submit(Request request) {
  Result<RequestId> id = engine_->submit(std::move(request));
  wake();
  return id;
}

void EngineThread::cancel(RequestId id) {
  engine_->cancel(id);
  wake();
}

void EngineThread::between_steps(std::function<void(Engine&)> call) {
  {
    const std::scoped_lock lock(mutex_);
    calls_.push_back(std::move(call));
    awake_ = true;
  }
  wake_.notify_one();
}

void EngineThread::wake() {
  {
    const std::scoped_lock lock(mutex_);
    awake_ = true;
  }
  wake_.notify_one();
}

void EngineThread::loop() {
  std::vector<std::function<void(Engine&)>> calls;
  bool busy = false;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (!busy) wake_.wait_for(lock, std::chrono::seconds(1), [this] { return awake_ || stopping_; });
      if (stopping_) return;
      awake_ = false;
      calls.swap(calls_);
    }
    for (const auto& call : calls) guard([&] { call(*engine_); });
    calls.clear();
    in_step_ = !engine_->idle();
    sleep_planted();
    busy = false;
    guard([&] { busy = engine_->step(); });
    in_step_ = false;
    tick_us_ = steady_us();
  }
}

// After an exception nothing that the engine holds can be trusted, as after a failed step.
void EngineThread::guard(const std::function<void()>& work) {
  std::string what = "unknown exception";
  try {
    return work();
  } catch (const std::exception& bug) {
    what = bug.what();
  } catch (...) {
  }
  try {
    EngineParts::poison(*engine_, what);
    wake();  // whoever waits goes on
  } catch (const std::exception& bug) {
    log(LogLevel::error, "after \"" + what + "\" the engine failed again: " + bug.what());
  } catch (...) {
    log(LogLevel::error, "after \"" + what + "\" the engine failed again");
  }
}

void EngineThread::sleep_planted() {
  constexpr uint64_t kNapUs = 5000;
  uint64_t slept = 0;
  for (uint64_t wanted = stall_us_; slept < wanted; wanted = stall_us_) {
    const uint64_t nap = std::min(kNapUs, wanted - slept);
    std::this_thread::sleep_for(std::chrono::microseconds(nap));
    slept += nap;
    const std::scoped_lock lock(mutex_);
    if (stopping_) return;
  }
}

}  // namespace kvarto

#include "server/engine_thread.h"

#include <chrono>
#include <utility>

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
    for (const auto& call : calls) call(*engine_);
    calls.clear();
    if (const uint64_t us = stall_us_; us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
    busy = engine_->step();
    tick_us_ = steady_us();
  }
}

}  // namespace kvarto

#include "server/text_thread.h"

#include <exception>
#include <string>
#include <utility>

#include "base/log.h"

namespace kvarto {

TextThread::~TextThread() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

bool TextThread::post(std::function<void()> work, size_t bytes) {
  {
    const std::scoped_lock lock(mutex_);
    if (waiting_.size() >= limits_.works) return false;
    if (!waiting_.empty() && waiting_bytes_ + bytes > limits_.bytes) return false;
    waiting_.push_back({std::move(work), bytes});
    waiting_bytes_ += bytes;
  }
  wake_.notify_one();
  return true;
}

void TextThread::loop() {
  while (true) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
      waiting_bytes_ -= work.bytes;
    }
    try {
      work.call();
    } catch (const std::exception& bug) {
      log(LogLevel::error, std::string("work on text failed: ") + bug.what());
    } catch (...) {
      log(LogLevel::error, "work on text failed: unknown exception");
    }
  }
}

}  // namespace kvarto

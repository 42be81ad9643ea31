// TextThread: the one thread that reads requests' bodies, renders templates and turns text into ids, in order of
// arrival, so that a long prompt delays neither the engine nor the bytes of other streams. post() from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace kvarto {

class TextThread {
 public:
  TextThread() : thread_([this] { loop(); }) {}
  // What has not begun is dropped.
  ~TextThread() {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  void post(std::function<void()> work) {
    {
      const std::scoped_lock lock(mutex_);
      work_.push_back(std::move(work));
    }
    wake_.notify_one();
  }
  size_t waiting() const {
    const std::scoped_lock lock(mutex_);
    return work_.size();
  }

 private:
  void loop() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !work_.empty(); });
        if (stopping_) return;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the above
};

}  // namespace kvarto

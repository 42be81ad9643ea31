// TextThread: a thread that reads requests' bodies, renders templates and turns text into ids, in order of arrival, so
// that a long prompt delays neither the engine nor the bytes of other streams. What waits for it is bounded. post()
// from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace kvarto {

// Of what waits.
struct TextLimits {
  size_t works = 4096;
  size_t bytes = size_t{256} << 20;  // of requests' bodies; where nothing waits one has room, whatever its size
};

class TextThread {
 public:
  explicit TextThread(TextLimits limits = {}) : limits_(limits), thread_([this] { loop(); }) {}
  // What has not begun is dropped.
  ~TextThread();
  // False, and `work` is dropped: too much waits already. An exception out of it is logged and goes no further.
  // `bytes`: that it keeps in memory.
  bool post(std::function<void()> work, size_t bytes = 0);

 private:
  struct Work {
    std::function<void()> call;
    size_t bytes = 0;
  };
  void loop();

  const TextLimits limits_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Work> waiting_;
  size_t waiting_bytes_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the above
};

}  // namespace kvarto

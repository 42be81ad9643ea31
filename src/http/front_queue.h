// FrontQueue: what other threads want done on the server's front thread. However much is queued, one wake-up is pending
// at most. Shared by the server and every exchange, so that an exchange may outlive its server. Bounded by whoever
// queues: an exchange has a notice or two at a time, and connections are limited. Any thread; drain() is called on the
// front thread; what throws in it is logged, and the rest goes on.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace kvarto {

class ReplyChannel;

class FrontQueue {
 public:
  // `wake` makes the front thread call drain() soon; it is not called after close().
  explicit FrontQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  void push(std::shared_ptr<ReplyChannel> channel);  // has something to write, or to end
  bool call(std::function<void()> function);         // false: the server has stopped
  void drain();
  void close();

 private:
  void wake_once();

  std::mutex mutex_;
  std::function<void()> wake_;
  bool closed_ = false, awake_ = false;
  std::vector<std::shared_ptr<ReplyChannel>> channels_;
  std::vector<std::function<void()>> calls_;
};

// Runs what the server was handed; an exception is logged and goes no further.
void run_guarded(const std::function<void()>& call);

}  // namespace kvarto

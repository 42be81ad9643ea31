// EventQueue: what the engine's thread says to answers, carried to the front thread: many events, one wake-up.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "server/reply.h"

namespace kvarto {

class EventQueue {
 public:
  // `wake` makes the front thread call drain() soon; any thread.
  explicit EventQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  void push(std::shared_ptr<Reply> answer, EngineEvent event) {
    bool first = false;
    {
      const std::scoped_lock lock(mutex_);
      first = events_.empty();
      events_.emplace_back(std::move(answer), std::move(event));
    }
    if (first) wake_();
  }
  // Front thread.
  void drain() {
    {
      const std::scoped_lock lock(mutex_);
      taken_.swap(events_);
    }
    for (auto& [answer, event] : taken_) answer->take(std::move(event));
    taken_.clear();
  }

 private:
  const std::function<void()> wake_;
  std::mutex mutex_;
  std::vector<std::pair<std::shared_ptr<Reply>, EngineEvent>> events_;
  std::vector<std::pair<std::shared_ptr<Reply>, EngineEvent>> taken_;  // front thread's
};

}  // namespace kvarto

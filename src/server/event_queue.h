// EventQueue: what the engine's thread says to answers, carried to the front thread: many events, one wake-up. Bounded:
// when the front thread falls far behind, streams lose events and end with an error; results always have room, since
// there are no more of them than accepted requests. The engine's thread never waits here.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "server/reply.h"

namespace kvarto {

class EventQueue {
 public:
  static constexpr size_t kMostEvents = size_t{1} << 18;

  // `wake` makes the front thread call drain() soon; any thread.
  explicit EventQueue(std::function<void()> wake, size_t most = kMostEvents) : wake_(std::move(wake)), most_(most) {}

  void push(std::shared_ptr<Reply> answer, EngineEvent event);
  // Front thread. An answer that cannot take an event ends with an error; the others go on.
  void drain();

 private:
  using Event = std::pair<std::shared_ptr<Reply>, EngineEvent>;

  const std::function<void()> wake_;
  const size_t most_;
  std::mutex mutex_;
  bool awake_ = false;  // drain() will come
  std::vector<Event> events_;
  std::unordered_set<std::shared_ptr<Reply>> behind_;  // they lost events
};

}  // namespace kvarto
